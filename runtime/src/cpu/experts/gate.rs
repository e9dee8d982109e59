//! The gate in `f32`: what is between the two products of an expert.
//!
//! In: sums of gate and up. Out: h, not rounded to the input dtype. Plain operations on `f32` without
//! fused multiply-adds, which compilers vectorise: the same bits on every instruction set. The formulas
//! are those of [`Gate`]; `quantloom_tools::conformance` derives the bound of their error from the
//! number of operations here.
//!
//! Numbers are compared before they are limited, since `f32::min` and `f32::max` return the number of
//! a number and a NaN: NaN stays NaN.

use quantloom_dsl::experts::Gate;

use super::super::isa::{Vectorised, enter};
use super::super::vector::Vector;
use crate::cpu::isa::Isa;

/// `g = f(g, u)` for all elements; `u` is empty if the gate has one shard.
pub(super) fn apply(isa: Isa, gate: Gate, g: &mut [f32], u: &[f32]) {
    enter(isa, Apply { gate, g, u });
}

/// Has no vector operations, but is compiled for the instruction set.
struct Apply<'a> {
    gate: Gate,
    g: &'a mut [f32],
    u: &'a [f32],
}

impl Vectorised for Apply<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { gate, g, u } = self;
        match gate {
            Gate::Silu => both(g, u, |g, u| silu(g) * u),
            Gate::SiluLimit { limit } => {
                both(g, u, |g, u| silu(least(g, limit)) * within(u, limit));
            }
            Gate::SwigluOai { alpha, limit } => both(g, u, |g, u| {
                let g = least(g, limit);
                g * sigmoid(alpha * g) * (within(u, limit) + 1.0)
            }),
            Gate::SwigluStep { limit } => {
                both(g, u, |g, u| least(silu(g), limit) * within(u, limit));
            }
            Gate::Gelu => both(g, u, |g, u| gelu(g) * u),
            Gate::GeluTanh => both(g, u, |g, u| gelu_tanh(g) * u),
            Gate::UngatedSilu => alone(g, silu),
            Gate::UngatedGelu => alone(g, gelu),
            Gate::UngatedGeluTanh => alone(g, gelu_tanh),
            Gate::UngatedRelu2 => alone(g, |g| {
                let g = if g < 0.0 { 0.0 } else { g };
                g * g
            }),
        }
    }
}

#[inline(always)]
fn both(g: &mut [f32], u: &[f32], h: impl Fn(f32, f32) -> f32) {
    for (g, u) in g.iter_mut().zip(u) {
        *g = h(*g, *u);
    }
}

#[inline(always)]
fn alone(g: &mut [f32], h: impl Fn(f32) -> f32) {
    for g in g {
        *g = h(*g);
    }
}

/// The value, at most `limit`.
#[inline(always)]
fn least(value: f32, limit: f32) -> f32 {
    if value > limit { limit } else { value }
}

/// The value between -limit and limit.
#[inline(always)]
fn within(value: f32, limit: f32) -> f32 {
    let value = least(value, limit);
    if value < -limit { -limit } else { value }
}

/// `v * sigmoid(v)`.
#[inline(always)]
fn silu(v: f32) -> f32 {
    v * sigmoid(v)
}

/// `v * (1 + tanh(t)) / 2 = v * sigmoid(2 t)` with `t = sqrt(2 / pi) * (v + 0.044715 v^3)`.
#[inline(always)]
fn gelu_tanh(v: f32) -> f32 {
    /// `2 sqrt(2 / pi)`.
    const FACTOR: f32 = 1.595_769_2;
    v * sigmoid(FACTOR * v * (1.0 + 0.044_715 * (v * v)))
}

/// `v * normal(v)`, in `f64` and rounded once.
#[inline(always)]
fn gelu(v: f32) -> f32 {
    let v = f64::from(v);
    (v * libm::erfc(-v * std::f64::consts::FRAC_1_SQRT_2) / 2.0) as f32
}

/// `1 / (1 + exp(-v))`, of `exp(-|v|)`: nothing overflows, and results far below 0 keep their digits.
#[inline(always)]
fn sigmoid(v: f32) -> f32 {
    let power = exp_of_negative(-v.abs());
    (if v >= 0.0 { 1.0 } else { power }) / (1.0 + power)
}

/// The least argument: below, powers round to 0.
const LEAST: f32 = -104.0;

/// `exp(v)` for v of 0 and less, also for -infinity; NaN of NaN.
///
/// v = n ln 2 + r with |r| <= 0.3466 (Cody and Waite): n times the upper part of ln 2, which has 15
/// bits, is exact. `exp(r)` is the Taylor polynomial of degree 7, whose remainder is below 2^-27 of
/// it. The relative error is at most 4 units of 2^-24, which a test finds for all arguments, plus half
/// the smallest `f32`.
#[inline(always)]
fn exp_of_negative(v: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN_2_UPPER: f32 = 0.693_145_75;
    const LN_2_LOWER: f32 = 1.428_606_8e-6;
    /// 1.5 * 2^23: a sum with it has no bits below 1, and n in its low bits.
    const MAGIC: f32 = 12_582_912.0;
    let v = if v < LEAST { LEAST } else { v };
    let shifted = v * LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (v - n * LN_2_UPPER) - n * LN_2_LOWER;
    let mut power = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * r + coefficient;
    }
    // 2^n in two factors, each a normal number, since n goes down to -150.
    let n = shifted.to_bits().wrapping_sub(MAGIC.to_bits()) as i32;
    let half = n >> 1;
    let two_to = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    power * two_to(half) * two_to(n.wrapping_sub(half))
}

#[cfg(test)]
mod tests;
