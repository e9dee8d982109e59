//! Codes as bf16 numbers by Arm's matrix instruction: where they are chosen, and their products against the reference.

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{BF16, F16, F32};
use quantloom_dsl::parse;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::blocking::Instruction;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::cpu::native::{Bf16Code, Bf16Operand};
use quantloom_runtime::op::{Op, Values, ValuesMut, Workspace, bf16, f16};
use quantloom_tools::conformance::Suite;

use super::bf16_dot::{SCHEMES, UnlikeExperts, multiply_alike, prepare};

fn device() -> Option<CpuDevice> {
    Some(super::present(Isa::NeonBf16)?.with_decoders(quantloom_kernels::DECODERS))
}

fn text(code: &str) -> String {
    format!("s {{ {code}, pack: [k, n], activation: bf16 | f16 | f32 }}")
}

#[test]
fn codes_are_multiplied_where_scales_make_weights_of_several_parts() {
    let Some(device) = device() else { return };
    let code = |offset, corrected| Bf16Operand::Code(Bf16Code { offset, corrected });
    let (plain, weight) = (code(8, false), Bf16Operand::Weight);
    // Code and groups; the operand, its parts and the columns of a segment for 64 tokens of bf16, of f16, of f32.
    type Way = Option<(Bf16Operand, usize, usize)>;
    let cases: [(&str, [Way; 3]); 8] = [
        ("weight: u4 - 8, scale: bf16 per 1x32", [Some((plain, 1, 32)); 3]),
        // A chain of three parts of x has 64 columns.
        (
            "weight: u4 - 8, scale: f16 per 1x128",
            [Some((plain, 1, 128)), Some((plain, 1, 128)), Some((plain, 1, 64))],
        ),
        ("weight: u4, zero: u4 per 1x64, scale: f16 per 1x64", [Some((code(0, true), 1, 64)); 3]),
        (
            "weight: u4, shift: f16 per 1x256, scale: f16 per 1x256",
            [
                Some((code(0, true), 1, 128)),
                Some((code(0, true), 1, 128)),
                Some((code(0, true), 1, 64)),
            ],
        ),
        (
            "weight: i6, scale: f32 per 1x96",
            [
                Some((code(32, false), 1, 96)),
                Some((code(32, false), 1, 96)),
                Some((code(32, false), 1, 32)),
            ],
        ),
        // A power of two adds no digits, so that a weight is one part.
        ("weight: e2m1, scale: e8m0 per 1x32", [Some((weight, 1, 32)); 3]),
        // Groups of half a chunk: weights in two parts, which f32 multiplies where x has several, too.
        ("weight: u4 - 8, scale: f16 per 1x16", [Some((weight, 2, 32)), None, None]),
        ("weight: u8, zero: f16 per 1x8, scale: f32 per 1x8", [Some((weight, 3, 32)), None, None]),
    ];
    for (case, ways) in cases {
        let op = prepare(device, &text(case), 768);
        for (x, way) in [BF16, F16, F32].into_iter().zip(ways) {
            let expected = way.map(|(operand, weight, segment)| {
                let x = [BF16, F16, F32].iter().position(|of| *of == x).unwrap() + 1;
                Instruction::SplitBf16 { operand, segment, weight, x }
            });
            assert_eq!(op.blocking(64, x).instruction, expected, "{case}, x in {x:?}");
        }
        let said = op.kernel(64).contains("bf16 matrix");
        assert_eq!(said, ways[0].is_some(), "{case}");
    }
}

/// Codes of one expert have an offset alone, those of the other zero points.
#[test]
fn experts_with_unlike_codes_multiply_as_in_f32() {
    let Some(device) = device() else { return };
    let layer: ExpertLayer = "2 experts of 64 x 96, top 2, softmax, silu".parse().unwrap();
    let source = UnlikeExperts::new(&layer);
    let op = |expert: usize| device.prepare(&source.scheme, &source.matrices[expert][0]).unwrap();
    assert_ne!(op(0).blocking(9, BF16).instruction, op(1).blocking(9, BF16).instruction);
    multiply_alike(&layer, &source, [device, CpuDevice::of(Isa::Neon).unwrap()], &[1, 5, 9, 20]);
}

/// Values of x of each type by groups of three lengths, with zero points and without, in a workspace that is as large as was said.
#[test]
fn a_product_of_codes_does_not_grow_its_workspace() {
    let Some(device) = device() else { return };
    for code in [
        "weight: u4 - 8, scale: f16 per 1x32",
        "weight: u4, zero: u4 per 1x96, scale: f16 per 1x96",
        "weight: i6, scale: f32 per channel",
    ] {
        let (k, tokens) = (768, 64);
        let op = prepare(device, &text(code), k);
        let mut workspace = Workspace::new(op.workspace_size(tokens));
        let before = workspace.len();
        let count = tokens * k as usize;
        let (ones, bf16s, f16s) = (vec![1.0; count], vec![bf16::ONE; count], vec![f16::ONE; count]);
        for x in [Values::F32(&ones), Values::Bf16(&bf16s), Values::F16(&f16s)] {
            let mut y = vec![0.0; tokens * 48];
            op.matmul_into(0, x, ValuesMut::F32(&mut y), &mut workspace).unwrap();
            assert_eq!(workspace.len(), before, "{code}, {:?}", x.format());
        }
    }
}

#[test]
fn products_are_those_of_the_reference() {
    let Some(device) = device() else { return };
    for (code, k, _) in SCHEMES {
        let scheme = parse(&text(code)).unwrap();
        let shapes = [16, 70].map(|n| (n, *k)).to_vec();
        let suite = Suite { shapes, tokens: vec![5, 8, 14, 35], seeds: vec![0, 2, 4], every: 1 };
        for result in suite.run(&scheme, &[&device as &dyn Backend], &|_| {}) {
            let summary = result.unwrap_or_else(|failure| panic!("{code}: {failure}"));
            assert!(summary.products >= 12, "{code}");
            let said = summary.kernels.iter().any(|kernel| kernel.contains("bf16 matrix"));
            // Values of e5m2 reach beyond what is split, and are no codes of integers.
            assert_eq!(said, !code.contains("e5m2"), "{code}: {:?}", summary.kernels);
        }
    }
}
