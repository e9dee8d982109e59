//! The constants of the epilogue (per-channel scales, sums and biases of rows, scales and zero points of tokens), copied to shared memory
//! during the main loop, so that the epilogue does not wait for global memory.

use super::buffers::ProductBuffers;
use super::epilogue::{EpilogueOp, EpilogueOperand};
use super::input::{Input, InputScale};
use super::participants::Participants;
use super::problem::Problem;
use super::rows::TokenRows;
use super::stack::Matrix;
use crate::ir::{Address, BufferId, Builder, Cache, Operand, SharedId, Special, Type, Width, Word};

/// A block's constants in shared memory, f32, and the epilogue's steps that use them.
#[derive(Clone)]
pub(super) struct Constants {
    /// The epilogue's steps.
    ops: Vec<EpilogueOp>,
    input: Input,
    /// Per row.
    channel_scale: Option<SharedId>,
    /// Per row.
    row_sum: Option<SharedId>,
    /// Per row.
    bias: Option<SharedId>,
    /// Per token.
    x_scale: Option<SharedId>,
    /// Per token.
    x_zero: Option<SharedId>,
}

/// A block's rows of w: the first one, their number, the rows of a matrix, and the block's matrix, or those
/// that it multiplies together.
#[derive(Clone, Copy)]
pub(super) struct RowRange {
    pub(super) first: Operand,
    pub(super) count: u32,
    pub(super) end: u32,
    pub(super) matrix: Matrix,
    /// Rows of a tile.
    pub(super) of_tile: u32,
}

impl Constants {
    /// Words of shared memory for a block with these numbers of rows and tokens.
    pub(super) fn words(problem: &Problem, rows: u32, tokens: u32) -> u32 {
        let count = |of: &[bool]| of.iter().map(|there| u32::from(*there)).sum::<u32>();
        let per_row = count(&[problem.channel_scale, problem.row_sum, problem.bias]);
        let per_token = count(&[by_token(problem), problem.input.zero]);
        per_row * rows.next_multiple_of(4) + per_token * tokens.next_multiple_of(4)
    }

    pub(super) fn declare(b: &mut Builder, problem: &Problem, rows: u32, tokens: u32) -> Self {
        let mut block = |name: &str, there: bool, count: u32| {
            let words = count.next_multiple_of(4);
            there.then(|| b.shared(name, Word::U32, words, "f32, one after another"))
        };
        Self {
            ops: EpilogueOp::list(problem, true),
            input: problem.input,
            channel_scale: block("channel_scales", problem.channel_scale, rows),
            row_sum: block("row_sums", problem.row_sum, rows),
            bias: block("biases", problem.bias, rows),
            x_scale: block("x_scales", by_token(problem), tokens),
            x_zero: block("x_zeros", problem.input.zero, tokens),
        }
    }

    /// The constants of rows, and where they come from.
    pub(super) const fn of_rows(
        &self,
        io: &ProductBuffers,
    ) -> [(Option<SharedId>, Option<BufferId>); 3] {
        [(self.channel_scale, io.channel_scale), (self.row_sum, io.row_sum), (self.bias, io.bias)]
    }

    /// The scales of tokens, f32, one after another.
    pub(super) const fn x_scale(&self) -> Option<SharedId> {
        self.x_scale
    }

    /// The zero points of tokens, f32, one after another.
    pub(super) const fn x_zero(&self) -> Option<SharedId> {
        self.x_zero
    }

    /// Copies the constants of tokens; `source` gives the row of x of a constant and whether there is one.
    pub(super) fn copy_of_tokens(
        &self,
        b: &mut Builder,
        io: &ProductBuffers,
        (count, by): (u32, Participants),
        mut source: impl FnMut(&mut Builder, Operand, bool) -> (Operand, Operand),
    ) {
        let input = self.input;
        copy(b, (self.x_scale, io.x_scale), count, by, |b, at, certain| {
            let (row, there) = source(b, at, certain);
            (input.scale_of_row(b, row), there)
        });
        copy(b, (self.x_zero, io.x_scale), count, by, |b, at, certain| {
            let (row, there) = source(b, at, certain);
            (input.zero_of_row(b, row), there)
        });
    }

    /// Starts the copies of the rows' constants; no earlier kernel writes them.
    pub(super) fn copy_rows(
        &self,
        b: &mut Builder,
        io: &ProductBuffers,
        rows: RowRange,
        by: Participants,
    ) {
        for of in self.of_rows(io) {
            copy(b, of, rows.count, by, |b, at, _| {
                let number = b.add(rows.first, at);
                let (number, matrix) = rows.matrix.row(b, number, rows.of_tile);
                let there = b.less(number, rows.end);
                let matrix = matrix.first_word(b, rows.end);
                (b.add(number, matrix), there)
            });
        }
    }

    /// Starts the copies of the tokens' constants; `first` is the number of the block's first token.
    pub(super) fn copy_tokens(
        &self,
        b: &mut Builder,
        io: &ProductBuffers,
        (first, tokens): (Operand, &TokenRows),
        by: Participants,
    ) {
        self.copy_of_tokens(b, io, (tokens.count(), by), |b, at, certain| {
            let number = b.add(first, at);
            let token = tokens.token_of(b, (number, at), certain);
            let exists = tokens.exists(b, token);
            (tokens.x_row(b, token, exists), exists)
        });
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
                EpilogueOperand::TokenZero => (self.x_zero, token, Width::B32),
                EpilogueOperand::RowSum => (self.row_sum, row, width),
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

/// Copies a constant; `source` gives the word of a thread's constant and whether there is one. It learns
/// whether the number of the constant is certainly below their count.
pub(super) fn copy(
    b: &mut Builder,
    (to, from): (Option<SharedId>, Option<BufferId>),
    count: u32,
    by: Participants,
    mut source: impl FnMut(&mut Builder, Operand, bool) -> (Operand, Operand),
) {
    let (Some(to), Some(from)) = (to, from) else { return };
    let (thread, threads) = (b.special(Special::Thread), by.threads(b));
    for first in (0..count).step_by(threads as usize) {
        let at = b.add(thread, first);
        let certain = first + threads <= count;
        let (word, there) = source(b, at, certain);
        let inside = if certain { true.into() } else { b.less(at, count) };
        b.when(inside, |b| {
            b.copy_async(Address::new(to, at), Address::new(from, word), Width::B32, Some(there));
        });
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::parse;

    use super::*;
    use crate::ir::{Extent, LaunchConfig};
    use crate::target::target;

    /// Of x with and without zero points, and of rows with all constants.
    #[test]
    fn the_words_are_those_that_are_declared() {
        for x in ["scale: f32 per token", "zero: i8, scale: f32 per token", "scale: f32 per 1x128"]
        {
            let text = format!(
                "s {{ weight: i8, scale: f32 per channel, bias: f32, pack: [k, n], activation: i8 {{ {x} }} }}"
            );
            let scheme = parse(&text).unwrap();
            let hopper = target("sm_90a").unwrap();
            let problem = Problem::new(&scheme, &scheme.activations[0], hopper, (64, 256)).unwrap();
            let grid = [Extent::Constant(1); 3];
            let launch =
                LaunchConfig { grid, threads: 32, min_blocks: 1, cluster: 1, programmatic: false };
            let mut b = Builder::new("constants", "", hopper, launch);
            Constants::declare(&mut b, &problem, 32, 5);
            let declared: u32 = b.finish().shared.iter().map(|block| block.len).sum();
            assert_eq!(Constants::words(&problem, 32, 5), declared, "{x}");
        }
    }
}
