//! Layers whose scheme is not in a configuration: it is given on the command line, or attached to
//! the file.

use std::collections::BTreeMap;
use std::path::Path;

use quantloom_tests::{Made, Random, bf16_tensor, tensors_of, write_file};
use safetensors::Dtype;

use crate::ran::quantloom;

const SCHEME: &str = "Mine {
    weight: u4 - 8,
    scale: f16 per 1x32 as \"scales\",
    pack: u8 [k:2 | k, n] as \"codes\",
    activation: f16 | bf16,
}";

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Tensors of a file from `quantize`, without its configuration; the decoded weight, x and y.
struct Bare {
    folder: tempfile::TempDir,
    weight: Made,
}

impl Bare {
    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name))
    }

    /// `layers` of 24 x 96.
    fn new(layers: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let weight = bf16_tensor(&[24, 96], &Random(5).bf16(24 * 96, 0.1));
        let float = layers.iter().map(|layer| (format!("{layer}.weight"), weight.clone()));
        write_file(&path("float"), &float.collect(), None);
        std::fs::write(path("mine.scheme"), SCHEME).unwrap();
        let (float, scheme) = (text(&path("float")), text(&path("mine.scheme")));
        let (q, w) = (text(&path("q")), text(&path("w")));
        quantloom(&["quantize", &float, "--scheme", &scheme, "--out", &q]).done();
        quantloom(&["dequantize", &q, "--layer", layers[0], "--out", &w]).done();
        let mut tensors = tensors_of(&path("q"));
        let weight = tensors_of(&path("w"))["weight"].clone();
        tensors.insert(format!("ref.{}.weight", layers[0]), weight.clone());
        tensors.insert("x".to_owned(), bf16_tensor(&[2, 96], &Random(6).bf16(2 * 96, 1.0)));
        write_file(&path("bare"), &tensors, None);
        Self { folder, weight }
    }
}

#[test]
fn a_scheme_on_the_command_line() {
    let bare = Bare::new(&["mlp.up"]);
    let path = |name: &str| bare.path(name);
    let (file, scheme) = (path("bare"), path("mine.scheme"));
    let silent = quantloom(&["inspect", &file]);
    assert_eq!(silent.code, Some(1));
    for said in ["mlp.up.codes", "--scheme", "quantloom attach"] {
        assert!(silent.err.contains(said), "{}", silent.err);
    }
    // Two codes per byte: by the tensors, K is 95 or 96.
    let open = quantloom(&["inspect", &file, "--scheme", &scheme]);
    assert_eq!(open.code, Some(1));
    assert!(open.err.contains("24x95") && open.err.contains("--shape NxK"), "{}", open.err);
    let told = ["--scheme", &scheme, "--shape", "24x96"];
    let with = |line: &[&str]| quantloom(&[line, &told].concat());
    let found = with(&["inspect", &file, "--json"]).done().json();
    assert_eq!((&found[0]["layer"], &found[0]["shape"]["k"]), (&"mlp.up".into(), &96.into()));
    with(&["dequantize", &file, "--out", &path("w2")]).done();
    assert!(tensors_of(path("w2").as_ref())["weight"] == bare.weight);
    let input = format!("{file}:x");
    with(&["run", &file, "--layer", "mlp.up", "--input", &input, "--out", &path("y")]).done();
    assert_eq!(tensors_of(path("y").as_ref())["y"].1, [2, 24]);
    let checked = with(&["check", &file]).done();
    assert!(checked.out.contains("2 passed, 0 failed, 0 not checked"), "{}", checked.out);
    // A shape and a layer that do not exist.
    let wrong = quantloom(&["inspect", &file, "--scheme", &scheme, "--shape", "24x128"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.err.contains("mlp.up.codes") && wrong.err.contains("24 x 128"), "{}", wrong.err);
    let none = with(&["inspect", &file, "--layer", "mlp.down"]);
    assert!(none.err.contains("mlp.down.codes\" is missing"), "{}", none.err);
    let usage = quantloom(&["inspect", &file, "--shape", "24x96"]);
    assert_eq!(usage.code, Some(2), "a shape without a scheme: {}", usage.err);
}

/// Layers are attached one after another, and are recognised afterwards.
#[test]
fn an_attached_scheme_stays() {
    let bare = Bare::new(&["a", "b"]);
    let path = |name: &str| bare.path(name);
    let (file, scheme) = (path("bare"), path("mine.scheme"));
    let attach = |from: &str, layer: &str, out: &str| {
        let line = ["attach", from, "--scheme", &scheme, "--shape", "24x96", "--out", out];
        quantloom(&[&line[..], &["--layer", layer]].concat())
    };
    let two = quantloom(&["attach", &file, "--scheme", &scheme, "--out", &path("none")]);
    assert_eq!(two.code, Some(1));
    assert!(two.err.contains("2 layers") && two.err.contains("--layer"), "{}", two.err);
    attach(&file, "a", &path("one")).done();
    attach(&path("one"), "b", &path("both")).done();
    let found = quantloom(&["inspect", &path("both"), "--json"]).done().json();
    let names: Vec<&str> =
        found.as_array().unwrap().iter().map(|row| row["layer"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    let out = path("w3");
    quantloom(&["dequantize", &path("both"), "--layer", "b", "--out", &out]).done();
    assert!(tensors_of(out.as_ref())["weight"] == bare.weight);
    let (before, after) = (tensors_of(file.as_ref()), tensors_of(path("both").as_ref()));
    assert!(before == after, "every tensor is copied");
    let missing = attach(&file, "c", &path("none"));
    assert!(missing.err.contains("c.codes\" is missing"), "{}", missing.err);
    assert!(!Path::new(&path("none")).exists());
}

/// A shape that the tensors determine needs no --shape; a file of floats is not called quantised.
#[test]
fn what_can_be_told_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    std::fs::write(
        path("bytes.scheme"),
        "B { weight: i8, scale: f32 per channel, pack: [k, n], activation: f32 }",
    )
    .unwrap();
    let tensors: BTreeMap<String, Made> = BTreeMap::from([
        ("l.weight".to_owned(), (Dtype::I8, vec![5, 7], (0..35).collect())),
        ("l.weight_scale".to_owned(), (Dtype::F32, vec![5, 1], 1f32.to_le_bytes().repeat(5))),
    ]);
    write_file(path("q").as_ref(), &tensors, None);
    let line = ["inspect", &path("q"), "--scheme", &path("bytes.scheme"), "--json"];
    let found = quantloom(&line).done().json();
    assert_eq!((&found[0]["shape"]["n"], &found[0]["shape"]["k"]), (&5.into(), &7.into()));
    let float = bf16_tensor(&[8, 8], &[0x3f80; 64]);
    write_file(path("f").as_ref(), &BTreeMap::from([("l.weight".to_owned(), float)]), None);
    assert_eq!(quantloom(&["inspect", &path("f")]).done().err, "");
}
