//! The tiles of an expert layer's product: a block has one after another.
//!
//! A tile has a token block, a shard of y and some rows of w. Tiles are numbered with rows the fastest, so that the
//! tiles of neighbouring blocks read the same rows of x, and the token blocks of an expert its weights soon after each
//! other; a block's tiles are the number of blocks apart. The ring goes on from a tile to the next one: copies of
//! the next tile start while consumers finish sums. Without a gate token blocks that are not in use have no tiles; with
//! one their rows of y are zeros.

use crate::ir::{Builder, Extent, Op, Operand, Special, Width};
use crate::schedule::order::{OrderArray, OrderWords};
use crate::schedule::routed_block::RoutedBlock;
use crate::schedule::stack::Stack;

/// Blocks of a launch: multiprocessors of an H100 with HBM3, and of an H200.
const BLOCKS: u32 = 132;

/// The tiles of a launch.
pub(super) struct Tiles {
    stack: Stack,
    words: OrderWords,
    /// Token blocks in use.
    count: Operand,
    /// Tiles of a shard and token block.
    row_blocks: u32,
}

impl Tiles {
    /// Sets the grid and reads the number of token blocks. With programmatic launch the kernel waits here for those
    /// before it.
    pub(super) fn begin(
        b: &mut Builder,
        (stack, order): (Stack, OrderArray),
        row_blocks: u32,
        programmatic: bool,
    ) -> Self {
        b.grid([BLOCKS, 1, 1].map(Extent::Constant));
        if programmatic {
            b.push(Op::GridWait);
            b.push(Op::GridLaunch);
        }
        let words = order.words(b);
        let count = b.load(words.count(), Width::B32)[0].into();
        Self { stack, words, count, row_blocks }
    }

    /// Writes what a warp does for each tile of its block.
    pub(super) fn each(&self, b: &mut Builder, tile: impl FnOnce(&mut Builder, &RoutedBlock)) {
        let shards = self.stack.shards_of_y();
        let token_blocks = match self.stack.gate {
            Some(_) => self.words.token_blocks,
            None => self.count,
        };
        let all = b.mul(token_blocks, self.row_blocks * shards);
        let [first, apart] =
            [Special::Block(0), Special::Blocks(0)].map(|special| b.special(special));
        b.for_each(first, all, apart, "tile", |b, number| {
            let (rest, row_block) =
                (b.div(number, self.row_blocks), b.rem(number, self.row_blocks));
            let (token_block, shard) = (b.div(rest, shards), b.rem(rest, shards));
            let place = [token_block, shard, row_block];
            let routed = RoutedBlock::of_tile(b, (self.stack, self.words, self.count), place);
            tile(b, &routed);
        });
    }
}
