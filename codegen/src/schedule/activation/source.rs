//! x in vectors of 8 consecutive columns, with the widest loads that rows of K elements allow. If there is
//! a prescale, a vector is x times the prescale, in the input dtype.

use quantloom_dsl::BufferRole;

use crate::ir::{
    Access, Address, Binary, BufferId, Builder, Cache, Extent, Half, Mask, Operand, ParameterId,
    Reg, Side, Space, Type, Width, Word,
};

use super::problem::ActivationProblem;
use super::rounding::half;

/// Columns of a vector.
pub(super) const VECTOR: u32 = 8;

/// Where vectors of x are loaded from.
pub(super) struct VectorSource {
    x: Space,
    /// For each column of the operand, its column of x.
    order: Option<BufferId>,
    /// The prescale of each column of x.
    prescale: Option<BufferId>,
    /// Whether x is read as one long row, in which columns continue from row to row.
    one_row: bool,
    /// The input dtype; f32 if `None`.
    half: Option<Half>,
    k: u32,
    /// The first words of a matrix in the orders and in the prescales, if each matrix has its own.
    of_matrix: Option<OfMatrix>,
    /// Elements of a load: a power of two that divides K, 16 bytes at most; 1 if columns are reordered.
    unit: u32,
}

/// The first words of a matrix.
#[derive(Clone, Copy)]
struct OfMatrix {
    order: Operand,
    prescale: Operand,
}

/// The source of an element of the operand.
#[derive(Clone, Copy)]
pub(super) struct SourceColumn {
    /// The column of x.
    pub(super) column: Operand,
    /// Whether the element exists; otherwise it is a pad.
    pub(super) there: Operand,
}

impl VectorSource {
    /// Declares x, its order and its prescale, if it has them.
    pub(super) fn declare(
        b: &mut Builder,
        problem: &ActivationProblem,
        m: ParameterId,
        gathers: bool,
    ) -> Self {
        let half = half(problem.own);
        let word = if half.is_some() { Word::U16 } else { Word::U32 };
        let shape = [Extent::Parameter(m), Extent::Constant(problem.k)];
        let layout = format!("{} [k, m]", problem.own);
        let x = b.buffer_of(BufferRole::X, word, Access::ReadOnly, &shape, &layout);
        Self::of(b, problem, x, gathers)
    }

    /// Of x in some memory; declares its order and its prescale, if it has them.
    pub(super) fn of(
        b: &mut Builder,
        problem: &ActivationProblem,
        x: impl Into<Space>,
        gathers: bool,
    ) -> Self {
        let x = x.into();
        let half = half(problem.own);
        let each = |words: u32| -> Vec<Extent> {
            let matrices = problem.routed.map(|_| problem.matrices());
            matrices.into_iter().chain([words]).map(Extent::Constant).collect()
        };
        let order = gathers.then(|| {
            let shape = each(problem.padded);
            b.buffer_of(
                BufferRole::ColumnOrder,
                Word::U32,
                Access::Constant,
                &shape,
                "columns of x, by p",
            )
        });
        let prescale = problem.prescales().then(|| {
            let shape = each(problem.k);
            b.buffer_of(BufferRole::Prescale, Word::U32, Access::Constant, &shape, "f32 [k]")
        });
        let widest = match (gathers, half) {
            (true, _) => 1,
            (false, Some(_)) => 8,
            (false, None) => 4,
        };
        let unit = (1 << problem.k.trailing_zeros().min(3)).min(widest);
        Self { x, order, prescale, one_row: false, half, k: problem.k, of_matrix: None, unit }
    }

    /// The same, with all rows of x as one.
    pub(super) fn into_one_row(self) -> Self {
        Self { one_row: true, ..self }
    }

    /// The same with the order and the prescale of a matrix.
    pub(super) fn of_matrix(
        self,
        b: &mut Builder,
        problem: &ActivationProblem,
        matrix: Operand,
    ) -> Self {
        let (order, prescale) = (b.mul(matrix, problem.padded), b.mul(matrix, problem.k));
        Self { of_matrix: Some(OfMatrix { order, prescale }), ..self }
    }

    /// The same with loads of single elements: vectors may start at any column.
    pub(super) fn by_elements(self) -> Self {
        Self { unit: 1, ..self }
    }

    /// Loads the elements of a vector that starts at a column of a row; `row` is the row's first
    /// element. Columns from the limit on, if there is one, are 0.
    pub(super) fn load(
        &self,
        b: &mut Builder,
        row: Operand,
        column: Operand,
        limit: Option<Operand>,
    ) -> Vec<Operand> {
        if let Some(order) = self.order {
            return self.gather(b, order, row, column, limit).0;
        }
        let first = b.add(row, column);
        let mut words = Vec::new();
        for part in (0..VECTOR).step_by(self.unit as usize) {
            let mask = limit.map(|limit| {
                let column = b.add(column, part);
                b.less(column, limit)
            });
            let loaded = self.load_unit(b, first, part, mask);
            words.extend(self.multiplied(b, loaded, (column, part), mask));
        }
        words
    }

    /// Loads columns by their order; pads are 0.
    fn gather(
        &self,
        b: &mut Builder,
        order: BufferId,
        row: Operand,
        column: Operand,
        limit: Option<Operand>,
    ) -> (Vec<Operand>, Vec<SourceColumn>) {
        let (mut words, mut columns) = (Vec::new(), Vec::new());
        self.each_ordered(b, (order, column, limit), |b, column| {
            let from = b.add(row, column.column);
            let loaded = self.load_unit(b, from, 0, Some(column.there));
            words.extend(self.multiplied(b, loaded, (column.column, 0), Some(column.there)));
            columns.push(column);
        });
        (words, columns)
    }

    /// The columns of x of a vector of the operand, by their order.
    fn each_ordered(
        &self,
        b: &mut Builder,
        (order, column, limit): (BufferId, Operand, Option<Operand>),
        mut each: impl FnMut(&mut Builder, SourceColumn),
    ) {
        // Orders are padded to whole vectors.
        let inside = limit.map(|limit| b.less(column, limit));
        let mask = inside.map(|condition| Mask { condition, fill: u32::MAX.into() });
        let first = match self.of_matrix {
            Some(of_matrix) => b.add(of_matrix.order, column),
            None => column,
        };
        for at in (0..VECTOR).step_by(4) {
            let from = Address::new(order, first).plus(at);
            for found in b.load_as(Type::U32, from, Width::B128, mask, Cache::Constant) {
                let there = b.less(found, self.k);
                each(b, SourceColumn { column: found.into(), there });
            }
        }
    }

    /// The sources of the elements of a vector of the operand.
    pub(super) fn columns(
        &self,
        b: &mut Builder,
        column: Operand,
        limit: Option<Operand>,
    ) -> Vec<SourceColumn> {
        if let Some(order) = self.order {
            let mut columns = Vec::new();
            self.each_ordered(b, (order, column, limit), |_, column| columns.push(column));
            return columns;
        }
        let source = |at: u32| {
            let column = b.add(column, at);
            SourceColumn { column, there: b.less(column, self.k) }
        };
        (0..VECTOR).map(source).collect()
    }

    /// The elements of a vector, and their sources.
    pub(super) fn load_with_columns(
        &self,
        b: &mut Builder,
        row: Operand,
        column: Operand,
        limit: Option<Operand>,
    ) -> (Vec<Operand>, Vec<SourceColumn>) {
        match self.order {
            Some(order) => self.gather(b, order, row, column, limit),
            None => (self.load(b, row, column, limit), self.columns(b, column, limit)),
        }
    }

    fn load_unit(
        &self,
        b: &mut Builder,
        first: Operand,
        part: u32,
        mask: Option<Operand>,
    ) -> Vec<Reg> {
        let (ty, fill, bytes) = match self.half {
            Some(_) => (Type::U32, Operand::U32(0), 2 * self.unit),
            None => (Type::F32, Operand::F32(0.0), 4 * self.unit),
        };
        let width = match bytes {
            2 => Width::B16,
            4 => Width::B32,
            8 => Width::B64,
            _ => Width::B128,
        };
        let mask = mask.map(|condition| Mask { condition, fill });
        b.load_as(ty, Address::new(self.x, first).plus(part), width, mask, Cache::Default)
    }

    /// The words of a load that starts at a column, multiplied by the prescale: products are rounded to
    /// f32 and then to the input dtype. Unchanged without a prescale.
    fn multiplied(
        &self,
        b: &mut Builder,
        words: Vec<Reg>,
        (column, part): (Operand, u32),
        mask: Option<Operand>,
    ) -> Vec<Operand> {
        let words: Vec<Operand> = words.into_iter().map(Operand::from).collect();
        let Some(prescale) = self.prescale else { return words };
        let (column, part) = match self.one_row {
            false => (column, part),
            true => {
                let column = b.add(column, part);
                (b.rem(column, self.k), 0)
            }
        };
        let column = match self.of_matrix {
            Some(of_matrix) => b.add(of_matrix.prescale, column),
            None => column,
        };
        let from = Address::new(prescale, column).plus(part);
        let width = match self.unit {
            1 => Width::B32,
            2 => Width::B64,
            _ => Width::B128,
        };
        let mask = mask.map(|condition| Mask { condition, fill: Operand::F32(0.0) });
        let mut factors = Vec::new();
        for at in (0..self.unit).step_by(4) {
            factors.extend(b.load_as(Type::F32, from.plus(at), width, mask, Cache::Constant));
        }
        let elements = self.elements(b, &words);
        let both = elements.into_iter().zip(factors);
        let products: Vec<Operand> = both.map(|(x, factor)| b.mul_f32(x, factor)).collect();
        let Some(half) = self.half else { return products };
        let pack = |pair: &[Operand]| {
            let high = pair.get(1).copied().unwrap_or(Operand::F32(0.0));
            b.binary(Binary::Pack(half), pair[0], high)
        };
        products.chunks(2).map(pack).collect()
    }

    /// The elements of a vector as f32.
    pub(super) fn elements(&self, b: &mut Builder, words: &[Operand]) -> Vec<Operand> {
        let Some(half) = self.half else { return words.to_vec() };
        let sides = if self.unit == 1 { &[Side::Low][..] } else { &[Side::Low, Side::High] };
        let both = words.iter().flat_map(|word| sides.iter().map(move |side| (*word, *side)));
        both.map(|(word, side)| b.half_to_f32(half, side, word)).collect()
    }

    /// The elements of a 16-bit vector, two per word.
    pub(super) fn pairs(&self, b: &mut Builder, words: &[Operand]) -> Vec<Operand> {
        if self.unit > 1 {
            return words.to_vec();
        }
        let pair = |two: &[Operand]| {
            let high = b.shl(two[1], 16u32);
            b.binary(Binary::Or, two[0], high)
        };
        words.chunks_exact(2).map(pair).collect()
    }
}
