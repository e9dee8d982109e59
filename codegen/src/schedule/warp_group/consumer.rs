//! A consumer: dequantises batches of fragments, and multiplies each while it dequantises the next.
//!
//! A batch is one group of products. After its commit the warp group waits until at most that group is in
//! flight, so the registers of the batch before are free for the batch after. Words of later chunks, those of
//! the next stage too, are loaded a batch or two before they are dequantised; words that products read as they are,
//! after the wait for the batch that read these registers before. A stage is released after the
//! first batch of the next one, when the last products that read it are complete; the last one of a tile at its end, if a
//! block has several tiles.

use super::pairs::Pairs;
use super::ring::{Cursor, Ring};
use super::stage::{LINE, Stages};
use super::sums::Sums;
use super::weights::{WarpRows, Weights};
use super::{Block, WarpGroupTile};
use super::{exchange, store};
use crate::ir::{
    Builder, MatrixOperand, Op, Operand, Reg, SharedTile, Special, Swizzle, Type, Uniformity,
};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::byte_fragments::ByteFragments;
use crate::schedule::mapping::{KRange, MainLoop};
use crate::schedule::table::Table;

/// The batches of a stage, and when words are loaded.
pub(super) struct Batches {
    /// Chunks of a stage.
    chunks: u32,
    /// Chunks of a tile of rows between two of another one: those of a segment whose sums need registers, else one.
    in_turn: u32,
    tiles: u32,
    /// Fragments of a chunk of a tile of rows.
    steps: u32,
    /// Fragments of a batch.
    pub(super) size: u32,
    /// Whether fragments are words as they are loaded, so that products read these.
    as_stored: bool,
    /// Batches between the load of a chunk's words and their dequantisation, at most.
    ahead: u32,
}

/// Whether fragments are words as they are loaded. Two tiles of rows have copies of rows' words: both tiles' are loaded together, and
/// would be needed too long.
pub(super) fn multiplies_words(main: &MainLoop<'_>, tile: &WarpGroupTile) -> bool {
    match main.problem.input.fragments {
        Some(ByteFragments::Whole) => true,
        Some(ByteFragments::Rows) => tile.row_tiles == 1,
        Some(ByteFragments::Nibbles) | None => false,
    }
}

impl Batches {
    pub(super) fn new(block: &Block<'_>) -> Self {
        Self::of(block.main, &block.tile)
    }

    /// Of a tile's free choices.
    pub(super) fn of(main: &MainLoop<'_>, tile: &WarpGroupTile) -> Self {
        let columns = main.problem.plan.native.columns;
        let steps = columns / main.step();
        let chunks = main.k_tile_chunks() / tile.parts;
        let in_turn = match tile.exact && tile.row_tiles > 1 {
            true => (main.segment() / columns).max(1),
            false => 1,
        };
        let fragments = main.problem.input.fragments;
        let as_stored = multiplies_words(main, tile);
        let (tiles, size) = (tile.row_tiles, tile.batch);
        let ahead = match fragments {
            // Made in less time than a load takes.
            Some(ByteFragments::Nibbles) => 2,
            // Of several planes, as a rule: words of one batch more would take too many registers.
            None if main.problem.joins_to_bytes() => 1,
            Some(ByteFragments::Whole | ByteFragments::Rows) | None => {
                (tiles * steps / size.max(1)).clamp(1, 2)
            }
        };
        Self { chunks, in_turn, tiles, steps, size, as_stored, ahead }
    }

    /// Batches of a stage; `None` if the last one is not whole, or if words of the next stage would be loaded while products
    /// read their registers.
    pub(super) fn count(&self) -> Option<u32> {
        let all = self.chunks * self.tiles * self.steps;
        let whole = self.size > 0 && all.is_multiple_of(self.size);
        let count = whole.then(|| all / self.size)?;
        let early = |&chunk: &u32| self.first(chunk) < self.ahead;
        (0..self.chunks).filter(early).all(|chunk| self.free(chunk) < count).then_some(count)
    }

    /// The batch that a chunk's words are first needed for.
    fn first(&self, chunk: u32) -> u32 {
        self.place((0, chunk)) * self.steps / self.size
    }

    /// The batch after whose commit a chunk's words are not needed any more: they are dequantised, or the products that
    /// read them are complete, a batch later.
    fn free(&self, chunk: u32) -> u32 {
        let last = self.place((self.tiles - 1, chunk));
        let read = ((last + 1) * self.steps).div_ceil(self.size) - 1;
        read + u32::from(self.as_stored)
    }

    /// The chunks of the tiles of rows, in the order of products.
    fn order(&self) -> impl Iterator<Item = (u32, u32)> {
        let (in_turn, tiles) = (self.in_turn, self.tiles);
        let turns = (0..self.chunks).step_by(in_turn as usize);
        turns.flat_map(move |first| {
            (0..tiles)
                .flat_map(move |tile| (first..first + in_turn).map(move |chunk| (tile, chunk)))
        })
    }

    /// The number of a chunk of a tile of rows in that order.
    fn place(&self, (tile, chunk): (u32, u32)) -> u32 {
        let turn = chunk / self.in_turn * self.tiles + tile;
        turn * self.in_turn + chunk % self.in_turn
    }

    /// Stages that a consumer holds at once: the stage before is released after the first batch, and words of the
    /// next one may be waited for before that.
    pub(super) fn held(&self) -> u32 {
        let early = (0..self.chunks).any(|chunk| self.load(chunk) == (0, true));
        if early { 3 } else { 2 }
    }

    /// The batch after whose commit a chunk's words are loaded, and whether it is a batch of the stage before.
    fn load(&self, chunk: u32) -> (u32, bool) {
        let count = self.count().unwrap_or(1);
        let first = self.first(chunk);
        if first >= self.ahead {
            return (first - self.ahead, false);
        }
        let wanted = (count + first).saturating_sub(self.ahead);
        (wanted.max(self.free(chunk)), true)
    }
}

/// A fragment of A: its tile of rows, its step of the k-tile, its registers.
type Fragment = (u32, u32, Vec<Reg>);

/// The program of the consumers' warps; of one tile with the cursor of a block that has several.
pub(super) fn consume(
    b: &mut Builder,
    block: &Block<'_>,
    (ring, stages, KRange { start, end }): (&Ring, &Stages, KRange),
    (cursor, table): (Option<Cursor>, Option<Table>),
) {
    let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
    let group_warps = block.group_warps();
    let (group, in_group) = (b.div(warp, group_warps), b.rem(warp, group_warps));
    let first = b.mad(group, block.own_tiles() * group_warps, in_group);
    let rows = WarpRows { group, warp: in_group, lane, first };
    let weights = Weights::declare(b, block, (stages, table), &rows);
    let sums = Sums::declare(b, (block, stages), &rows);
    let batches = Batches::new(block);
    let first_lane = b.equal(lane, 0u32);

    let pairs = Pairs::load(b, block, &rows);
    b.comment("words of the first stage");
    let cursor = cursor.unwrap_or_else(|| ring.cursor(b));
    weights.begin(b, start);
    ring.wait(b, cursor.phase());
    for chunk in (0..batches.chunks).filter(|&chunk| batches.load(chunk).1) {
        weights.load(b, block, ((cursor.phase().stage, start), chunk));
    }
    let before = b.variable("before", Type::U32, Uniformity::WarpGroup);
    b.set(before, 0u32);
    b.for_each(start, end, 1u32, "number", |b, k_tile| {
        let phase = cursor.phase();
        let next = ring.after(b, phase);
        let later = b.add(k_tile, 1u32);
        let follows = b.less(later, end);
        let read = b.less(start, k_tile);
        let read = b.both(read, first_lane);
        let x = stages.x.of_stage(b, phase.stage).index;
        let mut by_row = weights.by_row(b, k_tile);
        let scales = weights.scales_of_sums(b, k_tile);
        let (mut batch, mut number): (Vec<Fragment>, u32) = (Vec::new(), 0);
        let mut waited = false;
        let after = &mut |b: &mut Builder, number: u32| {
            let due = |early| {
                let all = 0..batches.chunks;
                all.filter(|&chunk| batches.load(chunk) == (number, early)).collect::<Vec<u32>>()
            };
            let wait = Op::MatrixWait { pending: 1 };
            if batches.as_stored {
                b.push(wait.clone());
            }
            for chunk in due(false) {
                weights.load(b, block, ((phase.stage, k_tile), chunk));
            }
            let early = due(true);
            if !early.is_empty() {
                b.when(follows, |b| {
                    if !waited {
                        ring.wait(b, next);
                    }
                    for chunk in early {
                        weights.load(b, block, ((next.stage, later), chunk));
                    }
                });
                waited = true;
            }
            if !batches.as_stored {
                b.push(wait);
            }
            if number == 0 {
                b.comment("the stage before has been read");
                ring.release(b, before.into(), read);
            }
        };
        for (tile, chunk) in batches.order() {
            let by_row = &mut by_row[tile as usize];
            weights.decode(b, (phase.stage, (tile, chunk)), by_row, &mut |b, step, a| {
                batch.push((tile, step, a));
                if batch.len() == batches.size as usize {
                    let first = number * batches.size;
                    if let Some(segment) = sums.begins(first) {
                        sums.begin(b, (segment, scales.get(segment as usize)));
                    }
                    multiply(b, block, (stages, x), (&batch, first), &sums);
                    after(b, number);
                    if number == 0 {
                        sums.load(b, phase.stage);
                    }
                    batch.clear();
                    number += 1;
                }
            });
        }
        sums.end(b);
        b.set(before, phase.stage);
        cursor.move_to(b, next);
    });
    let sums = sums.finish(b);
    if block.has_tiles() {
        b.comment("the last stage has been read");
        ring.release(b, before.into(), first_lane);
    } else {
        b.comment("all consumers have read the stages");
        block.consumers().wait(b);
    }
    let sums = exchange::exchanged(b, (block, stages), &rows, sums);
    if let Some(pairs) = &pairs {
        pairs.exchange(b, block, &rows);
    }
    store::store(b, (block, stages), (&rows, pairs.as_ref()), &sums);
}

/// A batch, whose first fragment has a number in the stage: sums += A x, as one group of products. `x` is the
/// first word of the stage.
fn multiply(
    b: &mut Builder,
    block: &Block<'_>,
    (stages, x): (&Stages, Operand),
    (batch, first): (&[Fragment], u32),
    sums: &Sums,
) {
    let main = block.main;
    b.push(Op::MatrixFence);
    for (number, (tile, step, a)) in (first..).zip(batch) {
        // A step is a part of a line; a line follows after those of all tokens.
        let bytes = main.problem.input.bytes(main.step());
        let (line, part) = (step * bytes / SHARED_BYTES, step * bytes % SHARED_BYTES);
        let x = SharedTile {
            block: stages.x.block,
            index: x,
            offset: line * block.tile.tokens * LINE + part / 4,
            leading: 16,
            stride: 8 * SHARED_BYTES,
            swizzle: Swizzle::B128,
        };
        let (d, c) = sums.of_fragment(*tile, number);
        let (a, b_tile) = (MatrixOperand::Registers(a.clone()), MatrixOperand::Shared(x));
        b.push(Op::Matrix { op: block.product, d, a, b: b_tile, c, scales: None });
    }
    b.push(Op::MatrixCommit);
}
