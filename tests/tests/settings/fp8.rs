//! Settings of FP8 checkpoints: scales of powers of two, static scales of x.

use quantloom_tests::Random;
use serde_json::{Value, json};

use super::{
    assert_product, e4m3, e4m3_codes, f32s, fault, open, product, refused, stored, tokens,
};

/// DeepGEMM's rule: the next power of two of amax / 448, by the bits of that f32.
fn ceil_to_ue8m0(amax: f32) -> f64 {
    let bits = (amax / 448.0).to_bits();
    let exponent = (bits >> 23) + u32::from(bits & 0x7f_ffff != 0);
    f64::from(f32::from_bits(exponent << 23))
}

const FP8: &str = r#"{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}"#;

#[test]
fn ue8m0_scales_are_powers_of_two_rounded_up() {
    let (n, k) = (48, 384);
    let mut random = Random(1);
    let codes = e4m3_codes(&mut random, n * k);
    let mut x = tokens(&mut random, 3 * k);
    // Largest magnitudes at the threshold, and one step of bf16 above it.
    (x[0], x[k], x[2 * k]) = (1.75, 1.7578125, 3.5);
    let config: Value = serde_json::from_str(FP8).unwrap();
    let scales = [0.5f32, 2.0, 0.125];
    for kind in ["F32", "F8_E8M0", "U8"] {
        let bytes = match kind {
            "F32" => f32s(&scales),
            _ => scales.iter().map(|scale| (scale.to_bits() >> 23) as u8).collect(),
        };
        let tensors = [
            stored("weight", "F8_E4M3", &[n, k], codes.clone()),
            stored("weight_scale_inv", kind, &[1, 3], bytes),
        ];
        let file = open(&config, &tensors).unwrap();
        let mut quantised = x.clone();
        for group in quantised.chunks_mut(128) {
            let amax = group.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let scale = ceil_to_ue8m0(amax as f32);
            for x in group {
                *x = e4m3().round(*x / scale) * scale;
            }
        }
        let value = |(at, code): (usize, &u8)| {
            e4m3().decode(u32::from(*code)) * f64::from(scales[at % k / 128])
        };
        let w: Vec<f64> = codes.iter().enumerate().map(value).collect();
        assert_product(&product(&file, &x, k), &quantised, &w, k);
    }
}

#[test]
fn static_scales_of_x_with_blocks_and_without() {
    let (n, k) = (16, 256);
    let mut random = Random(2);
    let codes = e4m3_codes(&mut random, n * k);
    let x = tokens(&mut random, 2 * k);
    let given = 0.003f32;
    for (block, name) in
        [(true, "activation_scale"), (false, "activation_scale"), (true, "input_scale")]
    {
        let mut config = json!({"quant_method": "fp8", "activation_scheme": "static"});
        config["weight_block_size"] = if block { json!([128, 128]) } else { Value::Null };
        let scales = if block { vec![0.5f32, 3.0] } else { vec![0.75] };
        let dims: &[usize] = if block { &[1, 2] } else { &[] };
        let tensors = [
            stored("weight", "F8_E4M3", &[n, k], codes.clone()),
            stored("weight_scale_inv", "F32", dims, f32s(&scales)),
            stored(name, "F32", &[], f32s(&[given])),
        ];
        let file = open(&config, &tensors).unwrap();
        let step = |x: &f64| {
            let quotient = f64::from((*x as f32) / given);
            e4m3().round(quotient.clamp(-448.0, 448.0)) * f64::from(given)
        };
        let quantised: Vec<f64> = x.iter().map(step).collect();
        let scale = |at: usize| f64::from(scales[if block { at % k / 128 } else { 0 }]);
        let value = |(at, code): (usize, &u8)| e4m3().decode(u32::from(*code)) * scale(at);
        let w: Vec<f64> = codes.iter().enumerate().map(value).collect();
        assert_product(&product(&file, &x, k), &quantised, &w, k);
    }
}

#[test]
fn fp8_settings_that_are_refused() {
    let tensors = [
        stored("weight", "F8_E4M3", &[16, 128], vec![0x38; 16 * 128]),
        stored("weight_scale_inv", "F32", &[1, 1], f32s(&[1.0])),
    ];
    let config = |key: &str, value: Value| {
        let mut config: Value = serde_json::from_str(FP8).unwrap();
        config[key] = value;
        config
    };
    assert_eq!(fault(&config("scale_fmt", json!("float")), &tensors), "");
    let cases: &[(&str, Value, &[&str])] = &[
        ("scale_fmt", json!("e5m3"), &["scale_fmt", "e5m3"]),
        ("fmt", json!("e5m2"), &["`fmt`", "e5m2"]),
        ("activation_scheme", json!("weird"), &["activation_scheme"]),
        ("dequantize", json!(true), &["`dequantize`"]),
        ("expert_dtype", json!("fp4"), &["`expert_dtype`"]),
        ("rounding", json!("stochastic"), &["`rounding`", "unknown"]),
        ("modules_to_not_convert", json!(["l"]), &["modules_to_not_convert", "stores quantised"]),
        ("weight_block_size", Value::Null, &["scale_fmt"]),
    ];
    for (key, value, words) in cases {
        refused(&config(key, value.clone()), &tensors, words);
    }
    let beside = |name: &str| [&tensors[..], &[stored(name, "F32", &[1], f32s(&[1.0]))]].concat();
    refused(
        &config("fmt", json!("e4m3")),
        &beside("smooth_scale"),
        &["l.smooth_scale", "may change"],
    );
    refused(&config("fmt", json!("e4m3")), &beside("output_scale"), &["l.output_scale"]);
    assert_eq!(fault(&config("fmt", json!("e4m3")), &beside("k_scale")), "");
}
