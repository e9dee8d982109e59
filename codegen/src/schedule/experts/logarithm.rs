//! `ln(1 + t)` of f32 between 0 and 1, as operations.

use crate::ir::{Binary, Builder, Operand, Ternary};

/// The largest relative error of [`ln_one_plus`] in units of 2^-24: the quotient's two roundings, those
/// of the series, whose value is 1 to 1.04 (three), and of the last product; the series is cut off at
/// 2^-29.
pub const LN_UNITS: f64 = 6.5;

/// `ln(1 + t)` for t from 0 to 1: `2 s (1 + s^2 / 3 + s^4 / 5 + ...)` with `s = t / (2 + t)`, which is
/// 1 / 3 at most, so that eight terms leave a relative error of 3^-16 / 17 < 2^-29.
pub fn ln_one_plus(b: &mut Builder, t: Operand) -> Operand {
    let below = b.add_f32(t, 2.0f32);
    let s = b.binary(Binary::DivF32, t, below);
    let square = b.mul_f32(s, s);
    let terms = [13u8, 11, 9, 7, 5, 3, 1].map(|odd| (1.0 / f64::from(odd)) as f32);
    let last = Operand::F32((1.0f64 / 15.0) as f32);
    let series =
        terms.into_iter().fold(last, |sum, term| b.ternary(Ternary::Fma, sum, square, term));
    let double = b.add_f32(s, s);
    b.mul_f32(double, series)
}
