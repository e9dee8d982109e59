//! The quantiser beside the reference.

use super::*;
use quantloom_dsl::parse;
use quantloom_dsl::reference::quantise_activation;

/// Quantisers of the catalogue, and some that no software uses.
const ACTIVATIONS: &[(&str, &str)] = &[
    ("i8 { zero: i8, scale: f32 per token, ties: away }", "f32"),
    ("i8 { scale: own per token }", "own"),
    ("i8 { scale: f32 per 1x32 }", "f32"),
    ("i8 { scale: f16 per 1x32 }", "f32"),
    ("i8 { scale: bf16 per 1x24 from amax / 0.001 }", "f32"),
    ("i8 { scale: f16 per 1x16 from amax / 1000000000 }", "f32"),
    ("i8 { scale: f32 per 1x16 }", "own"),
    ("i4 { scale: own per token }", "own"),
    ("i8 { scale: f32 per token from amax / 127 }", "f32"),
    ("i8 { scale: f32 per tensor from amax / 127 }", "f32"),
    ("i8 { scale: f32 per tensor from amax / 127 static }", "f32"),
    ("u8 { zero: u8, scale: f32 per 1x64 }", "f32"),
    ("i8 { zero: i8, scale: f16 per 1x32 }", "f32"),
    ("i4 { zero: i8, scale: bf16 per 1x20 from range / 15 }", "f32"),
    ("i8 { zero: u8, scale: f32 per 1x32 }", "f32"),
    ("e4m3 { scale: own per 1x128 }", "own"),
    ("e4m3 { scale: own per token }", "own"),
    ("e4m3 { scale: f32 per 1x128 }", "f32"),
    ("e4m3fnuz { scale: f32 per token }", "f32"),
    ("e5m2 { scale: f32 per token }", "f32"),
    ("e4m3 { scale: bf16 per tensor static }", "own"),
    ("e4m3 { scale: e8m0 per 1x32 from pow2 above 1.75 }", "own"),
    ("e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }", "own"),
    ("e3m2 { scale: e8m0 per 1x32 from pow2 above 1.875 }", "f32"),
    ("e2m3 { scale: e8m0 per 1x32 from pow2 }", "f32"),
    ("i8 { scale: e8m0 per 1x32 }", "f32"),
    ("u4 { zero: u4, scale: e8m0 per 1x32 }", "own"),
    ("e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 static }", "own"),
    ("e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 }", "f32"),
    ("e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 }", "own"),
    ("e2m1 { scale: e8m0 per 1x32, scale: f32 per token }", "f32"),
    ("e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor static }", "f32"),
    ("e2m1 { scale: e8m0 per 1x32, scale: f32 per tensor static }", "f32"),
    ("e4m3 { scale: e4m3 per 1x16, scale: own per token }", "own"),
    ("e2m1 { scale: e8m0 per 1x32 from pow2 / 0.25 }", "own"),
    ("e2m1 { scale: e4m3 per 1x16, scale: f32 per 1x64 }", "f32"),
    ("e4m3 { scale: e8m0 per 1x32 from amax / 448, scale: f32 per token }", "own"),
    ("e4m3 { scale: e8m0 per 1x32, scale: divide f32 per token }", "own"),
    ("i8 { zero: i8, scale: e8m0 per 1x64, scale: f32 per token }", "f32"),
    ("e5m2 { scale: f16 per 1x32, scale: u8 per token from amax / 9 }", "f32"),
    ("i8 { scale: e1m3fn per token }", "f32"),
    ("i8 { scale: divide e1m0 per token }", "f32"),
];

fn rows(own: FloatFormat, k: usize, case: u32, state: &mut u64) -> Vec<f32> {
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (*state >> 40) as u32
    };
    let value = |random: u32| {
        let unit = f64::from(random) / f64::from(1u32 << 23) - 1.0;
        match case {
            0 => unit * 3.0,
            1 => unit * unit * unit * 1e-6,
            2 => unit * 60000.0,
            3 => f64::from(random % 9) - 4.0, // many ties
            4 => 0.0,
            5 => unit.abs() * 0.3,
            6 => {
                if random.is_multiple_of(50) {
                    unit * 100.0
                } else {
                    unit * 0.01
                }
            }
            7 => unit * 2f64.powi(-126 - (random % 20) as i32), // subnormal in f32
            8 => unit * 1e38,
            9 => unit * 1e-7, // the smallest numbers of f16
            _ => f64::from(random % 255) * 0.5 - 63.5,
        }
    };
    let finite = |x: f64| own.round(x).clamp(-own.max(), own.max()) as f32;
    (0..3 * k).map(|_| finite(value(next()))).collect()
}

#[test]
fn codes_scales_and_zero_points_are_those_of_the_reference() {
    let (k, mut state) = (300, 11u64);
    for (activation, arithmetic) in ACTIVATIONS {
        let text = format!(
            "S {{ weight: i8, scale: f32 per channel, pack: [k, n], activation: {activation}, \
             arithmetic: {arithmetic} }}"
        );
        let scheme = parse(&text).unwrap();
        let quantiser = scheme.quantiser().unwrap();
        let given = |scale: f64| StaticInput {
            scales: quantiser
                .scales
                .iter()
                .map(|level| match (level.stored, level.divide) {
                    (false, _) => Vec::new(),
                    (true, true) => vec![700.0],
                    (true, false) => vec![scale],
                })
                .collect(),
            zeros: vec![3.0],
            ..StaticInput::default()
        };
        for own in [F32, BF16, F16] {
            for case in 0..11 {
                let given = given([0.0, -1.0].get(case as usize).copied().unwrap_or(0.015625));
                let x = rows(own, k, case, &mut state);
                let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let expected =
                    quantise_activation(&scheme, quantiser, &exact, k, own, &given).unwrap();
                let fast = RowQuantiser::new(&scheme, quantiser, &given, own).unwrap();
                let all = ValueRange::of(&x);
                for (token, row) in x.chunks(k).enumerate() {
                    let columns = fast.columns(k);
                    let factor = fast.factor(row, all).unwrap();
                    for (group, values) in row.chunks(columns).enumerate() {
                        let first = group * columns;
                        let parameters = fast.parameters(row, (first, &factor), all).unwrap();
                        let mut codes = vec![0.0; values.len()];
                        fast.codes(values, parameters, &mut codes);
                        for (j, code) in codes.iter().enumerate() {
                            let at = token * k + first + j;
                            let ours = (
                                f64::from(*code),
                                f64::from(parameters.scale),
                                f64::from(parameters.zero),
                            );
                            let theirs =
                                (expected.codes[at], expected.scales[at], expected.zeros[at]);
                            assert!(!ours.0.is_nan() && !ours.1.is_nan(), "{activation}");
                            assert_eq!(
                                ours,
                                theirs,
                                "{activation}, {arithmetic}, x of {own}, case {case}: \
                                 x[{token}, {}] = {}",
                                first + j,
                                x[at]
                            );
                        }
                    }
                }
            }
        }
    }
}
