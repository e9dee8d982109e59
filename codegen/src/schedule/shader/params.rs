//! Group parameters of w, read by lanes from [`GroupParams::layout`].

use crate::ir::{Address, BufferId, Builder, Cache, Operand, Reg, Type};
use crate::schedule::chunk::{loads, width};
use crate::schedule::group_params::GroupParams;
use crate::schedule::mapping::MainLoop;
use crate::schedule::shader::RowTile;

/// One group parameter, for a lane's rows.
pub(super) struct Params {
    of: GroupParams,
    buffer: BufferId,
    /// Per tile of rows, the word of k-tile 0.
    first: Vec<Operand>,
    shift: Option<Operand>,
}

/// The words of a k-tile, per tile of rows.
pub(super) struct OfKTile<'n> {
    numbers: &'n Params,
    words: Vec<Vec<Reg>>,
}

impl Params {
    pub(super) fn new(
        b: &mut Builder,
        main: &MainLoop<'_>,
        (of, buffer): (GroupParams, BufferId),
        (tiles, lane): (&[RowTile], Operand),
    ) -> Self {
        let own = of.lane_word(b, main, lane);
        let first = tiles.iter().map(|tile| {
            let word = of.tile_word(b, main.problem, tile.number);
            let word = b.add(word, own);
            let matrix = tile.matrix.first_word(b, of.matrix_words(main.problem));
            b.add(word, matrix)
        });
        let first = first.collect();
        Self { first, shift: of.lane_shift(b, main, lane), of, buffer }
    }

    /// Loads the words of a k-tile.
    pub(super) fn load(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        k_tile: Operand,
    ) -> OfKTile<'_> {
        let k_tile = self.of.k_tile_word(b, main, k_tile);
        let words = self.of.lane_words(main);
        let load = |first: &Operand| -> Vec<Reg> {
            let at = b.add(*first, k_tile);
            let mut all = Vec::new();
            for (vector, words) in loads(words) {
                let from = Address::new(self.buffer, at).plus(vector);
                all.extend(b.load_as(Type::U32, from, width(words), None, Cache::Constant));
            }
            all
        };
        OfKTile { numbers: self, words: self.first.iter().map(load).collect() }
    }
}

impl OfKTile<'_> {
    /// The value for a lane's row of a tile in a segment of the k-tile, as f32.
    pub(super) fn value(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        (tile, segment): (usize, u32),
    ) -> Operand {
        let Params { of, shift, .. } = self.numbers;
        let group = of.of_segment(main, segment);
        of.values(b, 1, (&self.words[tile], *shift), group, 0)[0]
    }
}
