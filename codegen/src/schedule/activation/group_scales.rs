//! Scales of groups of x that the lanes of a warp cannot find together: groups of any size or of several
//! tokens, levels that do not nest, or columns that a product reads in another order.
//!
//! A kernel before the operand's, with a block per row and a thread per unit, writes the scale and the zero
//! point of each unit, `[M, C]` for C units of x in the stored order. A unit is the columns that share all
//! scales ([`ActivationProblem::group`]). The operand's kernel then reads those of each column's unit.

use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{BufferRole, Quantiser, ScaleLevel};

use super::code::{Codes, OfElements};
use super::levels::{Constants, Given, Levels, OfRow, columns};
use super::operand_scales::OperandScales;
use super::problem::ActivationProblem;
use super::quotient::Divisor;
use super::rounding::Rounding;
use super::rows::{OperandRows, SlotRow};
use super::scale::{Factor, Scales};
use super::source::{SourceColumn, VECTOR, VectorSource};
use super::value_range::{Running, ValueRange};
use super::{ROW_THREADS, masked, start};
use crate::ir::{
    Access, Address, Binary, BufferId, Builder, Cache, Extent, Kernel, Mask, Op, Operand,
    ParameterId, Special, Type, Width, Word,
};

/// The buffers between the kernels.
struct OfGroups {
    scale: BufferId,
    /// Zero points, if they are chosen.
    zero: Option<BufferId>,
}

impl OfGroups {
    fn declare(
        b: &mut Builder,
        problem: &ActivationProblem,
        quantiser: &Quantiser,
        (rows, access): (Extent, Access),
    ) -> Self {
        let shape = [rows, Extent::Constant(problem.own_groups())];
        let mut buffer = |role| b.buffer_of(role, Word::U32, access, &shape, "f32 [group, m]");
        let scale = buffer(BufferRole::GroupScale);
        Self { scale, zero: quantiser.zero.map(|_| buffer(BufferRole::GroupZero)) }
    }
}

/// The kernel that chooses scales and zero points.
pub(super) fn scales(problem: &ActivationProblem, programmatic: bool) -> Option<Kernel> {
    let quantiser = problem.quantiser()?;
    let groups = problem.own_groups();
    let limit = problem.target.gpu.map_or(ROW_THREADS, |gpu| gpu.block_threads);
    let wanted = if problem.spans_columns() { problem.k.div_ceil(VECTOR) } else { groups };
    let wanted = wanted.max(groups).next_multiple_of(problem.warp());
    let threads = wanted.min(ROW_THREADS.min(limit));
    let summary = format!("Scales of {groups} groups of each row of x[m, {}].", problem.k);
    let (mut b, m) = start(problem, ("scales", &summary), threads, programmatic);
    let rows = OperandRows::declare(&mut b, problem, m);
    b.grid(rows.grid(1));
    choose(&mut b, problem, quantiser, (m, rows, threads), programmatic);
    Some(b.finish())
}

/// The body of [`scales`].
fn choose(
    b: &mut Builder,
    problem: &ActivationProblem,
    quantiser: &Quantiser,
    (m, rows, threads): (ParameterId, OperandRows, u32),
    programmatic: bool,
) {
    let source = VectorSource::declare(b, problem, m, false).by_elements();
    let given = Given::declare(b, problem, quantiser);
    let found = OfGroups::declare(b, problem, quantiser, (rows.count(), problem.rows_access()));
    let levels = Levels::new(problem, given);
    let (number, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let mut this = Chooser { problem, threads, thread, source, levels, found, number, m };
    if problem.routed.is_none() {
        let first = b.mul(number, problem.k);
        if programmatic {
            b.push(Op::GridLaunch);
        }
        let constants = this.levels.load_constants(b, 0u32.into());
        if programmatic {
            b.push(Op::GridWait);
        }
        return this.write(b, constants, (number, first));
    }
    if programmatic {
        b.push(Op::GridLaunch);
        b.push(Op::GridWait);
    }
    let Some(row) = rows.of_pair(b, number) else { return };
    let SlotRow { number, there, of_x, matrix, .. } = row;
    b.when(there, |b| {
        this.number = number;
        this.source = this.source.of_matrix(b, problem, matrix);
        let constants = this.levels.load_constants(b, matrix);
        let first = b.mul(of_x, problem.k);
        this.write(b, constants, (of_x, first));
    });
}

/// A block that chooses the scales of a row of the operand.
struct Chooser<'p> {
    problem: &'p ActivationProblem,
    threads: u32,
    thread: Operand,
    source: VectorSource,
    levels: Levels<'p>,
    found: OfGroups,
    /// The number of the row.
    number: Operand,
    m: ParameterId,
}

impl Chooser<'_> {
    /// Writes the scales of a row that is made of a row of x, given by its number and its first element.
    fn write(self, b: &mut Builder, constants: Constants, (row, first): (Operand, Operand)) {
        let Self { problem, threads, thread, source, levels, found, number, m } = self;
        let groups = problem.own_groups();
        let row_range = problem.spans_columns().then(|| {
            let running = Running::start(b, problem.signed());
            let own = b.mul(thread, VECTOR);
            let apart = threads * VECTOR;
            b.for_each(0u32, problem.k.next_multiple_of(apart), apart, "at", |b, at| {
                let column = b.add(own, at);
                let words = source.load(b, first, column, Some(problem.k.into()));
                let elements = source.elements(b, &words);
                running.add(b, &elements);
            });
            running.range().of_block(b, threads)
        });
        let of_row = levels.of_row(b, &constants, row_range);
        let to_row = b.mul(number, groups);
        let this = Unit { problem, source, levels, constants, of_row, row_range, row, first, m };
        b.for_each(0u32, groups.next_multiple_of(threads), threads, "group", |b, at| {
            let unit = b.add(thread, at);
            let there = b.less(unit, groups);
            let (factor, zero) = this.chosen(b, unit, there);
            let to = b.add(to_row, unit);
            let stored = [(Some(found.scale), factor.map(|of| of.value)), (found.zero, zero)];
            for (buffer, value) in stored {
                if let (Some(buffer), Some(value)) = (buffer, value) {
                    b.store(Address::new(buffer, to), &[value], Width::B32, masked(there));
                }
            }
        });
    }
}

/// The state of a thread that chooses the scale of a unit.
struct Unit<'p> {
    problem: &'p ActivationProblem,
    source: VectorSource,
    levels: Levels<'p>,
    constants: Constants,
    of_row: OfRow,
    row_range: Option<ValueRange>,
    /// The number of the row of x, and its first element.
    row: Operand,
    first: Operand,
    m: ParameterId,
}

/// An element of x.
#[derive(Clone, Copy)]
struct At {
    /// The row; `None` for the block's.
    row: Option<Operand>,
    column: Column,
    /// Whether the element exists.
    there: Operand,
}

#[derive(Clone, Copy)]
enum Column {
    /// The first column of a unit.
    Unit(Operand),
    Number(Operand),
}

impl Unit<'_> {
    /// The scale of a unit (the product of its levels), and its zero point if the quantiser has one.
    fn chosen(
        &self,
        b: &mut Builder,
        unit: Operand,
        there: Operand,
    ) -> (Option<Factor>, Option<Operand>) {
        let at = At { row: None, column: Column::Unit(unit), there };
        let mut zero = self.constants.zero;
        let factor = self.factor(b, 0, at, &mut zero);
        (factor, zero)
    }

    /// The product of the scales from level `number` on, for an element; and the zero point of the
    /// finest level, if it is chosen.
    fn factor(
        &self,
        b: &mut Builder,
        number: usize,
        at: At,
        zero: &mut Option<Operand>,
    ) -> Option<Factor> {
        let problem = self.problem;
        let level = problem.levels().get(number)?;
        if number == problem.first_of_row() && self.is_of_row(number, at) {
            return self.of_row.factor;
        }
        let scales = &self.levels.scales;
        let outer = self.factor(b, number + 1, at, &mut None);
        if let Some(given) = self.constants.scales.get(number).copied().flatten() {
            return Some(scales.with_stored(b, level, given, outer));
        }
        let (range, first) = self.group(b, level, at);
        // The group's first element determines the coarser levels, of which it may have others than this
        // element.
        let outer_of_first = match problem.nests(number) {
            true => outer,
            false => self.factor(b, number + 1, first, &mut None),
        };
        let chosen = scales.choose(b, level, range, outer_of_first);
        let factor = scales.with(b, level, chosen, outer);
        if number == 0 {
            let of_first = match problem.nests(number) {
                true => factor,
                false => scales.with(b, level, chosen, outer_of_first),
            };
            *zero = self.levels.chosen_zero(b, range, of_first);
        }
        Some(factor)
    }

    /// Whether the levels from `number` on are those of the block's row: they do not change along the
    /// row, and the element is in that row or they are the same for all rows.
    fn is_of_row(&self, number: usize, at: At) -> bool {
        let mut levels = self.problem.levels()[number..].iter();
        at.row.is_none() || levels.all(|level| level.group.rows == GroupSize::All)
    }

    /// The range of an element's group, and the group's first element.
    fn group(&self, b: &mut Builder, level: &ScaleLevel, at: At) -> (ValueRange, At) {
        let k = self.problem.k;
        let rows = match level.group.rows {
            GroupSize::All => Some((0u32.into(), u32::MAX)),
            GroupSize::Each(1) => at.row.map(|row| (row, 1)),
            GroupSize::Each(rows) => {
                let row = at.row.unwrap_or(self.row);
                let group = b.div(row, rows);
                Some((b.mul(group, rows), rows))
            }
        };
        let Some(size) = columns(level) else {
            let column = Column::Number(0u32.into());
            let first = At { row: rows.map(|(first, _)| first), column, there: at.there };
            let known = match rows {
                None => self.row_range,
                Some(_) if level.group.rows == GroupSize::All => self.of_row.tensor,
                Some(_) => None,
            };
            let end = Operand::U32(k);
            let range = known.unwrap_or_else(|| self.range(b, rows, (0u32.into(), end, k)));
            return (range, first);
        };
        let column = match at.column {
            Column::Unit(unit) => b.mul(unit, self.problem.group().unwrap_or(1)),
            Column::Number(column) => column,
        };
        let own = b.div(column, size);
        let begin = b.mul(own, size);
        let end = b.add(begin, size);
        let end = b.binary(Binary::Min, end, k);
        let end = b.select(at.there, end, 0u32);
        let range = self.range(b, rows, (begin, end, size.min(k)));
        let row = rows.map(|(first, _)| first);
        (range, At { row, column: Column::Number(begin), there: at.there })
    }

    /// The range of at most `size` columns, of some rows or of the block's row.
    fn range(
        &self,
        b: &mut Builder,
        rows: Option<(Operand, u32)>,
        (begin, end, size): (Operand, Operand, u32),
    ) -> ValueRange {
        let running = Running::start(b, self.problem.signed());
        let of_row = |b: &mut Builder, first: Operand| {
            b.for_each(0u32, size.next_multiple_of(VECTOR), VECTOR, "at", |b, at| {
                let column = b.add(begin, at);
                let words = self.source.load(b, first, column, Some(end));
                let elements = self.source.elements(b, &words);
                running.add(b, &elements);
            });
        };
        match rows {
            None => of_row(b, self.first),
            Some((from, count)) => {
                let m = b.argument(self.m);
                let left = b.sub(m, from);
                let count = b.binary(Binary::Min, left, count);
                let end = b.add(from, count);
                b.for_each(from, end, 1u32, "row", |b, row| {
                    let first = b.mul(row, self.problem.k);
                    of_row(b, first);
                });
            }
        }
        running.range()
    }
}

/// The scales of groups in the operand's kernel.
pub(super) struct GroupScales<'p> {
    problem: &'p ActivationProblem,
    codes: Codes<'p>,
    given: OfGroups,
    /// The scales of the product's segments.
    scale: OperandScales,
    rounding: Rounding,
}

impl<'p> GroupScales<'p> {
    /// Declares the buffers; `None` if lanes find the scales themselves.
    pub(super) fn declare(
        b: &mut Builder,
        problem: &'p ActivationProblem,
        (rows, m): (Extent, ParameterId),
        row: Operand,
    ) -> Option<Self> {
        let quantiser = problem.quantiser().filter(|_| problem.has_scale_kernel())?;
        let given = OfGroups::declare(b, problem, quantiser, (rows, Access::ReadOnly));
        let scale = OperandScales::declare(b, (problem, BufferRole::OperandScale), (rows, m), row);
        let codes = Codes { quantiser, operand: problem.operand };
        let rounding = Scales::new(problem, quantiser).rounding();
        Some(Self { problem, codes, given, scale, rounding })
    }

    /// Stores scales of 0 of the segments that start in a vector of a row of zeros.
    pub(super) fn store_zeros(
        &self,
        b: &mut Builder,
        (row, column, inside): (Operand, Operand, Operand),
    ) {
        let segment = self.problem.columns_of_scale().unwrap_or(self.problem.padded);
        for at in (0..VECTOR).step_by(segment.min(VECTOR) as usize) {
            let column = b.add(column, at);
            let zeros = (0.0f32.into(), Some(0.0f32.into()));
            self.store_scale(b, (row, column, inside), (segment, zeros));
        }
    }

    /// Stores the scale of the segment that starts at a column, and its zero point.
    fn store_scale(
        &self,
        b: &mut Builder,
        (row, column, inside): (Operand, Operand, Operand),
        (segment, numbers): (u32, (Operand, Option<Operand>)),
    ) {
        let (number, within) = (b.div(column, segment), b.rem(column, segment));
        let begins = b.equal(within, 0u32);
        let begins = b.both(begins, inside);
        self.scale.store(b, (row, Some(number)), numbers, begins);
    }

    /// The operand's words of a vector with columns from `columns`; also stores the scales of segments
    /// that start there.
    pub(super) fn quantise(
        &self,
        b: &mut Builder,
        elements: &[Operand],
        columns: &[SourceColumn],
        (row, column, inside): (Operand, Operand, Operand),
    ) -> Vec<Operand> {
        let problem = self.problem;
        let segment = problem.columns_of_scale().unwrap_or(problem.padded);
        let size = problem.group().unwrap_or(problem.k);
        let first = b.mul(row, problem.own_groups());
        let each = segment.min(VECTOR) as usize;
        let (mut scaled, mut zeros) = (Vec::new(), Vec::new());
        // Columns of a segment belong to one group; its pads are last.
        for (at, (elements, columns)) in
            (0..VECTOR).step_by(each).zip(elements.chunks(each).zip(columns.chunks(each)))
        {
            let SourceColumn { column: own, there } = columns[0];
            let group = b.div(own, size);
            let from = b.add(first, group);
            let load = |b: &mut Builder, buffer: BufferId, fill: f32| -> Operand {
                let mask = Some(Mask { condition: there, fill: fill.into() });
                let from = Address::new(buffer, from);
                b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0].into()
            };
            let value = load(b, self.given.scale, 1.0);
            let zero = self.given.zero.map(|buffer| load(b, buffer, 0.0));
            let factor = Factor::given(value, self.rounding);
            let divisor = Divisor::new(b, problem, factor);
            let quotients = divisor.quotients(b, elements);
            let mut rounded = self.rounding.round(b, quotients);
            if let Some(zero) = zero {
                let moved = rounded.iter().map(|x| b.add_f32(*x, zero)).collect();
                rounded = self.rounding.round(b, moved);
            }
            zeros.extend(std::iter::repeat_n(zero, rounded.len()).flatten());
            scaled.extend(rounded);
            let column = b.add(column, at);
            self.store_scale(b, (row, column, inside), (segment, (value, zero)));
        }
        let there: Vec<Operand> = columns.iter().map(|column| column.there).collect();
        let zeros = self.given.zero.filter(|_| !problem.leaves_zero()).map(|_| &zeros[..]);
        self.codes.words(b, &scaled, OfElements { zeros, scale: None }, Some(&there))
    }
}
