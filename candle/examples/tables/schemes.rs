//! The schemes that the tables of the examples compare, and how many bits a weight each stores.

use std::error::Error;

use quantloom_candle::quantloom::prelude::{Checkpoint, Scheme, parse};

/// Schemes of the catalogue, and texts beside it.
pub(crate) const SCHEMES: &[(&str, &str)] = &[
    ("int8, a scale a row, int8 x (W8A8)", "ct_w8a8"),
    ("FP8 (e4m3), a scale a row, FP8 x", "ct_fp8_dynamic"),
    (
        "int4 in groups of 32, zero points",
        "int4_g32_asymmetric { weight: u4, zero: u4 u8 [g:2 | g, n], scale: f16 per 1x32,
           pack: u8 [k:2 | k, n], activation: bf16 | f16 | f32 }",
    ),
    (
        "int4 in groups of 32",
        "int4_g32 { weight: u4 - 8, scale: f16 per 1x32, pack: u8 [k:2 | k, n],
           activation: bf16 | f16 | f32 }",
    ),
    (
        "int4 in groups of 64",
        "int4_g64 { weight: u4 - 8, scale: f16 per 1x64, pack: u8 [k:2 | k, n],
           activation: bf16 | f16 | f32 }",
    ),
    ("NVFP4", "ct_nvfp4a16"),
    ("MXFP4", "ct_mxfp4a16"),
    (
        "int3 in groups of 32",
        "int3_g32 { weight: u3 - 4, scale: f16 per 1x32, pack: u8 [k:* | w, n],
           activation: bf16 | f16 | f32 }",
    ),
];

/// A scheme of the catalogue by its name, or the scheme of a text.
pub(crate) fn scheme_of(text: &str) -> Result<Scheme, Box<dyn Error>> {
    let known = quantloom_candle::quantloom::kernels::catalogue();
    match known.iter().find(|scheme| scheme.name == text) {
        Some(scheme) => Ok(scheme.clone()),
        None => Ok(parse(text)?),
    }
}

/// Stored bits of layers by their weights.
pub(crate) fn bits(checkpoint: &Checkpoint, names: &[String]) -> Result<f64, Box<dyn Error>> {
    let (mut bytes, mut weights) = (0, 0);
    for name in names {
        let layer = checkpoint.layer(name)?;
        bytes += layer.bytes();
        weights += layer.shape().n * layer.shape().k;
    }
    Ok(8.0 * bytes as f64 / weights as f64)
}
