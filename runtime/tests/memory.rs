//! Small products, transforms and files for tools that watch every access to memory (`.ci/memory`):
//! ragged shapes, one token and several, planes of every width, a group index, quantised x.

use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::dequantise;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::conformance::{Suite, draw};

const CLAUSES: &[&str] = &[
    "weight: u4 - 8, scale: bf16 per 1x32, pack: i32 [k:* | w, n], activation: bf16 | f16",
    "weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: own per token }",
    "weight: u3, zero: u3, scale: f16 per 1x8, index: i32, pack: u32 [k:32 | n, w, k], \
     activation: f16",
    "weight: e4m3, scale: f32 per 16x32, pack: [k, n], bias: bf16, \
     activation: e4m3 { scale: f32 per 1x32 }",
    "weight: u6 - 32, scale: i8 per 1x16, scale: f16 per 1x32, \
     pack: u8 [code[0..4], k:2 | k, n] as \"low\", pack: u8 [code[4..6], k:4 | k, n] as \"high\", \
     activation: f32",
    "weight: codebook(-1, -0.25, 0.25, 1), scale: f32 per 1x24, pack: u8 [~k:4 | k, n], \
     activation: bf16",
];

fn schemes() -> impl Iterator<Item = Scheme> {
    let texts = CLAUSES.iter().map(|clauses| format!("s {{ {clauses} }}"));
    texts.map(|text| parse(&text).unwrap_or_else(|faults| panic!("{faults}")))
}

/// Fewer where each step is interpreted.
fn shapes() -> Vec<(u64, u64)> {
    if cfg!(miri) { vec![(3, 40)] } else { vec![(3, 40), (17, 96), (35, 160)] }
}

#[test]
fn products_stay_in_their_memory() {
    let tokens = if cfg!(miri) { vec![1, 5] } else { vec![1, 2, 3, 5, 9, 17] };
    let suite = Suite { shapes: shapes(), tokens, seeds: vec![0], every: 1 };
    let sets = Isa::present().filter(|isa| !cfg!(miri) || *isa == Isa::Portable);
    let devices: Vec<CpuDevice> =
        sets.map(|isa| CpuDevice::of(isa).unwrap().with_bf16_dot(true)).collect();
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    for scheme in schemes() {
        for result in suite.run(&scheme, &backends, &|_| {}) {
            result.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

#[test]
fn transforms_stay_in_their_memory() {
    for scheme in schemes() {
        for (n, k) in shapes() {
            let shape = Shape::matrix(n, k);
            let plain = draw::layer(&scheme, shape, 1);
            let packed = pack(&scheme, &plain).unwrap();
            let stored = |name: &str| packed.get(name).map(Vec::as_slice);
            let weight = Unpacked::new(&scheme, shape, &stored).unwrap();
            let w = dequantise(&scheme, &plain).unwrap();
            let decoded = weight.decode_rows(0..n);
            assert!(w.iter().zip(&decoded).all(|(w, ours)| *w as f32 == *ours), "{scheme}");
        }
    }
}
