//! The order of an expert layer's pairs: one array of words that says which expert each token block has,
//! and which pair each slot.
//!
//! T token blocks of B slots, and R pairs. The words, in this order: the number of token blocks in use;
//! the expert of each token block (T); the pair of each slot (T B), [`NONE`] for a slot without one; the
//! slot of each pair (R), [`NONE`] for a pair whose expert is not here; the router weight of each slot as
//! f32 (T B). A token block in use has a pair in its first slot, and pairs before empty slots.

use quantloom_dsl::{BufferRole, Dimension};

use crate::ir::{Access, Address, BufferId, Builder, Extent, Operand, ParameterId, Word};

/// The pair of a slot without one, and the slot of a pair without one.
pub(super) const NONE: u32 = u32::MAX;

/// The array of a kernel, and the sizes that decide where its parts begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderArray {
    /// The array.
    pub(super) buffer: BufferId,
    /// T: the most token blocks.
    pub(super) token_blocks: ParameterId,
    /// R: pairs.
    pub(super) pairs: ParameterId,
    /// B: slots of a token block.
    pub(super) slots: u32,
    /// The router weights of pairs, f32, if the array has none.
    pub(super) weights: Option<BufferId>,
}

/// The addresses of the array's words.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderWords {
    /// The array.
    pub(super) array: OrderArray,
    /// T.
    pub(super) token_blocks: Operand,
    /// R.
    pairs: Operand,
}

impl OrderArray {
    /// Declares the sizes and the array; token blocks have `slots` slots, for `experts` experts.
    pub(super) fn declare(b: &mut Builder, (experts, slots): (u32, u32), access: Access) -> Self {
        let of_blocks = Dimension::TokenBlocks { experts, slots };
        let token_blocks = b.size(of_blocks, "token blocks, at most");
        let pairs = b.size(Dimension::RoutedRows, "pairs of a token and an expert");
        let words =
            Extent::Affine { constant: 1, terms: [(token_blocks, 1 + 2 * slots), (pairs, 1)] };
        let layout = "token blocks in use, experts of token blocks, pairs of slots, slots of pairs, \
                      router weights of slots";
        let buffer = b.buffer_of(BufferRole::Order, Word::U32, access, &[words], layout);
        Self { buffer, token_blocks, pairs, slots, weights: None }
    }

    /// As [`Self::declare`], for a product that needs no order: each pair is a token block of its own, and
    /// the array is the ids of the pairs' experts. A product with `weighted` rows also reads the router
    /// weights of pairs.
    pub(super) fn of_ids(b: &mut Builder, experts: u32, weighted: bool) -> Self {
        let of_blocks = Dimension::TokenBlocks { experts, slots: 1 };
        let token_blocks = b.size(of_blocks, "token blocks, as many as pairs");
        let pairs = b.size(Dimension::RoutedRows, "pairs of a token and an expert");
        let (words, layout) = ([Extent::Parameter(pairs)], "the expert of each pair");
        let buffer = b.buffer_of(BufferRole::Ids, Word::U32, Access::ReadOnly, &words, layout);
        let weights = weighted.then(|| {
            let (role, layout) = (BufferRole::RouterWeights, "f32, the router weight of each pair");
            b.buffer_of(role, Word::U32, Access::ReadOnly, &words, layout)
        });
        Self { buffer, token_blocks, pairs, slots: 1, weights }
    }

    /// The words, for a kernel that knows its sizes.
    pub(super) fn words(self, b: &mut Builder) -> OrderWords {
        let (token_blocks, pairs) = (b.argument(self.token_blocks), b.argument(self.pairs));
        OrderWords { array: self, token_blocks, pairs }
    }

    /// The slots of all token blocks.
    pub(super) fn all_slots(self) -> Extent {
        self.rows_of_slots(1)
    }

    /// So many rows for each slot of all token blocks.
    pub(super) fn rows_of_slots(self, rows: u32) -> Extent {
        Extent::times(self.token_blocks, self.slots * rows)
    }
}

impl OrderWords {
    fn at(&self, index: impl Into<Operand>) -> Address {
        Address::new(self.array.buffer, index)
    }

    /// The number of token blocks in use.
    pub(super) fn count(&self) -> Address {
        self.at(0u32)
    }

    /// The expert of a token block.
    pub(super) fn expert(&self, token_block: Operand) -> Address {
        self.at(token_block).plus(1)
    }

    /// R.
    pub(super) const fn all_pairs(&self) -> Operand {
        self.pairs
    }

    /// The expert of a pair, where the array is the ids of pairs.
    pub(super) fn expert_of(&self, pair: Operand) -> Address {
        self.at(pair)
    }

    /// The pair of a slot, counted over all token blocks.
    pub(super) fn pair(&self, b: &mut Builder, slot: Operand) -> Address {
        let word = b.add(slot, self.token_blocks);
        self.at(word).plus(1)
    }

    /// The slot of a pair.
    pub(super) fn slot(&self, b: &mut Builder, pair: Operand) -> Address {
        let before = b.mad(self.token_blocks, 1 + self.array.slots, pair);
        self.at(before).plus(1)
    }

    /// The router weight of a slot.
    pub(super) fn weight(&self, b: &mut Builder, slot: Operand) -> Address {
        if let Some(weights) = self.array.weights {
            // Each pair is a slot.
            return Address::new(weights, slot);
        }
        let before = b.mad(self.token_blocks, 1 + self.array.slots, slot);
        let before = b.add(before, self.pairs);
        self.at(before).plus(1)
    }
}
