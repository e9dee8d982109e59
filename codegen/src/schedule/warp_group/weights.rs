//! A consumer's weights: words from shared memory ([`planes`](super::planes)), dequantised to fragments of A.

use super::Block;
use super::consumer::multiplies_words;
use super::params::Params;
use super::planes::Planes;
use super::shape::VECTOR_WORDS;
use super::stage::Stages;
use crate::ir::{Builder, Operand, Reg, Type, Uniformity};
use crate::schedule::byte_fragments::ByteFragments;
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
    planes: Vec<Planes<'s>>,
    /// Tiles of rows.
    tiles: u32,
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
        let planes = stages.codes.iter().map(|staged| Planes::declare(b, block, staged, rows));
        let planes = planes.collect();
        let (tiles, as_stored) = (block.tile.row_tiles, multiplies_words(main, &block.tile));
        let params = Params::declare(b, block, stages, rows);
        Self { main, planes, tiles, as_stored, params, table }
    }

    /// Loads what the first stage, which has k-tile `start`, needs ahead.
    pub(super) fn begin(&self, b: &mut Builder, start: Operand) {
        self.params.begin(b, self.main, start);
    }

    /// Loads the words of a chunk of a stage, which has this number among all of K; with the first chunk also the group
    /// parameters.
    pub(super) fn load(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        ((stage, number), chunk): ((Operand, Operand), u32),
    ) {
        self.planes.iter().for_each(|planes| planes.load(b, (stage, chunk)));
        if chunk == 0 {
            self.params.load(b, block, (stage, number));
        }
    }

    /// What dequantisation applies to each tile of rows in the stage of this number, whose words are loaded.
    pub(super) fn by_row(&self, b: &mut Builder, number: Operand) -> Vec<ByRow> {
        (0..self.tiles).map(|tile| self.params.by_row(b, self.main, (tile, number))).collect()
    }

    /// Per segment of k-tile `number`, whose words are loaded, the scales of sums of the lane's rows. Called once
    /// for each k-tile, in order.
    pub(super) fn scales_of_sums(&self, b: &mut Builder, number: Operand) -> Vec<Vec<Operand>> {
        self.params.scales_of_sums(b, self.main, number)
    }

    /// Dequantises a chunk of a stage and tile of rows; `each` gets the step and A of one fragment after another.
    pub(super) fn decode(
        &self,
        b: &mut Builder,
        (stage, (tile, chunk)): (Operand, (u32, u32)),
        by_row: &mut ByRow,
        each: &mut dyn FnMut(&mut Builder, u32, Vec<Reg>),
    ) {
        let of_planes = |planes: &Planes<'_>| planes.words(b, stage, (tile, chunk));
        let words: Vec<Reg> = self.planes.iter().flat_map(of_planes).collect();
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
        fragments(b, (self.main, self.table), &words, (by_row, first), |b, a| {
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
