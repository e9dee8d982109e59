//! Kernels of expert layers on the simulator: against the reference.

mod apply;
mod assembles;
mod combine;
mod exponential;
mod function;
mod launched;
pub(crate) mod mutations;
mod operand;
mod order_with_operand;
mod reciprocal;
mod route;
mod sort;

use launched::{Launched, random};

/// Targets of each kind of kernel source, and both widths of warps.
const TARGETS: [&str; 7] =
    ["sm_80", "sm_90a", "gfx942", "gfx950", "gfx1100", "wgsl", "wgsl_subgroups"];
/// The largest relative error of one rounding to f32.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Whether a result is further away than its bound, or no number.
fn off(found: f64, exact: f64, bound: f64) -> bool {
    let apart = (found - exact).abs();
    apart.is_nan() || apart > bound
}
