//! The epilogue: sums become y through shared memory, and through the workspace with split-K.
//!
//! In: D of the products, per tile of rows and of tokens. Each lane stores its sums in shared memory by
//! part, token and row; then threads add the parts and write adjacent rows. With `splits` > 1 a block
//! stores its sums in its own slot of the workspace, and the last block to arrive adds the slots in order:
//! no block waits, and the result does not depend on which block is last.

mod combined;
pub(super) mod gated;
mod ops;
mod split_k;
mod swizzle;

use super::buffers::ProductBuffers;
use super::chunk::width;
use super::combined::ExpertsOfToken;
use super::constants::Constants;
use super::mapping::MainLoop;
use super::participants::Participants;
use super::rows::TokenRows;
use std::ops::Range;

use crate::ir::{
    Address, Binary, Builder, Cache, Extent, Half, Operand, Reg, SharedId, Special, Type, Width,
    Word,
};
use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16};
use split_k::Workspace;
use swizzle::SmemSwizzle;

pub(super) use ops::{EpilogueOp, EpilogueOperand};
pub(super) use split_k::ORDER;

/// The epilogue of a block.
pub(super) struct Epilogue<'p> {
    pub(super) main: &'p MainLoop<'p>,
    pub(super) io: ProductBuffers,
    /// The scales and biases of finished sums, in shared memory; their copies are complete.
    pub(super) constants: Constants,
    /// Rows of w of a block.
    pub(super) rows: u32,
    /// Tokens of a block.
    pub(super) tokens: u32,
    /// Partial sums of the block per result.
    pub(super) parts: u32,
    /// Blocks that split K.
    pub(super) splits: u32,
    /// Rows that a thread writes at once, 1 or 4.
    pub(super) at_once: u32,
    /// The warps that write y; all of them have sums.
    pub(super) participants: Participants,
    /// Where the tokens' rows of y are.
    pub(super) token_rows: TokenRows,
    /// The block's number along the rows, and the number of such blocks.
    pub(super) row_block: (Operand, u32),
    /// The number of the block's tile of y along the tokens, and the number of such tiles: as a value and
    /// as an extent.
    pub(super) token_block: (Operand, Operand, Extent),
    /// The block's number among those that split K.
    pub(super) split: Operand,
    /// The experts whose sums the block's partial sums are, if results are added over them.
    pub(super) experts: Option<ExpertsOfToken>,
}

/// The accumulators of a lane.
pub(super) struct AccumulatorFragment<'s> {
    /// D per tile of rows and of tokens.
    pub(super) sums: &'s [Vec<Vec<Reg>>],
    /// Registers of D that hold tokens.
    pub(super) registers: &'s [usize],
    /// The number of this partial sum.
    pub(super) part: Operand,
    /// The first of the warp's rows in the block.
    pub(super) first_row: Operand,
    pub(super) lane: Operand,
}

impl Epilogue<'_> {
    /// Words of shared memory for a block's sums.
    pub(super) const fn words(rows: u32, tokens: u32, parts: u32) -> u32 {
        parts * tokens * rows
    }

    fn swizzle(&self) -> SmemSwizzle {
        SmemSwizzle::new(self.main, self.rows, self.tokens)
    }

    /// Writes y. All participants call this; the contents of `over` are no longer needed.
    pub(super) fn write(
        &self,
        b: &mut Builder,
        held: &AccumulatorFragment<'_>,
        over: Option<SharedId>,
    ) {
        let words = Self::words(self.rows, self.tokens, self.parts);
        let layout = match self.swizzle().banks {
            0 => "f32 [row, token, part]",
            _ => "f32 [row, token, part], fours of rows permuted",
        };
        let shared = b.shared_block("sums", Word::U32, words, layout, 16, over);
        self.leave(b, held, shared);
        self.participants.wait(b);
        if let Some(experts) = &self.experts {
            self.each(b, self.rows, |b, place| {
                let values = self.combined(b, experts, shared, place);
                self.store(b, place, &values);
            });
            return;
        }
        let all = 0..self.parts;
        if self.splits == 1 {
            self.each_result(b, |b, place| self.total(b, shared, place, all.clone()));
            return;
        }
        let workspace = Workspace::declare(b, self);
        b.comment("this block's sums, into its own slot");
        self.each(b, self.rows, |b, place| {
            let values = self.total(b, shared, place, all.clone());
            let to = workspace.slot(b, self, self.split, place);
            b.store(to, &values, self.width(), None);
        });
        let last = workspace.arrive(b, self);
        b.when(last, |b| {
            self.each_result(b, |b, place| {
                let mut values = Vec::new();
                for split in 0..self.splits {
                    let from = workspace.slot(b, self, split.into(), place);
                    let next = b.load_as(Type::F32, from, self.width(), None, Cache::Default);
                    values = added(b, &values, &next);
                }
                values
            });
        });
    }

    const fn width(&self) -> Width {
        if self.at_once == 4 { Width::B128 } else { Width::B32 }
    }

    /// Stores each lane's sums in shared memory.
    fn leave(&self, b: &mut Builder, held: &AccumulatorFragment<'_>, shared: SharedId) {
        let (main, swizzle) = (self.main, self.swizzle());
        let d = &main.lanes().d;
        let row = d.rows.first.of(b, held.lane);
        let row = b.add(held.first_row, row);
        let token = d.token.of(b, held.lane);
        let at = swizzle.word(b, [token, row]);
        let at = b.mad(held.part, self.tokens * self.rows, at);
        // Adjacent rows of one token are stored together, four at most.
        let neighbours = |one: &usize, next: &usize| {
            let [[row, token], [next_row, next_token]] = [d.registers[*one], d.registers[*next]];
            d.rows.stride == 1 && token == next_token && row + 1 == next_row
        };
        for (of_rows, sums) in (0..).zip(held.sums) {
            for (of_tokens, sums) in (0..).zip(sums) {
                let adjacent = held.registers.chunk_by(neighbours);
                for together in adjacent.flat_map(|adjacent| adjacent.chunks(4)) {
                    let [row_of, token_of] = d.registers[together[0]];
                    let plus = of_tokens * main.token_tile() + d.tokens[token_of];
                    let number = b.add(token, plus);
                    let inside = b.less(number, self.tokens);
                    let ragged = !self.tokens.is_multiple_of(main.token_tile());
                    let in_tile = d.rows.stride * row_of as u32;
                    let further = main.problem.plan.native.rows * of_rows + in_tile;
                    let (at, further) = swizzle.further(b, at, [plus, further]);
                    let to = Address::new(shared, at).plus(further);
                    let values: Vec<Operand> =
                        together.iter().map(|&register| sums[register].into()).collect();
                    let width = width(values.len() as u32);
                    b.store(to, &values, width, ragged.then_some(inside));
                }
            }
        }
    }

    /// Distributes so many rows of each token over the threads; `work` gets token and row.
    fn each(&self, b: &mut Builder, rows: u32, work: impl FnOnce(&mut Builder, [Operand; 2])) {
        let (thread, threads) = (b.special(Special::Thread), self.participants.threads(b));
        let vectors = self.tokens * rows / self.at_once;
        b.for_each(thread, vectors, threads, "result", |b, result| {
            let first = b.mul(result, self.at_once);
            let place = [b.div(first, rows), b.rem(first, rows)];
            work(b, place);
        });
    }

    /// Finishes and stores all results; `sums` gives the sums of a token and a row of the block.
    fn each_result(
        &self,
        b: &mut Builder,
        mut sums: impl FnMut(&mut Builder, [Operand; 2]) -> Vec<Operand>,
    ) {
        self.each(b, self.rows_of_y(), |b, place| {
            let values = match self.main.problem.stack.and_then(|stack| stack.gate) {
                Some(gate) => self.gated(b, gate, place, &mut sums),
                None => {
                    let values = sums(b, place);
                    self.constants.finish(b, place, self.width(), &values)
                }
            };
            self.store(b, place, &values);
        });
    }

    /// Rows of y of a block: those of w, unless it multiplies several matrices.
    fn rows_of_y(&self) -> u32 {
        self.rows / self.main.problem.together()
    }

    /// The sum of some of the block's partial sums, for as many rows as a thread writes at once.
    fn total(
        &self,
        b: &mut Builder,
        shared: SharedId,
        [token, row]: [Operand; 2],
        parts: Range<u32>,
    ) -> Vec<Operand> {
        let at = self.swizzle().word(b, [token, row]);
        let mut total = Vec::new();
        for part in parts {
            let from = Address::new(shared, at).plus(part * self.tokens * self.rows);
            let next = b.load_as(Type::F32, from, self.width(), None, Cache::Default);
            total = added(b, &total, &next);
        }
        total
    }

    /// Rounds results, and stores those inside of y.
    fn store(&self, b: &mut Builder, [token, row]: [Operand; 2], values: &[Operand]) {
        let main = self.main;
        let mut values = values.to_vec();
        let number = self.token_rows.number(b, token);
        let n = b.mad(self.row_block.0, self.rows_of_y(), row);
        let of_number = self.token_rows.token(b, number, true.into());
        let mut token_is = self.token_rows.exists(b, of_number);
        values = self.token_rows.weighted(b, (of_number, token_is), values);
        if main.problem.stack.is_some_and(|stack| stack.gate.is_some()) {
            // Every slot has a row.
            values = values.into_iter().map(|value| b.select(token_is, value, 0.0f32)).collect();
            token_is = self.token_rows.is_slot(b, token, token_is);
        }
        let mask = if main.problem.n.is_multiple_of(self.rows_of_y()) {
            token_is
        } else {
            let row_is = b.less(n, main.problem.n);
            b.both(token_is, row_is)
        };
        let token = self.token_rows.y_row(b, of_number);
        let at = b.mad(token, main.problem.n, n);
        let to = Address::new(self.io.y, at);
        let half = match main.problem.output {
            NUMBER_F16 => Half::F16,
            NUMBER_BF16 => Half::Bf16,
            _ => return b.store(to, &values, self.width(), Some(mask)),
        };
        let pack = Binary::Pack(half);
        match values[..] {
            [v0, v1, v2, v3] => {
                let words = [b.binary(pack, v0, v1), b.binary(pack, v2, v3)];
                b.store(to, &words, Width::B64, Some(mask));
            }
            _ => {
                for value in values {
                    let word = b.binary(pack, value, value);
                    b.store(to, &[word], Width::B16, Some(mask));
                }
            }
        }
    }
}

/// The sums of two lists; the second list if the first is empty.
fn added(b: &mut Builder, total: &[Operand], next: &[Reg]) -> Vec<Operand> {
    if total.is_empty() {
        return next.iter().map(|&value| value.into()).collect();
    }
    total.iter().zip(next).map(|(&total, &next)| b.add_f32(total, next)).collect()
}
