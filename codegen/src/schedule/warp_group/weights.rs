//! A consumer's weights: words from shared memory, dequantised to fragments of A.
//!
//! A plane of a chunk of a native tile is 16 bytes a lane, lane (g, t) of row g at number 4 g + t: 512 bytes, swizzled. `ldmatrix` takes the 16 bytes of lane (g, i) as row g of matrix i: the eight rows of a
//! matrix are in eight different places of a line, and register i of lane (g, t) is word t of lane (g, i), whose
//! columns are the t-th ones of a fragment whose x is in order. Codes of several words have one of each plane.
//!
//! Bytes are multiplied as they are stored (`byte_fragments`): the 16 bytes of a lane, without `ldmatrix`, or words of a row, two of each
//! plane.

use super::Block;
use super::consumer::multiplies_words;
use super::params::Params;
use super::shape::VECTOR_WORDS;
use super::stage::{LINE, StagedArray, Stages};
use crate::ir::{Address, Builder, Cache, Op, Operand, Reg, Swizzle, Type, Uniformity, Width};
use crate::schedule::byte_fragments::ByteFragments;
use crate::schedule::chunk::chunk_words;
use crate::schedule::dequantise::{ByRow, fragments};
use crate::schedule::mapping::MainLoop;
use crate::schedule::table::Table;

/// The rows of a warp: its native tiles are a warp group's warps apart, or those of a matrix.
pub(super) struct WarpRows {
    /// The number of the warp's group.
    pub(super) group: Operand,
    /// The number of the warp in its group.
    pub(super) warp: Operand,
    pub(super) lane: Operand,
    /// The warp's first native tile in the block.
    pub(super) first: Operand,
}

/// A warp's weights.
pub(super) struct Weights<'p, 's> {
    main: &'p MainLoop<'p>,
    codes: &'s StagedArray,
    /// The word of a stage that this lane gives to `ldmatrix`: of an even plane of a chunk, and of an odd one less the
    /// plane.
    at: [Operand; 2],
    /// Words of a plane, and the distances of a stage's chunks and of a warp's tiles of rows.
    plane: u32,
    chunk: u32,
    apart: u32,
    /// Per tile of rows and chunk, the words of this lane.
    words: Vec<Vec<Vec<Reg>>>,
    /// Whether a lane loads its own words, and not words that `ldmatrix` distributes.
    own_words: bool,
    /// Whether products read words as they are loaded.
    as_stored: bool,
    params: Params<'s>,
    table: Option<Table>,
}

impl<'p, 's> Weights<'p, 's> {
    pub(super) fn declare(
        b: &mut Builder,
        block: &Block<'p>,
        (stages, table): (&'s Stages, Option<Table>),
        rows: &WarpRows,
    ) -> Self {
        let main = block.main;
        let (chunk, chunks) = (chunk_words(main.problem), block.stage_chunks());
        let codes = &stages.codes;
        let words_of_lane = chunk / b.warp_size();
        let plane = VECTOR_WORDS * b.warp_size();
        let own_words = main.problem.input.fragments == Some(ByteFragments::Whole);
        let as_stored = multiplies_words(main, &block.tile);
        let vector = if own_words {
            b.comment("the 16 bytes of this lane");
            rows.lane
        } else {
            b.comment("the vector of 16 bytes that this lane gives to ldmatrix");
            let (row, matrix) = (b.rem(rows.lane, 8), b.div(rows.lane, 8));
            b.mad(row, 4u32, matrix)
        };
        let vector = b.mul(vector, VECTOR_WORDS);
        let at = b.mad(rows.first, chunk, vector);
        let odd = b.add(at, plane);
        let odd = swizzled(b, odd, codes.swizzle);
        let at = [swizzled(b, at, codes.swizzle), b.sub(odd, plane)];
        let mut array = |_| b.array("words", Type::U32, words_of_lane, Uniformity::Varying);
        let of_tile = |_| (0..chunks).map(&mut array).collect();
        let words = (0..block.tile.row_tiles).map(of_tile).collect();
        let params = Params::declare(b, block, stages, rows);
        let of_chunk = block.tiles_of_matrix() * chunk;
        let apart = match block.together() {
            1 => block.tiles_apart() * chunk,
            _ => chunks * of_chunk,
        };
        let chunk = of_chunk;
        Self { main, codes, at, plane, chunk, apart, words, own_words, as_stored, params, table }
    }

    /// Loads what the first stage, which has k-tile `start`, needs ahead.
    pub(super) fn begin(&self, b: &mut Builder, start: Operand) {
        self.params.begin(b, self.main, start);
    }

    /// Loads the words of a chunk of a stage; with the first chunk also the group parameters.
    pub(super) fn load(&self, b: &mut Builder, block: &Block<'_>, (stage, chunk): (Operand, u32)) {
        let first = self.codes.of_stage(b, stage);
        let at = self.at.map(|at| b.add(first.index, at));
        for (tile, words) in (0..).zip(&self.words) {
            let planes = words[chunk as usize].chunks(VECTOR_WORDS as usize);
            for ((plane, words), &at) in (0..).zip(planes).zip(at.iter().cycle()) {
                let from = Address { index: at, ..first };
                let from = from.plus(tile * self.apart + chunk * self.chunk + plane * self.plane);
                match self.own_words {
                    true => b.load_into(words, from, Width::B128, None, Cache::Default),
                    false => {
                        b.push(Op::MatrixLoad { dst: words.to_vec(), from, transpose: false });
                    }
                }
            }
        }
        if chunk == 0 {
            self.params.load(b, block, stage);
        }
    }

    /// What dequantisation applies to each tile of rows in the k-tile whose words are loaded.
    pub(super) fn by_row(&self, b: &mut Builder) -> Vec<ByRow> {
        (0..).zip(&self.words).map(|(tile, _)| self.params.by_row(b, self.main, tile)).collect()
    }

    /// Per segment of k-tile `number`, whose words are loaded, the scales of sums of the lane's rows. Called once
    /// for each k-tile, in order.
    pub(super) fn scales_of_sums(&self, b: &mut Builder, number: Operand) -> Vec<Vec<Operand>> {
        self.params.scales_of_sums(b, self.main, number)
    }

    /// Dequantises a chunk of a tile of rows; `each` gets the step and A of one fragment after another.
    pub(super) fn decode(
        &self,
        b: &mut Builder,
        (tile, chunk): (u32, u32),
        by_row: &mut ByRow,
        each: &mut dyn FnMut(&mut Builder, u32, Vec<Reg>),
    ) {
        let words = &self.words[tile as usize][chunk as usize];
        let steps = self.main.problem.plan.native.columns / self.main.step();
        let first = (chunk * steps) as usize;
        let mut number = first;
        if self.main.problem.input.fragments == Some(ByteFragments::Rows) {
            let (row, other) = words.split_at(words.len() / 2);
            for (two, others) in row.chunks(2).zip(other.chunks(2)) {
                let mut fragment = vec![two[0], others[0], two[1], others[1]];
                if !self.as_stored {
                    let copy = b.array("fragment", Type::U32, 4, Uniformity::Varying);
                    copy.iter().zip(&fragment).for_each(|(&copy, &word)| b.set(copy, word));
                    fragment = copy;
                }
                each(b, step_of(self.main, number as u32), fragment);
                number += 1;
            }
            return;
        }
        fragments(b, (self.main, self.table), words, (by_row, first), |b, a| {
            each(b, step_of(self.main, number as u32), a);
            number += 1;
        });
    }
}

/// The step of the product of fragment `number` of a stage. A unit of codes with several fragments, a word of each
/// plane, has columns that are as many steps apart as a lane has units.
pub(super) fn step_of(main: &MainLoop<'_>, number: u32) -> u32 {
    let steps = main.problem.plan.native.columns / main.step();
    let of_unit = (steps / VECTOR_WORDS).max(1);
    let (chunk, number) = (number / steps, number % steps);
    chunk * steps + number / of_unit + number % of_unit * (steps / of_unit)
}

/// The word of swizzled memory at which the word of plain memory is; both count from where the swizzle begins anew.
pub(super) fn swizzled(b: &mut Builder, word: Operand, swizzle: Swizzle) -> Operand {
    // Vectors of 16 bytes change places with the number of the 128 bytes that they are in.
    let places = match swizzle {
        Swizzle::None => return word,
        Swizzle::B32 => 2,
        Swizzle::B64 => 4,
        Swizzle::B128 => 8,
    };
    let line = b.div(word, LINE);
    let line = b.rem(line, places);
    let vector = b.mul(line, VECTOR_WORDS);
    b.xor(word, vector)
}
