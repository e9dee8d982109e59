//! `exp` of f32 from multiplications, additions and integer additions, so that every target computes the same bits; and of
//! numbers that are not above 0, for gates, by a target's own power of 2 where there is one.
//!
//! `x = n ln 2 + r` with n the nearest integer to `x / ln 2`, so that `exp(x) = 2^n exp(r)` and
//! |r| <= ln(2) / 2 (and a little). The coefficients are those of Cephes `expf` (S. Moshier): a
//! polynomial of degree 7 in r with 1 + r as its first terms.

use crate::ir::{Binary, Builder, Compare, Operand, Ternary, Unary};
use crate::target::Feature;

/// The largest relative error of [`exp`] in units of 2^-24, where the result is a normal number:
/// found over all f32 on targets with strict f32 (`codegen/tests/experts/exponential.rs`). A
/// subnormal result has half of the smallest f32 more.
pub const EXP_UNITS: f64 = 1.5;

/// The same of [`near_falling_exp`] on targets with a power of 2 of their own, which is two units in the last place from the
/// correctly rounded one, of an argument with a relative error of [`NEAR_ARGUMENT`]: 2.5 units, of 2^-23 at most. A subnormal
/// result has 2.5 times the smallest f32 more, not half of it.
pub const NEAR_EXP_UNITS: f64 = 5.0;
/// That relative error in units of 2^-24: 1 of the product with log2(e), and 0.22 of that number as f32.
pub const NEAR_ARGUMENT: f64 = 1.25;

/// Where results are infinite.
const MOST: f32 = 89.0;
/// Where results are 0.
const LEAST: f32 = -104.0;
/// ln 2 in two parts. The first has 9 bits: its product with n is exact, and so is what is left of x.
#[expect(clippy::excessive_precision, reason = "as published")]
const LN2: [f32; 2] = [0.693_359_375, -2.121_944_4e-4];
/// `(exp(r) - 1 - r) / r^2`, the highest power first.
#[expect(clippy::excessive_precision, reason = "as published")]
const COEFFICIENTS: [f32; 6] = [
    1.987_569_15e-4,
    1.398_199_95e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_55e-1,
    5.000_000_1e-1,
];

/// `exp(x)`: infinity where that overflows, subnormal numbers, NaN of NaN.
pub fn exp(b: &mut Builder, x: impl Into<Operand>) -> Operand {
    let x = x.into();
    let above = b.compare(Compare::LessF32, MOST, x);
    let x = b.select(above, MOST, x);
    bounded_exp(b, x)
}

/// `exp(-x)` of a number that is not negative.
pub fn falling_exp(b: &mut Builder, x: Operand) -> Operand {
    let x = b.unary(Unary::Negate, x);
    bounded_exp(b, x)
}

/// [`falling_exp`] by the target's own power of 2, if there is one.
pub fn near_falling_exp(b: &mut Builder, x: Operand) -> Operand {
    if !b.target().has(Feature::NearFunctions) {
        return falling_exp(b, x);
    }
    let power = b.mul_f32(x, -std::f32::consts::LOG2_E);
    b.unary(Unary::Exp2Near, power)
}

/// [`exp`] of numbers up to 89.
fn bounded_exp(b: &mut Builder, x: Operand) -> Operand {
    let below = b.compare(Compare::LessF32, x, LEAST);
    let x = b.select(below, LEAST, x);
    let n = b.mul_f32(x, std::f32::consts::LOG2_E);
    let n = b.unary(Unary::RoundEven, n);
    let [high, low] = LN2;
    let r = b.ternary(Ternary::Fma, n, -high, x);
    let r = b.ternary(Ternary::Fma, n, -low, r);
    let (first, rest) = (COEFFICIENTS[0], &COEFFICIENTS[1..]);
    let higher = rest.iter().fold(Operand::F32(first), |sum, coefficient| {
        b.ternary(Ternary::Fma, sum, r, *coefficient)
    });
    let square = b.mul_f32(r, r);
    let less_one = b.ternary(Ternary::Fma, higher, square, r);
    let power = b.add_f32(less_one, 1.0f32);
    // 2^n in two factors, each a normal number: the second product rounds once, to a subnormal number
    // or to infinity.
    let n = b.unary(Unary::S32FromF32, n);
    let half = b.binary(Binary::ShrSigned, n, 1u32);
    let rest = b.sub(n, half);
    let factors = [half, rest].map(|exponent| {
        let bits = b.add(exponent, 127u32);
        let bits = b.shl(bits, 23u32);
        b.unary(Unary::AsF32, bits)
    });
    factors.into_iter().fold(power, |power, factor| b.mul_f32(power, factor))
}
