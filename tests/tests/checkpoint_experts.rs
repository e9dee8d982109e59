//! Expert layers of checkpoints: golden files through `check`, and what the parts are.

use quantloom_dsl::Accuracy;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::BF16;
use quantloom_dsl::layout::Shape;
use quantloom_runtime::checkpoint::{
    Checkpoint, CheckpointExperts, ExpertsProblem, Options, StoredExperts,
};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::element::Values;
use quantloom_runtime::experts::{
    ExpertCall, ExpertMap, ExpertOptions, ExpertProduct, ExpertSource, Routed,
};
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tests::file::File;
use quantloom_tests::{golden, golden_file};
use quantloom_tools::check::{Subject, Verdict, check};

/// Golden file, name of the expert layer, its description, the name of the shared expert.
const LAYERS: &[(&str, &str, &str, Option<&str>)] = &[
    (
        "gpt_oss_mxfp4",
        "experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, swigluoai alpha 1.702 limit 7",
        None,
    ),
    (
        "moe_arm_w4a8_channel",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, silu",
        None,
    ),
    (
        "moe_arm_w4a8_g32",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, silu",
        None,
    ),
    (
        "moe_ct_fp8_block",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 80, top 2, softmax renormalised, silu",
        None,
    ),
    (
        "moe_ct_nvfp4",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, silu",
        None,
    ),
    (
        "moe_ct_w4a16",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, silu",
        None,
    ),
    (
        "moe_deepseek_negative",
        "model.layers.3.mlp.experts",
        "16 experts of 16 x 24, top 4, sigmoid with bias in 2 of 4 groups renormalised times 2.5, silu",
        None,
    ),
    (
        "moe_deepseek_v3",
        "experts",
        "16 experts of 64 x 96, top 4, sigmoid with bias in 2 of 4 groups renormalised times 2.5, silu",
        Some("shared_experts"),
    ),
    (
        "moe_gpt_oss_clamped",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, swigluoai alpha 1.702 limit 7",
        None,
    ),
    (
        "moe_gptq4_actorder",
        "model.layers.0.block_sparse_moe.experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, silu",
        None,
    ),
    (
        "moe_llama4",
        "language_model.model.layers.1.feed_forward.experts",
        "4 experts of 64 x 96, top 1, sigmoid, silu, weight on input",
        Some("language_model.model.layers.1.feed_forward.shared_expert"),
    ),
    ("moe_mixtral", "experts", "8 experts of 64 x 96, top 2, softmax renormalised, silu", None),
    (
        "moe_nemotron_relu2",
        "backbone.layers.1.mixer.experts",
        "6 experts of 64 x 96, top 3, sigmoid with bias renormalised times 2.5, ungated relu2",
        Some("backbone.layers.1.mixer.shared_experts"),
    ),
    (
        "moe_quark_int8",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 96, top 2, softmax renormalised, silu",
        None,
    ),
    (
        "moe_qwen2_shared",
        "model.layers.0.mlp.experts",
        "4 experts of 64 x 96, top 2, softmax, silu",
        Some("model.layers.0.mlp.shared_expert"),
    ),
    ("moe_qwen3", "experts", "16 experts of 64 x 96, top 4, softmax renormalised, silu", None),
    (
        "moe_silu_limit",
        "layers.0.ffn.experts",
        "6 experts of 64 x 96, top 2, sqrtsoftplus with bias renormalised times 1.5, silu limit 2.5",
        None,
    ),
];

fn open(file: &str) -> Checkpoint {
    Checkpoint::open(golden_file(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_file_is_listed() {
    let mut found: Vec<String> = std::fs::read_dir(golden())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("moe_") || name == "gpt_oss_mxfp4")
        .collect();
    found.sort();
    assert_eq!(found, LAYERS.iter().map(|(file, ..)| *file).collect::<Vec<_>>());
}

#[test]
fn files_describe_their_layers() {
    for (file, name, text, shared) in LAYERS {
        let checkpoint = open(file);
        let names: Vec<String> = checkpoint.expert_layers().map(|(name, _)| name).collect();
        assert_eq!(names, [*name], "{file}");
        let experts =
            checkpoint.expert_layer(name).unwrap_or_else(|error| panic!("{file}: {error}"));
        let layer = experts.layer().unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(layer.to_string(), *text, "{file}");
        assert_eq!(experts.shared().map(|shared| shared.layer().name()), *shared, "{file}");
        assert_eq!(experts.score_bias().is_some(), layer.routing.bias, "{file}");
        assert!(experts.router().is_ok(), "{file}");
    }
}

/// Each file by the reference and on the CPU: what its router chooses, and y.
#[test]
fn whole_layers_are_the_files_own() {
    let cpu = CpuDevice::best();
    for (file, name, ..) in LAYERS {
        let checkpoint = open(file);
        let findings = check(&checkpoint, &cpu);
        let mut subjects = Vec::new();
        for finding in findings.iter().filter(|finding| finding.layer == *name) {
            assert_eq!(finding.verdict, Verdict::Pass, "{file}: {finding:?}");
            // The program of the numpy files rounds where the reference does: what differs are ties.
            let error = finding.error.unwrap();
            assert!(error <= 4e-4, "{file}: {finding:?}");
            subjects.push(finding.subject);
        }
        let float = checkpoint.expert_layer(name).unwrap().schemes().is_none();
        // The files of transformers have no choices of their own, except gpt-oss.
        let routed = !["moe_mixtral", "moe_qwen3", "moe_deepseek_v3"].contains(file);
        let expected =
            [(Subject::Routing, routed), (Subject::Reference, true), (Subject::Product, !float)];
        let expected: Vec<Subject> =
            expected.into_iter().filter(|(_, there)| *there).map(|(subject, _)| subject).collect();
        assert_eq!(subjects, expected, "{file}");
    }
}

fn matrix(experts: &CheckpointExperts<'_>, product: ExpertProduct, at: [u32; 2]) -> Unpacked {
    let StoredExperts::Quantised(source) = experts.weights() else { panic!("quantised") };
    source.matrix(product, at[0], at[1]).unwrap()
}

/// A row of a matrix.
fn row(weight: &Unpacked, n: u64) -> Vec<f32> {
    let mut row = vec![0.0; weight.shape().k as usize];
    weight.decode_row(0, n, &mut row);
    row
}

/// Both products of a layer in groups of 32, whose scales round weights on Hopper, are exact where that is asked for, and
/// right either way; with x in one type only it is listed.
#[test]
fn products_are_asked_for() {
    let (file, name) = ("moe_ct_w4a16", "model.layers.0.mlp.experts");
    let checkpoint = open(file);
    let fast = checkpoint.expert_layer(name).unwrap();
    let exact = fast.clone().with_accuracy(Accuracy::Exact).with_input(BF16);
    let device = quantloom::Device::simulated("sm_90a").unwrap();
    let [of_fast, of_exact] = [&fast, &exact].map(|experts| experts.prepare(&device).unwrap());
    let rounds = |text: &str| text.matches("weights times their scale are rounded").count();
    let [said, said_exact] = [of_fast.explain(2), of_exact.explain(2)];
    assert!(rounds(&said) >= 2, "{said}");
    assert_eq!(rounds(&said_exact), 0, "{said_exact}");
    assert!(said.contains("x in f16: ") && said_exact.contains("x in bf16: "), "{said_exact}");

    let hidden = fast.sizes().hidden as usize;
    let x: Vec<f32> = (0..2 * hidden).map(|at| ((at % 13) as f32 - 6.0) / 8.0).collect();
    let routed = Routed::Chosen { ids: &[0, 2, 3, 1], weights: &[0.75, 0.25, 0.5, 0.5] };
    let call = ExpertCall { x: Values::F32(&x), routed, shared: None };
    let on_cpu = fast.prepare(&CpuDevice::portable()).unwrap().forward(&call).unwrap();
    let largest = on_cpu.iter().fold(0.0f32, |most, y| most.max(y.abs()));
    for op in [of_fast, of_exact] {
        for (y, on_cpu) in op.forward(&call).unwrap().iter().zip(&on_cpu) {
            // x, h and weights have 8 digits, rounded a few times.
            assert!((y - on_cpu).abs() <= largest / 32.0, "{y}, expected {on_cpu}");
        }
    }
}

/// A matrix of a stack is the same whether its own bytes are unpacked or the whole stack.
#[test]
fn a_matrix_of_a_stack() {
    for file in ["gpt_oss_mxfp4", "moe_gpt_oss_clamped"] {
        let checkpoint = open(file);
        let (_, name, ..) = LAYERS.iter().find(|layer| layer.0 == file).unwrap();
        let experts = checkpoint.expert_layer(name).unwrap();
        for (part, product, shards) in
            [("gate_up_proj", ExpertProduct::GateUp, 2), ("down_proj", ExpertProduct::Down, 1)]
        {
            let whole = checkpoint.layer(&format!("{name}.{part}")).unwrap().unpack().unwrap();
            for (expert, shard) in (0..4).flat_map(|e| (0..shards).map(move |s| (e, s))) {
                let ours = matrix(&experts, product, [expert, shard]);
                let rows = whole.shape().n / u64::from(shards);
                assert_eq!(ours.shape(), Shape::matrix(rows, whole.shape().k));
                for n in 0..rows {
                    let stored = n * u64::from(shards) + u64::from(shard);
                    let mut expected = vec![0.0; whole.shape().k as usize];
                    whole.decode_row(u64::from(expert), stored, &mut expected);
                    assert_eq!(row(&ours, n), expected, "{file} {part} {expert} {shard} {n}");
                    let at = u64::from(expert) * whole.shape().n + stored;
                    assert_eq!(
                        ours.bias().unwrap()[n as usize],
                        whole.bias().unwrap()[at as usize]
                    );
                }
            }
            let StoredExperts::Quantised(source) = experts.weights() else { panic!("quantised") };
            assert!(source.matrix(product, 4, 0).is_err());
            assert!(source.matrix(product, 0, shards).is_err());
        }
    }
}

/// The rows of gate before those of up, in a file of our own format.
fn concatenated(mut file: File, name: &str) -> File {
    let rows = |bytes: &[u8]| -> Vec<u8> {
        let row = bytes.len() / (4 * 192);
        let of_expert = |bytes: &[u8]| {
            let shard = |shard: usize| bytes.chunks(row).skip(shard).step_by(2).flatten().copied();
            shard(0).chain(shard(1)).collect::<Vec<u8>>()
        };
        bytes.chunks(192 * row).flat_map(of_expert).collect()
    };
    for tensor in &mut file.tensors {
        if tensor.name.contains("gate_up_proj") {
            tensor.bytes = rows(&tensor.bytes);
        }
    }
    let scheme = |name: &str| quantloom_kernels::scheme(name).unwrap().to_string();
    let gate_up = scheme("gpt_oss_mxfp4_gate_up").replace("interleaved", "concatenated");
    let down = scheme("gpt_oss_mxfp4_down");
    let layers = serde_json::json!({
        format!("{name}.gate_up_proj"): { "shape": [4, 192, 64], "scheme": gate_up },
        format!("{name}.down_proj"): { "shape": [4, 64, 96], "scheme": down },
    });
    let config = serde_json::json!({ "quant_method": "quantloom", "layers": layers });
    file.set_config(config.to_string());
    file
}

#[test]
fn rows_of_gate_before_those_of_up() {
    let name = "model.layers.0.mlp.experts";
    let interleaved = open("moe_gpt_oss_clamped");
    let file = concatenated(File::golden("moe_gpt_oss_clamped"), name);
    let open = |file: &File| Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let ours = open(&file);
    let [expected, found] = [&interleaved, &ours].map(|of| of.expert_layer(name).unwrap());
    for expert in 0..4 {
        let [expected, found] = [&expected, &found].map(|of| of.expert_weights(expert).unwrap());
        assert_eq!(expected, found, "expert {expert}");
    }
    // down has one matrix an expert.
    let mut swapped = file.clone();
    swapped.set(&format!("/layers/{name}.down_proj/scheme"), {
        let scheme = quantloom_kernels::scheme("gpt_oss_mxfp4_down").unwrap().to_string();
        scheme.replace("single", "interleaved").into()
    });
    let error = open(&swapped).expert_layer(name).unwrap_err().to_string();
    assert!(
        error.contains("down_proj\" is the stack of down") && error.contains("interleaved"),
        "{error}"
    );
}

/// vLLM's names of stacks are those of the same matrices.
#[test]
fn stacks_by_vllms_names() {
    let mut file = File::golden("moe_mixtral");
    for (name, other) in [("gate_up_proj", "w13_weight"), ("down_proj", "w2_weight")] {
        file.tensor(&format!("experts.{name}")).name = format!("experts.{other}");
    }
    let renamed = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let golden = open("moe_mixtral");
    let [expected, found] = [&golden, &renamed].map(|of| of.expert_layer("experts").unwrap());
    assert_eq!(expected.sizes(), found.sizes());
    for expert in [0, 7] {
        let [expected, found] = [&expected, &found].map(|of| of.expert_weights(expert).unwrap());
        assert_eq!(expected, found, "expert {expert}");
    }
    // One stack without the other.
    file.tensors.retain(|tensor| tensor.name != "experts.w2_weight");
    let alone = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let error = alone.expert_layer("experts").expect_err("a stack is missing").to_string();
    assert!(error.contains("w2_weight"), "{error}");
}

/// gate and up keep scales of their own: no file merges them.
#[test]
fn shards_keep_their_scales() {
    for (file, prefix, shard, factor) in [
        ("moe_ct_nvfp4", "weight_global_scale", "up_proj", 3.0),
        ("moe_quark_int8", "weight_scale", "up_proj", 3.0),
    ] {
        let checkpoint = open(file);
        let name = "model.layers.0.mlp.experts";
        let value = |part: &str| {
            let tensor = format!("{name}.1.{part}.{prefix}");
            let bytes = checkpoint.tensors().get(&tensor).unwrap().bytes().try_into().unwrap();
            f32::from_le_bytes(bytes)
        };
        let ratio = value(shard) / value("gate_proj");
        assert!((ratio - factor).abs() < 1e-5, "{file}: {ratio}");
        let experts = checkpoint.expert_layer(name).unwrap();
        for (shard, part) in [(0, "gate_proj"), (1, "up_proj")] {
            let ours = matrix(&experts, ExpertProduct::GateUp, [1, shard]);
            let dense = checkpoint.layer(&format!("{name}.1.{part}")).unwrap().unpack().unwrap();
            assert_eq!(row(&ours, 5), row(&dense, 5), "{file} {part}");
        }
    }
}

/// A model that is not known: the weights are there, the routing is the caller's.
#[test]
fn an_unknown_model() {
    let mut file = File::golden("moe_ct_w4a16");
    let name = "model.layers.0.mlp.experts";
    for model in [Some(r#"{"model_type": "sparrow"}"#), None] {
        file.metadata.remove("config");
        if let Some(model) = model {
            file.metadata.insert("config".to_owned(), model.into());
        }
        let checkpoint = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
        let experts = checkpoint.expert_layer(name).unwrap();
        assert_eq!((experts.sizes().experts, experts.sizes().intermediate), (4, 96));
        let error = experts.layer().unwrap_err();
        assert!(matches!(*error.problem, ExpertsProblem::NotDescribed { .. }), "{error}");
        let word =
            if model.is_some() { "`sparrow` is unknown" } else { "there is no `model_type`" };
        assert!(error.to_string().contains(word), "{error}");
        assert!(experts.prepare(&CpuDevice::best()).is_err());
        let text = "4 experts of 64 x 96, top 3, sigmoid, gelu";
        let layer: ExpertLayer = text.parse().unwrap();
        let experts = checkpoint.expert_layer_as(name, &layer).unwrap();
        assert_eq!(experts.layer().unwrap().to_string(), text);
        let op = experts.prepare(&CpuDevice::best()).unwrap();
        assert_eq!(op.layer(), &layer);
        // What the error proposes is a layer of these tensors.
        let proposed = error.to_string();
        let proposed = proposed.rsplit('`').nth(1).unwrap().parse().unwrap();
        assert!(checkpoint.expert_layer_as(name, &proposed).is_ok());
        // Other sizes than the tensors have.
        let wide = "4 experts of 64 x 80, top 3, sigmoid, gelu".parse().unwrap();
        let error = checkpoint.expert_layer_as(name, &wide).unwrap_err().to_string();
        assert!(
            error.contains("expert 0: \"") && error.contains("is 96 x 64, expected 80 x 64"),
            "{error}"
        );
        let ungated = "4 experts of 64 x 96, top 3, sigmoid, ungated relu2".parse().unwrap();
        let error = checkpoint.expert_layer_as(name, &ungated).unwrap_err().to_string();
        assert!(error.contains("takes 1 shards, and the tensors are those of 2"), "{error}");
    }
}

/// A file without the shared expert that its model has: the layer says so. A shared expert without its gate is another layer.
#[test]
fn a_missing_shared_expert() {
    let name = "model.layers.0.mlp.experts";
    let shared = "model.layers.0.mlp.shared_expert";
    let whole = open("moe_qwen2_shared");
    assert_eq!(whole.expert_layer(name).unwrap().missing_shared(), None);
    let without = |left_out: &str| {
        let mut file = File::golden("moe_qwen2_shared");
        file.tensors.retain(|tensor| !tensor.name.starts_with(left_out));
        Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap()
    };
    let alone = without(shared);
    let experts = alone.expert_layer(name).unwrap();
    assert!(experts.shared().is_none());
    assert_eq!(experts.missing_shared(), Some(shared));
    let error = without("model.layers.0.mlp.shared_expert_gate").expert_layer(name).unwrap_err();
    assert!(matches!(*error.problem, ExpertsProblem::NoSharedGate(_)), "{error}");
    // DeepSeek counts its shared experts, and may have none.
    let mut file = File::golden("moe_deepseek_v3");
    file.tensors.retain(|tensor| !tensor.name.starts_with("shared_experts"));
    let config = file.metadata["config"].as_str().unwrap().to_owned();
    for (count, expected) in [(1, Some("shared_experts")), (0, None)] {
        let mut model: serde_json::Value = serde_json::from_str(&config).unwrap();
        model["n_shared_experts"] = count.into();
        file.metadata.insert("config".to_owned(), model.to_string().into());
        let checkpoint = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
        assert_eq!(checkpoint.expert_layer("experts").unwrap().missing_shared(), expected);
    }
    // Mixtral has no shared experts.
    assert_eq!(open("moe_mixtral").expert_layer("experts").unwrap().missing_shared(), None);
}

/// What is wrong with a router does not refuse the layer of callers that choose experts themselves.
#[test]
fn a_router_that_is_not_read() {
    let name = "model.layers.0.mlp.experts";
    let router = "model.layers.0.mlp.gate.weight";
    let mut file = File::golden("moe_ct_w4a16");
    let tensor = file.tensor(router);
    tensor.dtype = "F8_E4M3".to_owned();
    tensor.bytes = vec![0x38; 4 * 64];
    let open = |file: &File| Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let checkpoint = open(&file);
    let experts = checkpoint.expert_layer(name).unwrap();
    let error = experts.router().unwrap_err();
    assert!(matches!(*error.problem, ExpertsProblem::Router { .. }), "{error}");
    assert!(experts.prepare(&CpuDevice::best()).is_ok());
    // `check` says it, also where the file has its own choices.
    let theirs = Checkpoint::open(golden_file("moe_ct_w4a16")).unwrap();
    for name in theirs.tensors().names().filter(|name| name.starts_with("ref.")) {
        let tensor = theirs.tensors().get(name).unwrap();
        file.tensors.push(quantloom_tests::file::Stored {
            name: name.to_owned(),
            dtype: format!("{:?}", tensor.dtype()),
            shape: tensor.shape().iter().map(|size| *size as u64).collect(),
            bytes: tensor.bytes().to_vec(),
        });
    }
    let findings = check(&open(&file), &CpuDevice::best());
    let failed: Vec<Subject> = findings
        .iter()
        .filter(|of| matches!(of.verdict, Verdict::Fail(_)))
        .map(|of| of.subject)
        .collect();
    assert_eq!(failed, [Subject::Routing], "{findings:?}");
    // A quantised layer of the router's name, such as a copy of one of an expert's.
    let mut file = File::golden("moe_ct_w4a16");
    let expert = format!("{name}.0.gate_proj");
    let copied: Vec<_> =
        file.tensors.iter().filter(|of| of.name.starts_with(&expert)).cloned().collect();
    assert!(copied.len() >= 2);
    file.tensors.retain(|tensor| tensor.name != router);
    file.tensors.extend(copied.into_iter().map(|mut tensor| {
        tensor.name = tensor.name.replace(&expert, "model.layers.0.mlp.gate");
        tensor
    }));
    let checkpoint = open(&file);
    let experts = checkpoint.expert_layer(name).unwrap();
    let error = experts.router().unwrap_err();
    assert!(matches!(*error.problem, ExpertsProblem::QuantisedRouter(_)), "{error}");
}

/// References that nothing was compared with are not passed over in silence.
#[test]
fn references_without_a_layer() {
    let bytes = |names: &[&str]| {
        let mut file = File::golden("ct_w4a16");
        let tensor = file.tensors[0].clone();
        for name in names {
            file.tensors
                .push(quantloom_tests::file::Stored { name: (*name).to_owned(), ..tensor.clone() });
        }
        file.bytes()
    };
    // y without x, a layer that is not there, a misspelt name.
    let names = ["ref.layer.y", "ref.other.weight", "ref.layer.X"];
    let checkpoint = Checkpoint::from_bytes(bytes(&names), Options::default()).unwrap();
    let findings = check(&checkpoint, &CpuDevice::best());
    let mut unchecked: Vec<&str> = Vec::new();
    for finding in &findings {
        assert_eq!(finding.subject, Subject::Nothing);
        assert!(matches!(finding.verdict, Verdict::NotChecked(_)), "{finding:?}");
        unchecked.push(&finding.layer);
    }
    unchecked.sort_unstable();
    assert_eq!(unchecked, ["ref.layer.X", "ref.layer.y", "ref.other.weight"]);
    for file in ["ct_w4a16", "gpt_oss_mxfp4", "moe_qwen2_shared"] {
        let findings = check(&open(file), &CpuDevice::best());
        assert!(findings.iter().all(|finding| finding.subject != Subject::Nothing), "{file}");
    }
}

/// With a map, a device gets the experts that are here; the parts of all devices add up.
#[test]
fn an_expert_map() {
    let checkpoint = open("moe_ct_w4a16");
    let experts = checkpoint.expert_layer("model.layers.0.mlp.experts").unwrap();
    let x: Vec<f32> = (0..3 * 64).map(|at| ((at * 37 % 101) as f32 - 50.0) / 32.0).collect();
    let (ids, weights) = ([0, 3, 2, 1, 3, 1], [0.5, 0.25, 1.0, 0.75, 0.125, 0.5]);
    let y = |places: Option<(Vec<i32>, usize)>| {
        let mut options = ExpertOptions::default();
        options.map = places.map(|(places, local)| ExpertMap::new(places, local).unwrap());
        let op = experts.prepare_with(&CpuDevice::best(), &options).unwrap();
        let routed = Routed::Chosen { ids: &ids, weights: &weights };
        let call = quantloom_runtime::experts::ExpertCall {
            x: quantloom_runtime::element::Values::F32(&x),
            routed,
            shared: None,
        };
        op.forward(&call).unwrap()
    };
    let whole = y(None);
    let parts = [y(Some((vec![1, -1, -1, 0], 2))), y(Some((vec![-1, 0, 1, -1], 2)))];
    for (at, whole) in whole.iter().enumerate() {
        // Two sums of two in another order than one of four: a rounding of f32 each.
        let sum = parts[0][at] + parts[1][at];
        let size = parts[0][at].abs() + parts[1][at].abs() + whole.abs();
        assert!((sum - whole).abs() <= 4.0 * f32::EPSILON * size, "{at}: {sum} {whole}");
    }
    assert_ne!(parts[0], whole);
    let mut options = ExpertOptions::default();
    options.map = Some(ExpertMap::new(vec![2, -1, -1, 0], 3).unwrap());
    let Err(error) = experts.prepare_with(&CpuDevice::best(), &options) else { panic!("a hole") };
    assert!(matches!(*error.problem, ExpertsProblem::EmptyPlace(1)), "{error}");
    options.map = Some(ExpertMap::new(vec![1, -1, 0, 1], 2).unwrap());
    let Err(error) = experts.prepare_with(&CpuDevice::best(), &options) else { panic!("twice") };
    assert!(ExpertMap::new(vec![-1; 4], 5).is_err(), "more places than experts");
    let both = ExpertsProblem::TwoAtPlace { place: 1, experts: [0, 3] }.to_string();
    assert_eq!(error.problem.to_string(), both);
}
