//! Quantising: how scales and zero points are chosen and how codes are rounded, in the scheme's
//! declared arithmetic. Weights and activations share every step.

use std::collections::BTreeMap;

use super::pack::{elements, position};
use super::{PlainCodes, ReferenceError};
use crate::format::{BF16, F16, F32, FloatFormat, Number, Overflow, exp2, floor_log2};
use crate::layout::{Component, Granularity, GroupSize, Index, Shape};
use crate::scheme::{
    Arithmetic, Code, Group, ScaleLevel, ScaleRule, ScaleType, Scheme, ShiftLevel, Ties, WeightCode,
};

/// The arithmetic of tensor libraries: each operation in f32, then rounded to the tensor's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundedArithmetic(FloatFormat);

impl RoundedArithmetic {
    /// The declared arithmetic on a tensor of type `own`.
    pub fn new(arithmetic: Arithmetic, own: FloatFormat) -> Self {
        match arithmetic {
            Arithmetic::F32 => Self(F32),
            Arithmetic::InputDtype => Self(own),
        }
    }

    /// The type in which a value of this arithmetic and one of `number` are combined: the wider
    /// one, and f32 for the two 16-bit types.
    pub fn with(self, number: Option<Number>) -> Self {
        match number {
            Some(Number::Float(format)) if format == F32 => Self(F32),
            Some(Number::Float(format))
                if (format == F16 || format == BF16) && format != self.0 =>
            {
                Self(F32)
            }
            _ => self,
        }
    }

    /// `a / b`.
    pub fn div(self, a: f64, b: f64) -> f64 {
        self.round(f64::from(a as f32 / b as f32))
    }

    /// `a / scale`, where `scale` quantises `a`. A scale of 0 (given, stored as an integer, or a
    /// product of levels that underflows) is replaced by the largest f32: every code times that
    /// scale is 0, and 0 / 0 must not be NaN.
    pub fn over(self, a: f64, scale: f64) -> f64 {
        self.div(a, if scale == 0.0 { F32.max() } else { scale })
    }

    /// `a * b`.
    pub fn mul(self, a: f64, b: f64) -> f64 {
        self.round(f64::from(a as f32 * b as f32))
    }

    /// `a + b`.
    pub fn add(self, a: f64, b: f64) -> f64 {
        self.round(f64::from(a as f32 + b as f32))
    }

    /// Rounds to the type.
    pub fn round(self, x: f64) -> f64 {
        self.0.round(x)
    }
}

/// Smallest and largest of the values that share a scale, 0 included.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueRange {
    low: f64,
    high: f64,
}

impl ValueRange {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        values.fold(Self::default(), |extent, value| Self {
            low: extent.low.min(value),
            high: extent.high.max(value),
        })
    }

    fn amax(self) -> f64 {
        self.high.max(-self.low)
    }
}

/// The codes that a scale level applies to.
pub(super) struct Codes {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Codes {
    pub(super) fn of(weight: &WeightCode) -> Self {
        let (low, high) = weight.range();
        Self { low, high }
    }
}

/// Chooses one scale: its stored code in `number`.
///
/// `outer` is the product of the coarser levels, for which the finer level must compensate. A level
/// that divides stores the reciprocal of its factor.
pub(super) fn choose_scale(
    level: &ScaleLevel,
    number: Number,
    extent: ValueRange,
    codes: &Codes,
    arith: RoundedArithmetic,
    outer: Option<f64>,
) -> u32 {
    let wide = arith.with(Some(Number::Float(F32)));
    let within = |factor: f64| outer.map_or(factor, |outer| wide.over(factor, outer));
    let factor = match level.rule {
        ScaleRule::Pow2 { .. } | ScaleRule::Pow2Over(_) => {
            choose_power(level.rule, within(extent.amax()), codes, arith)
        }
        ScaleRule::Range(divisor) => {
            let range = arith.add(extent.high, -extent.low);
            within(arith.div(range, f64::from_bits(divisor)))
        }
        // Divided the other way round, so that only the stored reciprocal is rounded.
        ScaleRule::Amax(divisor) if level.divide && outer.is_none() => {
            return stored_divisor(number, arith.div(f64::from_bits(divisor), extent.amax()));
        }
        ScaleRule::Amax(divisor) => within(arith.div(extent.amax(), f64::from_bits(divisor))),
    };
    if level.divide {
        return stored_divisor(number, arith.div(1.0, factor));
    }
    let code = level.encode(number, factor);
    if level.decode(number, code) != 0.0 {
        return code;
    }
    // A group of zeros: the scale must not be 0, since codes are divided by it. compressed-tensors
    // stores the smallest step of the type above 1.
    let epsilon = match number {
        Number::Float(format) if format.bits() <= 16 => format.epsilon(),
        _ => arith.0.epsilon(),
    };
    level.encode(number, epsilon)
}

/// The code of a divisor; if all values are 0 there is no reciprocal, and the divisor is 1 (or the
/// type's smallest number above 1, if the type has no 1).
fn stored_divisor(number: Number, divisor: f64) -> u32 {
    let usable = divisor.is_finite() && number.round(divisor) != 0.0;
    number.encode(if usable { divisor } else { number.one() }, Overflow::Saturate)
}

/// The power of two of a rule: `2^(floor(log2(amax)) - emax)`, after a mantissa of at least a
/// threshold has been rounded up to 2. Source: OCP MX v1.0, section 6.3; the thresholds are those
/// of the quantising software.
fn choose_power(rule: ScaleRule, amax: f64, codes: &Codes, arith: RoundedArithmetic) -> f64 {
    let exponent = match rule.power(codes.high.max(-codes.low)) {
        Some(power) if amax != 0.0 && amax.is_finite() => {
            let floor = floor_log2(amax);
            let up = power.above.is_some_and(|above| amax / exp2(floor) >= above);
            (floor + i32::from(up) - power.exponent).clamp(-127, 127)
        }
        _ => -127,
    };
    // In f16 the smallest powers underflow to 0; quantisers replace that 0 by 1.
    let scale = exp2(exponent);
    if arith.round(scale) == 0.0 { 1.0 } else { scale }
}

/// Rounds `value`, already divided by its scale, to a code's value.
pub(super) fn round_code(value: f64, codes: &Codes, float: Option<FloatFormat>, ties: Ties) -> f64 {
    let value = value.clamp(codes.low, codes.high);
    match (float, ties) {
        (Some(format), _) => format.decode(format.encode(value, Overflow::Saturate)),
        (None, Ties::Even) => value.round_ties_even(),
        (None, Ties::Away) => value.round(),
    }
}

/// The zero point that maps the smallest value to the smallest code.
pub(super) fn choose_zero(
    extent: ValueRange,
    scale: f64,
    codes: &Codes,
    arith: RoundedArithmetic,
) -> f64 {
    let zero = arith.add(codes.low, -arith.over(extent.low, scale));
    zero.clamp(codes.low, codes.high)
}

/// Quantises a weight [E, N, K] whose elements are values of `own`.
///
/// Scales are chosen by each level's rule, coarsest level first; codes are clamped, then rounded to
/// nearest even. A scheme with a group index gets the trivial index, `k / columns`, with the
/// columns of the largest group: an index names a group of every level.
///
/// # Errors
/// [`ReferenceError::Length`] if `w` is not E * N * K values.
pub fn quantise(
    scheme: &Scheme,
    shape: Shape,
    w: &[f64],
    own: FloatFormat,
    bias: Option<&[f64]>,
) -> Result<PlainCodes, ReferenceError> {
    let expected = shape.experts * shape.n * shape.k;
    if w.len() as u64 != expected {
        let found = w.len() as u64;
        return Err(ReferenceError::Length { what: "the weight", expected, found });
    }
    let mut quantiser = WeightQuantiser {
        scheme,
        shape,
        values: w.to_vec(),
        arith: RoundedArithmetic::new(scheme.arithmetic, own),
        codes: Codes::of(&scheme.weight),
        components: BTreeMap::new(),
    };
    quantiser.index();
    quantiser.shifts();
    quantiser.scales();
    quantiser.zero_points();
    quantiser.bias(bias)?;
    quantiser.codes();
    quantiser.inputs();
    Ok(PlainCodes { shape, components: quantiser.components })
}

/// The shift that a group wants, or 0 if the finest level has no number of its sign: the coarser
/// levels have the sign that is written.
fn within_reach(levels: &[ShiftLevel], low: f64) -> f64 {
    let Some((finest, coarser)) = levels.split_first() else { return low };
    let offset = f64::from(finest.offset);
    let (least, most) = (finest.number.min() - offset, finest.number.max() - offset);
    let (least, most) = if finest.negative { (-most, -least) } else { (least, most) };
    let negative = coarser.iter().filter(|level| level.negative).count() % 2 == 1;
    let factor = if negative { -low } else { low };
    let reached = if factor < 0.0 { least < 0.0 } else { most > 0.0 };
    if reached { low } else { 0.0 }
}

/// The largest magnitude that integers reach on each side of 0 that they have numbers on; 1 of floats,
/// which have fractions.
fn most_steps(level: &ShiftLevel) -> f64 {
    let offset = f64::from(level.offset);
    let (least, most) = (level.number.min() - offset, level.number.max() - offset);
    match level.number {
        Number::Float(_) | Number::E8m0 => 1.0,
        _ if least < 0.0 && most > 0.0 => most.min(-least),
        _ => most.max(-least).max(1.0),
    }
}

struct WeightQuantiser<'a> {
    scheme: &'a Scheme,
    shape: Shape,
    values: Vec<f64>,
    arith: RoundedArithmetic,
    codes: Codes,
    components: BTreeMap<Component, Vec<u32>>,
}

impl WeightQuantiser<'_> {
    fn granularity(group: Group) -> Granularity {
        Granularity { bits: 32, rows: group.rows, cols: group.cols }
    }

    /// Position of the group of a weight: by the group index, if the scheme has one.
    fn at(&self, group: Group, mut index: Index) -> usize {
        if let (GroupSize::Each(columns), Some(number)) = (group.cols, self.scheme.index) {
            let column = index.e * self.shape.k + index.k;
            let named = number.decode(self.components[&Component::Index][column as usize]);
            index.k = named as u64 * u64::from(columns);
        }
        position(Self::granularity(group), self.shape, index)
    }

    /// One weight of each group, in the order of the groups; any weight for a group without
    /// columns.
    fn members(&self, group: Group) -> Vec<Index> {
        let starts = elements(Self::granularity(group), self.shape);
        match group.cols {
            GroupSize::Each(columns) if self.scheme.index.is_some() => {
                let (columns, spread) = (u64::from(columns), self.indexed_columns());
                let last = self.shape.k - 1;
                let k = |start: u64| (start / columns).saturating_mul(spread).min(last);
                starts.map(|start| Index { k: k(start.k), ..start }).collect()
            }
            _ => starts.collect(),
        }
    }

    /// Columns of a group of the trivial index: those of the largest group of any component.
    fn indexed_columns(&self) -> u64 {
        let groups = self.scheme.scales.iter().map(|scale| scale.group);
        let groups = groups.chain(self.scheme.zero.map(|zero| zero.group));
        let groups = groups.chain(self.scheme.shifts.iter().map(|shift| shift.group));
        let columns = groups.filter_map(|group| match group.cols {
            GroupSize::Each(columns) => Some(u64::from(columns)),
            GroupSize::All => None,
        });
        columns.max().unwrap_or(u64::MAX)
    }

    /// The value range of every group.
    fn extents(&self, group: Group) -> Vec<ValueRange> {
        let granularity = Self::granularity(group);
        let (rows, cols) = granularity.elements(self.shape);
        let mut extents = vec![ValueRange::default(); (self.shape.experts * rows * cols) as usize];
        for (index, value) in indices(self.shape).zip(&self.values) {
            let extent = &mut extents[self.at(group, index)];
            extent.low = extent.low.min(*value);
            extent.high = extent.high.max(*value);
        }
        extents
    }

    /// Min-style formats: the shift is the smallest value of a group of the finest level, so that the
    /// rest is not negative. The coarsest level is chosen first, and is not negative before its sign.
    fn shifts(&mut self) {
        let levels = &self.scheme.shifts;
        let Some(finest) = levels.first() else { return };
        let count = |group: Group| {
            let (rows, cols) = Self::granularity(group).elements(self.shape);
            (self.shape.experts * rows * cols) as usize
        };
        let mut lows = vec![f64::INFINITY; count(finest.group)];
        for (index, value) in indices(self.shape).zip(&self.values) {
            let low = &mut lows[self.at(finest.group, index)];
            *low = low.min(*value);
        }
        let wide = self.arith.with(Some(Number::Float(F32)));
        for (level, shift) in levels.iter().enumerate().skip(1).rev() {
            let mut most = vec![0.0f64; count(shift.group)];
            for index in indices(self.shape) {
                let low = within_reach(levels, lows[self.at(finest.group, index)]);
                let most = &mut most[self.at(shift.group, index)];
                *most = most.max(low.abs());
            }
            let steps = levels[..level].iter().map(most_steps).product();
            let codes = self.members(shift.group).into_iter().zip(most).map(|(index, most)| {
                let factor = self.arith.div(most, steps);
                let factor = match self.shift(level + 1, index) {
                    Some(outer) => wide.over(factor, outer.abs()),
                    None => factor,
                };
                shift.encode(if shift.negative { -factor } else { factor })
            });
            let codes = codes.collect();
            self.components.insert(Component::Shift(level as u8), codes);
        }
        let codes = self.members(finest.group).into_iter().zip(&lows).map(|(index, low)| {
            finest.encode(self.shift(1, index).map_or(*low, |outer| wide.over(*low, outer)))
        });
        let codes = codes.collect();
        self.components.insert(Component::Shift(0), codes);
        let mut values = std::mem::take(&mut self.values);
        for (index, value) in indices(self.shape).zip(&mut values) {
            *value -= self.shift(0, index).unwrap_or(0.0);
        }
        self.values = values;
    }

    /// The product of the shift levels from `first` on, exactly; `None` if there are none.
    fn shift(&self, first: usize, index: Index) -> Option<f64> {
        let levels = self.scheme.shifts.iter().enumerate().skip(first);
        let factors = levels.map(|(level, shift)| {
            let codes = &self.components[&Component::Shift(level as u8)];
            shift.decode(codes[self.at(shift.group, index)])
        });
        factors.reduce(|product, factor| product * factor)
    }

    fn scales(&mut self) {
        let levels = self.scheme.scales.len();
        for level in (0..levels).rev() {
            let scale = &self.scheme.scales[level];
            let Some(number) = scale.stored_number() else { continue };
            let coarser = level + 1 < levels;
            let arith = self.arith;
            let starts = self.members(scale.group);
            let extents = self.extents(scale.group);
            let codes = starts.iter().zip(extents).map(|(index, extent)| {
                let outer = coarser.then(|| self.factor(level + 1, *index));
                choose_scale(scale, number, extent, &self.codes, arith, outer)
            });
            let codes = codes.collect();
            self.components.insert(Component::Scale(level as u8), codes);
        }
    }

    /// The product of the levels from `first` on, as the quantiser computes it.
    fn factor(&self, first: usize, index: Index) -> f64 {
        let mut arith = self.arith;
        let mut factor = None;
        for (level, scale) in self.scheme.scales.iter().enumerate().skip(first) {
            let ScaleType::Number(number) = scale.number else { continue };
            let codes = &self.components[&Component::Scale(level as u8)];
            let at = self.at(scale.group, index);
            let value = scale.decode(number, codes[at]);
            arith = arith.with(Some(number));
            factor = Some(match (factor, scale.divide) {
                (None, false) => value,
                (None, true) => arith.div(1.0, value),
                (Some(product), false) => arith.mul(product, value),
                (Some(product), true) => arith.div(product, value),
            });
        }
        factor.unwrap_or(1.0)
    }

    /// The arithmetic after every level's type has been combined.
    fn joined(&self) -> RoundedArithmetic {
        let numbers = self.scheme.scales.iter().map(ScaleLevel::stored_number);
        numbers.fold(self.arith, RoundedArithmetic::with)
    }

    fn zero_points(&mut self) {
        let Some(zero) = self.scheme.zero else { return };
        let extents = self.extents(zero.group);
        let starts = self.members(zero.group);
        let stored = starts.iter().zip(extents).map(|(index, extent)| {
            let scale = self.factor(0, *index);
            let value = choose_zero(extent, scale, &self.codes, self.joined());
            zero.kind.encode(value)
        });
        let stored = stored.collect();
        self.components.insert(Component::Zero, stored);
    }

    fn index(&mut self) {
        let Some(number) = self.scheme.index else { return };
        let columns = self.indexed_columns();
        let group = |k: u64| number.encode((k / columns) as f64, Overflow::Saturate);
        let codes = (0..self.shape.experts).flat_map(|_| (0..self.shape.k).map(group)).collect();
        self.components.insert(Component::Index, codes);
    }

    fn bias(&mut self, bias: Option<&[f64]>) -> Result<(), ReferenceError> {
        let Some(number) = self.scheme.bias else { return Ok(()) };
        let expected = self.shape.experts * self.shape.n;
        let codes = match bias {
            None => vec![0; expected as usize],
            Some(bias) if bias.len() as u64 == expected => {
                bias.iter().map(|value| number.encode(*value, Overflow::Special)).collect()
            }
            Some(bias) => {
                let found = bias.len() as u64;
                return Err(ReferenceError::Length { what: "the bias", expected, found });
            }
        };
        self.components.insert(Component::Bias, codes);
        Ok(())
    }

    fn codes(&mut self) {
        let zeros = self.components.get(&Component::Zero).cloned();
        let arith = self.joined();
        let code = |(index, value): (Index, &f64)| {
            let mut scaled = arith.over(*value, self.factor(0, index));
            if let (Some(zero), Some(codes)) = (self.scheme.zero, &zeros) {
                let at = self.at(zero.group, index);
                scaled = arith.add(scaled, zero.kind.decode(codes[at]));
            }
            self.encode(scaled)
        };
        let codes = indices(self.shape).zip(&self.values).map(code).collect();
        self.components.insert(Component::Code, codes);
    }

    fn encode(&self, scaled: f64) -> u32 {
        let offset = f64::from(self.scheme.weight.offset);
        match &self.scheme.weight.code {
            Code::Number(number) => {
                let float = match number {
                    Number::Float(format) => Some(*format),
                    _ => None,
                };
                let value = round_code(scaled, &self.codes, float, Ties::Even);
                number.encode(value + offset, Overflow::Saturate)
            }
            Code::Codebook(values) => {
                let distance =
                    |bits: &u32| (f64::from(f32::from_bits(*bits)) - offset - scaled).abs();
                let nearest = (0u32..)
                    .zip(values)
                    .min_by(|(_, a), (_, b)| distance(a).total_cmp(&distance(b)));
                nearest.map_or(0, |(code, _)| code)
            }
        }
    }

    /// Static input scales and prescales cannot be derived from weights: 1, to be set by
    /// calibration, or the smallest positive number of a type without 1.
    fn inputs(&mut self) {
        let one = |number: Number| number.encode(number.one(), Overflow::Saturate);
        if let Some(number) = self.scheme.prescale {
            let one = one(number);
            self.components.insert(Component::Prescale, vec![one; self.shape.k as usize]);
        }
        let Some(quantiser) = self.scheme.quantiser() else { return };
        let count = |granularity: Granularity| {
            let (rows, cols) = granularity.elements(self.shape);
            (self.shape.experts * rows * cols) as usize
        };
        for level in 0..quantiser.scales.len() {
            let component = Component::InputScale(level as u8);
            let stored = quantiser.scales[level].stored_number();
            if let (Some(granularity), Some(number)) = (self.scheme.granularity(component), stored)
            {
                self.components.insert(component, vec![one(number); count(granularity)]);
            }
        }
        if let Some(granularity) = self.scheme.granularity(Component::InputZero) {
            self.components.insert(Component::InputZero, vec![0; count(granularity)]);
        }
    }
}

fn indices(shape: Shape) -> impl Iterator<Item = Index> {
    (0..shape.experts).flat_map(move |e| {
        (0..shape.n).flat_map(move |n| (0..shape.k).map(move |k| Index { e, n, k }))
    })
}
