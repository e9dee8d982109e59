//! `1 / d` of f32 between 1 and 2, as operations without a branch.
//!
//! A polynomial of degree 2 with a relative error of at most 1/99 (the one of smallest error: its extremes are at 1, 1.25, 1.75 and
//! 2), and two steps of Newton, each of which squares the error: 99^-4 is 0.18 units of 2^-24.

use crate::ir::{Builder, Operand, Ternary, Unary};
use crate::target::Feature;

/// The largest relative error of [`reciprocal`] in units of 2^-24 where `fma` rounds once: 0.18 of the method, and 1 of the last
/// operation, whose result is between 1/2 and 1.
pub const RECIPROCAL_UNITS: f64 = 1.2;

/// The same of [`near_reciprocal`] on targets with a reciprocal of their own: one unit in the last place from
/// the correctly rounded number, and half of one: of 2^-24, relative to 1/2 at least.
pub const NEAR_RECIPROCAL_UNITS: f64 = 3.0;

/// Steps of Newton.
const STEPS: usize = 2;

/// `1 / d` for d from 1 to 2; NaN of NaN.
pub fn reciprocal(b: &mut Builder, d: Operand) -> Operand {
    let [square, linear, constant] =
        [32.0 / 99.0, -16.0 / 11.0, 70.0 / 33.0].map(|of: f64| of as f32);
    let slope = b.ternary(Ternary::Fma, d, square, linear);
    let first = b.ternary(Ternary::Fma, slope, d, constant);
    let less = b.unary(Unary::Negate, d);
    (0..STEPS).fold(first, |near, _| {
        let error = b.ternary(Ternary::Fma, less, near, 1.0f32);
        b.ternary(Ternary::Fma, near, error, near)
    })
}

/// [`reciprocal`] by the target's own operation, if there is one.
pub fn near_reciprocal(b: &mut Builder, d: Operand) -> Operand {
    match b.target().has(Feature::NearFunctions) {
        true => b.unary(Unary::ReciprocalNear, d),
        false => reciprocal(b, d),
    }
}
