//! Products to make kernels of.

use std::path::Path;

use quantloom_codegen::schedule::Problem;
use quantloom_codegen::target::target;
use quantloom_dsl::{Scheme, parse};

/// Symmetric int4 in groups of 128, with zero points, in f16 too, in groups of 64, of 32, which is half a chunk, and with a bias; of 3, 5, 6 and 7 bits,
/// which are in planes; scales and minima of several levels; int8; int8 and e4m3
/// on both sides, a scale a row; e4m3 in blocks on both sides; int4
/// beside e4m3.
pub const SCHEMES: &[(&str, &str)] = &[
    (
        "sym",
        "sym { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 | f16 }",
    ),
    (
        "asym",
        "asym { weight: u4, zero: u4 u32 [n:8 | n, g], scale: bf16 per 1x128, \
         pack: u32 [k:8 | k, n], activation: bf16 | f16 }",
    ),
    (
        "asym_halves",
        "asym_halves { weight: u4, zero: u4 u32 [n:8 | n, g], scale: f16 per 1x128, \
         pack: u32 [k:8 | k, n], activation: f16 }",
    ),
    (
        "halves",
        "halves { weight: u4 - 8, scale: f16 per 1x64, pack: u32 [k:8 | k, n], activation: f16 }",
    ),
    (
        "short",
        "short { weight: u4 - 8, scale: bf16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16 | f16 }",
    ),
    (
        "parts",
        "parts { weight: u4 - 8, scale: f16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16 | f16 }",
    ),
    (
        "terms",
        "terms { weight: u4, shift: f16, scale: f16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16 | f16 }",
    ),
    (
        "three",
        "three { weight: u3 - 4, scale: bf16 per 1x128, pack: u32 [k:* | w, n], activation: bf16 | f16 }",
    ),
    (
        "five",
        "five { weight: u5 - 16, scale: bf16 per 1x128, pack: u32 [k:* | w, n], activation: bf16 | f16 }",
    ),
    (
        "six",
        "six { weight: u6 - 32, scale: bf16 per 1x32, pack: u32 [k:* | w, n], activation: bf16 }",
    ),
    (
        "seven",
        "seven { weight: u7, zero: u4 u32 [n:8 | n, g], scale: bf16 per 1x128, pack: u32 [k:* | w, n], activation: bf16 }",
    ),
    (
        "levels",
        "levels { weight: u6 - 32, scale: i8 per 1x16, scale: f16 per 1x256, pack: u32 [k:* | w, n], \
         activation: bf16 | f16 }",
    ),
    (
        "minima",
        "minima { weight: u4, shift: -u6, shift: f16 per 1x256, scale: u6 per 1x32, scale: f16 per 1x256, \
         pack: u32 [k:8 | k, n], activation: bf16 | f16 }",
    ),
    (
        "most",
        "most { weight: u7, shift: -u6, shift: f16 per 1x256, scale: u6 per 1x32, scale: f16 per 1x256, \
         pack: u32 [k:* | w, n], activation: bf16 }",
    ),
    ("bytes32", "bytes32 { weight: i8, scale: f16 per 1x32, pack: [k, n], activation: bf16 }"),
    ("bytes", "bytes { weight: i8, scale: bf16 per 1x128, pack: [k, n], activation: bf16 }"),
    (
        "integers",
        "integers { weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: f32 per token }, \
         output: bf16 }",
    ),
    (
        "integers5",
        "integers5 { weight: i5, scale: bf16 per 1x64, pack: i8 [code, pad 3 = sign | k, n], \
         activation: i8 { scale: f32 per token }, output: bf16 }",
    ),
    (
        "integers7",
        "integers7 { weight: i7, scale: bf16 per 1x128, pack: i8 [code, pad 1 = sign | k, n], \
         activation: i8 { scale: f32 per token }, output: bf16 }",
    ),
    (
        "e4m3",
        "e4m3 { weight: e4m3, scale: f32 per channel, pack: [k, n], activation: e4m3 { scale: f32 per token }, \
         output: bf16 }",
    ),
    (
        "blocks",
        "blocks { weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }, \
         output: bf16 }",
    ),
    (
        "mixed",
        "mixed { weight: e2m1, scale: e4m3 per 1x16, pack: u8 [k:2 | k, n], activation: e4m3 { scale: f32 per 1x128 }, \
         output: bf16 }",
    ),
    (
        "nibbles",
        "nibbles { weight: i4, scale: bf16 per 1x128, pack: i8 [code, pad 4 = sign | k, n], \
         activation: e4m3 { scale: f32 per token }, output: bf16 }",
    ),
    (
        "bias",
        "bias { weight: u4, zero: u4 u32 [n:8 | n, g], scale: bf16 per 1x128, bias: f32, \
         pack: u32 [k:8 | k, n], activation: bf16 | f16 }",
    ),
];

/// The product of a scheme above with its activation of this number.
pub fn problem(scheme: &str, activation: usize, sm: &str, shape: (u32, u32)) -> Problem {
    in_layout((scheme, activation), sm, (shape, false))
}

/// The same of a weight whose numbers are all in the ranges that have faster kernels, in the layout for these.
pub fn problem_of_range(scheme: &str, activation: usize, sm: &str, shape: (u32, u32)) -> Problem {
    in_layout((scheme, activation), sm, (shape, true)).of_scales(true)
}

fn in_layout((scheme, activation): (&str, usize), sm: &str, of: ((u32, u32), bool)) -> Problem {
    let text = SCHEMES.iter().find(|(name, _)| *name == scheme).unwrap().1;
    let scheme = parse(text).unwrap_or_else(|faults| panic!("{faults:?}"));
    let activation = scheme.activations[activation].clone();
    Problem::in_layout(&scheme, &activation, target(sm).unwrap(), of).unwrap()
}

/// The catalogue, from its declarations.
pub fn catalogue() -> Vec<Scheme> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-generated/schemes");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let texts = files.iter().map(|path| std::fs::read_to_string(path).unwrap());
    texts.map(|text| parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"))).collect()
}
