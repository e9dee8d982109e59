//! Schedules: kernels as algorithms, written through the [`Builder`](crate::ir::Builder).
//!
//! In: a [`Problem`] (a plan and a shape) and free choices. Out: a [`Kernel`](crate::ir::Kernel), not
//! yet verified. Start at [`Schedule`] and [`choose()`], then [`mod@decode`] and [`mod@tile`], or
//! [`mod@shader`] for targets without matrix instructions. `problem`, `group_numbers`, `input` and
//! `arrange` say what is multiplied; `mapping` and `lanes` how it is shared out, which is a schedule's
//! choice; `io` declares a product's buffers, `dequantise` writes the plan's sequences, `epilogue` what
//! becomes of sums; [`mod@transform`] fills a product's constant buffers from a checkpoint's tensors,
//! and back, [`mod@activation`] makes its operand of x. How to write one: docs/add-a-schedule.md.

pub mod activation;
mod arrange;
mod choices;
mod choose;
mod chunk;
mod constants;
pub mod decode;
mod dequantise;
mod epilogue;
mod group_numbers;
mod grouped;
mod input;
mod interface;
mod io;
mod lanes;
mod mapping;
mod measured;
mod participants;
mod problem;
pub mod shader;
mod sums;
mod table;
pub mod tile;
pub mod transform;

pub use arrange::Order;
pub use choose::{Chosen, candidates, choose, choose_by_model};
pub use grouped::{Grouped, What};
pub use input::{Input, InputScale};
pub use interface::{FreeChoices, Resources, Schedule};
pub use io::{Io, PER_ROW_LAYOUT};
pub use mapping::{MainLoop, Mapping};
pub use measured::{Case, Measured, WrongLine, measured, measured_rows, merged};
pub use problem::{Problem, Unscheduled};
