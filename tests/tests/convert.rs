//! `convert`: golden files into other formats. What is written is compared with the source by the scalar
//! reference; `converted.txt` has what the formats' own software decoded.

mod models;
mod stacks;

use std::collections::BTreeMap;
use std::path::Path;

use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{PlainCodes, dequantise, pack, unpack};
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::checkpoint::{Checkpoint, CheckpointFormat, Layer, attached, element_dtype};
use quantloom_runtime::convert::{ConversionPlan, ConvertError, ConvertOptions, Output};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_tests::{
    Made, bf16_tensor, f32_tensor, golden, golden_file, packed, tensors_of, write_file,
};
use quantloom_tools::check::{Subject, Verdict, check};
use quantloom_tools::conformance::draw;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use CheckpointFormat::{Awq, CompressedTensors, Fp8, Gguf, Gptq, ModelOpt, Quantloom, Quark};

const FORMATS: [CheckpointFormat; 8] =
    [CompressedTensors, Gptq, Awq, Quark, ModelOpt, Fp8, Gguf, Quantloom];

/// The name of an output file of a format.
fn out(folder: &Path, name: &str, format: CheckpointFormat) -> std::path::PathBuf {
    folder.join(format!("{name}.{}", if format == Gguf { "gguf" } else { "safetensors" }))
}

/// Converts into a file; the way in which the first layer is stored, or why nothing is written.
fn convert(
    from: &Path,
    to: &Path,
    format: CheckpointFormat,
    options: ConvertOptions,
) -> Result<String, String> {
    let checkpoint = Checkpoint::open(from).unwrap();
    let plan = ConversionPlan::new(&checkpoint, format, options, &|_| {});
    let written = plan.write(&Output::File(to.to_owned()), &|_| {});
    let reasons = plan.layers().iter().filter_map(|layer| Some(layer.target().err()?.to_string()));
    let others = plan.copied().1.iter().map(|(name, refusal)| format!("{name}: {refusal}"));
    match written {
        Ok(()) => Ok(plan.layers()[0].target().unwrap().to_owned()),
        Err(ConvertError::Refused(_)) => {
            assert!(!to.exists(), "a refused conversion writes nothing");
            Err(reasons.chain(others).collect::<Vec<_>>().join("; "))
        }
        Err(error) => panic!("{} to {format:?}: {error}", from.display()),
    }
}

/// The weights of a layer by the scalar reference, -0 as 0.
fn weights(layer: &Layer) -> Vec<u64> {
    let scheme: &Scheme = layer.scheme();
    let plain = unpack(scheme, layer.shape(), &packed(layer)).unwrap();
    dequantise(scheme, &plain).unwrap().iter().map(|value| (value + 0.0).to_bits()).collect()
}

fn path_of(file: &str) -> std::path::PathBuf {
    if file.starts_with("gguf_") {
        golden().join(format!("{file}.gguf"))
    } else {
        golden_file(file)
    }
}

/// What each file becomes. Formats that are not named refuse it.
const PAIRS: &[(&str, &[(CheckpointFormat, &str)])] = &[
    (
        "awq4",
        &[
            (CompressedTensors, "4 bits, zero points, f16"),
            (Gptq, "4 bits, f16"),
            (Awq, "4 bits, f16"),
            (Quark, "uint4, f16"),
            (Gguf, "Q5_0"),
            (Quantloom, "u4"),
        ],
    ),
    ("ct_fp8_dynamic", &[(CompressedTensors, "FP8, bf16"), (Quantloom, "e4m3")]),
    (
        "ct_mxfp4a16",
        &[
            (CompressedTensors, "MXFP4"),
            (Quark, "MX fp4"),
            (ModelOpt, "NVFP4"),
            (Gguf, "MXFP4"),
            (Quantloom, "e2m1"),
        ],
    ),
    ("ct_nvfp4a16", &[(CompressedTensors, "NVFP4"), (Quantloom, "e2m1")]),
    (
        "ct_w4a16_bias",
        &[
            (CompressedTensors, "4 bits, f16"),
            (Quark, "int4, f16"),
            (ModelOpt, "W4A16_AWQ, f16"),
            (Awq, "4 bits, f16"),
            (Gguf, "Q4_0"),
            (Quantloom, "u4 - 8"),
        ],
    ),
    (
        "gptq3_v1",
        &[
            (CompressedTensors, "3 bits, zero points, f16"),
            (Gptq, "3 bits, f16"),
            (Awq, "4 bits, f16"),
            (Quark, "int4, f16"),
            (ModelOpt, "W4A16_AWQ, f16"),
            (Gguf, "Q4_0"),
            (Quantloom, "u3"),
        ],
    ),
    ("gptq4_v1_actorder", &[(Gptq, "4 bits, f16"), (Quantloom, "u4")]),
    (
        "gptq8",
        &[
            (CompressedTensors, "8 bits, zero points, f16"),
            (Gptq, "8 bits, f16"),
            (Quantloom, "u8"),
        ],
    ),
    ("modelopt_nvfp4", &[(ModelOpt, "NVFP4"), (Quantloom, "e2m1")]),
    ("quark_w8a8_int8_channel", &[(Quark, "int8, f32"), (Quantloom, "i8")]),
    ("quark_w_mxfp6_e3m2", &[(Quark, "MX fp6_e3m2"), (Quantloom, "e3m2")]),
    ("gguf_nvfp4_scaled", &[(ModelOpt, "NVFP4"), (Gguf, "NVFP4"), (Quantloom, "e2m1")]),
    (
        "gguf_q4_0_bias",
        &[
            (CompressedTensors, "4 bits, f16"),
            (Quark, "int4, f16"),
            (Gguf, "Q4_0"),
            (Quantloom, "u4 - 8"),
        ],
    ),
    ("gguf_q4_k", &[(Gguf, "Q4_K"), (Quantloom, "u4")]),
    ("gguf_q6_k", &[(CompressedTensors, "6 bits, f32"), (Gguf, "Q6_K"), (Quantloom, "u6 - 32")]),
];

#[test]
fn every_value_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut written = 0;
    for (file, targets) in PAIRS {
        let from = path_of(file);
        let source = Checkpoint::open(&from).unwrap();
        let source = source.layer("layer").unwrap().clone();
        let expected = weights(&source);
        for format in FORMATS {
            let target = targets.iter().find(|(known, _)| *known == format).map(|(_, way)| *way);
            let to = out(folder.path(), file, format);
            let way = convert(&from, &to, format, ConvertOptions::default());
            assert_eq!(way.as_deref().ok(), target, "{file} to {format:?}: {way:?}");
            if target.is_none() {
                continue;
            }
            let read = Checkpoint::open(&to).unwrap();
            assert_eq!(read.format(), format);
            let layer = read.layer("layer").unwrap();
            assert_eq!(layer.shape(), source.shape(), "{file} to {format:?}");
            assert_eq!(weights(layer), expected, "{file} to {format:?}");
            let bias = |layer: &Layer| layer.unpack().unwrap().bias().map(<[f64]>::to_vec);
            assert_eq!(bias(layer), bias(&source), "{file} to {format:?}");
            // What is not a layer's is copied.
            let copied =
                |of: &Checkpoint| of.tensors().get("ref.weight").map(|t| t.bytes().to_vec());
            assert!(
                copied(&read).is_some()
                    && copied(&read) == copied(&Checkpoint::open(&from).unwrap())
            );
            written += 1;
            std::fs::remove_file(&to).unwrap();
        }
    }
    assert_eq!(written, 51);
}

/// Each refusal says what the format does not say.
#[test]
fn refusals_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("gptq4_v1_actorder", Awq, "act-order"),
        ("gptq4_v1_actorder", CompressedTensors, "act-order"),
        ("gptq4_v1_actorder", Gguf, "act-order"),
        ("gptq4", ModelOpt, "i4 has no such code"),
        ("gptq8", Gguf, "Q8_0: the weight of row 0, column 7 is 182.0 steps"),
        ("ct_w4a8", Gguf, "x is quantised (i8)"),
        ("ct_w4a8", Gptq, "x is quantised (i8)"),
        ("ct_fp8", ModelOpt, "in x's own arithmetic"),
        ("ct_nvfp4a16", ModelOpt, "reciprocal"),
        ("ct_fp8_block", Gptq, "GPTQ stores integers"),
        ("ct_w4a16", Gptq, "N = 48 is not a multiple of 32"),
        ("gguf_q4_1", CompressedTensors, "no zero point"),
        ("gguf_q4_k", Quark, "no zero point"),
        ("gguf_q8_0", ModelOpt, "the scale is one per 1 x 32, and one per row there"),
        ("gguf_experts", CompressedTensors, "which is not a value of f32"),
        ("gpt_oss_mxfp4", Gguf, "another order of rows"),
    ];
    for (file, format, part) in cases {
        let to = out(folder.path(), file, format);
        let why = convert(&path_of(file), &to, format, ConvertOptions::default()).unwrap_err();
        let part = if part == "no zero point" { "as a zero point there would be" } else { part };
        assert!(why.contains(part), "{file} to {format:?}: {why}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    for format in [CheckpointFormat::GptOss, CheckpointFormat::BitsAndBytes, CheckpointFormat::Hqq]
    {
        let to = out(folder.path(), "no", format);
        let why =
            convert(&golden_file("awq4"), &to, format, ConvertOptions::default()).unwrap_err();
        assert!(why.contains("is not written"), "{why}");
    }
}

/// GGUF to GGUF: the same bytes, keys and all.
#[test]
fn gguf_files_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir(golden()).unwrap() {
        let from = entry.unwrap().path();
        if from.extension().is_none_or(|ending| ending != "gguf") {
            continue;
        }
        let (own, to) = (folder.path().join("own.safetensors"), folder.path().join("to.gguf"));
        convert(&from, &to, Gguf, ConvertOptions::default()).unwrap();
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "{from:?}");
        // By way of our own format keys are lost, and tensors are not.
        convert(&from, &own, Quantloom, ConvertOptions::default()).unwrap();
        convert(&own, &to, Gguf, ConvertOptions::default()).unwrap();
        let bytes = |path: &Path| -> BTreeMap<String, Vec<u8>> {
            let read = Checkpoint::open(path).unwrap();
            let of =
                |name: &str| (name.to_owned(), read.tensors().get(name).unwrap().bytes().to_vec());
            read.tensors().names().map(of).collect()
        };
        assert!(bytes(&from) == bytes(&to), "{from:?}");
        files += 1;
    }
    assert_eq!(files, 19);
}

/// There and back: the same tensors.
#[test]
fn there_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let own = |path: &Path| -> BTreeMap<String, Made> {
        let all = tensors_of(path).into_iter();
        all.filter(|(name, _)| name.starts_with("layer.")).collect()
    };
    let cases = [
        ("ct_w4a16", Gguf, CompressedTensors),
        ("ct_w4a16", ModelOpt, CompressedTensors),
        ("ct_w4a16_asym", Awq, CompressedTensors),
        ("ct_w3a16", Quantloom, CompressedTensors),
        ("awq4", Gptq, Awq),
        ("awq4", Quark, Awq),
        ("gptq4", CompressedTensors, Gptq),
        ("quark_w_mxfp4", Gguf, Quark),
    ];
    for (file, there, back) in cases {
        let (one, two) = (out(folder.path(), "there", there), out(folder.path(), "back", back));
        convert(&golden_file(file), &one, there, ConvertOptions::default()).unwrap();
        convert(&one, &two, back, ConvertOptions::default()).unwrap();
        let (mut before, mut after) = (own(&golden_file(file)), own(&two));
        // GPTQ's trivial order is written whether or not the file had it.
        before.remove("layer.g_idx");
        after.remove("layer.g_idx");
        if file == "ct_w4a16" && there == Gguf {
            // Groups of 32 columns have the scale of their 128.
            for tensors in [&mut before, &mut after] {
                tensors.remove("layer.weight_scale");
            }
        }
        // Scales are in the type that they had.
        assert!(before == after, "{file} to {there:?} and back: {:?}", after.keys());
    }
}

/// Without what is said of x, weights are the same.
#[test]
fn weights_only() {
    let folder = tempfile::tempdir().unwrap();
    let options = ConvertOptions { weights_only: true };
    for (file, format, way) in [
        ("ct_w4a8", Gguf, "Q4_0"),
        ("ct_fp8", ModelOpt, "FP8, bf16"),
        ("quark_w8a8_int8_tensor", CompressedTensors, "8 bits, f32"),
        ("ct_mxfp4", Gguf, "MXFP4"),
    ] {
        let to = out(folder.path(), file, format);
        assert_eq!(convert(&golden_file(file), &to, format, options).as_deref(), Ok(way), "{file}");
        let read = Checkpoint::open(&to).unwrap();
        let layer = read.layer("layer").unwrap();
        assert!(layer.scheme().quantiser().is_none());
        let source = Checkpoint::open(golden_file(file)).unwrap();
        assert_eq!(weights(layer), weights(source.layer("layer").unwrap()), "{file}");
    }
}

/// A file of our own format with a random layer of N = 32, K = 64, and its decoded weight as a reference.
fn of_scheme(path: &Path, text: &str) {
    let scheme = parse(text).unwrap();
    let plain = draw::layer(&scheme, Shape::matrix(32, 64), 3);
    let weight: Vec<f32> =
        dequantise(&scheme, &plain).unwrap().iter().map(|value| *value as f32).collect();
    let stores = pack(&scheme, &plain).unwrap();
    let mut tensors: BTreeMap<String, Made> = BTreeMap::new();
    for store in &scheme.stores {
        let bound = scheme.bind(store, plain.shape).unwrap();
        let dims = bound.dims().iter().map(|size| *size as usize);
        let made = (element_dtype(&scheme, store), dims.collect(), stores[&store.name].clone());
        tensors.insert(format!("layer.{}", store.name), made);
    }
    tensors.insert("ref.weight".to_owned(), f32_tensor(&[32, 64], &weight));
    let config = json!({ "quant_method": "quantloom",
        "layers": { "layer": { "shape": [1, 32, 64], "scheme": text } } });
    write_file(path, &tensors, Some(&config.to_string()));
}

/// Sums of integers are those of x that is quantised.
#[test]
fn weights_only_have_no_sums_of_integers() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    of_scheme(
        &from,
        "s { weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: f32 per token }, accumulate: i32 }",
    );
    for format in [Quantloom, CompressedTensors] {
        let to = out(folder.path(), "to", format);
        convert(&from, &to, format, ConvertOptions { weights_only: true }).unwrap();
        let read = Checkpoint::open(&to).unwrap();
        let source = Checkpoint::open(&from).unwrap();
        assert_eq!(weights(read.layer("layer").unwrap()), weights(source.layer("layer").unwrap()));
    }
}

/// A weight beside a prescale is compared alone: its product is that of another x.
#[test]
fn a_prescale_is_not_of_the_weight() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layer.safetensors");
    of_scheme(
        &path,
        "s { weight: u4 - 8, scale: bf16 per 1x32, prescale: bf16, pack: u8 [k:2 | k, n], activation: bf16 }",
    );
    let findings = check(&Checkpoint::open(&path).unwrap(), &CpuDevice::best());
    let subjects: Vec<_> = findings.iter().map(|of| (of.subject, of.verdict.clone())).collect();
    assert_eq!(subjects, [(Subject::Weight, Verdict::Pass)], "{findings:?}");
}

/// Layers of several kinds in a folder with shards, which readers of the format find by its index.
#[test]
fn folders_have_shards_and_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    std::fs::create_dir(&source).unwrap();
    // Two layers of 4 bits and one of 8, and tensors that stay.
    let mut tensors: BTreeMap<String, Made> = BTreeMap::new();
    for (file, layer) in [("gptq4", "model.a.q"), ("gptq4", "model.b.q"), ("gptq8", "model.b.v")] {
        for (name, made) in tensors_of(&golden_file(file)) {
            if let Some(name) = name.strip_prefix("layer.") {
                tensors.insert(format!("{layer}.{name}"), made);
            }
        }
    }
    tensors.insert("model.norm.weight".to_owned(), f32_tensor(&[4], &[1.0, 2.0, 3.0, 4.0]));
    tensors.insert("lm_head.weight".to_owned(), bf16_tensor(&[2, 2], &[1, 2, 3, 4]));
    write_file(&source.join("model.safetensors"), &tensors, None);
    let config = r#"{"model_type": "llama", "hidden_size": 4, "quantization_config": {"quant_method": "gptq",
        "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2", "dynamic": {"+:.*\\.v$": {"bits": 8}}}}"#;
    std::fs::write(source.join("config.json"), config).unwrap();
    std::fs::write(source.join("tokenizer.json"), "{}").unwrap();
    std::fs::write(source.join("quantize_config.json"), r#"{"bits": 4}"#).unwrap();
    std::fs::write(source.join("modeling_llama.py"), "").unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    for (format, shard_bytes, shards) in [
        (CompressedTensors, 12_000, 4),
        (Quark, u64::MAX, 0),
        (Gptq, 1, 14),
        (Quantloom, 40_000, 1),
    ] {
        let plan = ConversionPlan::new(&checkpoint, format, ConvertOptions::default(), &|_| {});
        let path = folder.path().join(format!("{format:?}"));
        let output = Output::Folder { path: path.clone(), shard_bytes };
        let written = plan.write(&output, &|_| {});
        if shards == 0 {
            // 8 bits with zero points are no Quark's: the folder is not there, nor anything else.
            assert!(matches!(written, Err(ConvertError::Refused(1))), "{written:?}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
            continue;
        }
        written.unwrap();
        let names = || {
            let entries = std::fs::read_dir(&path).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
        };
        let mut others: Vec<String> =
            names().filter(|name| !name.ends_with(".safetensors")).collect();
        others.sort();
        let mut expected = vec![
            "config.json",
            "model.safetensors.index.json",
            "modeling_llama.py",
            "tokenizer.json",
        ];
        if shards == 1 {
            expected.remove(1);
        }
        assert_eq!(others, expected, "{format:?}");
        assert_eq!(
            names().filter(|name| name.ends_with(".safetensors")).count(),
            shards,
            "{format:?}"
        );
        let model = std::fs::read_to_string(path.join("config.json")).unwrap();
        let model: serde_json::Value = serde_json::from_str(&model).unwrap();
        assert_eq!(model["hidden_size"], 4);
        let read = Checkpoint::open(&path).unwrap();
        assert_eq!(read.format(), format);
        for layer in ["model.a.q", "model.b.q", "model.b.v"] {
            let (ours, theirs) = (read.layer(layer).unwrap(), checkpoint.layer(layer).unwrap());
            assert_eq!(weights(ours), weights(theirs), "{layer}");
        }
        for name in ["model.norm.weight", "lm_head.weight"] {
            assert_eq!(read.tensors().get(name).unwrap().bytes(), tensors[name].2);
        }
        if format == CompressedTensors {
            let config = &model["quantization_config"];
            assert_eq!(config["ignore"], serde_json::json!(["lm_head"]));
            let groups = &config["config_groups"];
            assert_eq!(groups["group_0"]["targets"], serde_json::json!(["model.a.q", "model.b.q"]));
            assert_eq!(groups["group_1"]["weights"]["num_bits"], 8);
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}

/// A folder that has files is left as it is; GGUF is no folder.
#[test]
fn folders_that_are_there_stay() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine"), "mine").unwrap();
    let checkpoint = Checkpoint::open(golden_file("awq4")).unwrap();
    let plan =
        |format| ConversionPlan::new(&checkpoint, format, ConvertOptions::default(), &|_| {});
    let output = Output::Folder { path: folder.path().to_owned(), shard_bytes: 1 << 30 };
    let error = plan(Gptq).write(&output, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("no empty folder"), "{error}");
    let error = plan(Gguf).write(&output, &|_| {}).unwrap_err();
    assert!(matches!(error, ConvertError::Folder(_)), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Tensors that GGUF cannot have are named.
#[test]
fn tensors_that_gguf_cannot_have() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let mut tensors = tensors_of(&golden_file("awq4"));
    tensors.insert("mask".to_owned(), (safetensors::Dtype::BOOL, vec![2], vec![0, 1]));
    tensors.insert("empty".to_owned(), f32_tensor(&[0], &[]));
    let long = "x".repeat(64);
    tensors.insert(long.clone(), f32_tensor(&[1], &[1.0]));
    let config = r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}"#;
    write_file(&from, &tensors, Some(config));
    let to = folder.path().join("to.gguf");
    let why = convert(&from, &to, Gguf, ConvertOptions::default()).unwrap_err();
    for part in ["mask: ggml has no type", "empty: it is empty", "its name has 64 bytes"] {
        assert!(why.contains(part), "{why}");
    }
    convert(&from, &folder.path().join("to.safetensors"), Gptq, ConvertOptions::default()).unwrap();
}

/// What a format keeps beside a layer stays within the format, and is left out of another one.
#[test]
fn tensors_beside_a_layer() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let mut tensors = tensors_of(&golden_file("ct_w4a16"));
    tensors.insert("layer.k_scale".to_owned(), f32_tensor(&[1], &[0.5]));
    let config = Checkpoint::open(golden_file("ct_w4a16")).unwrap().config().unwrap().value.clone();
    write_file(&from, &tensors, Some(&serde_json::Value::Object(config).to_string()));
    let checkpoint = Checkpoint::open(&from).unwrap();
    for (format, left_out) in [
        (CompressedTensors, Vec::new()),
        (Gguf, vec![("k_scale".to_owned(), 1), ("weight_shape".to_owned(), 1)]),
    ] {
        let plan = ConversionPlan::new(&checkpoint, format, ConvertOptions::default(), &|_| {});
        let found: Vec<_> = plan.left_out().map(|(name, of)| (name.to_owned(), of)).collect();
        assert_eq!(found, left_out);
        let to = out(folder.path(), "to", format);
        plan.write(&Output::File(to.clone()), &|_| {}).unwrap();
        let read = Checkpoint::open(&to).unwrap();
        assert_eq!(read.tensors().get("layer.k_scale").is_some(), format == CompressedTensors);
        assert_eq!(read.tensors().get("layer.weight_shape").is_some(), format == CompressedTensors);
    }
}

/// Schemes that no other software has, with zero points and shifts besides, are ours as they are.
#[test]
fn own_files_take_every_scheme() {
    let folder = tempfile::tempdir().unwrap();
    let text = "both { weight: u4, zero: u8 [g, n], shift: f16, scale: f16 per 1x32, pack: u8 [k:2 | k, n], \
                activation: bf16 }";
    let scheme = parse(text).unwrap();
    let shape = Shape::matrix(2, 64);
    let codes = |component: Component, codes: Vec<u32>| (component, codes);
    let components = [
        codes(Component::Code, (0..128).map(|at| at * 7 % 16).collect()),
        codes(Component::Zero, vec![3, 0, 15, 8]),
        codes(Component::Shift(0), vec![0x3c00, 0xb800, 0, 0x2e66]),
        codes(Component::Scale(0), vec![0x2e66, 0x3555, 0x3c01, 0x0001]),
    ];
    let plain = PlainCodes { shape, components: components.into() };
    let stored = pack(&scheme, &plain).unwrap();
    let layer = Layer::from_bytes("a", &scheme, shape, |store| stored.get(store).cloned()).unwrap();
    let tensors = layer.stores().map(|(store, bytes)| {
        let tensor = (safetensors::Dtype::U8, vec![bytes.len()], bytes.to_vec());
        let tensor = match store {
            "weight" => (tensor.0, vec![2, 32], tensor.2),
            "weight_zero_point" => (tensor.0, vec![2, 2], tensor.2),
            _ => (safetensors::Dtype::F16, vec![2, 2], tensor.2),
        };
        (format!("a.{store}"), tensor)
    });
    let (from, to) = (folder.path().join("from.safetensors"), folder.path().join("to.safetensors"));
    write_file(&from, &tensors.collect(), Some(&attached(&[("a", &scheme, shape)])));
    convert(&from, &to, Quantloom, ConvertOptions::default()).unwrap();
    assert!(tensors_of(&from) == tensors_of(&to));
    let why =
        convert(&from, &to.with_extension("gguf"), Gguf, ConvertOptions::default()).unwrap_err();
    assert!(why.contains("both zero points and shifts"), "{why}");
}

/// AWQ has one group size: the layer with another one is refused, not the first.
#[test]
fn layers_that_cannot_be_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let mut tensors: BTreeMap<String, Made> = BTreeMap::new();
    for layer in ["a", "b"] {
        for (name, made) in tensors_of(&golden_file("gptq4")) {
            if let Some(name) = name.strip_prefix("layer.") {
                tensors.insert(format!("{layer}.{name}"), made);
            }
        }
    }
    // b has one group of 256 columns.
    for (name, made) in &mut tensors {
        if name == "b.scales" || name == "b.qzeros" {
            made.1[0] /= 2;
            made.2.truncate(made.2.len() / 2);
        }
        if name == "b.g_idx" {
            made.2.fill(0);
        }
    }
    let config = r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2",
        "dynamic": {"+:^b$": {"group_size": 256}}}"#;
    write_file(&from, &tensors, Some(config));
    let checkpoint = Checkpoint::open(&from).unwrap();
    let plan = ConversionPlan::new(&checkpoint, Awq, ConvertOptions::default(), &|_| {});
    assert_eq!(plan.refusals(), 1);
    assert!(plan.layers()[0].target().is_ok());
    let why = plan.layers()[1].target().unwrap_err().to_string();
    assert!(why.contains("one group size for all layers"), "{why}");
}

/// Outputs are byte for byte those that the formats' own software decoded to the source's weights
/// (`tests/golden/check_converted.py`).
#[test]
fn other_software_decoded_these_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let list = std::fs::read_to_string(golden().join("converted.txt")).unwrap();
    let mut compared = 0;
    for line in list.lines() {
        let [file, format, expected] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let format = if format == "gguf" { Gguf } else { CompressedTensors };
        let to = out(folder.path(), "to", format);
        convert(&golden().join(file), &to, format, ConvertOptions::default()).unwrap();
        let digest = Sha256::digest(std::fs::read(&to).unwrap());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, expected, "{file} to {format:?}: see tests/golden/check_converted.py");
        std::fs::remove_file(&to).unwrap();
        compared += 1;
    }
    assert!(compared > 80, "{compared}");
}
