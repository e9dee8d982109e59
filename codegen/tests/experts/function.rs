//! The functions of gates against the reference, in f64.

use quantloom_codegen::schedule::experts::exponential::{EXP_UNITS, NEAR_ARGUMENT, NEAR_EXP_UNITS};
use quantloom_codegen::schedule::experts::function::gate;
use quantloom_codegen::schedule::experts::reciprocal::{NEAR_RECIPROCAL_UNITS, RECIPROCAL_UNITS};
use quantloom_codegen::target::{Feature, target};
use quantloom_dsl::experts::Gate;
use quantloom_dsl::reference::experts;

use super::apply::apply;
use super::{TARGETS, UNIT};

/// Units of `v / (1 + exp(-a))` times u, of a that is exact, and those of its argument: where a target has functions of its
/// own, and elsewhere.
fn quotient(near: bool) -> (f64, f64) {
    match near {
        true => (NEAR_EXP_UNITS + NEAR_RECIPROCAL_UNITS + 4.0, NEAR_ARGUMENT),
        false => (EXP_UNITS + RECIPROCAL_UNITS + 4.0, 0.0),
    }
}

/// Whether a target has functions of its own.
pub(super) fn is_near(name: &str) -> bool {
    target(name).unwrap().has(Feature::NearFunctions)
}

pub(super) const GATES: [Gate; 10] = Gate::every(7.0);

/// The largest error of a gate's h in f32, before h is rounded to another type.
///
/// `v / (1 + exp(-a))` is v, or v e where a is negative, times the reciprocal of 1 + e with e = exp(-|a|): e has [`EXP_UNITS`] (or
/// [`NEAR_EXP_UNITS`], and the reciprocal [`NEAR_RECIPROCAL_UNITS`]),
/// and of its argument a relative error of r units of 2^-24 makes |a| r units of e. v e and the sum round once each. The sum has
/// half of the relative error of e at most, with the other sign where both are there. The reciprocal has [`RECIPROCAL_UNITS`].
/// Its product, and that with u, round once each.
/// - silu: the argument is exact, but for that of a target's own power of 2: EXP + RECIPROCAL + 4 (`quotient`), and r |a|.
/// - swigluoai: the argument rounds once more: |alpha g|, and once more for the rounding of
///   u + 1, of which an absolute error of 2^-24 |u + 1| remains relative.
/// - gelu_tanh: the argument has its constants' and four operations' roundings: 6 |a|.
/// - gelu: of the tail `t exp(p)`, t has 3 units, p = -v^2 / 2 + P(t) has v^2 / 2 + |P| units of its
///   last two roundings and those of P, whose ten terms with |P| < 2 have less than 8; erfcc itself has
///   1.2e-7, 2.1 units; then two products.
///
/// Of positive v an error of the argument a, |a| r units of exp(-a), is of the sum 1 + exp(-a): at most r
/// units, as a exp(-a) < 1.
///
/// Below the smallest normal number e, and a product, have half of the smallest f32 more, a target's own power of 2 five times that.
pub(super) fn bound(near: bool, gate: Gate, [g, u]: [f64; 2], h: f64) -> f64 {
    let (quotient, argument) = quotient(near);
    let tail = |argument: f64| if argument < 0.0 { -argument } else { 1.0 };
    let relative = match gate {
        Gate::Silu | Gate::SiluLimit { .. } | Gate::SwigluStep { .. } | Gate::UngatedSilu => {
            quotient + argument * tail(g)
        }
        Gate::SwigluOai { alpha, limit } => {
            quotient + 1.0 + (1.0 + argument) * tail(f64::from(alpha) * g.min(limit.into()))
        }
        Gate::GeluTanh | Gate::UngatedGeluTanh => {
            quotient + (6.0 + argument) * tail(1.6 * (g + 0.044_715 * g.powi(3)))
        }
        Gate::Gelu | Gate::UngatedGelu => {
            EXP_UNITS + 3.0 + tail(g * g.abs() / 2.0) + 2.0 + 8.0 + 2.1 + 3.0
        }
        Gate::UngatedRelu2 => 1.0,
    };
    let limit = match gate {
        Gate::SiluLimit { limit } | Gate::SwigluOai { limit, .. } | Gate::SwigluStep { limit } => {
            limit.into()
        }
        _ => f64::INFINITY,
    };
    let factor = if gate.shards() == 2 { u.abs().min(limit) + 1.0 } else { 1.0 };
    let units = if near { 5.0 } else { 1.0 };
    let underflow = units * ((-g).max(0.0) + 2.0) * factor * 2f64.powi(-149);
    relative * (1.0 + 1e-5) * UNIT * h.abs() + underflow
}

/// Gates and ups: of the usual size, at limits, large, small, and what is not a number.
pub(super) fn values() -> [Vec<f32>; 2] {
    let mut state = 7u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let (mut g, mut u) = (Vec::new(), Vec::new());
    for size in [0.01f32, 1.0, 4.0, 12.0, 40.0, 100.0, 1e4, 1e18] {
        for _ in 0..992 {
            g.push(size * next());
            u.push(size.min(100.0) * next());
        }
    }
    let special =
        [0.0, -0.0, 7.0, -7.0, 2.5, 10.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
    for one in special {
        for other in special.into_iter().chain([1.0, -20.0, 300.0, 1e-3, -3.0, 0.5]) {
            g.push(one);
            u.push(other);
        }
    }
    let len = g.len().next_multiple_of(256);
    g.resize(len, 1.0);
    u.resize(len, 1.0);
    [g, u]
}

#[test]
fn gates_are_the_references() {
    let [g, u] = values();
    for name in TARGETS {
        for of in GATES {
            let found = apply(name, &[g.clone(), u.clone()], |b, x| gate(b, of, x[0], x[1]));
            for ((&g, &u), found) in g.iter().zip(&u).zip(found) {
                let (g, u, found) = (f64::from(g), f64::from(u), f64::from(found));
                let exact = experts::gate(of, g, u);
                let bound = bound(is_near(name), of, [g, u], exact);
                let most = f64::from(f32::MAX);
                let same = match exact {
                    _ if exact.is_nan() => found.is_nan(),
                    // Beyond f32, or almost.
                    _ if exact.abs() + bound >= most => {
                        found == exact || found.abs() >= most && found.signum() == exact.signum()
                    }
                    _ => (found - exact).abs() <= bound,
                };
                assert!(
                    same,
                    "{name}: {of:?} of {g:e}, {u:e} is {found:e}, {exact:e} +- {bound:e}"
                );
            }
        }
    }
}
