//! The schedule of warp groups through the runtime, run by the simulator: every scheme of the catalogue that it
//! supports, against the reference, with the native layout and the parameters that other schedules read.

use std::collections::BTreeSet;
use std::sync::Arc;

use quantloom::codegen::jit::{JitWithOverrides, Simulator};
use quantloom::runtime::gpu::{GpuDevice, GpuWeight};
use quantloom::runtime::op::{Op as _, Values, bf16, f16};
use quantloom::runtime::pack::pack;
use quantloom::runtime::unpacked::Unpacked;
use quantloom_dsl::experts::Gate;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{PlainCodes, StoredTensors};
use quantloom_dsl::{Activation, ScaleType, Scheme};
use quantloom_tests::sums;
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::experts::{ExpertSuite, RoutingKind};
use quantloom_tools::conformance::{Suite, draw};
use rayon::prelude::*;

/// N and K that no tile divides; of each row a scheme has the first that its layouts hold.
const SHAPES: [&[(u64, u64)]; 2] =
    [&[(72, 328), (72, 336), (72, 384)], &[(136, 1160), (136, 1184), (136, 1152)]];

/// Schemes of one kind of codes and parameters each that the schedule supports.
const SUPPORTED: &[&str] = &[
    "ct_w4a16",
    "ct_w4a16_asym",
    "ct_w4a16_bias",
    "ct_w8a16",
    "ct_w2a16",
    "ct_mxfp8a16",
    "ct_w4a8",
    "gptq8_v1",
    "ct_w8a8",
    "quark_w8a8_int8_tensor",
    "ct_fp8_dynamic",
    "modelopt_fp8",
    "fp8_block",
    "ct_fp8_block",
    "ct_w4afp8",
    // Integers on both sides, those of w in planes: of 2 and 1 bits, of 4 and 1, of 4 and 2, of all three.
    "ct_w3a8",
    "ct_w5a8",
    "ct_w6a8",
    "ct_w7a8",
    // x whose elements have their scale, beside scales of the same kind on weights; the latter alone.
    "ct_mxfp4",
    "ct_nvfp4",
    "ct_mxfp8",
    "quark_w_mxfp6_e3m2_a_fp8",
    "ct_mxfp4xfp8",
];

/// Tiles of eight tokens, whose blocks have all of K.
const EIGHT_TOKENS: &str =
    "use warp_group; warp_group(tokens=8, groups=1, stages=4, parts=1, splits=1)";
/// Tiles of which two blocks share K.
const TWO_BLOCKS: &str = "use warp_group; warp_group(tokens=32, groups=2, splits=2)";

/// Tiles of 96 tokens.
const THREE_TILES: &str =
    "use warp_group; warp_group(tokens=96, groups=1, row_tiles=1, stages=3, parts=1, splits=1)";

/// What a refusal says.
const UNSUPPORTED: &[&str] = &["no schedule on sm_90a handles", "no block of a warp_group product"];

/// Whether codes have a plane of 2 bits, beside others: its words are in 256 bytes of shared memory, two rounds.
pub(crate) fn reads_in_rounds(scheme: &Scheme) -> bool {
    scheme.weight.code.bits() & 2 != 0 && scheme.weight.code.bits() != 2
}

/// How many products of a scheme on Hopper, with other free choices, were right; none if the schedule does not support the scheme.
pub(crate) fn products(
    scheme: &Scheme,
    choices: &str,
    shapes: &[(u64, u64)],
    m: &[usize],
) -> (usize, String) {
    products_of(3, scheme, choices, (shapes, m))
}

/// The same of a seed, which says of what type x is, and so y.
fn products_of(
    seed: u64,
    scheme: &Scheme,
    choices: &str,
    (shapes, m): (&[(u64, u64)], &[usize]),
) -> (usize, String) {
    let held = |(n, k): (u64, u64)| {
        let shape = Shape { experts: 1, n, k };
        scheme.stores.iter().all(|store| scheme.bind(store, shape).is_ok())
    };
    let Some(&shape) = shapes.iter().find(|shape| held(**shape)) else {
        return (0, "none of the shapes".to_owned());
    };
    let source = JitWithOverrides::new(choices.parse().unwrap());
    let simulator = Simulator::new("sm_90a").unwrap().with_source(Arc::new(source));
    // As inexact as FP8 products may be.
    let simulator = simulator.with_truncated_fp8();
    let device = GpuDevice::new(simulator);
    let suite = Suite { shapes: vec![shape], tokens: m.to_vec(), seeds: vec![seed], every: 1 };
    let done = suite.run(scheme, &[&device], &|_| {}).remove(0);
    let done = match done {
        Ok(done) => done,
        // The schedule says what it does not support; anything else is wrong.
        Err(failure) if UNSUPPORTED.iter().any(|what| failure.to_string().contains(what)) => {
            return (0, failure.to_string());
        }
        Err(failure) => panic!("{}: {failure}", scheme.name),
    };
    let rounds = reads_in_rounds(scheme);
    for report in device.executor().take_reports() {
        let own = report.kernel.contains("warp_group") && !rounds;
        assert!(!own || report.conflicts() == 0, "{}: {report}", scheme.name);
    }
    (done.products, format!("{:?}", done.not_scheduled))
}

/// Schemes whose products the schedule has are right; at least the supported ones are among them.
fn multiply<'s>(
    schemes: impl IntoParallelIterator<Item = &'s Scheme>,
    choices: &str,
    of: (&[(u64, u64)], &[usize]),
) {
    multiply_of(3, schemes, choices, of);
}

/// The same of a seed.
fn multiply_of<'s>(
    seed: u64,
    schemes: impl IntoParallelIterator<Item = &'s Scheme>,
    choices: &str,
    of: (&[(u64, u64)], &[usize]),
) {
    let schemes = schemes.into_par_iter().filter(|scheme| scheme.experts.is_none());
    let done = schemes.map(|scheme| (&scheme.name, products_of(seed, scheme, choices, of)));
    let done: Vec<_> = done.collect();
    let right = done.iter().filter(|(_, (products, _))| *products > 0);
    let right: BTreeSet<&str> = right.map(|(name, _)| name.as_str()).collect();
    let missing: Vec<_> = SUPPORTED.iter().filter(|name| !right.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?} are not supported: {done:?}");
}

#[test]
fn each_kind_of_scheme_multiplies() {
    let schemes: Vec<&Scheme> =
        SUPPORTED.iter().map(|name| quantloom_kernels::scheme(name).unwrap()).collect();
    multiply(schemes, EIGHT_TOKENS, (SHAPES[0], &[9]));
}

/// The same of numbers of rows that no tensor copy of y takes, odd ones and others; and of y in f32.
#[test]
fn each_kind_of_scheme_has_any_number_of_rows_and_y_in_f32() {
    let schemes = SUPPORTED.iter().map(|name| quantloom_kernels::scheme(name).unwrap());
    let shapes = [(77, 328), (78, 336), (77, 384)];
    multiply(schemes.clone().collect::<Vec<_>>(), EIGHT_TOKENS, (&shapes, &[9]));
    // x, and so y, in f32: that of a seed where x is quantised.
    let of_f32 = schemes.map(|scheme| match scheme.quantiser() {
        Some(_) => scheme.clone(),
        None => {
            let activations = vec![Activation::Float(Number::Float(F32))];
            Scheme { activations, ..scheme.clone() }
        }
    });
    let of_f32: Vec<Scheme> = of_f32.collect();
    assert!(of_f32.iter().all(|scheme| draw::own_type(scheme, 2) == F32));
    multiply_of(2, &of_f32, EIGHT_TOKENS, (&[(77, 328), (72, 336), (78, 384)], &[9]));
}

/// Groups shorter than a chunk of codes, of which a lane has all columns of one: their scales round weights.
#[test]
fn short_groups_multiply() {
    let cases = [
        ("u4 - 8", "scale: bf16 per 1x32", EIGHT_TOKENS),
        ("i4", "scale: bf16 per 1x16, scale: f32 per channel", TWO_BLOCKS),
        ("u2 - 2", "scale: bf16 per 1x64, bias: f32", EIGHT_TOKENS),
        ("i8", "scale: bf16 per 1x16", TWO_BLOCKS),
        // Terms of shorter groups than scales.
        ("i8", "shift: f32 per 1x16, scale: f32 per channel", EIGHT_TOKENS),
        ("i8", "shift: f32 per 1x16, scale: f32 per channel", "use skinny"),
        ("u4", "shift: f16 per 1x16, scale: f16 per 1x32", EIGHT_TOKENS),
        ("u4", "zero: u4 per 1x16, scale: f16 per 1x32", EIGHT_TOKENS),
    ];
    for (weight, numbers, choices) in cases {
        let text = format!(
            "short {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: bf16 }}"
        );
        let scheme = quantloom_dsl::parse(&text).unwrap();
        let (right, why) = products(&scheme, choices, &[(72, 392)], &[9]);
        assert!(right > 0, "{text}: {why}");
    }
}

/// The same beside x in f16, in their own layout if numbers are in their ranges, and in that of exact sums if one is not: codes, numbers,
/// one of these beside others of 0.5, and whether it is in its range; `None` if there is one layout for all.
const IN_F16: &[(&str, &str, Component, f64, Option<bool>)] = &[
    ("u4 - 8", "scale: f16 per 1x32", SCALE, 4096.0, Some(true)),
    ("u4 - 8", "scale: f16 per 1x32", SCALE, -0.000_000_059_604_645, Some(true)),
    ("u4 - 8", "scale: f16 per 1x32", SCALE, 8192.0, Some(false)),
    ("u4 - 8", "scale: bf16 per 1x16", SCALE, 0.0, Some(true)),
    ("u4 - 8", "scale: bf16 per 1x16", SCALE, 0.000_007_629_394_531_25, Some(true)),
    ("u4 - 8", "scale: bf16 per 1x16", SCALE, 0.000_003_814_697_265_625, Some(false)),
    ("u2 - 2", "scale: f16 per 1x32", SCALE, 1.0, Some(true)),
    ("u5 - 16", "scale: f16 per 1x16", SCALE, 1.0, Some(true)),
    ("e2m1", "scale: e8m0 per 1x32", SCALE, 2.0, Some(true)),
    ("e2m1", "scale: e8m0 per 1x32", SCALE, 4.0, Some(false)),
    ("e2m1", "scale: e8m0 per 1x32", SCALE, 0.000_000_029_802_322, Some(true)),
    ("e2m1", "scale: e8m0 per 1x32", SCALE, 1e-38, Some(true)),
    ("e3m2", "scale: e8m0 per 1x32", SCALE, 0.25, Some(true)),
    // Scales of which f16 has fewer digits, beside weights that it holds.
    ("e3m2", "scale: e8m0 per 1x32", SCALE, 0.000_000_014_901_161, Some(true)),
    ("e3m2", "scale: e8m0 per 1x32", SCALE, 0.000_000_007_450_580_6, Some(true)),
    ("e3m2", "scale: e8m0 per 1x32", SCALE, 0.000_000_000_029_103_83, Some(true)),
    // Integers are weights of f16 with scales that are none.
    ("u4 - 8", "scale: e8m0 per 1x32", SCALE, 0.000_000_029_802_322, Some(false)),
    ("u4", "zero: u4 per 1x32, scale: e8m0 per 1x32", SCALE, 0.000_000_029_802_322, Some(false)),
    ("e2m1", "scale: e4m3 per 1x16", SCALE, 448.0, None),
    ("e2m1", "scale: e4m3 per 1x16", SCALE, -0.001_953_125, None),
    // More digits than f16 has; below its normal numbers it has fewer.
    ("u4 - 8", "scale: f32 per 1x32", SCALE, 4095.9, Some(true)),
    ("u4 - 8", "scale: f32 per 1x32", SCALE, 4096.1, Some(false)),
    ("u4 - 8", "scale: f32 per 1x32", SCALE, 0.000_061_035_156_25, Some(true)),
    ("u4 - 8", "scale: f32 per 1x32", SCALE, 0.000_061, Some(false)),
    // Levels and terms, among them the smallest number of f16.
    ("u6 - 32", LEVELS, Component::Scale(1), 8.0, Some(true)),
    ("u6 - 32", LEVELS, Component::Scale(1), -0.000_000_059_604_645, Some(true)),
    ("u6 - 32", LEVELS, Component::Scale(1), 8.01, Some(false)),
    ("u4", MINIMA, Component::Shift(1), 128.0, Some(true)),
    ("u4", MINIMA, Component::Shift(1), 0.000_000_059_604_645, Some(true)),
    ("u4", MINIMA, Component::Shift(1), -129.0, Some(false)),
    ("u4", MINIMA, Component::Scale(1), 8.0, Some(true)),
    ("u4", MINIMA, Component::Scale(1), 9.0, Some(false)),
    ("u5", "shift: f16 per 1x32, scale: f16 per 1x32", Component::Shift(0), 16384.0, Some(true)),
    ("u5", "shift: f16 per 1x32, scale: f16 per 1x32", Component::Shift(0), 16400.0, Some(false)),
    ("u4", "zero: u4 per 1x32, scale: f16 per 1x32", SCALE, 1024.0, Some(true)),
];
const SCALE: Component = Component::Scale(0);
const LEVELS: &str = "scale: i8 per 1x16, scale: f16 per 1x256";
const MINIMA: &str = "shift: -u6, shift: f16 per 1x256, scale: u6 per 1x32, scale: f16 per 1x256";

/// A random layer whose floats are 0.5, and `one` in every seventh group of a component.
fn layer_with(scheme: &Scheme, shape: Shape, of: Component, one: f64) -> PlainCodes {
    let mut codes = draw::layer(scheme, shape, 0);
    for (component, all) in &mut codes.components {
        let number = match *component {
            Component::Scale(at) => scheme.scales[usize::from(at)].number,
            Component::Shift(at) => ScaleType::Number(scheme.shifts[usize::from(at)].number),
            _ => continue,
        };
        let ScaleType::Number(number) = number else { panic!("{scheme:?}") };
        let code = |number_of: f64| number.encode(number_of, Overflow::Special);
        if matches!(number, Number::Float(_) | Number::E8m0) {
            all.fill(code(0.5));
        }
        if *component == of {
            all.iter_mut().step_by(7).for_each(|number| *number = code(one));
        }
    }
    codes
}

fn stored_with(scheme: &Scheme, shape: Shape, of: Component, one: f64) -> StoredTensors {
    pack(scheme, &layer_with(scheme, shape, of, one)).unwrap()
}

/// The same layer without shifts and zero points.
fn without_terms(scheme: &Scheme, shape: Shape, of: Component, one: f64) -> Unpacked {
    let mut codes = layer_with(scheme, shape, of, one);
    for (component, all) in &mut codes.components {
        if matches!(component, Component::Shift(_) | Component::Zero) {
            all.fill(0);
        }
    }
    let stored = pack(scheme, &codes).unwrap();
    Unpacked::new(scheme, shape, &|name: &str| stored.get(name).map(Vec::as_slice)).unwrap()
}

#[test]
fn short_groups_in_f16_multiply() {
    let (shape, k) = (Shape::matrix(72, 384), 384);
    for &(weight, numbers, of, one, in_range) in IN_F16 {
        let text =
            format!("s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: f16 }}");
        let scheme = &quantloom_dsl::parse(&text).unwrap();
        let stored = stored_with(scheme, shape, of, one);
        let stored = |name: &str| stored.get(name).map(Vec::as_slice);
        let unpacked = Unpacked::new(scheme, shape, &stored).unwrap();
        let simulator = || Arc::new(Simulator::new("sm_90a").unwrap());
        let weights = [
            GpuWeight::new(simulator(), scheme, &unpacked).unwrap(),
            GpuWeight::of_stored(simulator(), scheme, shape, &stored).unwrap(),
        ];
        let w = unpacked.decode_rows(0..72);
        // Of the same layer, without what is added to products of codes and scales.
        let products = without_terms(scheme, shape, of, one).decode_rows(0..72);
        let terms = w.iter().zip(&products).map(|(w, product)| {
            let [w, product] = [w, product].map(|number| f64::from(*number));
            (product, w - product)
        });
        let terms: Vec<(f64, f64)> = terms.collect();
        for (weight, m) in [(&weights[0], 9), (&weights[1], 1), (&weights[1], 24)] {
            let choice = weight.choice(F16, m as u64).unwrap();
            let parameters = &choice.key.schedule.parameters;
            let of_range = parameters.contains_key("layout_of_range");
            assert_eq!(of_range, in_range == Some(true), "{text} {one:e}");
            let by_warp_groups = choice.key.schedule.name == "warp_group";
            assert_eq!(by_warp_groups, in_range != Some(false) && m > 16, "{text} {one:e}");
            // So small that f16 holds y; and one column, as large as shows each weight of the scale.
            let hot = (1.0 / one.abs()).clamp(1.0 / 1024.0, 1024.0) as f32;
            let small = |at: usize| ((at % 7) as f32 - 3.0) / 1024.0;
            let column = |at: usize| if at.is_multiple_of(k) { hot } else { 0.0 };
            let x = [&small as &dyn Fn(usize) -> f32, &column].map(|of| {
                let x: Vec<f16> = (0..m * k).map(|at| f16::from_f32(of(at))).collect();
                let y = weight.matmul(0, Values::F16(&x)).unwrap();
                (x, y)
            });
            let all = x.iter().flat_map(|(x, y)| y.chunks(72).enumerate().map(move |y| (x, y)));
            for (x, (token, y)) in all {
                let x: Vec<f64> =
                    x[token * k..][..k].iter().map(|x| f64::from(x.to_f32())).collect();
                let all: f64 = x.iter().map(|x| x.abs()).sum();
                for (row, y) in y.iter().enumerate() {
                    let (sum, sizes) = sums::of(&x, &terms[row * k..][..k]);
                    // A rounding of each weight, of its scale and of y to 11 digits, and of each term and a code times a scale
                    // that is as large, and below 2^-14 to multiples of 2^-24; sums in f32.
                    let wrong = (f64::from(*y) - sum).abs();
                    let bound = sizes * (3.0 + 0.1) / 2048.0 + (all + 1.0) / f64::from(1 << 24);
                    assert!(
                        wrong <= bound,
                        "{text} {one:e} M = {m}: y[{token}, {row}] = {y}, not {sum}"
                    );
                }
            }
        }
    }
}

/// A type of scales and x, a scale, and whether a kernel for a range of scales multiplies its weight.
const SCALES: &[(FloatFormat, f64, bool)] = &[
    (BF16, 1.0, true),
    (BF16, 0.0, true),
    (BF16, -1.9921875, true),
    (BF16, 2.0, false),
    (BF16, 1.0 / (1u128 << 124) as f64, false),
    (F16, 4096.0, true),
    (F16, -1.0 / (1 << 24) as f64, true),
    (F16, 4100.0, false),
];

/// Kernels for scales below 2 in bf16 multiply weights of which all scales are: 2 in their constants would be infinite. Those
/// in f16 multiply weights with scales that leave them in its range. Prepared from what is unpacked, and on the device from
/// what is stored.
#[test]
fn kernels_of_a_range_of_scales_multiply_no_others() {
    let (shape, m) = (Shape::matrix(72, 256), 65);
    // So small that f16 holds y.
    let x: Vec<f32> = (0..m * 256).map(|at| ((at % 7) as f32 - 3.0) / 1024.0).collect();
    for &(format, scale, in_range) in SCALES {
        let text = format!(
            "s {{ weight: u4 - 8, scale: {format} per 1x128, pack: u32 [k:* | w, n], activation: {format} }}"
        );
        let scheme = &quantloom_dsl::parse(&text).unwrap();
        let mut codes = draw::layer(scheme, shape, 0);
        let scales = codes.components.get_mut(&Component::Scale(0)).unwrap();
        scales.fill(format.encode(0.5, Overflow::Special));
        scales[3] = format.encode(scale, Overflow::Special);
        let stored = pack(scheme, &codes).unwrap();
        let stored = |name: &str| stored.get(name).map(Vec::as_slice);
        let unpacked = Unpacked::new(scheme, shape, &stored).unwrap();
        // Of f16 the model would choose exact sums of so small a product.
        let choices = if format == F16 && in_range { "warp_group(exact=0)" } else { "" };
        let simulator = || {
            let source = Arc::new(JitWithOverrides::new(choices.parse().unwrap()));
            Arc::new(Simulator::new("sm_90a").unwrap().with_source(source))
        };
        let weights = [
            GpuWeight::new(simulator(), scheme, &unpacked).unwrap(),
            GpuWeight::of_stored(simulator(), scheme, shape, &stored).unwrap(),
        ];
        for weight in weights {
            let choice = weight.choice(format, m as u64).unwrap();
            assert_eq!(choice.key.schedule.name, "warp_group");
            let parameters = &choice.key.schedule.parameters;
            assert_eq!(parameters.contains_key("scales_in_range"), in_range, "{scale:e}");
            // Sums of a group are exact at M = 1.
            let choice = weight.choice(format, 1).unwrap();
            assert!(!choice.key.schedule.parameters.contains_key("scales_in_range"));
            let y = match format {
                F16 => {
                    let x: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
                    weight.matmul(0, Values::F16(&x)).unwrap()
                }
                _ => {
                    let x: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
                    weight.matmul(0, Values::Bf16(&x)).unwrap()
                }
            };
            let w = unpacked.decode_rows(0..72);
            // Seven tokens, of which the others are copies.
            let of_seven = (0..7 * 72).map(|at| {
                let (x, w) = (&x[at / 72 * 256..][..256], &w[at % 72 * 256..][..256]);
                let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                terms.fold((0.0, 0.0), |(sum, sizes), term| (sum + term, sizes + term.abs()))
            });
            let of_seven: Vec<(f64, f64)> = of_seven.collect();
            for (at, y) in y.iter().enumerate() {
                let (sum, sizes) = of_seven[at % (7 * 72)];
                // Two roundings, to bf16 at worst: of a weight and of y.
                let wrong = (f64::from(*y) - sum).abs();
                assert!(wrong <= sizes / 128.0, "{scale:e}: y[{at}] = {y}, not {sum}");
            }
        }
    }
}

/// Codes, powers of two of one group, and whether they stand for the power of two that decoding multiplies with.
const POWERS: &[(&str, f64, bool)] = &[
    ("e2m1", 2.0, true),
    ("e2m1", 4.0, false),
    ("e2m1", 5.877_471_754_111_438e-39, true),
    ("e3m2", 8.0, true),
    ("e3m2", 16.0, false),
];

/// Scales of powers of two multiply weights exactly whether they are in the range of a kernel or not; one token and many, and
/// where codes are multiplied warp by warp.
#[test]
fn powers_of_two_multiply_exactly() {
    let (shape, k) = (Shape::matrix(72, 384), 384);
    for &(weight, one, in_range) in POWERS {
        for chip in ["sm_90a", "sm_80", "gfx942"] {
            let text = format!(
                "s {{ weight: {weight}, scale: e8m0 per 1x32, pack: u32 [k:* | w, n], activation: bf16 }}"
            );
            let scheme = &quantloom_dsl::parse(&text).unwrap();
            let stored = stored_with(scheme, shape, SCALE, one);
            let stored = |name: &str| stored.get(name).map(Vec::as_slice);
            let unpacked = Unpacked::new(scheme, shape, &stored).unwrap();
            let simulator = Arc::new(Simulator::new(chip).unwrap());
            let weight = GpuWeight::new(simulator, scheme, &unpacked).unwrap();
            let w = unpacked.decode_rows(0..72);
            for m in [1, 65] {
                let choice = weight.choice(BF16, m as u64).unwrap();
                let parameters = &choice.key.schedule.parameters;
                let case = format!("{chip}, {text} {one:e}, M = {m}");
                assert_eq!(parameters.contains_key("scales_in_range"), in_range, "{case}");
                // One weight a token: its product is exact, but for a rounding of y.
                let column = |at: usize| if at % k == at / k * 5 % k { 1.0 } else { 0.0 };
                let x: Vec<bf16> = (0..m * k).map(|at| bf16::from_f32(column(at))).collect();
                let y = weight.matmul(0, Values::Bf16(&x)).unwrap();
                for (at, y) in y.iter().enumerate() {
                    let (token, row) = (at / 72, at % 72);
                    let expected = bf16::from_f32(w[row * k + token * 5 % k]);
                    assert_eq!(*y, expected.to_f32(), "{case}: y[{token}, {row}]");
                }
            }
        }
    }
}

/// All matrices of an expert layer have one kernel: a scale of 2 in one of them is one for all. In f16 they have one layout too: what others
/// than warp groups multiply, if one number is out of its range.
#[test]
fn stacks_have_kernels_of_a_range_of_scales() {
    let minima = format!("s {{ weight: u4, {MINIMA}, pack: u32 [k:8 | k, n], activation: f16 }}");
    let minima = quantloom_dsl::parse(&minima).unwrap();
    let w4a16 = quantloom_kernels::scheme("ct_w4a16").unwrap();
    for (scheme, others_by) in [(w4a16, "warp_group"), (&minima, "tile")] {
        stack_of_range(scheme, others_by);
    }
}

fn stack_of_range(scheme: &Scheme, others_by: &str) {
    let device = GpuDevice::new(Simulator::new("sm_90a").unwrap());
    let suite = ExpertSuite {
        experts: (5, 2),
        shapes: vec![(136, 264)],
        gates: vec![Gate::Silu],
        routings: vec![RoutingKind::Random],
        tokens: vec![90, 1],
        seeds: (0..4).collect(),
        every: 1,
    };
    let done = suite.run(scheme, &scheme.name, &[&device], &|_| {}).remove(0);
    done.unwrap_or_else(|failure| panic!("{failure}"));
    let reports = device.executor().take_reports();
    let by = |schedule: &str, in_range: bool| {
        let of =
            |kernel: &str| kernel.contains(schedule) && kernel.contains("in_range") == in_range;
        reports.iter().filter(|report| of(&report.kernel)).count()
    };
    // Some seeds draw scales of all sizes.
    let (of_range, others) = (by("warp_group", true), by(others_by, false));
    assert!(of_range > 0 && others > 0, "{}: {of_range} {others}", scheme.name);
}

/// Few tokens: x whose scales change along K, and one with a scale a token, beside scales of short groups.
#[test]
fn scales_of_x_along_k_multiply_beside_short_groups() {
    for (w, x) in [
        ("weight: u4 - 8, scale: f16 per 1x32", "e4m3 { scale: f32 per 1x128 }"),
        ("weight: u4, zero: u4 per 1x32, scale: f16 per 1x32", "i8 { scale: f32 per 1x128 }"),
        ("weight: i4, scale: f32 per 1x32", "i8 { scale: f32 per 1x64 }"),
        ("weight: i8, scale: f32 per 1x32", "i8 { scale: f32 per 1x128 }"),
        ("weight: e2m1, scale: f32 per 1x32", "e4m3 { scale: f32 per 1x256 }"),
        ("weight: u4 - 8, scale: f16 per 1x32", "e4m3 { scale: f32 per token }"),
    ] {
        let text = format!("s {{ {w}, pack: u32 [k:* | w, n], activation: {x}, output: bf16 }}");
        let scheme = quantloom_dsl::parse(&text).unwrap();
        let (right, why) = products(&scheme, "", &[(72, 512)], &[1, 2, 3]);
        assert!(right > 0, "{text}: {why}");
    }
}

/// Scales of x along K, of groups as long as a k-tile and longer, beside scales of w of blocks of rows, of rows, of
/// channels; blocks of rows that are shorter than a tile of rows; x without scales.
#[test]
fn scales_along_k_multiply() {
    let cases = [
        ("scale: f32 per 128x128", "e4m3 { scale: f32 per 1x128 }", (136, 1160)),
        ("scale: f32 per 16x256", "e4m3 { scale: f32 per 1x128 }", (72, 640)),
        ("scale: f32 per 1x128", "e4m3 { scale: f32 per 1x256 }", (136, 1160)),
        ("scale: f32 per channel", "e4m3 { scale: f32 per 1x256 }", (72, 1160)),
        ("scale: f32 per 128x128", "bf16", (136, 1160)),
    ];
    for ((w, x, shape), choices) in
        cases.into_iter().zip([EIGHT_TOKENS, TWO_BLOCKS].into_iter().cycle())
    {
        let text = format!("blocks {{ weight: e4m3, {w}, pack: [k, n], activation: {x} }}");
        let scheme = quantloom_dsl::parse(&text).unwrap();
        let (right, why) = products(&scheme, choices, &[shape], &[19]);
        assert!(right > 0, "{text}: {why}");
    }
    // Three tiles of scales of tokens a block; integers as many.
    for name in ["fp8_block", "ct_w8a8"] {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let (right, why) = products(scheme, THREE_TILES, &[(136, 384)], &[75]);
        assert!(right > 0, "{name}: {why}");
    }
    // Groups of w that are shorter than those of x: a k-tile has several segments, whatever schedule has them.
    let cases = [
        ("weight: i4, scale: bf16 per 1x64", "e4m3 { scale: f32 per 1x128 }"),
        ("weight: i4, scale: bf16 per 1x64", "i8 { scale: f32 per 1x128 }"),
        ("weight: i7, scale: bf16 per 1x64", "i8 { scale: f32 per token }"),
        ("weight: e4m3, scale: f32 per 1x32", "e4m3 { scale: f32 per 1x128 }"),
    ];
    for (w, x) in cases {
        let pack = match () {
            () if w.contains("i4") => "i8 [code, pad 4 = sign | k, n]",
            () if w.contains("i7") => "i8 [code, pad 1 = sign | k, n]",
            () => "[k, n]",
        };
        let text = format!("shorter {{ {w}, pack: {pack}, activation: {x} }}");
        let scheme = quantloom_dsl::parse(&text).unwrap();
        let (right, why) = products(&scheme, "warp_group(stages=4)", &[(72, 520)], &[19]);
        assert!(right > 0, "{text}: {why}");
    }
}

/// Blocks that persist, with several tiles each; wide ones, whose y goes through shared memory in halves.
#[test]
fn blocks_that_persist_multiply_bytes() {
    let small = "tokens=8, groups=1, row_tiles=1, stages=4, batch=2";
    let wide = "tokens=192, groups=1, row_tiles=1, stages=3, batch=1";
    let cases = [
        ("fp8_block", small, (264, 264), 260),
        ("ct_w8a8", small, (264, 264), 260),
        ("ct_w4afp8", wide, (136, 264), 200),
        ("ct_fp8_dynamic", wide, (72, 264), 390),
    ];
    cases.into_par_iter().for_each(|(name, tile, shape, m)| {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let choices =
            format!("use warp_group; warp_group({tile}, splits=1, persistent=1, unswapped=0)");
        let (right, why) = products(scheme, &choices, &[shape], &[m]);
        assert!(right > 0, "{name}: {why}");
    });
}

/// Operands that are not swapped: rows of w and tokens that no tile divides, K of an odd number of k-tiles and less than one, blocks
/// that persist or share copies of x, one tile of tokens a warp group or two, channels with biases and scales of tensors.
#[test]
fn unswapped_operands_multiply() {
    let of = |numbers: &str| {
        let text = format!(
            "blocks {{ weight: e4m3, {numbers}, pack: [k, n], activation: e4m3 {{ scale: f32 per 1x128 }} }}"
        );
        quantloom_dsl::parse(&text).unwrap()
    };
    let alone = of("scale: f32 per 128x128");
    let biased = of("scale: f32 per 128x128, scale: f32 per tensor, bias: f32");
    let tall = of("scale: f32 per 256x256, scale: f32 per channel");
    let cases = [
        (&alone, "groups=2, row_tiles=1, tokens=128, stages=2, persistent=0", (136, 1160), 150),
        (&biased, "groups=1, row_tiles=2, tokens=128, stages=3, persistent=0", (72, 384), 131),
        (&tall, "groups=1, row_tiles=1, tokens=64, stages=2, persistent=1", (392, 520), 200),
        (&biased, "groups=2, row_tiles=2, tokens=256, stages=3, persistent=1", (264, 72), 300),
        // Scales of more k-tiles than twice as many as a warp has lanes.
        (&alone, "groups=2, row_tiles=1, tokens=128, stages=3, persistent=1", (72, 8840), 131),
        (&alone, "groups=3, row_tiles=1, tokens=192, stages=2, persistent=1", (264, 200), 400),
        (&alone, "groups=3, row_tiles=1, tokens=192, stages=3, persistent=0", (136, 264), 250),
        (
            &alone,
            "groups=1, row_tiles=1, tokens=64, stages=3, persistent=1, multicast=2",
            (648, 392),
            130,
        ),
        (
            &tall,
            "groups=1, row_tiles=1, tokens=64, stages=3, persistent=0, multicast=2",
            (136, 264),
            70,
        ),
    ];
    cases.into_par_iter().for_each(|(scheme, tile, shape, m)| {
        let shared = if tile.contains("multicast") { "" } else { ", multicast=1" };
        let choices = format!(
            "use warp_group; warp_group(unswapped=1, exact=1, parts=1, batch=1, splits=1, {tile}{shared})"
        );
        let (right, why) = products(scheme, &choices, &[shape], &[m]);
        assert!(right > 0, "{choices}: {why}");
    });
}

/// Layers of experts whose x has bytes: integers, e4m3, scales of tokens, of blocks of columns too, which are gathered for
/// the first product and copied in tiles for the second.
#[test]
fn experts_multiply_bytes() {
    let blocks = "short_blocks { weight: e4m3, scale: f32 per 64x128, pack: [k, n], \
                  activation: e4m3 { scale: f32 per 1x128 }, output: bf16 }";
    let short_blocks = &quantloom_dsl::parse(blocks).unwrap();
    let groups = "byte_groups { weight: i8, scale: f32 per 1x128, pack: [k, n], \
                  activation: i8 { scale: f32 per token }, output: bf16 }";
    let byte_groups = &quantloom_dsl::parse(groups).unwrap();
    let constants = "block_constants { weight: e4m3, scale: f32 per 128x128, scale: f32 per channel, bias: f32, pack: [k, n], \
                     activation: e4m3 { scale: f32 per 1x128 }, output: bf16 }";
    let constants = &quantloom_dsl::parse(constants).unwrap();
    let of = |name| quantloom_kernels::scheme(name).unwrap();
    // Operands that are not swapped: both groups have tokens of a tile, or each has tiles of its own.
    let both = "tokens=128, row_tiles=1, groups=2, unswapped=1, exact=1, parts=1, batch=1";
    let ping_pong = "tokens=64, row_tiles=1, groups=2, unswapped=1, exact=1, parts=1, batch=1";
    let ping_pong_of_two =
        "tokens=128, row_tiles=2, groups=2, unswapped=1, exact=1, parts=1, batch=1";
    // Two tiles of rows: of gate and up, whose product has the gate then, or of one matrix.
    let cases = [
        (of("fp8_block"), "tokens=32, row_tiles=1", (384, 264), Gate::UngatedRelu2),
        (of("fp8_block"), "tokens=32, row_tiles=2", (384, 264), Gate::Silu),
        (short_blocks, "tokens=64, row_tiles=2, groups=1", (264, 136), Gate::Silu),
        (byte_groups, "tokens=64, row_tiles=2, groups=1", (264, 136), Gate::Silu),
        (of("ct_w8a8"), "tokens=16, row_tiles=2", (264, 136), Gate::Silu),
        (of("ct_w5a8"), "tokens=16, row_tiles=2", (264, 136), Gate::Silu),
        (of("ct_w7a8"), "tokens=16, row_tiles=2", (264, 136), Gate::Silu),
        (of("ct_w4a8"), "tokens=8, row_tiles=2", (264, 136), Gate::Silu),
        (of("ct_w4afp8"), "tokens=8, row_tiles=1", (264, 136), Gate::Silu),
        (of("ct_fp8_dynamic"), "tokens=48, row_tiles=2", (264, 136), Gate::UngatedSilu),
        (of("fp8_block"), both, (264, 136), Gate::Silu),
        (of("fp8_block"), ping_pong, (384, 264), Gate::Silu),
        (constants, ping_pong, (392, 264), Gate::UngatedRelu2),
        (constants, ping_pong_of_two, (392, 264), Gate::Silu),
        (constants, both, (392, 136), Gate::UngatedSilu),
    ];
    Share::new(2, 2).of(cases).into_par_iter().for_each(|(scheme, tile, shape, gate)| {
        let name = &format!("{}, {tile}", scheme.name);
        let swapped = if tile.contains("unswapped") { "" } else { ", unswapped=0" };
        let choices = format!("use warp_group; warp_group({tile}{swapped}, stages=4)");
        let source = JitWithOverrides::new(choices.parse().unwrap());
        let simulator = Simulator::new("sm_90a").unwrap().with_source(Arc::new(source));
        let device = GpuDevice::new(simulator.with_truncated_fp8());
        let suite = ExpertSuite {
            experts: (5, 2),
            shapes: vec![shape],
            gates: vec![gate],
            routings: vec![RoutingKind::Random],
            tokens: vec![44],
            // One of them has x in 16 bits, as products with a gate need, and y and parts in 16 bits.
            seeds: vec![0, 1],
            every: 1,
        };
        let done = suite.run(scheme, name, &[&device], &|_| {}).remove(0);
        let done = done.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(done.calls == 2 && done.not_scheduled.is_empty(), "{name}: {done:?}");
        let reports = device.executor().take_reports();
        let products = reports.iter().filter(|report| report.kernel.contains("warp_group"));
        let products: Vec<_> = products.collect();
        assert_eq!(products.len(), 4, "{name}");
        let gated = products.iter().filter(|product| product.kernel.contains("_silu")).count();
        let fused = gate != Gate::UngatedRelu2
            && (tile.contains("row_tiles=2") || tile.contains("unswapped=1"));
        assert_eq!(gated > 0, fused, "{name}");
        let rounded = |kernel: &str| kernel.contains("_down_") && !kernel.contains("_f32_down_");
        let rounded = products.iter().filter(|product| rounded(&product.kernel)).count();
        assert_eq!(rounded, 1, "{name}");
        for report in products.into_iter().filter(|_| !reads_in_rounds(scheme)) {
            assert_eq!(report.conflicts(), 0, "{name}: {report}");
        }
    });
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn the_catalogue_multiplies() {
    let cases: [(&str, (_, &[usize])); 4] = [
        ("use warp_group", (SHAPES[0], &[17])),
        ("use warp_group", (SHAPES[1], &[3, 70])),
        (TWO_BLOCKS, (SHAPES[0], &[17])),
        (TWO_BLOCKS, (SHAPES[1], &[3, 70])),
    ];
    for (choices, of) in Share::new(1, 3).of(cases) {
        multiply(quantloom_kernels::catalogue(), choices, of);
    }
}
