//! bitsandbytes: its four bits, with the quantised scales, and what is refused.

use quantloom_tests::Random;
use serde_json::{Value, json};

use super::{f32s, open, refused, stored};

#[test]
fn bitsandbytes_four_bits() {
    let (n, k, block) = (8, 128, 64);
    let mut random = Random(6);
    let bytes: Vec<u8> = (0..n * k / 2).map(|_| random.bits() as u8).collect();
    let map: Vec<f32> = (0..16).map(|at| (at as f32 - 7.0) / 8.0 + 1e-3).collect();
    let blocks = n * k / block;
    let table: Vec<f32> = (0..256).map(|at| at as f32 / 255.0 - 0.3).collect();
    let absmax: Vec<u8> = (0..blocks).map(|_| random.bits() as u8).collect();
    let state = json!({"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": [n, k],
        "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.7});
    let config = json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
        "_load_in_4bit": true, "_load_in_8bit": false, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_use_double_quant": true,
        "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0,
        "llm_int8_has_fp16_weight": false, "llm_int8_skip_modules": null,
        "llm_int8_enable_fp32_cpu_offload": false});
    let scales: Vec<f32> =
        absmax.iter().map(|code| table[usize::from(*code)] * 1.5 + 0.7).collect();
    let text = |state: &Value| state.to_string().into_bytes();
    let tensors = |nested: bool, state: &Value| {
        let mut all = vec![
            stored("weight", "U8", &[n * k / 2, 1], bytes.clone()),
            stored("weight.quant_map", "F32", &[16], f32s(&map)),
            stored("weight.quant_state.bitsandbytes__nf4", "U8", &[text(state).len()], text(state)),
        ];
        if nested {
            all.push(stored("weight.absmax", "U8", &[blocks], absmax.clone()));
            all.push(stored("weight.nested_absmax", "F32", &[1], f32s(&[1.5])));
            all.push(stored("weight.nested_quant_map", "F32", &[256], f32s(&table)));
        } else {
            all.push(stored("weight.absmax", "F32", &[blocks], f32s(&scales)));
        }
        all
    };
    for nested in [false, true] {
        let file = open(&config, &tensors(nested, &state)).unwrap();
        let layer = file.layer("l").map_err(|e| e.to_string()).unwrap();
        let ours = layer.unpack().unwrap().decode_rows(0..n as u64);
        for (at, ours) in ours.iter().enumerate() {
            let code = bytes[at / 2] >> (4 * (1 - at % 2)) & 15;
            assert_eq!(*ours, map[usize::from(code)] * scales[at / block], "{nested} {at}");
        }
    }
    let mut odd = state.clone();
    odd["blocksize"] = json!(96);
    refused(&config, &tensors(false, &odd), &["blocks of 96"]);
    let eight = [
        stored("weight", "I8", &[n, k], vec![1; n * k]),
        stored("SCB", "F32", &[n], f32s(&vec![1.0; n])),
    ];
    refused(&config, &eight, &["llm_int8_threshold"]);
    let hqq = json!({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}});
    refused(&hqq, &eight, &["HQQ"]);
}
