//! What `convert` makes of a model around its layers: configurations, names, the order of tensors, folders.

use std::collections::BTreeMap;
use std::path::Path;

use quantloom_runtime::atomic_folder::AtomicFolder;
use quantloom_runtime::checkpoint::{Checkpoint, CheckpointFormat};
use quantloom_runtime::convert::{ConversionPlan, ConvertOptions, Output};
use quantloom_tests::{Made, bf16_tensor, f32_tensor, golden_file, tensors_of, write_file};
use safetensors::SafeTensors;
use serde_json::json;

use super::{convert, path_of};
use CheckpointFormat::{Awq, CompressedTensors, Gguf, Gptq, ModelOpt, Quark};

/// Tensors of a golden file's layer under other names.
fn layers_of(layers: &[(&str, &str)]) -> BTreeMap<String, Made> {
    let mut tensors = BTreeMap::new();
    for (file, layer) in layers {
        for (name, made) in tensors_of(&path_of(file)) {
            if let Some(name) = name.strip_prefix("layer.") {
                tensors.insert(format!("{layer}.{name}"), made);
            }
        }
    }
    tensors
}

/// The configuration of a file, and what is left out of it.
fn config_of(
    from: &Path,
    to: &Path,
    format: CheckpointFormat,
) -> (serde_json::Map<String, serde_json::Value>, Vec<String>) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let plan = ConversionPlan::new(&checkpoint, format, ConvertOptions::default(), &|_| {});
    plan.write(&Output::File(to.to_owned()), &|_| {}).unwrap();
    let config = Checkpoint::open(to).unwrap().config().unwrap().value.clone();
    (config, plan.left_out().map(|(name, _)| name.to_owned()).collect())
}

/// Keys that vLLM reads, which our readers do not need.
#[test]
fn configurations_have_what_vllm_reads() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let to = folder.path().join("to.safetensors");
    let mut tensors = layers_of(&[("ct_mxfp4a16", "m.q")]);
    tensors.insert("m.embed.weight".to_owned(), bf16_tensor(&[2, 2], &[1, 2, 3, 4]));
    let source = Checkpoint::open(golden_file("ct_mxfp4a16")).unwrap();
    let mut config = source.config().unwrap().value.clone();
    config.insert("ignore".to_owned(), json!(["visual", "re:.*gate$"]));
    write_file(&from, &tensors, Some(&serde_json::Value::Object(config).to_string()));
    // The head has the embedding's weight. Patterns are those of a format.
    let plain = json!(["lm_head", "m.embed", "visual"]);
    let (quark, _) = config_of(&from, &to, Quark);
    assert_eq!(quark["layer_type_quant_config"], json!({}));
    assert_eq!(quark["export"]["kv_cache_group"], json!([]));
    assert_eq!(quark["exclude"], plain);
    let (modelopt, _) = config_of(&from, &to, ModelOpt);
    for key in ["exclude_modules", "ignore"] {
        assert_eq!(modelopt[key], plain, "{key}");
    }
    let (ct, _) = config_of(&from, &to, CompressedTensors);
    assert_eq!(ct["ignore"], json!(["lm_head", "m.embed", "re:.*gate$", "visual"]));
}

/// A quantised head is not excluded, and a quantised embedding is targeted by name.
#[test]
fn heads_and_embeddings_that_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let to = folder.path().join("to.safetensors");
    let mut tensors =
        layers_of(&[("gptq4", "lm_head"), ("gptq4", "m.embed_tokens"), ("gptq4", "m.q_proj")]);
    tensors.insert("m.gate.weight".to_owned(), bf16_tensor(&[2, 2], &[1, 2, 3, 4]));
    let config = r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2",
        "lm_head": true, "modules_to_not_convert": ["visual", "m.q"]}"#;
    write_file(&from, &tensors, Some(config));
    let (ct, _) = config_of(&from, &to, CompressedTensors);
    // `m.q` is in a layer's name.
    assert_eq!(ct["ignore"], json!(["m.gate", "visual"]));
    let targets = &ct["config_groups"]["group_0"]["targets"];
    assert_eq!(*targets, json!(["Linear", "m.embed_tokens"]));
    let (gptq, _) = config_of(&from, &to, Gptq);
    assert_eq!(gptq["lm_head"], true);
}

/// vLLM looks up rules by the names of fused layers.
#[test]
fn rules_of_fused_layers() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let to = folder.path().join("to.safetensors");
    let four = ["a.gate_proj", "a.k_proj"].map(|name| ("gptq4", name));
    let eight = ["b.q_proj", "b.k_proj", "b.v_proj", "b.gate_proj", "b.up_proj", "c.gate_proj"];
    let eight = eight.map(|name| ("gptq8", name));
    let mut tensors = layers_of(&[&four[..], &eight, &[("gptq4", "c.up_proj")]].concat());
    for name in ["a.q_proj", "d.gate_proj", "d.up_proj"] {
        tensors.insert(format!("{name}.weight"), bf16_tensor(&[2, 2], &[1, 2, 3, 4]));
    }
    let config = r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2",
        "dynamic": {"+:^(b|c\\.gate).*$": {"bits": 8}}}"#;
    write_file(&from, &tensors, Some(config));
    let (gptq, _) = config_of(&from, &to, Gptq);
    assert!(gptq.get("lm_head").is_none());
    let rules = gptq["dynamic"].as_object().unwrap();
    let fused = |key: &&String| key.contains("qkv_proj") || key.contains("gate_up_proj");
    let fused: Vec<&str> = rules.keys().filter(fused).map(String::as_str).collect();
    let expected = [r"+:^b\.qkv_proj$", r"+:^b\.gate_up_proj$", r"-:^d\.gate_up_proj$"];
    assert_eq!(fused, expected);
    assert_eq!(rules[expected[0]]["bits"], 8);
}

/// `sym` is true where all zero points of all layers are the middle.
#[test]
fn symmetric_gptq() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let to = folder.path().join("to.safetensors");
    let mut tensors = layers_of(&[("gptq4", "a"), ("gptq8", "b")]);
    let config = r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2",
        "sym": false, "dynamic": {"+:^b$": {"bits": 8}}}"#;
    for (zeros, middle, symmetric) in
        [("", 0, false), ("a.qzeros", 0x88, false), ("b.qzeros", 0x80, true)]
    {
        if let Some(made) = tensors.get_mut(zeros) {
            made.2.fill(middle);
        }
        write_file(&from, &tensors, Some(config));
        let (config, _) = config_of(&from, &to, Gptq);
        assert_eq!(config["sym"], symmetric, "{zeros}");
        assert_eq!(config["dynamic"][r"+:^b$"]["sym"], symmetric, "{zeros}");
    }
}

/// How attention's cache is quantised stays where the format stays; where it cannot, neither do its scales.
#[test]
fn scales_of_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    let to = folder.path().join("to.safetensors");
    let cases = [
        ("ct_w4a16", CompressedTensors, "kv_cache_scheme", json!({"num_bits": 8, "type": "float"})),
        ("modelopt_nvfp4", ModelOpt, "kv_cache_quant_algo", json!("FP8")),
        (
            "quark_w_mxfp4",
            Quark,
            "kv_cache_quant_config",
            json!({"*k_proj": {"output_tensors": {}}}),
        ),
    ];
    for (file, format, key, value) in cases {
        let mut tensors = tensors_of(&golden_file(file));
        tensors.insert("layer.k_scale".to_owned(), f32_tensor(&[1], &[0.5]));
        let source = Checkpoint::open(golden_file(file)).unwrap();
        let mut config = source.config().unwrap().value.clone();
        config.insert(key.to_owned(), value.clone());
        let config = serde_json::Value::Object(config).to_string();
        write_file(&from, &tensors, Some(&config));
        let (config, left_out) = config_of(&from, &to, format);
        let kept = Checkpoint::open(&to).unwrap().tensors().get("layer.k_scale").is_some();
        assert_eq!(kept, format != Quark, "{file}");
        assert_eq!(config.get(key), Some(&value).filter(|_| kept), "{file}");
        assert_eq!(left_out.iter().any(|name| name == "k_scale"), !kept, "{file}");
    }
}

/// A dry run finds what the output's header cannot have: each layer's names, and two tensors of one name.
#[test]
fn plans_check_names() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from.safetensors");
    // The second of two layers that are stored alike.
    let long = format!("z{}", "x".repeat(60));
    let tensors = layers_of(&[("ct_w4a16", "a"), ("ct_w4a16", &long)]);
    let config = Checkpoint::open(golden_file("ct_w4a16")).unwrap().config().unwrap().value.clone();
    write_file(&from, &tensors, Some(&serde_json::Value::Object(config.clone()).to_string()));
    let checkpoint = Checkpoint::open(&from).unwrap();
    let plan = ConversionPlan::new(&checkpoint, Gguf, ConvertOptions::default(), &|_| {});
    assert_eq!(plan.refusals(), 1);
    let why = plan.layers()[1].target().unwrap_err().to_string();
    assert!(why.contains("its name has 68 bytes"), "{why}");
    // More tensors than are read of a GGUF file.
    let mut tensors = layers_of(&[("ct_w4a16", "a")]);
    tensors.extend((0..1 << 17).map(|at| (format!("t{at}"), f32_tensor(&[1], &[0.5]))));
    write_file(&from, &tensors, Some(&serde_json::Value::Object(config).to_string()));
    let checkpoint = Checkpoint::open(&from).unwrap();
    let plan = ConversionPlan::new(&checkpoint, Gguf, ConvertOptions::default(), &|_| {});
    let refused = plan.copied().1;
    let [(name, why)] = refused else { panic!("{refused:?}") };
    assert_eq!(name, "the output");
    assert!(why.to_string().contains("131073 tensors"), "{why}");
    let plan = ConversionPlan::new(&checkpoint, Awq, ConvertOptions::default(), &|_| {});
    assert_eq!(plan.refusals(), 0);
}

/// Tensors of a layer are together, though the source has them far from each other.
#[test]
fn a_layer_is_written_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.gguf"), folder.path().join("to.safetensors"));
    let source = Checkpoint::open(path_of("gguf_q4_0_bias")).unwrap();
    let bytes = |name: &str| source.tensors().get(name).unwrap().bytes();
    let shape = source.layer("layer").unwrap().shape();
    let (bias, weight) = (("bias", 0u32, vec![shape.n]), ("weight", 2, vec![shape.k, shape.n]));
    let all = [("b", &bias), ("a", &bias), ("b", &weight), ("a", &weight)];
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend([all.len() as u64, 0].iter().flat_map(|count| count.to_le_bytes()));
    let mut data: Vec<u8> = Vec::new();
    for (layer, (part, number, dims)) in all {
        let name = format!("{layer}.{part}");
        file.extend((name.len() as u64).to_le_bytes());
        file.extend(name.as_bytes());
        file.extend((dims.len() as u32).to_le_bytes());
        file.extend(dims.iter().flat_map(|size| size.to_le_bytes()));
        file.extend(number.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes(&format!("layer.{part}")));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    std::fs::write(&from, [file, data].concat()).unwrap();
    convert(&from, &to, CompressedTensors, ConvertOptions::default()).unwrap();
    let written = std::fs::read(&to).unwrap();
    let (_, header) = SafeTensors::read_metadata(&written).unwrap();
    let mut names = header.offset_keys();
    names.sort_by_key(|name| header.info(name).unwrap().data_offsets);
    let layers: Vec<&str> = names.iter().map(|name| &name[..1]).collect();
    assert_eq!(layers.concat(), "bbbbaaaa", "{names:?}");
}

/// A folder that cannot be renamed to its name is refused before the work.
#[cfg(unix)]
#[test]
fn folders_that_cannot_get_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, link) = (folder.path().join("empty"), folder.path().join("link"));
    std::fs::create_dir(&empty).unwrap();
    std::os::unix::fs::symlink(&empty, &link).unwrap();
    for path in [link.clone(), link.join(""), empty.join(".."), ".".into()] {
        let error = AtomicFolder::create(&path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{path:?}");
    }
    let names = || std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!((names(), std::fs::read_dir(&empty).unwrap().count()), (2, 0));
    for path in [empty.join(""), empty.join("."), folder.path().join("new")] {
        let made = AtomicFolder::create(&path).unwrap();
        std::fs::write(made.path().join("file"), "text").unwrap();
        made.keep().unwrap();
        assert_eq!(std::fs::read(path.join("file")).unwrap(), b"text");
        std::fs::remove_file(path.join("file")).unwrap();
    }
    // Mount points that most machines have, where one is empty.
    for mount in ["/dev/shm", "/dev/mqueue"].map(Path::new) {
        use std::os::unix::fs::MetadataExt as _;
        let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        let is_empty = std::fs::read_dir(mount).is_ok_and(|mut all| all.next().is_none());
        if is_empty && device(mount) != device(Path::new("/dev")) {
            let error = AtomicFolder::create(mount).unwrap_err();
            assert!(error.to_string().contains("mount point"), "{error}");
        }
    }
}
