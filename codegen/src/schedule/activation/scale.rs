//! The choice of scales and zero points, with the cases of the reference's `choose_scale` and
//! `choose_zero`.

use quantloom_dsl::format::{Number, Overflow};
use quantloom_dsl::reference::RoundedArithmetic;
use quantloom_dsl::{Quantiser, ScaleLevel, ScaleRule};

use super::problem::ActivationProblem;
use super::rounding::{Rounding, at_least, at_most, round_to};
use super::value_range::ValueRange;
use crate::ir::{Binary, Builder, Compare, Operand, Unary};

/// The product of some levels of scales.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    pub(super) value: Operand,
    /// The reciprocal, if both are powers of two: multiplying by it is an exact division.
    pub(super) inverse: Option<Operand>,
    /// The rounding of results.
    pub(super) rounding: Rounding,
    /// Whether the product may be 0: static, an integer, or a product of levels, which may underflow.
    vanishes: bool,
}

impl Factor {
    /// The product of no levels.
    pub(super) fn one(rounding: Rounding) -> Self {
        Self { value: 1.0f32.into(), inverse: Some(1.0f32.into()), rounding, vanishes: false }
    }

    /// A product from an earlier kernel; it may be 0.
    pub(super) fn given(value: Operand, rounding: Rounding) -> Self {
        Self { value, inverse: None, rounding, vanishes: true }
    }

    /// The divisor of values: the product, or the largest f32 if the product is 0, as in
    /// [`quantloom_dsl::reference::RoundedArithmetic::over`].
    pub(super) fn divisor(self, b: &mut Builder) -> Operand {
        if !self.vanishes {
            return self.value;
        }
        let nothing = b.compare(Compare::EqualF32, self.value, 0.0f32);
        b.select(nothing, f32::MAX, self.value)
    }
}

/// A number that was chosen for a group.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    number: Operand,
    /// The reciprocal, if both are powers of two.
    inverse: Option<Operand>,
}

impl Chosen {
    /// The number.
    pub(super) const fn value(self) -> Operand {
        self.number
    }

    /// A number without a known reciprocal.
    pub(super) fn number(number: Operand) -> Self {
        Self { number, inverse: None }
    }
}

/// The parts of a problem that the choice of scales needs.
pub(super) struct Scales<'p> {
    quantiser: &'p Quantiser,
    problem: &'p ActivationProblem,
    /// The rounding for the tensor, before any level.
    base: Rounding,
}

impl<'p> Scales<'p> {
    pub(super) fn new(problem: &'p ActivationProblem, quantiser: &'p Quantiser) -> Self {
        Self { quantiser, problem, base: Rounding::to(problem.arithmetic()) }
    }

    /// The rounding with the product of all levels.
    pub(super) fn rounding(&self) -> Rounding {
        let numbers = self.quantiser.scales.iter().rev().filter_map(ScaleLevel::stored_number);
        numbers.fold(self.base, Rounding::with)
    }

    /// The product of the coarser levels `outer` and a static level.
    pub(super) fn with_stored(
        &self,
        b: &mut Builder,
        level: &ScaleLevel,
        number: Operand,
        outer: Option<Factor>,
    ) -> Factor {
        self.with(b, level, Chosen { number, inverse: None }, outer)
    }

    /// The product of the coarser levels and a level that is chosen from the range of its group.
    pub(super) fn with_chosen(
        &self,
        b: &mut Builder,
        level: &ScaleLevel,
        range: ValueRange,
        outer: Option<Factor>,
    ) -> Factor {
        let chosen = self.choose(b, level, range, outer);
        self.with(b, level, chosen, outer)
    }

    /// The product of the coarser levels and a chosen number.
    pub(super) fn with(
        &self,
        b: &mut Builder,
        level: &ScaleLevel,
        Chosen { number, inverse }: Chosen,
        outer: Option<Factor>,
    ) -> Factor {
        let rounding = outer.map_or(self.base, |outer| outer.rounding);
        let rounding = level.stored_number().map_or(rounding, |number| rounding.with(number));
        let (op, outer) = match (outer, level.divide) {
            (None, false) => {
                let vanishes = level.stored || self.least(level) == 0.0;
                return Factor { value: number, inverse, rounding, vanishes };
            }
            (None, true) => (Binary::DivF32, 1.0f32.into()),
            (Some(outer), false) => (Binary::MulF32, outer.value),
            (Some(outer), true) => (Binary::DivF32, outer.value),
        };
        let value = rounding.binary(b, op, outer, number);
        Factor { value, inverse: None, rounding, vanishes: true }
    }

    /// The scale of a group of zeros: the smallest step above 1 of the level's type, or of the
    /// arithmetic. Types that do not represent that use their nearest number, possibly 0.
    fn least(&self, level: &ScaleLevel) -> f64 {
        let number = self.problem.number(level);
        let epsilon = match number {
            Number::Float(format) if format.bits() <= 16 => format.epsilon(),
            _ => self.problem.arithmetic().epsilon(),
        };
        saturated(number, epsilon)
    }

    /// The number of a level for one group. A finer level compensates for the coarser ones; a level that
    /// divides is a reciprocal.
    pub(super) fn choose(
        &self,
        b: &mut Builder,
        level: &ScaleLevel,
        range: ValueRange,
        outer: Option<Factor>,
    ) -> Chosen {
        let (base, number) = (self.base, self.problem.number(level));
        let within = |b: &mut Builder, factor: Operand| match outer {
            Some(outer) => {
                let outer = outer.divisor(b);
                b.binary(Binary::DivF32, factor, outer)
            }
            None => factor,
        };
        let factor = match level.rule {
            ScaleRule::Pow2 { .. } | ScaleRule::Pow2Over(_) => {
                let amax = range.amax(b);
                let amax = within(b, amax);
                let code = self.power(b, amax, level.rule);
                let value = power_of(b, code);
                if number == Number::E8m0 && !level.divide {
                    let opposite = b.sub(254u32, code);
                    let inverse = Some(power_of(b, opposite));
                    return Chosen { number: value, inverse };
                }
                value
            }
            ScaleRule::Range(divisor) => {
                let [low, high] = range.ends();
                let range = base.binary(b, Binary::SubF32, high, low);
                let factor = base.binary(b, Binary::DivF32, range, f64::from_bits(divisor) as f32);
                within(b, factor)
            }
            // The reverse quotient, so that the stored reciprocal is rounded once.
            ScaleRule::Amax(divisor) if level.divide && outer.is_none() => {
                let (divisor, amax) = (f64::from_bits(divisor) as f32, range.amax(b));
                let divisor = base.binary(b, Binary::DivF32, divisor, amax);
                return Chosen::number(stored_divisor(b, number, divisor));
            }
            ScaleRule::Amax(divisor) => {
                let (divisor, amax) = (f64::from_bits(divisor) as f32, range.amax(b));
                let factor = base.binary(b, Binary::DivF32, amax, divisor);
                within(b, factor)
            }
        };
        if level.divide {
            let divisor = base.binary(b, Binary::DivF32, 1.0f32, factor);
            return Chosen::number(stored_divisor(b, number, divisor));
        }
        let rounded = rounded(b, number, factor);
        if !matches!(number, Number::Float(_)) {
            // For integers the smallest step of the arithmetic is 0; e8m0 has no 0.
            return Chosen::number(rounded);
        }
        let nothing = b.compare(Compare::EqualF32, rounded, 0.0f32);
        Chosen::number(b.select(nothing, self.least(level) as f32, rounded))
    }

    /// The power of two of a rule, as a code of e8m0. The exponent bits of a subnormal amax are at most
    /// 1 too large, and give the smallest code in any case. For codes below 2, whose exponent is less
    /// than 1, amax is scaled up first.
    fn power(&self, b: &mut Builder, amax: Operand, rule: ScaleRule) -> Operand {
        let code = self.quantiser.code;
        let power = rule.power(code.max().max(-code.min()));
        let exponent = power.map_or(1, |power| power.exponent);
        let largest = exponent.max(1) as u32;
        let above = power.and_then(|power| power.above);
        // A mantissa from the threshold on carries into the exponent.
        let threshold =
            above.map_or(1 << 23, |above| ((above - 1.0) * 2f64.powi(23)).ceil() as u32);
        let bits = b.unary(Unary::AsU32, amax);
        // Beyond 2^400 every number is infinite.
        let (mut up, mut moved) = ((1 - exponent).clamp(0, 400), amax);
        while up > 0 {
            let step = up.min(100);
            moved = b.mul_f32(moved, 2f32.powi(step));
            up -= step;
        }
        let moved = if moved == amax { bits } else { b.unary(Unary::AsU32, moved) };
        let carried = b.add(moved, (1 << 23) - threshold);
        let exponent = b.shr(carried, 23u32);
        let exponent = b.binary(Binary::Max, exponent, largest);
        let exponent = b.sub(exponent, largest);
        let finite = b.less(bits, f32::INFINITY.to_bits());
        let exponent = b.select(finite, exponent, 0u32);
        // The smallest powers are 0 in f16; 1 replaces them.
        let arith = RoundedArithmetic::new(self.problem.arithmetic, self.problem.own);
        let is_zero = |code: &u32| arith.round(Number::E8m0.decode(*code)) == 0.0;
        let zeros = (0..255u32).take_while(is_zero).count() as u32;
        if zeros == 0 {
            return exponent;
        }
        let underflows = b.less(exponent, zeros);
        b.select(underflows, 127u32, exponent)
    }

    /// The zero point that maps the smallest value of a group to the smallest code.
    pub(super) fn zero(
        &self,
        b: &mut Builder,
        number: Number,
        range: ValueRange,
        factor: Factor,
    ) -> Operand {
        let code = self.quantiser.code;
        let [low, _] = range.ends();
        let divisor = factor.divisor(b);
        let steps = factor.rounding.binary(b, Binary::DivF32, low, divisor);
        let zero = factor.rounding.binary(b, Binary::SubF32, code.min() as f32, steps);
        let zero = at_least(b, zero, code.min());
        let zero = at_most(b, zero, code.max());
        // NaN becomes 0.
        let integer = b.unary(Unary::S32FromF32, zero);
        let zero = b.unary(Unary::F32FromS32, integer);
        let zero = at_least(b, zero, number.min());
        at_most(b, zero, number.max())
    }
}

/// `2^(code - 127)`, of a code up to 254.
fn power_of(b: &mut Builder, code: Operand) -> Operand {
    let smallest = b.equal(code, 0u32);
    let bits = b.shl(code, 23u32);
    let bits = b.select(smallest, 1u32 << 22, bits);
    b.unary(Unary::AsF32, bits)
}

/// The nearest number of a type, as it is stored.
fn saturated(number: Number, value: f64) -> f64 {
    number.decode(number.encode(value, Overflow::Saturate))
}

/// The stored value.
fn rounded(b: &mut Builder, number: Number, value: Operand) -> Operand {
    match number {
        Number::Int(_) | Number::Uint(_) => {
            let value = at_least(b, value, number.min());
            let value = at_most(b, value, number.max());
            // To nearest, ties to even; NaN becomes 0.
            let integer = b.unary(Unary::S32FromF32, value);
            b.unary(Unary::F32FromS32, integer)
        }
        Number::Float(format) => round_to(b, format, value),
        Number::E8m0 => nearest_power(b, value),
    }
}

/// The nearest power of two of a non-negative value in e8m0; that of 1.5 is 2. NaN stays NaN.
fn nearest_power(b: &mut Builder, value: Operand) -> Operand {
    let bits = b.unary(Unary::AsU32, value);
    let carried = b.add(bits, 1u32 << 22);
    let code = b.shr(carried, 23u32);
    let code = b.binary(Binary::Min, code, 254u32);
    // The smallest power is half the smallest normal number; it serves values below three quarters of
    // that number.
    let smallest = b.less(bits, 3u32 << 21);
    let code = b.select(smallest, 0u32, code);
    let power = power_of(b, code);
    let number = b.compare(Compare::EqualF32, value, value);
    b.select(number, power, value)
}

/// A stored divisor; 1, if the type has it, where the divisor would be 0 for a group of zeros, or so
/// large that its reciprocal is 0.
fn stored_divisor(b: &mut Builder, number: Number, divisor: Operand) -> Operand {
    let rounded = rounded(b, number, divisor);
    let finite = b.compare(Compare::LessF32, divisor, f32::INFINITY);
    let some = b.compare(Compare::LessF32, 0.0f32, rounded);
    let usable = b.both(finite, some);
    b.select(usable, rounded, number.one() as f32)
}
