//! `quantloom sim`

use anyhow::Result;
use clap::Args;
use quantloom::dsl::Scheme;
use quantloom_tools::conformance::{Failure, Suite, draw};

use super::sizes::shape;
use super::{backend, eprint_line, print_line, scheme};
use crate::printed::shell_word;

/// The kernels that would be emitted for a GPU, run on the simulator: their counts, and y against
/// the f64 reference.
#[derive(Args)]
#[command(
    after_help = "Numbers are drawn as `verify` does: the seed decides their kind (usual, far \
    apart, smallest, largest, any, special values), and the order of blocks and warps. \
    docs/how-to-read-the-simulator.md explains the output.\n\n\
    Examples:\n  \
    quantloom sim ct_w4a16 --target sm_90a\n  \
    quantloom sim awq4 --target sm_80 --shape 72x640 --m 3 --seed 4"
)]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file.
    #[arg(value_name = "SCHEME")]
    scheme: String,
    /// Which GPU's kernels: sm_80, sm_89, sm_90a, sm_120, gfx942, gfx950, wgsl or wgsl_subgroups.
    #[arg(long, value_name = "TARGET")]
    target: String,
    /// The weight's shape.
    #[arg(long, value_name = "NxK", value_parser = shape, default_value = "320x2880")]
    shape: (u64, u64),
    /// Rows of x.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..4096))]
    m: u32,
    /// Decides all numbers and orders.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    tuning: backend::Tuning,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let scheme = scheme(&arguments.scheme)?;
    let mut well = !scheme.activations.is_empty();
    for activation in &scheme.activations {
        let mut only = scheme.clone();
        only.activations = vec![activation.clone()];
        well &= one(arguments, &only)?;
    }
    Ok(well)
}

/// One type of x: its launches' reports, and the comparison.
fn one(arguments: &Arguments, scheme: &Scheme) -> Result<bool> {
    let device = backend::simulator(&arguments.target, arguments.seed, &arguments.tuning)?;
    let suite = Suite {
        shapes: vec![arguments.shape],
        tokens: vec![arguments.m as usize],
        seeds: vec![arguments.seed],
        every: 1,
    };
    let results = suite.run(scheme, &[&device], &|_| {});
    for report in device.executor().take_reports() {
        print_line(report)?;
    }
    let kind = draw::Regime::of(arguments.seed);
    let mut well = true;
    for result in results {
        match result {
            Ok(done) => print_line(format_args!(
                "y: {} elements within their bounds, the largest error {:.3} of its bound \
                 (seed {}: {kind:?})\n",
                done.elements, done.share, arguments.seed
            ))?,
            Err(failure) => {
                well = false;
                eprint_line(&format!("quantloom: {}", told(arguments, &failure)));
            }
        }
    }
    Ok(well)
}

/// What went wrong, and the command that shows it again.
fn told(arguments: &Arguments, failure: &Failure) -> String {
    let Arguments { scheme, target, shape: (n, k), m, seed, .. } = arguments;
    let again = format!(
        "again: quantloom sim {} --target {target} --shape {n}x{k} --m {m} --seed {seed}",
        shell_word(scheme)
    );
    match failure {
        Failure::Mismatch { case, miss, misses, elements } => format!(
            "{case}: {miss}; {misses} of {elements} elements are beyond their bounds\n{again}"
        ),
        Failure::Refused { case, error } => format!("{case}: {error}\n{again}"),
        Failure::NotScheduled { case, why } => format!("{case} is not scheduled: {why}"),
        other => other.to_string(),
    }
}
