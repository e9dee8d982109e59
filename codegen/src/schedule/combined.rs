//! A block of an expert layer's second product whose rows of y are those of tokens: the sums over their experts.
//!
//! Pairs are not sorted: token t has the pairs t k to t k + k - 1, whose experts are their ids. A block has a token and
//! some rows of w of all its experts. Its warps share out the experts: each multiplies columns of one of them, whose
//! matrix its weights come from and whose row of h is its x. The sums of an expert are finished with the constants of
//! that expert (per-channel scales, bias, the scale of h), then added in the order of choice, by one fused multiply-add
//! with the router weight each: what the kernel `combine` makes of parts in f32.
//!
//! With programmatic launch a warp loads its first weights before the first product has ended, by a guess of its expert: see
//! `skinny::early_weights`. It then reads its row of h together with the id, so that rows of pairs whose expert is elsewhere have to be
//! written as well (first products write 0 there, and operands of h that do not differ by expert have all rows); nothing depends on what they hold.

use quantloom_dsl::BufferRole;

use super::buffers::ProductBuffers;
use super::constants::{Constants, RowRange, copy};
use super::experts::elements::Elements;
use super::order::{NONE, OrderArray, OrderWords};
use super::participants::Participants;
use super::rows::TokenRows;
use super::stack::{GuessedMatrix, Matrix, Stack};
use crate::ir::{
    Access, Address, BufferId, Builder, Cache, Extent, Mask, Operand, ParameterId, SharedId,
    Special, Ternary, Type, Width, Word,
};

/// A token's block, for some rows of w.
#[derive(Clone, Copy)]
pub(super) struct CombinedBlock {
    stack: Stack,
    words: OrderWords,
    /// The token.
    token: Operand,
    /// The block's number along the rows of w.
    pub(super) row_block: Operand,
    /// What is added to the sums, if anything is.
    shared: Option<(Elements, BufferId)>,
}

/// The experts of a block's token and their router weights, in shared memory.
#[derive(Clone, Copy)]
pub(super) struct ExpertsOfToken {
    block: CombinedBlock,
    /// u32 `[k]`: below the number of experts if the expert is here.
    ids: SharedId,
    /// f32 `[k]`; `None` if all are 1.
    weights: Option<SharedId>,
}

impl CombinedBlock {
    /// Words of shared memory of [`ExpertsOfToken`].
    pub(super) fn words(stack: Option<Stack>) -> u32 {
        let combined = stack.filter(|stack| stack.combined);
        combined
            .map_or(0, |stack| (1 + u32::from(stack.weighted)) * stack.top_k.next_multiple_of(4))
    }

    /// Sets the grid, of M tokens and blocks of rows, and finds the block's place.
    pub(super) fn begin(
        b: &mut Builder,
        (stack, order): (Stack, OrderArray),
        ((m, n), row_blocks): ((ParameterId, u32), u32),
    ) -> Self {
        b.grid([Extent::Parameter(m), Extent::Constant(row_blocks), Extent::Constant(1)]);
        let [token, row_block] = [0, 1].map(|axis| b.special(Special::Block(axis)));
        let words = order.words(b);
        let shared = stack.shared.map(|own| {
            let (of, shape) = (Elements::of(own, 1), [Extent::Parameter(m), Extent::Constant(n)]);
            (of, of.buffer(b, BufferRole::Shared, Access::ReadOnly, &shape, "[n, m]"))
        });
        Self { stack, words, token, row_block, shared }
    }

    /// The pair of the token's choice with a number.
    pub(super) fn pair(&self, b: &mut Builder, choice: Operand) -> Operand {
        b.mad(self.token, self.stack.top_k, choice)
    }

    /// What a pair's expert probably is, before earlier kernels have ended.
    pub(super) fn guess(&self, b: &mut Builder, pair: Operand) -> GuessedMatrix {
        let id = b.guess(self.words.expert_of(pair));
        let (there, matrix) = self.matrix(b, id);
        GuessedMatrix { matrix, there }
    }

    /// Whether a pair has an expert here, and that expert's matrix, or matrix 0. Only pairs for which `there` is true
    /// are looked up.
    pub(super) fn expert(
        &self,
        b: &mut Builder,
        pair: Operand,
        there: Operand,
    ) -> (Operand, Matrix) {
        let mask =
            (there != Operand::Pred(true)).then_some(Mask { condition: there, fill: NONE.into() });
        let from = self.words.expert_of(pair);
        let id = b.load_as(Type::U32, from, Width::B32, mask, Cache::Default)[0];
        self.matrix(b, id.into())
    }

    /// Whether an expert is here, and its matrix, or matrix 0.
    fn matrix(&self, b: &mut Builder, id: Operand) -> (Operand, Matrix) {
        let here = b.less(id, self.stack.experts);
        let number = b.select(here, id, 0u32);
        (here, Matrix { number: Some(number), together: 1 })
    }

    /// The row of h of a pair, as rows of a warp with so many tokens.
    pub(super) const fn rows_of_pair(&self, pair: Operand, tokens: u32) -> TokenRows {
        TokenRows::routed((pair, tokens), self.words, (self.stack, Operand::U32(0)))
    }

    /// The row of y, as rows of a block with so many tokens.
    pub(super) fn row_of_y(&self, b: &mut Builder, tokens: u32) -> TokenRows {
        let end = b.add(self.token, 1u32);
        TokenRows::only(self.token, tokens, end)
    }

    /// Starts the copies of constants of all experts: of rows, `[choice][row]`, and of the rows of h,
    /// `[choice][token]`. `rows` are the block's; their matrix is not used.
    pub(super) fn copy_constants(
        &self,
        b: &mut Builder,
        (constants, io): (&Constants, &ProductBuffers),
        (rows, tokens): (RowRange, u32),
        by: Participants,
    ) {
        let choices = self.stack.top_k;
        for of in constants.of_rows(io) {
            copy(b, of, choices * rows.count, by, |b, at, certain| {
                let (choice, row) = (b.div(at, rows.count), b.rem(at, rows.count));
                let pair = self.pair(b, choice);
                let inside = if certain { true.into() } else { b.less(choice, choices) };
                let (here, matrix) = self.expert(b, pair, inside);
                let number = b.add(rows.first, row);
                let exists = b.less(number, rows.end);
                let matrix = matrix.first_word(b, rows.end);
                (b.add(number, matrix), b.both(here, exists))
            });
        }
        constants.copy_of_tokens(b, io, (choices * tokens, by), |b, at, _| {
            let (choice, token) = (b.div(at, tokens), b.rem(at, tokens));
            let first = b.equal(token, 0u32);
            let inside = b.less(choice, choices);
            let exists = b.both(first, inside);
            let pair = self.pair(b, choice);
            let (here, _) = self.expert(b, pair, exists);
            (pair, b.both(exists, here))
        });
    }

    /// Starts the copies of the token's experts and weights.
    pub(super) fn copy_experts(&self, b: &mut Builder, by: Participants) -> ExpertsOfToken {
        let choices = self.stack.top_k;
        let words = choices.next_multiple_of(4);
        let ids = b.shared("experts", Word::U32, words, "u32, in the order of choice");
        let weights = self.words.array.weights.map(|from| {
            (b.shared("router_weights", Word::U32, words, "f32, in the order of choice"), from)
        });
        let all = [
            (Some(ids), Some(self.words.array.buffer)),
            (weights.map(|of| of.0), weights.map(|of| of.1)),
        ];
        for of in all {
            copy(b, of, choices, by, |b, at, _| (self.pair(b, at), true.into()));
        }
        ExpertsOfToken { block: *self, ids, weights: weights.map(|of| of.0) }
    }
}

impl ExpertsOfToken {
    /// k.
    pub(super) const fn choices(&self) -> u32 {
        self.block.stack.top_k
    }

    /// Adds an expert's results, times its router weight, if the expert is here.
    pub(super) fn add(
        &self,
        b: &mut Builder,
        choice: u32,
        sums: &mut [Operand],
        results: &[Operand],
    ) {
        let read = |b: &mut Builder, ty, from| {
            b.load_as(ty, Address::new(from, choice), Width::B32, None, Cache::Default)[0]
        };
        let id = read(b, Type::U32, self.ids);
        let here = b.less(id, self.block.stack.experts);
        let weight = self.weights.map_or(Operand::F32(1.0), |from| read(b, Type::F32, from).into());
        for (sum, result) in sums.iter_mut().zip(results) {
            let more = b.ternary(Ternary::Fma, weight, *result, *sum);
            *sum = b.select(here, more, *sum);
        }
    }

    /// Adds what shared experts give for a row of w, if there are any; N rows are all.
    pub(super) fn add_shared(
        &self,
        b: &mut Builder,
        (row, n): (Operand, u32),
        sums: &mut [Operand],
    ) {
        let Some((of, buffer)) = self.block.shared else { return };
        for (sum, further) in sums.iter_mut().zip(0u32..) {
            let row = b.add(row, further);
            let (exists, at) = (b.less(row, n), b.mad(self.block.token, n, row));
            for value in of.load(b, Address::new(buffer, at), Some(exists)) {
                *sum = b.add_f32(*sum, value);
            }
        }
    }
}
