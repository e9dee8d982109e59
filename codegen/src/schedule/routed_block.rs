//! A block of an expert layer's product: its place in the grid, its expert's matrix and its token block.
//!
//! The grid has T token blocks, then blocks of rows of w, then the shards of y times the blocks that split K.
//! T follows from M alone, so that a launch needs nothing from the host; token blocks beyond those that the
//! order uses have nothing to do.

use super::order::{OrderArray, OrderWords};
use super::pair_group::{PairGroup, PairSearch};
use super::rows::TokenRows;
use super::stack::{Matrix, Stack};
use super::weights_prefetch::WeightsPrefetch;
use crate::ir::{Builder, Cache, Extent, Mask, Op, Operand, Reg, Special, Width};

/// A block of an expert layer's product.
pub(super) struct RoutedBlock {
    /// Whether its token block is in use; all else holds only there.
    pub(super) in_use: Operand,
    /// Its expert.
    expert: Operand,
    words: OrderWords,
    stack: Stack,
    token_block: Operand,
    shard: Operand,
    /// The block's number along the rows of w.
    pub(super) row_block: Operand,
    /// The block's number among those that split K.
    pub(super) split: Operand,
    /// The pairs that the block multiplies, if pairs of one expert share blocks.
    group: Option<PairGroup>,
}

impl RoutedBlock {
    /// Sets the grid, of T token blocks, blocks of rows, and shards times splits, and finds the block's
    /// place. With programmatic launch the kernel prefetches weights, and waits here for those before it, since the order decides
    /// everything that a block reads.
    pub(super) fn begin(
        b: &mut Builder,
        (stack, order): (Stack, OrderArray),
        (row_blocks, splits): (u32, u32),
        (programmatic, prefetch): (bool, Option<WeightsPrefetch<'_>>),
    ) -> Self {
        let (fixed, shards) = (Extent::Constant, stack.shards_of_y());
        let grid = [Extent::Parameter(order.token_blocks), fixed(row_blocks)];
        b.grid([grid[0], grid[1], fixed(splits * shards)]);
        let [token_block, row_block] = [0, 1].map(|axis| b.special(Special::Block(axis)));
        let place = match splits * shards {
            1 => 0u32.into(),
            _ => b.special(Special::Block(2)),
        };
        let (shard, split) = match (shards, splits) {
            (_, 1) => (place, 0u32.into()),
            (1, _) => (0u32.into(), place),
            _ => (b.div(place, splits), b.rem(place, splits)),
        };
        if programmatic {
            if let Some(prefetch) = prefetch {
                let blocks = [0, 1].map(|axis| b.special(Special::Blocks(axis)));
                let number = b.mad(place, blocks[1], row_block);
                let number = b.mad(number, blocks[0], token_block);
                prefetch.write(b, number, [token_block, shard, row_block]);
            }
            b.push(Op::GridWait);
            b.push(Op::GridLaunch);
        }
        let words = order.words(b);
        let (in_use, expert) = if stack.direct {
            b.comment("pairs without an expert here have nothing to do");
            let expert = b.load(words.expert_of(token_block), Width::B32)[0];
            (b.less(expert, stack.experts), expert)
        } else {
            // Both loads at once: the expert of a token block that is not in use is written, and not used.
            b.comment("token blocks beyond those in use have nothing to do");
            let count = b.load(words.count(), Width::B32)[0];
            let expert = b.load(words.expert(token_block), Width::B32)[0];
            (b.less(token_block, count), expert)
        };
        let expert = expert.into();
        let group = None;
        Self { in_use, expert, words, stack, token_block, shard, row_block, split, group }
    }

    /// The same where the block multiplies up to so many pairs of its pair's expert, once it has found them. Pairs have no order.
    pub(super) fn grouping(self, b: &mut Builder, slots: u32) -> Self {
        Self { group: Some(PairGroup::declare(b, slots)), ..self }
    }

    /// The search for the block's pairs, if pairs of one expert share blocks.
    pub(super) fn search(&self) -> Option<PairSearch> {
        let &Self { group, words, token_block: pair, expert, .. } = self;
        group.map(|group| PairSearch { group, words, pair, expert })
    }

    /// The place of a tile of a block that has one tile after another: its token block, of which so many are in use,
    /// its shard, and its number along the rows of w.
    pub(super) fn of_tile(
        b: &mut Builder,
        (stack, words, count): (Stack, OrderWords, Operand),
        [token_block, shard, row_block]: [Operand; 3],
    ) -> Self {
        let expert = b.load(words.expert(token_block), Width::B32)[0];
        Self::of_expert(b, (stack, words, count), [token_block, shard, row_block], expert.into())
    }

    /// The same of a tile that the block has later: its expert is loaded to a register, where its token block is in use.
    pub(super) fn of_later_tile(
        b: &mut Builder,
        (stack, words, count): (Stack, OrderWords, Operand),
        place: [Operand; 3],
        expert: Reg,
    ) -> Self {
        let later = Self::of_expert(b, (stack, words, count), place, expert.into());
        let mask = Some(Mask::or_zero(later.in_use));
        b.load_into(&[expert], words.expert(place[0]), Width::B32, mask, Cache::Default);
        later
    }

    /// The same of a tile whose expert is known.
    pub(super) fn of_expert(
        b: &mut Builder,
        (stack, words, count): (Stack, OrderWords, Operand),
        [token_block, shard, row_block]: [Operand; 3],
        expert: Operand,
    ) -> Self {
        let in_use = b.less(token_block, count);
        let (split, group) = (0u32.into(), None);
        Self { in_use, expert, words, stack, token_block, shard, row_block, split, group }
    }

    /// Writes what a block does whose token block is in use, and what another one does.
    pub(super) fn when_in_use(
        &self,
        b: &mut Builder,
        write: impl FnOnce(&mut Builder, Matrix),
        otherwise: impl FnOnce(&mut Builder),
    ) {
        let then = |b: &mut Builder| {
            let matrix = self.matrix(b);
            write(b, matrix);
        };
        self.if_in_use(b, then, otherwise);
    }

    /// As [`Self::when_in_use`], where the matrix is known.
    pub(super) fn if_in_use(
        &self,
        b: &mut Builder,
        write: impl FnOnce(&mut Builder),
        otherwise: impl FnOnce(&mut Builder),
    ) {
        match self.stack.gate {
            Some(_) => b.if_else(self.in_use, write, otherwise),
            None => b.when(self.in_use, write),
        }
    }

    /// The block's matrix, or the first of those that it multiplies together.
    pub(super) fn matrix(&self, b: &mut Builder) -> Matrix {
        let number = b.mad(self.expert, self.stack.shards, self.shard);
        Matrix { number: Some(number), together: self.stack.together() }
    }

    /// Slots of a token block.
    pub(super) const fn slots(&self) -> u32 {
        self.words.array.slots
    }

    /// The tokens that the block multiplies, `tokens` of them: its slots, or its pairs.
    pub(super) fn rows(&self, b: &mut Builder, tokens: u32) -> TokenRows {
        match self.group {
            Some(group) => {
                let shard_rows = self.shard_rows(b);
                TokenRows::grouped(group, self.words, (self.stack, shard_rows))
            }
            None => self.rows_of_slots(b, tokens),
        }
    }

    /// The slots of the block's token block, for a block with so many tokens.
    pub(super) fn rows_of_slots(&self, b: &mut Builder, tokens: u32) -> TokenRows {
        let shard_rows = self.shard_rows(b);
        let block = (self.token_block, tokens);
        TokenRows::routed(block, self.words, (self.stack, shard_rows))
    }

    /// The first row of y of the block's shard.
    fn shard_rows(&self, b: &mut Builder) -> Operand {
        let slots = b.mul(self.words.token_blocks, self.slots());
        b.mul(slots, self.shard)
    }

    /// The number of the block's tile of y along the tokens, and the number of such tiles, as a value and
    /// as an extent: token blocks of one shard after those of another.
    pub(super) fn y_block(&self, b: &mut Builder) -> (Operand, Operand, Extent) {
        let (blocks, order) = (self.words.token_blocks, self.words.array);
        let number = b.mad(blocks, self.shard, self.token_block);
        let shards = self.stack.shards_of_y();
        (number, b.mul(blocks, shards), Extent::times(order.token_blocks, shards))
    }
}
