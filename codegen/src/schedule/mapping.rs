//! The distribution of a product's work: the matrix instruction, the lane map, the k-tile.
//!
//! A [`Mapping`] is a schedule's choice, from the plan's own instruction and the k-tile of group parameters
//! ([`Problem::k_tile`]), which are prepared once for all schedules. A [`MainLoop`] is a problem with the mapping of its
//! schedule; the code of a kernel uses nothing else.

use std::borrow::Cow;

use super::group_params::GroupParams;
use super::lanes::{LaneMap, OfLane, OperandHome, Rows, Scaled, Tokens};
use super::problem::Problem;
use super::unscheduled::{Unscheduled, UnscheduledPart};
use crate::ir::{Builder, Operand};
use crate::plan::native::{SHARED_BYTES, row_lanes};
use crate::plan::{Plan, ProductInstruction};
use crate::target::{Chip, Class, MATRIX_OPS, MatrixOp, matrix_op};

/// The instruction of a product, its lane map, and the k-tile.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// The matrix instruction: a tile of rows of w by a tile of tokens. `None` for scalar arithmetic per
    /// lane.
    pub instruction: Option<&'static MatrixOp>,
    /// Columns of a k-tile: whole chunks, and either whole segments or a part of one.
    pub k_tile: u32,
    /// The lane map of the instruction's operands and accumulators.
    pub(super) lanes: LaneMap,
}

/// The part of K that a block or a warp multiplies.
#[derive(Clone, Copy)]
pub(super) struct KRange {
    /// The first k-tile, or stage, of the part, and the one after the last.
    pub(super) start: Operand,
    pub(super) end: Operand,
}

impl KRange {
    /// Part `part` of `parts` of `all` k-tiles: whole ones, distributed evenly.
    pub(super) fn part(b: &mut Builder, part: Operand, parts: u32, all: u32) -> Self {
        let share = b.mul(part, all);
        let start = b.div(share, parts);
        let share = b.add(share, all);
        Self { start, end: b.div(share, parts) }
    }
}

impl Mapping {
    /// The mapping to the lane map of a product's instruction, for a schedule with another instruction of the same lanes:
    /// the target need not have this one.
    pub(super) fn of_lanes(product: &ProductInstruction, k_tile: u32) -> Option<Self> {
        let instruction = MATRIX_OPS.iter().find(|row| Some(row.name) == product.matrix)?;
        let lanes = LaneMap::new(instruction)?;
        Some(Self { instruction: Some(instruction), k_tile, lanes })
    }

    /// The mapping to the instruction of a plan; `None` if the target lacks the instruction, or if its
    /// layouts are not fragments of lanes.
    pub(super) fn of_plan(plan: &Plan, k_tile: u32) -> Option<Self> {
        let (instruction, lanes) = match plan.compute.product.matrix {
            Some(name) => {
                let instruction = matrix_op(name, plan.target)?;
                (Some(instruction), LaneMap::new(instruction)?)
            }
            None => (None, LaneMap::of_rows(plan.target.gpu?.warp)),
        };
        Some(Self { instruction, k_tile, lanes })
    }
}

/// The most 32-bit words of codes of a lane in a k-tile, limited by registers.
const MOST_WORDS: u32 = 12;
/// The most registers of x of a lane in a k-tile.
const MOST_X: u32 = 32;
/// The most columns of a k-tile, unless a chunk is longer.
const LONGEST_K_TILE: u32 = 128;

/// The columns of a k-tile: a power of two of whole chunks, as many as registers allow; `None` if
/// neither segments divide chunks nor chunks segments.
pub(super) fn k_tile(plan: &Plan, step: u32) -> Option<u32> {
    let chunk = plan.native.columns;
    if plan.target.class == Class::Shader {
        let fits = |segment: u32| {
            segment.is_multiple_of(chunk) || segment < chunk && chunk.is_multiple_of(segment)
        };
        return plan
            .scale
            .segment
            .is_none_or(|segment| fits(segment) && segment.is_multiple_of(step))
            .then_some(chunk);
    }
    // Elements of at most a byte are stored in rows of 128 bytes: see the ring of the tile schedule.
    // Fewer columns than such a row are for skinny products alone.
    let bits = plan.compute.product.activation.stored_bits();
    let row = SHARED_BYTES * 8 / bits;
    let least = if bits <= 8 { row } else { chunk };
    let of_row = row_lanes(&plan.compute.product, plan.target.class);
    let room = |columns: &u32| {
        let x = columns * bits / (32 * of_row);
        let fits = columns / chunk * lane_words(plan) <= MOST_WORDS && x <= MOST_X;
        *columns <= row.max(least) || fits
    };
    let sizes = (0..)
        .map(|more| chunk << more)
        .take_while(|columns| *columns <= LONGEST_K_TILE.max(chunk).max(least));
    let fits = |columns: &u32| match plan.scale.segment {
        None => true,
        Some(segment) if segment < chunk => {
            segment.is_power_of_two() && segment.is_multiple_of(step)
        }
        Some(segment) => segment.is_multiple_of(*columns) || columns.is_multiple_of(segment),
    };
    sizes.filter(|columns| *columns >= least && room(columns) && fits(columns)).last()
}

/// Words of codes of one lane in a chunk.
pub(super) fn lane_words(plan: &Plan) -> u32 {
    let codes = plan.native.columns * plan.native.rows;
    codes * plan.dequant.weight.code.bits() / (32 * plan.native.lanes)
}

/// A problem and the mapping that its schedule has chosen.
#[derive(Clone, Debug)]
pub struct MainLoop<'p> {
    /// The problem.
    pub problem: &'p Problem,
    mapping: Cow<'p, Mapping>,
}

impl<'p> MainLoop<'p> {
    /// The main loop with the mapping to the plan's own instruction.
    pub fn new(problem: &'p Problem) -> Self {
        Self { problem, mapping: Cow::Borrowed(&problem.own_mapping) }
    }

    /// The matrix instruction; `None` for scalar arithmetic per lane.
    pub fn instruction(&self) -> Option<&'static MatrixOp> {
        self.mapping.instruction
    }

    /// Columns of a k-tile.
    pub fn k_tile(&self) -> u32 {
        self.mapping.k_tile
    }

    /// The lane map of the instruction's operands and accumulators.
    pub(super) fn lanes(&self) -> &LaneMap {
        &self.mapping.lanes
    }

    /// The fragment of x, for a schedule that reads x from registers.
    ///
    /// # Errors
    /// If the instruction reads x from shared memory.
    pub(super) fn x_fragment(&self) -> Result<&Tokens, Unscheduled> {
        match &self.lanes().b {
            OperandHome::Registers(tokens) => Ok(tokens),
            OperandHome::Shared => Err(Unscheduled::Scheme {
                target: self.problem.target().name,
                part: UnscheduledPart::SharedOperand,
            }),
        }
    }

    /// Iterations of the main loop: k-tiles, of which the last may be short.
    pub fn k_iters(&self) -> u32 {
        self.problem.k.div_ceil(self.k_tile())
    }

    /// Chunks of a k-tile.
    pub fn k_tile_chunks(&self) -> u32 {
        self.k_tile() / self.problem.plan.native.columns
    }

    /// Words of codes of one lane in a k-tile.
    pub fn k_tile_words(&self) -> u32 {
        self.k_tile_chunks() * self.problem.lane_words()
    }

    /// Columns that are summed before their group parameters are applied: a group, or the part of a
    /// group that is in a k-tile.
    pub fn segment(&self) -> u32 {
        self.problem.plan.scale.segment.map_or(self.k_tile(), |segment| segment.min(self.k_tile()))
    }

    /// Columns of a step of the product.
    pub fn step(&self) -> u32 {
        self.problem.plan.compute.product.columns
    }

    /// Steps of the product in a segment.
    pub fn segment_steps(&self) -> u32 {
        self.segment() / self.step()
    }

    /// Tokens of one matrix instruction: columns of B and D.
    pub fn token_tile(&self) -> u32 {
        self.instruction().map_or(1, |instruction| instruction.shape[1])
    }

    /// Lanes that share a row of A or a column of B, each with its own columns along K.
    pub fn row_lanes(&self) -> u32 {
        self.lanes().of_row
    }

    /// A lane's rows for a group parameter: those of its weights if the parameter applies during
    /// dequantisation, else those of its sums.
    pub(super) fn rows(&self, of: &GroupParams) -> &Rows {
        match &self.lanes().scaled {
            Some(scaled) if of.of_weights => &scaled.rows,
            _ if of.of_weights => &self.lanes().a.rows,
            _ => &self.lanes().d.rows,
        }
    }

    /// A lane's number among those that share these rows, if each has parameters for its own columns.
    pub(super) fn part(&self) -> &OfLane {
        self.scaled().map_or(&self.lanes().a.part, |scaled| &scaled.block)
    }

    /// The lane map of scales, for an instruction that scales.
    pub(super) fn scaled(&self) -> Option<&Scaled> {
        self.lanes().scaled.as_ref()
    }

    /// Columns that are distributed over the lanes of a row at a time, contiguously for each lane.
    pub fn shared_columns(&self) -> u32 {
        if let Some(scaled) = self.scaled() {
            return scaled.columns * self.row_lanes();
        }
        let most = SHARED_BYTES * 8 / self.problem.input.operand.stored_bits();
        self.segment().min(self.problem.plan.native.columns).min(most)
    }

    /// Contiguous columns of one lane.
    pub fn lane_columns(&self) -> u32 {
        self.shared_columns() / self.row_lanes()
    }

    /// Registers of x of one lane in a step: B, and pads after it.
    pub fn step_registers(&self) -> u32 {
        self.problem.input.bytes(self.step()) / self.row_lanes() / 4
    }

    /// Registers of a thread that the target's compiler needs beyond a schedule's own count, from its
    /// reports, if `side_by_side` partial sums of a segment are live at once: on AMD for 64-bit
    /// addresses, bf16 arithmetic through f32, and the sums of all segments of a k-tile at once; on the
    /// newest NVIDIA chips half of those sums.
    pub(super) fn compiled(&self, side_by_side: u32) -> u32 {
        let sums = self.lanes().d.registers.len() as u32 * side_by_side;
        let more = self.k_tile() / self.segment() - 1;
        match self.problem.target().gpu.map(|gpu| gpu.chip) {
            Some(Chip::Gfx(_)) => 32 + more * sums,
            Some(Chip::Sm { number: 100.., .. }) => 10 + more * sums / 2,
            _ => 0,
        }
    }
}
