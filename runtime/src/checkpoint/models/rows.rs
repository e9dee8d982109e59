//! The families, a row each.
//!
//! Sources: the configuration and the modelling code of each family in transformers (5.17), vLLM's
//! `model_executor/models`; the model whose configuration is the row's test is named there.

use quantloom_dsl::experts::Score;

use super::{ExpertNames, GateSource, ModelFamily, Setting, SharedExperts, StackedFloats};

/// gate, up and down as most models call them.
const PROJECTIONS: ExpertNames = ExpertNames {
    router: "gate",
    score_bias: None,
    shards: &["gate_proj", "up_proj"],
    down: "down_proj",
    shared: None,
    shared_gate: None,
    stacked: StackedFloats { transposed: false, interleaved: false },
};

/// w1 is gate, w3 is up, w2 is down.
const NUMBERED: ExpertNames = ExpertNames { shards: &["w1", "w3"], down: "w2", ..PROJECTIONS };

/// DeepSeek's names.
const WITH_BIAS: ExpertNames = ExpertNames {
    score_bias: Some("gate.e_score_correction_bias"),
    shared: Some("shared_experts"),
    ..PROJECTIONS
};

/// A key that is true or false.
const fn flag(key: &'static str, otherwise: bool) -> Setting<bool> {
    Setting::Key { key, words: &[("true", true), ("false", false)], otherwise }
}

/// The words of `scoring_func`.
const fn scoring(otherwise: Score) -> Setting<Score> {
    const WORDS: &[(&str, Score)] = &[
        ("softmax", Score::Softmax),
        ("sigmoid", Score::Sigmoid),
        ("sqrtsoftplus", Score::SqrtSoftplus),
    ];
    Setting::Key { key: "scoring_func", words: WORDS, otherwise }
}

/// Whether `topk_method` takes a score bias.
const METHOD_WITH_BIAS: &[(&str, bool)] =
    &[("noaux_tc", true), ("group_limited_greedy", false), ("greedy", false)];
/// Whether `topk_method` heeds groups.
const METHOD_WITH_GROUPS: &[(&str, bool)] =
    &[("noaux_tc", true), ("group_limited_greedy", true), ("greedy", false)];

/// `num_experts_per_tok` of `num_experts`, by softmax.
const SOFTMAX: ModelFamily = ModelFamily {
    model_types: &[],
    names: PROJECTIONS,
    shared: SharedExperts::Never,
    experts: &["num_experts", "num_local_experts"],
    top_k: &["num_experts_per_tok"],
    hidden: &["hidden_size"],
    intermediate: &["moe_intermediate_size", "intermediate_size"],
    score: Setting::Always(Score::Softmax),
    bias: Setting::Always(false),
    groups: None,
    renormalise: flag("norm_topk_prob", false),
    scale: None,
    scale_or_renormalise: false,
    gate: GateSource::Gated("hidden_act"),
    weight_on_input: false,
};

/// Sigmoid with a score bias, in groups.
const DEEPSEEK_V3: ModelFamily = ModelFamily {
    model_types: &["deepseek_v3", "kimi_k2"],
    names: WITH_BIAS,
    shared: SharedExperts::Above0("n_shared_experts"),
    experts: &["n_routed_experts", "num_local_experts"],
    score: scoring(Score::Sigmoid),
    bias: Setting::Key { key: "topk_method", words: METHOD_WITH_BIAS, otherwise: true },
    groups: Some((
        ["n_group", "topk_group"],
        Setting::Key { key: "topk_method", words: METHOD_WITH_GROUPS, otherwise: true },
    )),
    renormalise: flag("norm_topk_prob", true),
    scale: Some("routed_scaling_factor"),
    ..SOFTMAX
};

/// Every family.
pub const FAMILIES: &[ModelFamily] = &[
    ModelFamily {
        model_types: &["mixtral"],
        names: NUMBERED,
        renormalise: Setting::Always(true),
        ..SOFTMAX
    },
    ModelFamily {
        model_types: &["qwen2_moe"],
        names: ExpertNames {
            shared: Some("shared_expert"),
            shared_gate: Some("shared_expert_gate"),
            ..PROJECTIONS
        },
        shared: SharedExperts::Always,
        ..SOFTMAX
    },
    ModelFamily { model_types: &["qwen3_moe", "olmoe"], ..SOFTMAX },
    ModelFamily {
        model_types: &["deepseek_v2"],
        score: scoring(Score::Softmax),
        bias: Setting::Key { key: "topk_method", words: METHOD_WITH_BIAS, otherwise: false },
        groups: Some((
            ["n_group", "topk_group"],
            Setting::Key { key: "topk_method", words: METHOD_WITH_GROUPS, otherwise: false },
        )),
        renormalise: flag("norm_topk_prob", false),
        scale_or_renormalise: true,
        ..DEEPSEEK_V3
    },
    DEEPSEEK_V3,
    ModelFamily {
        model_types: &["glm4_moe"],
        score: Setting::Always(Score::Sigmoid),
        bias: Setting::Always(true),
        groups: Some((["n_group", "topk_group"], Setting::Always(true))),
        ..DEEPSEEK_V3
    },
    ModelFamily {
        model_types: &["minimax_m2"],
        names: ExpertNames { score_bias: Some("e_score_correction_bias"), ..NUMBERED },
        score: scoring(Score::Sigmoid),
        bias: flag("use_routing_bias", true),
        renormalise: Setting::Always(true),
        ..SOFTMAX
    },
    ModelFamily {
        model_types: &["gpt_oss"],
        names: ExpertNames {
            router: "router",
            stacked: StackedFloats { transposed: true, interleaved: true },
            ..PROJECTIONS
        },
        // The short ones are the metadata of files that hold a layer without a configuration.
        experts: &["num_local_experts", "num_experts", "E"],
        top_k: &["num_experts_per_tok", "experts_per_token", "topk"],
        hidden: &["hidden_size", "H"],
        intermediate: &["intermediate_size", "I"],
        renormalise: Setting::Always(true),
        gate: GateSource::SwigluOai {
            alpha: (&["alpha"], 1.702),
            limit: (&["swiglu_limit", "limit"], 7.0),
        },
        ..SOFTMAX
    },
    ModelFamily {
        model_types: &["llama4", "llama4_text"],
        names: ExpertNames {
            router: "router",
            shared: Some("shared_expert"),
            stacked: StackedFloats { transposed: true, interleaved: false },
            ..PROJECTIONS
        },
        shared: SharedExperts::Always,
        experts: &["num_local_experts"],
        intermediate: &["intermediate_size"],
        score: Setting::Always(Score::Sigmoid),
        renormalise: Setting::Always(false),
        weight_on_input: true,
        ..SOFTMAX
    },
    ModelFamily {
        model_types: &["nemotron_h"],
        names: ExpertNames { shards: &["up_proj"], ..WITH_BIAS },
        intermediate: &["moe_intermediate_size"],
        score: Setting::Always(Score::Sigmoid),
        bias: Setting::Always(true),
        groups: Some((["n_group", "topk_group"], Setting::Always(true))),
        gate: GateSource::Ungated("mlp_hidden_act"),
        ..DEEPSEEK_V3
    },
];
