//! The group parameters of w in the ring, by warp.

use super::copies::Copies;
use super::{Tile, inside};
use crate::ir::{Address, BufferId, Builder, MatrixScale, Operand, Reg, SharedId};
use crate::schedule::chunk::width;
use crate::schedule::dequantise;
use crate::schedule::group_params::{GroupParams, LaneLevels, LaneNumbers};
use crate::schedule::mapping::MainLoop;
use crate::schedule::sums::SegmentScales;
use crate::schedule::tile::TileShape;

/// The group parameters that w has: scales, zero points, corrections.
pub(super) struct Params(Vec<ParamCopy>);

/// The copies of one group parameter.
struct ParamCopy {
    of: GroupParams,
    buffer: BufferId,
    /// Words of a copy.
    vector: u32,
    /// What this lane copies.
    copies: Copies,
    /// The stage's word for this lane's first vector.
    to: Operand,
    /// The stage's word that this lane reads for the first tile of rows.
    at: Operand,
    shift: Option<Operand>,
}

impl Params {
    fn warp_words(of: &GroupParams, shape: TileShape, main: &MainLoop<'_>) -> u32 {
        (shape.row_tiles(main) * of.tile_words(main.problem)).next_multiple_of(4)
    }

    /// Words of a stage.
    pub(super) fn words(shape: TileShape, main: &MainLoop<'_>) -> u32 {
        let all = main.problem.group_params();
        all.map(|(_, of)| shape.warps * Self::warp_words(&of, shape, main)).sum()
    }

    pub(super) fn declare(
        b: &mut Builder,
        tile: &Tile<'_>,
        first_tile: Operand,
        first: u32,
    ) -> Self {
        let (main, shape, io) = (tile.main, tile.shape, tile.io);
        let mut first = first;
        b.comment("numbers of groups: what this lane copies, and what it reads");
        let kinds = io.group_params(main.problem).map(|(of, buffer)| {
            let tile_words = of.tile_words(main.problem);
            // Values shared by several rows have no alignment.
            let vector = if of.rows > 1 { 1 } else { 4 };
            let vectors = tile_words / vector;
            let all = (shape.row_tiles(main) * vectors, b.warp_size() * vector);
            let lanes = (tile.lane, b.warp_size());
            let copies = Copies::deal(b, (buffer, vector), all, lanes, |b, number| {
                let of_tile = b.div(number, vectors);
                let of_tile = b.add(first_tile, of_tile);
                let (of_tile, matrix) = tile.matrix.tile(b, of_tile);
                let of_tile = inside(b, tile, of_tile);
                let word = of.tile_word(b, main.problem, of_tile);
                let matrix = matrix.first_word(b, of.matrix_words(main.problem));
                let word = b.add(word, matrix);
                let in_tile = b.rem(number, vectors);
                (b.mad(in_tile, vector, word), None)
            });
            let warp_words = Self::warp_words(&of, shape, main);
            let of_warp = b.mad(tile.warp, warp_words, first);
            let lane_word = of.lane_word(b, main, tile.lane);
            let kind = ParamCopy {
                of,
                buffer,
                vector,
                copies,
                to: b.mad(tile.lane, vector, of_warp),
                at: b.add(of_warp, lane_word),
                shift: of.lane_shift(b, main, tile.lane),
            };
            first += shape.warps * warp_words;
            kind
        });
        Self(kinds.collect())
    }

    /// Starts the copies of a k-tile.
    pub(super) fn copy(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        k_tile: Operand,
        stage: Operand,
    ) {
        for kind in &self.0 {
            let to = b.add(kind.to, stage);
            let k_tile = kind.of.k_tile_word(b, tile.main, k_tile);
            kind.copies.start(b, Address::new(block, to), k_tile);
        }
    }

    /// The words that a lane reads for a tile of rows.
    fn read(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        (block, stage): (SharedId, Operand),
        (buffer, row_tile): (Option<BufferId>, u32),
    ) -> Option<(&ParamCopy, Vec<Reg>)> {
        let kind = self.0.iter().find(|kind| Some(kind.buffer) == buffer)?;
        let at = b.add(kind.at, stage);
        let from = Address::new(block, at).plus(row_tile * kind.of.tile_words(tile.main.problem));
        let words = kind.of.lane_words(tile.main);
        let vectors = (0..words).step_by(kind.vector as usize);
        let load =
            |vector: u32| b.load(from.plus(vector), width((words - vector).min(kind.vector)));
        let words = vectors.flat_map(load).collect();
        Some((kind, words))
    }

    pub(super) fn zeros(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        row_tile: u32,
    ) -> (Vec<Reg>, Option<Operand>) {
        let words = self.read(b, tile, (block, stage), (tile.io.zero, row_tile));
        words.map(|(kind, words)| (words, kind.shift)).unwrap_or_default()
    }

    /// The factors of the sums of a tile of rows, as words of the stage.
    pub(super) fn scales(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        row_tile: u32,
    ) -> Scales<'_> {
        let mut read = |buffer| self.read(b, tile, (block, stage), (buffer, row_tile));
        let io = tile.io;
        Scales {
            scale: read(io.scale),
            correction: read(io.correction),
            coarse_scale: read(io.coarse_scale),
            coarse_correction: read(io.coarse_correction),
        }
    }
}

/// Words of the scales and corrections of a tile of rows in a k-tile.
pub(in crate::schedule::tile) struct Scales<'r> {
    scale: Option<(&'r ParamCopy, Vec<Reg>)>,
    correction: Option<(&'r ParamCopy, Vec<Reg>)>,
    coarse_scale: Option<(&'r ParamCopy, Vec<Reg>)>,
    coarse_correction: Option<(&'r ParamCopy, Vec<Reg>)>,
}

impl Scales<'_> {
    /// The scales that the dequantisation of the k-tile multiplies with, if any.
    pub(in crate::schedule::tile) fn of_weights(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
    ) -> Option<dequantise::Scales> {
        let read = |(kind, words): &(&ParamCopy, Vec<Reg>)| LaneNumbers {
            of: kind.of,
            words: words.clone(),
            shift: kind.shift,
        };
        let levels =
            [(&self.scale, &self.coarse_scale), (&self.correction, &self.coarse_correction)];
        let [scale, term] = levels.map(|(finest, coarse)| {
            let [finest, coarse] = [finest, coarse].map(|of| of.as_ref().map(read));
            finest.map(|finest| LaneLevels { finest, coarse })
        });
        scale?.scales_of_weights(b, main, term)
    }

    /// The scales of w for each step of the k-tile, for an instruction that scales; otherwise none.
    pub(in crate::schedule::tile) fn of_product(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
    ) -> Vec<MatrixScale> {
        let words = self.scale.as_ref().filter(|_| main.scaled().is_some());
        let of = |(kind, words): &(&ParamCopy, Vec<Reg>)| {
            kind.of.of_product(b, main, (words, kind.shift))
        };
        words.map(of).unwrap_or_default()
    }

    /// The factors of a segment's sums, as values.
    pub(in crate::schedule::tile) fn of_segment(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        segment: u32,
    ) -> SegmentScales {
        let mut values = |read: &Option<(&ParamCopy, Vec<Reg>)>, exponent| {
            let (kind, words) = read.as_ref()?;
            let group = kind.of.of_segment(main, segment);
            let rows = main.rows(&kind.of).len;
            Some(kind.of.values(b, rows, (words, kind.shift), group, exponent))
        };
        let rows = if main.problem.scales_sums() {
            values(&self.scale, main.problem.exponent())
        } else {
            None
        };
        let correction = match main.problem.corrects_sums() {
            true => values(&self.correction, 0),
            false => None,
        };
        SegmentScales { rows, tokens: None, correction }
    }
}
