//! The command on GGUF files.

use quantloom::runtime::checkpoint::{Dtype, Tensors};
use quantloom::runtime::tensor::reals;
use quantloom_tests::golden_gguf;

use crate::ran::quantloom;

#[test]
fn gguf_files_are_inspected_decoded_multiplied_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let file = golden_gguf("q6_k").to_str().unwrap().to_owned();
    let ran = quantloom(&["inspect", &file]);
    assert!(ran.code == Some(0) && ran.out.contains("5 x 512"), "{ran:?}");
    let ran = quantloom(&["check", &file]);
    assert_eq!(ran.code, Some(0), "{ran:?}");

    let given = Tensors::open(&golden_gguf("q6_k")).unwrap();
    let (weight, y) = (out("weight.safetensors"), out("y.safetensors"));
    let ran = quantloom(&["dequantize", &file, "--layer", "layer", "--out", &weight]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let written = Tensors::open(weight.as_ref()).unwrap();
    let written = written.names().find_map(|name| written.get(name)).unwrap().clone();
    assert_eq!(written.dtype(), Dtype::F32);
    // As numbers: of zeros the sign differs.
    assert!(reals(&written) == reals(given.get("ref.weight").unwrap()));

    let input = format!("{file}:ref.x");
    let ran = quantloom(&["run", &file, "--layer", "layer", "--input", &input, "--out", &y]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let written = Tensors::open(y.as_ref()).unwrap();
    let ours = written.names().find_map(|name| reals(written.get(name)?)).unwrap();
    let of = |name: &str| reals(given.get(name).unwrap()).unwrap();
    let (x, weight_of, theirs) = (of("ref.x"), of("ref.weight"), of("ref.y"));
    assert_eq!((ours.len(), theirs.len()), (15, 15));
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let (x, w) =
            (x.chunks(512).nth(at / 5).unwrap(), weight_of.chunks(512).nth(at % 5).unwrap());
        let magnitudes: f64 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
        // In f32, of unit roundoff 2^-24: a rounding of each of 512 sums, three of a product with its
        // scales, one of the file's own y.
        let bound = magnitudes * 516.0 / f64::from(1 << 24);
        assert!((ours - theirs).abs() <= bound, "{at}: {ours}, not {theirs}; bound {bound}");
    }

    // Weights that are quantised already are not quantised again.
    let scheme = ["--scheme", "ct_w4a16", "--out", &weight, "--force"];
    let ran = quantloom(&[&["quantize", &file][..], &scheme].concat());
    assert!(ran.code == Some(1) && ran.err.contains("GGUF"), "{ran:?}");
}
