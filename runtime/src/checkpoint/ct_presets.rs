//! compressed-tensors' presets: the settings that a name in `config_groups` stands for.
//!
//! Source: compressed-tensors 0.20.0, `quantization/quant_scheme.py` (`PRESET_SCHEMES`).

use serde_json::{Map, Value, json};

/// The settings that a preset's name stands for.
pub(super) fn settings(name: &str, targets: &[Value]) -> Option<Map<String, Value>> {
    let float = |bits: u32, strategy: &str| json!({"num_bits": bits, "type": "float", "symmetric": true, "strategy": strategy});
    let with = |mut value: Value, more: Value| {
        if let (Some(object), Some(more)) = (value.as_object_mut(), more.as_object()) {
            object.extend(more.clone());
        }
        value
    };
    let mx = |bits: u32| {
        with(float(bits, "group"), json!({"group_size": 32, "scale_dtype": "torch.uint8"}))
    };
    let nv = || {
        with(
            float(4, "tensor_group"),
            json!({"group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}),
        )
    };
    let dynamic = |value: Value| with(value, json!({"dynamic": true}));
    let upper = name.to_ascii_uppercase();
    let (weights, inputs) = match upper.as_str() {
        "FP8" => (float(8, "tensor"), float(8, "tensor")),
        "FP8_DYNAMIC" => (float(8, "channel"), dynamic(float(8, "token"))),
        "FP8_BLOCK" => (
            with(float(8, "block"), json!({"block_structure": [128, 128]})),
            dynamic(with(float(8, "group"), json!({"group_size": 128}))),
        ),
        "NVFP4" => (nv(), with(nv(), json!({"dynamic": "local"}))),
        "NVFP4A16" => (nv(), Value::Null),
        "MXFP4" => (mx(4), dynamic(mx(4))),
        "MXFP4A16" => (mx(4), Value::Null),
        "MXFP4XFP8" => (mx(4), dynamic(with(float(8, "group"), json!({"group_size": 128})))),
        "MXFP6A16" => (mx(6), Value::Null),
        "MXFP6A8" => (mx(6), dynamic(mx(8))),
        "MXFP8" => (mx(8), dynamic(mx(8))),
        "MXFP8A16" => (mx(8), Value::Null),
        "W8A8" | "INT8" => (
            json!({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"}),
            json!({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true}),
        ),
        _ => integer_preset(&upper)?,
    };
    let mut settings = Map::new();
    settings.insert("targets".to_owned(), Value::from(targets));
    settings.insert("weights".to_owned(), weights);
    settings.insert("input_activations".to_owned(), inputs);
    Some(settings)
}

/// `W4A16`, `W4A16_ASYM`, `W4A8`, `W4AFP8`.
fn integer_preset(name: &str) -> Option<(Value, Value)> {
    let (name, symmetric) = match name.strip_suffix("_ASYM") {
        Some(name) => (name, false),
        None => (name, true),
    };
    let (weight, activation) = name.strip_prefix('W')?.split_once('A')?;
    let bits: u32 = weight.parse().ok().filter(|bits| (2..=8).contains(bits))?;
    let token = |bits: u32, number: &str| json!({"num_bits": bits, "type": number, "symmetric": true, "strategy": "token", "dynamic": true});
    let inputs = match activation {
        "16" => Value::Null,
        "8" => token(8, "int"),
        "4" => token(4, "int"),
        "FP8" => token(8, "float"),
        _ => return None,
    };
    let weights = json!({
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 128
    });
    Some((weights, inputs))
}
