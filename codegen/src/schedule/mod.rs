//! Schedules: kernels as algorithms, written through the [`Builder`](crate::ir::Builder).
//!
//! In: a [`Problem`] (a plan and a shape) and free choices. Out: a [`Kernel`](crate::ir::Kernel), not
//! yet verified. Start at [`Schedule`] and [`choose()`], then [`mod@skinny`] and [`mod@tile`],
//! [`mod@warp_group`] for Hopper, [`mod@tensor_memory`] for the data centre's Blackwell, or [`mod@shader`] for targets without matrix instructions. `problem`, `weight_params`, `input` and
//! `arrange` describe the product; `mapping` and `lanes` distribute its work over lanes, which is a
//! schedule's choice; `stack`, `order`, `rows`, `routed_block` and `pair_group` say which matrix and which rows of x and y
//! a block of an expert layer has; `buffers` declares a product's buffers, `dequantise` writes the plan's sequences,
//! `epilogue` converts sums to y. [`mod@transform`] repacks a checkpoint's tensors into a product's
//! constant buffers, and back; [`mod@activation`] computes the operand of x; [`mod@experts`] has the
//! kernels of expert layers that are no products. How to write a schedule:
//! docs/add-a-schedule.md.

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
