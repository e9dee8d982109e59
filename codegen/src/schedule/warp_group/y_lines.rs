//! The lines of y of a warp group in shared memory, which one tensor store copies to y: 64 rows of w of some tokens, a line of 128
//! bytes a token, swizzled. What is beyond M and N is left out.
//!
//! A tensor store needs rows of y of whole 16 bytes. Where N makes others, a warp copies a line after another, by words of two
//! numbers, or by numbers if N is odd.

use super::Block;
use super::stage::{LINE, Stages};
use super::weights::WarpRows;
use crate::ir::{
    Address, Builder, Cache, Extent, Op, Operand, SharedId, Swizzle, TensorId, TensorMap, Width,
    Word,
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

/// Whether rows of y are whole vectors of 16 bytes, of numbers of 16 bits.
pub(super) const fn whole_vectors(n: u32) -> bool {
    n.is_multiple_of(8)
}

/// The map of y by which lines of so many tokens are stored, if a tensor store can.
pub(super) fn map(
    b: &mut Builder,
    block: &Block<'_>,
    rows: Extent,
    tokens: u32,
) -> Option<TensorId> {
    let n = block.main.problem.n;
    if !whole_vectors(n) {
        return None;
    }
    let n = Extent::Constant(n);
    Some(b.tensor(TensorMap {
        name: "y_map".to_owned(),
        buffer: block.io.y,
        extents: vec![n, rows],
        strides: vec![Extent::Constant(1), n],
        tile: vec![LINE_ROWS, tokens],
        swizzle: Swizzle::B128,
        cache: Cache::Default,
    }))
}

/// The stores of a warp group.
#[derive(Clone, Copy)]
pub(super) struct Stores {
    buffer: SharedId,
    /// The lines of a store: of so many tokens.
    tokens: u32,
    /// The map, and whether this thread starts the stores; `None` if lanes copy lines.
    by_tensor: Option<(TensorId, Operand)>,
}

impl Stores {
    /// The stores of lines of so many tokens, by a map if there is one.
    pub(super) fn declare(
        b: &mut Builder,
        (buffer, tokens): (SharedId, u32),
        map: Option<TensorId>,
        rows: &WarpRows,
    ) -> Self {
        let by_tensor = map.map(|map| (map, leads(b, rows.lane, rows.warp)));
        Self { buffer, tokens, by_tensor }
    }

    /// Waits until the lines of the store before may be written.
    pub(super) fn wait(&self, b: &mut Builder, block: &Block<'_>, rows: &WarpRows) {
        b.comment("the tile before has left the buffer");
        if let Some((_, leads)) = self.by_tensor {
            wait(b, leads);
        }
        meet(b, block, rows);
    }

    /// Stores the lines, from the group's first word of the buffer, as rows of y that begin at a row of w and a token.
    pub(super) fn start(
        &self,
        b: &mut Builder,
        (block, rows): (&Block<'_>, &WarpRows),
        (from, at): (Operand, [Operand; 2]),
    ) {
        let Some((map, leads)) = self.by_tensor else {
            meet(b, block, rows);
            return self.copy(b, (block, rows), (from, at));
        };
        b.push(Op::FenceAsync);
        meet(b, block, rows);
        let from = Address::new(self.buffer, from);
        b.when(leads, |b| {
            b.push(Op::TensorStore { map, at: at.to_vec(), from });
            b.push(Op::BulkCommit);
        });
    }

    /// Copies the lines to y: each warp of the group every so many lines, each lane two numbers of them.
    fn copy(
        &self,
        b: &mut Builder,
        (block, rows): (&Block<'_>, &WarpRows),
        (from, [first_row, first_token]): (Operand, [Operand; 2]),
    ) {
        const WORDS: u32 = 4;
        let (n, m) = (block.main.problem.n, b.argument(block.io.m));
        let (vector, word) = (b.div(rows.lane, WORDS), b.rem(rows.lane, WORDS));
        let in_line = b.add(from, word);
        let row = b.mad(rows.lane, 2u32, first_row);
        let inside = [0u32, 1].map(|next| {
            let row = b.add(row, next);
            b.less(row, n)
        });
        b.for_each(rows.warp, self.tokens, block.group_warps(), "line", |b, line| {
            let in_eight = b.rem(line, 8);
            let swizzled = b.xor(vector, in_eight);
            let word = b.mad(swizzled, WORDS, in_line);
            let word = Address::new(self.buffer, b.mad(line, LINE, word));
            let word = b.load(word, Width::B32)[0];
            let token = b.add(first_token, line);
            let exists = b.less(token, m);
            let [first, second] = inside.map(|inside| b.both(exists, inside));
            let to = Address::new(block.io.y, b.mad(token, n, row));
            if n.is_multiple_of(2) {
                b.store(to, &[word.into()], Width::B32, Some(first));
            } else {
                let next = b.shr(word, 16u32);
                b.store(to, &[word.into()], Width::B16, Some(first));
                b.store(to.plus(1), &[next], Width::B16, Some(second));
            }
        });
    }

    /// The end of a block that has no other tile.
    pub(super) fn end(&self, b: &mut Builder, block: &Block<'_>) {
        if let Some((_, leads)) = self.by_tensor.filter(|_| !block.has_tiles()) {
            wait(b, leads);
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
