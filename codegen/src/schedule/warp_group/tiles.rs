//! The tiles of an expert layer's product: a block has one after another.
//!
//! A tile has a token block, a shard of y and some rows of w. Rows are in *bands* of a few blocks of rows. Tiles are
//! numbered band by band, in a band by token block, with rows the fastest: tiles of neighbouring blocks read the same
//! rows of x, and the token blocks of an expert the band's rows of w at one time, from the second level of cache but for
//! the first. A block's tiles are the number of blocks apart. The ring goes on from a tile to the next one: copies of
//! the next tile start while consumers finish sums. Without a gate token blocks that are not in use have no tiles; with
//! one their rows of y are zeros.

use crate::ir::{Binary, Builder, Extent, Op, Operand, Special, Width};
use crate::schedule::order::{OrderArray, OrderWords};
use crate::schedule::routed_block::RoutedBlock;
use crate::schedule::stack::Stack;

/// Blocks of a launch: multiprocessors of an H100 with HBM3, and of an H200.
const BLOCKS: u32 = 132;

/// Blocks of rows of a band, at most: so few that those of several token blocks are multiplied at once.
const BAND: u32 = 16;

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
        let bands = self.row_blocks.div_ceil(BAND).max(1);
        let of_band = self.row_blocks.div_ceil(bands);
        let [first, apart] =
            [Special::Block(0), Special::Blocks(0)].map(|special| b.special(special));
        b.for_each(first, all, apart, "tile", |b, number| {
            let (rest, row_block) = match bands {
                1 => (b.div(number, self.row_blocks), b.rem(number, self.row_blocks)),
                _ => {
                    let tiles = b.mul(token_blocks, of_band * shards);
                    let (band, number) = divided(b, number, tiles);
                    // The last band may have fewer.
                    let first = b.mul(band, of_band);
                    let left = b.sub(self.row_blocks, first);
                    let width = b.binary(Binary::Min, left, of_band);
                    let (rest, row_block) = divided(b, number, width);
                    (rest, b.add(first, row_block))
                }
            };
            let (token_block, shard) = (b.div(rest, shards), b.rem(rest, shards));
            let place = [token_block, shard, row_block];
            let routed = RoutedBlock::of_tile(b, (self.stack, self.words, self.count), place);
            tile(b, &routed);
        });
    }
}

/// A quotient and its remainder.
fn divided(b: &mut Builder, number: Operand, by: Operand) -> (Operand, Operand) {
    let quotient = b.binary(Binary::Div, number, by);
    let whole = b.mul(quotient, by);
    (quotient, b.sub(number, whole))
}
