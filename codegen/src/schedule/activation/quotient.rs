//! `x / s` for elements that share s, correctly rounded, by the reciprocal of s.
//!
//! With r = 1 / s rounded, q = x r is off by at most two units in the last place; the remainder x - q s is
//! exact, and q + r (x - q s), rounded once, differs from x / s by less than 2^-22 of such a unit before
//! that rounding. That the result is the correctly rounded quotient was tested for every significand of s
//! with every significand of a 16-bit x (2^30 pairs of bf16, 2^33 of f16); everything else is a power of
//! two, as long as nothing underflows. With s in [`LEAST`]..[`MOST`] only quotients below 2^-40 can
//! underflow (codes of 0, with or without a zero point). Other s, and x in f32, use the target's division,
//! which takes several times as long; so does everything on a target whose `fma` may round twice.

use quantloom_dsl::format::F32;

use super::problem::ActivationProblem;
use super::rounding::with_sign;
use super::scale::Factor;
use crate::ir::{Binary, Builder, Compare, Operand, Reg, Ternary, Type, Unary, Uniformity};
use crate::plan;
use crate::target::Feature;

/// Scales for which the reciprocal is used; outside of this range remainders may underflow.
const LEAST: f32 = f32::from_bits((127 - 60) << 23);
const MOST: f32 = f32::from_bits((127 + 60) << 23);

/// A divisor, and the method of division.
#[derive(Clone, Copy)]
pub(super) struct Divisor {
    value: Operand,
    way: Way,
    /// Whether the sign of zero matters.
    signs: bool,
}

#[derive(Clone, Copy)]
enum Way {
    /// Multiplication by the exact reciprocal: both are powers of two.
    Exact { inverse: Operand },
    /// The corrected reciprocal, if the divisor is within range.
    Inverse { usual: Operand, inverse: Operand },
    /// The target's division.
    Divide,
}

impl Divisor {
    /// Prepares a divisor.
    pub(super) fn new(b: &mut Builder, problem: &ActivationProblem, factor: Factor) -> Self {
        let value = factor.divisor(b);
        let way = match factor.inverse {
            Some(inverse) => Way::Exact { inverse },
            // The remainder is not exact, or the input dtype was not tested.
            None if problem.own == F32 || !b.target().has(Feature::StrictF32) => Way::Divide,
            None => {
                let bits = b.unary(Unary::AsU32, value);
                let above = b.sub(bits, LEAST.to_bits());
                let usual = b.less(above, MOST.to_bits() - LEAST.to_bits());
                Way::Inverse { usual, inverse: b.binary(Binary::DivF32, 1.0f32, value) }
            }
        };
        let integers = matches!(problem.operand, plan::OperandType::I8 | plan::OperandType::I4);
        Self { value, way, signs: !integers }
    }

    /// Each element divided by the divisor, as f32.
    pub(super) fn quotients(self, b: &mut Builder, elements: &[Operand]) -> Vec<Operand> {
        let divide = |b: &mut Builder| -> Vec<Operand> {
            elements.iter().map(|x| b.binary(Binary::DivF32, *x, self.value)).collect()
        };
        let (usual, inverse) = match self.way {
            Way::Divide => return divide(b),
            Way::Exact { inverse } => {
                return elements.iter().map(|x| b.mul_f32(*x, inverse)).collect();
            }
            Way::Inverse { usual, inverse } => (usual, inverse),
        };
        let quotients = b.array("scaled", Type::F32, elements.len() as u32, Uniformity::Varying);
        let set = |b: &mut Builder, values: Vec<Operand>| {
            for (quotient, value) in quotients.iter().zip(values) {
                b.set(*quotient, value);
            }
        };
        b.if_else(
            usual,
            |b| {
                let less = b.unary(Unary::Negate, self.value);
                let all = elements.iter().map(|x| self.by_inverse(b, *x, inverse, less)).collect();
                set(b, all);
            },
            |b| {
                let all = divide(b);
                set(b, all);
            },
        );
        quotients.into_iter().map(Reg::into).collect()
    }

    /// One quotient; `less` is the negated divisor.
    fn by_inverse(self, b: &mut Builder, x: Operand, inverse: Operand, less: Operand) -> Operand {
        let near = b.mul_f32(x, inverse);
        let rest = b.ternary(Ternary::Fma, near, less, x);
        let quotient = b.ternary(Ternary::Fma, rest, inverse, near);
        // An infinite quotient has no remainder.
        let number = b.compare(Compare::EqualF32, quotient, quotient);
        let quotient = b.select(number, quotient, near);
        // The sign of a zero may be lost.
        if self.signs { with_sign(b, quotient, x) } else { quotient }
    }
}

#[cfg(test)]
mod tests {
    /// What is true of all significands, tried for some of s and all of bf16, some of f16.
    #[test]
    fn a_remainder_makes_the_quotient_right() {
        for s in (0..1u32 << 23).step_by(509).chain((1 << 23) - 64..1 << 23) {
            let s = f32::from_bits(1.0f32.to_bits() | s);
            let inverse = 1.0 / s;
            for x in (128..256).chain((1024..2048).step_by(7)) {
                let x = x as f32;
                let near = x * inverse;
                let quotient = (-s).mul_add(near, x).mul_add(inverse, near);
                assert_eq!(quotient, x / s, "{x} / {s}");
            }
        }
    }
}
