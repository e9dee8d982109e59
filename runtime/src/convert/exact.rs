//! Arithmetic that is exact or fails, in `f64`.

use quantloom_dsl::format::{Number, Overflow};

/// `a * b`, if no bit is lost. The error of a product is a number of `f64`, which a fused operation
/// computes (Muller et al., Handbook of Floating-Point Arithmetic, section 4.4).
pub(super) fn product(a: f64, b: f64) -> Option<f64> {
    let product = a * b;
    (product.is_finite() && a.mul_add(b, -product) == 0.0).then_some(product)
}

/// `a / b`, if the quotient is exact.
pub(super) fn quotient(a: f64, b: f64) -> Option<f64> {
    let quotient = a / b;
    (quotient.is_finite() && quotient.mul_add(b, -a) == 0.0).then_some(quotient)
}

/// `a + b`, if no bit is lost (the error is that of Knuth's two-sum).
pub(super) fn sum(a: f64, b: f64) -> Option<f64> {
    let sum = a + b;
    let of_b = sum - a;
    let error = (a - (sum - of_b)) + (b - of_b);
    (sum.is_finite() && error == 0.0).then_some(sum)
}

/// The code of a type that stands for exactly this number.
pub(super) fn code(number: Number, value: f64) -> Option<u32> {
    let code = number.encode(value, Overflow::Special);
    (number.decode(code) == value).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loses_a_bit_fails() {
        let odd = f64::from_bits(1.0f64.to_bits() + 1);
        assert_eq!((product(odd, 4.0), product(odd, 3.0)), (Some(odd * 4.0), None));
        assert_eq!(
            (quotient(3.0, 4.0), quotient(1.0, 3.0), quotient(1.0, 0.0)),
            (Some(0.75), None, None)
        );
        assert_eq!((sum(1.0, 0.5), sum(odd, 1e16)), (Some(1.5), None));
        let f16 = Number::from_name("f16").unwrap();
        assert_eq!(
            (code(f16, 1.5), code(f16, 1.0 + 1.0 / 4096.0), code(f16, 1e6)),
            (Some(0x3e00), None, None)
        );
        assert_eq!(code(Number::Uint(4), 15.0), Some(15));
        assert!(code(Number::Uint(4), 16.0).is_none() && code(Number::Uint(4), 0.5).is_none());
    }
}
