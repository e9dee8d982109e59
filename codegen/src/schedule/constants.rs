//! What finished sums are multiplied with and what is added to them: copied to shared memory while
//! the sums are made, so that nothing waits for memory at the end.

use super::buffers::ProductBuffers;
use super::epilogue::{EpilogueOp, EpilogueOperand};
use super::input::InputScale;
use super::participants::Participants;
use super::problem::Problem;
use crate::ir::{Address, BufferId, Builder, Cache, Operand, SharedId, Type, Width, Word};

/// A block's constants in shared memory, f32, and what the epilogue does with them.
#[derive(Clone)]
pub(super) struct Constants {
    /// The epilogue's steps.
    ops: Vec<EpilogueOp>,
    /// Per row.
    channel_scale: Option<SharedId>,
    /// Per row.
    bias: Option<SharedId>,
    /// Per token.
    x_scale: Option<SharedId>,
}

/// Some elements of one axis: the first one in the whole, how many a block has, and how many there
/// are.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) first: Operand,
    pub(super) count: u32,
    pub(super) end: Operand,
}

impl Constants {
    /// Words of shared memory for a block of so many rows and tokens.
    pub(super) fn words(problem: &Problem, rows: u32, tokens: u32) -> u32 {
        let per_row = u32::from(problem.channel_scale) + u32::from(problem.bias);
        per_row * rows.next_multiple_of(4)
            + if by_token(problem) { tokens.next_multiple_of(4) } else { 0 }
    }

    pub(super) fn declare(b: &mut Builder, problem: &Problem, rows: u32, tokens: u32) -> Self {
        let mut block = |name: &str, there: bool, count: u32| {
            let words = count.next_multiple_of(4);
            there.then(|| b.shared(name, Word::U32, words, "f32, one after another"))
        };
        Self {
            ops: EpilogueOp::list(problem, true),
            channel_scale: block("factors", problem.channel_scale, rows),
            bias: block("biases", problem.bias, rows),
            x_scale: block("x_scales", by_token(problem), tokens),
        }
    }

    /// Starts the copies of what belongs to rows of w: constant, so before earlier kernels end.
    pub(super) fn copy_rows(
        &self,
        b: &mut Builder,
        io: &ProductBuffers,
        rows: Range,
        by: Participants,
    ) {
        copy(b, self.channel_scale, io.channel_scale, rows, by);
        copy(b, self.bias, io.bias, rows, by);
    }

    /// Starts the copies of what belongs to rows of x.
    pub(super) fn copy_tokens(
        &self,
        b: &mut Builder,
        io: &ProductBuffers,
        tokens: Range,
        by: Participants,
    ) {
        copy(b, self.x_scale, io.x_scale, tokens, by);
    }

    /// Results of some rows that follow one another, of one token.
    pub(super) fn finish(
        &self,
        b: &mut Builder,
        [token, row]: [Operand; 2],
        width: Width,
        values: &[Operand],
    ) -> Vec<Operand> {
        let mut read = |b: &mut Builder, operand: EpilogueOperand| {
            let (block, at, width) = match operand {
                EpilogueOperand::TokenScale => (self.x_scale, token, Width::B32),
                EpilogueOperand::ChannelScale => (self.channel_scale, row, width),
                EpilogueOperand::Bias => (self.bias, row, width),
            };
            // A step is in the list only where its numbers are in shared memory.
            let from = block.map(|block| Address::new(block, at));
            let load = |from| b.load_as(Type::F32, from, width, None, Cache::Default);
            from.map(load).into_iter().flatten().map(Operand::from).collect()
        };
        let ops = self.ops.iter();
        ops.fold(values.to_vec(), |values, op| op.apply(b, values, &mut read))
    }
}

/// Whether one scale serves a row of x.
fn by_token(problem: &Problem) -> bool {
    problem.input.scale == Some(InputScale::Row)
}

fn copy(
    b: &mut Builder,
    to: Option<SharedId>,
    from: Option<BufferId>,
    range: Range,
    by: Participants,
) {
    let (Some(to), Some(from)) = (to, from) else { return };
    let (thread, threads) = (by.thread(b), by.threads(b));
    for first in (0..range.count).step_by(threads as usize) {
        let at = b.add(thread, first);
        let number = b.add(range.first, at);
        let there = b.less(number, range.end);
        let inside =
            if first + threads > range.count { b.less(at, range.count) } else { true.into() };
        b.when(inside, |b| {
            b.copy_async(Address::new(to, at), Address::new(from, number), Width::B32, Some(there));
        });
    }
}
