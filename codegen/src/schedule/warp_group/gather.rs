//! Rows of x that are not neighbours, and their scales along K: all lanes of the producer copy them, 16 bytes each, as tensor copies would leave
//! them.
//!
//! In an expert layer the slots of a token block are rows of any tokens. Eight lanes copy a line of 128 bytes of a row,
//! vector v of token t to vector v ^ (t % 8). These copies do not arrive at an mbarrier by themselves: a warp waits
//! for those of an earlier stage, makes them visible to the async proxy, which reads x, and arrives. Slots without a
//! pair, and columns beyond K, are zeros that nothing is read for. One lane a slot copies its scale of the stage.
//!
//! A consumer waits for a stage, or for two, before it releases the one before, so that a warp may be behind its copies by at most so
//! many stages less than there are. It is behind by half of them: then consumers have the other half to read while more rows are
//! on their way. A warp is behind from one tile to the next too; the pairs of the next tile's slots are loaded while the rows of a
//! tile are copied.

use super::Block;
use super::ring::Ring;
use super::shape::SWIZZLED_LINES;
use super::stage::{LINE, Stages, group_of_x, groups_of_x, line_columns};
use super::tiles::Tiles;
use crate::ir::{Address, Builder, Operand, Reg, Shuffle, Special, Type, Uniformity, Width};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::input::TOKEN_TILE;
use crate::schedule::mapping::KRange;
use crate::schedule::order::NONE;
use crate::schedule::routed_block::RoutedBlock;
use crate::schedule::rows::{Token, TokenRows};

/// Bytes of a vector, and vectors of a line.
const VECTOR: u32 = 16;
const VECTORS: u32 = SHARED_BYTES / VECTOR;

/// Warps of the producer that copy rows; `None` if tensor copies do. All lanes copy as many rows, each at one place of eight lines, so that
/// half of a warp group copies 24 slots.
pub(super) fn warps(block: &Block<'_>) -> Option<u32> {
    block.main.problem.stack.filter(|stack| stack.gathers())?;
    let slots_of_warp = block.main.problem.target().gpu.map_or(32, |gpu| gpu.warp) / VECTORS;
    let alike = |warps: &u32| {
        let apart = warps * slots_of_warp;
        apart.is_multiple_of(SWIZZLED_LINES) && block.tile.tokens.is_multiple_of(apart)
    };
    // A multiple of eight slots is one of two warps' rows.
    Some((1..=block.group_warps()).rev().find(alike).unwrap_or(1))
}

/// The slots whose rows a lane copies of each tile, one vector of every line, and the pairs of its next tile's.
struct Slots {
    /// The number in the token block of the first slot.
    first: Operand,
    /// The distance of slots.
    apart: u32,
    /// How many there are.
    count: u32,
    /// The lane, and the vector that it copies of a line.
    lane: Operand,
    vector: Operand,
    /// The slots whose pairs the lane loads for the eight lanes that share them: every eighth.
    own: Vec<OwnSlot>,
    /// The slots whose scales along K the lane copies, as neighbouring lanes neighbouring slots. None without such scales.
    scaled: Vec<OwnSlot>,
}

/// A slot whose pair a lane loads.
#[derive(Clone, Copy)]
struct OwnSlot {
    /// Its number in the token block.
    number: Operand,
    /// Whether there is such a slot.
    within: Operand,
    /// Its pair in the next tile.
    pair: Reg,
}

impl Slots {
    fn declare(b: &mut Builder, (block, warps): (&Block<'_>, u32)) -> Self {
        let (thread, lane) = (b.special(Special::Thread), b.special(Special::Lane));
        let before = block.consumer_warps() * b.warp_size();
        let thread = b.sub(thread, before);
        let (first, vector) = (b.div(thread, VECTORS), b.rem(thread, VECTORS));
        let apart = warps * b.warp_size() / VECTORS;
        let count = block.tile.tokens.div_ceil(apart);
        let of_pair = |b: &mut Builder, number: Operand, within: Operand| {
            let pair = b.variable("next_pair", Type::U32, Uniformity::Varying);
            b.set(pair, NONE);
            OwnSlot { number, within, pair }
        };
        let below = |b: &mut Builder, at: Operand, (certain, end): (bool, u32)| match certain {
            true => Operand::Pred(true),
            false => b.less(at, end),
        };
        let own = (0..count).step_by(VECTORS as usize).map(|further| {
            let at = b.add(vector, further);
            let number = b.mad(at, apart, first);
            let within = below(b, at, (further + VECTORS <= count, count));
            of_pair(b, number, within)
        });
        let own = own.collect();
        let (tokens, threads) = (block.tile.tokens, warps * b.warp_size());
        let of_x = groups_of_x(block.main).map_or(0, |_| tokens);
        let scaled = (0..of_x).step_by(threads as usize).map(|further| {
            let number = b.add(thread, further);
            let within = below(b, number, (further + threads <= tokens, tokens));
            of_pair(b, number, within)
        });
        let scaled = scaled.collect();
        Self { first, apart, count, lane, vector, own, scaled }
    }

    /// Starts the loads of the pairs of a tile; there are none where the condition is false.
    fn load(&self, b: &mut Builder, rows: &TokenRows, there: Operand) {
        for &OwnSlot { number, within, pair } in self.own.iter().chain(&self.scaled) {
            let slot = rows.number(b, number);
            let within = b.both(there, within);
            rows.load_pair(b, slot, (pair, within));
        }
    }

    /// The rows of a tile, whose pairs have been loaded.
    fn rows(&self, b: &mut Builder, block: &Block<'_>) -> Rows {
        let input = &block.main.problem.input;
        let row_of = |b: &mut Builder, slot: Operand, pair: Operand| {
            let number = block.rows.number(b, slot);
            let token = Token::of_pair(number, pair);
            let exists = block.rows.exists(b, token);
            (block.rows.x_row(b, token, exists), exists)
        };
        let columns = input.words(input.columns);
        let column = b.mul(self.vector, VECTOR / input.word().bytes());
        let first_of_eight = b.sub(self.lane, self.vector);
        let from = (0..self.count).map(|at| {
            let holder = b.add(first_of_eight, at % VECTORS);
            let own = &self.own[(at / VECTORS) as usize];
            let pair = b.shuffle(Shuffle::Index, own.pair, holder);
            let slot = b.add(self.first, at * self.apart);
            let (row, exists) = row_of(b, slot, pair);
            (b.mad(row, columns, column), exists)
        });
        let from = from.collect();
        // Slots that are `apart` apart are the same number in eight lines.
        let in_eight = b.rem(self.first, SWIZZLED_LINES);
        let place = b.xor(self.vector, in_eight);
        let line = b.mul(self.first, LINE);
        let to = b.mad(place, VECTOR / 4, line);
        let groups = input.groups().unwrap_or(1);
        let scales = self.scaled.iter().map(|&OwnSlot { number, within, pair }| {
            let (row, exists) = row_of(b, number, pair.into());
            let from = input.scale_order.place(b, (row, groups), 0u32.into());
            Scaled { slot: number, within, from, exists }
        });
        let scales = scales.collect();
        Rows { from, column, to, apart: self.apart, scales }
    }
}

/// The rows of a tile that a lane copies.
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

/// The program of the producer's warps that copy rows: of each tile of the block, stage by stage. The thread that
/// leads starts the tensor copies of weights.
pub(super) fn produce(
    b: &mut Builder,
    block: &Block<'_>,
    (ring, stages, KRange { start, end }): (&Ring, &Stages, KRange),
    (tiles, warps, leads): (&Tiles, u32, Operand),
) {
    let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
    let first_lane = b.equal(lane, 0u32);
    let behind = (ring.stages / 2).min(ring.stages - block.held_stages());
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
        let slots = Slots::declare(b, (block, warps));
        let load = |b: &mut Builder, next: &RoutedBlock| {
            let rows = next.rows(b, block.tile.tokens);
            slots.load(b, &rows, next.in_use);
        };
        tiles.each_ahead(b, load, |b, tile, load_next| {
            let block = &block.of_tile(b, tile);
            let rows = slots.rows(b, block);
            load_next(b);
            b.when(tile.in_use(), |b| {
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
        b.copy_wait(0);
        b.for_each(0u32, open, 1u32, "last", |b, _| arrive(b));
    };
    if warps == block.group_warps() {
        return work(b);
    }
    let last = block.consumer_warps() + warps;
    let copies = b.less(warp, last);
    b.when(copies, work);
}
