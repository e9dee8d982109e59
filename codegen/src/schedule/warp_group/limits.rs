//! What the schedule supports, whatever the tile: products whose fragments a consumer has, and what a refusal says.

use super::shape::{UNSWAPPED_ROWS, VECTOR_WORDS};
use super::stage::kinds;
use super::{store, y_lines};
use crate::ir::{Element, Half};
use crate::plan::OperandType;
use crate::schedule::byte_fragments::ByteFragments;
use crate::schedule::group_params::GroupParams;
use crate::schedule::input::{InputScale, TOKEN_TILE};
use crate::schedule::mapping::MainLoop;
use crate::schedule::problem::Problem;
use crate::schedule::stack::Stack;
use crate::schedule::unscheduled::{Unscheduled, UnscheduledPart, WarpGroupLimit};
use crate::target::Feature;
use quantloom_dsl::experts::OperandOf;
use quantloom_dsl::format::NUMBER_F32;

/// The shortest groups whose sums of integers take less time than sums of floats: of 32 columns they took 327 us where floats, whose
/// scales are in the weights, took 181 (W8A8, 8192 x 8192, M = 1024, docs/performance/warp_group.md).
const SHORTEST_OF_INTEGERS: u32 = 64;

/// Whether warp groups are chosen for a product of many tokens, and no other type of its operands would be faster.
pub(in crate::schedule) fn suits(problem: &Problem) -> bool {
    let own = problem.of_warp_groups();
    let main = MainLoop::new(own);
    let short =
        own.sums_integers() && own.scales_segments() && main.segment() < SHORTEST_OF_INTEGERS;
    supported(&main).is_ok() && !short
}

/// The refusal of a product.
fn limited(problem: &Problem, limit: WarpGroupLimit) -> Unscheduled {
    Unscheduled::Scheme { target: problem.target().name, part: UnscheduledPart::WarpGroups(limit) }
}

/// What the schedule supports: products of 16 bits whose codes `ldmatrix` distributes, and whose parameters
/// apply during dequantisation; products of bytes, as they are stored or of such codes.
pub(super) fn supported(main: &MainLoop<'_>) -> Result<(), Unscheduled> {
    let problem = main.problem;
    let target = problem.target();
    let (native, gpu) = (&problem.plan.native, target.gpu);
    let copied = |of: GroupParams| of.tile_words(problem).is_multiple_of(VECTOR_WORDS);
    // A warp reads the number of its rows for each k-tile.
    let read = |of: &GroupParams| {
        of.rows == 1 || problem.scales_sums() && of.columns.is_multiple_of(main.k_tile())
    };
    let of_x = problem.input.scale.and_then(InputScale::columns);
    // A k-tile has one segment: its token scales are those of its stage.
    let whole =
        |columns: u32| columns.is_multiple_of(main.k_tile()) && main.segment() == main.k_tile();
    let facts = [
        (
            target.has(Feature::Wgmma) && gpu.is_some_and(|gpu| gpu.warp_group.is_some()),
            WarpGroupLimit::Target,
        ),
        (element(problem).is_some(), WarpGroupLimit::Type),
        (
            problem.plan.compute.longest_sum.is_none_or(|most| most >= u64::from(problem.k)),
            WarpGroupLimit::LongSums,
        ),
        (problem.stack.is_none_or(|stack| in_stacks(problem, stack)), WarpGroupLimit::Experts),
        (planes_of_lanes(problem), WarpGroupLimit::Planes),
        (
            (problem.plan.dequant.joining().is_some()
                || native.plane_words.len() == words_of_unit(problem))
                && !problem.plan.dequant.has_words_of_rows(),
            WarpGroupLimit::PlacedBits,
        ),
        (main.segment().is_multiple_of(native.columns), WarpGroupLimit::ShortGroups),
        (!problem.corrects_sums(), WarpGroupLimit::Corrections),
        (kinds(main).all(copied) && problem.scale.iter().all(read), WarpGroupLimit::RowBlocks),
        (of_x.is_none_or(whole), WarpGroupLimit::InputGroups),
        (output(problem), WarpGroupLimit::Output),
        (problem.stack.is_none() || y_lines::whole_vectors(problem.n), WarpGroupLimit::OutputRows),
    ];
    match facts.into_iter().find(|(holds, _)| !holds) {
        Some((_, limit)) => Err(limited(problem, limit)),
        None => Ok(()),
    }
}

/// Whether scales can multiply the sums of two tiles of rows, as an expert layer's gate needs.
pub(super) fn exact_pairs(main: &MainLoop<'_>) -> bool {
    main.problem.stack.is_some() && main.problem.scale.is_some()
}

/// Whether operands need not be swapped: codes are stored as rows of operand B, and scales along K are of x and of blocks of
/// so many rows of w as a product has, or whole shares of them where it has rows of two matrices. (Where scales are of single
/// rows, y is no worse off with swapped operands.) Rows of y are whole vectors: lanes read pairs of what rows of w have.
pub(super) fn unswapped_products(main: &MainLoop<'_>) -> bool {
    let problem = main.problem;
    let of_rows = |of: &GroupParams| {
        of.rows.is_multiple_of(UNSWAPPED_ROWS) && of.columns.is_multiple_of(main.k_tile())
    };
    problem.input.fragments == Some(ByteFragments::Rows)
        && y_lines::whole_vectors(problem.n)
        && problem.scales_segments()
        && problem.input.scale.and_then(InputScale::columns).is_some()
        && problem.scale.iter().all(of_rows)
        && (problem.stack.is_some() || store::half_of(problem.output).is_some())
}

/// Whether scales of x along K, which are stored in tiles of tokens, are copied for so many tokens a block. (Of a part
/// of a tile, token blocks would begin within one, and buffers of slots have no tile in part.)
pub(super) fn whole_token_tiles(problem: &Problem, tokens: u32) -> bool {
    let along_k = problem.input.scale.and_then(InputScale::columns).is_some();
    let part = |of: u32| of > 0 && TOKEN_TILE.is_multiple_of(of);
    !along_k || problem.stack.is_none() && part(tokens) || tokens.is_multiple_of(TOKEN_TILE)
}

/// Whether the schedule multiplies the matrices of a stack: in token blocks of sorted pairs. Experts may read x in
/// their own ways if x is in the order of its columns, with scales of rows alone.
fn in_stacks(problem: &Problem, stack: Stack) -> bool {
    let along_k = problem.input.scale.and_then(InputScale::columns).is_some();
    let alike = stack.operand == OperandOf::Row;
    !stack.direct && (alike || !along_k && problem.input.fragments.is_none())
}

/// Whether y has a type that the schedule writes: 16 bits, or f32, of which an expert layer's gate makes none. Sums of
/// shards, which a kernel of its own makes h of, are f32.
fn output(problem: &Problem) -> bool {
    let gated = problem.stack.is_some_and(|stack| stack.gate.is_some());
    match store::half_of(problem.output) {
        Some(_) => problem.stack.is_none_or(|stack| gated || stack.gives_pairs()),
        None => problem.output == NUMBER_F32 && !gated,
    }
}

/// Whether codes of 4 bits are multiplied as e4m3.
pub(super) fn multiplies_nibbles_as_floats(problem: &Problem) -> bool {
    let nibbles = problem.input.fragments == Some(ByteFragments::Nibbles);
    nibbles && element(problem) == Some(Element::E4m3)
}

/// Whether a consumer has words of codes like those of a lane: of planes of 16 bytes, or of narrower ones that sequences
/// join.
fn planes_of_lanes(problem: &Problem) -> bool {
    let plan = &problem.plan;
    let joined = plan.dequant.joining().is_some();
    let mut words = plan.native.plane_words.iter();
    words.all(|&words| words == VECTOR_WORDS || joined && words < VECTOR_WORDS)
}

/// Words that fragments are made of: one, or one of each plane.
fn words_of_unit(problem: &Problem) -> usize {
    if problem.input.fragments == Some(ByteFragments::Rows) {
        return 2;
    }
    problem.plan.dequant.placed().map_or(1, |sequence| sequence.inputs.len())
}

/// The elements of a warp-group instruction for a product, if there is one whose fragments a consumer has: of
/// 16 bits, bytes of narrower codes, or bytes as they are stored.
pub(super) fn element(problem: &Problem) -> Option<Element> {
    match problem.half() {
        Some(Half::Bf16) => Some(Element::Bf16),
        Some(Half::F16) => Some(Element::F16),
        None => {
            let narrow = problem.plan.dequant.weight.code.bits() < 8;
            match problem.input.operand {
                OperandType::I8 if narrow || problem.input.fragments.is_some() => Some(Element::S8),
                OperandType::E4m3 if problem.input.fragments.is_some() => Some(Element::E4m3),
                _ => None,
            }
        }
    }
}
