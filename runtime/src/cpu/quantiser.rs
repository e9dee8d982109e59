//! The activation quantiser, one row at a time.
//!
//! In: a row of x in `f32`. Out: the values of its codes, scales and zero points, bit for bit those
//! of [`quantloom_dsl::reference::quantise_activation`]. Scales are chosen by scalar code, once per
//! group or, where a whole row shares one, once per row; the work per element (range, division,
//! rounding) is a plain loop that compilers vectorise. `finest` chooses the finest level's numbers in
//! `f32` where that gives the same, `rounding` rounds.

mod finest;
mod rounding;
#[cfg(test)]
mod tests;

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::reference::{ReferenceError, RoundedArithmetic, StaticInput};
use quantloom_dsl::{Quantiser, ScaleLevel, ScaleRule, ScaleType, Scheme, Ties};

use self::finest::FinestLevel;
use self::rounding::{Rounding, round_away, round_even, round_float};

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
