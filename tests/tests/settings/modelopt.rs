//! Settings of ModelOpt: every algorithm, and factors on x.

use quantloom_dsl::format::BF16;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_tests::Random;
use serde_json::json;

use super::{
    Stored, assert_multiplied, assert_product, bf16s, e4m3, f32s, open, prescaled, product,
    refused, simulated, stored, tokens,
};

/// A ModelOpt layer of 4-bit integers, two rows in a byte, and its weights.
fn awq(random: &mut Random, (n, k): (usize, usize)) -> (Vec<Stored>, Vec<f64>) {
    let bytes: Vec<u8> = (0..n / 2 * k).map(|_| random.bits() as u8).collect();
    let scales: Vec<f32> = (0..n * (k / 128)).map(|at| 0.5 + at as f32 / 64.0).collect();
    let value = |at: usize| {
        let (row, column) = (at / k, at % k);
        let code = bytes[row / 2 * k + column] >> (4 * (row % 2)) & 15;
        let code = i32::from(code) - if code > 7 { 16 } else { 0 };
        f64::from(code) * f64::from(scales[row * (k / 128) + column / 128])
    };
    let w = (0..n * k).map(value).collect();
    let tensors = vec![
        stored("weight", "U8", &[n / 2, k], bytes),
        stored("weight_scale", "F32", &[n, k / 128], f32s(&scales)),
    ];
    (tensors, w)
}

#[test]
fn x_is_multiplied_by_pre_quant_scale_first() {
    let (n, k) = (32, 256);
    let mut random = Random(3);
    let x = tokens(&mut random, 3 * k);
    let factors: Vec<f64> =
        tokens(&mut random, k).iter().map(|x| BF16.round(x.abs() + 0.25)).collect();
    let (mut tensors, w) = awq(&mut random, (n, k));
    let folded = tensors.clone();
    tensors.push(stored("pre_quant_scale", "BF16", &[k], bf16s(&factors)));
    let config = json!({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 128,
        "has_zero_point": false, "pre_quant_scale": true, "exclude_modules": ["lm_head"]});
    let file = open(&config, &tensors).unwrap();
    let scheme = file.layer("l").map_err(|e| e.to_string()).unwrap().scheme().to_string();
    assert!(scheme.contains("prescale: bf16,"), "{scheme}");
    assert_product(&product(&file, &x, k), &prescaled(&x, &factors), &w, k);
    let plain = open(&config, &folded).unwrap();
    for x in [&x[..], &x[..k]] {
        for device in simulated() {
            assert_multiplied(&device, [&file, &plain], (x, &factors));
        }
    }

    // FP8 codes of the multiplied x; the second scale of the weight is that of the kernels' range.
    let given = 0.01f32;
    tensors.push(stored("input_scale", "F32", &[], f32s(&[given])));
    tensors.push(stored("weight_scale_2", "F32", &[], f32s(&[0.25])));
    let mixed = json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "l": {"quant_algo": "W4A8_AWQ", "group_size": 128, "has_zero_point": false,
            "pre_quant_scale": true},
        "other": {"quant_algo": "FP8"},
    }});
    let file = open(&mixed, &tensors).unwrap();
    let step = |x: &f64| {
        let quotient = f64::from((*x as f32) / given).clamp(-448.0, 448.0);
        e4m3().round(quotient) * f64::from(given)
    };
    let quantised: Vec<f64> = prescaled(&x, &factors).iter().map(step).collect();
    assert_product(&product(&file, &x, k), &quantised, &w, k);
    refused(
        &json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"m": {"quant_algo": "FP8"}}}),
        &tensors,
        &["quantized_layers"],
    );
    let svd = json!({"quant_method": "modelopt", "quant_algo": "NVFP4_SVD", "group_size": 16});
    refused(&svd, &tensors, &["NVFP4_SVD", "low-rank"]);
    tensors.push(stored("svdquant_lora_a", "F32", &[1], f32s(&[1.0])));
    refused(&mixed, &tensors, &["svdquant_lora_a"]);
}

#[test]
fn nvfp4_awq_is_nvfp4_of_the_multiplied_x() {
    let (n, k) = (16, 128);
    let mut random = Random(4);
    let x = tokens(&mut random, 2 * k);
    let factors: Vec<f64> =
        tokens(&mut random, k).iter().map(|x| BF16.round(x.abs() + 0.5)).collect();
    let mut tensors = vec![
        stored("weight", "U8", &[n, k / 2], (0..n * k / 2).map(|_| random.bits() as u8).collect()),
        stored("weight_scale", "F8_E4M3", &[n, k / 16], vec![0x38; n * k / 16]),
        stored("weight_scale_2", "F32", &[], f32s(&[0.5])),
        stored("input_scale", "F32", &[], f32s(&[0.001])),
    ];
    let config = |algorithm: &str| json!({"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16});
    let plain = open(&config("NVFP4"), &tensors).unwrap();
    tensors.push(stored("pre_quant_scale", "BF16", &[k], bf16s(&factors)));
    let file = open(&config("NVFP4_AWQ"), &tensors).unwrap();
    assert_multiplied(&CpuDevice::best(), [&file, &plain], (&x, &factors));
    for device in simulated() {
        assert_multiplied(&device, [&file, &plain], (&x, &factors));
    }
}

#[test]
fn every_algorithm_of_modelopt() {
    let (n, k) = (128, 256);
    let fp8 = |scale: &[usize]| {
        let count = scale.iter().product();
        vec![
            stored("weight", "F8_E4M3", &[n, k], vec![0x38; n * k]),
            stored("weight_scale", "F32", scale, f32s(&vec![0.5; count])),
        ]
    };
    let bytes = |width: usize, scale: &'static str, dims: [usize; 2]| {
        vec![
            stored("weight", "U8", &[n, width], vec![0x21; n * width]),
            stored("weight_scale", scale, &dims, vec![0x38; dims[0] * dims[1]]),
        ]
    };
    let int8 = vec![
        stored("weight", "I8", &[n, k], vec![3; n * k]),
        stored("weight_scale", "F32", &[n], f32s(&vec![0.5; n])),
    ];
    let input = |tensors: Vec<Stored>| {
        [&tensors[..], &[stored("input_scale", "F32", &[], f32s(&[0.5]))]].concat()
    };
    let second = |tensors: Vec<Stored>| {
        [&tensors[..], &[stored("weight_scale_2", "F32", &[], f32s(&[0.5]))]].concat()
    };
    let mxfp8 = vec![
        stored("weight", "F8_E4M3", &[n, k], vec![0x38; n * k]),
        stored("weight_scale", "U8", &[n, k / 32], vec![127; n * k / 32]),
    ];
    let cases = [
        ("FP8", input(fp8(&[])), "per tensor"),
        ("FP8", fp8(&[n]), "per channel"),
        ("FP8_PER_CHANNEL_PER_TOKEN", fp8(&[n]), "per token"),
        ("fp8_pb_wo", fp8(&[1, 1, 2, 1]), "128x128"),
        ("W4A16_NVFP4", second(bytes(k / 2, "F8_E4M3", [n, k / 16])), "weight: e2m1"),
        ("W4A8_NVFP4_FP8", input(second(bytes(k / 2, "F8_E4M3", [n, k / 16]))), "e4m3 {"),
        ("W4A8_MXFP4_FP8", input(bytes(k / 2, "U8", [n, k / 32])), "e8m0 per 1x32"),
        ("MXFP8", mxfp8, "from pow2 above 1.75000011"),
        ("W8A16", int8.clone(), "weight: i8"),
        ("W8A8_SQ_PER_CHANNEL", input(int8), "from amax / 127"),
    ];
    for (algorithm, tensors, words) in cases {
        let config = json!({"quant_method": "modelopt", "quant_algo": algorithm});
        let file = open(&config, &tensors).unwrap();
        let layer = file.layer("l").map_err(|e| format!("{algorithm}: {e}")).unwrap();
        assert!(layer.scheme().to_string().contains(words), "{algorithm}: {}", layer.scheme());
        layer.unpack().unwrap();
    }
}
