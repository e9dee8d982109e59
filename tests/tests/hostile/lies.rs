//! Tensors and configurations with false statements.

use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_tests::file::{File, Stored, put, sizes};
use quantloom_tests::sweep::Share;
use quantloom_tools::check::check;
use serde_json::{Map, Value, json};

use crate::FAMILIES;
use crate::refused::{read, refused};

/// A file, a change, and words of which the error must contain one.
type Lie = (&'static str, fn(&mut File), &'static [&'static str]);

fn weights(file: &mut File, key: &str, value: Value) {
    file.set(&format!("/config_groups/group_0/weights/{key}"), value);
}

fn targets(file: &mut File, pattern: &str) {
    file.set("/config_groups/group_0/targets", json!([pattern]));
}

const LIES: &[Lie] = &[
    // Invalid values.
    (
        "ct_mxfp4",
        |f| put(f, "layer.weight_scale", 100, &[0xff]),
        &["\"weight_scale\": element 100"],
    ),
    ("quark_w_mxfp4", |f| put(f, "layer.weight_scale", 5, &[0xff]), &["\"weight_scale\""]),
    ("gpt_oss_mxfp4", |f| put(f, "experts.gate_up_proj_scales", 9, &[0xff]), &["\"_scales\""]),
    ("ct_w4a16", |f| put(f, "layer.weight_scale", 6, &[0xc0, 0x7f]), &["\"weight_scale\""]),
    ("gptq3", |f| put(f, "layer.scales", 6, &[0x01, 0x7e]), &["\"scales\""]),
    ("awq4", |f| put(f, "layer.scales", 6, &[0x01, 0xfe]), &["\"scales\""]),
    ("ct_nvfp4", |f| put(f, "layer.weight_scale", 3, &[0x7f]), &["\"weight_scale\""]),
    ("ct_nvfp4", |f| put(f, "layer.weight_global_scale", 0, &[0; 4]), &["weight_global_scale"]),
    ("ct_nvfp4", |f| put(f, "layer.input_global_scale", 0, &[0xff; 4]), &["input_global_scale"]),
    ("ct_fp8", |f| put(f, "layer.input_scale", 0, &[0xff; 2]), &["\"input_scale\""]),
    ("modelopt_nvfp4", |f| put(f, "layer.weight_scale_2", 0, &[0xff; 4]), &["weight_scale_2"]),
    ("ct_w4a8", |f| put(f, "layer.weight", 77, &[8]), &["\"weight\" holds 8 at position 77"]),
    ("ct_w4a8", |f| put(f, "layer.weight", 77, &[0x80]), &["holds -128"]),
    ("quark_w8a8_int8_channel", |f| put(f, "layer.weight_zero_point", 3, &[1]), &["zero_point"]),
    ("gptq4_v1_actorder", |f| put(f, "layer.g_idx", 8, &[2, 0, 0, 0]), &["\"g_idx\"", "is 2"]),
    ("gptq4_v1_actorder", |f| put(f, "layer.g_idx", 8, &[0xff; 4]), &["\"g_idx\""]),
    ("gptq3", |f| put(f, "layer.g_idx", 8, &[0, 0, 0, 0x7f]), &["\"g_idx\""]),
    // Invalid shapes.
    ("ct_w4a16", |f| sizes(f, &[48, 1 << 40]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, i64::MAX]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[1 << 40, 256]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, -256]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[i64::MIN, 256]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, 0]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, 256, 1]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, 255 - 8]), &["weight_packed", "words"]),
    // A configuration that contradicts the tensors.
    ("ct_w4a16", |f| weights(f, "group_size", json!(0)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(-2)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(u64::MAX)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(1u64 << 33)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(1.5)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!("128")), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(64)), &["weight_scale"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(0)), &["0 bits"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(-4)), &["-4 bits"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(1u64 << 40)), &["bits"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(8)), &["weight_packed"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!([4])), &["num_bits"]),
    ("ct_w4a16", |f| weights(f, "type", json!("complex")), &["complex"]),
    ("ct_w4a16", |f| weights(f, "strategy", json!("hope")), &["hope"]),
    ("ct_w4a16", |f| weights(f, "symmetric", json!("yes")), &["symmetric"]),
    ("ct_w4a16", |f| weights(f, "symmetric", json!(false)), &["weight_zero_point"]),
    ("ct_fp8_block", |f| weights(f, "block_structure", json!([0, 128])), &["block_structure"]),
    ("ct_fp8_block", |f| weights(f, "block_structure", json!([1, -1])), &["block_structure"]),
    ("ct_fp8_block", |f| weights(f, "block_structure", json!("128")), &["block_structure"]),
    ("ct_w4a16", |f| f.set("/config_groups", json!([])), &["config_groups"]),
    ("ct_w4a16", |f| f.set("/config_groups", Value::Null), &["config_groups"]),
    ("ct_w4a16", |f| f.set("/config_groups", json!({"W99A1": ["Linear"]})), &["W99A1"]),
    ("ct_w4a16", |f| f.set("/config_groups/group_0", json!("all")), &["group_0"]),
    ("ct_w4a16", |f| f.set("/config_groups/group_0/weights", json!(4)), &["weights"]),
    ("ct_w4a16", |f| f.set("/config_groups/group_0/targets", json!([4])), &["targets"]),
    ("ct_w4a16", |f| f.set("/ignore", json!({"a": 1})), &["ignore"]),
    ("ct_w4a16", |f| f.set("/ignore", json!(["layer"])), &["ignore"]),
    ("ct_w4a16", |f| f.set("/quant_method", json!("magic")), &["magic"]),
    ("ct_w4a16", |f| f.set("/quant_method", json!(3)), &["quant_method"]),
    ("gptq3", |f| f.set("/bits", json!(0)), &["0-bit"]),
    ("gptq3", |f| f.set("/bits", json!(i64::MIN)), &["-bit"]),
    ("gptq3", |f| f.set("/bits", json!("3")), &["bits"]),
    ("gptq3", |f| f.set("/bits", json!(4)), &["qzeros", "scales", "g_idx"]),
    ("gptq3", |f| f.set("/group_size", json!(0)), &["group_size"]),
    ("gptq3", |f| f.set("/group_size", json!(64)), &["scales", "qzeros", "g_idx"]),
    ("gptq3", |f| f.set("/checkpoint_format", json!("gptq_p")), &["gptq_p"]),
    ("gptq3", |f| f.set("/dynamic", json!({"(": {}})), &["pattern"]),
    ("gptq3", |f| f.set("/dynamic", json!({"layer": 3})), &["dynamic"]),
    ("awq4", |f| f.set("/bits", json!(3)), &["bits"]),
    ("awq4", |f| f.set("/version", json!("gemv")), &["gemv"]),
    ("awq4", |f| f.set("/group_size", json!(1)), &["qzeros", "scales"]),
    ("modelopt_nvfp4", |f| f.set("/quant_algo", json!("NVFP5")), &["NVFP5"]),
    ("modelopt_nvfp4", |f| f.set("/group_size", json!(-7)), &["group_size"]),
    ("modelopt_nvfp4", |f| f.set("/exclude_modules", json!(["l*"])), &["exclude_modules"]),
    ("quark_w_mxfp4", |f| f.set("/global_quant_config", json!(1)), &["global_quant_config"]),
    ("quark_w_mxfp4", |f| f.set("/global_quant_config/weight/dtype", json!("fp3")), &["fp3"]),
    ("quark_w_mxfp4", |f| f.set("/layer_quant_config", json!({"l*": 2})), &["l*"]),
    ("quark_w_mxfp4", |f| f.set("/exclude", json!("layer")), &["exclude"]),
    // Expressions that are invalid, huge, or slow.
    ("ct_w4a16", |f| targets(f, "re:("), &["pattern"]),
    ("ct_w4a16", |f| targets(f, "re:(a{1000}){1000}"), &["pattern"]),
    ("ct_w4a16", |f| targets(f, "re:(?=l)((((a{99}){99}){99}){99})"), &["pattern"]),
    ("ct_w4a16", |f| targets(f, "re:(l*a*y*e*r*)(?:(?:l|a|y|e|r|\\1)*)*)(?=x)"), &["pattern"]),
    // Text that is not JSON, or too deep.
    ("ct_w4a16", |f| f.set_config("{\"quant_method\":".to_owned()), &["not valid JSON"]),
    ("ct_w4a16", |f| f.set_config("[".repeat(100_000)), &["not valid JSON"]),
    ("ct_w4a16", |f| f.set_config("{\"bits\": 1e999}".to_owned()), &["not valid JSON"]),
    ("ct_w4a16", |f| f.set_config("{}".to_owned()), &["quant_method"]),
];

#[test]
fn lies_are_named() {
    for (at, (name, lie, words)) in LIES.iter().enumerate() {
        let mut file = File::golden(name);
        lie(&mut file);
        let layer = FAMILIES.iter().find(|(family, _)| family == name).map(|(_, layer)| *layer);
        refused(&format!("lie {at}, {name}, {words:?}"), file.bytes(), layer.unwrap(), words);
    }
}

/// An expression that backtracks forever on a name of many equal letters.
#[test]
fn a_catastrophic_expression_gives_up() {
    let mut file = File::golden("ct_w4a16");
    let long = "a".repeat(60);
    for tensor in &mut file.tensors {
        tensor.name = tensor.name.replace("layer", &long);
    }
    for pattern in
        ["re:(?:(?:a|aa)(?=a|$))*\\bx", "re:(a*)*(a*)*(a*)*(a*)*\\1\\2x", "re:(?:a?){60}\\Bx"]
    {
        targets(&mut file, pattern);
        refused(pattern, file.bytes(), &long, &["pattern", "no group"]);
    }
}

/// Replaces each value of a configuration by one of another type: the result is an error or a
/// layer.
#[test]
fn configurations_of_wrong_types() {
    fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    pointers(value, format!("{at}/{key}"), all);
                }
            }
            Value::Array(items) => {
                for (number, value) in items.iter().enumerate() {
                    pointers(value, format!("{at}/{number}"), all);
                }
            }
            _ => {}
        }
        all.push(at);
    }
    let long = Value::from("x".repeat(100_000));
    let values = [
        json!(7),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(true),
        json!("nonsense"),
        json!([]),
        json!([[[]]]),
        json!({}),
        Value::Null,
        json!(["re:("]),
        long,
    ];
    for (name, layer) in FAMILIES.iter().filter(|(name, _)| *name != "gpt_oss_mxfp4") {
        let file = File::golden(name);
        let config = file.clone().config();
        let mut all = Vec::new();
        pointers(&config, String::new(), &mut all);
        let cases = all.iter().flat_map(|at| values.iter().map(move |value| (at, value)));
        for (pointer, value) in Share::new(3, 1).of(cases) {
            let mut config = config.clone();
            *config.pointer_mut(pointer).unwrap() = value.clone();
            let mut file = file.clone();
            file.set_config(config.to_string());
            if let Err(error) = read(file.bytes(), layer) {
                assert!(error.len() < 3000 && !error.contains('\n'), "{name} {pointer}: {error}");
            }
        }
    }
}

/// The scheme's text is repeated for each layer, but kept in memory once.
#[test]
fn schemes_of_our_own_files() {
    let file = |config: Value| File {
        metadata: Map::from_iter([("quantization_config".to_owned(), config.to_string().into())]),
        tensors: Vec::new(),
    };
    let text = "S{weight:u4-8,scale:f16 per 1x32,pack:u32[k:8|k,n],activation:f16}";
    let config = |scheme: Value, layers: Value| {
        file(json!({"quant_method": "quantloom", "scheme": scheme, "layers": layers})).bytes()
    };
    let shapes = [
        json!([1, 1 << 20, 1u64 << 40]),
        json!([u64::MAX, u64::MAX, u64::MAX]),
        json!([0, 0, 0]),
        json!([1, 2]),
        json!([1, -8, 8]),
        json!("8x8"),
    ];
    for shape in shapes {
        refused("shape", config(json!(text), json!({"l": shape})), "l", &["layer \"l\""]);
    }
    refused("no scheme", config(json!("S {"), json!({"l": [1, 8, 32]})), "l", &["scheme"]);
    let padded = format!("{text}{}", " ".repeat(1 << 20));
    refused("a long scheme", config(json!(padded), json!({"l": [1, 8, 32]})), "l", &["bytes"]);
    let many: Map<String, Value> =
        (0..20_000).map(|layer| (layer.to_string(), json!([1, 8, 32]))).collect();
    let text = format!("/// {}\n{text}", "x".repeat(60_000));
    refused("many layers", config(json!(text), many.into()), "7", &["7.weight"]);
}

/// A narrow activation and a narrow weight: their product is not computed just to find that its
/// size differs from the reference's.
#[test]
fn a_product_beyond_its_factors() {
    let wide = 1 << 17;
    let config = json!({"quant_method": "fp8", "activation_scheme": "dynamic"}).to_string();
    let tensor = |name: &str, dtype: &str, shape: [u64; 2], bytes: usize| Stored {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        shape: shape.to_vec(),
        bytes: vec![0x38; bytes],
    };
    let file = File {
        metadata: Map::from_iter([("quantization_config".to_owned(), Value::from(config))]),
        tensors: vec![
            tensor("l.weight", "F8_E4M3", [wide, 1], 1 << 17),
            tensor("l.weight_scale", "F32", [1, 1], 4),
            tensor("ref.x", "BF16", [wide, 1], 2 << 17),
            tensor("ref.y", "BF16", [1, 1], 2),
        ],
    };
    let checkpoint = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let findings = format!("{:?}", check(&checkpoint, &quantloom_runtime::cpu::CpuDevice::best()));
    assert!(findings.contains("ref.y has 1 values"), "{findings}");
}
