//! `quantloom quantize` beside the library.

use quantloom::kernels::scheme;
use quantloom_tests::floats::{float_file, floats, quantised};
use quantloom_tests::{Made, f32_tensor, write_file};

use crate::ran::quantloom;

/// The command writes what the library writes, and leaves `lm_head` and norms as they are.
#[test]
fn the_command_quantises_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["ct_w4a16", "gptq3_v1", "awq4", "modelopt_nvfp4", "gpt_oss_mxfp4_gate_up"] {
        let scheme = scheme(name).unwrap();
        float_file(&path("float"), scheme, &floats(scheme));
        quantised(scheme, &path("float"), &path("by_library"));
        let (from, to) = (path("float"), path("by_command"));
        let arguments = ["quantize".as_ref(), from.as_os_str(), "--scheme".as_ref(), name.as_ref()];
        let out = ["--force".as_ref(), "--out".as_ref(), to.as_os_str()];
        let ran = quantloom(&[&arguments[..], &out].concat()).done();
        let read = |name: &str| std::fs::read(path(name)).unwrap();
        assert!(read("by_library") == read("by_command"), "{name}");
        assert_eq!(ran.out.matches(" dB").count(), 2, "a line of accuracy each:\n{}", ran.out);
        assert!(!ran.out.contains("lm_head"), "{}", ran.out);
    }
}

/// Weights of 0 are exact. Weights that the scales cannot hold are lost, which is a warning.
#[test]
fn lost_weights_are_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // f16 scales hold nothing below 2^-24.
    let text = "small { weight: i8, scale: f16 per channel, pack: [n, k], activation: bf16 }";
    std::fs::write(path("small.scheme"), text).unwrap();
    let tensors: [(String, Made); 2] = [("zero", 0.0), ("tiny", 1e-30)].map(|(layer, value)| {
        (format!("{layer}.weight"), f32_tensor(&[16, 32], &[value; 16 * 32]))
    });
    write_file(path("in").as_ref(), &tensors.into(), None);
    let [from, scheme, to] = ["in", "small.scheme", "out"].map(path);
    let out = quantloom(&["quantize", &from, "--scheme", &scheme, "--out", &to]).done().out;
    let row = |layer: &str| out.lines().find(|line| line.contains(layer)).unwrap_or_default();
    assert!(row("zero").contains("exact"), "{out}");
    assert!(row("tiny").contains(" 0.00 dB"), "{out}");
    assert!(out.contains("warning: 1 layer has lost most of the weights"), "{out}");
    assert!(!out.contains("NaN"), "{out}");
}
