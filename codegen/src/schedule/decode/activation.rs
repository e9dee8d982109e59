//! x straight from memory: the columns that a lane meets are neighbours in the native layout, so a
//! lane reads its part of a token's chunk by 16-byte loads, and those words in order are B.
//!
//! A lane beyond the last token reads that one again: a column of D depends on its own column of B
//! alone, and what nobody asked for is not stored.

use super::{Decode, masked};
use crate::ir::{Address, Binary, Builder, Cache, Operand, Reg, Type, Uniformity, Width};

/// Columns of a 16-byte load.
const PIECE: u32 = 8;

/// Where a lane reads x.
pub(super) struct Activation {
    /// The lane's first column of a chunk.
    column: Operand,
    /// Per tile of tokens, the word of x there in the lane's row.
    sources: Vec<Operand>,
}

impl Activation {
    pub(super) fn place(b: &mut Builder, decode: &Decode<'_>) -> Self {
        let problem = decode.problem;
        b.comment("x: this lane's row of tokens, its columns of a chunk");
        let row = b.div(decode.lane, problem.row_lanes());
        let column = b.rem(decode.lane, problem.row_lanes());
        let column = b.mul(column, problem.lane_columns());
        let last = b.sub(decode.m, 1u32);
        let sources = (0..decode.token_tiles()).map(|tile| {
            let row = b.add(row, tile * problem.token_tile());
            let row = b.binary(Binary::Min, row, last);
            b.mad(row, problem.k, column)
        });
        Self { sources: sources.collect(), column }
    }

    /// Registers for a group of x: per tile of tokens the words of B, two for each step of the
    /// product.
    pub(super) fn in_flight(b: &mut Builder, decode: &Decode<'_>) -> Vec<Vec<Reg>> {
        let words = decode.problem.group / decode.problem.row_lanes() / 2;
        let tile = |_| b.array("x", Type::U32, words, Uniformity::Varying);
        (0..decode.token_tiles()).map(tile).collect()
    }

    /// Loads a group of x, zeros where there is no column or no such group.
    pub(super) fn load(
        &self,
        b: &mut Builder,
        decode: &Decode<'_>,
        words: &[Vec<Reg>],
        group: Operand,
        there: Operand,
    ) {
        let problem = decode.problem;
        // The last group may end inside of a lane's columns, at a multiple of a piece.
        let ragged = !problem.k.is_multiple_of(problem.group);
        let column = ragged.then(|| b.mad(group, problem.group, self.column));
        let chunks = (0..problem.group_chunks()).map(|chunk| chunk * problem.plan.native.columns);
        let pieces = (0..problem.lane_columns()).step_by(PIECE as usize);
        let offsets: Vec<u32> =
            chunks.flat_map(|chunk| pieces.clone().map(move |piece| chunk + piece)).collect();
        let firsts: Vec<Operand> =
            self.sources.iter().map(|source| b.mad(group, problem.group, *source)).collect();
        for (piece, offset) in offsets.into_iter().enumerate() {
            let mask = column.map_or(there, |column| {
                let column = b.add(column, offset);
                let column_is = b.less(column, problem.k);
                b.both(there, column_is)
            });
            for (first, words) in firsts.iter().zip(words) {
                let from = Address::new(decode.io.x, *first).plus(offset);
                let dst = &words[4 * piece..4 * piece + 4];
                b.load_into(dst, from, Width::B128, masked(mask), Cache::Default);
            }
        }
    }
}
