//! The command on files that are cut off or lie: one sentence, status 1, no output left.

use std::path::Path;

use quantloom_tests::file::{File, Stored, put, sizes};
use quantloom_tests::golden_file;
use serde_json::Map;

use crate::ran::quantloom;

/// Status 1, one sentence, and no file in the input's directory.
#[track_caller]
fn refuses(folder: &Path, arguments: &[&str], word: &str) {
    let files = || std::fs::read_dir(folder).unwrap().count();
    let before = files();
    let ran = quantloom(arguments);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.starts_with("quantloom: ") && ran.err.contains(word), "{ran:?}");
    assert_eq!(ran.err.trim_end().lines().count(), 1, "{ran:?}");
    assert_eq!(files(), before, "{}: it left a file", ran.line);
}

#[test]
fn the_command_says_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let out = path("out.safetensors");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(path(name), bytes).unwrap();
        path(name)
    };
    let lying = |name: &str, lie: fn(&mut File)| {
        let mut file = File::golden(name);
        lie(&mut file);
        write(&format!("{name}.safetensors"), &file.bytes())
    };
    let whole = File::golden("awq4").bytes();
    let files = [
        (write("cut.safetensors", &whole[..whole.len() / 2]), "not a valid safetensors file"),
        (write("empty.safetensors", b""), "not a valid safetensors file"),
        (path("missing.safetensors"), "missing.safetensors"),
        (lying("ct_mxfp4", |f| put(f, "layer.weight_scale", 1, &[0xff])), "weight_scale"),
        (lying("ct_w4a16", |f| sizes(f, &[48, 1 << 40])), "weight_shape"),
        (lying("ct_w4a8", |f| put(f, "layer.weight", 0, &[100])), "weight"),
        (lying("gptq4_v1_actorder", |f| put(f, "layer.g_idx", 0, &[0xff; 4])), "g_idx"),
    ];
    let golden = |name: &str| golden_file(name).to_str().unwrap().to_owned();
    let input = format!("{}:ref.x", golden("ct_w4a16"));
    for (file, word) in &files {
        let layer = ["--layer", "layer", "--out", &out];
        refuses(folder.path(), &[&["dequantize", file], &layer[..]].concat(), word);
        let run = ["run", file, "--input", &input];
        refuses(folder.path(), &[&run, &layer[..]].concat(), word);
    }
    refuses(folder.path(), &["inspect", &files[0].0], files[0].1);
    refuses(folder.path(), &["inspect", &files[4].0], files[4].1);
    refuses(folder.path(), &["check", &files[0].0], files[0].1);
    // A scheme whose layout pads each row to 2^30 codes, and one whose group is as wide as can be.
    let scheme = |name: &str, scale: &str, pack: &str| {
        let text = format!("S {{ weight: u4, scale: {scale}, pack: {pack}, activation: f16 }}");
        write(name, text.as_bytes())
    };
    let padded = scheme("padded.scheme", "f16 per 1x32", "u32 [k:8 | k/8:134217728, n]");
    let weight = golden("moe_mixtral");
    let quantize = ["quantize", &weight, "--only", "gate", "--out", &out, "--scheme"];
    refuses(folder.path(), &[&quantize[..], &[&padded]].concat(), "takes");
    let wide = scheme("wide.scheme", "f16 per 1x16777216", "u32 [k:8 | k, n]");
    quantloom(&[&quantize[..], &[&wide]].concat()).done();
    std::fs::remove_file(&out).unwrap();
    for (dtype, rows, bytes) in [("F16", 1, 2), ("F16", 128, 256), ("I32", 64, 256)] {
        let mut float = File { metadata: Map::new(), tensors: Vec::new() };
        for (name, dtype, shape, bytes) in
            [("l.weight", "F32", vec![64, 128], 64 * 128 * 4), ("l.bias", dtype, vec![rows], bytes)]
        {
            let (name, dtype) = (name.to_owned(), dtype.to_owned());
            float.tensors.push(Stored { name, dtype, shape, bytes: vec![0; bytes] });
        }
        let float = write("bias.safetensors", &float.bytes());
        let quantize = ["quantize", &float, "--out", &out, "--scheme", "ct_w4a16_bias"];
        refuses(folder.path(), &quantize, "its bias is");
    }
    let none = write("none.scheme", "\u{1}@".repeat(10_000).as_bytes());
    let ran = quantloom(&[&quantize[..], &[&none]].concat());
    assert!(ran.code == Some(1) && ran.err.len() < 20_000, "{}", ran.err);
    assert!(!Path::new(&out).exists());
}
