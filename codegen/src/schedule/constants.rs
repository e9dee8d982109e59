//! The constants of the epilogue (per-channel scales, biases, scales of tokens), copied to shared memory
//! during the main loop, so that the epilogue does not wait for global memory.

use super::buffers::ProductBuffers;
use super::epilogue::{EpilogueOp, EpilogueOperand};
use super::input::InputScale;
use super::participants::Participants;
use super::problem::Problem;
use crate::ir::{Address, BufferId, Builder, Cache, Operand, SharedId, Type, Width, Word};

/// A block's constants in shared memory, f32, and the epilogue's steps that use them.
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

/// A block's range of an axis: its first element, its size, and the end of the axis.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) first: Operand,
    pub(super) count: u32,
    pub(super) end: Operand,
}

impl Constants {
    /// Words of shared memory for a block with these numbers of rows and tokens.
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

    /// Starts the copies of the rows' constants; no earlier kernel writes them.
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

    /// Starts the copies of the tokens' constants.
    pub(super) fn copy_tokens(
        &self,
        b: &mut Builder,
        io: &ProductBuffers,
        tokens: Range,
        by: Participants,
    ) {
        copy(b, self.x_scale, io.x_scale, tokens, by);
    }

    /// The results of some consecutive rows of one token.
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
            // The list has a step only if its operand is in shared memory.
            let from = block.map(|block| Address::new(block, at));
            let load = |from| b.load_as(Type::F32, from, width, None, Cache::Default);
            from.map(load).into_iter().flatten().map(Operand::from).collect()
        };
        let ops = self.ops.iter();
        ops.fold(values.to_vec(), |values, op| op.apply(b, values, &mut read))
    }
}

/// Whether a row of x has one scale.
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
