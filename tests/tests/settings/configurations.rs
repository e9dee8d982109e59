//! Configurations as such: typed faults, bounds on time and memory.

use quantloom_runtime::checkpoint::{
    Checkpoint, CheckpointError, ConfigProblem, LayerFault, Options, PatternProblem, RefusedKey,
};
use serde_json::json;

use super::{Stored, open};

/// Expressions that backtrack on every layer's name: a few are tried, the rest is an error.
#[test]
#[ignore = "it takes the whole budget: .ci/run runs it"]
fn patterns_have_one_budget() {
    let slow = |at: usize| format!("re:model.*?{}(?=b)x{at}", "(a|a)".repeat(12));
    let targets: Vec<String> = (0..500).map(slow).collect();
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32});
    let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"g": {"targets": targets, "weights": weights}}});
    let tensor = |layer: usize, name: &str, dtype, shape: &[usize], bytes| -> Stored {
        (format!("model.{layer}.{}.{name}", "a".repeat(30)), dtype, shape.to_vec(), bytes)
    };
    let mut tensors = Vec::new();
    for layer in 0..300 {
        tensors.push(tensor(layer, "weight_packed", "I32", &[1, 4], vec![0; 16]));
        tensors.push(tensor(layer, "weight_scale", "F32", &[1, 1], vec![0; 4]));
    }
    let file = open(&config, &tensors).unwrap();
    let errors: Vec<LayerFault> = file.layers().filter_map(|(_, layer)| layer.err()).collect();
    assert_eq!(errors.len(), 300);
    assert!(errors[299].to_string().contains("too long"), "{}", errors[299]);
    let LayerFault::Broken(error) = &errors[299] else { panic!("{:?}", errors[299]) };
    assert!(
        matches!(&**error, CheckpointError::Pattern { problem: PatternProblem::Time, .. }),
        "{error:?}"
    );
}

/// A program can tell the ways apart in which a configuration is wrong.
#[test]
fn faults_of_configurations_are_typed() {
    let problem = |text: &str| {
        let header = json!({"__metadata__": {"quantization_config": text}}).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        match Checkpoint::from_bytes(file, Options::default()).err() {
            Some(CheckpointError::Config { place, problem }) => {
                assert_eq!(place, "the metadata key `quantization_config`");
                problem
            }
            other => panic!("{text}: {other:?}"),
        }
    };
    let said = |problem: &ConfigProblem| problem.to_string();
    let json = problem("{");
    assert!(matches!(&json, ConfigProblem::Json { error } if error.is_eof()), "{json}");
    let missing = problem("{}");
    assert!(matches!(&missing, ConfigProblem::Missing(key) if key == "quant_method"), "{missing}");
    let format = problem(r#"{"quant_method": "abc"}"#);
    assert!(matches!(&format, ConfigProblem::Format(name) if name == "abc"), "{format}");
    let number = problem(r#"{"quant_method": 3}"#);
    assert!(matches!(&number, ConfigProblem::Type { key, .. } if key == "quant_method"));
    assert_eq!(said(&number), "`quant_method` is 3, expected a string");
    let list = problem(r#"{"quant_method": [1, 2]}"#);
    assert_eq!(said(&list), "`quant_method` is a list, expected a string");
    let setting = problem(r#"{"quant_method": "awq", "bits": 3}"#);
    assert!(matches!(&setting, ConfigProblem::Setting { key, .. } if key == "bits"), "{setting:?}");
    let unread = problem(r#"{"quant_method": "hqq"}"#);
    assert!(matches!(&unread, ConfigProblem::UnreadFormat(_)), "{unread:?}");
    let unknown = problem(r#"{"quant_method": "gptq", "bits": 4, "colour": [1]}"#);
    let ConfigProblem::Refused(RefusedKey::Unknown { key, .. }) = &unknown else {
        panic!("{unknown:?}")
    };
    assert_eq!(key, "colour");
    let refused = problem(r#"{"quant_method": "gptq", "bits": 4, "pack_dtype": "int8"}"#);
    let ConfigProblem::Refused(RefusedKey::Value { key, value, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((key.as_str(), value.as_str()), ("pack_dtype", "\"int8\""));
}

/// Values cost far more memory than their text.
#[test]
fn metadata_of_millions_of_values() {
    let many = |text: &str, count: usize| {
        let config =
            format!("{{\"quant_method\": \"fp8\", \"x\": [{}]}}", vec![text; count].join(","));
        let header = json!({"__metadata__": {"quantization_config": config}}).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        Checkpoint::from_bytes(file, Options::default()).err().unwrap().to_string()
    };
    assert!(many("0", 4_000_000).contains("too many"), "values");
    assert!(many("{\"\":0}", 400_000).contains("too many"), "objects");
    assert!(many("0", 1000).contains("`x`"), "a few are read");
}
