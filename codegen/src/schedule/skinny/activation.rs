//! x from global memory to registers: the columns of a lane are adjacent in the native layout, so a lane
//! loads its part of a token's segment as vectors of 8 or 16 bytes, and these words in order are B. Scales
//! of x that change along K are loaded in the same way.
//!
//! A lane without a token reads the row of another token again: a column of D depends on its own column of B
//! only, and columns without a token are not stored.

use super::own_operand::OwnOperand;
use super::{Skinny, masked};
use crate::ir::{Address, Builder, Cache, MatrixScale, Operand, Reg, Space, Type, Uniformity};
use crate::schedule::chunk::width;
use crate::schedule::dequantise::in_register;

/// Where a lane reads x.
pub(super) struct Activation {
    /// The array of its rows, and of their scales along K.
    array: Space,
    scale_array: Option<Space>,
    /// Words of a row of x before the lane's first column.
    column: Operand,
    /// Per tile of tokens, the first word of the lane's token.
    sources: Vec<Operand>,
    /// Per tile of tokens, the first scale of each of the lane's columns of D, or the first word of
    /// scale codes of the lane's token.
    scales: Vec<Vec<Operand>>,
    /// The first bit of the lane's scale codes in such a word.
    block: Option<Operand>,
    /// Whether the lane holds the columns of each of its groups, if columns of D have groups.
    holds: Option<[Operand; 2]>,
}

/// The registers for one k-tile of x, filled by loads in flight.
pub(super) struct InFlight {
    /// Per tile of tokens, the words of B, step by step.
    pub(super) x: Vec<Vec<Reg>>,
    /// Per tile of tokens, the scales of the lane's tokens.
    scales: Vec<Vec<Vec<Reg>>>,
}

impl Activation {
    /// In shared memory, if the block makes the operand itself.
    pub(super) fn place(
        b: &mut Builder,
        skinny: &Skinny<'_>,
        own: Option<&OwnOperand<'_>>,
    ) -> Self {
        let array = own.map_or(skinny.io.x.into(), |own| own.elements.into());
        let of_buffer = skinny.io.x_scale.map(Space::from);
        let scale_array = own.map_or(of_buffer, |own| own.scales.map(Space::from));
        let main = skinny.main;
        b.comment("x: this lane's row of tokens, its columns of a run");
        let of_groups = skinny.groups.map(|groups| groups.of_b(b, skinny));
        let row = match &of_groups {
            Some(of) => of.row,
            None => skinny.x_fragment.token.of(b, skinny.lane),
        };
        let holds = of_groups.map(|of| of.holds);
        let in_row = skinny.x_fragment.part.of(b, skinny.lane);
        let column = b.mul(in_row, main.problem.input.words(main.lane_columns()));
        let readable = match own {
            Some(_) => None,
            None => {
                let tokens = skinny.token_tiles() * main.token_tile();
                Some(skinny.place.rows.readable(b, tokens))
            }
        };
        // The row of a token; there is one, if the block makes the operand.
        let row_of = |b: &mut Builder, token: Operand| match (own, readable) {
            (Some(own), _) => own.row,
            (None, Some(readable)) => {
                let number = skinny.place.rows.number(b, token);
                readable.row(b, number)
            }
            (None, None) => token,
        };
        let sources = (0..skinny.token_tiles()).map(|tile| {
            let token = b.add(row, tile * main.token_tile());
            let row = row_of(b, token);
            b.mad(row, main.problem.input.words(main.problem.input.columns), column)
        });
        let sources = sources.collect();
        let groups = main.problem.input.groups().filter(|_| columns_of_scales(skinny).is_some());
        let scales = groups
            .into_iter()
            .flat_map(|groups| (0..skinny.token_tiles()).map(move |tile| (groups, tile)));
        let scales = scales.map(|(groups, tile)| {
            let scaled = main.scaled();
            let first = scaled.map_or(&main.lanes().d.token, |scaled| &scaled.token);
            let first = first.of(b, skinny.lane);
            let of_token = |token: &u32| {
                let token = b.add(first, tile * main.token_tile() + token);
                let row = row_of(b, token);
                b.mul(row, groups)
            };
            let tokens = if scaled.is_some() { &[0][..] } else { &main.lanes().d.tokens };
            tokens.iter().map(of_token).collect()
        });
        let scales = scales.collect();
        let block = main.scaled().map(|scaled| {
            let block = scaled.block.of(b, skinny.lane);
            b.mul(block, 8u32)
        });
        Self { array, scale_array, scales, sources, column, block, holds }
    }

    /// Registers for a k-tile of x.
    pub(super) fn in_flight(&self, b: &mut Builder, skinny: &Skinny<'_>) -> InFlight {
        let main = skinny.main;
        let words = main.problem.input.bytes(main.k_tile() / main.row_lanes()) / 4;
        let tile = |_| b.array("x", Type::U32, words, Uniformity::Varying);
        let x = (0..skinny.token_tiles()).map(tile).collect();
        let scales = self.scales.iter().map(|tokens| {
            let scales = columns_of_scales(skinny).map_or(0, |columns| of_k_tile(skinny, columns));
            let ty = if self.block.is_some() { Type::U32 } else { Type::F32 };
            let of_token = |_| b.array("x_scales", ty, scales, Uniformity::Varying);
            tokens.iter().map(of_token).collect()
        });
        InFlight { x, scales: scales.collect() }
    }

    /// Loads a k-tile of x; zeros for missing columns or a missing k-tile.
    pub(super) fn load(
        &self,
        b: &mut Builder,
        skinny: &Skinny<'_>,
        words: &InFlight,
        k_tile: Operand,
        there: Operand,
    ) {
        let main = skinny.main;
        // The last k-tile may end within a lane's columns, at a multiple of a vector.
        let ragged = !main.problem.input.columns.is_multiple_of(main.k_tile());
        // From here on in words of x.
        let of = |columns| main.problem.input.words(columns);
        let k_tile_words = of(main.k_tile());
        let column = ragged.then(|| b.mad(k_tile, k_tile_words, self.column));
        let vector_words = (main.problem.input.bytes(main.lane_columns()) / 4).min(4);
        let vector_columns = vector_words * 4 / main.problem.input.word().bytes();
        let segment_starts = (0..k_tile_words).step_by(of(main.shared_columns()) as usize);
        let vectors = (0..of(main.lane_columns())).step_by(vector_columns as usize);
        let offsets: Vec<(usize, u32)> = segment_starts
            .enumerate()
            .flat_map(|(part, first)| vectors.clone().map(move |vector| (part, first + vector)))
            .collect();
        let firsts: Vec<Operand> =
            self.sources.iter().map(|source| b.mad(k_tile, k_tile_words, *source)).collect();
        for (vector, (part, offset)) in offsets.into_iter().enumerate() {
            let mask = column.map_or(there, |column| {
                let column = b.add(column, offset);
                let column_is = b.less(column, of(main.problem.input.columns));
                b.both(there, column_is)
            });
            // Half of a k-tile has one group of each lane.
            let mask = self.holds.map_or(mask, |holds| b.both(mask, holds[part]));
            for (first, words) in firsts.iter().zip(&words.x) {
                let from = Address::new(self.array, *first).plus(offset);
                let own = vector_words as usize;
                let dst = &words[own * vector..own * (vector + 1)];
                b.load_into(dst, from, width(vector_words), masked(mask), Cache::Default);
            }
        }
        let (Some(columns), Some(array)) = (columns_of_scales(skinny), self.scale_array) else {
            return;
        };
        let group = b.div(k_tile, (columns / main.k_tile()).max(1));
        for (firsts, words) in self.scales.iter().zip(&words.scales) {
            for (first, words) in firsts.iter().zip(words) {
                let at = b.mad(group, of_k_tile(skinny, columns), *first);
                for (vector, words) in (0..).zip(words.chunks(4)) {
                    let from = Address::new(array, at).plus(vector * 4);
                    let mask = if self.block.is_some() { masked(there) } else { masked_f32(there) };
                    b.load_into(words, from, width(words.len() as u32), mask, Cache::Default);
                }
            }
        }
    }

    /// The scales of x of a tile of tokens for each step of a k-tile, for an instruction that scales;
    /// otherwise none.
    pub(super) fn codes(
        &self,
        b: &mut Builder,
        skinny: &Skinny<'_>,
        words: &InFlight,
        tile: usize,
    ) -> Vec<MatrixScale> {
        let (Some(block), Some(words)) = (self.block, words.scales.get(tile)) else {
            return Vec::new();
        };
        let own = |&word: &Reg| {
            let own = b.shr(word, block);
            in_register(b, own)
        };
        let words: Vec<Reg> = words.iter().flatten().map(own).collect();
        let of_step = |step| {
            let (word, byte) = skinny.main.scaled()?.of_step(step);
            Some(MatrixScale { from: *words.get(word as usize)?, byte })
        };
        (0..skinny.main.k_tile() / skinny.main.step()).map_while(of_step).collect()
    }

    /// The scales of this lane's tokens of a tile in a segment.
    pub(super) fn scales(
        &self,
        skinny: &Skinny<'_>,
        words: &InFlight,
        tile: usize,
        segment: u32,
    ) -> Option<Vec<Operand>> {
        let (columns, main) = (columns_of_scales(skinny)?, skinny.main);
        if self.block.is_some() {
            return None;
        }
        let group = segment * main.segment() / columns.min(main.k_tile());
        let tokens = words.scales.get(tile)?;
        Some(tokens.iter().map(|scales| scales[group as usize].into()).collect())
    }
}

/// Columns that share a scale of x; `None` if scales do not change along K.
fn columns_of_scales(skinny: &Skinny<'_>) -> Option<u32> {
    skinny.main.problem.input.scale?.columns()
}

/// Scales of a row of x in a k-tile.
fn of_k_tile(skinny: &Skinny<'_>, columns: u32) -> u32 {
    (skinny.main.k_tile() / columns).max(1)
}

fn masked_f32(there: Operand) -> Option<crate::ir::Mask> {
    (there != Operand::Pred(true))
        .then_some(crate::ir::Mask { condition: there, fill: Operand::F32(0.0) })
}
