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
