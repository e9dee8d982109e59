//! How far a product may be from the exact one.
//!
//! In: a prepared weight, the magnitudes of what is summed. Out: the largest |y - y_exact| of one
//! element, y_exact being the definition's real sum over the quantised activation.
//!
//! Let u = 2^-24, the largest relative error of one f32 rounding. A sum that is taken in any order
//! with at most d roundings on the way of each term differs from the exact one by at most
//! `d u / (1 - d u)` times the sum of the terms' magnitudes (Higham, Accuracy and Stability of
//! Numerical Algorithms, section 3.1). The terms are `x[k] * w[k]` with w taken apart as the kernel
//! takes it: `scale * value` and `scale * (zero point + offset)` cancel, so that their magnitudes
//! count one by one ([`weight_magnitudes`]); likewise code and zero point of an asymmetric x.
//!
//! Roundings on the way of a term ([`depth`]):
//! - integer products: the integer sum of a piece is exact; it becomes f32 (1), meets its scale
//!   (1 or 2) and is added over the P pieces (P, twice where multiply and add are two roundings);
//! - f32 products, decoded on the fly: at most a piece of additions, then P pieces, and P sums of
//!   zero points beside them; blocked: a block of additions and K / block sums;
//! - on either way: the folded scale (1), the factor (1), the decoded weight (2), x quantised and
//!   widened (1), the row sum of an asymmetric x and its product (3), the epilogue's two products
//!   (2), partial chains joined (2): 12.
//!
//! Then the bias (rounded, added: 2 u of it and of y) and the rounding to the type of y. Numbers
//! below the smallest normal f32 lose at most 2^-150 a rounding, together below 2^-126.

use quantloom_dsl::format::FloatFormat;

use super::isa::Isa;
use super::native::Path;
use super::weight::CpuWeight;
use crate::unpacked::Unpacked;

/// What one element of y is made of.
#[derive(Clone, Copy, Debug)]
pub struct Magnitudes {
    /// Sum over k of `|x[k]|` (code and zero point apart) times [`weight_magnitudes`].
    pub products: f64,
    /// |bias|.
    pub bias: f64,
    /// |y|.
    pub result: f64,
}

/// Roundings on the way of one product, for M tokens.
pub fn depth(weight: &CpuWeight, tokens: usize) -> usize {
    let blocking = weight.blocking(tokens);
    let columns = blocking.pieces * blocking.piece;
    let additions = match (blocking.path, blocking.fused) {
        (Path::Dot, _) => 2 * blocking.pieces,
        (Path::Fma, true) => blocking.piece + 2 * blocking.pieces,
        (Path::Fma, false) => blocking.block + columns.div_ceil(blocking.block),
    };
    // Plain Rust rounds a product before it adds it.
    let separate = weight.selection().kernel.isa == Isa::Portable;
    additions * (1 + usize::from(separate)) + 12
}

/// The largest error of an element of y that is stored as `output`.
pub fn bound(depth: usize, magnitudes: Magnitudes, output: FloatFormat) -> f64 {
    let unit = 2f64.powi(-24);
    let sum = depth as f64 * unit / (1.0 - depth as f64 * unit) * magnitudes.products;
    let stored = output.epsilon() / 2.0 * (magnitudes.result + sum);
    sum + 2.0 * unit * (magnitudes.bias + magnitudes.result) + stored + f64::from(f32::MIN_POSITIVE)
}

/// The magnitudes of a row of the weight as a path takes it apart, `[K]`.
pub fn weight_magnitudes(weight: &Unpacked, path: Path, expert: u64, n: u64) -> Vec<f64> {
    let shape = weight.shape();
    let scheme = weight.scheme();
    let stored = super::family::stored_code(&scheme.weight.code);
    let offset = f64::from(stored.offset + scheme.weight.offset);
    let first = ((expert * shape.n + n) * shape.k) as usize;
    let codes = &weight.codes()[first..first + shape.k as usize];
    let magnitude = |(k, code): (u64, &u8)| {
        let part = weight.folded(expert, n, k);
        let value = scheme.weight.code.decode(u32::from(*code)) + f64::from(stored.offset);
        let integer = match path {
            Path::Dot => (value - offset).abs() + part.zero.abs(),
            Path::Fma => value.abs() + (part.zero + offset).abs(),
        };
        part.factor.abs() * (part.scale.abs() * integer + part.shift.abs())
    };
    (0u64..).zip(codes).map(magnitude).collect()
}
