//! The scales of the finest level of x, in `f32`.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Quantiser, ScaleRule, ScaleType};

use super::rounding::{Rounding, round_even, round_float};
use super::{Parameters, ValueRange};

/// A dynamic finest level whose numbers are chosen in `f32`, without the formats' general conversions: there is one for each
/// group of x. What is rare is left to [`RowQuantiser::by_levels`].
#[derive(Clone, Copy, Debug)]
pub(super) struct FinestLevel {
    rule: FinestRule,
    number: FinestNumber,
    /// The type of the scheme's arithmetic, and the one in which levels are multiplied.
    base: Rounding,
    product: Rounding,
}

/// How a number of the finest level follows from its group.
#[derive(Clone, Copy, Debug)]
pub(super) enum FinestRule {
    /// The largest magnitude over a divisor.
    Amax(f32),
    /// The range over a divisor, beside a zero point: an integer from the least to the largest code.
    Range { divisor: f32, least: f32, most: f32 },
    /// Two to the exponent of the largest magnitude less `less`, and one power more if its significand is at least `above`.
    Power { less: i32, above: f64 },
}

/// The type of the numbers of the finest level.
#[derive(Clone, Copy, Debug)]
pub(super) enum FinestNumber {
    Wide(Rounding),
    /// A format of a byte or less, and its largest number.
    Short(FloatFormat, f32),
    /// Powers of two alone.
    Power,
}

impl FinestLevel {
    /// For x of type `own`; `base` and `product` are the types of [`Self::base`] and [`Self::product`].
    pub(super) fn of(
        quantiser: &Quantiser,
        own: FloatFormat,
        [base, product]: [FloatFormat; 2],
    ) -> Option<Self> {
        let (level, coarser) = quantiser.scales.split_first()?;
        let number = match level.number {
            ScaleType::InputDtype => Number::Float(own),
            ScaleType::Number(number) => number,
        };
        let codes = quantiser.code;
        let number = match number {
            Number::Float(format @ (F32 | F16 | BF16)) => FinestNumber::Wide(Rounding::of(format)),
            Number::Float(format) if format.bits() <= 8 => {
                FinestNumber::Short(format, format.max() as f32)
            }
            Number::E8m0 => FinestNumber::Power,
            _ => return None,
        };
        let single = coarser.is_empty() && base == F32;
        let rule = match (level.rule, quantiser.zero, number) {
            (ScaleRule::Amax(divisor), None, FinestNumber::Wide(_) | FinestNumber::Short(..)) => {
                FinestRule::Amax(f64::from_bits(divisor) as f32)
            }
            (ScaleRule::Range(divisor), Some(zero), FinestNumber::Wide(_))
                if single
                    && !zero.is_float()
                    && zero.min() <= codes.min()
                    && zero.max() >= codes.max() =>
            {
                let (least, most) = (codes.min() as f32, codes.max() as f32);
                FinestRule::Range { divisor: f64::from_bits(divisor) as f32, least, most }
            }
            (rule, None, FinestNumber::Power) => {
                let power = rule.power(codes.max().max(-codes.min()))?;
                let above = power.above.unwrap_or(f64::INFINITY);
                FinestRule::Power { less: power.exponent, above }
            }
            _ => return None,
        };
        let of_rows = level.group.rows == GroupSize::Each(1);
        let [base, product] = [base, product].map(Rounding::of);
        let chosen = of_rows && !level.stored && !level.divide;
        chosen.then_some(Self { rule, number, base, product })
    }

    /// The parameters of a group of finite values within the product of the coarser levels; `None` where the level's number is 0
    /// or beyond its type, about which the rule says more.
    #[inline(always)]
    pub(super) fn parameters(self, values: &[f32], outer: Option<f32>) -> Option<Parameters> {
        // Divided by 0 a factor is infinite or NaN, which is refused below.
        let within = |factor: f32| outer.map_or(factor, |outer| factor / outer);
        let scale = |number: f32| match outer {
            Some(outer) => self.product.round(outer * number),
            None => number,
        };
        match self.rule {
            FinestRule::Amax(divisor) => {
                let number = self.rounded(within(self.base.round(largest(values) / divisor)))?;
                Some(Parameters { scale: scale(number), zero: 0.0 })
            }
            FinestRule::Range { divisor, least, most } => {
                let ValueRange { low, high } = ValueRange::of(values);
                let scale = self.rounded((high - low) / divisor)?;
                let zero = least - low / scale;
                Some(Parameters { scale, zero: round_even(zero.clamp(least, most)) })
            }
            FinestRule::Power { less, above } => {
                let bits = within(largest(values)).to_bits();
                let significand = f32::from_bits(bits & 0x7f_ffff | 1.0f32.to_bits());
                let exponent = (bits >> 23) as i32 - 127;
                let up = i32::from(f64::from(significand) >= above);
                let chosen = exponent + up - less;
                // Not 0, subnormal or infinite; the smallest number of f16 is 2^-24.
                let least = if self.base == Rounding::F16 { -24 } else { -126 };
                let there = (-126..128).contains(&exponent) && (least..128).contains(&chosen);
                let number = there.then(|| f32::from_bits(((chosen + 127) as u32) << 23))?;
                Some(Parameters { scale: scale(number), zero: 0.0 })
            }
        }
    }

    /// A number in the type of the level, if it is above 0 and finite before and after.
    #[inline(always)]
    fn rounded(self, number: f32) -> Option<f32> {
        if !number.is_finite() {
            return None;
        }
        let number = match self.number {
            FinestNumber::Wide(rounding) => rounding.round(number),
            FinestNumber::Short(format, largest) => {
                let mut number = [number.min(largest)];
                round_float(&mut number, format);
                number[0]
            }
            FinestNumber::Power => return None,
        };
        (number > 0.0 && number < f32::INFINITY).then_some(number)
    }
}

/// The largest magnitude of finite values.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    // A fold of integers, which compilers vectorise; one of `f32` would have an order.
    let most = values.iter().fold(0, |most: u32, value| most.max(value.to_bits() & 0x7fff_ffff));
    f32::from_bits(most)
}
