//! A consumer's words of codes, from shared memory.
//!
//! A plane of a chunk of a native tile is 16 bytes a lane, lane (g, t) of row g at number 4 g + t: 512 bytes, swizzled. `ldmatrix` takes
//! the 16 bytes of lane (g, i) as row g of matrix i: the eight rows of a matrix are in eight different places of a line, and register i of
//! lane (g, t) is word t of lane (g, i), whose columns are the t-th ones of a fragment whose x is in order. Codes of several words have
//! one of each plane.
//!
//! Codes of 3, 5, 6 and 7 bits have narrower planes too, of w = 1 or 2 words a lane, in the order of planes of 16 bytes
//! (`plan::templates`): a word is four parts of such words, w of them, and so is each of its bytes. Of lane (g, i), i = 0, 1, 2, 3,
//! lane (g, t) needs what goes with word t: part `t mod 4/w` of each byte of word `t w/4`. The lane loads these four words
//! itself, and moves the parts to where those of word i are: into part `i mod 4/w` of word `i w/4`. The result is w words of a unit like those of
//! the planes of 16 bytes. Such a plane is not swizzled: four lanes read one vector of 128 contiguous bytes of eight rows, or pairs of
//! lanes one word of 256 bytes, in two rounds.
//!
//! Bytes are multiplied as they are stored (`byte_fragments`): the 16 bytes of a lane, without `ldmatrix`, or words of a row, two of each
//! plane.

use std::ops::Range;

use super::Block;
use super::shape::VECTOR_WORDS;
use super::stage::{LINE, StagedPlanes};
use super::weights::WarpRows;
use crate::ir::{
    Address, Builder, Cache, Op, Operand, Reg, Swizzle, Ternary, Type, Uniformity, Width,
};
use crate::schedule::byte_fragments::ByteFragments;

/// Per tile of rows and chunk, the words of a lane.
type LaneWords = Vec<Vec<Vec<Reg>>>;

/// The words of a lane in one array of planes.
pub(super) struct Planes<'s> {
    staged: &'s StagedPlanes,
    /// The distances of a stage's chunks and of a warp's tiles of rows, in words.
    chunk: u32,
    apart: u32,
    /// Whether words are loaded when they are joined, and not ahead: threads with sums of two tiles of rows and of a segment have no
    /// registers for what waits. (Those of one tile have, and are 2 to 5% faster ahead.)
    when_joined: bool,
    /// As they are loaded.
    words: LaneWords,
    home: Home,
}

/// Where a lane's words are in a stage.
enum Home {
    /// In planes of 16 bytes a lane.
    Vectors {
        /// The word of a stage that this lane loads or gives to `ldmatrix`: of an even plane of a chunk, and of an odd one less
        /// the plane.
        at: [Operand; 2],
        /// Words of a plane.
        plane: u32,
        /// Whether a lane loads its own words, and not words that `ldmatrix` distributes.
        own_words: bool,
    },
    /// In a narrower plane.
    Parts {
        /// The word of a stage that is the lane's of lane (g, 0).
        at: Operand,
        /// Words of a lane in the plane: 1 or 2.
        of_lane: u32,
        /// By how many bits words are rotated to the left for each part that theirs becomes.
        moves: Vec<Operand>,
    },
}

impl<'s> Planes<'s> {
    pub(super) fn declare(
        b: &mut Builder,
        block: &Block<'_>,
        staged: &'s StagedPlanes,
        rows: &WarpRows,
    ) -> Self {
        let (of_lane, words_of_chunk) = (staged.of_lane, staged.words);
        let (chunks, lanes) = (block.stage_chunks(), b.warp_size());
        let (home, words_of_lane) = if of_lane == VECTOR_WORDS {
            (vectors(b, block, staged, rows), words_of_chunk / lanes)
        } else {
            (parts(b, staged, rows), VECTOR_WORDS)
        };
        let when_joined = of_lane < VECTOR_WORDS
            && block.main.problem.joins_to_bytes()
            && block.tile.row_tiles > 1;
        let mut array = |_| b.array("words", Type::U32, words_of_lane, Uniformity::Varying);
        let of_tile = |_| (0..chunks).map(&mut array).collect();
        let words = (0..block.tile.row_tiles).map(of_tile).collect();
        let chunk = block.tiles_of_matrix() * words_of_chunk;
        let apart = match block.together() {
            1 => block.tiles_apart() * words_of_chunk,
            _ => chunks * chunk,
        };
        Self { staged, chunk, apart, when_joined, words, home }
    }

    /// Loads the words of a chunk of a stage, unless they are loaded when they are joined.
    pub(super) fn load(&self, b: &mut Builder, of: (Operand, u32)) {
        if !self.when_joined {
            self.load_tiles(b, of, 0..self.words.len() as u32);
        }
    }

    /// Loads the words of a chunk of a stage, of some tiles of rows.
    fn load_tiles(&self, b: &mut Builder, (stage, chunk): (Operand, u32), tiles: Range<u32>) {
        let first = self.staged.array.of_stage(b, stage);
        let of_tile = |tile: u32| tile * self.apart + chunk * self.chunk;
        let words = tiles.map(|tile| (tile, &self.words[tile as usize][chunk as usize]));
        match &self.home {
            Home::Vectors { at, plane, own_words } => {
                let at = at.map(|at| b.add(first.index, at));
                for (tile, words) in words {
                    let planes = words.chunks(VECTOR_WORDS as usize);
                    for ((number, words), &at) in (0..).zip(planes).zip(at.iter().cycle()) {
                        let from = Address { index: at, ..first };
                        let from = from.plus(of_tile(tile) + number * plane);
                        match own_words {
                            true => b.load_into(words, from, Width::B128, None, Cache::Default),
                            false => b.push(Op::MatrixLoad {
                                dst: words.to_vec(),
                                from,
                                transpose: false,
                            }),
                        }
                    }
                }
            }
            Home::Parts { at, of_lane, .. } => {
                let first = Address { index: b.add(first.index, *at), ..first };
                for (tile, words) in words {
                    let from = first.plus(of_tile(tile));
                    if *of_lane == 1 {
                        b.load_into(words, from, Width::B128, None, Cache::Default);
                        continue;
                    }
                    for (lane, word) in (0..).zip(words.chunks(1)) {
                        let from = from.plus(lane * of_lane);
                        b.load_into(word, from, Width::B32, None, Cache::Default);
                    }
                }
            }
        }
    }

    /// The words of a chunk of a stage and tile of rows, which is loaded: those of a unit of codes, or of each plane after another.
    pub(super) fn words(
        &self,
        b: &mut Builder,
        stage: Operand,
        (tile, chunk): (u32, u32),
    ) -> Vec<Reg> {
        if self.when_joined {
            self.load_tiles(b, (stage, chunk), tile..tile + 1);
        }
        let words = &self.words[tile as usize][chunk as usize];
        match &self.home {
            Home::Vectors { .. } => words.clone(),
            Home::Parts { moves, .. } => {
                words.chunks(moves.len()).map(|words| joined(b, words, moves)).collect()
            }
        }
    }
}

/// Planes of 16 bytes a lane.
fn vectors(b: &mut Builder, block: &Block<'_>, staged: &StagedPlanes, rows: &WarpRows) -> Home {
    let own_words = block.main.problem.input.fragments == Some(ByteFragments::Whole);
    let plane = VECTOR_WORDS * b.warp_size();
    let vector = if own_words {
        b.comment("the 16 bytes of this lane");
        rows.lane
    } else {
        b.comment("the vector of 16 bytes that this lane gives to ldmatrix");
        let (row, matrix) = (b.rem(rows.lane, 8), b.div(rows.lane, 8));
        b.mad(row, 4u32, matrix)
    };
    let vector = b.mul(vector, VECTOR_WORDS);
    let at = b.mad(rows.first, staged.words, vector);
    let odd = b.add(at, plane);
    let swizzle = staged.array.swizzle;
    let odd = swizzled(b, odd, swizzle);
    let at = [swizzled(b, at, swizzle), b.sub(odd, plane)];
    Home::Vectors { at, plane, own_words }
}

/// A plane of 1 or 2 words a lane.
fn parts(b: &mut Builder, staged: &StagedPlanes, rows: &WarpRows) -> Home {
    let of_lane = staged.of_lane;
    // Parts of a byte, and their bits.
    let (count, bits) = (VECTOR_WORDS / of_lane, 8 * of_lane / VECTOR_WORDS);
    b.comment("this lane's parts of the words of the lanes of its row");
    let (row, number) = (b.div(rows.lane, 4), b.rem(rows.lane, 4));
    let (word, part) = (b.div(number, count), b.rem(number, count));
    let of_row = b.mad(row, 4 * of_lane, word);
    let at = b.mad(rows.first, staged.words, of_row);
    let from = b.mul(part, bits);
    let mut moved = |to: u32| {
        let by = b.sub(32 + to * bits, from);
        b.rem(by, 32)
    };
    let moves = (0..count).map(&mut moved).collect();
    Home::Parts { at, of_lane, moves }
}

/// The word whose parts are, in order, those that words have after their moves.
fn joined(b: &mut Builder, words: &[Reg], moves: &[Operand]) -> Reg {
    /// `c ? a : b`, bit by bit.
    const CHOOSE: u8 = 0xe4;
    let bits = 8 / moves.len() as u32;
    let mut all = None;
    for ((part, &word), &by) in (0..).zip(words).zip(moves) {
        let own = b.ternary(Ternary::FunnelLeft, word, word, by);
        let below = ((1u32 << (part * bits)) - 1) * 0x0101_0101;
        all = Some(match all {
            None => own,
            Some(all) => b.ternary(Ternary::Lop3(CHOOSE), all, own, below),
        });
    }
    crate::schedule::dequantise::in_register(b, all.unwrap_or(Operand::U32(0)))
}

/// The word of swizzled memory at which the word of plain memory is; both count from where the swizzle begins anew.
fn swizzled(b: &mut Builder, word: Operand, swizzle: Swizzle) -> Operand {
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
