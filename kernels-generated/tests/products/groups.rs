//! Integer products whose x has a scale, and maybe a zero point, for each group of columns, on every instruction set of
//! this machine, against the f64 reference.

use quantloom_dsl::Scheme;
use quantloom_dsl::format::F32;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::{StaticInput, matmul, quantise_activation};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::op::{Op, Values};
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{Suite, draw};

/// Whole and ragged panels; K of whole blocks, of whole steps of AMX, and of a part of a group and of
/// a chunk.
const SHAPES: [(u64, u64); 5] = [(24, 384), (70, 1152), (32, 64), (33, 200), (5, 37)];

/// M: products that decode on the fly, a tile and its rest, more than one tile of every set.
const TOKENS: [usize; 9] = [1, 2, 3, 5, 8, 9, 14, 17, 35];

/// Weights with their groups, and the activation.
const SCHEMES: [(&str, &str); 36] = [
    ("u4 - 8, scale: f16 per 1x32", "i8 { scale: f32 per 1x32 }"),
    ("u4 - 8, scale: bf16 per 1x32", "i8 { scale: f16 per 1x16 }"),
    ("u4 - 8, scale: bf16 per 1x32", "i8 { scale: f32 per 1x128 }"),
    ("i8, scale: f16 per 1x32", "i8 { scale: f16 per 1x32 }"),
    ("i8, scale: f32 per channel", "i8 { scale: f32 per 1x256 }"),
    ("u8, zero: u8 [g, n], scale: f16 per 1x64", "i8 { scale: f32 per 1x128 }"),
    ("u4, zero: u4 [g, n], scale: f16 per 1x128", "i8 { scale: f32 per 1x32 }"),
    ("u4 - 8, scale: f16 per 1x128", "i8 { scale: f32 per 1x64 }"),
    ("i4, scale: f16 per 1x16", "i8 { scale: f32 per token }"),
    ("i6, scale: f16 per 1x16", "i8 { scale: f32 per 1x256 }"),
    ("u2 - 1, scale: f16 per 1x64", "i8 { scale: e8m0 per 1x32, scale: f32 per token }"),
    ("u3 - 4, scale: f16 per 1x64", "i4 { scale: f32 per 1x96 }"),
    ("i5, scale: bf16 per 16x64", "i8 { scale: f32 per 4x48 }"),
    ("i8, scale: f32 per 1x512", "i8 { scale: f32 per 1x1024 }"),
    ("u4 - 8, scale: f16 per 1x64", "i8 { scale: bf16 per 1x64, scale: f32 per tensor static }"),
    // Codes that a table makes integers.
    ("e2m1, scale: e8m0 per 1x32", "i8 { scale: f32 per 1x32 }"),
    ("e2m1, scale: e4m3 per 1x16, scale: f32 per tensor", "i8 { scale: f32 per 1x16 }"),
    ("e2m1, scale: bf16 per 1x128", "i8 { zero: i8, scale: f32 per token }"),
    (
        "codebook(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), \
         scale: f16 per 1x32",
        "i8 { scale: f16 per 1x32 }",
    ),
    ("codebook(-1, -0.25, 0.125, 15), scale: f32 per 1x64", "i8 { scale: f32 per 1x64 }"),
    ("codebook(-1, 1), scale: f32 per channel", "i8 { scale: f32 per token }"),
    ("codebook(0, 3, 7, -1, 2, 5, 100, -128), scale: f16 per 1x64", "i8 { scale: f32 per 1x128 }"),
    // Zero points: of groups as long as w's, longer, shorter, that end elsewhere; of 8 bits without a sign.
    ("u4 - 8, scale: f16 per 1x32", "i8 { zero: i8, scale: f32 per 1x32 }"),
    ("u4, zero: u4 [g, n], scale: f16 per 1x64", "i8 { zero: i8, scale: f32 per 1x128 }"),
    ("i8, scale: f32 per channel", "i8 { zero: i8, scale: f32 per 1x16, scale: f32 per token }"),
    ("u4 - 8, scale: bf16 per 1x64", "u8 { zero: u8, scale: f32 per 1x48 }"),
    ("e2m1, scale: e8m0 per 1x32", "u8 { zero: u8, scale: f16 per 1x32 }"),
    ("i5, scale: bf16 per 16x64", "u7 { zero: u7, scale: f32 per 4x48 }"),
    ("i8, scale: f32 per channel", "u8 { scale: f32 per token }"),
    ("u4 - 8, scale: f16 per 1x128", "u8 { zero: u8, scale: f32 per tensor static }"),
    ("u4 - 8, scale: f16 per 1x32, index: i32", "u8 { zero: u8, scale: f32 per token }"),
    // Codes of x that are small integers times a power of two.
    ("e2m1, scale: e8m0 per 1x32", "e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }"),
    (
        "e2m1, scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688",
        "e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 static }",
    ),
    ("i8, scale: f32 per channel", "e2m3 { scale: e8m0 per 1x32 from pow2 }"),
    ("u4, zero: u4 [g, n], scale: f16 per 1x128", "e2m1 { scale: f32 per token }"),
    ("u4 - 8, scale: f16 per 1x32", "e2m3 { scale: f32 per 1x64 }"),
];

fn scheme(weight: &str, x: &str) -> Scheme {
    let text = format!("grouped {{ weight: {weight}, pack: [k, n], activation: {x} }}");
    quantloom_dsl::parse(&text).unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

pub(super) fn layer(scheme: &Scheme, shape: Shape, seed: u64) -> Unpacked {
    let packed = pack(scheme, &draw::layer(scheme, shape, seed)).unwrap();
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    Unpacked::new(scheme, shape, &stored).unwrap()
}

fn device(isa: Isa) -> CpuDevice {
    super::device(isa).with_decoders(quantloom_kernels::DECODERS)
}

fn is_of_integers(kernel: &str) -> bool {
    kernel.ends_with("i8 dot") || kernel.ends_with("i8 matrix")
}

/// A code type without a decoder is looked up twice: its bytes are codes, and those the table's.
#[test]
fn tables_of_integers_serve_without_decoders() {
    let weights =
        ["e2m1, scale: e8m0 per 1x32", "codebook(-1, -0.25, 0.125, 15), scale: f32 per 1x64"];
    for weight in Share::new(2, 2).of(weights) {
        let scheme = scheme(weight, "i8 { scale: f32 per 1x32 }");
        for summary in quantloom_tools::conformance::check(&scheme).unwrap() {
            assert!(summary.kernels.iter().all(|kernel| is_of_integers(kernel)), "{summary:?}");
        }
    }
}

#[test]
fn scales_of_groups_of_x_multiply_as_their_reference() {
    let devices: Vec<CpuDevice> = Isa::present().map(device).collect();
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    let cases = SCHEMES.iter().flat_map(|of| SHAPES.into_iter().map(move |shape| (of, shape)));
    for ((weight, x), shape) in Share::new(6, 6).of(cases) {
        let scheme = scheme(weight, x);
        let seeds = (0..6).collect();
        let suite = Suite { shapes: vec![shape], tokens: TOKENS.to_vec(), seeds, every: 1 };
        for result in suite.run(&scheme, &backends, &|_| {}) {
            let summary = result.unwrap_or_else(|failure| panic!("{weight}, {x}: {failure}"));
            let integers = summary.kernels.iter().all(|kernel| is_of_integers(kernel));
            assert!(integers, "{weight}, {x}: {:?}", summary.kernels);
        }
    }
}

/// Groups of x up to 2^60 apart, of zeros, of subnormal numbers, of the largest code at both ends: a
/// scale that is taken from a neighbour shows.
#[test]
fn scales_of_x_may_be_far_apart() {
    let (n, k, tokens) = (40, 328, 19);
    for (weight, x) in [
        ("u4 - 8, scale: f16 per 1x32", "i8 { scale: f32 per 1x32 }"),
        ("i8, scale: f16 per 1x64", "i8 { scale: f32 per 1x64 }"),
        ("u4 - 8, scale: f16 per channel", "i8 { scale: f32 per 1x16 }"),
    ] {
        let scheme = scheme(weight, x);
        let shape = Shape::matrix(n as u64, k as u64);
        let plain = draw::layer(&scheme, shape, 0);
        let columns = 16;
        let values: Vec<f32> = (0..tokens * k)
            .map(|at| {
                let (token, column) = (at / k, at % k);
                let power = match (column / columns + 3 * token) % 7 {
                    0 => return 0.0,
                    1 => -140,
                    2 => -126,
                    turn => 15 * turn as i32 - 60,
                };
                let unit = ((at * 7919) % 255) as f32 - 127.0;
                (unit / 127.0 * (power as f32 / 2.0).exp2()) * (power as f32 / 2.0).exp2()
            })
            .collect();
        let exact: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
        let quantiser = scheme.quantiser().unwrap();
        let given = StaticInput::default();
        let of_x = quantise_activation(&scheme, quantiser, &exact, k, F32, &given).unwrap();
        let read = of_x.values();
        let expected = matmul(&scheme, &plain, 0, &read).unwrap();
        let weight = layer(&scheme, shape, 0);
        let decoded = weight.decode_rows(0..n as u64);
        for isa in Isa::present() {
            let op = device(isa).prepare(&scheme, &weight).unwrap();
            for m in [1, 2, 4, 7, tokens] {
                assert!(is_of_integers(&op.kernel(m)), "{}", op.kernel(m));
                let y = op.matmul(0, Values::F32(&values[..m * k])).unwrap();
                for (at, (y, expected)) in y.iter().zip(&expected).enumerate() {
                    let (token, row) = (at / n, at % n);
                    let (x, w) = (&read[token * k..][..k], &decoded[row * k..][..k]);
                    let terms: f64 = x.iter().zip(w).map(|(x, w)| (x * f64::from(*w)).abs()).sum();
                    // The sum of a segment to f32, times the scale of x, times that of w, one
                    // addition a segment, the factor of the row: of the terms. Below the normal
                    // numbers each of the products loses 2^-150, times a scale of w that is less than 1.
                    let roundings = (k.div_ceil(16) + 5) as f64 / f64::from(1 << 24);
                    let lost = (3 * k.div_ceil(16)) as f64 * (-149f64).exp2();
                    let error = (f64::from(*y) - expected).abs();
                    assert!(
                        error <= 1.01 * roundings * terms + lost,
                        "{isa}, M = {m}, y[{token}, {row}] = {y:e}, not {expected:e}"
                    );
                }
            }
        }
    }
}

/// A set with matrix registers and one without add the same numbers in the same order.
#[test]
fn amx_and_avx512_agree_on_groups_of_x() {
    let both = [Isa::Avx512Amx, Isa::Avx512];
    if both.iter().any(|isa| isa.check().is_err()) {
        return;
    }
    let scheme = scheme("u4 - 8, scale: f16 per 1x128", "i8 { scale: f32 per 1x64 }");
    let (n, k, tokens) = (48, 256, 37);
    let weight = layer(&scheme, Shape::matrix(n, k), 0);
    let x: Vec<f32> =
        (0..tokens * k as usize).map(|at| ((at * 7919) % 511) as f32 - 255.0).collect();
    let [ours, theirs] = both.map(|isa| {
        let op = device(isa).prepare(&scheme, &weight).unwrap();
        assert_eq!(op.kernel(tokens).ends_with("i8 matrix"), isa == Isa::Avx512Amx);
        op.matmul(0, Values::F32(&x)).unwrap()
    });
    assert_eq!(ours, theirs);
}

/// What still multiplies in f32, and why.
#[test]
fn what_integers_do_not_multiply_is_explained() {
    for (weight, x, why) in [
        ("i8, scale: f32 per channel", "i8 { scale: f32 per 1x24 }", "over 16 columns"),
        ("u4 - 8, scale: f16 per 1x24", "i8 { scale: f32 per 1x24 }", "without padding"),
        ("u4 - 8, scale: f16 per 1x32, index: i32", "i8 { scale: f32 per 1x32 }", "in their order"),
        ("u4 - 8, scale: f16 per 1x32", "bf16", "quantised to integers"),
        ("e2m1, scale: f16 per 1x32", "bf16", "quantised to integers"),
        ("e4m3, scale: f16 per 1x32", "i8 { scale: f32 per 1x32 }", "without zero points"),
    ] {
        let scheme = scheme(weight, x);
        let op = device(Isa::best()).prepare(&scheme, &layer(&scheme, Shape::matrix(16, 96), 0));
        let explained = op.unwrap().explain(1);
        assert!(explained.contains(why), "{weight}, {x}: {explained}");
    }
}
