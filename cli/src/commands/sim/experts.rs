//! `quantloom sim --experts`: the launches of an expert layer on the simulator, and y against the reference.

use anyhow::Result;
use quantloom::dsl::Scheme;
use quantloom::dsl::experts::Gate;
use quantloom_tools::conformance::draw::Regime;
use quantloom_tools::conformance::experts::{ExpertFailure, ExpertSuite, RoutingKind};

use super::super::{backend, eprint_line, print_line, verify_experts};
use super::Arguments;
use crate::printed::shell_word;

/// H x I where none is asked for.
const SHAPE: (u64, u64) = (64, 96);

/// How near the largest error is to its bound; nothing where y is rounded to the type of x, whose
/// rounding is most of the bound.
fn share(share: f64) -> String {
    match share {
        0.0 => String::new(),
        share => format!(", the largest error {share:.3} of its bound"),
    }
}

/// One layer with one type of x: its launches' reports, and the comparison.
pub(super) fn one(arguments: &Arguments, experts: (u32, u32), scheme: &Scheme) -> Result<bool> {
    let named = verify_experts::Narrowed {
        quick: false,
        shape: Some(arguments.shape.unwrap_or(SHAPE)),
        tokens: Some(&[arguments.m as usize]),
        seed: Some(arguments.seed),
    };
    let suite = verify_experts::suite(&arguments.layers, experts, &named)?;
    let first = |all: &[RoutingKind]| all.iter().take(1).copied().collect();
    let suite = ExpertSuite {
        gates: suite.gates.iter().take(1).copied().collect::<Vec<Gate>>(),
        routings: first(&suite.routings),
        ..suite
    };
    let device = backend::simulator(&arguments.target, arguments.seed, &arguments.tuning)?;
    let results = suite.run(scheme, &shell_word(&arguments.scheme), &[&device], &|_| {});
    for report in device.executor().take_reports() {
        print_line(report)?;
    }
    let totals = device.executor().totals();
    let mut well = true;
    for result in results {
        match result {
            Ok(done) => print_line(format_args!(
                "{} launches; y: {} elements within their bounds{} (seed {}: {:?})\n",
                totals.launches,
                done.elements,
                share(done.share),
                arguments.seed,
                Regime::of(arguments.seed)
            ))?,
            Err(failure) => {
                well = false;
                let told = match failure {
                    ExpertFailure::NotScheduled { case, why } => {
                        format!("{case} is not scheduled: {why}")
                    }
                    other => other.to_string(),
                };
                eprint_line(&format!("quantloom: {told}"));
            }
        }
    }
    Ok(well)
}
