//! The zero-point correction of a product of codes.

use quantloom_dsl::{ZeroPointCorrection, parse};

/// The product of codes plus the correction is the product of weights, whether decoding
/// subtracts the zero point or not.
#[test]
fn a_sum_and_its_correction_make_the_meaning() {
    let (scale, zero, shift) = (0.375, 11.0, -2.5);
    let codes_and_x = [(3.0, 1.5), (0.0, -4.0), (15.0, 0.25)];
    let meaning: f64 = codes_and_x.iter().map(|(w, x)| (scale * (w - zero) + shift) * x).sum();
    for zero_left in [true, false] {
        for add in [0, 128, -8] {
            let correction = ZeroPointCorrection { zero: zero_left, add };
            let taken_off = if zero_left { 0.0 } else { zero };
            let multiplied: f64 =
                codes_and_x.iter().map(|(w, x)| (w - taken_off + f64::from(add)) * x).sum();
            let x: f64 = codes_and_x.iter().map(|(_, x)| x).sum();
            let found = scale * multiplied + correction.value(scale, zero, shift) * x;
            assert_eq!(found, meaning, "{correction:?}");
        }
    }
}

#[test]
fn no_correction_is_needed_where_nothing_is_left() {
    let of = |more: &str| {
        let text = format!(
            "s {{ weight: u4, {more} scale: f16 per 1x32, pack: [k, n], activation: f16 }}"
        );
        parse(&text).unwrap()
    };
    let [plain, zero, shift] = ["", "zero: u8,", "shift: f16 per 1x32,"].map(of);
    let left = ZeroPointCorrection { zero: true, add: 0 };
    let taken_off = ZeroPointCorrection { zero: false, add: 0 };
    assert!(!left.needed(&plain) && left.needed(&zero) && left.needed(&shift));
    assert!(!taken_off.needed(&zero) && taken_off.needed(&shift));
    assert!(ZeroPointCorrection { add: 1, ..taken_off }.needed(&plain));
}
