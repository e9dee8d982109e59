//! Rows of x that are not neighbours, and their scales along K: all lanes of the producer copy them, 16 bytes each, as tensor copies would leave
//! them.
//!
//! In an expert layer the slots of a token block are rows of any tokens. Eight lanes copy a line of 128 bytes of a row,
//! vector v of token t to vector v ^ (t % 8). These copies do not arrive at an mbarrier by themselves: a warp waits
//! for those of an earlier stage, makes them visible to the async proxy, which reads x, and arrives. Slots without a
//! pair, and columns beyond K, are zeros that nothing is read for. One lane a token copies its scale of the stage.
//!
//! A consumer releases a stage in the middle of the next one, so that a warp may be behind its copies by at most two stages
//! less than there are. It is behind by half of them: then consumers have the other half to read while more rows are on
//! their way. At the end of a tile it waits for all, while the pairs of the next tile are loaded.

use super::Block;
use super::ring::Ring;
use super::stage::{LINE, Stages, group_of_x, groups_of_x, line_columns};
use super::tiles::Tiles;
use crate::ir::{Address, Builder, Operand, Special, Type, Uniformity, Width};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::input::TOKEN_TILE;
use crate::schedule::rows::Token;

/// Bytes of a vector, and vectors of a line.
const VECTOR: u32 = 16;
const VECTORS: u32 = SHARED_BYTES / VECTOR;

/// Warps of the producer that copy rows; `None` if tensor copies do.
pub(super) fn warps(block: &Block<'_>) -> Option<u32> {
    let stack = block.main.problem.stack?;
    let lanes = block.tile.tokens * VECTORS;
    let warps = lanes.div_ceil(block.main.problem.target().gpu.map_or(32, |gpu| gpu.warp));
    stack.gathers().then_some(warps.min(block.group_warps()))
}

/// The rows that a lane copies.
struct Rows {
    /// Per row, the word of its vector in the first line of x, and whether the row exists.
    from: Vec<(Operand, Operand)>,
    /// The first column of the vector in its line, in words of x.
    column: Operand,
    /// The word of the first row's vector in a line of a stage.
    to: Operand,
    /// The distance of rows.
    apart: u32,
    /// The tokens whose scales this lane copies.
    scales: Vec<Scaled>,
}

/// A token whose scales along K a lane copies.
struct Scaled {
    /// Its number in the token block.
    slot: Operand,
    /// Whether the token block has that many.
    within: Operand,
    /// The word of its first scale.
    from: Operand,
    /// Whether the token exists.
    exists: Operand,
}

impl Rows {
    /// The rows of a tile; `meanwhile` is written after the loads of their pairs.
    fn declare(
        b: &mut Builder,
        (block, warps): (&Block<'_>, u32),
        meanwhile: impl FnOnce(&mut Builder),
    ) -> Self {
        let input = &block.main.problem.input;
        let thread = b.special(Special::Thread);
        let first = block.consumer_warps() * b.warp_size();
        let thread = b.sub(thread, first);
        let (row, vector) = (b.div(thread, VECTORS), b.rem(thread, VECTORS));
        let column = b.mul(vector, VECTOR / input.word().bytes());
        let columns = input.words(input.columns);
        let apart = warps * b.warp_size() / VECTORS;
        let number = block.rows.number(b, row);
        let tokens = (0..block.tile.tokens).step_by(apart as usize).map(|further| {
            let number = b.add(number, further);
            block.rows.token(b, number, true.into())
        });
        let tokens: Vec<Token> = tokens.collect();
        let scaled = scaled_tokens(b, (block, warps), thread);
        meanwhile(b);
        let from = tokens.into_iter().map(|token| {
            let exists = block.rows.exists(b, token);
            let row = block.rows.x_row(b, token, exists);
            (b.mad(row, columns, column), exists)
        });
        let from = from.collect();
        // Rows that are `apart` apart are the same number in eight lines.
        let in_eight = b.rem(row, 8);
        let place = b.xor(vector, in_eight);
        let line = b.mul(row, LINE);
        let to = b.mad(place, VECTOR / 4, line);
        let scales = scaled.into_iter().map(|(slot, within, token)| {
            let exists = block.rows.exists(b, token);
            let row = block.rows.x_row(b, token, exists);
            let groups = input.groups().unwrap_or(1);
            let from = input.scale_order.place(b, (row, groups), 0u32.into());
            Scaled { slot, within, from, exists }
        });
        let scales = scales.collect();
        Self { from, column, to, apart, scales }
    }

    /// Starts the copies of a stage.
    fn copy(
        &self,
        b: &mut Builder,
        (block, stages): (&Block<'_>, &Stages),
        [number, stage]: [Operand; 2],
    ) {
        let (main, input) = (block.main, &block.main.problem.input);
        let columns = main.k_tile() / block.tile.parts;
        let whole = input.columns.is_multiple_of(columns);
        let first = b.mul(number, input.words(columns));
        let to = stages.x.of_stage(b, stage);
        let to = Address { index: b.add(to.index, self.to), ..to };
        for line in 0..columns / line_columns(main) {
            let of_line = input.words(line * line_columns(main));
            let inside = (!whole).then(|| {
                let column = b.add(first, self.column);
                let column = b.add(column, of_line);
                b.less(column, input.words(input.columns))
            });
            for (at, &(from, exists)) in (0..).zip(&self.from) {
                let from = Address::new(block.io.x, b.add(from, first)).plus(of_line);
                let mask = inside.map_or(exists, |inside| b.both(exists, inside));
                let token = line * block.tile.tokens + at * self.apart;
                b.copy_async(to.plus(token * LINE), from, Width::B128, Some(mask));
            }
        }
        if let Some((part, buffer)) = stages.x_scales.as_ref().zip(block.io.x_scale) {
            let group = group_of_x(b, main, number);
            let to = part.of_stage(b, stage);
            for &Scaled { slot, within, from, exists } in &self.scales {
                // The groups of a tile of tokens are a tile apart.
                let from = Address::new(buffer, b.mad(group, TOKEN_TILE, from));
                let to = Address { index: b.add(to.index, slot), ..to };
                let copy = |b: &mut Builder| b.copy_async(to, from, Width::B32, Some(exists));
                match within {
                    Operand::Pred(true) => copy(b),
                    within => b.when(within, copy),
                }
            }
        }
    }
}

/// The tokens whose scales along K a lane copies: their numbers in the token block, and whether it has that many. None
/// without such scales.
fn scaled_tokens(
    b: &mut Builder,
    (block, warps): (&Block<'_>, u32),
    thread: Operand,
) -> Vec<(Operand, Operand, Token)> {
    if groups_of_x(block.main).is_none() {
        return Vec::new();
    }
    let (tokens, threads) = (block.tile.tokens, warps * b.warp_size());
    let all = (0..tokens).step_by(threads as usize).map(|further| {
        let slot = b.add(thread, further);
        let number = block.rows.number(b, slot);
        let within = match further + threads <= tokens {
            true => true.into(),
            false => b.less(slot, tokens),
        };
        (slot, within, block.rows.token(b, number, within))
    });
    all.collect()
}

/// The program of the producer's warps that copy rows: of each tile of the block, stage by stage. The thread that
/// leads starts the tensor copies of weights.
pub(super) fn produce(
    b: &mut Builder,
    block: &Block<'_>,
    (ring, stages, (start, end)): (&Ring, &Stages, (Operand, Operand)),
    (tiles, warps, leads): (&Tiles, u32, Operand),
) {
    let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
    let first_lane = b.equal(lane, 0u32);
    let behind = (ring.stages / 2).min(ring.stages - 2);
    let work = |b: &mut Builder| {
        let [cursor, written] = [(); 2].map(|()| ring.cursor(b));
        let arrive = |b: &mut Builder| {
            let phase = written.phase();
            ring.written(b, phase, first_lane);
            let next = ring.after(b, phase);
            written.move_to(b, next);
        };
        let open = b.variable("open", Type::U32, b.control().min(Uniformity::WarpGroup));
        b.comment("stages whose copies have started and not arrived");
        b.set(open, 0u32);
        let all_arrive = |b: &mut Builder| {
            b.copy_wait(0);
            b.for_each(0u32, open, 1u32, "last", |b, _| arrive(b));
            b.set(open, 0u32);
        };
        tiles.each(b, |b, tile| {
            b.when(tile.in_use(), |b| {
                let block = &block.of_tile(b, tile);
                let rows = Rows::declare(b, (block, warps), all_arrive);
                b.for_each(start, end, 1u32, "number", |b, number| {
                    let phase = cursor.phase();
                    ring.acquire(b, phase);
                    b.when(leads, |b| {
                        let barrier = ring.expect(b, phase, stages.bytes());
                        stages.copy_weights(b, block, (number, phase.stage), barrier);
                    });
                    rows.copy(b, (block, stages), [number, phase.stage]);
                    b.copy_commit();
                    let early = b.less(open, behind);
                    let more = b.add(open, 1u32);
                    b.if_else(
                        early,
                        |b| b.set(open, more),
                        |b| {
                            b.copy_wait(behind);
                            arrive(b);
                        },
                    );
                    let next = ring.after(b, phase);
                    cursor.move_to(b, next);
                });
            });
        });
        b.comment("the last stages");
        all_arrive(b);
    };
    if warps == block.group_warps() {
        return work(b);
    }
    let last = block.consumer_warps() + warps;
    let copies = b.less(warp, last);
    b.when(copies, work);
}
