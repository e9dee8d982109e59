//! Schedules: kernels as algorithms, written through the [`Builder`](crate::ir::Builder).
//!
//! In: a [`Problem`] (a plan and a shape) and a tile. Out: a [`Kernel`](crate::ir::Kernel), not
//! yet verified. Start at [`choose()`], then [`mod@decode`] and [`mod@tile`], or [`mod@shader`] for
//! targets without matrix instructions. `problem` says what is
//! multiplied and how it lies in memory, `io` declares a product's buffers, `dequantise` writes the
//! plan's sequences, `results` where sums begin and what becomes of them; [`mod@transform`] fills a
//! product's constant buffers from a checkpoint's tensors, and back, [`mod@activation`] makes its
//! operand of x. How to write one:
//! docs/add-a-schedule.md.

pub mod activation;
mod candidates;
mod choices;
mod choose;
mod chunk;
mod constants;
pub mod decode;
mod dequantise;
mod grouped;
mod io;
mod lanes;
mod measured;
mod problem;
mod results;
pub mod shader;
mod sums;
pub mod tile;
pub mod transform;

use crate::target::Class;

/// Registers of a thread that a target's compiler needs besides what a schedule counts, as its reports
/// have shown, where so many sums of a run are made side by side: on AMD 64-bit addresses, steps of
/// bf16 by way of f32, and the sums of all runs of a turn at a time.
fn compiled(problem: &Problem, side_by_side: u32) -> u32 {
    let sums = problem.lanes.d.registers.len() as u32 * side_by_side;
    match problem.target().class {
        Class::Cdna3 | Class::Cdna4 => 32 + (problem.turn / problem.run() - 1) * sums,
        _ => 0,
    }
}

pub use candidates::candidates;
pub use choose::{Chosen, choose, choose_by_model};
pub use grouped::{Grouped, What};
pub use io::{Io, PER_ROW_LAYOUT};
pub use measured::{Case, Measured, WrongLine, measured, measured_rows, merged};
pub use problem::{Input, InputScale, Problem, Unscheduled};
