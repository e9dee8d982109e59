//! The default rule for each scale, and the rules that clip values.
//!
//! A quantiser divides by the product of all levels. Of two levels the coarser is chosen first, and
//! the finer compensates for it: an integer level can do so only if the coarser level leaves it its
//! whole range, that is, includes the largest integer as a factor.

use crate::format::Number;
use crate::lang::offset_text;
use crate::scheme::{ScaleLevel, ScaleRule, ScaleType, Scheme, WeightCode};
use crate::{Activation, Code};

/// The default rules of some levels, finest first, for codes of `weight`, with a zero point or
/// without.
///
/// Let d be the number of steps that the codes reach (`reach`: the largest symmetric number of
/// steps, half a step beyond the last integer; half of the codes' range with a zero point), times
/// the largest number of each finer level that is an integer and multiplies. The default is `amax /
/// d`, or `range / 2d` with a zero point. Levels of e8m0 are the next power of two above that; for
/// float codes they are `pow2`, as in OCP MX v1.0, section 6.3. No default clips integer codes,
/// apart from the rounding of the scale.
pub(crate) fn default_rules(
    levels: &[ScaleLevel],
    weight: &WeightCode,
    asymmetric: bool,
) -> Vec<ScaleRule> {
    let (low, high) = weight.range();
    let range = high - low;
    // Codes that all stand for 0 have no steps, so any scale will do.
    let reach = Some(weight.reach()).filter(|reach| *reach > 0.0).unwrap_or(1.0);
    let mut finer = 1.0;
    let rule = |level: &ScaleLevel| {
        let rule = match level.number {
            ScaleType::Number(Number::E8m0) if weight.code.is_float() && finer == 1.0 => {
                ScaleRule::pow2(None)
            }
            ScaleType::Number(Number::E8m0) if asymmetric => {
                ScaleRule::pow2_over(range / 2.0 * finer)
            }
            ScaleType::Number(Number::E8m0) => ScaleRule::pow2_over(reach * finer),
            _ if asymmetric => ScaleRule::range(range * finer),
            _ => ScaleRule::amax(reach * finer),
        };
        finer *= largest_factor(level);
        rule
    };
    levels.iter().map(rule).collect()
}

/// The largest number of an integer level that multiplies; 1 for other levels, which have
/// fractions.
fn largest_factor(level: &ScaleLevel) -> f64 {
    match level.number {
        ScaleType::Number(number @ (Number::Uint(_) | Number::Int(_))) if !level.divide => {
            level.most(number).max(1.0)
        }
        _ => 1.0,
    }
}

impl Scheme {
    /// What the scheme's rules may clip, one sentence each: weights or activations beyond the
    /// codes, or a finer scale beyond its type. The rounding of a scale is not counted, except for
    /// e8m0. Empty if nothing is clipped.
    pub fn clipping(&self) -> Vec<String> {
        let signed = self.zero.is_some() || !self.shifts.is_empty();
        let weight = Quantised {
            what: "weights",
            levels: &self.scales,
            codes: &self.weight,
            asymmetric: self.zero.is_some(),
        };
        let mut all: Vec<String> = weight.one_sided(signed).into_iter().collect();
        all.extend(weight.clipped());
        for activation in &self.activations {
            let Activation::Quantised(quantiser) = activation else { continue };
            let x = Quantised {
                what: "activations",
                levels: &quantiser.scales,
                codes: &WeightCode { code: Code::Number(quantiser.code), offset: 0 },
                asymmetric: quantiser.zero.is_some(),
            };
            all.extend(x.one_sided(quantiser.zero.is_some()));
            // A static scale is given, so its rule does not matter.
            if quantiser.scales.iter().all(|level| !level.stored) {
                all.extend(x.clipped());
            }
        }
        all
    }
}

/// The tensor that is quantised, its levels and its codes.
struct Quantised<'a> {
    what: &'static str,
    levels: &'a [ScaleLevel],
    codes: &'a WeightCode,
    asymmetric: bool,
}

impl Quantised<'_> {
    /// Codes of one sign, unless a zero point or shift adds values of the other sign.
    fn one_sided(&self, moved: bool) -> Option<String> {
        let (low, high) = self.codes.range();
        let missing = match (low < 0.0, high > 0.0) {
            (true, true) => return None,
            (true, false) => "positive",
            _ => "negative",
        };
        let what = self.what;
        (!moved).then(|| {
            format!("{what}: the codes have no {missing} value, so {missing} {what} are lost")
        })
    }

    /// The number of steps on either side of 0 within which a rounded code is off by at most half a
    /// step.
    fn room(&self) -> f64 {
        let (low, high) = self.codes.range();
        let reach = self.codes.reach();
        match &self.codes.code {
            _ if self.asymmetric => (high - low + 1.0) / 2.0,
            Code::Number(Number::Float(format)) => {
                let next = format.decode(format.max_code() - 1);
                high + (high - next) / 2.0
            }
            Code::Number(_) if low >= 0.0 || high <= 0.0 => reach + 0.5,
            _ => reach,
        }
    }

    /// The first level whose rule may clip, and what it clips.
    fn clipped(&self) -> Option<String> {
        let (low, high) = self.codes.range();
        let (what, room) = (self.what, self.room());
        let mut finer: Option<(f64, &ScaleLevel)> = None;
        for (at, level) in self.levels.iter().enumerate() {
            // A scale that is rounded to a power of two may be two thirds of its unrounded value.
            let rounded = level.number == ScaleType::Number(Number::E8m0);
            let slack = if rounded { 1.5 } else { 1.0 };
            let steps = match level.rule {
                ScaleRule::Amax(divisor) => f64::from_bits(divisor) * slack,
                ScaleRule::Range(divisor) => f64::from_bits(divisor) / 2.0 * slack,
                ScaleRule::Pow2Over(divisor) => f64::from_bits(divisor),
                ScaleRule::Pow2 { .. } => {
                    let power = level.rule.power(high.max(-low))?;
                    f64::from(power.exponent).exp2() * power.above.unwrap_or(2.0)
                }
            };
            match finer {
                None if steps > room => {
                    return Some(format!(
                        "{what}: by the rule of the first scale values are up to {steps} steps, and \
                         codes reach {room}: larger ones are clipped"
                    ));
                }
                Some((
                    below,
                    of @ ScaleLevel { number: ScaleType::Number(number), divide: false, .. },
                )) if steps > below * of.most(*number) => {
                    return Some(format!(
                        "{what}: by the rule of scale {} scale {at} is up to {}, and {number}{} holds up \
                         to {}: larger ones are clipped",
                        at + 1,
                        steps / below,
                        offset_text(of.offset),
                        of.most(*number)
                    ));
                }
                _ => {}
            }
            finer = Some((steps, level));
        }
        None
    }
}
