//! The prefetch of weights that a product over experts does before it waits for the kernels before it.
//!
//! The order of pairs decides whose weights a block reads, and until it is there memory would do nothing. But token blocks are
//! sorted by expert: where most experts have pairs, and few of them more than a token block, token block t is that of expert t, or
//! nearly. A block prefetches the first bytes that its tile would have if that were so, into the second level of cache. That is a
//! hint, which needs nothing from earlier kernels: where the guess is wrong, another block reads these bytes, or none. The
//! second product does likewise: its blocks start as those of the first one end.
//!
//! docs/performance/experts.md has the measurements, all of them on Hopper.

use super::buffers::ProductBuffers;
use super::chunk::tile_words;
use super::order::OrderArray;
use super::problem::Problem;
use super::stack::Stack;
use crate::ir::{Address, BufferId, Builder, Op, Operand, Special, Unary};
use crate::target::Class;

/// Bytes of a line of the second level of cache, which one operation prefetches.
const LINE: u32 = 128;
/// Bytes that the blocks of a launch prefetch: what an H200 reads while pairs are sorted, half of its second level of cache.
const BYTES: u32 = 24 << 20;
/// Multiprocessors of a GPU that reads so many.
const MULTIPROCESSORS: u32 = 132;
/// The most slots of token blocks of which an expert has one as a rule.
const FEW_SLOTS: u32 = 32;

/// Whether weights are as a rule read by one token block alone, of so many slots: those of an expert layer, where more slots are
/// chosen for experts whose rows fill several token blocks.
pub(super) fn is_read_once(problem: &Problem, slots: u32) -> bool {
    problem.stack.is_some_and(|stack| !stack.direct) && slots <= FEW_SLOTS
}

/// What a block prefetches.
#[derive(Clone, Copy)]
pub(super) struct WeightsPrefetch<'p> {
    problem: &'p Problem,
    codes: BufferId,
    stack: Stack,
    order: OrderArray,
    /// Native tiles of rows of the block, in equal parts those of each matrix.
    row_tiles: u32,
    /// Threads of the block.
    threads: u32,
    /// Blocks that a multiprocessor has at once.
    at_once: u32,
}

impl<'p> WeightsPrefetch<'p> {
    /// Of blocks with so many native tiles of rows and threads, of which a multiprocessor has some at once; `None` where weights
    /// are not read once, and on targets where it was not measured.
    pub(super) fn new(
        problem: &'p Problem,
        io: &ProductBuffers,
        (row_tiles, threads, at_once): (u32, u32, u32),
    ) -> Option<Self> {
        let (stack, order) = problem.stack.zip(io.order)?;
        let codes = io.codes;
        let prefetch = Self { problem, codes, stack, order, row_tiles, threads, at_once };
        let measured = problem.target().class == Class::Hopper;
        (measured && is_read_once(problem, order.slots)).then_some(prefetch)
    }

    /// Lines of a native tile of rows that a block prefetches.
    fn lines(&self) -> u32 {
        let of_block = BYTES / MULTIPROCESSORS / self.at_once.max(1);
        (of_block / self.row_tiles / LINE).min(tile_words(self.problem) * 4 / LINE)
    }

    /// Writes the prefetch of the block of this number in the launch, whose first tile has this token block, shard and number along
    /// the rows of w.
    pub(super) fn write(
        &self,
        b: &mut Builder,
        number: Operand,
        [token_block, shard, row_block]: [Operand; 3],
    ) {
        let Self { problem, stack, .. } = *self;
        let (lines, of_matrix) = (self.lines(), self.row_tiles / stack.together());
        if lines == 0 {
            return;
        }
        b.comment("prefetches what this block reads if token block t is expert t's");
        let pairs = b.argument(self.order.pairs);
        // With as many pairs as experts 1 - 1/e of them have one.
        let few = b.less(pairs, stack.chosen_from);
        let many = b.unary(Unary::NotPred, few);
        let begins = b.less(number, MULTIPROCESSORS * self.at_once.max(1));
        let expert = b.less(token_block, stack.experts);
        let here = b.both(begins, expert);
        let prefetches = b.both(many, here);
        b.when(prefetches, |b| {
            let thread = b.special(Special::Thread);
            let matrix = b.mad(token_block, stack.shards, shard);
            let first = b.mul(row_block, of_matrix);
            b.for_each(thread, self.row_tiles * lines, self.threads, "line", |b, line| {
                let (tile, line) = (b.div(line, lines), b.rem(line, lines));
                let (further, tile) = (b.div(tile, of_matrix), b.rem(tile, of_matrix));
                let (matrix, tile) = (b.add(matrix, further), b.add(first, tile));
                let exists = b.less(tile, problem.row_tiles());
                let tile = b.mad(matrix, problem.row_tiles(), tile);
                let word = b.mul(line, LINE / 4);
                let word = b.mad(tile, tile_words(problem), word);
                let from = Address::new(self.codes, word);
                b.push(Op::Prefetch { from, mask: Some(exists) });
            });
        });
    }
}
