//! The levels of a quantiser: static and dynamic scales, zero points, and the codes of x.

use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{BufferRole, Quantiser, ScaleLevel};

use super::code::{Codes, OfElements};
use super::operand_scales::OperandScales;
use super::problem::ActivationProblem;
use super::quotient::Divisor;
use super::rounding::Rounding;
use super::scale::{Factor, Scales};
use super::source::VECTOR;
use super::value_range::ValueRange;
use super::{RANGES_OF_A_LANE, ranges_buffer};
use crate::ir::{
    Access, Address, BufferId, Builder, Cache, Extent, Operand, ParameterId, SharedId, Type, Width,
    Word,
};

/// The static parameters of a quantiser, and ranges from an earlier kernel.
pub(super) struct Given<'p> {
    quantiser: &'p Quantiser,
    /// The number of each static level.
    scales: Vec<Option<BufferId>>,
    /// A static zero point.
    zero: Option<BufferId>,
    /// The ranges of parts of x.
    ranges: Option<BufferId>,
}

impl<'p> Given<'p> {
    /// Declares the buffers that are read.
    pub(super) fn declare(
        b: &mut Builder,
        problem: &ActivationProblem,
        quantiser: &'p Quantiser,
    ) -> Self {
        let each = [Extent::Constant(problem.matrices())];
        let mut constant = |role| b.buffer_of(role, Word::U32, Access::Constant, &each, "f32");
        let levels = (0u8..).zip(&quantiser.scales);
        let scales = levels
            .map(|(at, level)| level.stored.then(|| constant(BufferRole::InputScale(at))))
            .collect();
        let finest_is_given = quantiser.scales.first().is_some_and(|level| level.stored);
        let zero =
            quantiser.zero.filter(|_| finest_is_given).map(|_| constant(BufferRole::InputZero));
        let ranges = problem.spans_rows();
        let ranges = ranges.then(|| ranges_buffer(b, problem, Access::ReadOnly));
        Self { quantiser, scales, zero, ranges }
    }
}

/// The levels of a quantiser.
pub(super) struct Levels<'p> {
    problem: &'p ActivationProblem,
    given: Given<'p>,
    pub(super) scales: Scales<'p>,
    codes: Codes<'p>,
    scale: Option<OperandScales>,
}

/// The static parameters, in registers.
pub(super) struct Constants {
    pub(super) scales: Vec<Option<Operand>>,
    pub(super) zero: Option<Operand>,
    /// The first of the matrix's ranges of all of x, in parts.
    first_part: Operand,
}

/// The values that are constant along a row.
pub(super) struct OfRow {
    /// The range of all of x, if a level is chosen from it.
    pub(super) tensor: Option<ValueRange>,
    /// The product of the coarsest levels that do not change along the row, if there are any.
    pub(super) factor: Option<Factor>,
    /// The zero point, if it does not change.
    zero: Option<Operand>,
    /// The divisor, if no level changes along the row.
    divisor: Option<Divisor>,
}

/// Columns that share a number of a level; `None` if a row does.
pub(super) const fn columns(level: &ScaleLevel) -> Option<u32> {
    match level.group.cols {
        GroupSize::Each(columns) => Some(columns),
        GroupSize::All => None,
    }
}

impl<'p> Levels<'p> {
    /// Declares the buffers that are written besides the operand: scales, of a role.
    pub(super) fn declare(
        b: &mut Builder,
        (problem, role): (&'p ActivationProblem, BufferRole),
        given: Given<'p>,
        rows: (Extent, ParameterId),
        row: Operand,
    ) -> Self {
        let scale =
            problem.has_scales().then(|| OperandScales::declare(b, (problem, role), rows, row));
        Self { scale, ..Self::new(problem, given) }
    }

    /// The levels of rows that a block makes for itself, with their scales and zero points in shared memory, if the product reads any.
    pub(super) fn in_block(
        problem: &'p ActivationProblem,
        given: Given<'p>,
        (scales, zeros): (Option<SharedId>, Option<SharedId>),
    ) -> Self {
        let scale = scales.map(|scales| OperandScales::in_block(problem, scales, zeros));
        Self { scale, ..Self::new(problem, given) }
    }

    /// The levels, whose scales are stored elsewhere.
    pub(super) fn new(problem: &'p ActivationProblem, given: Given<'p>) -> Self {
        let quantiser = given.quantiser;
        let codes = Codes { quantiser, operand: problem.operand };
        Self { problem, given, scales: Scales::new(problem, quantiser), codes, scale: None }
    }

    /// Loads the static parameters of a matrix.
    pub(super) fn load_constants(&self, b: &mut Builder, matrix: Operand) -> Constants {
        let mut load = |buffer: BufferId| {
            let from = Address::new(buffer, matrix);
            b.load_as(Type::F32, from, Width::B32, None, Cache::Constant)[0].into()
        };
        let scales = self.given.scales.iter().map(|buffer| buffer.map(&mut load)).collect();
        let zero = self.given.zero.map(load);
        let first_part = match self.given.ranges {
            Some(_) if self.problem.sets_of_ranges() > 1 => b.mul(matrix, self.problem.parts()),
            _ => 0u32.into(),
        };
        Constants { scales, zero, first_part }
    }

    /// The coarsest levels that do not change along a row; `range` is the row's, if a level is chosen
    /// from it.
    pub(super) fn of_row(
        &self,
        b: &mut Builder,
        constants: &Constants,
        row: Option<ValueRange>,
    ) -> OfRow {
        let signed = self.problem.signed();
        let tensor = self.given.ranges;
        let first = constants.first_part;
        let tensor =
            tensor.map(|parts| ValueRange::of_parts(b, (parts, first), RANGES_OF_A_LANE, signed));
        let mut of_row = OfRow { tensor, factor: None, zero: constants.zero, divisor: None };
        let levels = self.given.quantiser.scales.iter().zip(&constants.scales).enumerate();
        for (at, (level, number)) in levels.skip(self.problem.first_of_row()).rev() {
            let outer = of_row.factor;
            let range = if level.group.rows == GroupSize::All { tensor } else { row };
            let factor = match (number, range) {
                (Some(number), _) => self.scales.with_stored(b, level, *number, outer),
                (None, Some(range)) => {
                    let factor = self.scales.with_chosen(b, level, range, outer);
                    if at == 0 {
                        of_row.zero = self.chosen_zero(b, range, factor);
                    }
                    factor
                }
                (None, None) => continue,
            };
            of_row.factor = Some(factor);
        }
        if self.problem.group().is_none() && !self.problem.has_scale_kernel() {
            let factor = of_row.factor.unwrap_or_else(|| self.no_factor());
            of_row.factor = Some(factor);
            of_row.divisor = Some(Divisor::new(b, self.problem, factor));
        }
        of_row
    }

    /// The product of no levels.
    fn no_factor(&self) -> Factor {
        Factor::one(Rounding::to(self.problem.arithmetic()))
    }

    /// The zero point of values, if the quantiser has one.
    pub(super) fn chosen_zero(
        &self,
        b: &mut Builder,
        range: ValueRange,
        factor: Factor,
    ) -> Option<Operand> {
        self.given.quantiser.zero.map(|number| self.scales.zero(b, number, range, factor))
    }

    /// The product of the levels, the zero point and the finest number of a vector, if that changes along the row.
    fn of_vector(
        &self,
        b: &mut Builder,
        of_row: &OfRow,
        elements: &[Operand],
    ) -> (Factor, Option<Operand>, Option<Operand>) {
        let (mut factor, mut zero, mut finest) = (of_row.factor, of_row.zero, None);
        for (at, level) in self.given.quantiser.scales.iter().enumerate().rev() {
            let Some(columns) = columns(level) else { continue };
            let range = ValueRange::of(b, elements, self.problem.signed());
            let range = range.of_lanes(b, columns / VECTOR);
            let chosen = self.scales.choose(b, level, range, factor);
            let of_level = self.scales.with(b, level, chosen, factor);
            if at == 0 {
                finest = Some(chosen.value());
                zero = self.chosen_zero(b, range, of_level);
            }
            factor = Some(of_level);
        }
        (factor.unwrap_or_else(|| self.no_factor()), zero, finest)
    }

    /// The operand's words of a vector; also stores its scale if its group starts there. If there are
    /// pads, `there` tells which elements are not.
    pub(super) fn quantise(
        &self,
        b: &mut Builder,
        of_row: &OfRow,
        elements: &[Operand],
        (row, column, inside): (Operand, Operand, Operand),
        there: impl FnOnce(&mut Builder) -> Option<Vec<Operand>>,
    ) -> Vec<Operand> {
        let (factor, zero, finest) = self.of_vector(b, of_row, elements);
        let divisor = of_row.divisor.unwrap_or_else(|| Divisor::new(b, self.problem, factor));
        let scaled = divisor.quotients(b, elements);
        let mut scaled = factor.rounding.round(b, scaled);
        if let Some(zero) = zero {
            let moved = scaled.iter().map(|x| b.add_f32(*x, zero)).collect();
            scaled = factor.rounding.round(b, moved);
        }
        if let Some(scale) = &self.scale {
            let value = match (self.problem.folds, of_row.factor) {
                (true, Some(coarser)) => coarser.value,
                _ => scale.of(factor.value, finest),
            };
            self.store_scale(b, (row, column, inside), (value, zero));
        }
        let finest = finest.filter(|_| self.problem.folds);
        // A pad is 0, whatever the code of 0 in x is.
        let there = there(b);
        let subtracted = zero.filter(|_| !self.problem.leaves_zero());
        let zeros = subtracted.map(|zero| vec![zero; scaled.len()]);
        let of_elements = OfElements { zeros: zeros.as_deref(), scale: finest };
        self.codes.words(b, &scaled, of_elements, there.as_deref())
    }

    /// Stores the scale of the group that starts at the first column of a vector, if one does, and its zero point.
    pub(super) fn store_scale(
        &self,
        b: &mut Builder,
        (row, column, inside): (Operand, Operand, Operand),
        (value, zero): (Operand, Option<Operand>),
    ) {
        let Some(scale) = &self.scale else { return };
        let (group, begins) = match self.problem.group().filter(|_| !self.problem.folds) {
            None => (None, b.equal(column, 0u32)),
            Some(columns) => {
                let group = b.div(column, columns);
                let within = b.rem(column, columns);
                (Some(group), b.equal(within, 0u32))
            }
        };
        let begins = b.both(begins, inside);
        scale.store(b, (row, group), (value, zero), begins);
    }
}
