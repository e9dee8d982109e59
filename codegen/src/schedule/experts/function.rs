//! The functions of gates, an element at a time: `h = f(g, u)` of [`Gate`], in f32.
//!
//! NaN stays NaN: limits compare and select, since minimum and maximum return the number.

use quantloom_dsl::experts::Gate;

use super::exponential::{exp, falling_exp, near_falling_exp};
use super::reciprocal::{near_reciprocal, reciprocal};
use crate::ir::{Binary, Builder, Compare, Operand, Ternary, Unary};
use crate::schedule::activation::{at_least, at_most};

/// `h = f(g, u)`, not rounded further than to f32. `u` is not read if the gate has one shard.
///
/// The formulas and their sources are those of [`Gate`], the definition is
/// [`quantloom_dsl::reference::experts::gate`].
pub fn gate(b: &mut Builder, gate: Gate, g: Operand, u: Operand) -> Operand {
    match gate {
        Gate::Silu => {
            let left = silu(b, g);
            b.mul_f32(left, u)
        }
        Gate::SiluLimit { limit } => {
            let g = at_most(b, g, limit.into());
            let (left, u) = (silu(b, g), clamp(b, u, limit));
            b.mul_f32(left, u)
        }
        Gate::SwigluOai { alpha, limit } => {
            let g = at_most(b, g, limit.into());
            let inner = b.mul_f32(g, alpha);
            let left = over_one_plus_exp(b, g, inner);
            let u = clamp(b, u, limit);
            let u = b.add_f32(u, 1.0f32);
            b.mul_f32(left, u)
        }
        Gate::SwigluStep { limit } => {
            let left = silu(b, g);
            let (left, u) = (at_most(b, left, limit.into()), clamp(b, u, limit));
            b.mul_f32(left, u)
        }
        Gate::Gelu => {
            let left = gelu(b, g);
            b.mul_f32(left, u)
        }
        Gate::GeluTanh => {
            let left = gelu_tanh(b, g);
            b.mul_f32(left, u)
        }
        Gate::UngatedSilu => silu(b, g),
        Gate::UngatedGelu => gelu(b, g),
        Gate::UngatedGeluTanh => gelu_tanh(b, g),
        Gate::UngatedRelu2 => {
            let g = at_least(b, g, 0.0);
            b.mul_f32(g, g)
        }
    }
}

/// `1 / (1 + exp(-v))`, of the same bits on every target: it decides which experts a token has.
pub fn sigmoid(b: &mut Builder, v: Operand) -> Operand {
    over_one_plus(b, (1.0f32.into(), v), falling_exp, reciprocal)
}

/// `v / (1 + exp(-v))`.
pub fn silu(b: &mut Builder, v: Operand) -> Operand {
    over_one_plus_exp(b, v, v)
}

/// `above / (1 + exp(-v))`: above times the sigmoid of v. Of `e = exp(-|v|)`, which does not overflow: above times 1 or e, times
/// the reciprocal of 1 + e. No operation has a slow path, as a division of f32 does for numbers like 0 (4 us of a tile's
/// epilogue, docs/performance/experts.md).
fn over_one_plus_exp(b: &mut Builder, above: Operand, v: Operand) -> Operand {
    over_one_plus(b, (above, v), near_falling_exp, near_reciprocal)
}

/// The same by a function `exp(-x)` of numbers that are not negative, and a reciprocal of numbers from 1 to 2.
fn over_one_plus(
    b: &mut Builder,
    (above, v): (Operand, Operand),
    falling_exp: fn(&mut Builder, Operand) -> Operand,
    reciprocal: fn(&mut Builder, Operand) -> Operand,
) -> Operand {
    let magnitude = b.unary(Unary::Abs, v);
    let power = falling_exp(b, magnitude);
    let scaled = b.mul_f32(above, power);
    let negative = b.compare(Compare::LessF32, v, 0.0f32);
    let above = b.select(negative, scaled, above);
    let sum = b.add_f32(power, 1.0f32);
    let inverse = reciprocal(b, sum);
    b.mul_f32(above, inverse)
}

/// v times the distribution function of the normal distribution, which is `erfc(-v / sqrt 2) / 2`.
///
/// Source of `erfc(z) = t exp(-z^2 + P(t))` with `t = 1 / (1 + z / 2)` for z >= 0, relative error
/// below 1.2e-7: W. Press et al., Numerical Recipes, section 6.2, `erfcc`. Of a negative v that keeps
/// the digits where the function is far below 1.
pub fn gelu(b: &mut Builder, v: Operand) -> Operand {
    /// P, the highest power first.
    #[expect(clippy::excessive_precision, reason = "as published")]
    const P: [f32; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_9,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let magnitude = b.unary(Unary::Abs, v);
    let below = b.ternary(Ternary::Fma, magnitude, std::f32::consts::FRAC_1_SQRT_2 / 2.0, 1.0f32);
    let t = b.binary(Binary::DivF32, 1.0f32, below);
    let (first, rest) = (P[0], &P[1..]);
    let power = rest.iter().fold(Operand::F32(first), |sum, coefficient| {
        b.ternary(Ternary::Fma, sum, t, *coefficient)
    });
    // -z^2 is -v^2 / 2, which has one rounding.
    let half = b.mul_f32(v, -0.5f32);
    let power = b.ternary(Ternary::Fma, half, v, power);
    let power = exp(b, power);
    let t = b.mul_f32(t, 0.5f32);
    let tail = b.mul_f32(t, power);
    let rest = b.binary(Binary::SubF32, 1.0f32, tail);
    let negative = b.compare(Compare::LessF32, v, 0.0f32);
    let part = b.select(negative, tail, rest);
    b.mul_f32(v, part)
}

/// `v (1 + tanh(t)) / 2` with `t = sqrt(2 / pi) (v + 0.044715 v^3)`, which is v times the sigmoid of
/// 2 t.
pub fn gelu_tanh(b: &mut Builder, v: Operand) -> Operand {
    /// 2 sqrt(2 / pi).
    const FACTOR: f64 = 1.595_769_121_605_731;
    let square = b.mul_f32(v, v);
    let inner = b.ternary(Ternary::Fma, square, (FACTOR * 0.044_715) as f32, FACTOR as f32);
    let inner = b.mul_f32(v, inner);
    over_one_plus_exp(b, v, inner)
}

/// v between -limit and limit.
fn clamp(b: &mut Builder, v: Operand, limit: f32) -> Operand {
    let v = at_most(b, v, limit.into());
    at_least(b, v, (-limit).into())
}
