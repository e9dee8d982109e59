//! Schedules: kernels as algorithms, written through the [`Builder`](crate::ir::Builder).
//!
//! In: a [`Problem`] (a plan and a shape) and free choices. Out: a [`Kernel`](crate::ir::Kernel), not
//! yet verified. Start at [`Schedule`] and [`choose()`], then [`mod@skinny`] and [`mod@tile`]. How to write a schedule:
//! docs/add-a-schedule.md.
//!
//! | what | modules |
//! |---|---|
//! | Choices | `interface`: the trait; `choose`, `choose_stacked`: the model of costs, for a matrix and for a stack of experts; `candidates_stacked`: what tuning measures; `choices`: free choices as text; `measured`: tiles that were measured (`measured.txt`); `unscheduled`: why there is no kernel |
//! | The product | `problem`: its facts, and the ranges of numbers for which it has faster kernels; `weight_params`, `group_params`: scales, zero points and corrections of w; `input`: x as products read it; `arrange`: groups of any size as segments, and the order of columns; `chunk`, `byte_fragments`: w in memory; `buffers`: slots and layouts |
//! | The distribution of work | `mapping`: instruction, k-tile, the main loop; `lanes`: the lane map, from the matrix instruction's layouts; `participants`: the warps of a step and their barrier |
//! | Parts of kernels | `dequantise`: a plan's steps as operations; `table`: the lookup table of codes; `sums`; `constants`; `epilogue`: sums to y, as a list of steps, and split-K |
//! | Blocks of expert layers | `stack`, `order`, `rows`, `routed_block`: which matrix, which rows of x and y; `pair_group`: a block that finds the pairs of an expert by itself; `combined`: a block that adds the experts of a token; `weights_prefetch`: weights before the wait for the order |
//! | Schedules | [`mod@skinny`]: M <= 16; [`mod@tile`]: any M; [`mod@warp_group`]: any M, on Hopper; [`mod@tensor_memory`]: any M of products that scale their operands, on the data centre's Blackwell; [`mod@shader`]: any M without matrix instructions |
//! | Kernels that are no products | [`mod@transform`]: stored tensors to native buffers and back; [`mod@activation`]: the operand of x; `order_with_operand`: that, and pairs sorted, in one kernel; [`mod@experts`]: routes, sorts, weighs, gates and combines |

pub mod activation;
mod arrange;
mod buffers;
mod byte_fragments;
mod candidates_stacked;
mod choices;
mod choose;
mod choose_stacked;
mod chunk;
mod combined;
mod constants;
mod dequantise;
mod epilogue;
pub mod experts;
mod group_params;
mod input;
mod interface;
mod lanes;
mod mapping;
mod measured;
mod order;
mod order_with_operand;
mod pair_group;
mod participants;
mod problem;
mod routed_block;
mod rows;
pub mod shader;
pub mod skinny;
mod stack;
mod sums;
mod table;
pub mod tensor_memory;
pub mod tile;
pub mod transform;
mod unscheduled;
pub mod warp_group;
mod weight_params;
mod weights_prefetch;

pub use arrange::Order;
pub use buffers::{PER_ROW_LAYOUT, ProductBuffers};
pub use byte_fragments::ByteFragments;
pub use candidates_stacked::candidates_stacked;
pub use choices::RareFlag;
pub use choose::{Chosen, candidates, choose, choose_by_model};
pub use choose_stacked::{choose_stacked, choose_stacked_of};
pub use group_params::{GroupParams, ParamKind};
pub use input::{Input, InputScale, ScaleOrder};
pub use interface::{FreeChoices, Resources, Schedule};
pub use mapping::{MainLoop, Mapping};
pub use measured::{
    Case, Measured, WrongLine, measured, measured_case, measured_in, measured_lines, measured_rows,
    merged,
};
pub use order_with_operand::{order_with_operand, takes as takes_order_with_operand};
pub use problem::Problem;
pub use stack::Stack;
pub use unscheduled::{ChoiceRule, TransformLimit, Unscheduled, UnscheduledPart, WarpGroupLimit};
