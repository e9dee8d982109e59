//! Layers whose experts read x and h in different ways, on simulated GPUs: static scales, zero points,
//! prescales and orders of columns of each matrix. The reference reads them matrix by matrix.

use quantloom::codegen::jit::Simulator;
use quantloom_dsl::experts::Gate;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::experts::{ExpertSuite, RoutingKind};
use rayon::prelude::*;

/// Schemes with static parameters of x, and what each adds.
const SCHEMES: [(&str, &str); 8] = [
    (
        "static_scale",
        "weight: i8, scale: f32 per channel, pack: [k, n], \
         activation: i8 { scale: f32 per tensor static }",
    ),
    // The lanes of a group find the inner scale, which makes up for the matrix's own.
    (
        "static_over_groups",
        "weight: e2m1, scale: e4m3 per 1x16, scale: f32 per tensor, pack: [k, n], \
         activation: e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 static }",
    ),
    (
        "static_zero",
        "weight: i8, scale: f32 per channel, pack: [k, n], \
         activation: u8 { zero: u8, scale: f32 per tensor static }",
    ),
    // Zero points beside codes: sums of rows.
    (
        "static_zero_of_codes",
        "weight: i8, scale: f32 per channel, pack: [k, n], \
         activation: i8 { zero: u8, scale: f32 per tensor static }",
    ),
    ("index", "weight: u4 - 8, scale: f16 per 1x32, index: i32, pack: [k, n], activation: f16"),
    (
        "prescale",
        "weight: i4, scale: bf16 per 1x32, prescale: bf16, pack: [k, n], activation: bf16",
    ),
    // One scale of all rows, each row as the matrix prescales it.
    (
        "prescale_and_all_rows",
        "weight: i8, scale: f32 per channel, prescale: f32, pack: [k, n], \
         activation: i8 { scale: f32 per tensor from amax / 127 }",
    ),
    // A kernel of its own chooses scales of groups in the order of the index.
    (
        "index_and_groups",
        "weight: u4 - 8, scale: f16 per 1x32, index: i32, pack: [k, n], \
         activation: i8 { scale: f32 per 1x32 from amax / 127 }",
    ),
];

const TARGETS: [&str; 5] = ["sm_80", "sm_90a", "gfx942", "gfx950", "wgsl"];

fn scheme((name, clauses): (&str, &str)) -> Scheme {
    parse(&format!("{name} {{ {clauses} }}")).unwrap_or_else(|faults| panic!("{name}: {faults:?}"))
}

/// One of `every` calls of each scheme's layers on these targets is computed, and within its bounds. Of a gate
/// with two shards both matrices of an expert differ, of one with a single shard the experts do.
fn conforms(
    cases: &[(&str, (&str, &str))],
    gates: &[Gate],
    calls: (&[usize], &[RoutingKind]),
    every: usize,
) {
    let suite = ExpertSuite {
        experts: (4, 2),
        shapes: vec![(64, 96)],
        gates: gates.to_vec(),
        routings: calls.1.to_vec(),
        tokens: calls.0.to_vec(),
        // Even seeds have static scales of each matrix.
        seeds: vec![0],
        every,
    };
    cases.par_iter().for_each(|(target, text)| {
        let scheme = scheme(*text);
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        let backends: [&dyn Backend; 1] = [&device];
        let done = suite.run(&scheme, text.0, &backends, &|_| {}).remove(0);
        let done = done.unwrap_or_else(|failure| panic!("{target}: {failure}"));
        assert!(done.not_scheduled.is_empty(), "{} on {target}: {:?}", text.0, done.not_scheduled);
        let of_slots = |of: &str| done.kernels.iter().any(|kernel| kernel.contains(of));
        for gate in gates {
            let of = if gate.shards() == 2 {
                "by matrix gate_up x in"
            } else {
                "by expert gate_up x in"
            };
            assert!(of_slots(of), "{} on {target}, {gate}: {:?}", text.0, done.kernels);
        }
        assert!(of_slots("by expert down x in"), "{} on {target}: {:?}", text.0, done.kernels);
    });
}

#[test]
fn experts_read_x_each_in_its_own_way() {
    let cases: Vec<_> =
        SCHEMES.iter().enumerate().map(|(at, text)| (TARGETS[at % TARGETS.len()], *text)).collect();
    conforms(&cases, &[Gate::Silu], (&[3], &[RoutingKind::Random]), 1);
    // One token: each pair is a token block, and the first product applies the gate.
    let cases: Vec<_> = SCHEMES.iter().map(|text| ("sm_90a", *text)).collect();
    conforms(&cases[..2], &[Gate::UngatedRelu2], (&[1], &[RoutingKind::Logits]), 1);
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn experts_read_x_each_in_its_own_way_on_every_target() {
    let cases = TARGETS.iter().flat_map(|target| SCHEMES.iter().map(move |text| (*target, *text)));
    let cases = Share::new(1, 12).of(cases);
    let gates = [Gate::Silu, Gate::UngatedRelu2];
    conforms(&cases, &gates, (&[1, 2, 9, 33], &RoutingKind::ALL), 4);
}
