//! A block's ring in shared memory: what the next groups need, on its way by asynchronous copies.
//!
//! A stage holds x as `[chunk][token][piece]`, a piece being 8 columns (16 bytes), then of each warp
//! its rows' codes as they lie in the native layout, a word of scales a lane, and zero points
//! likewise. Piece p of token r of a chunk lies at place p ^ (r % 2): the four lanes of a token want
//! every other piece, and those of two neighbouring tokens fill all banks. Codes and scales are read
//! by the warp that copied them.

use super::Tile;
use crate::ir::{
    Address, Binary, Builder, Cache, Op, Operand, Reg, SharedId, Type, Uniformity, Width, Word,
};
use crate::schedule::problem::Problem;
use crate::schedule::results::Results;
use crate::schedule::tile::TileShape;

/// Columns of a piece of x: 16 bytes.
const PIECE: u32 = 8;
/// Words of 16 bytes.
const WORDS: u32 = 4;

/// Where the parts of a stage begin, in words.
#[derive(Clone, Copy)]
struct Parts {
    /// Words of a token's chunk of x.
    row: u32,
    codes: u32,
    /// Words of a warp's codes.
    warp_codes: u32,
    scales: u32,
    /// Words of a warp's scales, or zero points.
    warp_scales: u32,
    zeros: u32,
    /// All of it.
    words: u32,
}

impl Parts {
    fn new(shape: TileShape, problem: &Problem) -> Self {
        let lanes = problem.target().gpu.map_or(0, |gpu| gpu.warp);
        let row = problem.plan.native.columns / 2;
        let warp_codes = shape.row_tiles(problem) * problem.group_chunks() * lanes * WORDS;
        let codes = problem.group_chunks() * shape.tokens * row;
        let scales = codes + shape.warps * warp_codes;
        let zeros = scales + shape.warps * lanes;
        let words = if problem.zero { zeros + shape.warps * lanes } else { zeros };
        Self { row, codes, warp_codes, scales, warp_scales: lanes, zeros, words }
    }
}

/// Words of a block's shared memory: the ring, or the sums that later lie over it.
pub(super) fn words(shape: TileShape, problem: &Problem) -> u32 {
    let ring = shape.stages * Parts::new(shape, problem).words;
    ring.max(Results::words(shape.rows, shape.tokens, 1))
}

pub(super) struct Ring {
    block: SharedId,
    parts: Parts,
    /// Where the stage to be read begins.
    read: Reg,
    /// x, this thread's part: the first place, the first word of x, its column in the group, and
    /// for each of its rows whether it is one of x.
    x_to: Operand,
    x_from: Operand,
    x_column: Operand,
    x_rows: Vec<Operand>,
    /// Rows from one to the next of them.
    x_step: u32,
    /// Per tile of rows, this lane's first word of codes.
    codes_from: Vec<Operand>,
    /// This lane's place of codes in a stage.
    codes_to: Operand,
    /// This lane's first scale, its place, and whether there is one.
    scales_from: Operand,
    scales_to: Operand,
    scales_is: Operand,
    /// Where this lane's even and odd pieces of x lie in the first tile of tokens.
    x_at: [Operand; 2],
    /// Where this lane's scales of its row lie.
    scales_at: Operand,
}

/// A group that has arrived.
pub(super) struct Stage {
    block: SharedId,
    parts: Parts,
    x: [Operand; 2],
    codes: Operand,
    scales: Operand,
}

impl Ring {
    pub(super) fn declare(b: &mut Builder, tile: &Tile<'_>) -> Self {
        let (problem, shape) = (tile.problem, tile.shape);
        let parts = Parts::new(shape, problem);
        let layout = format!(
            "{} stages of x [piece, token, chunk], swizzled, then codes, scales and zeros of each warp",
            shape.stages
        );
        let block = b.shared_block("ring", Word::U32, words(shape, problem), &layout, 128, None);
        let read = b.variable("read", Type::U32, Uniformity::Block);
        b.set(read, 0u32);

        b.comment("x: the pieces that this thread copies");
        let pieces = problem.group / PIECE;
        let chunk_pieces = problem.plan.native.columns / PIECE;
        let thread = b.mad(tile.warp, b.warp_size(), tile.lane);
        let (row, piece) = (b.div(thread, pieces), b.rem(thread, pieces));
        let x_step = shape.warps * b.warp_size() / pieces;
        let chunk = b.div(piece, chunk_pieces);
        let in_chunk = b.rem(piece, chunk_pieces);
        let odd = b.and(row, 1u32);
        let place = b.xor(in_chunk, odd);
        let to = b.mad(chunk, shape.tokens, row);
        let to = b.mul(to, parts.row);
        let x_to = b.mad(place, WORDS, to);
        let token = b.mad(tile.token_block, shape.tokens, row);
        let x_column = b.mul(piece, PIECE);
        let x_from = b.mad(token, problem.k, x_column);
        let x_rows = (0..shape.tokens / x_step).map(|i| {
            let token = b.add(token, i * x_step);
            b.less(token, tile.m)
        });
        let x_rows = x_rows.collect();

        b.comment("codes and scales: what this lane copies");
        let (tiles, chunks) = (shape.row_tiles(problem), problem.chunks());
        let first = b.mul(tile.row_block, shape.warps * tiles);
        let first = b.mad(tile.warp, tiles, first);
        let lane_words = b.mul(tile.lane, WORDS);
        let codes_from = (0..tiles).map(|r| {
            let number = b.add(first, r);
            let number = inside(b, tile, number);
            b.mad(number, chunks * b.warp_size() * WORDS, lane_words)
        });
        let codes_from = codes_from.collect();
        let codes_to = b.mad(tile.warp, parts.warp_codes, lane_words);
        let tile_lanes = problem.plan.native.rows / 2;
        let number = b.div(tile.lane, tile_lanes);
        let number = b.add(first, number);
        let number = inside(b, tile, number);
        let pair = b.rem(tile.lane, tile_lanes);
        let pair = b.mul(pair, 2u32);
        let scales_from = b.mad(number, problem.groups() * problem.plan.native.rows, pair);
        let scales_to = b.mad(tile.warp, parts.warp_scales, tile.lane);
        let scales_is = if tiles * tile_lanes < b.warp_size() {
            b.less(tile.lane, tiles * tile_lanes)
        } else {
            true.into()
        };

        b.comment("x and scales: what this lane reads");
        let row = b.div(tile.lane, problem.row_lanes());
        let piece = b.rem(tile.lane, problem.row_lanes());
        let piece = b.mul(piece, problem.lane_columns() / PIECE);
        let odd = b.and(row, 1u32);
        let place = b.xor(piece, odd);
        let at = b.mul(row, parts.row);
        let even = b.mad(place, WORDS, at);
        let x_at = [even, b.xor(even, WORDS)];
        let scales_at = b.mad(tile.warp, parts.warp_scales, row);
        Self {
            block,
            parts,
            read,
            x_to,
            x_from,
            x_column,
            x_rows,
            x_step,
            codes_from,
            codes_to,
            scales_from,
            scales_to,
            scales_is,
            x_at,
            scales_at,
        }
    }

    pub(super) const fn block(&self) -> SharedId {
        self.block
    }

    /// Starts the copies of all stages but one: weights first, which no earlier kernel writes.
    pub(super) fn fill(&self, b: &mut Builder, tile: &Tile<'_>, start: Operand, end: Operand) {
        let ahead: Vec<u32> = (0..tile.shape.stages - 1).collect();
        b.comment("the first groups: weights, then x");
        for &ahead in &ahead {
            let group = b.add(start, ahead);
            let there = b.less(group, end);
            let stage = (ahead * self.parts.words).into();
            b.when(there, |b| self.copy_weights(b, tile, group, stage));
        }
        if tile.shape.programmatic {
            b.push(Op::GridWait);
        }
        for &ahead in &ahead {
            let group = b.add(start, ahead);
            let there = b.less(group, end);
            let stage = (ahead * self.parts.words).into();
            b.when(there, |b| self.copy_x(b, tile, group, stage));
            b.push(Op::CopyCommit);
        }
    }

    /// Waits for a group, starts the copy of one that comes later.
    pub(super) fn next(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        group: Operand,
        end: Operand,
    ) -> Stage {
        let (stages, words) = (tile.shape.stages, self.parts.words);
        b.push(Op::CopyWait { pending: stages - 2 });
        // Everybody's copies are there, and all have read the stage before, which is filled next.
        b.barrier();
        let first = b.equal(self.read, 0u32);
        let before = b.sub(self.read, words);
        let before = b.select(first, (stages - 1) * words, before);
        let later = b.add(group, stages - 1);
        let there = b.less(later, end);
        b.when(there, |b| {
            self.copy_weights(b, tile, later, before);
            self.copy_x(b, tile, later, before);
        });
        b.push(Op::CopyCommit);

        let stage = Stage {
            block: self.block,
            parts: self.parts,
            x: self.x_at.map(|at| b.add(at, self.read)),
            codes: b.add(self.codes_to, self.read),
            scales: b.add(self.scales_at, self.read),
        };
        let next = b.add(self.read, words);
        let last = b.equal(next, stages * words);
        let next = b.select(last, 0u32, next);
        b.set(self.read, next);
        stage
    }

    fn copy_x(&self, b: &mut Builder, tile: &Tile<'_>, group: Operand, stage: Operand) {
        let problem = tile.problem;
        let to = b.add(self.x_to, stage);
        let from = b.mad(group, problem.group, self.x_from);
        // The last group may end inside of a chunk, at a multiple of a piece: zeros beyond.
        let column_is = (!problem.k.is_multiple_of(problem.group)).then(|| {
            let column = b.mad(group, problem.group, self.x_column);
            b.less(column, problem.k)
        });
        for (i, &row_is) in (0..).zip(&self.x_rows) {
            let mask = column_is.map_or(row_is, |column_is| b.both(row_is, column_is));
            let to = Address::new(self.block, to).plus(i * self.x_step * self.parts.row);
            let from = Address::new(tile.io.x, from).plus(i * self.x_step * problem.k);
            b.copy_async(to, from, Width::B128, Some(mask));
        }
    }

    fn copy_weights(&self, b: &mut Builder, tile: &Tile<'_>, group: Operand, stage: Operand) {
        let problem = tile.problem;
        let (chunks, words) = (problem.group_chunks(), b.warp_size() * WORDS);
        let to = b.add(self.codes_to, stage);
        for (r, &from) in (0..).zip(&self.codes_from) {
            let from = b.mad(group, chunks * words, from);
            for chunk in 0..chunks {
                // The last group may be short: its missing chunks are zeros.
                let there = (!problem.chunks().is_multiple_of(chunks)).then(|| {
                    let number = b.mad(group, chunks, chunk);
                    b.less(number, problem.chunks())
                });
                let to = Address::new(self.block, to);
                let to = to.plus(self.parts.codes + (r * chunks + chunk) * words);
                let from = Address::new(tile.io.codes, from).plus(chunk * words);
                b.copy_async(to, from, Width::B128, there);
            }
        }
        let to = b.add(self.scales_to, stage);
        let from = b.mad(group, problem.plan.native.rows, self.scales_from);
        let buffers =
            [(Some(tile.io.scales), self.parts.scales), (tile.io.zeros, self.parts.zeros)];
        for (buffer, part) in buffers {
            let Some(buffer) = buffer else { continue };
            let to = Address::new(self.block, to).plus(part);
            let mask = (self.scales_is != Operand::Pred(true)).then_some(self.scales_is);
            b.copy_async(to, Address::new(buffer, from), Width::B32, mask);
        }
    }
}

/// A tile of rows that is there: beyond the last, that one, whose results are computed again and not
/// stored.
fn inside(b: &mut Builder, tile: &Tile<'_>, number: Operand) -> Operand {
    let (tiles, rows) = (tile.problem.row_tiles(), tile.problem.plan.native.rows);
    if tiles.is_multiple_of(tile.shape.rows / rows) {
        return number;
    }
    b.binary(Binary::Min, number, tiles - 1)
}

impl Stage {
    fn word(&self, b: &mut Builder, tile: &Tile<'_>, part: u32, row_tile: u32) -> Reg {
        let rows = tile.problem.plan.native.rows / 2;
        let from = Address::new(self.block, self.scales).plus(part + row_tile * rows);
        b.load_as(Type::U32, from, Width::B32, None, Cache::Default)[0]
    }

    /// The scales of rows g and g + 8 of a tile.
    pub(super) fn scales(&self, b: &mut Builder, tile: &Tile<'_>, row_tile: u32) -> Reg {
        self.word(b, tile, self.parts.scales, row_tile)
    }

    /// Their zero points, if there are any.
    pub(super) fn zeros(&self, b: &mut Builder, tile: &Tile<'_>, row_tile: u32) -> Option<Reg> {
        tile.problem.zero.then(|| self.word(b, tile, self.parts.zeros, row_tile))
    }

    /// This lane's codes of a tile of rows.
    pub(super) fn codes(&self, b: &mut Builder, tile: &Tile<'_>, row_tile: u32) -> Vec<Reg> {
        let (chunks, words) = (tile.problem.group_chunks(), b.warp_size() * WORDS);
        let mut load = |chunk: u32| {
            let from = Address::new(self.block, self.codes);
            let from = from.plus(self.parts.codes + (row_tile * chunks + chunk) * words);
            b.load(from, Width::B128)
        };
        (0..chunks).flat_map(&mut load).collect()
    }

    /// B of a tile of tokens: two words for each step of the product.
    pub(super) fn x(&self, b: &mut Builder, tile: &Tile<'_>, token_tile: u32) -> Vec<Reg> {
        let (problem, shape) = (tile.problem, tile.shape);
        let mut all = Vec::new();
        for chunk in 0..problem.group_chunks() {
            let row = chunk * shape.tokens + token_tile * problem.token_tile();
            for at in self.x {
                let from = Address::new(self.block, at).plus(row * self.parts.row);
                all.extend(b.load(from, Width::B128));
            }
        }
        all
    }
}
