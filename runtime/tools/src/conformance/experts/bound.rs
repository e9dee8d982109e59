//! The largest difference of a whole expert layer from the reference, from end to end.
//!
//! In: what the reference computes in `f64`, step by step. Out: one bound per element of y.
//!
//! **Derivation**, with u = 2^-24, for any order of rows, experts and threads:
//!
//! 1. *z*, the sums of gate and up: each within e, the bound of a dense product with its bias in `f32`
//!    ([`super::super::bound`]). Rows of x are quantised with the reference's bits.
//! 2. *h = f(g, u)* of sums that are off by e_g and e_u: [`carried`] bounds the change of f by its
//!    derivatives, [`rounded`] what the operations of f itself lose. Together d.
//! 3. *round_T*: both sides round, so that h of a kernel is any number of T from `round_T(h - d)` to
//!    `round_T(h + d)`: an interval, which is one number for most elements of 16 bits.
//! 4. *Quantised h*: scales are monotone in the largest magnitude of a group, and codes in a value and
//!    in its scale. So the quantised rows of all largest and of all smallest magnitudes give the
//!    interval of each scale and zero point; their corners give the interval of each code; and the
//!    corners of code, zero point and scale that of each value ([`Spread`]). Only codes that a
//!    rounding can really change differ: a bound is not a step of the code type for every element.
//!    (Of two dynamic levels the inner one makes up for the outer one; both ends then differ by a unit
//!    of the inner type more.)
//! 5. *Parts*: the dense bound with the magnitudes of h plus its spread, plus the spread times |W2|.
//! 6. *y*: the sum of k parts of weight w_j, and of the shared result: k + 2 roundings of a term, and half
//!    a unit of the type of y. Parts in 16 bits have their weights: a term is rounded once more, by half a unit
//!    of that type ([`part_rounding`]). Of the k + 2 roundings a product, k - 1 sums and the sum with the shared
//!    result occur; the one left over is more than half a unit of bf16 adds to the others, k 2^-9 of one.

use quantloom_dsl::experts::Gate;
use quantloom_dsl::format::{F32, FloatFormat, Number};
use quantloom_dsl::reference::experts::{gate as h_of, sigmoid};
use quantloom_dsl::reference::{QuantisedActivation, RoundedArithmetic};
use quantloom_dsl::{Quantiser, Scheme, Ties};

use super::super::bound::UNIT;

/// More than the largest derivative of v sigmoid(v) (1.0998), of v normal(v) and of its form with tanh
/// (1.1289, 1.1290); of v sigmoid(alpha v) too, whose derivative is that of v sigmoid(v) at alpha v.
const SLOPE: f64 = 1.13;

/// The change of h that errors of g and u can make.
pub(super) fn carried(gate: Gate, [g, u]: [f64; 2], [e_g, e_u]: [f64; 2]) -> f64 {
    let (g, u) = limited(gate, g, u);
    match gate {
        // |max(a, 0)^2 - max(b, 0)^2| <= |a - b| (|a| + |b|)
        Gate::UngatedRelu2 => e_g * (2.0 * g.max(0.0) + e_g),
        gate if gate.shards() == 1 => SLOPE * e_g,
        // h = a(g) b(u): |a b - a' b'| <= |a - a'| |b'| + |a| |b - b'|; limits change nothing by more.
        gate => {
            let activated = h_of(one_shard(gate), g, 0.0).abs().max(g.abs() * steep(gate, g));
            SLOPE * e_g * (u.abs() + e_u) + activated * e_u
        }
    }
}

/// What the operations of f lose: of a power at most 5 units, of a sigmoid 10, and at most four products
/// and sums follow: 14 units of h. An argument of the sigmoid with up to 8 roundings (two of them those of a power of 2 in place
/// of e) moves it by at most 8 u |t sigmoid'(t)| <= 1.8 u of |g| times the other factor. Below 2^-126 a power loses
/// up to 2.5 times 2^-149 instead.
pub(super) fn rounded(gate: Gate, [g, u]: [f64; 2]) -> f64 {
    let h = h_of(gate, g, u).abs();
    let (g, u) = limited(gate, g, u);
    let other = if gate.shards() == 2 { u.abs() } else { 1.0 };
    let argument = match gate {
        Gate::UngatedRelu2 => 0.0,
        _ => 2.0 * UNIT * g.abs() * other,
    };
    14.0 * UNIT * h + argument + 2f64.powi(-147) * (g.abs() + 1.0) * (other + 1.0)
}

/// A bound, infinite where it is 0 times one that is: a factor of 0 says nothing of what may have overflowed.
pub(super) fn or_unbounded(bound: f64) -> f64 {
    if bound.is_nan() { f64::INFINITY } else { bound }
}

/// What a part of at most this magnitude, in `f32`, loses in its type: half a unit, infinite beyond the type's
/// largest number.
pub(super) fn part_rounding(parts: FloatFormat, size: f64) -> f64 {
    match parts {
        F32 => 0.0,
        _ if size > parts.max() => f64::INFINITY,
        _ => (size * parts.epsilon()).max(parts.decode(1)) / 2.0,
    }
}

/// g and the second factor behind the limits of a gate.
fn limited(gate: Gate, g: f64, u: f64) -> (f64, f64) {
    match gate {
        Gate::SiluLimit { limit } => {
            let limit = f64::from(limit);
            (g.min(limit), u.clamp(-limit, limit))
        }
        Gate::SwigluOai { limit, .. } => {
            let limit = f64::from(limit);
            (g.min(limit), u.clamp(-limit, limit) + 1.0)
        }
        Gate::SwigluStep { limit } => {
            let limit = f64::from(limit);
            (g, u.clamp(-limit, limit))
        }
        _ => (g, u),
    }
}

/// The function of g alone.
fn one_shard(gate: Gate) -> Gate {
    match gate {
        Gate::Gelu => Gate::UngatedGelu,
        Gate::GeluTanh => Gate::UngatedGeluTanh,
        _ => Gate::UngatedSilu,
    }
}

/// The sigmoid of a gate whose argument has a factor.
fn steep(gate: Gate, g: f64) -> f64 {
    match gate {
        Gate::SwigluOai { alpha, .. } => sigmoid(f64::from(alpha) * g),
        _ => 0.0,
    }
}

/// How far h can be from the reference's, element by element, as the second product reads it.
pub(super) struct Spread {
    /// The largest change of a value.
    pub(super) values: Vec<f64>,
    /// The largest change of its magnitude, |code| plus |zero point| times |scale|.
    pub(super) terms: Vec<f64>,
}

/// The interval of each element of rows [R, K] that are not quantised.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) low: Vec<f64>,
    pub(super) high: Vec<f64>,
}

impl Interval {
    /// Of h within d, rounded to T.
    pub(super) fn of(h: &[f64], d: &[f64], dtype: FloatFormat) -> Self {
        let end = |sign: f64| h.iter().zip(d).map(|(h, d)| dtype.round(h + sign * d)).collect();
        Self { low: end(-1.0), high: end(1.0) }
    }

    /// Each element's largest and smallest magnitude.
    pub(super) fn extremes(&self) -> [Vec<f64>; 2] {
        let ends = || self.low.iter().copied().zip(self.high.iter().copied());
        let largest = ends().map(|(low, high)| if -low > high { low } else { high });
        let smallest = ends().map(|(low, high)| match (low > 0.0, high < 0.0) {
            (true, _) => low,
            (_, true) => high,
            _ => 0.0,
        });
        [largest.collect(), smallest.collect()]
    }

    /// The spread of elements that are read as they are, around the reference's.
    pub(super) fn spread(&self, of: &[f64]) -> Spread {
        let ends = self.low.iter().zip(&self.high).zip(of);
        let values: Vec<f64> =
            ends.map(|((low, high), of)| (of - low).abs().max((high - of).abs())).collect();
        Spread { terms: values.clone(), values }
    }

    /// The spread of quantised elements: `largest` and `smallest` are the quantised extremes, `of` the
    /// reference.
    pub(super) fn quantised(
        &self,
        scheme: &Scheme,
        quantiser: &Quantiser,
        own: FloatFormat,
        of: &QuantisedActivation,
        [largest, smallest]: [&QuantisedActivation; 2],
    ) -> Spread {
        let base = RoundedArithmetic::new(scheme.arithmetic, own);
        let levels = quantiser.scales.iter().rev();
        let arith = levels.fold(base, |arith, level| arith.with(level.stored_number()));
        let dynamic = || quantiser.scales.iter().filter(|level| !level.stored);
        // Of two dynamic levels, a code of the inner type more.
        let more = match (dynamic().count(), dynamic().next().and_then(|l| l.stored_number())) {
            (2.., Some(Number::Float(inner))) => 1.0 + inner.epsilon(),
            (2.., _) => 2.0,
            _ => 1.0,
        };
        let code = |h: f64, scale: f64, zero: f64| {
            let mut scaled = arith.over(h, scale);
            if quantiser.zero.is_some() {
                scaled = arith.add(scaled, zero);
            }
            rounded_code(scaled, quantiser)
        };
        let mut spread = Spread { values: Vec::new(), terms: Vec::new() };
        for at in 0..of.codes.len() {
            let mut scales = [smallest.scales[at], largest.scales[at]];
            scales.sort_by(f64::total_cmp);
            if scales[0] != scales[1] {
                scales = [scales[0] / more, scales[1] * more];
            }
            let zeros = [smallest.zeros[at], largest.zeros[at]];
            let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
            for h in [self.low[at], self.high[at]] {
                for scale in scales {
                    for zero in zeros {
                        let code = code(h, scale, zero);
                        (least, most) = (least.min(code), most.max(code));
                    }
                }
            }
            let value = (of.codes[at] - of.zeros[at]) * of.scales[at];
            let term = (of.codes[at].abs() + of.zeros[at].abs()) * of.scales[at].abs();
            let (mut values, mut terms) = (0.0f64, 0.0f64);
            for code in [least, most] {
                for zero in zeros {
                    for scale in scales {
                        values = values.max(((code - zero) * scale - value).abs());
                        let size = (code.abs() + zero.abs()) * scale.abs();
                        terms = terms.max((size - term).abs());
                    }
                }
            }
            spread.values.push(values);
            spread.terms.push(terms);
        }
        spread
    }
}

/// The value of the code of a quotient.
fn rounded_code(scaled: f64, quantiser: &Quantiser) -> f64 {
    let scaled = scaled.clamp(quantiser.code.min(), quantiser.code.max());
    match (quantiser.code, quantiser.ties) {
        (Number::Float(format), _) => format.round(scaled),
        (_, Ties::Even) => scaled.round_ties_even(),
        (_, Ties::Away) => scaled.round(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums that may have overflowed have no bound, and so has h, also where the other factor is 0.
    #[test]
    fn what_may_have_overflowed_has_no_bound() {
        let d = carried(Gate::Silu, [1.0, 0.0], [f64::INFINITY, 0.0]);
        assert_eq!(or_unbounded(d), f64::INFINITY);
        assert_eq!(or_unbounded(0.0 * f64::INFINITY), f64::INFINITY);
        assert_eq!(or_unbounded(0.5), 0.5);
    }

    /// No change of h by changes of g and u is larger than what is carried, and half of it occurs.
    #[test]
    fn what_is_carried_bounds_the_change_of_h() {
        let values: Vec<f64> = (-40..=40).map(|at| f64::from(at) / 8.0).collect();
        let errors = [0.0, 1e-6, 1e-3, 0.3, 2.0];
        for gate in Gate::every(1.5) {
            let mut closest = 0.0f64;
            for g in &values {
                for u in &values {
                    for e in errors {
                        let bound = carried(gate, [*g, *u], [e, e / 2.0]);
                        let h = h_of(gate, *g, *u);
                        for (dg, du) in [(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)] {
                            let other = h_of(gate, g + dg * e, u + du * e / 2.0);
                            let change = (other - h).abs();
                            assert!(
                                change <= bound + 1e-12,
                                "{gate} {g} {u} {e}: {change} {bound}"
                            );
                            if bound > 1e-9 {
                                closest = closest.max(change / bound);
                            }
                        }
                    }
                }
            }
            assert!(closest > 0.5, "{gate}: {closest}");
        }
    }
}
