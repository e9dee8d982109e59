//! x on its way: each warp's ring of groups in shared memory.
//!
//! A stage holds one group of columns of all tokens, `[token][chunk of 64 columns][piece]`, a piece
//! being 8 columns (16 bytes); piece p of token r of a chunk lies at place p ^ (r % 8), so that the
//! eight rows that a matrix load reads at once lie in different banks. Lane l copies, and later
//! addresses, token l % 8 and pieces l / 8, l / 8 + 4, and so on. Rows that no token fills are
//! read from a piece of zeros.

use super::{Decode, TOKEN_TILE};
use crate::ir::{Address, Builder, Op, Operand, Reg, SharedId, Type, Uniformity, Width, Word};

/// Columns of a row that the swizzle permutes: 128 bytes.
const SWIZZLED: u32 = 64;
/// Columns of a piece: 16 bytes.
const PIECE: u32 = 8;
/// Pieces that the lanes of a warp cover at once, of eight rows.
const PIECES: u32 = 4;

pub(super) struct Ring {
    pub(super) block: SharedId,
    /// Where the zeros lie, behind the rings, in words.
    zeros: u32,
    /// Words of a stage.
    stage: u32,
    /// Where the stage to be read lies in the warp's ring, in words.
    read: Reg,
    /// Whether this lane's row can hold a token: `None` if all can.
    held: Option<Operand>,
    /// Per tile of tokens, whether this lane's row is one of x.
    rows: Vec<Operand>,
    /// Where this lane's first piece lies in stage 0, or the zeros. It is a multiple of 64 words but
    /// for the piece's place, so that the piece four further on is at this place ^ 32.
    place: Operand,
    /// This lane's row of x and its first column: word of x.
    source: Operand,
    /// The lane's first column of a group, where K ends inside of a group.
    column: Operand,
}

/// A group of x that has arrived.
pub(super) struct Stage {
    block: SharedId,
    /// Where this lane's pieces lie: those of even and of odd fours.
    at: [Operand; 2],
    group: u32,
}

impl Ring {
    pub(super) fn declare(b: &mut Builder, decode: &Decode<'_>) -> Self {
        let (tile, problem) = (decode.tile, decode.problem);
        let stage = tile.tokens * problem.group;
        let rings = tile.warps * tile.stages * stage;
        // Sums lie over the rings at the end.
        let sums = 2 * tile.warps * tile.tokens * super::epilogue::pitch(tile.row_tiles);
        let zeros = rings.max(sums).next_multiple_of(SWIZZLED);
        let layout = format!(
            "per warp, {} stages of [token, k in {}] of x, 16-byte pieces swizzled",
            tile.stages, problem.group
        );
        let block = b.shared_block("ring", Word::U16, zeros + problem.group, &layout, 128, None);
        b.comment("x: this lane's row of tokens, its pieces of a group, its zeros");
        let row = b.and(decode.lane, TOKEN_TILE - 1);
        let piece = b.shr(decode.lane, TOKEN_TILE.trailing_zeros());
        let base = b.mul(decode.warp, tile.stages * stage);
        let base = b.mad(row, problem.group, base);
        let swizzled = b.xor(piece, row);
        let place = b.mad(swizzled, PIECE, base);
        let held = (tile.tokens < TOKEN_TILE).then(|| b.less(row, tile.tokens));
        let place = match held {
            None => place,
            Some(held) => b.select(held, place, zeros),
        };
        let rows = (0..decode.token_tiles()).map(|token| {
            let row = b.add(row, token * TOKEN_TILE);
            b.less(row, decode.m)
        });
        let rows = rows.collect();
        let column = b.mul(piece, PIECE);
        let source = b.mad(row, problem.k, column);
        let read = b.variable("read", Type::U32, Uniformity::Warp);
        b.set(read, 0u32);
        Self { block, zeros, stage, read, held, rows, place, source, column }
    }

    /// Writes the zeros, once a block.
    fn write_zeros(&self, b: &mut Builder, decode: &Decode<'_>) {
        let first = b.equal(decode.warp, 0u32);
        let at = b.mul(decode.lane, PIECE);
        let zeros = b.less(at, decode.problem.group);
        b.when(first, |b| {
            let to = Address::new(self.block, at).plus(self.zeros);
            b.store(to, &[Operand::U32(0); 4], Width::B128, Some(zeros));
        });
        b.barrier();
    }

    /// Starts the copies of all stages but one.
    pub(super) fn fill(&self, b: &mut Builder, decode: &Decode<'_>, start: Operand, end: Operand) {
        if self.held.is_some() {
            self.write_zeros(b, decode);
        }
        for ahead in 0..decode.tile.stages - 1 {
            let group = b.add(start, ahead);
            self.copy(b, decode, (group, end), (ahead * self.stage).into());
        }
    }

    /// Waits for a group of x, starts the copy of one that comes later.
    pub(super) fn next(
        &self,
        b: &mut Builder,
        decode: &Decode<'_>,
        group: Operand,
        end: Operand,
    ) -> Stage {
        let stages = decode.tile.stages;
        let ring = stages * self.stage;
        b.push(Op::CopyWait { pending: stages - 2 });
        // All lanes' copies are there, and all have read the stage before, which is filled next.
        b.push(Op::WarpSync);
        let later = b.add(group, stages - 1);
        let before = b.add(self.read, ring - self.stage);
        let before = b.and(before, ring - 1);
        self.copy(b, decode, (later, end), before);
        let shift = match self.held {
            None => self.read.into(),
            Some(held) => b.select(held, self.read, 0u32),
        };
        let even = b.add(self.place, shift);
        let odd = b.xor(even, PIECES * PIECE);
        let next = b.add(self.read, self.stage);
        let next = b.and(next, ring - 1);
        b.set(self.read, next);
        Stage { block: self.block, at: [even, odd], group: decode.problem.group }
    }

    /// Copies one group of x, if it is one of this warp's; a group of copies in any case.
    fn copy(
        &self,
        b: &mut Builder,
        decode: &Decode<'_>,
        (group, end): (Operand, Operand),
        stage: Operand,
    ) {
        let problem = decode.problem;
        let there = b.less(group, end);
        let there = match self.held {
            Some(held) => b.both(there, held),
            None => there,
        };
        b.when(there, |b| {
            let first = b.mad(group, problem.group, self.source);
            let column = b.mad(group, problem.group, self.column);
            let even = b.add(self.place, stage);
            let to = [even, b.xor(even, PIECES * PIECE)];
            for (token, row_is) in (0..).zip(&self.rows) {
                for quad in 0..problem.group / (PIECES * PIECE) {
                    let offset = quad * PIECES * PIECE;
                    let here = token * TOKEN_TILE * problem.group + offset / SWIZZLED * SWIZZLED;
                    let mask = if problem.k.is_multiple_of(problem.group) {
                        *row_is
                    } else {
                        let column = b.add(column, offset);
                        let column_is = b.less(column, problem.k);
                        b.both(*row_is, column_is)
                    };
                    let to = Address::new(self.block, to[quad as usize % 2]).plus(here);
                    let from = Address::new(decode.io.x, first);
                    let from = from.plus(token * TOKEN_TILE * problem.k + offset);
                    b.copy_async(to, from, Width::B128, Some(mask));
                }
            }
        });
        b.push(Op::CopyCommit);
    }
}

impl Stage {
    /// B of one chunk, per tile of tokens and step of 16 columns: registers k 0..8 and 8..16.
    pub(super) fn fragments(
        &self,
        b: &mut Builder,
        decode: &Decode<'_>,
        chunk: u32,
    ) -> Vec<Vec<Vec<Reg>>> {
        let columns = decode.problem.plan.native.columns;
        let quads = columns / (PIECES * PIECE);
        let mut load = |token: u32| {
            let quads = (0..quads).map(|quad| {
                let offset = chunk * columns + quad * PIECES * PIECE;
                let parity = offset / (PIECES * PIECE) % 2;
                let here = token * TOKEN_TILE * self.group + offset / SWIZZLED * SWIZZLED;
                let from = Address::new(self.block, self.at[parity as usize]).plus(here);
                b.load_matrix(from, 4, false)
            });
            quads.flat_map(|regs| [regs[..2].to_vec(), regs[2..].to_vec()]).collect()
        };
        (0..decode.token_tiles()).map(&mut load).collect()
    }
}
