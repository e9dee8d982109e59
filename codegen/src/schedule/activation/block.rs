//! A row of the operand that a block of a product makes for itself, in shared memory, instead of a kernel before the product.

use super::levels::{Given, Levels};
use super::problem::ActivationProblem;
use super::source::{VECTOR, VectorSource};
use super::{Partition, Writer};
use crate::ir::{BufferId, Builder, Operand, SharedId};

/// The operand of a row of x that a block of a product makes for itself, in shared memory.
pub(in crate::schedule) struct OperandOfBlock<'p> {
    writer: Writer<'p>,
}

/// Where such an operand is.
#[derive(Clone, Copy)]
pub(in crate::schedule) struct BlockOperand {
    /// Its elements, `[row][column]`.
    pub(in crate::schedule) elements: SharedId,
    /// Its scales, f32 `[row][group]`, if the product reads any.
    pub(in crate::schedule) scales: Option<SharedId>,
    /// Its zero points, f32 `[row]`, if the product subtracts them.
    pub(in crate::schedule) zeros: Option<SharedId>,
}

impl<'p> OperandOfBlock<'p> {
    /// Declares what is read besides x, which is in a buffer; `thread` is the thread's number among the `threads` that make its
    /// row: row `row` of the operand and row `of_x` of x. No other kernel is needed for the operand
    /// ([`ActivationProblem::launches`]), and if a scale is chosen from a whole row these are all threads of the block.
    pub(in crate::schedule) fn declare(
        b: &mut Builder,
        problem: &'p ActivationProblem,
        (x, to): (BufferId, BlockOperand),
        (thread, threads): (Operand, u32),
        [row, of_x]: [Operand; 2],
    ) -> Self {
        let vectors = vectors_of_thread(problem, threads);
        let source = VectorSource::of(b, problem, x, problem.gathers);
        let given = problem.quantiser().map(|quantiser| Given::declare(b, problem, quantiser));
        let levels = given.map(|given| Levels::in_block(problem, given, (to.scales, to.zeros)));
        let writer = Writer {
            problem,
            partition: Partition { threads, vectors, blocks: 1 },
            source,
            levels,
            group_scales: None,
            operand: to.elements.into(),
            row,
            first: b.mul(of_x, problem.k),
            matrix: 0u32.into(),
            column: b.mul(thread, VECTOR),
        };
        Self { writer }
    }

    /// Makes the row; a barrier has to follow.
    pub(in crate::schedule) fn make(&self, b: &mut Builder) {
        self.writer.write_row(b, false);
    }
}

/// Vectors of a row for each of so many threads.
pub(in crate::schedule) fn vectors_of_thread(problem: &ActivationProblem, threads: u32) -> u32 {
    (problem.padded / VECTOR).div_ceil(threads)
}
