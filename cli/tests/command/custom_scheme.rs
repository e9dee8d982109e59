//! A scheme outside of the catalogue, as a text file: 5 bits, groups of 64, f16 scales, float zero
//! points, words filled from the top. Every result is compared with a plain computation in this
//! file.

use std::collections::BTreeMap;
use std::path::Path;

use quantloom_tests::{Made, Random, bf16_tensor, bf16_values, f32_tensor, tensors_of, write_file};
use safetensors::Dtype;
use serde_json::json;

use crate::ran::quantloom;

const SCHEME: &str = "\
/// 5-bit codes in groups of 64, float zero points, each word filled from its top bit down.
w5_msf {
    weight: u5,
    zero: f16 as \"zeros\",
    scale: f16 per 1x64 as \"scales\",
    pack: u32 msf [k:* | w, n] as \"codes\",
    activation: bf16 | f16,
}
";

const N: usize = 24;
const K: usize = 200; // 1000 bits: 31 words and a quarter; three groups and a bit

/// Value of an f16 code.
fn f16(code: u16) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 10 & 31), f64::from(code & 1023));
    let size = match exponent {
        0 => fraction * (-24f64).exp2(),
        _ => (1024.0 + fraction) * f64::from(exponent - 25).exp2(),
    };
    if code >> 15 == 1 { -size } else { size }
}

/// `w = (code - zero) * scale` of a row-major [N, K], computed from the stored tensors.
fn plain(codes: &Made, scales: &Made, zeros: &Made) -> Vec<f64> {
    let (words, groups) = ((K * 5).div_ceil(32), K.div_ceil(64));
    assert_eq!((codes.0, &codes.1), (Dtype::U32, &vec![N, words]));
    assert_eq!((scales.0, &scales.1), (Dtype::F16, &vec![N, groups]));
    assert_eq!((zeros.0, &zeros.1), (Dtype::F16, &vec![N, groups]));
    let word = |at: usize| u32::from_le_bytes(codes.2[4 * at..][..4].try_into().unwrap());
    let half = |of: &Made, at: usize| f16(u16::from_le_bytes([of.2[2 * at], of.2[2 * at + 1]]));
    let weight = |n: usize, k: usize| {
        let bit = |at: usize| word(n * words + at / 32) >> (31 - at % 32) & 1;
        let code = (0..5).fold(0, |code, b| code << 1 | bit(5 * k + b));
        let group = n * groups + k / 64;
        (f64::from(code) - half(zeros, group)) * half(scales, group)
    };
    (0..N * K).map(|at| weight(at / K, at % K)).collect()
}

/// y [M, N] of x [M, K], and for each the sum of magnitudes.
fn product(x: &[f64], w: &[f64]) -> Vec<(f64, f64)> {
    let cell = |token: &[f64], row: &[f64]| {
        let pairs = || token.iter().zip(row).map(|(x, w)| x * w);
        (pairs().sum(), pairs().map(f64::abs).sum())
    };
    x.chunks(K).flat_map(|token| w.chunks(K).map(move |row| cell(token, row))).collect()
}

fn f32_values(tensor: &Made) -> Vec<f64> {
    assert_eq!(tensor.0, Dtype::F32);
    let value = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
    tensor.2.chunks_exact(4).map(value).collect()
}

/// The weight is exact up to f32; a sum of K products within K/16 and a few roundings.
fn compare(weight: &Made, y: &Made, w: &[f64], x: &[f64]) {
    assert_eq!((&weight.1, &y.1), (&vec![N, K], &vec![x.len() / K, N]));
    for (ours, exact) in f32_values(weight).iter().zip(w) {
        assert!((ours - exact).abs() <= exact.abs() * (-24f64).exp2(), "{ours}, not {exact}");
    }
    for (ours, (exact, size)) in f32_values(y).iter().zip(product(x, w)) {
        let bound = (K as f64 / 16.0 + 12.0) * (-24f64).exp2() * size;
        assert!((ours - exact).abs() <= bound, "{ours}, not {exact}");
    }
}

/// Dequantises the layer and multiplies x with it, by the command.
fn decoded(folder: &Path, file: &str, layer: &str) -> (Made, Made) {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (weight, y, x) = (path("weight"), path("y"), path("x:x"));
    quantloom(&["dequantize", &path(file), "--layer", layer, "--out", &weight]).done();
    quantloom(&["run", &path(file), "--layer", layer, "--input", &x, "--out", &y]).done();
    (tensors_of(Path::new(&weight))["weight"].clone(), tensors_of(Path::new(&y))["y"].clone())
}

#[test]
fn a_text_file_is_a_scheme_like_any_other() {
    assert!(SCHEME.lines().count() < 15);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("w5.scheme"), SCHEME).unwrap();
    let shown = quantloom(&["show", &path("w5.scheme"), "--svg", &path("w5.svg")]).done();
    assert!(shown.out.contains(SCHEME.trim_end()), "{}", shown.out);
    // 5 bits, and an f16 scale and zero point per 64.
    assert!(shown.out.contains("5.5000 bits per weight"), "{}", shown.out);
    assert!(std::fs::read_to_string(path("w5.svg")).unwrap().starts_with("<svg"));

    let mut random = Random(5);
    let (weight, x) = (random.bf16(N * K, 0.1), random.bf16(3 * K, 1.0));
    let tensor = |name: &str, shape: &[usize], codes| (name.to_owned(), bf16_tensor(shape, codes));
    let float = BTreeMap::from([tensor("mlp.up.weight", &[N, K], &weight)]);
    write_file(Path::new(&path("float")), &float, None);
    write_file(Path::new(&path("x")), &BTreeMap::from([tensor("x", &[3, K], &x)]), None);
    let scheme = path("w5.scheme");
    quantloom(&["quantize", &path("float"), "--scheme", &scheme, "--out", &path("q")]).done();

    let found = quantloom(&["inspect", &path("q"), "--json"]).done().json();
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!(found[0]["layer"], "mlp.up");
    assert_eq!(found[0]["scheme"], json!(null));
    assert_eq!(found[0]["text"].as_str().unwrap().trim_end(), SCHEME.trim_end());
    assert_eq!(found[0]["shape"], json!({ "experts": 1, "n": N, "k": K }));

    let stored = tensors_of(Path::new(&path("q")));
    let stored = |name: &str| &stored[&format!("mlp.up.{name}")];
    let w = plain(stored("codes"), stored("scales"), stored("zeros"));
    for (at, (w, given)) in w.iter().zip(bf16_values(&weight)).enumerate() {
        let group = at / K * K.div_ceil(64) + at % K / 64;
        let bytes = &stored("scales").2[2 * group..];
        let scale = f16(u16::from_le_bytes([bytes[0], bytes[1]]));
        // Half a step; the f16 roundings of scale and zero point (31 at most, so 2^-6 and 2^-7
        // steps) may push the ends of the range over the last code.
        assert!((w - given).abs() <= scale * (0.5 + 3.0 / 128.0), "{at}: {w}, given {given}");
    }
    let (weight, y) = decoded(folder.path(), "q", "mlp.up");
    compare(&weight, &y, &w, &bf16_values(&x));
}

/// A file that this test packs itself, bit by bit, with its own results: `check` passes it, and
/// fails it if one bit of one code is flipped.
#[test]
fn a_file_of_the_scheme_checks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut random = Random(6);
    let (words, groups) = ((K * 5).div_ceil(32), K.div_ceil(64));
    let mut codes = vec![0u32; N * words];
    for n in 0..N {
        for at in 0..5 * K {
            codes[n * words + at / 32] |= (random.below(2) as u32) << (31 - at % 32);
        }
    }
    let halves = |random: &mut Random, least: u16, spread: u64| -> Vec<u8> {
        let code = |_| (least + random.below(spread) as u16).to_le_bytes();
        (0..N * groups).flat_map(code).collect()
    };
    // Scales of 2^-6 to 2^-4; zero points of 8 to 32 with fractions.
    let scales = (Dtype::F16, vec![N, groups], halves(&mut random, 9 << 10, 2 << 10));
    let zeros = (Dtype::F16, vec![N, groups], halves(&mut random, 18 << 10, 2 << 10));
    let bytes = |codes: &[u32]| codes.iter().flat_map(|word| word.to_le_bytes()).collect();
    let packed = (Dtype::U32, vec![N, words], bytes(&codes));
    let w = plain(&packed, &scales, &zeros);
    let x = random.bf16(3 * K, 1.0);
    let y: Vec<f32> = product(&bf16_values(&x), &w).iter().map(|(y, _)| *y as f32).collect();
    let w32: Vec<f32> = w.iter().map(|w| *w as f32).collect();
    let mut file = BTreeMap::from([
        ("layer.codes".to_owned(), packed),
        ("layer.scales".to_owned(), scales),
        ("layer.zeros".to_owned(), zeros),
        ("ref.weight".to_owned(), f32_tensor(&[N, K], &w32)),
        ("ref.x".to_owned(), bf16_tensor(&[3, K], &x)),
        ("ref.y".to_owned(), f32_tensor(&[3, N], &y)),
    ]);
    let config = json!({
        "quant_method": "quantloom", "scheme": SCHEME, "layers": { "layer": [1, N, K] },
    });
    let config = Some(config.to_string());
    write_file(&path("file"), &file, config.as_deref());
    let passed = quantloom(&["check".as_ref(), path("file").as_os_str()]).done();
    assert!(passed.out.contains("2 passed, 0 failed, 0 not checked"), "{}", passed.out);

    write_file(&path("x"), &BTreeMap::from([("x".to_owned(), bf16_tensor(&[3, K], &x))]), None);
    let (weight, y) = decoded(folder.path(), "file", "layer");
    compare(&weight, &y, &w, &bf16_values(&x));

    codes[7] ^= 1 << 9;
    file.get_mut("layer.codes").unwrap().2 = bytes(&codes);
    write_file(&path("flipped"), &file, config.as_deref());
    let failed = quantloom(&["check".as_ref(), path("flipped").as_os_str()]);
    assert_eq!(failed.code, Some(1), "{}{}", failed.out, failed.err);
    assert!(failed.err.contains("w[0, "), "{}", failed.err);
}
