//! The group parameters that a consumer applies during dequantisation: scales, zero points and terms of its rows.
//!
//! Columns come in order, so that every lane needs all groups of a k-tile, also where the native layout
//! distributes them over the lanes of a row ([`GroupParams::in_order`]).
//!
//! A scale of a block of rows is one number a k-tile for all rows of a warp's tile, in a buffer that holds little: the
//! lanes of a warp read those of as many k-tiles there, ahead.

use super::Block;
use super::stage::{StagedParam, Stages};
use super::weights::{WarpRows, step_of};
use crate::ir::{
    Address, Binary, BufferId, Builder, Cache, Operand, Reg, Shuffle, Special, Type, Uniformity,
    Width,
};
use crate::schedule::chunk::{loads, width};
use crate::schedule::dequantise::{ByRow, LaneGroups, Scales, Zeros};
use crate::schedule::group_params::{GroupParams, LaneLevels, LaneNumbers};
use crate::schedule::mapping::MainLoop;

/// A warp's group parameters of a k-tile.
pub(super) struct Params<'s> {
    kinds: Vec<Param<'s>>,
    /// Per tile of rows its scale, if all its rows share one; else none.
    of_rows: Vec<ScaleOfRows>,
    /// Whether scales multiply sums.
    on_sums: bool,
}

/// A scale that all rows of a tile share. Each lane loads that of a k-tile from global memory, so that a warp has those of as
/// many k-tiles as it has lanes, and loads those of as many more meanwhile: a k-tile takes less time than a load.
pub(super) struct ScaleOfRows {
    of: GroupParams,
    buffer: BufferId,
    /// The first word of the tile's block of rows.
    first: Operand,
    lane: Operand,
    /// The words of the lanes' k-tiles.
    words: Vec<Reg>,
    /// Those of the k-tiles after these; `None` if there are none.
    next: Option<Vec<Reg>>,
    /// The word of one k-tile.
    word: Vec<Reg>,
}

impl ScaleOfRows {
    /// Of each tile of rows: one of each matrix, or one after another of a single matrix.
    fn declare(b: &mut Builder, block: &Block<'_>, rows: &WarpRows) -> Vec<Self> {
        if block.main.problem.scale.is_none_or(|of| of.rows == 1) {
            return Vec::new();
        }
        let first = b.mad(block.row_block, block.tiles_of_matrix(), rows.first);
        let matrices = block.matrices(b);
        let tiles = 0..block.tile.row_tiles;
        let tiles = tiles.filter_map(|tile| {
            let (matrix, further) = match block.together() {
                1 => (matrices[0], tile * block.tiles_apart()),
                _ => (matrices[tile as usize], 0),
            };
            let native = b.add(first, further);
            Self::of_tile(b, block, (native, matrix))
        });
        tiles.collect()
    }

    /// Of the rows from this native tile of the matrix on, if scales are of blocks of rows.
    pub(super) fn of_tile(
        b: &mut Builder,
        block: &Block<'_>,
        (native, matrix): (Operand, Option<Operand>),
    ) -> Option<Self> {
        let problem = block.main.problem;
        let (of, buffer) = problem.scale.filter(|of| of.rows > 1).zip(block.io.scale)?;
        // Rows beyond N are not stored.
        let native = b.binary(Binary::Min, native, problem.row_tiles() - 1);
        let first = of.tile_word(b, problem, native);
        let first = match matrix {
            None => first,
            Some(matrix) => b.mad(matrix, of.matrix_words(problem), first),
        };
        let word = |b: &mut Builder, name: &str| b.array(name, Type::U32, 1, Uniformity::Varying);
        let [words, own] = ["scales_of_rows", "scale_of_rows"].map(|name| word(b, name));
        let more = block.main.k_iters() > b.warp_size();
        let next = more.then(|| word(b, "next_scales_of_rows"));
        let lane = b.special(Special::Lane);
        Some(Self { of, buffer, first, lane, words, next, word: own })
    }

    /// Loads the words of the k-tiles that include the first one.
    pub(super) fn begin(&self, b: &mut Builder, main: &MainLoop<'_>, start: Operand) {
        let lanes = b.warp_size();
        let within = b.rem(start, lanes);
        let first = b.sub(start, within);
        self.load(b, main, (&self.words, first));
        if let Some(next) = &self.next {
            let later = b.add(first, lanes);
            self.load(b, main, (next, later));
        }
    }

    /// Loads the words of the k-tiles from this one on; that of the last one in lanes beyond it.
    fn load(&self, b: &mut Builder, main: &MainLoop<'_>, (words, first): (&[Reg], Operand)) {
        let number = b.add(first, self.lane);
        let number = b.binary(Binary::Min, number, main.k_iters() - 1);
        let word = self.of.k_tile_word(b, main, number);
        let from = Address::new(self.buffer, b.add(self.first, word));
        b.load_into(words, from, Width::B32, None, Cache::Constant);
    }

    /// The scale of k-tile `number`. Called once for each k-tile, in order.
    pub(super) fn scales(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        number: Operand,
    ) -> Vec<Operand> {
        let lanes = b.warp_size();
        let within = b.rem(number, lanes);
        let word = b.shuffle(Shuffle::Index, self.words[0], within);
        b.set(self.word[0], word);
        if let Some(next) = &self.next {
            let last = b.equal(within, lanes - 1);
            b.when(last, |b| {
                b.set(self.words[0], next[0]);
                let later = b.add(number, lanes + 1);
                self.load(b, main, (next, later));
            });
        }
        self.of.values(b, 1, (&self.word, None), 0, main.problem.exponent())
    }
}

struct Param<'s> {
    staged: &'s StagedParam,
    /// The parameter with all groups of a k-tile for each lane.
    of: GroupParams,
    /// If stages are halves of k-tiles that have groups of their own: bits of a group for a lane's rows.
    of_half: Option<u32>,
    /// The word of a stage that this lane reads first, of the warp's first tile of rows.
    at: Operand,
    shift: Option<Operand>,
    /// Per tile of rows, the words of the k-tile.
    words: Vec<Vec<Reg>>,
}

impl<'s> Params<'s> {
    pub(super) fn declare(
        b: &mut Builder,
        block: &Block<'_>,
        stages: &'s Stages,
        rows: &WarpRows,
    ) -> Self {
        let main = block.main;
        let kinds = stages.params.iter().map(|staged| {
            let of = staged.of.in_order();
            let first = b.mul(rows.first, of.tile_words(main.problem));
            let word = of.lane_word(b, main, rows.lane);
            let halves = block.tile.parts > 1 && staged.of.has_half_k_tiles(main);
            let of_half = halves.then(|| of.group_bits(main));
            let words = match of_half {
                Some(32..) => of.lane_words(main) / 2,
                _ => of.lane_words(main),
            };
            let array = |_| b.array("params", Type::U32, words, Uniformity::Varying);
            let words = (0..block.tile.row_tiles).map(array).collect();
            let at = b.add(first, word);
            Param { staged, of, of_half, at, shift: of.lane_shift(b, main, rows.lane), words }
        });
        let kinds = kinds.collect();
        let of_rows = ScaleOfRows::declare(b, block, rows);
        Self { kinds, of_rows, on_sums: block.tile.exact && main.problem.scales_sums() }
    }

    /// Loads what the first stage, which has k-tile `start`, needs ahead.
    pub(super) fn begin(&self, b: &mut Builder, main: &MainLoop<'_>, start: Operand) {
        for scale in &self.of_rows {
            scale.begin(b, main, start);
        }
    }

    /// Loads the words of a stage, which has this number among all of K.
    pub(super) fn load(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        (stage, number): (Operand, Operand),
    ) {
        for Param { staged, of, of_half, at, words, .. } in &self.kinds {
            let stage = staged.array.of_stage(b, stage);
            let mut at = b.add(stage.index, *at);
            // Groups of both halves take turns.
            let turn = of_half.map_or(0, |bits| bits / 32);
            if turn > 0 {
                let half = b.rem(number, 2);
                at = b.mad(half, turn, at);
            }
            let from = Address { index: at, ..stage };
            let apart = match block.together() {
                1 => block.tiles_apart() * of.tile_words(block.main.problem),
                together => staged.array.words / together,
            };
            for (tile, words) in (0..).zip(words) {
                let all = words.len() as u32;
                let one = if turn > 0 { turn } else { all };
                for first in (0..all).step_by(one as usize) {
                    let groups = &words[first as usize..(first + one) as usize];
                    let from = from.plus(tile * apart + first * (1 + turn.min(1)));
                    for (first, count) in loads(one) {
                        let to = &groups[first as usize..(first + count) as usize];
                        b.load_into(to, from.plus(first), width(count), None, Cache::Default);
                    }
                }
            }
        }
    }

    /// Per segment of k-tile `number`, whose words are loaded, in the order of products, the scales of sums of the lane's
    /// rows; none if scales multiply weights. Rows that share a scale have one. Called once for each k-tile, in order.
    pub(super) fn scales_of_sums(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        number: Operand,
    ) -> Vec<Vec<Operand>> {
        if !self.of_rows.is_empty() {
            return self.of_rows.iter().map(|scale| scale.scales(b, main, number)).collect();
        }
        let mut kinds = self.kinds.iter().filter(|kind| Some(kind.staged.of) == main.problem.scale);
        let Some(Param { of, shift, words, .. }) = kinds.next().filter(|_| self.on_sums) else {
            return Vec::new();
        };
        let (rows, segments) = (main.rows(of).len, main.k_tile() / main.segment());
        let mut scales = Vec::new();
        for segment in 0..segments {
            let group = of.of_segment(main, segment);
            scales.extend(
                words.iter().map(|words| {
                    of.values(b, rows, (words, *shift), group, main.problem.exponent())
                }),
            );
        }
        scales
    }

    /// What dequantisation applies to a tile of rows in the stage of this number, whose words are loaded.
    pub(super) fn by_row(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        (tile, number): (u32, Operand),
    ) -> ByRow {
        let problem = main.problem;
        let mut by_row = ByRow::default();
        for Param { staged, of, shift, words, .. } in &self.kinds {
            let words = (&words[tile as usize][..], *shift);
            if Some(staged.of) == problem.zero {
                let Some(half) = problem.half() else { continue };
                let (rows, segments) = (main.rows(of).len, main.k_tile() / main.segment());
                let segment = |segment| of.twice(b, rows, words, of.of_segment(main, segment));
                let segments = (0..segments).map(segment).collect();
                by_row.zeros = Some(Zeros::new(half, main, segments));
            }
        }
        // Numbers are made of parameters where their first weight is: the words of the next stage may be loaded before that.
        let later = problem.plan.scale.parts().is_some();
        let mut of = |kind: Option<GroupParams>| {
            let mut kinds = self.kinds.iter().filter(|param| Some(param.staged.of) == kind);
            let Param { staged, of, of_half, shift, words, .. } = kinds.next()?;
            let shift = match of_half {
                Some(bits @ ..32) => {
                    let half = b.rem(number, 2);
                    Some(b.mul(half, *bits))
                }
                _ => *shift,
            };
            let mut words = words[tile as usize].clone();
            if later {
                let count = words.len() as u32;
                let copies = b.array("params_of_stage", Type::U32, count, Uniformity::Varying);
                copies.iter().zip(&words).for_each(|(&copy, &word)| b.set(copy, word));
                words = copies;
            }
            Some(((staged.of, *of_half), LaneNumbers { of: *of, words, shift }))
        };
        if !self.on_sums
            && let Some((native, scale)) = of(problem.scale)
        {
            let coarse = of(problem.coarse_scale).map(|(_, coarse)| coarse);
            let scale = LaneLevels { finest: scale, coarse };
            let coarse = of(problem.coarse_correction).map(|(_, coarse)| coarse);
            let term = of(problem.correction);
            let term = term.map(|(_, finest)| LaneLevels { finest, coarse });
            by_row.scales = scales(b, main, native, (scale, term));
        }
        by_row
    }
}

/// The scales of a lane's rows for each fragment of a k-tile, whose columns are in order, and the terms of weights.
fn scales(
    b: &mut Builder,
    main: &MainLoop<'_>,
    (native, of_half): (GroupParams, Option<u32>),
    (scale, term): (LaneLevels, Option<LaneLevels>),
) -> Option<Scales> {
    let of = scale.finest.of;
    let (groups, columns) = match of_half {
        None => (of.of_k_tile(main.k_tile()), main.k_tile()),
        Some(_) => (of.of_k_tile(main.k_tile()) / 2, main.k_tile() / 2),
    };
    let place = |group| match of_half {
        None => native.place_of_group(main, group),
        Some(32..) => group,
        // Words have groups of both halves.
        Some(_) => 2 * group,
    };
    let places = (0..groups).map(place).collect();
    let steps = 0..columns / main.step();
    let of_step = |number| (step_of(main, number) * main.step() / of.columns) as usize;
    let of_step = steps.map(of_step).collect();
    Scales::new(b, main, (scale, term), LaneGroups { places, of_step })
}
