//! The activation quantiser, one row at a time.
//!
//! In: a row of x in `f32`. Out: the values of its codes, scales and zero points, bit for bit those
//! of [`quantloom_dsl::reference::quantise_activation`]. Scales are chosen by scalar code once per
//! group; the work per element (range, division, rounding) is a plain loop that compilers
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
    /// The only level, if [`Quotient`] chooses its scales.
    quotient: Option<Quotient>,
}

/// A dynamic scale that is the largest magnitude of a group over a number, in `f32`, rounded to the
/// scale's type, or that of a zero point, the range of the group over a number: what most quantisers of groups are.
/// There are many groups, so these are chosen without `f64`.
#[derive(Clone, Copy, Debug)]
struct Quotient {
    divisor: f32,
    number: Rounding,
    /// The smallest and the largest code, if there is a zero point, an integer between them.
    zero: Option<(f32, f32)>,
}

impl Quotient {
    fn of(quantiser: &Quantiser, format: FloatFormat) -> Option<Self> {
        let [level] = &quantiser.scales[..] else { return None };
        let number = match level.number {
            ScaleType::Number(Number::Float(F32)) => Rounding::F32,
            ScaleType::Number(Number::Float(F16)) => Rounding::F16,
            ScaleType::Number(Number::Float(BF16)) => Rounding::Bf16,
            _ => return None,
        };
        let codes = quantiser.code;
        let (divisor, zero) = match (level.rule, quantiser.zero) {
            (ScaleRule::Amax(divisor), None) => (divisor, None),
            (ScaleRule::Range(divisor), Some(zero))
                if !zero.is_float() && zero.min() <= codes.min() && zero.max() >= codes.max() =>
            {
                (divisor, Some((codes.min() as f32, codes.max() as f32)))
            }
            _ => return None,
        };
        let own = level.group.rows == GroupSize::Each(1) && !level.stored && !level.divide;
        let divisor = f64::from_bits(divisor) as f32;
        (own && format == F32).then_some(Self { divisor, number, zero })
    }

    /// The parameters of finite values; `None` if the scale is 0 or beyond the type, where the rule says more.
    #[inline(always)]
    fn parameters(self, values: &[f32]) -> Option<Parameters> {
        let Some((least, most)) = self.zero else {
            return Some(Parameters { scale: self.scale(largest(values))?, zero: 0.0 });
        };
        let ValueRange { low, high } = ValueRange::of(values);
        let scale = self.scale(high - low)?;
        let zero = least - low / scale;
        Some(Parameters { scale, zero: round_even(zero.clamp(least, most)) })
    }

    /// The scale of values of this extent.
    #[inline(always)]
    fn scale(self, extent: f32) -> Option<f32> {
        let scale = extent / self.divisor;
        let scale = match self.number {
            Rounding::F32 => scale,
            Rounding::F16 => f16_to_f32(f32_to_f16(scale)),
            Rounding::Bf16 => bf16_to_f32(f32_to_bf16(scale)),
        };
        (scale > 0.0 && scale < f32::INFINITY).then_some(scale)
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
            quotient: Quotient::of(quantiser, format),
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

    /// Scale and zero point of the group of the finest level that begins at column `first`.
    ///
    /// `row` is the whole row, finite; `all` the range of x (needed if a level spans rows).
    #[inline(always)]
    pub(super) fn parameters(
        &self,
        row: &[f32],
        first: usize,
        all: ValueRange,
    ) -> Result<Parameters, ReferenceError> {
        if let Some(quotient) = self.quotient {
            let end = row.len().min(first + self.columns(row.len()));
            if let Some(parameters) = quotient.parameters(&row[first..end]) {
                return Ok(parameters);
            }
        }
        self.by_levels(row, first, all)
    }

    /// [`Self::parameters`] for any levels.
    fn by_levels(
        &self,
        row: &[f32],
        first: usize,
        all: ValueRange,
    ) -> Result<Parameters, ReferenceError> {
        let mut outer: Option<f64> = None;
        let mut arith = self.base;
        let mut finest = ValueRange::default();
        for (at, level) in self.quantiser.scales.iter().enumerate().rev() {
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
                let extent = if across { all } else { ValueRange::of(&row[columns.clone()]) };
                number.decode(self.choose(level, number, extent, outer))
            };
            if at == 0 && self.quantiser.zero.is_some() && !level.stored {
                let across = level.group.rows == GroupSize::All;
                finest = if across { all } else { ValueRange::of(&row[columns]) };
            }
            arith = arith.with(level.stored_number());
            outer = Some(match (outer, level.divide) {
                (None, false) => value,
                (None, true) => arith.div(1.0, value),
                (Some(outer), false) => arith.mul(outer, value),
                (Some(outer), true) => arith.div(outer, value),
            });
        }
        let scale = outer.unwrap_or(1.0);
        let zero = self.zero_point(first, finest, scale, arith)?;
        Ok(Parameters { scale: scale as f32, zero: zero as f32 })
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
        let exponent_of = |value: f64| (value.to_bits() >> 52) as i32 - 1023;
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
        match self.rounding {
            Rounding::F32 => self.divided(values, parameters, codes, |value| value),
            Rounding::Bf16 => {
                self.divided(values, parameters, codes, |value| bf16_to_f32(f32_to_bf16(value)))
            }
            Rounding::F16 => {
                self.divided(values, parameters, codes, |value| f16_to_f32(f32_to_f16(value)));
            }
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
                _ => f64::from(random % 255) * 0.5 - 63.5,
            }
        };
        (0..3 * k).map(|_| own.round(value(next())) as f32).collect()
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
            let given = StaticInput {
                scales: quantiser
                    .scales
                    .iter()
                    .map(|level| {
                        if !level.stored {
                            Vec::new()
                        } else if level.divide {
                            vec![700.0]
                        } else {
                            vec![0.015625]
                        }
                    })
                    .collect(),
                zeros: vec![3.0],
                ..StaticInput::default()
            };
            for own in [F32, BF16, F16] {
                for case in 0..8 {
                    let x = rows(own, k, case, &mut state);
                    let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                    let expected =
                        quantise_activation(&scheme, quantiser, &exact, k, own, &given).unwrap();
                    let fast = RowQuantiser::new(&scheme, quantiser, &given, own).unwrap();
                    let all = ValueRange::of(&x);
                    for (token, row) in x.chunks(k).enumerate() {
                        let columns = fast.columns(k);
                        for (group, values) in row.chunks(columns).enumerate() {
                            let first = group * columns;
                            let parameters = fast.parameters(row, first, all).unwrap();
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
