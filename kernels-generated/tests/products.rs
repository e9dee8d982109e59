//! Products of every catalogue scheme on every instruction set of this machine, at partial shapes,
//! against the f64 reference: with the generated decoders, and with the lookup table.

mod bf16_dot;
mod bf16_matrix;
mod groups;

use std::io::Write as _;

use quantloom_dsl::format::{BF16, F16, NUMBER_F32, Overflow};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::matmul;
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::blocking::Instruction;
use quantloom_runtime::cpu::decoder::Decoders;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::cpu::native::Bf16Operand;
use quantloom_runtime::op::{Op, Values, ValuesMut, Workspace, bf16, f16};
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tests::ops::{answers_for_any_tokens, weights};
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{Suite, draw};

/// Whole and ragged panels, more of them than are read side by side; K of whole storage words, for
/// the packings that have no ragged form, more than a decoded block, and of whole steps of 64
/// columns, which the sets with matrix registers take.
const SHAPES: [(u64, u64); 3] = [(24, 384), (70, 640), (32, 64)];

/// M: the products that decode on the fly, in one tile and in two, a tile and its rest, more than one
/// tile of every set.
const TOKENS: [usize; 8] = [1, 2, 3, 5, 9, 14, 17, 35];

fn check(scheme: &Scheme, decoders: Decoders, shapes: &[(u64, u64)], seeds: &[u64]) {
    // The portable set is the same code on Arm, and slow where CI emulates that;
    // `a_scheme_of_each_kind_multiplies_as_its_reference` is for it.
    let emulated = |isa: &Isa| cfg!(target_arch = "aarch64") && *isa == Isa::Portable;
    check_on(Isa::present().filter(|isa| !emulated(isa)), scheme, decoders, shapes, seeds);
}

fn check_on(
    sets: impl Iterator<Item = Isa>,
    scheme: &Scheme,
    decoders: Decoders,
    shapes: &[(u64, u64)],
    seeds: &[u64],
) {
    let suite =
        Suite { shapes: shapes.to_vec(), tokens: TOKENS.to_vec(), seeds: seeds.to_vec(), every: 1 };
    let devices: Vec<CpuDevice> = sets.map(|isa| device(isa).with_decoders(decoders)).collect();
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    for result in suite.run(scheme, &backends, &|_| {}) {
        let summary = result.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(summary.products >= 7 && summary.not_scheduled.is_empty(), "{}", scheme.name);
    }
}

/// Each scheme of the catalogue with each of the shapes.
fn each_with_a_shape() -> impl Iterator<Item = (&'static Scheme, [(u64, u64); 1])> {
    let schemes = quantloom_kernels::catalogue().iter();
    schemes.flat_map(|scheme| SHAPES.into_iter().map(move |shape| (scheme, [shape])))
}

#[test]
fn catalogue_schemes_multiply_as_their_reference() {
    for (scheme, shape) in Share::new(12, 3).of(each_with_a_shape()) {
        check(scheme, quantloom_kernels::DECODERS, &shape, &[0, 4]);
    }
}

#[test]
fn a_table_serves_a_scheme_without_a_decoder() {
    for (scheme, shape) in Share::new(12, 1).of(each_with_a_shape()) {
        check(scheme, &[], &shape, &[3]);
    }
}

/// The first scheme of each type of codes, of those without and with quantised activations.
#[test]
#[ignore = "a part of the tests above, for emulated processors: .ci/arm runs it"]
fn a_scheme_of_each_kind_multiplies_as_its_reference() {
    let mut kinds = Vec::new();
    for scheme in quantloom_kernels::catalogue() {
        let quantised = scheme.activations.iter().any(|x| matches!(x, Activation::Quantised(_)));
        let kind = (scheme.weight.code.clone(), quantised);
        if !kinds.contains(&kind) {
            kinds.push(kind);
            check_on(Isa::present(), scheme, quantloom_kernels::DECODERS, &SHAPES, &[0]);
            check_on(Isa::present(), scheme, &[], &SHAPES, &[3]);
        }
    }
    assert!(kinds.len() > 20, "{} kinds", kinds.len());
}

/// Codes above 127 without an offset: the dot products take them unsigned.
#[test]
fn unsigned_codes_of_eight_bits_are_not_taken_for_signed() {
    let text = "unsigned {
        weight: u8,
        zero: u8 [g, n],
        scale: f16 per 1x128,
        pack: [k, n],
        activation: i8 { scale: f32 per token },
    }";
    check(&quantloom_dsl::parse(text).unwrap(), quantloom_kernels::DECODERS, &SHAPES, &[0, 4]);
}

/// Codes far from 0, and x of one sign: integer sums of 512 columns would leave 32 bits.
#[test]
fn integer_sums_stay_within_their_bits() {
    for (weight, group) in [
        ("u8 - 40000", "channel"),
        ("u8 + 65536", "1x512"),
        ("u8 - 65536", "1x1024"),
        ("i8 - 65536", "channel"),
        ("u1 - 65536", "1x320"),
        ("u4 + 65536", "1x32"),
    ] {
        let text = format!(
            "far {{ weight: {weight}, scale: f32 per {group}, pack: u8 [k:* | w, n], \
             activation: i8 {{ scale: f32 per token }} }}"
        );
        let scheme = quantloom_dsl::parse(&text).unwrap();
        let shape = Shape::matrix(20, 2048);
        let mut plain = draw::layer(&scheme, shape, 0);
        let one = NUMBER_F32.encode(1.0, Overflow::Saturate);
        plain.components.get_mut(&Component::Scale(0)).unwrap().fill(one);
        let packed = pack(&scheme, &plain).unwrap();
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let weight = Unpacked::new(&scheme, shape, &stored).unwrap();
        for isa in Isa::present() {
            let op = CpuDevice::of(isa).unwrap().prepare(&scheme, &weight).unwrap();
            for m in [1, 3, 40] {
                let x = vec![-1.0f32; m * 2048];
                let y = op.matmul(0, Values::F32(&x)).unwrap();
                let exact = matmul(&scheme, &plain, 0, &vec![-1.0; m * 2048]).unwrap();
                for (ours, exact) in y.iter().zip(&exact) {
                    // x is -127 or -127.5 / 127.5 as the rule has it: within a rounding of -1.
                    let error = (f64::from(*ours) / exact - 1.0).abs();
                    assert!(error < 0.005, "{text} on {isa}, M = {m}: {ours}, exact {exact}");
                }
            }
        }
        check(&scheme, quantloom_kernels::DECODERS, &SHAPES, &[0, 3]);
    }
}

/// Of one group of columns, whole or not, an index says nothing: its sums are integers as without one.
#[test]
fn an_index_of_one_group_changes_nothing() {
    let suite = Suite {
        shapes: vec![(20, 16), (3, 9), (17, 1)],
        tokens: vec![1, 3, 17],
        seeds: vec![0, 4],
        every: 1,
    };
    for columns in [4, 16] {
        let text = format!(
            "ordered {{ weight: i8, scale: f32 per 1x{columns}, index: i32, pack: [k, n], \
             activation: i8 {{ scale: f32 per token }} }}"
        );
        let scheme = quantloom_dsl::parse(&text).unwrap();
        let devices: Vec<CpuDevice> =
            Isa::present().map(|isa| CpuDevice::of(isa).unwrap()).collect();
        let backends: Vec<&dyn Backend> =
            devices.iter().map(|device| device as &dyn Backend).collect();
        for result in suite.run(&scheme, &backends, &|_| {}) {
            result.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

const W4A16: &str = "w4a16 {
    weight: u4 - 8,
    scale: bf16 per 1x32,
    pack: [k, n],
    activation: bf16 | f16,
}";

/// Weights in one, two and three bf16 parts, groups that begin inside of a step, zero points.
#[test]
fn weights_of_any_number_of_bf16_parts_multiply_as_their_reference() {
    let weights = [
        "weight: i8, scale: f32 per channel",
        "weight: e2m1, scale: e8m0 per 1x16",
        "weight: u4, zero: u4 [g, n], scale: f16 per 1x8",
        "weight: i5, scale: f32 per 1x32",
        "weight: u3, zero: f16 [g, n], scale: bf16 per 1x64",
    ];
    for weight in Share::new(2, 1).of(weights) {
        let text = format!("parts {{ {weight}, pack: [k, n], activation: bf16 | f16 }}");
        let scheme = quantloom_dsl::parse(&text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        check(&scheme, quantloom_kernels::DECODERS, &SHAPES, &[0, 1, 2, 3, 4, 6, 7]);
    }
}

/// A random layer of [`W4A16`], N x K = 32 x 256.
fn layer() -> Unpacked {
    let scheme = quantloom_dsl::parse(W4A16).unwrap();
    let shape = Shape::matrix(32, 256);
    let packed = pack(&scheme, &draw::layer(&scheme, shape, 0)).unwrap();
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    Unpacked::new(&scheme, shape, &stored).unwrap()
}

/// The device of an instruction set; prints a line if this machine does not have it.
fn present(isa: Isa) -> Option<CpuDevice> {
    let device = CpuDevice::of(isa);
    if let Err(absent) = &device {
        // Not `eprintln!`, whose output is hidden for a test that passes.
        let mut shown = std::io::stderr();
        writeln!(shown, "skipped: {absent}").unwrap();
    }
    device.ok()
}

/// The device of an instruction set that this machine has; its dot products of bf16 numbers are taken whether
/// they are faster here or not.
fn device(isa: Isa) -> CpuDevice {
    CpuDevice::of(isa).unwrap().with_bf16_dot(true)
}

fn product(isa: Isa, weight: &Unpacked, x: &[bf16]) -> Vec<f32> {
    let op = device(isa).prepare(weight.scheme(), weight).unwrap();
    op.matmul(0, Values::Bf16(x)).unwrap()
}

/// A tile of AMX costs the same for fewer than 16 tokens; x in two parts costs twice that, which
/// does not pay for fewer tokens.
#[test]
fn amx_takes_f16_from_17_tokens_on_and_bf16_from_9() {
    let Some(device) = present(Isa::Avx512Amx) else { return };
    let weight = layer();
    let op = device.prepare(weight.scheme(), &weight).unwrap();
    let operand = Bf16Operand::Weight;
    let parts = |x| Some(Instruction::SplitBf16 { operand, segment: 32, weight: 2, x });
    for (tokens, bf16, f16) in [(8, None, None), (9, parts(1), None), (16, parts(1), None)] {
        assert_eq!(op.blocking(tokens, BF16).instruction, bf16, "{tokens} tokens of bf16");
        assert_eq!(op.blocking(tokens, F16).instruction, f16, "{tokens} tokens of f16");
    }
    assert_eq!(op.blocking(17, F16).instruction, parts(2));
}

/// Two tiles of eight tokens decode each panel twice, which takes less time than a decoded block unless many
/// of the tokens are padding.
#[test]
fn integer_products_of_13_to_16_tokens_decode_on_the_fly() {
    let Some(device) = present(Isa::Avx512) else { return };
    let scheme = quantloom_dsl::parse(
        "s { weight: u4 - 8, scale: bf16 per 1x32, pack: [k, n], activation: i8 { scale: f32 per token } }",
    )
    .unwrap();
    let weight = groups::layer(&scheme, Shape::matrix(48, 256), 0);
    let op = device.prepare(&scheme, &weight).unwrap();
    let fused: Vec<usize> = (1..40).filter(|m| op.blocking(*m, F16).fused).collect();
    assert_eq!(fused, [1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16]);
    assert_eq!(op.blocking(14, F16).tiles().map(|tile| tile.size).collect::<Vec<_>>(), [8, 8]);
}

/// Split into parts, infinity times a weight would be NaN if a part of the weight is 0.
#[test]
fn infinities_are_multiplied_as_they_are_without_bf16_parts() {
    let weight = layer();
    let mut x = vec![bf16::ONE; 18 * 256];
    x[3 * 256 + 5] = bf16::INFINITY;
    x[9 * 256 + 70] = bf16::NEG_INFINITY;
    let expected = product(Isa::Portable, &weight, &x);
    assert!(expected.contains(&f32::INFINITY) && expected.contains(&f32::NEG_INFINITY));
    for isa in Isa::present() {
        for (at, (y, expected)) in product(isa, &weight, &x).iter().zip(&expected).enumerate() {
            let same = y == expected || y.is_nan() && expected.is_nan();
            let near = (y - expected).abs() < 1e-4;
            assert!(same || near, "{isa}: y[{}, {}] = {y}, not {expected}", at / 32, at % 32);
        }
    }
}

/// bf16 instructions may flush numbers below 2^-126 to 0, in x and in sums: at most 20 per term, as
/// the bound of `conformance::bound` counts, and tokens of normal numbers lose nothing.
#[test]
fn subnormal_tokens_lose_no_more_than_the_bound_says() {
    let (n, k, tokens) = (32, 256, 18);
    let weight = layer();
    // Every other token is subnormal; the last two of those are about the smallest normal number.
    let x: Vec<bf16> = (0..tokens * k)
        .map(|at| {
            let (token, column) = (at / k, at % k);
            let bits = match token {
                14 | 16 => 0x0080 + (column * 37 % 256) as u16,
                token if token % 2 == 0 => 1 + (column * 37 % 127) as u16,
                _ => 0x3f00 + (column * 37 % 256) as u16,
            };
            bf16::from_bits(bits | ((column % 3 == 0) as u16) << 15)
        })
        .collect();
    let expected = product(Isa::Portable, &weight, &x);
    assert!(expected.iter().step_by(7).all(|y| *y != 0.0), "portable sums keep them");
    // Weights are below 1: 8 codes times a scale of at most 2^-4.
    let lost = 20.0 * k as f64 * f64::from(f32::MIN_POSITIVE);
    for isa in Isa::present() {
        for (at, (y, expected)) in product(isa, &weight, &x).into_iter().zip(&expected).enumerate()
        {
            let error = (f64::from(y) - f64::from(*expected)).abs();
            let token = at / n;
            let size = if token % 2 == 0 { lost } else { 1e-4 };
            assert!(error <= size, "{isa}: y[{token}, {}] = {y:e}, not {expected:e}", at % n);
        }
    }
}

/// The kernels of two instruction sets on the same weight and x, through the public op: integer
/// sums are equal bit for bit, sums of bf16 parts differ at most by both bounds.
#[test]
fn amx_and_avx512_agree() {
    let (Some(amx), Some(avx512)) = (present(Isa::Avx512Amx), present(Isa::Avx512)) else { return };
    let (n, k, tokens) = (48, 256, 37);
    let x: Vec<bf16> = (0..tokens * k)
        .map(|at| {
            bf16::from_bits((0x3e80 + (at * 7919 % 511) as u16) | ((at % 5 < 2) as u16) << 15)
        })
        .collect();
    let weight_of = |text: &str| {
        let scheme = quantloom_dsl::parse(text).unwrap();
        let shape = Shape::matrix(n as u64, k as u64);
        let packed = pack(&scheme, &draw::layer(&scheme, shape, 0)).unwrap();
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        Unpacked::new(&scheme, shape, &stored).unwrap()
    };
    let both = |weight: &Unpacked, said: &str| {
        [amx, avx512].map(|device| {
            let op = device.prepare(weight.scheme(), weight).unwrap();
            assert_eq!(op.kernel(tokens).contains(said), device.isa() == Isa::Avx512Amx);
            op.matmul(0, Values::Bf16(&x)).unwrap()
        })
    };

    let bytes = weight_of(
        "w4a8 {
            weight: u4 - 8,
            scale: bf16 per 1x128,
            pack: [k, n],
            activation: i8 { scale: f32 per token },
        }",
    );
    let [ours, theirs] = both(&bytes, "i8 matrix");
    assert_eq!(ours, theirs, "integer sums");

    let parts = weight_of(
        "w4a16 { weight: e2m1, scale: bf16 per 1x32, pack: [k, n], activation: bf16 | f16 }",
    );
    let [ours, theirs] = both(&parts, "bf16 matrix");
    assert_ne!(ours, theirs, "two kernels");
    // 306 roundings a term, of either: K of a chain, two a segment and a group, 18 besides.
    let roundings = (2 * (k + 2 * (k / 32 + k / 32) + 18)) as f64 / f64::from(1 << 24);
    let weights = parts.decode_rows(0..n as u64);
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let (x, w) = (&x[at / n * k..][..k], &weights[at % n * k..][..k]);
        let value = |x: &bf16| x.to_f64();
        let terms: f64 = x.iter().zip(w).map(|(x, w)| (value(x) * f64::from(*w)).abs()).sum();
        let apart = (f64::from(*ours) - f64::from(*theirs)).abs();
        assert!(apart <= roundings * terms, "y[{}, {}]: {ours} and {theirs}", at / n, at % n);
    }
}

/// The result of `workspace_size` is enough for x of every type.
#[test]
fn a_product_does_not_grow_its_workspace() {
    // A part of a weight by three of an f32.
    let scheme =
        "e2m1 { weight: e2m1, scale: e8m0 per 1x32, pack: [k, n], activation: bf16 | f16 }";
    let scheme = quantloom_dsl::parse(scheme).unwrap();
    let (n, k, tokens) = (32, 4096, 64);
    let packed = pack(&scheme, &draw::layer(&scheme, Shape::matrix(n, k), 0)).unwrap();
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let weight = Unpacked::new(&scheme, Shape::matrix(n, k), &stored).unwrap();
    let count = tokens * k as usize;
    let (bf16s, f16s) = (vec![bf16::ONE; count], vec![f16::ONE; count]);
    let ones = vec![1.0; count];
    let all = [Values::F32(&ones), Values::Bf16(&bf16s), Values::F16(&f16s)];
    for isa in Isa::present() {
        let op = CpuDevice::of(isa).unwrap().prepare(&scheme, &weight).unwrap();
        let mut workspace = Workspace::new(op.workspace_size(tokens));
        let before = workspace.len();
        for x in all {
            let mut y = vec![0.0; tokens * n as usize];
            op.matmul_into(0, x, ValuesMut::F32(&mut y), &mut workspace).unwrap();
            assert_eq!(workspace.len(), before, "{isa}, {:?}", x.format());
        }
    }
}

/// An op has an answer for any number of tokens: no sum of bytes overflows.
#[test]
fn no_number_of_tokens_is_too_large_to_ask_about() {
    for (scheme, weight) in weights() {
        for isa in Isa::present() {
            let op = CpuDevice::of(isa).unwrap().prepare(&scheme, &weight).unwrap();
            answers_for_any_tokens(&op, 256);
        }
    }
}
