//! The command as a contract: exit status, what it prints, what it writes, and how it fails.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use quantloom::device::{Device, Listed};
use quantloom_tests::{
    Made, Random, bf16_tensor, demo_file, f32_tensor, golden_file, tensors_of, write_file,
};
use safetensors::Dtype;
use serde_json::json;

use crate::ran::quantloom;

const SUBCOMMANDS: &[&str] = &[
    "devices",
    "schemes",
    "show",
    "emit",
    "inspect",
    "dequantize",
    "quantize",
    "convert",
    "attach",
    "run",
    "check",
    "bench",
    "verify",
    "sim",
    "tune",
];

/// A temporary folder; `@name` in a command line is a file of the folder.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn arguments(&self, line: &str) -> Vec<OsString> {
        let argument = |text: &str| match (text.strip_prefix('@'), text.strip_prefix('%')) {
            (Some(name), _) => self.path(name).into_os_string(),
            (_, Some(name)) => golden_file(name).into_os_string(),
            _ => text.into(),
        };
        line.split_whitespace().map(argument).collect()
    }

    fn names(&self) -> Vec<OsString> {
        let mut names: Vec<OsString> =
            std::fs::read_dir(self.0.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

fn reals(tensor: &Made) -> Vec<f32> {
    let word = |bytes: &[u8]| match *bytes {
        [a, b] => f32::from_bits(u32::from_le_bytes([0, 0, a, b])), // bf16
        _ => f32::from_le_bytes(bytes.try_into().unwrap()),
    };
    tensor.2.chunks_exact(if tensor.0 == Dtype::BF16 { 2 } else { 4 }).map(word).collect()
}

#[test]
fn help_teaches() {
    let whole = quantloom(&["--help"]).done().out;
    let listed = whole.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // The text of a command may go on in the next line, further in.
    let mut listed: Vec<&str> = listed.filter_map(|line| line.strip_prefix("  ")).collect();
    listed.retain(|line| !line.starts_with(' '));
    let mut listed: Vec<&str> = listed.iter().filter_map(|line| line.split(' ').next()).collect();
    listed.sort_unstable();
    let mut expected = [SUBCOMMANDS, &["help"]].concat();
    expected.sort_unstable();
    assert_eq!(listed, expected, "{whole}");
    for subcommand in SUBCOMMANDS {
        let help = quantloom(&[subcommand, "--help"]).done().out;
        let about = help.lines().next().unwrap_or("");
        assert!(about.len() > 20 && !about.starts_with("Usage"), "{subcommand}: {about}");
        // The text of an option or argument is next to it or below it, indented further.
        let lines = help.lines().skip_while(|line| !line.ends_with("s:"));
        // Examples may follow.
        let lines: Vec<&str> = lines.take_while(|line| !line.contains("--help")).collect();
        let mut described = 0;
        for (at, line) in lines.iter().enumerate() {
            let option = line.trim_start();
            let indent = line.len() - option.len();
            if !option.starts_with(['-', '<', '[']) || !(2..=6).contains(&indent) {
                continue;
            }
            let beside = option.split_once("  ").map_or("", |(_, text)| text).trim();
            let below = lines.get(at + 1).map_or("", |line| line.trim());
            let text = if beside.is_empty() { below } else { beside };
            assert!(text.len() > 8 && !text.starts_with(['-', '[']), "{subcommand}: {line}");
            described += 1;
        }
        assert!(described >= 1, "{help}");
    }
}

#[test]
fn wrong_usage_is_status_2() {
    let folder = Folder::new();
    for line in [
        "frobnicate",
        "--frobnicate",
        "show",
        "inspect",
        "schemes --josn",
        "dequantize %gptq4 --layer layer",
        "run %gptq4 --layer layer --out @y",
        "run %gptq4 --layer layer --input @x:x --out @y --token-scale sometimes",
        "run %gptq4 --layer layer --input @x:x --out @y --expert -1",
        "quantize %gptq4 --scheme ct_w4a16",
        "check",
        "verify",
        "verify ct_w4a16 --shape 16",
        "verify ct_w4a16 --shape 0x16",
        "verify ct_w4a16 --m 1,,3",
        "verify ct_w4a16 --m 9-",
        "verify ct_w4a16 --seed -1",
        "bench --shape 16x",
        "bench --m 0",
    ] {
        let ran = quantloom(&folder.arguments(line));
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{}\n{}", ran.line, ran.err);
        assert!(ran.err.contains("Usage") || ran.err.contains("--help"), "{line}: {}", ran.err);
    }
    assert!(folder.names().is_empty());
}

/// Status 1, one sentence on stderr that names the error, nothing on stdout, no file.
#[test]
fn failures_are_one_sentence_and_leave_nothing() {
    let folder = Folder::new();
    let mut random = Random(3);
    let x = |k: usize, random: &mut Random| bf16_tensor(&[2, k], &random.bf16(2 * k, 1.0));
    let tensors = BTreeMap::from([
        ("x".to_owned(), x(256, &mut random)),
        ("wide".to_owned(), x(260, &mut random)),
        ("flat".to_owned(), (Dtype::BF16, Vec::new(), vec![0, 0])),
        ("whole".to_owned(), (Dtype::I32, vec![1, 256], vec![0; 1024])),
        ("nan.weight".to_owned(), bf16_tensor(&[8, 128], &[0x7fc0; 1024])),
    ]);
    write_file(&folder.path("x"), &tensors, None);
    let config = json!({ "quant_method": "rumour" }).to_string();
    write_file(&folder.path("unknown"), &tensors, Some(&config));
    std::fs::create_dir(folder.path("empty")).unwrap();
    std::fs::write(folder.path("text"), "not a safetensors file").unwrap();
    std::fs::write(folder.path("bad.scheme"), "bad { weight: u9, }").unwrap();
    let whole = std::fs::read(golden_file("ct_w4a16")).unwrap();
    std::fs::write(folder.path("cut"), &whole[..whole.len() - 9]).unwrap();
    std::fs::write(folder.path("old"), "what was there before").unwrap();
    #[cfg(unix)]
    let _kept = std::os::unix::net::UnixListener::bind(folder.path("socket")).unwrap();
    #[cfg(not(unix))]
    std::fs::create_dir(folder.path("socket")).unwrap();
    let before = folder.names();
    for (line, said) in [
        ("show ct_w4a61", "ct_w4a16"),
        ("show w4a16", "ct_w4a16?"),
        ("show zzz", "quantloom schemes"),
        ("show @missing.scheme", "missing.scheme"),
        ("show ct_w4a16 --svg @empty/none/w.svg", "w.svg"),
        ("quantize @x --scheme gptq_4_v1 --out @y", "gptq4_v1"),
        ("quantize @x --scheme ct_w4a16 --out @y --only weight", "--only"),
        ("quantize @x --scheme gpt_oss_mxfp4_down --out @y", "three-dimensional"),
        ("quantize @x --scheme ct_w4a16 --out @old --force", "nan.weight"),
        ("quantize @x --scheme ct_w4a16 --out @old", "--force replaces it"),
        ("inspect @missing", "missing"),
        ("inspect @empty", "safetensors"),
        ("inspect @text", "safetensors"),
        ("inspect @cut", "safetensors"),
        ("inspect @unknown", "unknown quant_method `rumour`"),
        ("dequantize %ct_w4a16 --layer lm_head --out @old --force", "there are: layer"),
        ("dequantize @x --layer lm_head --out @y", "none"),
        ("dequantize %ct_w4a16 --layer layer --out @empty/none/y", "none"),
        ("dequantize %ct_w4a16 --layer layer --out @empty", "empty"),
        ("run %ct_w4a16 --layer layer --input @x:wide --out @old --force", "K = 256"),
        ("run %ct_w4a16 --layer layer --input @x:flat --out @y", "K = 256"),
        ("run %ct_w4a16 --layer layer --input @x:whole --out @y", "I32"),
        ("run %ct_w4a16 --layer layer --input @x:z --out @y", "wide"),
        ("run %ct_w4a16 --layer layer --input @x --out @y", "FILE:NAME"),
        ("run %ct_w4a16 --layer layer --input @missing:x --out @y", "missing"),
        ("run %ct_w4a16 --layer nope --input @x:x --out @y", "there are: layer"),
        ("run %ct_w4a16 --layer layer --input @x:x --expert 1 --out @y", "expert"),
        ("run %ct_w4a16 --layer layer --input @x:x --backend tpu --out @y", "portable"),
        ("run %ct_w4a16 --layer layer --input @x:x --backend cuda:99 --out @y", "cuda: "),
        ("verify ct_w4a16 --backend cuda:99", "present are auto, cpu"),
        (
            "verify ct_w4a16 --backend sim:sm_70",
            "only for sm_80, sm_89, sm_90a, sm_100a, sm_103a, sm_120",
        ),
        ("verify ct_w4a61", "ct_w4a16"),
        ("verify ct_w4a16 --backend tpu", "present are auto, cpu"),
        ("verify ct_w4a16 --backend tpu", "absent are"),
        ("verify ct_w4a16 --backend hip", "present are auto, cpu"),
        ("bench --scheme zzz", "quantloom schemes"),
        ("bench --backend tpu", "portable"),
        ("run %ct_w4a16 --layer layer --input @x:x --out @empty/none/y", "none"),
        ("run %ct_w4a16 --layer layer --input @x:x --out @empty", "empty"),
        ("run %ct_w4a16 --layer layer --input @x:x --out @socket", "not a regular file"),
    ] {
        let ran = quantloom(&folder.arguments(line));
        assert_eq!(ran.code, Some(1), "{}\n{}", ran.line, ran.err);
        let one = ran.err.trim_end().lines().count() == 1 && ran.err.len() < 500;
        assert!(one && ran.err.starts_with("quantloom: "), "{}:\n{}", ran.line, ran.err);
        assert!(ran.err.contains(said), "{}: `{said}` is not in\n{}", ran.line, ran.err);
        assert!(!ran.out.contains("wrote"), "{}\n{}", ran.line, ran.out);
    }
    let bad = quantloom(&folder.arguments("show @bad.scheme"));
    assert_eq!(bad.code, Some(1));
    for said in ["bad.scheme", "u9", "pack", "activation"] {
        assert!(bad.err.contains(said), "every mistake at once: {said}\n{}", bad.err);
    }
    // `check` goes on to the next file.
    let ran = quantloom(&folder.arguments("check @missing %ct_w4a16 @x"));
    assert_eq!((ran.code, ran.err.lines().count()), (Some(1), 2), "{}", ran.err);
    assert!(ran.out.contains("2 passed, 2 failed, 0 not checked"), "{}", ran.out);
    let ran = quantloom(&folder.arguments("check %ct_w4a16 --backend portable --explain")).done();
    assert!(ran.err.contains(", f32 fma is chosen\nneon_bf16"), "{}", ran.err);
    // A reason is printed once, after all instruction sets that it applies to.
    let reasons = ran.err.lines().filter_map(|line| Some(line.split_once(": ")?.1));
    let mut reasons: Vec<&str> = reasons.collect();
    let given = reasons.len();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), given, "{}", ran.err);
    assert_eq!(folder.names(), before);
    assert!(!folder.path("socket").is_file(), "a device or pipe is not replaced by a file");
    assert_eq!(std::fs::read(folder.path("old")).unwrap(), b"what was there before");
    assert_eq!(std::fs::read_dir(folder.path("empty")).unwrap().count(), 0);
}

#[test]
fn schemes_and_devices_are_listed() {
    let found = quantloom(&["schemes", "--json"]).done().json();
    let found = found.as_array().unwrap();
    let names: Vec<&str> = found.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let catalogue = quantloom::kernels::ENTRIES.iter().map(|entry| entry.name);
    assert_eq!(names, catalogue.collect::<Vec<_>>());
    for row in found {
        let keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["name", "summary", "bits_per_weight", "targets"]);
        assert!(!row["summary"].as_str().unwrap().is_empty(), "{row}");
        let targets = row["targets"].as_array().unwrap();
        assert!(targets.iter().any(|target| target == "portable"), "{row}");
    }
    let table = quantloom(&["schemes"]).done().out;
    assert!(names.iter().all(|name| table.contains(&format!(" {name} "))), "{table}");
    for (name, bits) in [
        ("ct_w4a16", 4.0 + 16.0 / 128.0),
        ("ct_w3a16", 3.0 + 16.0 / 128.0),
        ("ct_w3a16_aligned", 3.2 + 16.0 / 128.0),
        ("ct_w4a8", 8.0 + 16.0 / 128.0), // kept in int8
        ("gptq4_v1", 4.0 + 20.0 / 128.0),
        ("ct_mxfp4", 4.25),
        ("ct_nvfp4", 4.5),
        ("ct_mxfp6a16", 6.25),
        ("ct_fp8", 8.0),
    ] {
        let row = found.iter().find(|row| row["name"] == name).unwrap();
        let said = row["bits_per_weight"].as_f64().unwrap();
        assert!((said - bits).abs() < 0.005, "{name}: {said}, expected {bits}");
    }
    let devices = quantloom(&["devices"]).done().out;
    let words = |line: &'_ str| line.split_whitespace().map(str::to_owned).collect();
    let lines: Vec<Vec<String>> = devices.lines().map(words).collect();
    for Listed { name, absent, .. } in Device::list() {
        let state = if absent.is_none() { "present" } else { "absent" };
        let row = [name, state.to_owned()];
        assert!(lines.iter().any(|line| line.starts_with(&row)), "{row:?}:\n{devices}");
    }
    assert!(devices.ends_with(&format!("auto is {}.\n", Device::best().name())), "{devices}");
}

#[test]
fn every_scheme_is_shown_and_drawn() {
    let folder = Folder::new();
    for name in ["ct_w3a16", "awq4", "gptq4_v1_actorder", "ct_nvfp4", "gpt_oss_mxfp4_gate_up"] {
        let shown =
            quantloom(&folder.arguments(&format!("show {name} --svg @w.svg --force"))).done().out;
        let scheme = quantloom::kernels::scheme(name).unwrap();
        assert!(shown.contains(&scheme.to_string()) && shown.contains("portable"), "{shown}");
        let svg = std::fs::read_to_string(folder.path("w.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{name}");
        assert!(svg.contains(name) && svg.matches("<rect").count() > 20, "{name}");
    }
}

/// Name, type and shape of the outputs, and their values against the file's own.
#[test]
fn outputs_are_what_they_should_be() {
    let folder = Folder::new();
    for (file, layer, reference, transposed) in [
        ("ct_w4a16_bias", "layer", "ref.weight", false),
        ("gptq4_v1_actorder", "layer", "ref.weight", false),
        ("gpt_oss_mxfp4", "experts.gate_up_proj", "ref.gate_up_proj", true),
    ] {
        quantloom(
            &folder.arguments(&format!("dequantize %{file} --layer {layer} --out @w --force")),
        )
        .done();
        let (ours, theirs) = (tensors_of(&folder.path("w")), tensors_of(&golden_file(file)));
        assert_eq!(ours.keys().collect::<Vec<_>>(), ["weight"]);
        let (ours, theirs) = (&ours["weight"], &theirs[reference]);
        let mut dims = theirs.1.clone();
        if transposed {
            dims.swap(1, 2);
        }
        assert_eq!((ours.0, &ours.1), (Dtype::F32, &dims), "{file}");
        let (values, theirs) = (reals(ours), reals(theirs));
        let (rows, columns) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        for (at, ours) in values.iter().enumerate() {
            let (matrix, n, k) = (at / columns / rows, at / columns % rows, at % columns);
            let there = if transposed { (matrix * columns + k) * rows + n } else { at };
            assert!((ours - theirs[there]).abs() <= ours.abs() / 512.0, "{file}: {at}");
        }
    }
    // y: f32, the leading dimensions of x.
    let k = 256;
    let values = Random(4).bf16(6 * k, 1.0);
    let inputs = [("two", vec![6, k]), ("three", vec![2, 3, k]), ("one", vec![k])];
    let inputs = inputs.map(|(name, shape)| {
        let count = shape.iter().product();
        (name.to_owned(), bf16_tensor(&shape, &values[..count]))
    });
    write_file(&folder.path("x"), &BTreeMap::from(inputs), None);
    let run = |file: &str, more: &str| {
        let line = format!("run {file} --layer layer --out @y --force {more}");
        let ran = quantloom(&folder.arguments(&line)).done();
        let y = tensors_of(&folder.path("y"));
        assert_eq!((y.len(), y["y"].0), (1, Dtype::F32), "{line}");
        let device = if more.contains("portable") { Device::portable() } else { Device::best() };
        assert!(ran.out.ends_with(&format!(", {}\n", device.name())), "{line}\n{}", ran.out);
        (y["y"].1.clone(), reals(&y["y"]), ran.err)
    };
    for file in ["%ct_w4a16", "%ct_w8a8"] {
        let at = |name: &str| format!("--input {}:{name}", folder.path("x").display());
        let (shape, two, said) = run(file, &at("two"));
        let n = shape[1];
        assert_eq!(shape, [6, n]);
        // A choice that changes the result is printed.
        assert_eq!(said.contains("--token-scale"), file == "%ct_w8a8", "{said}");
        let (shape, three, said) = run(file, &at("three"));
        assert_eq!((shape, said.as_str()), (vec![2, 3, n], ""));
        assert_eq!(run(file, &format!("{} --backend portable", at("one"))).0, [n]);
        let each = run(file, &format!("{} --token-scale per-token", at("two"))).1;
        assert_eq!(each, three, "{file}");
        assert_eq!(two == three, file == "%ct_w4a16", "{file}");
    }
    let x = BTreeMap::from([("x".to_owned(), bf16_tensor(&[6, 64], &values[..6 * 64]))]);
    write_file(&folder.path("x"), &x, None);
    let mut seen = Vec::new();
    for expert in [0, 3] {
        let x = folder.path("x");
        let line = "run %gpt_oss_mxfp4 --layer experts.gate_up_proj --out @y --force";
        let line = format!("{line} --input {}:x --expert {expert}", x.display());
        quantloom(&folder.arguments(&line)).done();
        let y = tensors_of(&folder.path("y"));
        assert_eq!(y["y"].1, [6, 192]);
        seen.push(y["y"].2.clone());
    }
    assert_ne!(seen[0], seen[1]);
}

/// A link is followed, not replaced.
#[cfg(unix)]
#[test]
fn an_output_may_be_a_link() {
    let folder = Folder::new();
    std::fs::write(folder.path("file"), "old").unwrap();
    std::os::unix::fs::symlink(folder.path("file"), folder.path("link")).unwrap();
    quantloom(&folder.arguments("dequantize %ct_w4a16 --layer layer --out @link --force")).done();
    assert!(folder.path("link").is_symlink());
    assert!(tensors_of(&folder.path("file")).contains_key("weight"));
    assert_eq!(folder.names().len(), 2);
}

#[test]
fn the_default_command_does_the_main_job() {
    let ran = quantloom::<&str>(&[]).done();
    let demo = quantloom(&["inspect".as_ref(), demo_file().as_os_str(), "--json".as_ref()]).done();
    let demo = demo.json();
    assert_eq!(demo.as_array().unwrap().len(), 7);
    for row in demo.as_array().unwrap() {
        let (layer, scheme) = (row["layer"].as_str().unwrap(), row["scheme"].as_str().unwrap());
        let line = ran.out.lines().find(|line| line.contains(layer)).expect(layer);
        assert!(line.contains(scheme) && line.contains(" ok"), "{line}");
        assert!(ran.out.matches(scheme).count() >= 2, "its speed too: {scheme}\n{}", ran.out);
    }
    assert!(demo.as_array().unwrap().iter().all(|row| row["layer"] != "lm_head"), "it is float");
    assert!(ran.err.is_empty() && !ran.out.contains("FAILED"), "{}{}", ran.out, ran.err);
}

/// Two shards with an index, and the configuration in `config.json`.
#[test]
fn a_directory_of_shards_is_a_model() {
    let folder = Folder::new();
    let config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true,
        "checkpoint_format": "gptq" });
    let model = json!({ "architectures": ["None"], "quantization_config": config });
    std::fs::write(folder.path("config.json"), model.to_string()).unwrap();
    let tensors = tensors_of(&golden_file("gptq4_v1_actorder"));
    let mut weight_map = serde_json::Map::new();
    let mut shards = [BTreeMap::new(), BTreeMap::new()];
    for (at, (name, tensor)) in tensors.into_iter().enumerate() {
        weight_map.insert(name.clone(), json!(format!("model-{}-of-2.safetensors", at % 2 + 1)));
        shards[at % 2].insert(name, tensor);
    }
    for (at, shard) in shards.iter().enumerate() {
        write_file(&folder.path(&format!("model-{}-of-2.safetensors", at + 1)), shard, None);
    }
    let index = json!({ "metadata": {}, "weight_map": weight_map }).to_string();
    std::fs::write(folder.path("model.safetensors.index.json"), index).unwrap();
    // A file that the index does not name is not part of the model.
    write_file(&folder.path("other.safetensors"), &shards[0], None);
    let found = quantloom(&folder.arguments("inspect @ --json")).done().json();
    assert_eq!((&found[0]["layer"], found.as_array().unwrap().len()), (&json!("layer"), 1));
    assert_eq!(found[0]["scheme"], "gptq4_v1_actorder");
    let ran = quantloom(&folder.arguments("check @")).done();
    assert!(ran.out.contains("2 passed, 0 failed"), "{}", ran.out);
    // A tensor that the index names and its shard does not have.
    let (lost, _) = shards[1].pop_last().unwrap();
    write_file(&folder.path("model-2-of-2.safetensors"), &shards[1], None);
    let ran = quantloom(&folder.arguments("inspect @"));
    assert_eq!(ran.code, Some(1));
    let said = format!("`model-2-of-2.safetensors` has no tensor \"{lost}\"");
    assert!(ran.err.contains(&said), "{}", ran.err);
    // The index of another model, such as that of the model before it was quantised: the files are read as they are.
    let names = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"];
    let index = json!({ "weight_map": { "layer.weight": names[0], "other.weight": names[1] } });
    std::fs::write(folder.path("model.safetensors.index.json"), index.to_string()).unwrap();
    let ran = quantloom(&folder.arguments("inspect @"));
    assert!(!ran.err.contains("has no tensor"), "{}", ran.err);
    std::fs::remove_file(folder.path("model-2-of-2.safetensors")).unwrap();
    let ran = quantloom(&folder.arguments("inspect @"));
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("model-2-of-2.safetensors"), "{}", ran.err);
}

/// The configurations that AutoGPTQ and AutoAWQ write beside the tensors, without a `quant_method`.
#[test]
fn configurations_of_the_software_that_quantised() {
    let gptq = json!({ "bits": 4, "group_size": 128, "desc_act": true, "sym": true,
        "damp_percent": 0.01, "static_groups": false, "true_sequential": true,
        "model_name_or_path": null, "model_file_base_name": "model" });
    let awq = json!({ "zero_point": true, "q_group_size": 128, "w_bit": 4, "version": "GEMM" });
    for (golden, file, config, scheme) in [
        ("gptq4_v1_actorder", "quantize_config.json", &gptq, "gptq4_v1_actorder"),
        ("awq4", "quant_config.json", &awq, "awq4"),
        ("awq4", "quantize_config.json", &awq, "awq4"),
    ] {
        let folder = Folder::new();
        write_file(&folder.path("model.safetensors"), &tensors_of(&golden_file(golden)), None);
        assert_eq!(quantloom(&folder.arguments("inspect @")).code, Some(1), "without {file}");
        std::fs::write(folder.path(file), config.to_string()).unwrap();
        let found = quantloom(&folder.arguments("inspect @ --json")).done().json();
        assert_eq!(found[0]["scheme"], scheme, "{file}");
        let ran = quantloom(&folder.arguments("check @")).done();
        assert!(ran.out.contains("2 passed, 0 failed"), "{}", ran.out);
    }
}

/// `run` says what becomes of x, which is not exact in bf16: a CPU does not round x of a type that the scheme does not list, kernels of GPUs do.
#[test]
fn what_becomes_of_x() {
    let folder = Folder::new();
    let x = BTreeMap::from([("x".to_owned(), f32_tensor(&[2, 256], &[0.1; 512]))]);
    write_file(&folder.path("x.safetensors"), &x, None);
    for (backend, said) in [("cpu", None), ("sim:sm_90a", Some("is rounded to bf16"))] {
        let line = "run %ct_w4a16 --input @x.safetensors:x --out @y.safetensors --force --backend";
        let ran = quantloom(&folder.arguments(&format!("{line} {backend}"))).done();
        match said {
            None => assert!(!ran.err.contains("note"), "{}", ran.err),
            Some(said) => assert!(ran.err.contains(said), "{}", ran.err),
        }
    }
}

/// An input is not written over, however it is spelled.
#[test]
fn an_input_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::copy(golden_file("ct_w4a16"), path("a.safetensors")).unwrap();
    let before = std::fs::read(path("a.safetensors")).unwrap();
    let (file, spelled) = (path("a.safetensors"), path("./a.safetensors"));
    let input = format!("{file}:ref.x");
    let layer = ["--layer", "layer", "--out", &spelled];
    for command in [vec!["dequantize", &file], vec!["run", &file, "--input", &input]] {
        let ran = quantloom(&[&command[..], &layer[..]].concat());
        assert_eq!(ran.code, Some(1), "{}", ran.line);
        assert!(ran.err.contains("is an input"), "{}", ran.err);
    }
    assert!(std::fs::read(&file).unwrap() == before);
}

/// A file without its configuration is not called unquantised.
#[test]
fn a_missing_configuration_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bare.safetensors");
    let tensor = (Dtype::I32, vec![2, 2], vec![0; 16]);
    write_file(&path, &[("l.weight_packed".to_owned(), tensor)].into(), None);
    let path = path.to_string_lossy().into_owned();
    for command in ["inspect", "check"] {
        let ran = quantloom(&[command, &path]);
        assert_eq!(ran.code, Some(1), "{}", ran.line);
        assert!(ran.err.contains("no quantization_config"), "{}", ran.err);
    }
}

/// Text files as some editors leave them.
#[test]
fn scheme_files_of_other_editors() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        "\u{feff}S {\r\n weight: u4 - 8,\r\n pack: u8 [k:2 | k, n],\r\n activation: f16 }\r\n";
    for name in ["a.scheme", "without_extension"] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        quantloom(&["show", &path.to_string_lossy()]).done();
    }
}

/// An instruction set that this CPU lacks is an error with its name and the missing feature.
#[test]
fn an_absent_instruction_set_is_refused_by_name() {
    let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon_dot" };
    for line in ["verify ct_w4a16 --backend", "bench --backend"] {
        let folder = Folder::new();
        let ran = quantloom(&folder.arguments(&format!("{line} {foreign}")));
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.line);
        let says = |text: &str| ran.err.contains(text);
        assert!(says(foreign) && says(std::env::consts::ARCH) && says("portable"), "{}", ran.err);
    }
}

/// One row per scheme and backend, with exactly the requested products.
#[test]
fn verify_compares_on_every_backend() {
    let folder = Folder::new();
    let line = "verify ct_w4a16 gptq4_v1_actorder --shape 33x160 --m 1,5-6 --seed 4";
    let ran = quantloom(&folder.arguments(line)).done();
    let rows: Vec<Vec<&str>> =
        ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    for scheme in ["ct_w4a16", "gptq4_v1_actorder"] {
        let portable = rows.iter().find(|row| row.starts_with(&[scheme, "portable"]));
        let portable = portable.unwrap_or_else(|| panic!("{}", ran.out));
        // Three products of 33 rows and 12 tokens in all, within the bound.
        assert_eq!(portable.last(), Some(&"ok"), "{}", ran.out);
        assert!(portable.contains(&"3") && portable.contains(&"396"), "{}", ran.out);
    }
    let rows = rows.iter().filter(|row| row.last() == Some(&"ok")).count();
    assert!(ran.out.contains(&format!("{rows} passed, 0 failed")), "{}", ran.out);
    let one = quantloom(&folder.arguments(&format!("{line} --backend portable"))).done();
    assert!(one.out.contains("2 passed, 0 failed"), "{}", one.out);
}

/// The machine's rates, a row a scheme and M, and both files.
#[test]
fn bench_measures_and_draws() {
    let folder = Folder::new();
    let line =
        "bench --scheme ct_w4a8 --scheme ct_mxfp4a16 --shape 96x160 --m 1,3 --backend portable";
    let ran = quantloom(&folder.arguments(&format!("{line} --json @b.json --plot @b.svg"))).done();
    assert!(ran.out.contains("GB/s at best") && ran.out.contains("f32 fma"), "{}", ran.out);
    let text = std::fs::read_to_string(folder.path("b.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["backend"], &json["n"], &json["k"]),
        (&json!("portable"), &json!(96), &json!(160))
    );
    let cells: Vec<(&str, u64)> = json["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| {
            for what in ["seconds", "weight_bytes", "gb_per_second", "gop_per_second"] {
                assert!(cell[what].as_f64().unwrap() > 0.0, "{what}: {cell}");
            }
            let rate = 2.0 * 96.0 * 160.0 * cell["m"].as_f64().unwrap() / 1e9;
            let rate = rate / cell["seconds"].as_f64().unwrap();
            assert!((cell["gop_per_second"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9, "{cell}");
            (cell["scheme"].as_str().unwrap(), cell["m"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(cells, [("ct_w4a8", 1), ("ct_w4a8", 3), ("ct_mxfp4a16", 1), ("ct_mxfp4a16", 3)]);
    let svg = std::fs::read_to_string(folder.path("b.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert_eq!((svg.matches("<polyline").count(), svg.contains("ct_mxfp4a16")), (4, true));
    assert_eq!(folder.names().len(), 2);
}

#[test]
fn the_version_is_the_commands() {
    let said = quantloom(&["--version"]).done().out;
    assert_eq!(said, format!("quantloom {}\n", env!("CARGO_PKG_VERSION")));
}

/// A file that cannot be read is a failure with its reason, and no table without rows.
#[test]
fn check_of_no_file_has_no_table() {
    let ran = quantloom(&["check", "--backend", "cpu", "nosuch.safetensors"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert_eq!(ran.out, "0 passed, 1 failed, 0 not checked\n");
    assert!(ran.err.contains("cannot read nosuch.safetensors"), "{}", ran.err);
}
