//! What a product still owes when it has multiplied x with codes instead of weights.
//!
//! The meaning of a group of columns is `sum_k (scale * (code_k - zero) + shift) * x_k`, up to
//! factors of the whole row. A product multiplies x with `code + add`, or with `code - zero + add`
//! where decoding takes the zero point off; the rest is one number times the sum of x over the group.
//! That number is computed here and nowhere else; kernels that compute it on a device take from here
//! which terms it has.

use crate::scheme::Scheme;

/// The terms of the number that multiplies the sum of x over a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Correction {
    /// Whether a zero point, if there is one, is still in what was multiplied: decoding did not take
    /// it off.
    pub zero: bool,
    /// What decoding leaves on each code.
    pub add: i32,
}

impl Correction {
    /// Whether the number may differ from 0 for weights of a scheme.
    pub const fn needed(self, scheme: &Scheme) -> bool {
        self.add != 0 || scheme.shift.is_some() || self.zero && scheme.zero.is_some()
    }

    /// `shift - scale * (zero + add)`, without `zero` where decoding took it off: of a group's scale
    /// (the product of its levels), zero point (0 if there is none) and shift (likewise).
    pub fn value(self, scale: f64, zero: f64, shift: f64) -> f64 {
        let zero = if self.zero { zero } else { 0.0 };
        shift - scale * (zero + f64::from(self.add))
    }
}

#[cfg(test)]
mod tests {
    use super::Correction;
    use crate::parse;

    /// The product's own part and the correction make the meaning, whoever takes the zero point off.
    #[test]
    fn a_sum_and_its_correction_make_the_meaning() {
        let (scale, zero, shift) = (0.375, 11.0, -2.5);
        let codes_and_x = [(3.0, 1.5), (0.0, -4.0), (15.0, 0.25)];
        let meaning: f64 = codes_and_x.iter().map(|(w, x)| (scale * (w - zero) + shift) * x).sum();
        for zero_left in [true, false] {
            for add in [0, 128, -8] {
                let correction = Correction { zero: zero_left, add };
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
        let left = Correction { zero: true, add: 0 };
        let taken_off = Correction { zero: false, add: 0 };
        assert!(!left.needed(&plain) && left.needed(&zero) && left.needed(&shift));
        assert!(!taken_off.needed(&zero) && taken_off.needed(&shift));
        assert!(Correction { add: 1, ..taken_off }.needed(&plain));
    }
}
