//! The weights of a lane: where codes and group parameters are, and their loads into registers.

use super::SkinnyTile;
use super::params::LaneParams;
use crate::ir::{Address, Binary, BufferId, Builder, Cache, Mask, Operand, Reg, Type, Uniformity};
use crate::schedule::buffers::ProductBuffers;
use crate::schedule::chunk::{chunk_words, loads, planes, tile_words, width};
use crate::schedule::mapping::MainLoop;
use crate::schedule::stack::Matrix;

/// Where a lane reads the weights of its block's rows.
pub(super) struct LaneWeights<'p> {
    main: &'p MainLoop<'p>,
    tile: SkinnyTile,
    codes_buffer: BufferId,
    /// Per tile of rows, the lane's first word of codes of each plane.
    codes: Vec<Vec<Operand>>,
    /// The group parameters that the product has: scales, zero points, corrections.
    pub(super) params: Vec<LaneParams>,
}

/// The registers for one k-tile, filled by loads in flight.
pub(super) struct InFlight {
    /// Per tile and chunk, the codes, plane by plane.
    pub(super) codes: Vec<Vec<Vec<Reg>>>,
    /// Per group parameter and tile, the words of its values.
    pub(super) params: Vec<Vec<Vec<Reg>>>,
}

impl<'p> LaneWeights<'p> {
    /// Computes where this lane's codes and group parameters of each tile begin. The distance of
    /// consecutive tiles of one matrix is a constant; in a ragged last block, tiles beyond the last are
    /// computed again and not stored.
    pub(super) fn place(
        b: &mut Builder,
        (main, tile): (&'p MainLoop<'p>, SkinnyTile),
        (io, lane): (&ProductBuffers, Operand),
        (block, matrix): (Operand, Matrix),
    ) -> Self {
        let first = b.mul(block, tile.row_tiles);
        let ragged = !main.problem.grid_row_tiles().is_multiple_of(tile.row_tiles);
        b.comment("this lane's codes, and the numbers of its rows");
        let apart = ragged || matrix.together > 1;
        let tiles = if apart { tile.row_tiles } else { 1 };
        let numbers = (0..tiles).map(|r| {
            let number = b.add(first, r);
            let (number, matrix) = matrix.tile(b, number);
            let number = if ragged {
                b.binary(Binary::Min, number, main.problem.row_tiles() - 1)
            } else {
                number
            };
            (number, matrix)
        });
        let numbers: Vec<(Operand, Matrix)> = numbers.collect();
        let holder = main.lanes().a.holder.of(b, lane);
        let lanes = planes(main.problem).map(|(_, words)| b.mul(holder, words));
        let lanes: Vec<Operand> = lanes.collect();
        let matrix_words = tile_words(main.problem) * main.problem.row_tiles();
        let place = |(number, matrix): &(Operand, Matrix)| {
            let matrix = matrix.first_word(b, matrix_words);
            let place = |lane: &Operand| {
                let word = b.mad(*number, tile_words(main.problem), *lane);
                b.add(word, matrix)
            };
            lanes.iter().map(place).collect()
        };
        let codes = numbers.iter().map(place).collect();
        let mut params = Vec::new();
        for (of, buffer) in io.group_params(main.problem) {
            let own = of.lane_word(b, main, lane);
            // Tiles that share a number have no constant distance.
            let further = if of.rows > 1 && !apart { tile.row_tiles } else { 1 };
            let tiles = numbers.iter().flat_map(|&number| (0..further).map(move |r| (number, r)));
            let tiles = tiles.map(|((number, matrix), r)| {
                let number = b.add(number, r);
                let word = of.tile_word(b, main.problem, number);
                let word = b.add(word, own);
                let matrix = matrix.first_word(b, of.matrix_words(main.problem));
                b.add(word, matrix)
            });
            let tiles = tiles.collect();
            let shift = of.lane_shift(b, main, lane);
            params.push(LaneParams { of, buffer, tiles, shift });
        }
        Self { main, tile, codes_buffer: io.codes, codes, params }
    }

    /// The same weights of the matrix so many further in the stack.
    pub(super) fn further(self, b: &mut Builder, matrices: Operand) -> Self {
        let problem = &self.main.problem;
        let words = tile_words(problem) * problem.row_tiles();
        let mut move_on = |words: u32, start: Operand| b.mad(matrices, words, start);
        let codes = self.codes.into_iter();
        let codes = codes.map(|planes| planes.into_iter().map(|at| move_on(words, at)).collect());
        let codes = codes.collect();
        let params = self.params.into_iter().map(|LaneParams { of, buffer, tiles, shift }| {
            let words = of.matrix_words(problem);
            let tiles = tiles.into_iter().map(|at| move_on(words, at)).collect();
            LaneParams { of, buffer, tiles, shift }
        });
        let params = params.collect();
        Self { codes, params, ..self }
    }

    /// The start of a tile, and the constant offset from there.
    pub(super) fn tile_start<T: Copy>(starts: &[T], tile: usize, apart: u32) -> (T, u32) {
        match starts {
            [first] => (*first, tile as u32 * apart),
            starts => (starts[tile], 0),
        }
    }

    /// Registers for a k-tile.
    pub(super) fn in_flight(&self, b: &mut Builder) -> InFlight {
        let (tiles, chunks) = (self.tile.row_tiles, self.main.k_tile_chunks());
        let words = self.main.problem.lane_words();
        let codes = |b: &mut Builder| b.array("codes", Type::U32, words, Uniformity::Varying);
        let codes = (0..tiles).map(|_| (0..chunks).map(|_| codes(b)).collect()).collect();
        let mut numbers = |of: &LaneParams| {
            let words = of.of.lane_words(self.main);
            let tile = |_| b.array("numbers", Type::U32, words, Uniformity::Varying);
            (0..tiles).map(tile).collect()
        };
        let params = self.params.iter().map(&mut numbers).collect();
        InFlight { codes, params }
    }

    /// Loads the codes and group parameters of a k-tile, if the k-tile exists.
    pub(super) fn load(&self, b: &mut Builder, flight: &InFlight, k_tile: Operand, there: Operand) {
        for tile in 0..flight.codes.len() {
            self.load_tile(b, flight, tile, k_tile, there);
        }
    }

    /// [`Self::load`] for one tile of rows.
    pub(super) fn load_tile(
        &self,
        b: &mut Builder,
        flight: &InFlight,
        tile: usize,
        k_tile: Operand,
        there: Operand,
    ) {
        for (chunk, words) in (0..).zip(&flight.codes[tile]) {
            self.load_codes(b, words, (tile, chunk), k_tile, there);
        }
        for (of, tiles) in self.params.iter().zip(&flight.params) {
            of.load(b, self.main, (tile, &tiles[tile]), k_tile, there);
        }
    }

    /// Loads one chunk of one tile: of each plane, this lane's words.
    fn load_codes(
        &self,
        b: &mut Builder,
        words: &[Reg],
        (tile, chunk): (usize, u32),
        k_tile: Operand,
        there: Operand,
    ) {
        let (main, chunks) = (self.main, self.main.problem.chunks());
        let (starts, ahead) = match &self.codes[..] {
            [first] => (first, tile as u32 * tile_words(main.problem)),
            starts => (&starts[tile], 0),
        };
        let mask = if chunks.is_multiple_of(main.k_tile_chunks()) {
            there
        } else {
            // The last k-tile is short: missing chunks are multiplied with zeros of x.
            let number = b.mad(k_tile, main.k_tile_chunks(), chunk);
            let inside = b.less(number, chunks);
            b.both(there, inside)
        };
        let mut words = words;
        for ((first, plane), start) in planes(main.problem).zip(starts) {
            let at = b.mad(k_tile, main.k_tile_chunks() * chunk_words(main.problem), *start);
            let from = Address::new(self.codes_buffer, at);
            let from = from.plus(ahead + chunk * chunk_words(main.problem) + first);
            for (vector, count) in loads(plane) {
                let (own, after) = words.split_at(count as usize);
                b.load_into(own, from.plus(vector), width(count), masked(mask), Cache::Stream);
                words = after;
            }
        }
    }
}

/// A mask, unless it is always true.
pub(super) fn masked(there: Operand) -> Option<Mask> {
    (there != Operand::Pred(true)).then(|| Mask::or_zero(there))
}
