//! Scales of groups of x that lanes do not find together: of any size, or of columns that a product
//! takes in another order.
//!
//! A kernel before the operand's, a block a row and a thread a group, leaves the scale and the zero point
//! of each group, `[M, C]` for C groups of x as it comes. The operand's kernel then takes those of a
//! column's group, wherever the column goes.

use quantloom_dsl::Quantiser;

use super::code::Codes;
use super::extent::Running;
use super::levels::{Given, Levels, columns};
use super::problem::ActivationProblem;
use super::quotient::Divisor;
use super::rounding::Rounding;
use super::scale::{Factor, Scales};
use super::source::{PIECE, Place, Source};
use super::{ROW_THREADS, masked, start};
use crate::ir::{
    Access, Address, Binary, BufferId, Builder, Cache, Extent as Count, Kernel, Mask, Op, Operand,
    ParameterId, Special, Type, Width, Word,
};

/// The buffers between the kernels.
struct OfGroups {
    scale: BufferId,
    /// Where zero points are chosen.
    zero: Option<BufferId>,
}

impl OfGroups {
    fn declare(
        b: &mut Builder,
        problem: &ActivationProblem,
        quantiser: &Quantiser,
        (m, access): (ParameterId, Access),
    ) -> Self {
        let shape = [Count::Parameter(m), Count::Constant(problem.own_groups())];
        let mut buffer = |name: &str| b.buffer(name, Word::U32, access, &shape, "f32 [group, m]");
        let scale = buffer("group_scale");
        Self { scale, zero: quantiser.zero.map(|_| buffer("group_zero")) }
    }
}

/// The kernel that chooses scales and zero points.
pub(super) fn scales(problem: &ActivationProblem, programmatic: bool) -> Option<Kernel> {
    let quantiser = problem.quantiser()?;
    let groups = problem.own_groups();
    let limit = problem.target.gpu.map_or(ROW_THREADS, |gpu| gpu.block_threads);
    let wanted = if problem.spans_columns() { problem.k.div_ceil(PIECE) } else { groups };
    let wanted = wanted.max(groups).next_multiple_of(problem.warp());
    let threads = wanted.min(ROW_THREADS.min(limit));
    let summary = format!("Scales of {groups} groups of each row of x[m, {}].", problem.k);
    let (mut b, m) = start(problem, ("scales", &summary), threads, programmatic);
    b.grid([Count::Parameter(m), Count::Constant(1), Count::Constant(1)]);
    choose(&mut b, problem, quantiser, (m, threads), programmatic);
    Some(b.finish())
}

/// Its body.
fn choose(
    b: &mut Builder,
    problem: &ActivationProblem,
    quantiser: &Quantiser,
    (m, threads): (ParameterId, u32),
    programmatic: bool,
) {
    let groups = problem.own_groups();
    let source = Source::declare(b, problem, m, false).by_elements();
    let given = Given::declare(b, problem, quantiser);
    let found = OfGroups::declare(b, problem, quantiser, (m, Access::WriteOnce));
    let levels = Levels::new(problem, given, found.scale);
    let (row, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let first = b.mul(row, problem.k);
    if programmatic {
        b.push(Op::GridLaunch);
    }
    let constants = levels.load_constants(b);
    if programmatic {
        b.push(Op::GridWait);
    }
    let of_row = problem.spans_columns().then(|| {
        let running = Running::start(b, problem.signed());
        let own = b.mul(thread, PIECE);
        let apart = threads * PIECE;
        b.for_each(0u32, problem.k.next_multiple_of(apart), apart, "at", |b, at| {
            let column = b.add(own, at);
            let words = source.load(b, first, column, Some(problem.k.into()));
            let elements = source.elements(b, &words);
            running.add(b, &elements);
        });
        running.extent().of_block(b, threads)
    });
    let of_row = levels.of_row(b, &constants, of_row);
    let to_row = b.mul(row, groups);
    b.for_each(0u32, groups.next_multiple_of(threads), threads, "group", |b, at| {
        let group = b.add(thread, at);
        let there = b.less(group, groups);
        let (mut factor, mut zero) = (of_row.factor, None);
        for (number, level) in quantiser.scales.iter().enumerate().rev() {
            let Some(size) = columns(level) else { continue };
            // The group of this level that has the finest one's first column.
            let own = b.mul(group, problem.group().unwrap_or(1));
            let own = b.div(own, size);
            let begin = b.mul(own, size);
            let end = b.add(begin, size);
            let end = b.binary(Binary::Min, end, problem.k);
            let end = b.select(there, end, 0u32);
            let running = Running::start(b, problem.signed());
            // A group may be larger than a row is.
            let steps = size.min(problem.k).next_multiple_of(PIECE);
            b.for_each(0u32, steps, PIECE, "at", |b, at| {
                let column = b.add(begin, at);
                let words = source.load(b, first, column, Some(end));
                let elements = source.elements(b, &words);
                running.add(b, &elements);
            });
            let extent = running.extent();
            let of_level = levels.scales.with_chosen(b, level, extent, factor);
            if number == 0 {
                zero = levels.chosen_zero(b, extent, of_level);
            }
            factor = Some(of_level);
        }
        let to = b.add(to_row, group);
        let stored = [(Some(found.scale), factor.map(|of| of.value)), (found.zero, zero)];
        for (buffer, value) in stored {
            if let (Some(buffer), Some(value)) = (buffer, value) {
                b.store(Address::new(buffer, to), &[value], Width::B32, masked(there));
            }
        }
    });
}

/// What the operand's kernel takes of those.
pub(super) struct Apart<'p> {
    problem: &'p ActivationProblem,
    codes: Codes<'p>,
    given: OfGroups,
    /// The scales of the product's runs.
    scale: BufferId,
    rounding: Rounding,
}

impl<'p> Apart<'p> {
    /// Declares what is read and what is written; `None` if lanes find the scales themselves.
    pub(super) fn declare(
        b: &mut Builder,
        problem: &'p ActivationProblem,
        m: ParameterId,
    ) -> Option<Self> {
        let quantiser = problem.quantiser().filter(|_| problem.is_apart())?;
        let given = OfGroups::declare(b, problem, quantiser, (m, Access::ReadOnly));
        let shape = [Count::Parameter(m), Count::Constant(problem.groups())];
        let scale = b.buffer("x_scale", Word::U32, Access::WriteOnce, &shape, "f32 [g, m]");
        let codes = Codes { quantiser, operand: problem.operand };
        let rounding = Scales::new(problem, quantiser).rounding();
        Some(Self { problem, codes, given, scale, rounding })
    }

    /// The operand's words of a piece, whose columns come from these places; the scales of runs that
    /// begin there are stored.
    pub(super) fn quantise(
        &self,
        b: &mut Builder,
        elements: &[Operand],
        places: &[Place],
        (row, column, inside): (Operand, Operand, Operand),
    ) -> Vec<Operand> {
        let problem = self.problem;
        let run = problem.columns_of_scale().unwrap_or(PIECE);
        let size = problem.group().unwrap_or(problem.k);
        let first = b.mul(row, problem.own_groups());
        let to_row = b.mul(row, problem.groups());
        let each = run.min(PIECE) as usize;
        let (mut scaled, mut zeros) = (Vec::new(), Vec::new());
        // Columns of a run are of one group, pads come last in it.
        for (at, (elements, places)) in
            (0..PIECE).step_by(each).zip(elements.chunks(each).zip(places.chunks(each)))
        {
            let Place { column: own, there } = places[0];
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
            let (number, within) = (b.div(column, run), b.rem(column, run));
            let begins = b.equal(within, 0u32);
            let begins = masked(b.both(begins, inside));
            let to = b.add(to_row, number);
            b.store(Address::new(self.scale, to), &[value], Width::B32, begins);
        }
        let there: Vec<Operand> = places.iter().map(|place| place.there).collect();
        let zeros = self.given.zero.map(|_| &zeros[..]);
        self.codes.words(b, &scaled, zeros, Some(&there))
    }
}
