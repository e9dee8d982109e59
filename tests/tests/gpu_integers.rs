//! Products of integers on GPUs, of x with zero points and with scales by groups.

use quantloom::codegen::jit::Simulator;
use quantloom::runtime::gpu::GpuDevice;
use quantloom_dsl::experts::Gate;
use quantloom_dsl::{Scheme, parse};
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::Suite;
use quantloom_tools::conformance::experts::{ExpertSuite, RoutingKind};

/// w with its numbers, and x.
const CASES: &[(&str, &str)] = &[
    ("weight: i4, scale: f32 per channel", "i8 { zero: i8, scale: f32 per token }"),
    ("weight: i8, scale: f16 per 1x128, bias: f32", "i8 { zero: i8, scale: f32 per token }"),
    ("weight: i8, scale: f32 per channel, prescale: f32", "i8 { zero: i8, scale: f32 per token }"),
    ("weight: i8, scale: f32 per channel", "i8 { zero: u8, scale: f32 per tensor static }"),
    // The host adds rows of such weights.
    ("weight: u4, zero: u4 per 1x64, scale: f16 per 1x64", "i8 { zero: i8, scale: f32 per token }"),
    ("weight: i4, scale: f16 per 1x32, index: i32", "i8 { zero: i8, scale: f32 per token }"),
    ("weight: i4, shift: f16, scale: f16 per channel", "i8 { zero: i8, scale: f32 per token }"),
    ("weight: i8, scale: f32 per 128x128", "i8 { scale: f32 per 1x128 }"),
    ("weight: i4, scale: f16 per 1x128", "i8 { scale: f32 per 1x64 }"),
    ("weight: i4, scale: f16 per 1x32", "i8 { scale: f32 per 1x32 }"),
    ("weight: i4, scale: bf16 per channel", "i8 { scale: f32 per 1x256 }"),
    // On Hopper floats, if N allows it.
    ("weight: i8, scale: f16 per 1x32", "i8 { scale: f32 per token }"),
    ("weight: u4, zero: u4 per 1x128, scale: f16 per 1x128", "i8 { scale: f32 per token }"),
    ("weight: i4, scale: f16 per 1x32, output: f32", "i8 { scale: f32 per token }"),
];

fn scheme((w, x): (&str, &str)) -> Scheme {
    let text = format!("s {{ {w}, pack: [k, n], activation: {x} }}");
    parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
}

/// On tiles and warp groups, with ragged rows and columns.
#[test]
fn products_are_right() {
    let share = Share::new(16, 4);
    let targets = ["sm_90a", "sm_80", "gfx942", "gfx1201", "wgsl"];
    for (at, &case) in CASES.iter().enumerate() {
        let scheme = scheme(case);
        for (number, chip) in targets.into_iter().enumerate() {
            if !share.takes(at * targets.len() + number) {
                continue;
            }
            let device = GpuDevice::new(Simulator::new(chip).unwrap());
            let shapes = vec![(40, 520), (41, 264)];
            let suite = Suite { shapes, tokens: vec![1, 3, 20], seeds: vec![0, 1], every: 1 };
            let done = suite.run(&scheme, &[&device], &|_| {}).remove(0);
            let done = done.unwrap_or_else(|why| panic!("{case:?} on {chip}: {why}"));
            // Calls with x in 16 bits want y in 16 bits, too.
            let all = done.not_scheduled.is_empty() || scheme.output.is_some();
            assert!(all, "{case:?} on {chip}: {:?}", done.not_scheduled);
        }
    }
}

/// Each expert has sums of its own rows; slots without a pair have neither scale nor zero point.
#[test]
fn expert_layers_are_right() {
    let share = Share::new(6, 2);
    for (at, &case) in CASES.iter().enumerate() {
        if !share.takes(at) {
            continue;
        }
        let scheme = scheme(case);
        let suite = ExpertSuite {
            experts: (8, 3),
            shapes: vec![(72, 136)],
            gates: vec![Gate::Silu],
            routings: vec![RoutingKind::Random],
            tokens: vec![1, 5, 40],
            seeds: vec![3],
            every: 1,
        };
        let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
        let done = suite.run(&scheme, "integers", &[&device], &|_| {}).remove(0);
        done.unwrap_or_else(|why| panic!("{case:?}: {why}"));
    }
}
