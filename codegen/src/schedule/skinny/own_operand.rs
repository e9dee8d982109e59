//! The operand of x that a block makes for itself, in shared memory: x is read as it is given, and no kernel before the
//! product quantises it.
//!
//! Each block has the whole row of its token, or in a block that adds the experts of a token a row for each expert, which the
//! warps of that expert make. Weights of the first k-tile are on their way meanwhile.

use quantloom_dsl::experts::OperandOf;
use quantloom_dsl::format::Number;

use super::{Skinny, SkinnyTile};
use crate::ir::{Builder, Operand, SharedId, Special, Word};
use crate::schedule::activation::{
    ActivationProblem, BlockOperand, OperandOfBlock, vectors_of_thread,
};
use crate::schedule::constants::Constants;
use crate::schedule::input::InputScale;
use crate::schedule::mapping::MainLoop;

/// The most vectors of x of a thread.
const MOST_VECTORS: u32 = 4;

/// The operand of a block's rows.
pub(super) struct OwnOperand<'p> {
    made: OperandOfBlock<'p>,
    /// The elements, `[row][column]`.
    pub(super) elements: SharedId,
    /// The scales of groups, f32 `[row][group]`.
    pub(super) scales: Option<SharedId>,
    /// The row of this warp.
    pub(super) row: Operand,
}

/// The operand of a product whose blocks make it; `None` if these choices do not allow that.
pub(super) fn problem(main: &MainLoop<'_>, tile: &SkinnyTile) -> Option<ActivationProblem> {
    let problem = main.problem;
    let combined = problem.stack.is_some_and(|stack| stack.combined);
    let stacked = problem.stack.is_none_or(|stack| stack.direct && stack.operand == OperandOf::Row);
    let plain =
        !problem.input.codes && problem.input.fragments.is_none() && problem.order.is_none();
    if tile.tokens != 1 || !problem.input.prepared || !stacked || !plain {
        return None;
    }
    let operand = problem.operand(Number::Float(problem.input_dtype?), problem.k).ok()?;
    let one = operand.launches() == 1 && !(combined && operand.spans_columns());
    (one && vectors(&operand, main, tile) <= MOST_VECTORS).then_some(operand)
}

/// Vectors of x of a thread.
fn vectors(operand: &ActivationProblem, main: &MainLoop<'_>, tile: &SkinnyTile) -> u32 {
    let warp = main.problem.target().gpu.map_or(32, |gpu| gpu.warp);
    vectors_of_thread(operand, tile.warps_of_matrix(main.problem) * warp)
}

/// Whether threads have a vector of x at most: with more, blocks with few registers spill.
pub(super) fn is_short(main: &MainLoop<'_>, tile: &SkinnyTile) -> bool {
    problem(main, tile).is_some_and(|operand| vectors(&operand, main, tile) <= 1)
}

/// Words of shared memory, of 4 bytes: rows with their scales, and the ranges of the block's warps where a scale is chosen from a
/// whole row.
pub(super) fn words(main: &MainLoop<'_>, tile: &SkinnyTile) -> u32 {
    let input = &main.problem.input;
    let scales = match input.scale {
        Some(InputScale::Columns(_)) => input.groups().unwrap_or(0),
        Some(InputScale::Row) | None => 0,
    };
    let row =
        input.bytes(input.columns).div_ceil(4).next_multiple_of(4) + scales.next_multiple_of(4);
    let spans = problem(main, tile).is_some_and(|operand| operand.spans_columns());
    let ranges = if spans { 2 * tile.warps.next_multiple_of(4) } else { 0 };
    tile.matrices(main.problem) * row + ranges
}

impl<'p> OwnOperand<'p> {
    pub(super) fn declare(
        b: &mut Builder,
        skinny: &Skinny<'_>,
        problem: &'p ActivationProblem,
        constants: &Constants,
    ) -> Self {
        let (of, tile) = (skinny.main.problem, skinny.tile);
        let (input, rows) = (&of.input, tile.matrices(of));
        let layout = format!("{} [k, row]", input.operand);
        let words = rows * input.words(input.columns);
        let elements = b.shared("x_operand", input.word(), words, &layout);
        let groups = input.groups().unwrap_or(0);
        let of_groups = matches!(input.scale, Some(InputScale::Columns(_)));
        let scales = of_groups
            .then(|| b.shared("x_group_scales", Word::U32, rows * groups, "f32 [group, row]"));
        b.comment(
            "x: the row of this warp, and the thread's number among those that make its operand",
        );
        let threads = tile.warps_of_matrix(of) * b.warp_size();
        let thread = b.special(Special::Thread);
        let (row, thread) = match rows {
            1 => (0u32.into(), thread),
            _ => (b.div(thread, threads), b.rem(thread, threads)),
        };
        let readable = skinny.place.rows.readable(b, 1);
        let number = skinny.place.rows.number(b, 0u32.into());
        let of_x = readable.row(b, number);
        let (scales_of_rows, zeros) = (constants.x_scale(), constants.x_zero());
        let to = BlockOperand { elements, scales: scales.or(scales_of_rows), zeros };
        let from = (skinny.io.x, to);
        let made = OperandOfBlock::declare(b, problem, from, (thread, threads), [row, of_x]);
        Self { made, elements, scales, row }
    }

    /// Makes the operand; all warps of the block wait for it.
    pub(super) fn make(&self, b: &mut Builder, skinny: &Skinny<'_>) {
        b.comment("the operand of x");
        self.made.make(b);
        skinny.participants().wait(b);
    }
}
