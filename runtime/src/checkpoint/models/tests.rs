//! A real model of each family: the keys of its public `config.json` that matter, and its layer in
//! docs/expert-layers.md ("Routings of published models").

use serde_json::{Value, json};

use super::super::CheckpointError;
use super::super::files::Tensors;
use super::{FAMILIES, find};
use quantloom_dsl::experts::ExpertLayer;

/// (model, its keys).
fn models() -> Vec<(&'static str, Value)> {
    vec![
        (
            "Mixtral 8x7B",
            json!({
                "architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
                "intermediate_size": 14336, "model_type": "mixtral", "num_experts_per_tok": 2,
                "num_local_experts": 8,
            }),
        ),
        (
            "Qwen1.5-MoE-A2.7B",
            json!({
                "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1,
                "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
                "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": false,
                "num_experts": 60, "num_experts_per_tok": 4,
                "shared_expert_intermediate_size": 5632,
            }),
        ),
        (
            "Qwen3-30B-A3B",
            json!({
                "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1,
                "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
                "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
                "norm_topk_prob": true, "num_experts": 128, "num_experts_per_tok": 8,
            }),
        ),
        (
            "OLMoE-1B-7B",
            json!({
                "architectures": ["OlmoeForCausalLM"], "hidden_act": "silu", "hidden_size": 2048,
                "intermediate_size": 1024, "model_type": "olmoe", "norm_topk_prob": false,
                "num_experts": 64, "num_experts_per_tok": 8,
            }),
        ),
        (
            "DeepSeek-V2",
            json!({
                "architectures": ["DeepseekV2ForCausalLM"], "hidden_act": "silu",
                "hidden_size": 5120, "intermediate_size": 12288, "model_type": "deepseek_v2",
                "moe_intermediate_size": 1536, "n_group": 8, "n_routed_experts": 160,
                "n_shared_experts": 2, "norm_topk_prob": false, "num_experts_per_tok": 6,
                "routed_scaling_factor": 16.0, "scoring_func": "softmax", "topk_group": 3,
                "topk_method": "group_limited_greedy",
            }),
        ),
        (
            "DeepSeek-V2-Lite",
            json!({
                "architectures": ["DeepseekV2ForCausalLM"], "hidden_act": "silu",
                "hidden_size": 2048, "intermediate_size": 10944, "model_type": "deepseek_v2",
                "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 64,
                "n_shared_experts": 2, "norm_topk_prob": false, "num_experts_per_tok": 6,
                "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_group": 1,
                "topk_method": "greedy",
            }),
        ),
        (
            "DeepSeek-V3",
            json!({
                "architectures": ["DeepseekV3ForCausalLM"], "hidden_act": "silu",
                "hidden_size": 7168, "intermediate_size": 18432, "model_type": "deepseek_v3",
                "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256,
                "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8,
                "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4,
                "topk_method": "noaux_tc",
            }),
        ),
        (
            "Kimi-K2",
            json!({
                "architectures": ["DeepseekV3ForCausalLM"], "hidden_act": "silu",
                "hidden_size": 7168, "intermediate_size": 18432, "model_type": "kimi_k2",
                "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 384,
                "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8,
                "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_group": 1,
                "topk_method": "noaux_tc",
            }),
        ),
        (
            "GLM-4.5",
            json!({
                "architectures": ["Glm4MoeForCausalLM"], "hidden_act": "silu",
                "hidden_size": 5120, "intermediate_size": 12288, "model_type": "glm4_moe",
                "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 160,
                "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8,
                "routed_scaling_factor": 2.5, "topk_group": 1,
            }),
        ),
        (
            "MiniMax-M2",
            json!({
                "architectures": ["MiniMaxM2ForCausalLM"], "hidden_act": "silu",
                "hidden_size": 3072, "intermediate_size": 1536, "model_type": "minimax_m2",
                "num_experts_per_tok": 8, "num_local_experts": 256, "scoring_func": "sigmoid",
                "use_routing_bias": true,
            }),
        ),
        (
            "gpt-oss-120b",
            json!({
                "architectures": ["GptOssForCausalLM"], "experts_per_token": 4,
                "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
                "model_type": "gpt_oss", "num_experts_per_tok": 4, "num_local_experts": 128,
                "swiglu_limit": 7.0,
            }),
        ),
        (
            "Llama 4 Scout",
            json!({
                "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
                "text_config": {
                    "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 1,
                    "intermediate_size": 8192, "intermediate_size_mlp": 16384,
                    "model_type": "llama4_text", "num_experts_per_tok": 1,
                    "num_local_experts": 16,
                },
                "vision_config": {"hidden_size": 1408, "intermediate_size": 5632},
            }),
        ),
        (
            "Nemotron 3 Nano",
            json!({
                "architectures": ["NemotronHForCausalLM"], "hidden_size": 2688,
                "intermediate_size": 1856, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
                "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
                "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
                "norm_topk_prob": true, "num_experts_per_tok": 6, "routed_scaling_factor": 2.5,
                "topk_group": 1,
            }),
        ),
    ]
}

/// A file without tensors, whose metadata has the configuration.
fn file(config: &Value) -> Tensors {
    let header = json!({"__metadata__": {"config": config.to_string()}}).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    Tensors::from_bytes(bytes).unwrap()
}

fn described(config: &Value) -> Result<Option<ExpertLayer>, CheckpointError> {
    find(None, &file(config), None)?.unwrap().expert_layer()
}

/// The rows of the page's table.
fn listed() -> Vec<(String, String)> {
    let page = include_str!("../../../../docs/expert-layers.md");
    let row = |line: &str| {
        let (model, layer) = line.strip_prefix("| ")?.strip_suffix("` |")?.split_once(" | `")?;
        Some((model.to_owned(), layer.to_owned()))
    };
    page.lines().filter_map(row).filter(|(_, layer)| layer.contains(" experts of ")).collect()
}

#[test]
fn published_models_have_the_layers_that_the_page_lists() {
    let (models, listed) = (models(), listed());
    for (model, config) in &models {
        let layer = described(config).unwrap().unwrap_or_else(|| panic!("{model}: no family"));
        let row = listed.iter().find(|(name, _)| name == model);
        let (_, text) = row.unwrap_or_else(|| panic!("{model}: no row; its layer is `{layer}`"));
        assert_eq!(layer.to_string(), *text, "{model}");
    }
    let types = FAMILIES.iter().flat_map(|family| family.model_types);
    for model_type in types.filter(|name| !["llama4"].contains(name)) {
        let config = |config: &Value| {
            let of = |config: &Value| config["model_type"] == **model_type;
            of(config) || of(&config["text_config"])
        };
        assert!(models.iter().any(|(_, model)| config(model)), "{model_type} has no model here");
    }
}

#[test]
fn a_family_has_one_row() {
    let types: Vec<&str> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
    for (at, model_type) in types.iter().enumerate() {
        assert!(!types[..at].contains(model_type), "{model_type} has two");
    }
    assert!(described(&json!({"model_type": "resnet"})).unwrap().is_none());
}

/// DeepSeek-V2 takes the scale only where it does not renormalise.
#[test]
fn the_scale_of_deepseek_v2() {
    let mut config = models().into_iter().find(|(model, _)| *model == "DeepSeek-V2").unwrap().1;
    config["norm_topk_prob"] = json!(true);
    let layer = described(&config).unwrap().unwrap();
    assert!(layer.routing.renormalise);
    assert_eq!(layer.routing.scale, 1.0);
}

#[test]
fn mistakes_name_the_key() {
    let of = |model: &str| models().into_iter().find(|(name, _)| *name == model).unwrap().1;
    for (model, key, value, word) in [
        ("Qwen3-30B-A3B", "num_experts_per_tok", Value::Null, "`num_experts_per_tok` is missing"),
        ("Qwen3-30B-A3B", "num_experts", json!(-1), "`num_experts` is -1"),
        ("Qwen3-30B-A3B", "num_experts", json!(4), "top 8 of 4 experts"),
        ("Qwen3-30B-A3B", "num_experts", json!("many"), "`num_experts`"),
        ("Qwen3-30B-A3B", "hidden_act", json!("relu"), "`hidden_act` is `relu`"),
        ("Qwen3-30B-A3B", "norm_topk_prob", json!(3), "unknown norm_topk_prob `3`"),
        ("DeepSeek-V3", "topk_method", json!("dice"), "unknown topk_method `dice`"),
        ("DeepSeek-V3", "scoring_func", json!("tanh"), "unknown scoring_func `tanh`"),
        ("DeepSeek-V3", "topk_group", Value::Null, "`topk_group` is missing"),
        ("DeepSeek-V3", "topk_group", json!(9), "9 of 8 groups"),
        ("DeepSeek-V3", "routed_scaling_factor", json!(-2.5), "-2.5"),
        ("DeepSeek-V3", "routed_scaling_factor", json!("2.5"), "`routed_scaling_factor`"),
        ("Nemotron 3 Nano", "mlp_hidden_act", json!("gelu_new"), "without up"),
    ] {
        let mut config = of(model);
        config[key] = value;
        let error = described(&config).unwrap_err().to_string();
        assert!(error.contains(word), "{model}, {key}: {error}");
    }
}
