//! Group parameters in registers: where a lane reads them, and what a tile of rows makes of them.

use super::Skinny;
use super::weights::{InFlight, LaneWeights, masked};
use crate::ir::{Address, BufferId, Builder, Cache, MatrixScale, Operand, Reg};
use crate::schedule::chunk::width;
use crate::schedule::dequantise::{Scales, Zeros};
use crate::schedule::group_params::{GroupParams, LaneLevels, LaneNumbers};
use crate::schedule::mapping::MainLoop;
use crate::schedule::sums::SegmentScales;

/// One group parameter, and where this lane reads its values.
pub(super) struct LaneParams {
    pub(super) of: GroupParams,
    pub(super) buffer: BufferId,
    /// Per tile of rows, the first word at k-tile 0.
    pub(super) tiles: Vec<Operand>,
    pub(super) shift: Option<Operand>,
}

/// The group parameters of one tile of rows, in registers.
pub(super) struct TileParams<'d, 'p> {
    pub(super) skinny: &'d Skinny<'p>,
    pub(super) flight: &'d InFlight,
    pub(super) tile: usize,
}

impl TileParams<'_, '_> {
    fn of(&self, buffer: Option<BufferId>) -> Option<(&LaneParams, &[Reg])> {
        let mut all = self.skinny.weights.params.iter().zip(&self.flight.params);
        let (of, tiles) = all.find(|(of, _)| Some(of.buffer) == buffer)?;
        Some((of, &tiles[self.tile]))
    }

    /// The zero points of a k-tile, segment by segment.
    pub(super) fn zeros(&self, b: &mut Builder) -> Option<Zeros> {
        let (main, half) = (self.skinny.main, self.skinny.main.problem.half()?);
        let (LaneParams { of, shift, .. }, words) = self.of(self.skinny.io.zero)?;
        let segments = 0..main.k_tile() / main.segment();
        let rows = main.rows(of).len;
        let segments = segments
            .map(|segment| of.twice(b, rows, (words, *shift), of.of_segment(main, segment)));
        let segments = segments.collect();
        Some(Zeros::new(half, main, segments))
    }

    /// The scales that the dequantisation of a k-tile multiplies with, if any.
    pub(super) fn of_weights(&self, b: &mut Builder) -> Option<Scales> {
        let main = self.skinny.main;
        main.problem.plan.scale.folded?;
        let [scale, term] = self.levels();
        scale?.scales_of_weights(b, main, term)
    }

    /// The levels of scales, and those of terms.
    pub(super) fn levels(&self) -> [Option<LaneLevels>; 2] {
        let read = |(LaneParams { of, shift, .. }, words): (&LaneParams, &[Reg])| LaneNumbers {
            of: *of,
            words: words.to_vec(),
            shift: *shift,
        };
        let io = &self.skinny.io;
        let levels = [(io.scale, io.coarse_scale), (io.correction, io.coarse_correction)];
        levels.map(|(finest, coarse)| {
            let [finest, coarse] = [finest, coarse].map(|buffer| self.of(buffer).map(read));
            finest.map(|finest| LaneLevels { finest, coarse })
        })
    }

    /// The scales of w for each step of a k-tile, for an instruction that scales; otherwise none.
    pub(super) fn of_product(&self, b: &mut Builder) -> Vec<MatrixScale> {
        let main = self.skinny.main;
        let words = main.scaled().and_then(|_| self.of(self.skinny.io.scale));
        let of = |(LaneParams { of, shift, .. }, words): (&LaneParams, &[Reg])| {
            of.of_product(b, main, (words, *shift))
        };
        words.map(of).unwrap_or_default()
    }

    /// The factors of a segment's sums.
    pub(super) fn scales(&self, b: &mut Builder, segment: u32) -> SegmentScales {
        let main = self.skinny.main;
        let mut values = |buffer, exponent| {
            let (LaneParams { of, shift, .. }, words) = self.of(buffer)?;
            let rows = main.rows(of).len;
            Some(of.values(b, rows, (words, *shift), of.of_segment(main, segment), exponent))
        };
        let scale = self.skinny.io.scale.filter(|_| main.problem.scales_sums());
        let rows = values(scale, main.problem.exponent());
        let correction = self.skinny.io.correction.filter(|_| main.problem.corrects_sums());
        SegmentScales { rows, tokens: None, correction: values(correction, 0) }
    }
}

impl LaneParams {
    /// Loads the values of a k-tile for a tile of rows.
    pub(super) fn load(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        (tile, words): (usize, &[Reg]),
        k_tile: Operand,
        there: Operand,
    ) {
        let [_, apart] = self.of.words(main.problem);
        let k_tile = self.of.k_tile_word(b, main, k_tile);
        let (start, ahead) = LaneWeights::tile_start(&self.tiles, tile, apart);
        let at = b.add(k_tile, start);
        // Values shared by several rows have no alignment: word by word.
        let most = if self.of.rows > 1 { 1 } else { 4 };
        for (vector, words) in (0..).zip(words.chunks(most)) {
            let from = Address::new(self.buffer, at).plus(ahead + vector * most as u32);
            b.load_into(words, from, width(words.len() as u32), masked(there), Cache::Default);
        }
    }
}
