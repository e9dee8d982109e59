//! Sequences that multiply with a scale at no cost: in the constants of their last steps.
//!
//! If the last step of every output is code * factor + base with a factor and a base that are powers of two, the
//! value times s is code * (s factor) + (s base): both constants are exact, and the step rounds once. So an
//! element is round(s value), as the multiplication of a decoded value would give, for one step less. A base
//! that is not a power of two (a zero point of 7) has no exact multiple, and its sequence takes no scale.

use std::collections::BTreeSet;

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, Number, Overflow};

use super::sequence::Sequence;
use super::step::{Arg, Step};
use crate::target::Half;

/// Numbers of a range: scales that a sequence's constants take, or scales and terms that leave weights in the type's range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    /// Their type, as products read them.
    pub number: Number,
    /// The largest magnitude: larger ones make constants, or weights, infinite.
    pub most: f64,
    /// The least magnitude besides 0. For constants that for which they are exact: with smaller ones an element is wrong by
    /// the smallest subnormal number at most, by a half of it from the base, by a half from the step.
    pub least: f64,
}

impl NumberRange {
    /// Numbers of a type, up to this size, that are rounded to f16. Those below its smallest normal number lose no digits: none of f16
    /// itself, of bf16 those that end at 2^-24, no others. (Scales of e8m0 may become 0: those of weights that then are less than half of
    /// f16's smallest number.)
    pub fn of_f16(number: Number, most: f64) -> Self {
        let least = match number {
            Number::E8m0 => number.decode(0),
            NUMBER_F16 => number.decode(1),
            // Seven digits below the leading one.
            NUMBER_BF16 => 2f64.powi(-17),
            number => number.decode(1).max(2f64.powi(-14)),
        };
        let most = most.log2().floor().exp2().min(number.max());
        Self { number, most, least }
    }
}

impl Sequence {
    /// The scales that the last steps can multiply with; `None` if they cannot.
    pub fn scale_range(&self) -> Option<NumberRange> {
        let constants = self.outputs.iter().map(|output| self.constants_of(self.step_of(output)?));
        let constants: Vec<(Half, [u32; 2])> = constants.collect::<Option<_>>()?;
        let &(half, _) = constants.first()?;
        let format = half.format();
        let power = |constant: u32| {
            let value = format.decode(constant & 0xffff).abs();
            let is_power = value == 0.0 || value.log2().fract() == 0.0;
            (is_power && constant >> 16 == constant & 0xffff).then_some(value)
        };
        let values = constants.iter().flat_map(|&(_, constants)| constants).map(power);
        let values: Vec<f64> = values.collect::<Option<_>>()?;
        let normal = 2f64.powi(1 - format.bias());
        let most = format.max() / values.iter().copied().fold(1.0, f64::max);
        let smallest = values.into_iter().filter(|&value| value > 0.0).fold(1.0, f64::min);
        Some(NumberRange { number: half.number(), most, least: normal / smallest })
    }

    /// How many products of constants of last steps with scales there are in a group, if a lane has so many rows, whose
    /// registers take turns. 0 if a last step is another one.
    pub fn scaled_constants(&self, rows: usize) -> usize {
        let mut outputs: Vec<_> = self.outputs.iter().collect();
        outputs.sort_by_key(|output| output.codes.first().copied());
        let of = |(register, output)| {
            let (_, constants) = self.constants_of(self.step_of(output)?)?;
            Some(constants.map(|constant| (register % rows.max(1), constant)))
        };
        let all: Option<Vec<_>> = outputs.into_iter().enumerate().map(of).collect();
        all.into_iter().flatten().flatten().collect::<BTreeSet<_>>().len()
    }

    /// The sequence whose elements are multiplied with a scale, a number of [`NumberRange::number`] given as bits.
    /// `None` if it takes no scale.
    pub fn times(&self, scale: u32) -> Option<Self> {
        let Number::Float(format) = self.scale_range()?.number else { return None };
        let mut scaled = self.clone();
        for output in &self.outputs {
            let at = self.step_of(output)?;
            if let Step::Fma16(_, _, factor, base) = &mut scaled.steps[at] {
                for constant in [factor, base] {
                    let Arg::Word(word) = constant else { return None };
                    let value = format.decode(*word & 0xffff) * format.decode(scale);
                    let bits = format.encode(value, Overflow::Special);
                    *constant = Arg::Word(bits | bits << 16);
                }
            }
        }
        Some(scaled)
    }

    /// The factor and the base of a step that multiplies and adds constants.
    fn constants_of(&self, step: usize) -> Option<(Half, [u32; 2])> {
        match self.steps.get(step)? {
            Step::Fma16(half, Arg::Register(_), Arg::Word(factor), Arg::Word(base)) => {
                Some((*half, [*factor, *base]))
            }
            _ => None,
        }
    }
}
