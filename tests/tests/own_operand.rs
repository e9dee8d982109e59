//! Blocks that make their operand of x: no kernel before a product of one token quantises x.

use std::sync::Arc;

use quantloom::codegen::jit::{JitWithOverrides, Simulator};
use quantloom::runtime::gpu::GpuDevice;
use quantloom::runtime::op::Op as _;
use quantloom::runtime::pack::pack;
use quantloom::runtime::unpacked::Unpacked;
use quantloom_dsl::experts::Gate;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Scheme, parse};
use quantloom_tools::conformance::experts::{ExpertSuite, RoutingKind};
use quantloom_tools::conformance::{Suite, draw};

/// One of each kind of quantiser: a scale a row, static, of groups; integers, bytes of FP8, elements with their scale; columns with
/// a prescale.
fn schemes() -> Vec<Scheme> {
    let known = [
        "ct_w8a8",
        "quark_w8a8_int8_tensor_static",
        "ct_w4a8",
        "fp8_block",
        "ct_fp8_dynamic",
        "ct_nvfp4",
        "ct_mxfp4",
    ];
    let known = known.map(|name| quantloom_kernels::scheme(name).unwrap().clone());
    let texts = [
        "ragged_prescaled { weight: i8, scale: f32 per channel, prescale: f32, pack: [k, n], \
         activation: i8 { scale: f32 per token } }",
        "ragged_zeros { weight: i8, scale: f32 per channel, pack: [k, n], \
         activation: u8 { zero: u8, scale: f32 per token } }",
        "ragged_codes { weight: i4, scale: f32 per channel, pack: [k, n], \
         activation: i8 { zero: i8, scale: f32 per token } }",
    ];
    let texts = texts.map(|text| parse(text).unwrap_or_else(|faults| panic!("{faults}")));
    known.into_iter().chain(texts).collect()
}

fn simulated(target: &str, choices: &str) -> GpuDevice<Simulator> {
    let source = JitWithOverrides::new(choices.parse().unwrap());
    GpuDevice::new(Simulator::new(target).unwrap().with_source(Arc::new(source)))
}

/// Of every type of x, with more columns than threads have in one vector, with pads, and in blocks that split K.
#[test]
fn products_are_right() {
    for (target, fewest) in [("sm_90a", 10), ("sm_80", 6), ("gfx942", 6)] {
        let mut made = 0;
        for (scheme, splits) in schemes().iter().zip([1, 2].into_iter().cycle()) {
            let choices = format!(
                "use skinny; skinny(makes_operand=1, warps=2, row_tiles=1, splits={splits})"
            );
            let device = simulated(target, &choices);
            // Groups have whole rows alone.
            let ragged = scheme.name.contains("ragged") || scheme.name.starts_with("ct_w8a8");
            let shapes = vec![(40, if ragged { 1149 } else { 1152 })];
            let suite = Suite { shapes, tokens: vec![1], seeds: vec![0, 1, 2], every: 1 };
            let done = suite.run(scheme, &[&device], &|_| {}).remove(0);
            let done = match done {
                Ok(done) => done,
                // With another instruction the tile may need two tokens, or the operand several kernels.
                Err(why) if why.to_string().contains("blocks that make their operand") => continue,
                Err(why) => panic!("{target}, {}: {why}", scheme.name),
            };
            assert_eq!(done.products, 3, "{target}, {}", scheme.name);
            made += 1;
            let reports = device.executor().take_reports();
            let before = reports.iter().find(|report| report.kernel.contains("quantise"));
            assert!(before.is_none(), "{target}, {}: {before:?}", scheme.name);
        }
        assert!(made >= fewest, "{target}: {made}");
    }
}

/// Of a token's row, and in the second product of a row for each of its experts.
#[test]
fn expert_layers_are_right() {
    for name in ["fp8_block", "ct_w8a8", "ct_w4a8", "ct_fp8_dynamic"] {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let suite = ExpertSuite {
            experts: (16, 3),
            shapes: vec![(136, 264)],
            gates: vec![Gate::Silu],
            routings: vec![RoutingKind::Random],
            tokens: vec![1],
            seeds: (0..4).collect(),
            every: 1,
        };
        let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
        let done = suite.run(scheme, name, &[&device], &|_| {}).remove(0);
        done.unwrap_or_else(|why| panic!("{name}: {why}"));
        let reports = device.executor().take_reports();
        // The tile's part of a kernel's name ends so. A row of h whose scale is its own has a kernel.
        let makes = |product: &str| {
            reports.iter().any(|of| of.kernel.contains("px_") && of.kernel.contains(product))
        };
        assert!(makes("gate_up"), "{name}");
        assert_eq!(makes("_down"), name == "fp8_block", "{name}");
    }
}

/// What is measured to be faster is chosen.
#[test]
fn short_rows_of_one_token_are_made_by_blocks() {
    let said = |name: &str, (n, k): (u64, u64), tokens| {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let shape = Shape::matrix(n, k);
        let packed = pack(scheme, &draw::layer(scheme, shape, 7)).unwrap();
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let weight = Unpacked::new(scheme, shape, &stored).unwrap();
        let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
        device.prepare(scheme, &weight).unwrap().explain(tokens)
    };
    let short = (64, 1024);
    for name in ["ct_w8a8", "ct_w4a8", "fp8_block"] {
        assert!(said(name, short, 1).contains("makes_operand=1"), "{}", said(name, short, 1));
    }
    for (name, shape, tokens) in [
        ("ct_w8a8", short, 2),
        ("ct_w8a8", (16, 8192), 1),
        ("ct_fp8_dynamic", short, 1),
        ("ct_nvfp4", short, 1),
        ("ct_w4a16", short, 1),
    ] {
        let said = said(name, shape, tokens);
        assert!(!said.contains("makes_operand"), "{said}");
    }
}
