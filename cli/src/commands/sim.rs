//! `quantloom sim`

mod experts;

use anyhow::Result;
use clap::Args;
use quantloom::dsl::Scheme;
use quantloom_tools::conformance::{Failure, Suite, draw};

use super::sizes::shape;
use super::{ProductOptions, backend, eprint_line, print_line, verify_experts};
use crate::printed::shell_word;

/// The kernels that would be emitted for a GPU, run on the simulator: their counts, and y against
/// the f64 reference. With --experts, all launches of an expert layer.
#[derive(Args)]
#[command(
    after_help = "Numbers are drawn as `verify` does: the seed decides their kind (usual, far \
    apart, smallest, largest, any, special values), and the order of blocks and warps. \
    docs/how-to-read-the-simulator.md explains the output.\n\n\
    Examples:\n  \
    quantloom sim ct_w4a16 --target sm_90a\n  \
    quantloom sim awq4 --target sm_80 --shape 72x640 --m 3 --seed 4\n  \
    quantloom sim ct_w4a16 --target sm_90a --experts 8x2 --m 3 --routing logits\n  \
    quantloom sim gpt_oss_mxfp4_gate_up --target gfx942 --experts 4x2 --shape 64x96 \
    --gate 'swigluoai alpha 1.702 limit 7'"
)]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file.
    #[arg(value_name = "SCHEME")]
    scheme: String,
    /// Which GPU's kernels: sm_80, sm_89, sm_90a, sm_100a, sm_103a, sm_120, sm_120a, sm_121a,
    /// gfx942, gfx950, gfx1100, gfx1151, gfx1200, gfx1201, wgsl or wgsl_subgroups.
    #[arg(long, value_name = "TARGET")]
    target: String,
    /// The weight's shape: 320x2880 if none is given; HxI of an expert layer: 64x96.
    #[arg(long, value_name = "NxK", value_parser = shape)]
    shape: Option<(u64, u64)>,
    /// Rows of x.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..4096))]
    m: u32,
    /// Decides all numbers and orders.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    tuning: backend::Tuning,
    #[command(flatten)]
    products: ProductOptions,
    #[command(flatten)]
    layers: verify_experts::Layers,
}

/// N x K where none is asked for.
const SHAPE: (u64, u64) = (320, 2880);

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let scheme = arguments.products.scheme(&arguments.scheme)?;
    let mut well = !scheme.activations.is_empty();
    for activation in &scheme.activations {
        let mut only = scheme.clone();
        only.activations = vec![activation.clone()];
        well &= match arguments.layers.experts {
            Some(experts) => experts::one(arguments, experts, &only)?,
            None => one(arguments, &only)?,
        };
    }
    Ok(well)
}

/// One type of x: its launches' reports, and the comparison.
fn one(arguments: &Arguments, scheme: &Scheme) -> Result<bool> {
    let device = backend::simulator(&arguments.target, arguments.seed, &arguments.tuning)?;
    let suite = Suite {
        shapes: vec![arguments.shape.unwrap_or(SHAPE)],
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
    let Arguments { scheme, target, m, seed, .. } = arguments;
    let (n, k) = arguments.shape.unwrap_or(SHAPE);
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
