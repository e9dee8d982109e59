//! `quantloom convert`: what it says, writes and refuses.

use std::path::Path;

use quantloom::runtime::checkpoint::{Checkpoint, CheckpointFormat};
use quantloom_tests::{golden_file, golden_gguf};

use crate::ran::{Ran, quantloom};

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn convert(from: &Path, arguments: &[&str]) -> Ran {
    quantloom(&[&["convert", &text(from)][..], arguments].concat())
}

/// The format that a path is read as.
fn format(path: &str) -> CheckpointFormat {
    Checkpoint::open(path).unwrap().format()
}

#[test]
fn a_dry_run_says_how_each_layer_is_stored() {
    let ran = convert(&golden_file("ct_w4a16_asym"), &["--to", "gguf", "--dry-run"]).done();
    let row = ran.out.lines().find(|line| line.contains("48 x 256")).unwrap();
    for part in ["48 x 256", "ct_w4a16_asym", "Q5_0", "4.16 -> 5.50"] {
        assert!(row.contains(part), "{part}:\n{}", ran.out);
    }
    assert!(ran.out.contains("note: the tensor weight_shape of 1 layers"), "{}", ran.out);
    // The reason of a refusal is there too, and the exit status says it.
    let ran = convert(&golden_file("gptq4_v1_actorder"), &["--to", "awq", "--dry-run"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("refused: layer: AWQ: act-order"), "{ran:?}");
    assert!(ran.err.contains("GPTQ to AWQ: 1 of 1 layers"), "{ran:?}");
}

#[test]
fn files_are_whole_or_absent() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| text(&folder.path().join(name));
    let (ct, gguf) = (out("ct.safetensors"), out("model.gguf"));
    let ran = convert(&golden_gguf("q4_0"), &["--to", "compressed-tensors", "--out", &ct]).done();
    assert!(ran.out.contains("every weight compared"), "{}", ran.out);
    assert!(ran.out.contains("keys of the GGUF file"), "{}", ran.out);
    assert_eq!(format(&ct), CheckpointFormat::CompressedTensors);
    // Nothing is replaced without --force, and no input by any name.
    let again = ["--to", "compressed-tensors", "--out", &ct];
    assert!(convert(&golden_gguf("q4_0"), &again).err.contains("--force"));
    convert(&golden_gguf("q4_0"), &[&again[..], &["--force"]].concat()).done();
    let own = convert(Path::new(&ct), &["--to", "awq", "--out", &ct, "--force"]);
    assert!(own.code == Some(1) && own.err.contains("is an input"), "{own:?}");
    // A refusal leaves nothing.
    let ran = convert(&golden_file("ct_w4a8"), &["--to", "gguf", "--out", &gguf]);
    assert!(ran.code == Some(1) && ran.err.contains("nothing was written"), "{ran:?}");
    assert!(ran.out.contains("--weights-only"), "{ran:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let weights = ["--to", "gguf", "--weights-only", "--out", &gguf];
    convert(&golden_file("ct_w4a8"), &weights).done();
    let inspected = quantloom(&["inspect", &gguf]).done().out;
    assert!(inspected.contains("48 x 256"), "{inspected}");
}

#[test]
fn folders_are_new() {
    let folder = tempfile::tempdir().unwrap();
    let out = text(&folder.path().join("model"));
    let arguments = ["--to", "gptq", "--out", &out, "--shard-size", "9KB"];
    convert(&golden_file("awq4"), &arguments).done();
    let index = folder.path().join("model/model.safetensors.index.json");
    assert!(index.is_file());
    assert_eq!(format(&out), CheckpointFormat::Gptq);
    let again = convert(&golden_file("awq4"), &[&arguments[..], &["--force"]].concat());
    assert!(again.code == Some(1) && again.err.contains("new or empty"), "{again:?}");
    let root = convert(
        &golden_file("awq4"),
        &["--to", "gptq", "--out", &text(&folder.path().join("none/.."))],
    );
    assert!(root.code == Some(1) && root.err.contains("a folder's name"), "{root:?}");
}

#[test]
fn wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| text(&folder.path().join(name));
    let from = golden_file("awq4");
    for (arguments, part) in [
        (vec!["--to", "gguf", "--out", &out("model")], "ends in .gguf"),
        (vec!["--to", "gptq", "--out", &out("model.gguf")], "of --to gguf"),
        (vec!["--to", "gptq"], "--out"),
        (vec!["--to", "hqq", "--dry-run"], "compressed-tensors"),
        (vec!["--to", "gptq", "--dry-run", "--shard-size", "5"], "no unit"),
        (vec!["--to", "gptq", "--dry-run", "--shard-size", "0GB"], "not a size"),
    ] {
        let ran = convert(&from, &arguments);
        assert!(ran.code != Some(0) && ran.err.contains(part), "{part}: {ran:?}");
    }
    // A file without layers.
    let ran = convert(&golden_file("codes_ml_dtypes"), &["--to", "gptq", "--dry-run"]);
    assert!(ran.code == Some(1) && ran.err.contains("no quantised layer"), "{ran:?}");
    let help = quantloom(&["convert", "--help"]).done().out;
    for part in ["compressed-tensors", "--dry-run", "docs/convert.md", "to the last bit"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
