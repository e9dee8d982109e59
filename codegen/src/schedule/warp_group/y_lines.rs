//! The lines of y of a warp group in shared memory, which one tensor store copies to y: 64 rows of w of some tokens, a line of 128
//! bytes a token, swizzled. What is beyond M and N is left out.

use super::Block;
use super::stage::{LINE, Stages};
use super::weights::WarpRows;
use crate::ir::{
    Address, Builder, Cache, Extent, Op, Operand, SharedId, Swizzle, TensorId, TensorMap, Word,
};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::participants::Participants;

/// Rows of w of a line.
pub(super) const LINE_ROWS: u32 = SHARED_BYTES / 2;

/// The buffer of all warp groups, with lines of so many tokens each. It takes the place of the stages' x, unless copies of a
/// next tile are there already.
pub(super) fn buffer(
    b: &mut Builder,
    (block, stages): (&Block<'_>, &Stages),
    tokens: u32,
) -> SharedId {
    let (tile, count) = (block.tile, words(block.tile.groups, tokens));
    b.shared_block(
        "y_lines",
        Word::U32,
        count,
        "y [row, token, warp group], swizzled",
        8 * SHARED_BYTES,
        stages.x.for_words(tile.stages, count).filter(|_| !block.has_tiles()),
    )
}

/// 32-bit words of the buffers of all warp groups.
pub(super) const fn words(groups: u32, tokens: u32) -> u32 {
    groups * tokens * LINE
}

/// The map of y by which lines of so many tokens are stored.
pub(super) fn map(b: &mut Builder, block: &Block<'_>, rows: Extent, tokens: u32) -> TensorId {
    let n = Extent::Constant(block.main.problem.n);
    b.tensor(TensorMap {
        name: "y_map".to_owned(),
        buffer: block.io.y,
        extents: vec![n, rows],
        strides: vec![Extent::Constant(1), n],
        tile: vec![LINE_ROWS, tokens],
        swizzle: Swizzle::B128,
        cache: Cache::Default,
    })
}

/// The stores of a warp group.
#[derive(Clone, Copy)]
pub(super) struct Stores {
    buffer: SharedId,
    map: TensorId,
    /// Whether this thread starts them.
    leads: Operand,
}

impl Stores {
    pub(super) fn declare(
        b: &mut Builder,
        (buffer, map): (SharedId, TensorId),
        rows: &WarpRows,
    ) -> Self {
        Self { buffer, map, leads: leads(b, rows.lane, rows.warp) }
    }

    /// Waits until the lines of the store before may be written.
    pub(super) fn wait(&self, b: &mut Builder, block: &Block<'_>, rows: &WarpRows) {
        b.comment("the tile before has left the buffer");
        wait(b, self.leads);
        meet(b, block, rows);
    }

    /// Stores the lines, from the group's first word of the buffer, as rows of y that begin at a row of w and a token.
    pub(super) fn start(
        &self,
        b: &mut Builder,
        (block, rows): (&Block<'_>, &WarpRows),
        (from, at): (Operand, [Operand; 2]),
    ) {
        b.push(Op::FenceAsync);
        meet(b, block, rows);
        let (map, from) = (self.map, Address::new(self.buffer, from));
        b.when(self.leads, |b| {
            b.push(Op::TensorStore { map, at: at.to_vec(), from });
            b.push(Op::BulkCommit);
        });
    }

    /// The end of a block that has no other tile.
    pub(super) fn end(&self, b: &mut Builder, block: &Block<'_>) {
        if !block.has_tiles() {
            wait(b, self.leads);
        }
    }
}

/// The end of a block that has several tiles: the last one has left the buffer.
pub(super) fn end_of_tiles(b: &mut Builder, lane: Operand, warp: Operand) {
    let leads = leads(b, lane, warp);
    wait(b, leads);
}

/// Whether a thread is the first one of its warp group.
fn leads(b: &mut Builder, lane: Operand, warp: Operand) -> Operand {
    let (lane, warp) = (b.equal(lane, 0u32), b.equal(warp, 0u32));
    b.both(lane, warp)
}

/// The first thread waits until its stores have read the lines.
fn wait(b: &mut Builder, leads: Operand) {
    b.when(leads, |b| b.push(Op::BulkWait { pending: 0, reads_only: true }));
}

/// The warps of a group wait for each other.
pub(super) fn meet(b: &mut Builder, block: &Block<'_>, rows: &WarpRows) {
    for group in 0..block.tile.groups {
        let own = b.equal(rows.group, group);
        // Barrier 0 is the block's.
        let warps = Participants { warps: block.group_warps(), named_barrier: Some(group + 1) };
        match block.tile.groups {
            1 => warps.wait(b),
            _ => b.when(own, |b| warps.wait(b)),
        }
    }
}
