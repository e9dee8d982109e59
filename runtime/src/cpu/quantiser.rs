//! The activation quantiser, one row at a time.
//!
//! In: a row of x in `f32`. Out: the values of its codes, scales and zero points, bit for bit those
//! of [`quantloom_dsl::reference::quantise_activation`]. Scales are chosen by scalar code, once per
//! group or, where a whole row shares one, once per row; the work per element (range, division, rounding) is a plain loop that compilers
//! vectorise.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::reference::{ReferenceError, RoundedArithmetic, StaticInput};
use quantloom_dsl::{Quantiser, ScaleLevel, ScaleRule, ScaleType, Scheme, Ties};

use crate::element::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Smallest and largest of some values, 0 included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ValueRange {
    low: f32,
    high: f32,
}

impl ValueRange {
    #[inline(always)]
    pub(super) fn of(values: &[f32]) -> Self {
        let (mut lows, mut highs) = ([0.0f32; 16], [0.0f32; 16]);
        let (whole, rest) = values.as_chunks::<16>();
        for values in whole {
            for ((low, high), value) in lows.iter_mut().zip(&mut highs).zip(values) {
                *low = if *value < *low { *value } else { *low };
                *high = if *value > *high { *value } else { *high };
            }
        }
        for ((low, high), value) in lows.iter_mut().zip(&mut highs).zip(rest) {
            *low = if *value < *low { *value } else { *low };
            *high = if *value > *high { *value } else { *high };
        }
        // By halves, which compilers vectorise; one after another they would not be.
        for half in [8, 4, 2, 1] {
            for at in 0..half {
                let (low, high) = (lows[at + half], highs[at + half]);
                lows[at] = if low < lows[at] { low } else { lows[at] };
                highs[at] = if high > highs[at] { high } else { highs[at] };
            }
        }
        Self { low: lows[0], high: highs[0] }
    }

    /// The range of both.
    pub(super) fn with(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn amax(self) -> f64 {
        f64::from(self.high.max(-self.low))
    }
}

/// The type that each operation on an element rounds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    F32,
    Bf16,
    F16,
}

impl Rounding {
    fn of(format: FloatFormat) -> Self {
        match format {
            BF16 => Self::Bf16,
            F16 => Self::F16,
            _ => Self::F32,
        }
    }

    #[inline(always)]
    fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::Bf16 => bf16_to_f32(f32_to_bf16(value)),
            Self::F16 => f16_to_f32(f32_to_f16(value)),
        }
    }
}

/// A quantiser for x of one type.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowQuantiser<'a> {
    quantiser: &'a Quantiser,
    given: &'a StaticInput,
    own: FloatFormat,
    base: RoundedArithmetic,
    /// The type of [`Self::base`], and of the operations on elements.
    format: FloatFormat,
    rounding: Rounding,
    low: f32,
    high: f32,
    /// The finest level, if its scales are chosen in `f32`.
    finest: Option<FinestLevel>,
}

/// The product of the levels that do not change along a row, without the finest one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowFactor {
    product: Option<f64>,
    arith: RoundedArithmetic,
    /// The number of levels that are not part of it.
    finer: usize,
}

/// A dynamic finest level whose numbers are chosen in `f32`, without the formats' general conversions: there is one for each
/// group of x. What is rare is left to [`RowQuantiser::by_levels`].
#[derive(Clone, Copy, Debug)]
struct FinestLevel {
    rule: FinestRule,
    number: FinestNumber,
    /// The type of the scheme's arithmetic, and the one in which levels are multiplied.
    base: Rounding,
    product: Rounding,
}

/// How a number of the finest level follows from its group.
#[derive(Clone, Copy, Debug)]
enum FinestRule {
    /// The largest magnitude over a divisor.
    Amax(f32),
    /// The range over a divisor, beside a zero point: an integer from the least to the largest code.
    Range { divisor: f32, least: f32, most: f32 },
    /// Two to the exponent of the largest magnitude less `less`, and one power more if its significand is at least `above`.
    Power { less: i32, above: f64 },
}

/// The type of the numbers of the finest level.
#[derive(Clone, Copy, Debug)]
enum FinestNumber {
    Wide(Rounding),
    /// A format of a byte or less, and its largest number.
    Short(FloatFormat, f32),
    /// Powers of two alone.
    Power,
}

impl FinestLevel {
    /// For x of type `own`; `base` and `product` are the types of [`Self::base`] and [`Self::product`].
    fn of(
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
    fn parameters(self, values: &[f32], outer: Option<f32>) -> Option<Parameters> {
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

/// Scale and zero point of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parameters {
    /// Product of the scale levels.
    pub(super) scale: f32,
    /// Zero point, 0 if there is none.
    pub(super) zero: f32,
}

impl<'a> RowQuantiser<'a> {
    /// `None` if this quantiser does not support the scheme: groups of several rows, groups that do
    /// not nest, a scale of all of x inside of those of rows.
    pub(super) fn new(
        scheme: &Scheme,
        quantiser: &'a Quantiser,
        given: &'a StaticInput,
        own: FloatFormat,
    ) -> Option<Self> {
        let mut finer = 1;
        for (at, level) in quantiser.scales.iter().enumerate() {
            let columns = match (level.group.rows, level.group.cols) {
                (GroupSize::Each(1), GroupSize::Each(columns)) => Some(columns),
                (GroupSize::All, GroupSize::Each(columns)) if level.stored => Some(columns),
                (GroupSize::Each(1) | GroupSize::All, GroupSize::All) => None,
                _ => return None,
            };
            match columns {
                Some(columns) if columns % finer != 0 => return None,
                Some(columns) => finer = columns,
                // A level that is coarser than a row is the same for the row.
                None if quantiser.scales[at..].iter().any(|l| l.group.cols != GroupSize::All) => {
                    return None;
                }
                None => {}
            }
        }
        if quantiser.chooses_across_factors() {
            return None;
        }
        let base = RoundedArithmetic::new(scheme.arithmetic, own);
        let format = match scheme.arithmetic {
            quantloom_dsl::Arithmetic::F32 => F32,
            quantloom_dsl::Arithmetic::InputDtype => own,
        };
        let levels = quantiser.scales.iter().rev();
        let wide = levels.fold(format, |format, level| combined(format, level.stored_number()));
        Some(Self {
            quantiser,
            given,
            own,
            base,
            format,
            rounding: Rounding::of(wide),
            low: quantiser.code.min() as f32,
            high: quantiser.code.max() as f32,
            finest: FinestLevel::of(quantiser, own, [format, wide]),
        })
    }

    /// Whether some scale depends on all of x.
    pub(super) fn spans_rows(&self) -> bool {
        self.quantiser
            .scales
            .iter()
            .any(|level| level.group.rows == GroupSize::All && !level.stored)
    }

    /// Columns of a group of the finest level.
    pub(super) fn columns(&self, k: usize) -> usize {
        match self.quantiser.scales.first().map(|level| level.group.cols) {
            Some(GroupSize::Each(columns)) => (columns as usize).min(k.max(1)),
            _ => k.max(1),
        }
    }

    /// The product of what is the same for a whole row, which is finite; `all` is the range of x (needed if a level spans rows).
    pub(super) fn factor(&self, row: &[f32], all: ValueRange) -> Result<RowFactor, ReferenceError> {
        let levels = self.quantiser.scales.iter().skip(1).rev();
        let of_row = levels.take_while(|level| level.group.cols == GroupSize::All).count();
        let finer = self.quantiser.scales.len() - of_row;
        let mut factor = RowFactor { product: None, arith: self.base, finer };
        for at in (finer..self.quantiser.scales.len()).rev() {
            self.multiply(&mut factor, at, (row, 0, all))?;
        }
        Ok(factor)
    }

    /// Scale and zero point of the group of the finest level that begins at column `first` of a row with this factor; `row` and
    /// `all` are those of [`Self::factor`].
    #[inline(always)]
    pub(super) fn parameters(
        &self,
        row: &[f32],
        (first, factor): (usize, &RowFactor),
        all: ValueRange,
    ) -> Result<Parameters, ReferenceError> {
        if let Some(finest) = self.finest
            && factor.finer == 1
        {
            let end = row.len().min(first + self.columns(row.len()));
            let outer = factor.product.map(|product| product as f32);
            if let Some(parameters) = finest.parameters(&row[first..end], outer) {
                return Ok(parameters);
            }
        }
        self.by_levels(row, (first, *factor), all)
    }

    /// [`Self::parameters`] for any levels.
    fn by_levels(
        &self,
        row: &[f32],
        (first, mut factor): (usize, RowFactor),
        all: ValueRange,
    ) -> Result<Parameters, ReferenceError> {
        let mut finest = ValueRange::default();
        for at in (0..factor.finer).rev() {
            finest = self.multiply(&mut factor, at, (row, first, all))?;
        }
        let scale = factor.product.unwrap_or(1.0);
        let zero = self.zero_point(first, finest, scale, factor.arith)?;
        Ok(Parameters { scale: scale as f32, zero: zero as f32 })
    }

    /// Multiplies a factor with the number of a level at a column; the range from which the number is chosen, if it is.
    fn multiply(
        &self,
        factor: &mut RowFactor,
        at: usize,
        (row, first, all): (&[f32], usize, ValueRange),
    ) -> Result<ValueRange, ReferenceError> {
        let level = &self.quantiser.scales[at];
        let outer = factor.product;
        let mut range = ValueRange::default();
        let number = match level.number {
            ScaleType::InputDtype => Number::Float(self.own),
            ScaleType::Number(number) => number,
        };
        let (column, columns) = match level.group.cols {
            GroupSize::All => (0, 0..row.len()),
            GroupSize::Each(columns) => {
                let columns = columns as usize;
                let begin = first / columns * columns;
                (first / columns, begin..(begin + columns).min(row.len()))
            }
        };
        let value = if level.stored {
            let missing = || ReferenceError::StaticInput(Component::InputScale(at as u8));
            let values = self.given.scales.get(at).ok_or_else(missing)?;
            *values.get(column).ok_or_else(missing)?
        } else {
            let across = level.group.rows == GroupSize::All;
            range = if across { all } else { ValueRange::of(&row[columns]) };
            number.decode(self.choose(level, number, range, outer))
        };
        let arith = factor.arith.with(level.stored_number());
        factor.arith = arith;
        factor.product = Some(match (outer, level.divide) {
            (None, false) => value,
            (None, true) => arith.div(1.0, value),
            (Some(outer), false) => arith.mul(outer, value),
            (Some(outer), true) => arith.div(outer, value),
        });
        Ok(range)
    }

    fn zero_point(
        &self,
        first: usize,
        extent: ValueRange,
        scale: f64,
        arith: RoundedArithmetic,
    ) -> Result<f64, ReferenceError> {
        let (Some(number), Some(level)) = (self.quantiser.zero, self.quantiser.scales.first())
        else {
            return Ok(0.0);
        };
        if level.stored {
            let column = match level.group.cols {
                GroupSize::All => 0,
                GroupSize::Each(columns) => first / columns as usize,
            };
            let missing = || ReferenceError::StaticInput(Component::InputZero);
            return self.given.zeros.get(column).copied().ok_or_else(missing);
        }
        let (low, high) = (f64::from(self.low), f64::from(self.high));
        let zero = arith.add(low, -arith.over(f64::from(extent.low), scale));
        Ok(number.round(zero.clamp(low, high)))
    }

    /// One dynamic scale; the cases are those of the reference's `choose_scale`.
    fn choose(
        &self,
        level: &ScaleLevel,
        number: Number,
        extent: ValueRange,
        outer: Option<f64>,
    ) -> u32 {
        let arith = self.base;
        let wide = arith.with(Some(Number::Float(F32)));
        let within = |factor: f64| outer.map_or(factor, |outer| wide.over(factor, outer));
        let divisor_code = |divisor: f64| {
            let usable = divisor.is_finite() && number.round(divisor) != 0.0;
            number.encode(if usable { divisor } else { number.one() }, Overflow::Saturate)
        };
        let factor = match level.rule {
            ScaleRule::Pow2 { .. } | ScaleRule::Pow2Over(_) => {
                self.power(level.rule, within(extent.amax()))
            }
            ScaleRule::Range(divisor) => {
                let range = arith.add(f64::from(extent.high), -f64::from(extent.low));
                within(arith.div(range, f64::from_bits(divisor)))
            }
            ScaleRule::Amax(divisor) if level.divide && outer.is_none() => {
                return divisor_code(arith.div(f64::from_bits(divisor), extent.amax()));
            }
            ScaleRule::Amax(divisor) => within(arith.div(extent.amax(), f64::from_bits(divisor))),
        };
        if level.divide {
            return divisor_code(arith.div(1.0, factor));
        }
        let code = number.encode(factor, Overflow::Saturate);
        if number.decode(code) != 0.0 {
            return code;
        }
        let epsilon = match number {
            Number::Float(format) if format.bits() <= 16 => format.epsilon(),
            _ => self.format.epsilon(),
        };
        number.encode(epsilon, Overflow::Saturate)
    }

    /// The power of two of a rule.
    fn power(&self, rule: ScaleRule, amax: f64) -> f64 {
        let exponent_of = |value: f64| (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        let power_of = |exponent: i32| f64::from_bits(((1023 + exponent) as u64) << 52);
        let exponent = match rule.power(f64::from(self.high.max(-self.low))) {
            Some(power) if amax != 0.0 && amax.is_finite() => {
                // A positive f32 as f64 is normal.
                let floor = exponent_of(amax);
                let up = power.above.is_some_and(|above| amax / power_of(floor) >= above);
                (floor + i32::from(up) - power.exponent).clamp(-127, 127)
            }
            _ => -127,
        };
        let scale = power_of(exponent);
        if self.base.round(scale) == 0.0 { 1.0 } else { scale }
    }

    /// The values of the codes of a group's elements.
    #[inline(always)]
    pub(super) fn codes(&self, values: &[f32], parameters: Parameters, codes: &mut [f32]) {
        // A loop for each, so that none asks for the type at each element.
        match self.rounding {
            Rounding::F32 => self.divided(values, parameters, codes, |value| value),
            Rounding::Bf16 => self.divided(values, parameters, codes, |x| Rounding::Bf16.round(x)),
            Rounding::F16 => self.divided(values, parameters, codes, |x| Rounding::F16.round(x)),
        }
        match (self.quantiser.code, self.quantiser.ties) {
            (Number::Float(format), _) => round_float(codes, format),
            (_, Ties::Even) => {
                for code in codes {
                    *code = round_even(*code);
                }
            }
            (_, Ties::Away) => {
                for code in codes {
                    *code = round_away(*code);
                }
            }
        }
    }

    #[inline(always)]
    fn divided(
        &self,
        values: &[f32],
        Parameters { scale, zero }: Parameters,
        codes: &mut [f32],
        round: impl Fn(f32) -> f32,
    ) {
        let (low, high) = (self.low, self.high);
        // As in `RoundedArithmetic::over`.
        let scale = if scale == 0.0 { f32::MAX } else { scale };
        let clamp = |value: f32| {
            let value = if value < low { low } else { value };
            if value > high { high } else { value }
        };
        if self.quantiser.zero.is_some() {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = clamp(round(round(*value / scale) + zero));
            }
        } else {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = clamp(round(*value / scale));
            }
        }
    }
}

/// The type in which values of two types are combined; [`RoundedArithmetic::with`] for types.
fn combined(format: FloatFormat, number: Option<Number>) -> FloatFormat {
    match number {
        Some(Number::Float(F32)) => F32,
        Some(Number::Float(other)) if (other == F16 || other == BF16) && other != format => F32,
        _ => format,
    }
}

/// To the nearest integer, ties to even, for a magnitude below 2^22: adding 1.5 * 2^23 leaves no
/// bits below 1, and the addition rounds.
#[inline(always)]
fn round_even(value: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (value + MAGIC) - MAGIC
}

/// To the nearest integer, ties away from zero; the difference to the even one is exact.
#[inline(always)]
fn round_away(value: f32) -> f32 {
    let even = round_even(value);
    let rest = value - even;
    let up = if rest == 0.5 && value > 0.0 { 1.0 } else { 0.0 };
    let down = if rest == -0.5 && value < 0.0 { 1.0 } else { 0.0 };
    even + up - down
}

/// To the nearest value of a short float format, ties to even, for magnitudes up to its largest.
///
/// A value in [2^e, 2^(e+1)) is a multiple of 2^(e-m) in the format (e at least that of the
/// smallest normal number). Adding 2^(e-m+23) leaves no bits below that, and the addition rounds.
#[inline(always)]
fn round_float(codes: &mut [f32], format: FloatFormat) {
    let smallest = ((127 + 1 - format.bias()) as u32) << 23;
    let steps = (23 - u32::from(format.mantissa_bits)) << 23;
    for code in codes {
        let bits = code.to_bits();
        let exponent = (bits & 0x7f80_0000).max(smallest);
        let magic = f32::from_bits(exponent + steps);
        let magnitude = (f32::from_bits(bits & 0x7fff_ffff) + magic) - magic;
        *code = f32::from_bits(magnitude.to_bits() | bits & 0x8000_0000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quantloom_dsl::parse;
    use quantloom_dsl::reference::quantise_activation;

    /// Quantisers of the catalogue, and some that no software uses.
    const ACTIVATIONS: &[(&str, &str)] = &[
        ("i8 { zero: i8, scale: f32 per token, ties: away }", "f32"),
        ("i8 { scale: own per token }", "own"),
        ("i8 { scale: f32 per 1x32 }", "f32"),
        ("i8 { scale: f16 per 1x32 }", "f32"),
        ("i8 { scale: bf16 per 1x24 from amax / 0.001 }", "f32"),
        ("i8 { scale: f16 per 1x16 from amax / 1000000000 }", "f32"),
        ("i8 { scale: f32 per 1x16 }", "own"),
        ("i4 { scale: own per token }", "own"),
        ("i8 { scale: f32 per token from amax / 127 }", "f32"),
        ("i8 { scale: f32 per tensor from amax / 127 }", "f32"),
        ("i8 { scale: f32 per tensor from amax / 127 static }", "f32"),
        ("u8 { zero: u8, scale: f32 per 1x64 }", "f32"),
        ("i8 { zero: i8, scale: f16 per 1x32 }", "f32"),
        ("i4 { zero: i8, scale: bf16 per 1x20 from range / 15 }", "f32"),
        ("i8 { zero: u8, scale: f32 per 1x32 }", "f32"),
        ("e4m3 { scale: own per 1x128 }", "own"),
        ("e4m3 { scale: own per token }", "own"),
        ("e4m3 { scale: f32 per 1x128 }", "f32"),
        ("e4m3fnuz { scale: f32 per token }", "f32"),
        ("e5m2 { scale: f32 per token }", "f32"),
        ("e4m3 { scale: bf16 per tensor static }", "own"),
        ("e4m3 { scale: e8m0 per 1x32 from pow2 above 1.75 }", "own"),
        ("e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }", "own"),
        ("e3m2 { scale: e8m0 per 1x32 from pow2 above 1.875 }", "f32"),
        ("e2m3 { scale: e8m0 per 1x32 from pow2 }", "f32"),
        ("i8 { scale: e8m0 per 1x32 }", "f32"),
        ("u4 { zero: u4, scale: e8m0 per 1x32 }", "own"),
        (
            "e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 static }",
            "own",
        ),
        ("e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 }", "f32"),
        ("e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 }", "own"),
        ("e2m1 { scale: e8m0 per 1x32, scale: f32 per token }", "f32"),
        ("e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor static }", "f32"),
        ("e2m1 { scale: e8m0 per 1x32, scale: f32 per tensor static }", "f32"),
        ("e4m3 { scale: e4m3 per 1x16, scale: own per token }", "own"),
        ("e2m1 { scale: e8m0 per 1x32 from pow2 / 0.25 }", "own"),
        ("e2m1 { scale: e4m3 per 1x16, scale: f32 per 1x64 }", "f32"),
        ("e4m3 { scale: e8m0 per 1x32 from amax / 448, scale: f32 per token }", "own"),
        ("e4m3 { scale: e8m0 per 1x32, scale: divide f32 per token }", "own"),
        ("i8 { zero: i8, scale: e8m0 per 1x64, scale: f32 per token }", "f32"),
        ("e5m2 { scale: f16 per 1x32, scale: u8 per token from amax / 9 }", "f32"),
        ("i8 { scale: e1m3fn per token }", "f32"),
        ("i8 { scale: divide e1m0 per token }", "f32"),
    ];

    fn rows(own: FloatFormat, k: usize, case: u32, state: &mut u64) -> Vec<f32> {
        let mut next = || {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (*state >> 40) as u32
        };
        let value = |random: u32| {
            let unit = f64::from(random) / f64::from(1u32 << 23) - 1.0;
            match case {
                0 => unit * 3.0,
                1 => unit * unit * unit * 1e-6,
                2 => unit * 60000.0,
                3 => f64::from(random % 9) - 4.0, // many ties
                4 => 0.0,
                5 => unit.abs() * 0.3,
                6 => {
                    if random.is_multiple_of(50) {
                        unit * 100.0
                    } else {
                        unit * 0.01
                    }
                }
                7 => unit * 2f64.powi(-126 - (random % 20) as i32), // subnormal in f32
                8 => unit * 1e38,
                9 => unit * 1e-7, // the smallest numbers of f16
                _ => f64::from(random % 255) * 0.5 - 63.5,
            }
        };
        let finite = |x: f64| own.round(x).clamp(-own.max(), own.max()) as f32;
        (0..3 * k).map(|_| finite(value(next()))).collect()
    }

    #[test]
    fn codes_scales_and_zero_points_are_those_of_the_reference() {
        let (k, mut state) = (300, 11u64);
        for (activation, arithmetic) in ACTIVATIONS {
            let text = format!(
                "S {{ weight: i8, scale: f32 per channel, pack: [k, n], activation: {activation}, \
                 arithmetic: {arithmetic} }}"
            );
            let scheme = parse(&text).unwrap();
            let quantiser = scheme.quantiser().unwrap();
            let given = |scale: f64| StaticInput {
                scales: quantiser
                    .scales
                    .iter()
                    .map(|level| match (level.stored, level.divide) {
                        (false, _) => Vec::new(),
                        (true, true) => vec![700.0],
                        (true, false) => vec![scale],
                    })
                    .collect(),
                zeros: vec![3.0],
                ..StaticInput::default()
            };
            for own in [F32, BF16, F16] {
                for case in 0..11 {
                    let given = given([0.0, -1.0].get(case as usize).copied().unwrap_or(0.015625));
                    let x = rows(own, k, case, &mut state);
                    let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                    let expected =
                        quantise_activation(&scheme, quantiser, &exact, k, own, &given).unwrap();
                    let fast = RowQuantiser::new(&scheme, quantiser, &given, own).unwrap();
                    let all = ValueRange::of(&x);
                    for (token, row) in x.chunks(k).enumerate() {
                        let columns = fast.columns(k);
                        let factor = fast.factor(row, all).unwrap();
                        for (group, values) in row.chunks(columns).enumerate() {
                            let first = group * columns;
                            let parameters = fast.parameters(row, (first, &factor), all).unwrap();
                            let mut codes = vec![0.0; values.len()];
                            fast.codes(values, parameters, &mut codes);
                            for (j, code) in codes.iter().enumerate() {
                                let at = token * k + first + j;
                                let ours = (
                                    f64::from(*code),
                                    f64::from(parameters.scale),
                                    f64::from(parameters.zero),
                                );
                                let theirs =
                                    (expected.codes[at], expected.scales[at], expected.zeros[at]);
                                assert!(!ours.0.is_nan() && !ours.1.is_nan(), "{activation}");
                                assert_eq!(
                                    ours,
                                    theirs,
                                    "{activation}, {arithmetic}, x of {own}, case {case}: \
                                     x[{token}, {}] = {}",
                                    first + j,
                                    x[at]
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
