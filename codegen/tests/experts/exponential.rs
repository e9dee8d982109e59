//! `exp` as operations against `exp` of f64.

use quantloom_codegen::schedule::experts::exponential::{EXP_UNITS, exp};

use quantloom_tests::sweep::Share;

use super::apply::apply;
use super::{TARGETS, UNIT};

/// Half of the smallest f32: the rounding of a subnormal result.
const SUBNORMAL: f64 = 1.401_298_464_324_817e-45 / 2.0;

/// The largest relative error of normal results, in units of 2^-24. Wrong results panic: the values
/// where exp is infinite, 0 or NaN, and those off by more than [`EXP_UNITS`].
fn largest_error(name: &str, bits: impl Iterator<Item = u32>) -> f64 {
    let x: Vec<f32> = bits.map(f32::from_bits).collect();
    let found = apply(name, std::slice::from_ref(&x), |b, x| exp(b, x[0]));
    let mut largest = 0.0f64;
    for (x, found) in x.into_iter().zip(found) {
        let exact = f64::from(x).exp();
        if x.is_nan() {
            assert!(found.is_nan(), "{name}: exp({x:?}) = {found}");
        } else if exact > f64::from(f32::MAX) * (1.0 + UNIT) {
            assert_eq!(found, f32::INFINITY, "{name}: exp({x:?})");
        } else {
            // At the end of the range the rounding decides between the largest number and infinity.
            let found = if found.is_infinite() { 2f64.powi(128) } else { found.into() };
            let off = (found - exact).abs();
            let normal = exact >= f64::from(f32::MIN_POSITIVE);
            let rounding = if normal { 0.0 } else { SUBNORMAL };
            let bound = EXP_UNITS * UNIT * exact + rounding;
            assert!(
                off <= bound,
                "{name}: exp({x:?}) = {found:e}, {exact:e}: {}",
                off / exact / UNIT
            );
            if normal {
                largest = largest.max(off / exact / UNIT);
            }
        }
    }
    largest
}

/// Every f32, in parts.
#[test]
fn exp_is_within_its_units_of_every_number() {
    const PART: u64 = 1 << 15;
    for part in Share::new(1 << 15, 1 << 12).of(0..(1 << 32) / PART) {
        let first = part * PART;
        largest_error("sm_90a", (first..first + PART).map(|bits| bits as u32));
    }
}

/// Values from all of f32, and all that are special.
#[test]
fn exp_is_within_its_units() {
    let special = [0u32, 1, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f7f_ffff, 0xff7f_ffff];
    let ends = [88.72f32, 89.0, -87.33, -103.97, -104.0].map(f32::to_bits);
    for (turn, name) in TARGETS.into_iter().enumerate() {
        let strided =
            (0..1u64 << 32).step_by(65_521).map(|bits| (bits as u32).wrapping_add(turn as u32));
        let near = ends.iter().flat_map(|&end| end - 60_000..end + 60_000).step_by(149);
        // What is between 1/16 and 128 of both signs is neither 1 nor infinite.
        let usual =
            (0..1u32 << 15).map(|at| 0x3d80_0000 + at % (1 << 14) * 5639 + (at >> 14 << 31));
        let all = special.into_iter().chain(strided).chain(near).chain(usual);
        let mut all: Vec<u32> = all.collect();
        all.resize(all.len().next_multiple_of(256), 0);
        let largest = largest_error(name, all.into_iter());
        assert!(largest > 0.5, "{name}: no rounding at all is found");
    }
}
