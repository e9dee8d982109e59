//! `1 / d` as operations against `1 / d` of f64.

use quantloom_codegen::schedule::experts::reciprocal::{RECIPROCAL_UNITS, reciprocal};
use quantloom_codegen::target::{Feature, target};
use quantloom_tests::sweep::Share;

use super::apply::apply;
use super::{TARGETS, UNIT};

/// The largest relative error in units of 2^-24.
fn largest_error(name: &str, numbers: Vec<u32>) -> f64 {
    let d: Vec<f32> = numbers.into_iter().map(f32::from_bits).collect();
    let found = apply(name, std::slice::from_ref(&d), |b, x| reciprocal(b, x[0]));
    let errors =
        d.iter().zip(found).map(|(&d, found)| (f64::from(d) * f64::from(found) - 1.0).abs() / UNIT);
    errors.fold(0.0, f64::max)
}

/// Numbers from 1 to 2: a part of all on each target.
#[test]
fn reciprocals_are_within_their_units() {
    const PART: u32 = 1 << 12;
    for name in TARGETS {
        // Elsewhere `fma` may round twice.
        let strict = target(name).unwrap().has(Feature::StrictF32);
        let most = if strict { RECIPROCAL_UNITS } else { RECIPROCAL_UNITS + 1.0 };
        let share = Share::new(1 << 11, 1 << 4);
        for part in share.of(0..(1u32 << 23) / PART).into_iter().chain([(1 << 23) / PART]) {
            let first = 1.0f32.to_bits() + part * PART;
            let numbers = (first..first + PART).map(|bits| bits.min(2.0f32.to_bits())).collect();
            let largest = largest_error(name, numbers);
            assert!(largest <= most, "{name}: {largest}");
        }
        let largest =
            largest_error(name, (0..1 << 12).map(|at| 1.0f32.to_bits() + at * 2039).collect());
        assert!(largest > 0.9, "{name}: no rounding at all is found: {largest}");
    }
}

#[test]
fn the_reciprocal_of_1_is_1_and_of_nan_nan() {
    let mut d = vec![1.0f32; 256];
    d[1] = f32::NAN;
    for name in TARGETS {
        let found = apply(name, std::slice::from_ref(&d), |b, x| reciprocal(b, x[0]));
        assert!(
            found[1].is_nan() && found[0] == 1.0 && found[2..].iter().all(|r| *r == 1.0),
            "{name}"
        );
    }
}
