//! Settings of Quark: the order of packed columns, and what is refused.

use quantloom_tests::Random;
use serde_json::{Value, json};

use super::{f32s, fault, open, refused, stored};

/// The order in which Quark's `reorder` puts eight columns into a word.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

#[test]
fn quark_packs_four_bits_along_rows() {
    let (n, k, group) = (16, 64, 32);
    let mut random = Random(5);
    let codes: Vec<u32> = (0..n * k).map(|_| random.below(16) as u32).collect();
    let scales: Vec<f32> = (0..k / group * n).map(|at| 0.25 + at as f32).collect();
    let zeros: Vec<u32> = (0..k / group * n).map(|_| random.below(16) as u32).collect();
    let words = |of: &dyn Fn(usize, usize) -> u32, rows: usize, order: &[usize; 8]| -> Vec<u8> {
        let word = |at: usize| {
            let (row, first) = (at / (n / 8), at % (n / 8) * 8);
            (0..8).fold(0u32, |word, place| word | of(first + order[place], row) << (4 * place))
        };
        (0..rows * n / 8).flat_map(|at| word(at).to_le_bytes()).collect()
    };
    let plain = [0, 1, 2, 3, 4, 5, 6, 7];
    for (dtype, method, order) in [
        ("int4", "reorder", &ORDER),
        ("int4", "order", &plain),
        ("uint4", "reorder", &ORDER),
        ("uint4", "order", &plain),
    ] {
        let signed = dtype == "int4";
        let config = json!({"quant_method": "quark", "global_quant_config": {
                "weight": {"dtype": dtype, "qscheme": "per_group", "group_size": group, "ch_axis": 1,
                    "is_dynamic": false, "symmetric": signed, "round_method": "half_even",
                    "scale_type": "float", "observer_cls": "PerGroupMinMaxObserver"},
                "input_tensors": null, "output_tensors": null, "bias": null, "target_device": null},
            "exclude": [], "layer_quant_config": {}, "layer_type_quant_config": {},
            "algo_config": [{"name": "awq", "scaling_layers": []}], "quant_mode": "eager_mode",
            "export": {"pack_method": method, "weight_format": "real_quantized",
                "kv_cache_group": [], "min_kv_scale": 0.0}});
        let zero = |row: usize, at: usize| if signed { 0 } else { zeros[at * n + row] };
        let tensors = [
            stored("weight", "I32", &[k, n / 8], words(&|row, at| codes[row * k + at], k, order)),
            stored("weight_scale", "F32", &[k / group, n], f32s(&scales)),
            stored("weight_zero_point", "I32", &[k / group, n / 8], words(&zero, k / group, order)),
        ];
        let file = open(&config, &tensors).unwrap();
        assert_eq!(file.notes().count(), 0);
        let layer = file.layer("l").map_err(|e| e.to_string()).unwrap();
        let ours = layer.unpack().unwrap().decode_rows(0..n as u64);
        for (at, ours) in ours.iter().enumerate() {
            let (row, column) = (at / k, at % k);
            let code = codes[at] as i32;
            let code = if signed && code > 7 { code - 16 } else { code };
            let by_group = column / group * n + row;
            let zero = if signed { 0 } else { zeros[by_group] as i32 };
            assert_eq!(*ours, (code - zero) as f32 * scales[by_group], "{dtype} {method} {at}");
        }
    }
}

#[test]
fn quark_settings_that_are_refused() {
    let tensors = [
        stored("weight", "F8_E4M3", &[16, 64], vec![0x38; 16 * 64]),
        stored("weight_scale", "F32", &[], f32s(&[1.0])),
        stored("input_scale", "F32", &[], f32s(&[1.0])),
    ];
    let spec = json!({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": false});
    let config = |pointer: &str, value: Value| {
        let mut config = json!({"quant_method": "quark", "global_quant_config": {
            "weight": spec, "input_tensors": spec, "output_tensors": null, "bias": null},
            "layer_quant_config": {"l*": {"weight": spec, "input_tensors": spec,
                "output_tensors": null, "bias": null}},
            "algo_config": null, "export": {"kv_cache_group": []}});
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[key] = value;
        config
    };
    assert_eq!(fault(&config("/exclude", json!([])), &tensors), "");
    let cases: &[(&str, Value, &[&str])] = &[
        ("/layer_quant_config/l*/output_tensors", spec.clone(), &["output_tensors"]),
        ("/layer_quant_config/l*/bias", spec.clone(), &["bias"]),
        ("/layer_quant_config/l*/weight/zoom", json!(2), &["zoom", "unknown"]),
        ("/layer_quant_config/l*/input_tensors/scale_type", json!("pof2"), &["scale_type"]),
        ("/layer_quant_config/l*/input_tensors/round_method", json!("floor"), &["round_method"]),
        ("/algo_config", json!([{"name": "rotation", "r4": true}]), &["algo_config.r4"]),
        ("/algo_config", json!([{"name": "mystery"}]), &["algo_config.name", "mystery"]),
        ("/layer_type_quant_config", json!({"Linear": {}}), &["layer_type_quant_config"]),
        ("/export/weight_format", json!("fake_quantized"), &["weight_format"]),
    ];
    for (pointer, value, words) in cases {
        refused(&config(pointer, value.clone()), &tensors, words);
    }
    // Of other layers.
    let mut other = config("/layer_quant_config/l*/output_tensors", spec.clone());
    let layers = other["layer_quant_config"].as_object_mut().unwrap();
    let moved = layers.remove("l*").unwrap();
    layers.insert("m*".to_owned(), moved);
    assert_eq!(fault(&other, &tensors), "");
    // Outputs that are attention's cache.
    let mut cached = config("/layer_quant_config/l*/output_tensors", spec.clone());
    cached["export"]["kv_cache_group"] = json!(["l*"]);
    assert_eq!(fault(&cached, &tensors), "");
}
