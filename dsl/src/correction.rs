//! The zero-point correction: the term that a product owes when it has multiplied x with codes
//! instead of weights.
//!
//! A group of columns contributes `sum_k (scale * (code_k - zero) + shift) * x_k`, up to factors of
//! the whole row. A product multiplies x with `code + add`, or with `code - zero + add` if decoding
//! subtracts the zero point. The rest is one number times the sum of x over the group. Only this
//! file computes that number; kernels that compute it on a device learn here which terms it has.

use crate::scheme::Scheme;

/// The terms of the number that multiplies the sum of x over a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZeroPointCorrection {
    /// Whether the multiplied operand still contains the zero point, because decoding did not
    /// subtract it.
    pub zero: bool,
    /// The constant that decoding adds to each code.
    pub add: i32,
}

impl ZeroPointCorrection {
    /// Whether the correction of a scheme's weights can differ from 0.
    pub const fn needed(self, scheme: &Scheme) -> bool {
        self.add != 0 || !scheme.shifts.is_empty() || self.zero && scheme.zero.is_some()
    }

    /// `shift - scale * (zero + add)`, without `zero` if decoding has subtracted it. `scale` and
    /// `shift` are the products of the group's levels; `zero` and `shift` are 0 if the scheme has
    /// none.
    pub fn value(self, scale: f64, zero: f64, shift: f64) -> f64 {
        let zero = if self.zero { zero } else { 0.0 };
        shift - scale * (zero + f64::from(self.add))
    }
}

#[cfg(test)]
mod tests {
    use super::ZeroPointCorrection;
    use crate::parse;

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
}
