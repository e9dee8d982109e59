//! The reference of expert layers against layers that third-party software computed (transformers,
//! in f32: README.md of the folder of golden files).

use quantloom_dsl::experts::{ExpertLayer, Score};
use quantloom_dsl::format::F32;
use quantloom_dsl::reference::experts::{
    Choices, ExpertWeights, LayerReference, Matrix, ProductInput, route,
};
use quantloom_dsl::reference::{dequantise, unpack};
use quantloom_runtime::checkpoint::{Checkpoint, Tensors};
use quantloom_runtime::tensor::reals;
use quantloom_tests::{golden_file, packed};
use serde_json::Value;

/// The files' y is the sum of some hundred products in f32, the reference's is exact up to two
/// roundings: 2.5e-7 to 2.8e-7 was found, 2^-24 times a few.
const RELATIVE_NORM: f64 = 1e-6;

fn values(tensors: &Tensors, name: &str) -> Vec<f64> {
    let tensor = tensors.get(name).unwrap_or_else(|| panic!("the file has {name}"));
    reals(tensor).unwrap_or_else(|| panic!("{name} is of floats"))
}

/// x [M, K] times a matrix.
fn product(x: &[f64], w: &[f64], bias: &[f64], k: usize) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    let biases = || bias.iter().copied().chain(std::iter::repeat(0.0));
    let of = |x: &'_ [f64]| {
        w.chunks(k).zip(biases()).map(|(w, bias)| dot(x, w) + bias).collect::<Vec<_>>()
    };
    x.chunks(k).flat_map(of).collect()
}

fn relative_norm(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    difference / norm(&mut theirs.iter().copied())
}

/// The place of a row in a stored tensor [E, 2I, H], from expert, shard and row.
type Stored = fn(expert: usize, shard: usize, row: usize, rows: usize) -> usize;
const CONCATENATED: Stored = |expert, shard, row, rows| (expert * 2 + shard) * rows + row;
const INTERLEAVED: Stored = |expert, shard, row, rows| (expert * rows + row) * 2 + shard;

/// The experts of stacked tensors: gate_up [E, 2I, H] with bias [E, 2I], down [E, H, I] with bias
/// [E, H]; biases may be empty.
fn experts(
    layer: &ExpertLayer,
    stored: Stored,
    [gate_up, gate_up_bias]: [&[f64]; 2],
    [down, down_bias]: [&[f64]; 2],
) -> Vec<ExpertWeights> {
    let (hidden, rows) = (layer.hidden as usize, layer.intermediate as usize);
    let shard = |expert: usize, shard: usize| {
        let places = || (0..rows).map(move |row| stored(expert, shard, row, rows));
        let row = |place: usize| gate_up[place * hidden..][..hidden].to_vec();
        let bias = places().filter_map(|place| gate_up_bias.get(place).copied());
        Matrix { values: places().flat_map(row).collect(), bias: bias.collect() }
    };
    let of = |expert: usize| {
        let values = down[expert * hidden * rows..][..hidden * rows].to_vec();
        let bias = down_bias.iter().skip(expert * hidden).take(hidden).copied().collect();
        let gate_up = (0..2).map(|number| shard(expert, number)).collect();
        ExpertWeights { gate_up, down: Matrix { values, bias } }
    };
    (0..layer.experts as usize).map(of).collect()
}

fn forward(
    layer: &ExpertLayer,
    weights: &[ExpertWeights],
    x: &[f64],
    choices: &Choices,
    shared: &[f64],
) -> Vec<f64> {
    let (gate_up_input, down_input) = (ProductInput::Exact, ProductInput::Exact);
    LayerReference { layer, weights, map: None, gate_up_input, down_input, dtype: F32 }
        .forward(x, choices, shared)
        .unwrap()
}

fn described(text: &str) -> ExpertLayer {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn gpt_oss() {
    let layer = described(
        "4 experts of 64 x 96, top 2, softmax renormalised, swigluoai alpha 1.702 limit 7",
    );
    let checkpoint = Checkpoint::open(golden_file("gpt_oss_mxfp4")).unwrap();
    let tensors = checkpoint.tensors();
    let said = ["E", "H", "I", "topk", "alpha", "limit"].map(|key| tensors.metadata(key).unwrap());
    assert_eq!(said, ["4", "64", "96", "2", "1.702", "7.0"]);

    let x = values(tensors, "ref.x");
    let (router, bias) = (values(tensors, "router.weight"), values(tensors, "router.bias"));
    let logits = product(&x, &router, &bias, 64);
    assert!(relative_norm(&logits, &values(tensors, "ref.router_0")) <= RELATIVE_NORM);
    let choices = route(&layer, &logits, &[]).unwrap();
    let ids = tensors.get("ref.router_2").unwrap().bytes().chunks_exact(8);
    let ids: Vec<i32> = ids
        .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()).try_into().unwrap())
        .collect();
    assert_eq!(choices.ids, ids);
    assert!(relative_norm(&choices.weights, &values(tensors, "ref.router_1")) <= RELATIVE_NORM);

    let weights = |name: &str| {
        let layer = checkpoint.layer(name).unwrap();
        let plain = unpack(layer.scheme(), layer.shape(), &packed(layer)).unwrap();
        dequantise(layer.scheme(), &plain).unwrap()
    };
    let weights = experts(
        &layer,
        INTERLEAVED,
        [&weights("experts.gate_up_proj"), &values(tensors, "experts.gate_up_proj_bias")],
        [&weights("experts.down_proj"), &values(tensors, "experts.down_proj_bias")],
    );
    let y = forward(&layer, &weights, &x, &choices, &[]);
    let error = relative_norm(&y, &values(tensors, "ref.y"));
    assert!(error <= RELATIVE_NORM, "{error:.2e}");
}

/// The files have no ids and router weights of their own: another expert, or a weight that is off by
/// a part in a million, is seen in y.
#[test]
fn mixtral_qwen3_and_deepseek_v3() {
    for (file, text) in [
        ("moe_mixtral", "8 experts of 64 x 96, top 2, softmax renormalised, silu"),
        ("moe_qwen3", "16 experts of 64 x 96, top 4, softmax renormalised, silu"),
        (
            "moe_deepseek_v3",
            "16 experts of 64 x 96, top 4, \
             sigmoid with bias in 2 of 4 groups renormalised times 2.5, silu",
        ),
    ] {
        let layer = described(text);
        let tensors = Tensors::open(&golden_file(file)).unwrap();
        let config: Value = serde_json::from_str(tensors.metadata("config").unwrap()).unwrap();
        is_configured(&layer, &config);

        let x = values(&tensors, "ref.x");
        let logits = product(&x, &values(&tensors, "gate.weight"), &[], 64);
        let biased = layer.routing.bias;
        let bias = "gate.e_score_correction_bias";
        assert_eq!(tensors.get(bias).is_some(), biased, "{file}");
        let bias = if biased { values(&tensors, bias) } else { Vec::new() };
        let choices = route(&layer, &logits, &bias).unwrap();

        let weights = experts(
            &layer,
            CONCATENATED,
            [&values(&tensors, "experts.gate_up_proj"), &[]],
            [&values(&tensors, "experts.down_proj"), &[]],
        );
        let shared = shared_experts(&tensors, &x);
        let y = forward(&layer, &weights, &x, &choices, &shared);
        let error = relative_norm(&y, &values(&tensors, "ref.y"));
        assert!(error <= RELATIVE_NORM, "{file}: {error:.2e}");
    }
}

/// The description is that of the file's configuration.
fn is_configured(layer: &ExpertLayer, config: &Value) {
    let number = |names: &[&str]| names.iter().find_map(|name| config[*name].as_f64());
    let routing = layer.routing;
    let deepseek = config["model_type"] == "deepseek_v3";
    assert_eq!(number(&["num_local_experts", "n_routed_experts"]), Some(layer.experts.into()));
    assert_eq!(number(&["num_experts_per_tok"]), Some(layer.top_k.into()));
    assert_eq!(number(&["hidden_size"]), Some(layer.hidden as f64));
    let intermediate = number(&["moe_intermediate_size", "intermediate_size"]);
    assert_eq!(intermediate, Some(layer.intermediate as f64));
    assert_eq!(config["norm_topk_prob"].as_bool().unwrap_or(true), routing.renormalise);
    assert_eq!(number(&["n_group"]), routing.groups.map(|groups| groups.count.into()));
    assert_eq!(number(&["topk_group"]), routing.groups.map(|groups| groups.keep.into()));
    assert_eq!(number(&["routed_scaling_factor"]).unwrap_or(1.0), f64::from(routing.scale));
    assert_eq!(routing.score, if deepseek { Score::Sigmoid } else { Score::Softmax });
    assert_eq!(config["hidden_act"], "silu");
}

/// The result of the experts that every token meets, as a layer of one; empty if there are none.
fn shared_experts(tensors: &Tensors, x: &[f64]) -> Vec<f64> {
    let name = |part: &str| format!("shared_experts.{part}_proj.weight");
    if tensors.get(&name("gate")).is_none() {
        return Vec::new();
    }
    let layer = described("1 experts of 64 x 96, top 1, softmax renormalised, silu");
    let matrix = |part: &str| Matrix { values: values(tensors, &name(part)), bias: Vec::new() };
    let weights =
        [ExpertWeights { gate_up: vec![matrix("gate"), matrix("up")], down: matrix("down") }];
    let tokens = x.len() / 64;
    let choices = Choices { ids: vec![0; tokens], weights: vec![1.0; tokens] };
    forward(&layer, &weights, x, &choices, &[])
}
