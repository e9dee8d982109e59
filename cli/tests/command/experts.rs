//! Whole expert layers: what `inspect` shows and `run --experts` writes.

use std::path::{Path, PathBuf};

use quantloom_tests::{golden_file, tensors_of};

use crate::ran::{Ran, quantloom};

const QWEN3: &str = "model.layers.0.mlp.experts";

fn path(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

/// Runs a layer of a golden file with the file's own x.
fn run(file: &str, layer: &str, out: &Path, more: &[&str]) -> Ran {
    let file = path(golden_file(file));
    let (input, out) = (format!("{file}:ref.x"), path(out.to_owned()));
    let own = ["run", &file, "--experts", layer, "--input", &input, "--out", &out, "--force"];
    quantloom(&[&own[..], &["--backend", "cpu"], more].concat())
}

fn f32s(file: &Path, name: &str) -> Vec<f32> {
    let (_, _, bytes) = &tensors_of(file)[name];
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The largest difference, as a part of the largest value.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f32, |most, b| most.max(b.abs()));
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn inspect_shows_one_row_a_layer() {
    for (file, row) in [
        ("moe_ct_w4a16", "4 experts, top 2, silu; gate_up 2 x 96 x 64, down 64 x 96"),
        (
            "moe_nemotron_relu2",
            "6 experts, and a shared one, top 3, ungated relu2; gate_up 96 x 64, down 64 x 96",
        ),
        (
            "moe_gpt_oss_clamped",
            "4 experts, top 2, swigluoai alpha 1.702 limit 7; gate_up 2 x 96 x 64, down 64 x 96",
        ),
    ] {
        let file = path(golden_file(file));
        let shown = quantloom(&["inspect", &file]).done();
        // A narrow table breaks lines.
        let words = shown.out.split_whitespace().filter(|word| *word != "|" && *word != "│");
        let words: Vec<&str> = words.collect();
        assert!(words.join(" ").contains(row), "{}", shown.out);
        assert!(!shown.out.contains("experts.0."), "{}", shown.out);
        assert!(!shown.out.contains("gate_up_proj"), "{}", shown.out);
    }
    let file = path(golden_file("moe_ct_w4a16"));
    let json = quantloom(&["inspect", &file, "--json"]).done().json();
    let values = json.as_array().unwrap();
    assert_eq!(values.len(), 4 * 3 + 1, "each matrix, and the layer");
    let layer = values.iter().find(|value| value["experts"].is_object()).unwrap();
    assert_eq!(layer["layer"], QWEN3);
    let experts = &layer["experts"];
    let text = "4 experts of 64 x 96, top 2, softmax renormalised, silu";
    assert_eq!(experts["text"], text);
    assert_eq!([&experts["experts"], &experts["top_k"], &experts["shards"]], [4, 2, 2]);
    assert!(experts["router"].as_bool().unwrap() && !experts["score_bias"].as_bool().unwrap());
    assert!(experts["down"]["text"].as_str().unwrap().contains("per 1x32"), "{experts}");
}

/// y is the file's own, whoever chooses.
#[test]
fn run_computes_whole_layers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("y");
    for (file, layer) in [
        ("moe_ct_w4a16", QWEN3),
        ("moe_qwen2_shared", QWEN3),
        ("moe_llama4", "language_model.model.layers.1.feed_forward.experts"),
        ("moe_nemotron_relu2", "backbone.layers.1.mixer.experts"),
        ("moe_quark_int8", QWEN3),
    ] {
        let golden = golden_file(file);
        let named = |name: &str| format!("{}:ref.router_{name}", path(golden.clone()));
        let (logits, weights, ids) = (named("0"), named("1"), named("2"));
        let choices: [&[&str]; 3] =
            [&[], &["--logits", &logits], &["--ids", &ids, "--weights", &weights]];
        for choice in choices {
            let ran = run(file, layer, &out, choice).done();
            assert_eq!(ran.err.contains("router chooses"), choice.is_empty(), "{}", ran.err);
            // A unit of bf16 where a sum in f32 crosses a tie of h.
            let off = difference(&f32s(&out, "y"), &f32s(&golden, "ref.y"));
            assert!(off <= 1.0 / 128.0, "{file} {choice:?}: {off}");
            let off = difference(&f32s(&out, "weights"), &f32s(&golden, "ref.router_1"));
            assert!(off <= 1e-6, "{file} {choice:?}: {off}");
            let (written, own) = (tensors_of(&out), tensors_of(&golden));
            let ids = written["ids"].2.chunks_exact(4).map(|id| i64::from(id[0]));
            let expected = own["ref.router_2"].2.chunks_exact(8).map(|id| i64::from(id[0]));
            assert!(ids.eq(expected), "{file} {choice:?}");
        }
    }
}

#[test]
fn options_of_whole_layers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("y");
    let y = |file: &str, layer: &str, more: &[&str]| {
        run(file, layer, &out, more).done();
        f32s(&out, "y")
    };
    // The largest static scale of all experts is another one for most.
    let each = y("moe_quark_int8", QWEN3, &["--input-scales", "each"]);
    assert_eq!(each, y("moe_quark_int8", QWEN3, &[]));
    let off = difference(&y("moe_quark_int8", QWEN3, &["--input-scales", "largest"]), &each);
    assert!(off > 1e-3 && off < 0.2, "{off}");
    // Another description.
    let text = "4 experts of 64 x 96, top 1, softmax, silu";
    let one = y("moe_ct_w4a16", QWEN3, &["--layer-text", text]);
    assert!(difference(&one, &y("moe_ct_w4a16", QWEN3, &[])) > 0.01);
    assert_eq!(tensors_of(&out)["ids"].1[1], 2);
    // A map: what is elsewhere is left out, and the parts add up.
    let map = |places: [i32; 4]| {
        let file = folder.path().join("map");
        let bytes = places.iter().flat_map(|place| place.to_le_bytes()).collect();
        let tensor = (safetensors::Dtype::I32, vec![4], bytes);
        quantloom_tests::write_file(&file, &[("map".to_owned(), tensor)].into(), None);
        y("moe_ct_w4a16", QWEN3, &["--map", &format!("{}:map", path(file))])
    };
    let (first, second) = (map([0, 1, -1, -1]), map([-1, -1, 1, 0]));
    let sum: Vec<f32> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
    // Each part is rounded to bf16.
    let off = difference(&sum, &y("moe_ct_w4a16", QWEN3, &[]));
    assert!(off <= 1.0 / 64.0, "{off}");
    assert!(difference(&first, &second) > 0.1);
}

#[test]
fn mistakes_are_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("y");
    let x = format!("{}:ref.x", path(golden_file("moe_deepseek_negative")));
    for (file, layer, more, said) in [
        ("moe_ct_w4a16", "model.layers.7.mlp.experts", &[][..], "there are: model.layers.0.mlp"),
        ("moe_qwen3", "experts", &[], "is not quantised"),
        ("moe_ct_w4a16", QWEN3, &["--input", &x], "its last dimension must be H = 64"),
        (
            "moe_ct_w4a16",
            QWEN3,
            &["--logits", &x],
            "--logits has 96 values, x and the layer give 6 x 4",
        ),
        ("moe_ct_w4a16", QWEN3, &["--map", &x], "--map is of type F32"),
        (
            "moe_ct_w4a16",
            QWEN3,
            &["--layer-text", "4 experts of 64 x 80, top 2, softmax, silu"],
            "is 96 x 64, expected 80 x 64",
        ),
    ] {
        let golden = path(golden_file(file));
        let (input, to) = (format!("{golden}:ref.x"), path(out.clone()));
        let mut line = vec!["run", &golden, "--experts", layer, "--out", &to, "--backend", "cpu"];
        if !more.contains(&"--input") {
            line.extend(["--input", &input]);
        }
        line.extend(more);
        let ran = quantloom(&line);
        assert_eq!(ran.code, Some(1), "{}\n{}", ran.line, ran.err);
        let last = ran.err.trim_end().lines().last().unwrap_or("");
        assert!(
            last.starts_with("quantloom: ") && last.contains(said),
            "{}\n{}",
            ran.line,
            ran.err
        );
        assert!(!out.exists(), "{}", ran.line);
    }
    for wrong in [
        &["--ids", "f:i"][..],
        &["--weights", "f:w"],
        &["--logits", "f:l", "--ids", "f:i", "--weights", "f:w"],
        &["--layer-text", "8 experts"],
        &["--layer", QWEN3],
        &["--input-scales", "median"],
    ] {
        let ran = run("moe_ct_w4a16", QWEN3, &out, wrong);
        assert_eq!(ran.code, Some(2), "{}\n{}", ran.line, ran.err);
    }
}

/// The launch plan, then each kernel once; the same in files.
#[test]
fn emit_prints_the_launches_and_kernels_of_a_layer() {
    let layer = "4 experts of 64 x 96, top 2, softmax renormalised, silu";
    for (target, m, launches) in [
        ("sm_90a", "5", 5),
        ("sm_90a", "3", 3),
        ("sm_90a", "1", 3),
        ("wgsl", "1", 6),
        ("wgsl", "3", 7),
    ] {
        let own = ["emit", "ct_w4a16", "--target", target, "--m", m, "--experts", layer];
        let printed = quantloom(&own).done().out;
        let comment: Vec<&str> =
            printed.lines().take_while(|line| line.starts_with("//")).collect();
        let comment = comment.join("\n");
        assert!(comment.contains(&format!("// {launches} launches")), "{comment}");
        for number in 1..=launches {
            assert!(comment.contains(&format!("\n// {number}. ")), "{number}: {comment}");
        }
        for part in ["`logits`", "writes `y`", "`w` of the second product", "threads a block"] {
            assert!(comment.contains(part), "{part}: {comment}");
        }
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_string_lossy().into_owned();
        quantloom(&[&own[..], &["--out", &out]].concat()).done();
        let plan = std::fs::read_to_string(folder.path().join("launches.txt")).unwrap();
        let kernels = std::fs::read_dir(folder.path()).unwrap().count() - 1;
        assert_eq!(kernels, launches, "{plan}");
        for line in plan.lines() {
            assert!(comment.contains(line.trim_end()), "{line}");
        }
    }
    let cpu = quantloom(&["emit", "ct_w4a16", "--target", "x86", "--experts", layer]);
    assert_eq!((cpu.code, cpu.out.as_str()), (Some(1), ""), "{}", cpu.err);
    assert!(cpu.err.contains("have no kernels of their own"), "{}", cpu.err);
}

#[test]
fn sim_runs_whole_layers() {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for line in [
        "ct_w4a16 --target sm_90a --experts 4x2 --m 5 --seed 1",
        "ct_w4a8 --target gfx942 --experts 4x2 --m 17 --routing one --seed 1",
    ] {
        let ran = quantloom(&words(&format!("sim {line}"))).done();
        for part in ["kernel combine", "order_e4", "launches; y: ", "within their bounds"] {
            assert!(ran.out.contains(part), "{line}: no `{part}` in\n{}", ran.out);
        }
    }
    let gate = ["--gate", "swigluoai alpha 1.702 limit 7"];
    let sim = words("sim gpt_oss_mxfp4_gate_up --target sm_80 --experts 4x2 --shape 64x64");
    let sim: Vec<&str> = sim.iter().map(String::as_str).chain(gate).collect();
    assert!(quantloom(&sim).done().out.contains("swigluoai"));
    let ran = quantloom(&words("sim ct_w4a16 --target sm_90a --experts 4x5"));
    assert!(ran.code == Some(1) && ran.err.contains("top-k is 1 to 4"), "{}", ran.err);
}

#[test]
fn check_explains_the_launches_of_layers() {
    let file = path(golden_file("moe_ct_w4a16"));
    let told = |backend| quantloom(&["check", &file, "--explain", "--backend", backend]).done().err;
    let cpu = told("portable");
    assert!(cpu.contains(&format!("moe_ct_w4a16: {QWEN3}: ")) && cpu.contains("portable"), "{cpu}");
    let gpu = told("sim:sm_80");
    assert!(gpu.contains("first product: ") && gpu.contains("4 launches"), "{gpu}");
}
