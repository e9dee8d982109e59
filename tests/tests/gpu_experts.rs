//! Whole expert layers on simulated GPUs: within derived bounds of the reference, with every routing.

use std::sync::Arc;

use quantloom::codegen::jit::{JitWithOverrides, Simulator};
use quantloom_dsl::experts::Gate;
use quantloom_dsl::parse;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::sweep::{self, Share};
use quantloom_tools::conformance::experts::{ExpertFailure, ExpertSuite, RoutingKind};
use rayon::prelude::*;

/// Targets of each kind of kernel source.
const TARGETS: [&str; 7] = ["sm_80", "sm_90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "wgsl"];

/// A scheme of each kind.
const KINDS: [&str; 6] =
    ["ct_w4a16", "ct_w4a16_asym", "ct_w4a8", "ct_fp8_block", "ct_nvfp4", "gpt_oss_mxfp4_down"];

/// Codes with zero points and without, activations that are quantised by token, by group and with a
/// static scale, a bias; where more is asked for, the catalogue. A case is a scheme on a target. What is
/// not scheduled is printed.
#[test]
#[expect(clippy::print_stdout, reason = "what is not scheduled is no failure")]
fn layers_conform() {
    let every = if sweep::is_asked() { 24 } else { 96 };
    let suite = ExpertSuite { every, ..ExpertSuite::default() };
    let all = quantloom_kernels::catalogue().iter().filter_map(quantloom_kernels::name_of);
    let schemes = if sweep::is_asked() { all.collect() } else { KINDS.to_vec() };
    let cases =
        TARGETS.into_iter().flat_map(|target| schemes.iter().map(move |name| (target, *name)));
    let wrong: Vec<String> = Share::new(8, 84)
        .of(cases)
        .into_par_iter()
        .filter_map(|(target, name)| {
            let device = GpuDevice::new(Simulator::new(target).unwrap());
            let scheme = quantloom_kernels::scheme(name).unwrap();
            let backends: [&dyn Backend; 1] = [&device];
            match suite.run(scheme, name, &backends, &|_| {}).remove(0) {
                Ok(summary) => {
                    for (_, why) in &summary.not_scheduled {
                        println!("{name} on {target}: {why}");
                    }
                    (summary.calls == 0).then(|| format!("{name} on {target}: no call"))
                }
                // A scheme without products has no layers either.
                Err(ExpertFailure::NotScheduled { why, .. }) => {
                    println!("{name} on {target}: {why}");
                    None
                }
                Err(failure) => Some(format!("{target}: {failure}")),
            }
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One expert a token with its router weight on the input, which multiplies rows before they are rounded and
/// quantised; and x in f32, which most GPUs round to 16 bits to multiply it.
#[test]
fn a_weight_on_the_input_and_x_in_f32_conform() {
    let clauses = "weight: u4 - 8, scale: f32 per 1x32, pack: [k, n]";
    let activations = ["f32", "i8 { scale: f32 per token from amax / 127 }"];
    let schemes =
        activations.map(|of| parse(&format!("s {{ {clauses}, activation: {of} }}")).unwrap());
    TARGETS.into_par_iter().for_each(|target| {
        for scheme in &schemes {
            let suite = ExpertSuite {
                experts: (3, 1),
                shapes: vec![(64, 96)],
                gates: vec![Gate::Silu],
                routings: vec![RoutingKind::Random, RoutingKind::Logits],
                tokens: vec![1, 5],
                seeds: vec![0],
                every: 1,
            };
            assert!(suite.descriptions().iter().all(|layer| layer.weight_on_input));
            let device = GpuDevice::new(Simulator::new(target).unwrap());
            let backends: [&dyn Backend; 1] = [&device];
            let done = suite.run(scheme, "s", &backends, &|_| {}).remove(0);
            let done = done.unwrap_or_else(|failure| panic!("{target}: {failure}"));
            assert!(done.not_scheduled.is_empty(), "{target}: {:?}", done.not_scheduled);
            let weighed = done.kernels.iter().any(|kernel| kernel.contains("times router weights"));
            assert!(weighed, "{target}: {:?}", done.kernels);
        }
    });
}

/// The kernels of a catalogue's scheme on a simulated Hopper with overrides, all of whose layers conform.
fn kernels_that_conform(suite: &ExpertSuite, name: &str, overrides: &str) -> Vec<String> {
    let source = JitWithOverrides::new(overrides.parse().unwrap());
    let simulator = Simulator::new("sm_90a").unwrap().with_source(Arc::new(source));
    let device = GpuDevice::new(simulator);
    let backends: [&dyn Backend; 1] = [&device];
    let scheme = quantloom_kernels::scheme(name).unwrap();
    let done = suite.run(scheme, name, &backends, &|_| {}).remove(0);
    let done = done.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(done.not_scheduled.is_empty(), "{:?}", done.not_scheduled);
    done.kernels.into_iter().collect()
}

/// Blocks that find the pairs of an expert by themselves in both products, with a kernel for the sum: blocks of four tokens do not add the
/// experts of a token. With pads, zero points, scales of x by token and along K, and every routing.
#[test]
fn products_that_group_pairs_conform() {
    let schemes = ["ct_w4a16_asym", "ct_w4a8", "ct_fp8_block"];
    schemes.into_par_iter().for_each(|name| {
        let suite = ExpertSuite {
            shapes: vec![(41, 200)],
            gates: vec![Gate::Silu],
            tokens: vec![2, 4],
            seeds: vec![0, 3],
            every: 1,
            ..ExpertSuite::default()
        };
        let kernels = kernels_that_conform(&suite, name, "skinny(tokens=4)");
        let there = |parts: [&str; 2]| {
            let has = |kernel: &String| parts.iter().all(|part| kernel.contains(part));
            kernels.iter().any(has)
        };
        let grouped = |product| there([product, "groups_pairs=1"]);
        let down = grouped("direct down") || grouped("direct weighted down");
        assert!(grouped("direct gate_up") && down, "{name}: {kernels:?}");
        assert!(!there(["combined", ""]) && there(["weighted sum of experts", "slots=0"]));
    });
}

/// First products whose blocks write what the second product reads of h: scales beside codes of 8 bits, and in elements of 16 bits, with
/// every routing, of h in f16, f32, which has a kernel between, and bf16, by seed (kernels are told of bf16).
#[test]
fn products_that_write_what_the_next_one_reads_conform() {
    let schemes = ["fp8_block", "ct_mxfp8"];
    schemes.into_par_iter().for_each(|name| {
        let suite = ExpertSuite {
            shapes: vec![(136, 256)],
            gates: vec![Gate::Silu],
            tokens: vec![5, 40],
            seeds: vec![0, 1, 2],
            every: 1,
            ..ExpertSuite::default()
        };
        let choices = "use warp_group; warp_group(unswapped=0, tokens=32, groups=2, row_tiles=2, stages=4, batch=4)";
        let kernels = kernels_that_conform(&suite, name, choices);
        let writes = |kernel: &String| {
            kernel.contains("gate_up and silu") && kernel.contains("to x in bf16")
        };
        assert!(kernels.iter().any(writes), "{name}: {kernels:?}");
        let between = |kernel: &String| kernel.contains("down x in");
        assert!(!kernels.iter().any(between), "{kernels:?}");
    });
}
