//! What a quantiser makes of normal weights by the default rules: no code is clipped, and every level
//! uses its range.

use quantloom_dsl::format::F32;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::parse;
use quantloom_dsl::reference::{dequantise, quantise};

/// About normal, deviation 1, with what makes no two groups alike.
fn weights(shape: Shape) -> Vec<f64> {
    let mut state = 1u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let normal = |_| f64::from(((0..12).map(|_| unit()).sum::<f64>() - 6.0) as f32);
    (0..shape.n * shape.k).map(normal).collect()
}

/// Signal to noise in dB.
fn sqnr(clauses: &str) -> f64 {
    let text = format!("s {{ {clauses}, pack: u8 [k:* | w, n], activation: f32 }}");
    let scheme = parse(&text).unwrap_or_else(|faults| panic!("{faults}"));
    let shape = Shape::matrix(8, 1024);
    let w = weights(shape);
    let plain = quantise(&scheme, shape, &w, F32, None).unwrap();
    let decoded = dequantise(&scheme, &plain).unwrap_or_else(|error| panic!("{text}: {error}"));
    let noise: f64 = w.iter().zip(&decoded).map(|(a, b)| (a - b).powi(2)).sum();
    10.0 * (w.iter().map(|w| w * w).sum::<f64>() / noise).log10()
}

#[test]
fn powers_of_two_over_integer_codes_lose_at_most_a_bit() {
    for (code, least) in [
        ("i8", 40.0),
        ("i4", 15.5),
        ("u8 - 128", 40.0),
        ("u4, zero: u4", 15.5),
        ("u8, shift: f32", 40.0),
    ] {
        let ours = sqnr(&format!("weight: {code}, scale: e8m0 per 1x32"));
        let best = sqnr(&format!("weight: {code}, scale: f32 per 1x32"));
        assert!(ours > least && ours > best - 6.1, "{code}: {ours} dB, with f32 scales {best}");
    }
    // The other rules, as they are written.
    assert!(sqnr("weight: i8, scale: e8m0 per 1x32 from pow2 above 1") > 40.0);
    assert!(sqnr("weight: i8, scale: e8m0 per 1x32 from pow2") < 20.0);
}

#[test]
fn a_coarser_level_leaves_an_integer_level_its_range() {
    let written =
        sqnr("weight: u6 - 32, scale: i8 per 1x16, scale: f16 per 1x256 from amax / 4064");
    let ours = sqnr("weight: u6 - 32, scale: i8 per 1x16, scale: f16 per 1x256");
    assert!(
        ours > 32.0 && (ours - written).abs() < 0.5,
        "{ours} dB, by the written rule {written}"
    );
    for (scales, least) in [
        ("scale: u8 per 1x16, scale: f32 per channel", 40.0),
        ("scale: u4 per 1x16, scale: u8 per 1x256, scale: f32 per tensor", 38.0),
        ("scale: u8 per 1x16, scale: e8m0 per channel", 40.0),
        ("scale: divide u8 per 1x16, scale: f32 per channel", 20.0),
    ] {
        let ours = sqnr(&format!("weight: i8, {scales}"));
        assert!(ours > least, "{scales}: {ours} dB");
    }
    let zero = sqnr("weight: u8, zero: u8, scale: u8 per 1x16, scale: f32 per channel");
    assert!(zero > 40.0, "{zero} dB");
}

/// Integer levels of scales and minima lose little: the coarser levels leave them their range.
#[test]
fn minima_and_scales_may_be_integers() {
    let float = sqnr("weight: u4, scale: f16 per 1x32, shift: f16");
    for (scales, shifts) in [
        ("u6 per 1x32, scale: f16 per 1x256", "-u6, shift: f16 per 1x256"),
        ("u6 per 1x32, scale: f16 per 1x256", "-u6, shift: u8 per 1x256, shift: f32 per channel"),
        ("f16 per 1x32", "u6 - 32, shift: f16 per 1x256"),
    ] {
        let ours = sqnr(&format!("weight: u4, scale: {scales}, shift: {shifts}"));
        assert!(ours > float - 0.7, "{shifts}: {ours} dB, with floats {float}");
    }
    let float = sqnr("weight: u3 - 4, scale: f16 per 1x16");
    let ours = sqnr("weight: u3 - 4, scale: u6 - 32 per 1x16, scale: f16 per 1x256");
    assert!(ours > float - 0.7, "{ours} dB, with floats {float}");
}

/// An index names a group of every level, so that the largest groups decide.
#[test]
fn an_index_serves_levels_of_several_group_sizes() {
    let one = sqnr("weight: i8, scale: f32 per 1x64, index: i32");
    for levels in [
        "scale: e4m3 per 1x16, scale: f32 per 1x64",
        "scale: f32 per 1x64, scale: f16 per 1x32",
        "scale: f32 per 1x32, shift: f16 per 1x64",
        "scale: f32 per 1x16, zero: f32 per 1x64",
    ] {
        let code = if levels.contains("shift") || levels.contains("zero") { "u8" } else { "i8" };
        let ours = sqnr(&format!("weight: {code}, {levels}, index: i32"));
        assert!(ours > one - 1.5, "{levels}: {ours} dB, one level {one}");
    }
}

/// Codes that all stand for 0, or for one other number, leave the rule no steps to divide by.
#[test]
fn codes_of_one_value_have_a_scale() {
    for weight in ["codebook(0, -0)", "codebook(1, 1)"] {
        let text = format!(
            "s {{ weight: {weight}, scale: f32 per channel, pack: u8 [code, pad 7 | k, n], \
             activation: bf16 }}"
        );
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let plain = quantise(&scheme, Shape::matrix(1, 2), &[0.5, -2.0], F32, None).unwrap();
        let values = dequantise(&scheme, &plain).unwrap();
        assert!(values.iter().all(|value| value.is_finite()), "{text}: {values:?}");
    }
}
