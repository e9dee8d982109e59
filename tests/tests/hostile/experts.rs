//! Expert layers with false statements.

use quantloom_runtime::checkpoint::{Checkpoint, ExpertsProblem, Options};
use quantloom_tests::file::{File, Stored};
use serde_json::{Value, json};

use crate::drive;

/// A golden file, a change, and words that the error of the expert layer contains.
type Lie = (&'static str, fn(&mut File), &'static [&'static str]);

/// Sets a key of the model's configuration.
fn model(file: &mut File, key: &str, value: Value) {
    let text = file.metadata.get("config").and_then(Value::as_str).expect("a configuration");
    let mut config: Value = serde_json::from_str(text).unwrap();
    config[key] = value;
    file.metadata.insert("config".to_owned(), config.to_string().into());
}

fn remove(file: &mut File, part: &str) {
    let before = file.tensors.len();
    file.tensors.retain(|tensor| !tensor.name.contains(part));
    assert!(file.tensors.len() < before, "{part}");
}

/// Adds the tensors of an expert again, as those of another one.
fn copy(file: &mut File, from: &str, to: &str) {
    let own = file.tensors.iter().filter(|tensor| tensor.name.contains(from));
    let copied = own.map(|tensor| Stored { name: tensor.name.replace(from, to), ..tensor.clone() });
    let copied: Vec<Stored> = copied.collect();
    assert!(!copied.is_empty(), "{from}");
    file.tensors.extend(copied);
}

fn shape(file: &mut File, name: &str, shape: &[u64]) {
    let tensor =
        file.tensors.iter_mut().find(|tensor| tensor.name.ends_with(name)).expect("a tensor");
    tensor.shape = shape.to_vec();
}

/// A second group of the configuration for some layers, whose groups have 16 columns: their scales are
/// those of 32 columns twice.
fn other_groups(file: &mut File, pattern: &str, layer: &str) {
    let mut group = file.config()["config_groups"]["group_0"].clone();
    group["targets"] = json!([pattern]);
    group["weights"]["group_size"] = json!(16);
    file.set("/config_groups/group_1", group);
    let scales = file
        .tensors
        .iter_mut()
        .filter(|tensor| tensor.name.contains(layer) && tensor.name.ends_with("weight_scale"));
    for tensor in scales {
        tensor.shape[1] *= 2;
        tensor.bytes = tensor.bytes.chunks(2).flat_map(|scale| [scale, scale].concat()).collect();
    }
}

const LIES: &[Lie] = &[
    // Experts that are missing, or too many.
    (
        "moe_ct_w4a16",
        |f| remove(f, "experts.2."),
        &["4 experts", "experts.2.gate_proj\" is missing"],
    ),
    ("moe_ct_w4a16", |f| remove(f, "experts.3.up_proj."), &["experts.3.up_proj\" is missing"]),
    ("moe_ct_w4a16", |f| remove(f, "experts.0."), &["experts.0.gate_proj\" is missing"]),
    (
        "moe_ct_w4a16",
        |f| copy(f, "experts.3.", "experts.4."),
        &["4 experts", "experts.4.", "besides"],
    ),
    ("moe_ct_w4a16", |f| copy(f, "experts.3.", "experts.4000000000."), &["experts.4000000000."]),
    (
        "moe_ct_w4a16",
        |f| copy(f, "experts.1.up_proj", "experts.1.w3"),
        &["experts.1.w3\"", "gate_proj, up_proj, down_proj"],
    ),
    (
        "moe_ct_w4a16",
        |f| model(f, "num_experts", json!(5)),
        &["5 experts", "experts.4.gate_proj\""],
    ),
    (
        "moe_ct_w4a16",
        |f| model(f, "num_experts", json!(3)),
        &["3 experts", "experts.3.", "besides"],
    ),
    (
        "moe_ct_w4a16",
        |f| {
            f.metadata.remove("config");
            copy(f, "experts.3.", "experts.100000.");
        },
        &["experts.100000.", "1024"],
    ),
    // Experts that differ.
    (
        "moe_ct_w4a16",
        |f| other_groups(f, "re:.*experts.3.down_proj", "experts.3.down_proj"),
        &["expert 3", "experts.3.down_proj\"", "its scale"],
    ),
    (
        "moe_ct_w4a16",
        |f| other_groups(f, "re:.*up_proj", "up_proj"),
        &["experts.0.gate_proj\" and \"", "experts.0.up_proj\" differ in their scale"],
    ),
    (
        "moe_arm_w4a8_channel",
        |f| {
            f.set("/layers/model.layers.0.mlp.experts.2.up_proj", json!({"shape": [1, 96, 64], "scheme": "s { weight: i8, scale: f32 per channel, pack: [k, n], activation: bf16, bias: f32 }"}))
        },
        &["expert 2", "experts.2.up_proj\"", "its weight"],
    ),
    // Sizes.
    (
        "moe_ct_w4a16",
        |f| model(f, "hidden_size", json!(96)),
        &["expert 0", "is 96 x 64, expected 96 x 96"],
    ),
    (
        "moe_ct_w4a16",
        |f| model(f, "moe_intermediate_size", json!(64)),
        &["is 96 x 64, expected 64 x 64"],
    ),
    (
        "moe_gpt_oss_clamped",
        |f| model(f, "num_local_experts", json!(8)),
        &["gate_up_proj\" is [4, 192, 64], expected [8, 192, 64]"],
    ),
    (
        "moe_gpt_oss_clamped",
        |f| model(f, "intermediate_size", json!(u64::MAX >> 1)),
        &["gate_up_proj\" is [4, 192, 64]"],
    ),
    ("moe_gpt_oss_clamped", |f| remove(f, "down_proj"), &["down_proj\" of all experts is missing"]),
    (
        "moe_deepseek_v3",
        |f| remove(f, "experts.down_proj"),
        &["experts.down_proj\" of all experts is missing"],
    ),
    (
        "moe_deepseek_v3",
        |f| model(f, "n_routed_experts", json!(8)),
        &["is [16, 192, 64], expected [8, 192, 64]"],
    ),
    (
        "moe_deepseek_negative",
        |f| shape(f, "experts.7.up_proj.weight", &[16, 24]),
        &["expert 7", "is 16 x 24, expected 24 x 16"],
    ),
    (
        "moe_deepseek_negative",
        |f| shape(f, "experts.7.up_proj.weight", &[2, 12, 16]),
        &["experts.7.up_proj\"", "[2, 12, 16]"],
    ),
    // The router and what is beside the experts.
    (
        "moe_ct_w4a16",
        |f| shape(f, "mlp.gate.weight", &[64, 4]),
        &["mlp.gate.weight\"", "[64, 4]", "[4, 64]"],
    ),
    (
        "moe_ct_w4a16",
        |f| f.tensor("model.layers.0.mlp.gate.weight").dtype = "I32".to_owned(),
        &["mlp.gate.weight\"", "I32"],
    ),
    (
        "moe_gpt_oss_clamped",
        |f| shape(f, "mlp.router.bias", &[2, 2]),
        &["mlp.router.bias\"", "[2, 2]"],
    ),
    (
        "moe_nemotron_relu2",
        |f| shape(f, "e_score_correction_bias", &[3, 2]),
        &["e_score_correction_bias\"", "[6]"],
    ),
    (
        "moe_nemotron_relu2",
        |f| remove(f, "shared_experts.down_proj"),
        &["shared_experts.down_proj\" is missing"],
    ),
    ("moe_llama4", |f| shape(f, "shared_expert.gate_proj.weight", &[64, 32]), &["shared_expert"]),
    ("moe_qwen2_shared", |f| shape(f, "shared_expert_gate.weight", &[64, 1, 1]), &[]),
    (
        "moe_qwen2_shared",
        |f| shape(f, "shared_expert_gate.weight", &[8, 8]),
        &["shared_expert_gate.weight\"", "[8, 8]"],
    ),
    // The description.
    ("moe_ct_w4a16", |f| model(f, "num_experts_per_tok", json!(9)), &["top 9 of 4 experts"]),
    ("moe_ct_w4a16", |f| model(f, "num_experts_per_tok", json!("two")), &["num_experts_per_tok"]),
    ("moe_ct_w4a16", |f| model(f, "hidden_act", json!("relu2")), &["hidden_act"]),
    (
        "moe_silu_limit",
        |f| {
            f.metadata.insert("expert_layer".to_owned(), "six experts".into());
        },
        &["`expert_layer`", "the number of experts"],
    ),
    (
        "moe_silu_limit",
        |f| {
            f.metadata.remove("expert_layer");
        },
        &["nothing says its routing"],
    ),
    (
        "moe_nemotron_relu2",
        |f| model(f, "model_type", json!("qwen3_moe")),
        &["experts.0.gate_proj\" is missing"],
    ),
    // Values.
    (
        "moe_gpt_oss_clamped",
        |f| f.tensor("model.layers.0.mlp.experts.gate_up_proj_scales").bytes[200] = 0xff,
        &["_scales"],
    ),
];

/// The error of reading the only expert layer whole: its description and every matrix.
fn error(bytes: Vec<u8>) -> Result<(), String> {
    let checkpoint =
        Checkpoint::from_bytes(bytes, Options::default()).map_err(|error| error.to_string())?;
    let layers: Vec<_> = checkpoint.expert_layers().collect();
    assert_eq!(layers.len(), 1);
    for (name, experts) in layers {
        let experts = experts.map_err(|error| error.to_string())?;
        assert_eq!(checkpoint.expert_layer(&name).unwrap().sizes(), experts.sizes());
        experts.layer().map_err(|error| error.to_string())?;
        match experts.router() {
            Err(error) if !matches!(*error.problem, ExpertsProblem::NoRouter { .. }) => {
                return Err(error.to_string());
            }
            _ => {}
        }
        for expert in 0..experts.sizes().experts {
            experts.expert_weights(expert).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

#[test]
fn lies_about_experts_are_named() {
    for (at, (name, lie, words)) in LIES.iter().enumerate() {
        let mut file = File::golden(name);
        assert_eq!(error(file.bytes()), Ok(()), "{name}");
        lie(&mut file);
        let found = error(file.bytes());
        if words.is_empty() {
            assert_eq!(found, Ok(()), "lie {at}, {name}");
            continue;
        }
        let found = found.expect_err(&format!("lie {at}, {name}, {words:?}"));
        for word in *words {
            assert!(found.contains(word), "lie {at}, {name}, {word}: {found}");
        }
        assert!(!found.contains('\n') && found.len() < 3000, "{found}");
        drive::expert_layer(&file.bytes());
    }
}

#[test]
fn the_names_of_those_that_exist() {
    let checkpoint =
        Checkpoint::from_bytes(File::golden("moe_ct_w4a16").bytes(), Options::default()).unwrap();
    let error = checkpoint.expert_layer("model.layers.1.mlp.experts").unwrap_err().to_string();
    assert!(error.contains("there are: model.layers.0.mlp.experts"), "{error}");
}

/// Whole files with flipped bits: of the header mostly, and of shapes and names in it.
#[test]
fn flipped_bits_of_expert_layers() {
    for (number, name) in
        (0..).zip(["moe_ct_w4a16", "moe_gpt_oss_clamped", "moe_deepseek_negative"])
    {
        let mut bytes = File::golden(name).bytes();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let mut random = quantloom_tests::Random(number);
        for flip in 0..300 {
            let range = if flip % 4 == 0 { bytes.len() as u64 } else { header };
            let (at, bit) = (random.below(range) as usize, 1 << random.below(8));
            bytes[at] ^= bit;
            drive::expert_layer(&bytes);
            bytes[at] ^= bit;
        }
    }
}
