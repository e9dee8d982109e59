//! The tiles of a launch whose blocks persist: a block has one after another.
//!
//! A tile has a token block and some rows of w; in an expert layer a shard of y too. Rows are in *bands* of a few blocks of
//! rows. Tiles are numbered band by band, in a band by token block, with rows the fastest: tiles of neighbouring blocks read
//! the same rows of x, and the token blocks of a matrix the band's rows of w at one time, from the second level of cache but
//! for the first. A block's tiles are the number of blocks apart. The ring goes on from a tile to the next one: copies of
//! the next tile start while consumers finish sums. In an expert layer without a gate, or whose blocks
//! write the second product's operand, token blocks that are not in use have no tiles; else their rows of y are zeros.

use crate::ir::{
    Binary, Builder, Extent, Op, Operand, ParameterId, Special, Type, Uniformity, Width,
};
use crate::schedule::order::{OrderArray, OrderWords};
use crate::schedule::routed_block::RoutedBlock;
use crate::schedule::stack::Stack;
use crate::schedule::weights_prefetch::WeightsPrefetch;

/// Blocks of rows of a band, at most: so few that those of several token blocks are multiplied at once.
const BAND: u32 = 16;

/// The tiles of a launch.
pub(super) struct Tiles {
    /// Of an expert layer.
    routed: Option<Routed>,
    token_blocks: Operand,
    /// Tiles of a shard and token block.
    row_blocks: u32,
    /// Blocks of a cluster, whose tiles are neighbouring rows of one token block; `row_blocks` is a multiple.
    cluster: u32,
}

/// What decides about the tiles of an expert layer.
#[derive(Clone, Copy)]
struct Routed {
    stack: Stack,
    words: OrderWords,
    /// Token blocks in use.
    count: Operand,
}

/// A tile.
pub(super) struct Tile {
    pub(super) token_block: Operand,
    pub(super) row_block: Operand,
    /// Of an expert layer, the tile as a block of its own.
    pub(super) routed: Option<RoutedBlock>,
}

impl Tile {
    /// Whether its token block is in use; all else holds only there.
    pub(super) fn in_use(&self) -> Operand {
        self.routed.as_ref().map_or(Operand::Pred(true), |routed| routed.in_use)
    }
}

impl Tiles {
    /// The tiles of a single matrix, with so many tokens a token block, for clusters of so many blocks.
    pub(super) fn of_matrix(
        b: &mut Builder,
        (m, tokens): (ParameterId, u32),
        (row_blocks, cluster): (u32, u32),
        programmatic: bool,
    ) -> Self {
        begin(b, programmatic);
        let m = b.argument(m);
        let up = b.add(m, tokens - 1);
        Self { routed: None, token_blocks: b.div(up, tokens), row_blocks, cluster }
    }

    /// The tiles of an expert layer, whose token blocks in use are read: of these, or of all token blocks. With programmatic launch a block
    /// prefetches weights before.
    pub(super) fn of_stack(
        b: &mut Builder,
        (stack, order): (Stack, OrderArray),
        (row_blocks, all): (u32, bool),
        (programmatic, prefetch): (bool, Option<WeightsPrefetch<'_>>),
    ) -> Self {
        if let Some(prefetch) = prefetch.filter(|_| programmatic) {
            let token_blocks = b.argument(order.token_blocks);
            let own = Self { routed: None, token_blocks, row_blocks, cluster: 1 };
            let number = b.special(Special::Block(0));
            let all = b.mul(token_blocks, row_blocks * stack.shards_of_y());
            let is_tile = b.less(number, all);
            b.when(is_tile, |b| {
                let place = own.place_of(b, number, stack.shards_of_y());
                prefetch.write(b, number, place);
            });
        }
        begin(b, programmatic);
        let words = order.words(b);
        let count = b.load(words.count(), Width::B32)[0].into();
        let token_blocks = if all { words.token_blocks } else { count };
        let routed = Some(Routed { stack, words, count });
        Self { routed, token_blocks, row_blocks, cluster: 1 }
    }

    /// Writes what a warp does for each tile of its block.
    pub(super) fn each(&self, b: &mut Builder, write: impl FnOnce(&mut Builder, &Tile)) {
        let Numbers { first, all, apart } = self.numbers(b);
        b.for_each(first, all, apart, "tile", |b, number| {
            let place = self.place(b, number);
            let routed = self.routed.map(|Routed { stack, words, count }| {
                RoutedBlock::of_tile(b, (stack, words, count), place)
            });
            let [token_block, _, row_block] = place;
            write(b, &Tile { token_block, row_block, routed });
        });
    }

    /// As [`Self::each`], but of an expert layer what a tile needs from memory is loaded while the block has the tile before: its
    /// expert, and what `load` loads of its slots. `write` gets a second program, which starts these loads for the next tile; it
    /// has to come once in a tile, after the last use of what was loaded for the tile itself.
    pub(super) fn each_ahead(
        &self,
        b: &mut Builder,
        load: impl Fn(&mut Builder, &RoutedBlock),
        write: impl FnOnce(&mut Builder, &Tile, &dyn Fn(&mut Builder)),
    ) {
        let Some(Routed { stack, words, count }) = self.routed else {
            return self.each(b, |b, tile| write(b, tile, &|_| ()));
        };
        let Numbers { first, all, apart } = self.numbers(b);
        let expert = b.variable("expert", Type::U32, b.control().min(Uniformity::WarpGroup));
        b.set(expert, 0u32);
        let start = |b: &mut Builder, number: Operand| {
            let is_tile = b.less(number, all);
            b.when(is_tile, |b| {
                let place = self.place(b, number);
                let later = RoutedBlock::of_later_tile(b, (stack, words, count), place, expert);
                load(b, &later);
            });
        };
        start(b, first);
        b.for_each(first, all, apart, "tile", |b, number| {
            let place = self.place(b, number);
            let own = b.named("own_expert", expert);
            let routed = RoutedBlock::of_expert(b, (stack, words, count), place, own);
            let [token_block, _, row_block] = place;
            let next = |b: &mut Builder| {
                let next = b.add(number, apart);
                start(b, next);
            };
            write(b, &Tile { token_block, row_block, routed: Some(routed) }, &next);
        });
    }

    /// The numbers of the block's tiles.
    fn numbers(&self, b: &mut Builder) -> Numbers {
        let all = b.mul(self.token_blocks, self.row_blocks * self.shards());
        let [first, apart] =
            [Special::Block(0), Special::Blocks(0)].map(|special| b.special(special));
        Numbers { first, all, apart }
    }

    fn shards(&self) -> u32 {
        self.routed.map_or(1, |routed| routed.stack.shards_of_y())
    }

    /// The token block, the shard and the number along the rows of w of the tile of a number.
    fn place(&self, b: &mut Builder, number: Operand) -> [Operand; 3] {
        self.place_of(b, number, self.shards())
    }

    fn place_of(&self, b: &mut Builder, number: Operand, shards: u32) -> [Operand; 3] {
        let bands = self.row_blocks.div_ceil(BAND).max(1);
        let of_band = self.row_blocks.div_ceil(bands).next_multiple_of(self.cluster);
        let (rest, row_block) = match bands {
            1 => (b.div(number, self.row_blocks), b.rem(number, self.row_blocks)),
            _ => {
                let tiles = b.mul(self.token_blocks, of_band * shards);
                let (band, number) = divided(b, number, tiles);
                // The last band may have fewer.
                let first = b.mul(band, of_band);
                let left = b.sub(self.row_blocks, first);
                let width = b.binary(Binary::Min, left, of_band);
                let (rest, row_block) = divided(b, number, width);
                (rest, b.add(first, row_block))
            }
        };
        [b.div(rest, shards), b.rem(rest, shards), row_block]
    }
}

/// The numbers of a block's tiles: from the first one, so many apart, below that of all blocks' tiles.
struct Numbers {
    first: Operand,
    all: Operand,
    apart: Operand,
}

/// Sets the grid, of a block for each multiprocessor, in whole clusters. With programmatic launch the kernel waits here for those before it.
fn begin(b: &mut Builder, programmatic: bool) {
    b.grid([Extent::Multiprocessors, Extent::Constant(1), Extent::Constant(1)]);
    if programmatic {
        b.push(Op::GridWait);
        b.push(Op::GridLaunch);
    }
}

/// A quotient and its remainder.
fn divided(b: &mut Builder, number: Operand, by: Operand) -> (Operand, Operand) {
    let quotient = b.binary(Binary::Div, number, by);
    let whole = b.mul(quotient, by);
    (quotient, b.sub(number, whole))
}
