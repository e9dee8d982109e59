//! The gate against the reference, and the exponential over all of its arguments.

use quantloom_dsl::reference::experts::gate as reference;
use quantloom_tests::sweep::Share;

use super::*;

/// 2^-24.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Relative to the exact power, in units of 2^-24, after half the smallest f32.
fn error_of_exp(v: f32) -> f64 {
    let (ours, exact) = (f64::from(exp_of_negative(v)), f64::from(v).exp());
    ((ours - exact).abs() - 2f64.powi(-150)).max(0.0) / (exact * UNIT)
}

/// The f32 of 0 and less, in parts.
#[test]
fn powers_are_within_four_units() {
    const PART: u32 = 1 << 10;
    let last = (-LEAST).to_bits() + 64;
    let parts = Share::new(500, 16).of(0..=last / PART);
    let bits = parts.into_iter().flat_map(|part| part * PART..(part + 1) * PART);
    let worst = bits.map(|bits| error_of_exp(-f32::from_bits(bits))).fold(0.0, f64::max);
    assert!(worst > 0.4 && worst <= 4.0, "{worst} units");
    assert_eq!([0.0, -0.0, f32::NEG_INFINITY, -1e30].map(exp_of_negative), [1.0, 1.0, 0.0, 0.0]);
    assert!(exp_of_negative(f32::NAN).is_nan());
}

/// Exact infinities, NaN, and limits at both sides.
#[test]
fn special_numbers_are_those_of_the_reference() {
    let values =
        [0.0, -0.0, 1.0, -1.0, 7.0, 7.5, -7.5, -100.0, 1e30, -1e30, f32::INFINITY, -f32::INFINITY];
    let values: Vec<f32> = values.into_iter().chain([f32::NAN]).collect();
    for gate in Gate::every(7.0) {
        for g in &values {
            for u in &values {
                let exact = reference(gate, f64::from(*g), f64::from(*u));
                for isa in Isa::present() {
                    let mut ours = [*g];
                    apply(isa, gate, &mut ours, &[*u]);
                    let ours = f64::from(ours[0]);
                    // Beyond f32, or of a power below its normal numbers. The exponent of a power is
                    // rounded four times, and is at least -104 where the power is not 0.
                    let exact = f64::from(exact as f32);
                    // A NaN of u is none of a gate without up.
                    let size = |v: f32| if v.is_nan() { 2.0 } else { f64::from(v.abs()) + 2.0 };
                    let [g_size, u_size] = [size(*g), size(*u)];
                    let small = g_size * u_size * 2f64.powi(-149);
                    let near =
                        (ours - exact).abs() <= (16.0 + 4.0 * 104.0) * UNIT * exact.abs() + small;
                    let same = ours == exact || near || ours.is_nan() && exact.is_nan();
                    assert!(same, "{gate} of {g}, {u} on {isa}: {ours}, expected {exact}");
                }
            }
        }
    }
}
