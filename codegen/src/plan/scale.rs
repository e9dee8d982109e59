//! The scale plan: where each level of scales, the zero point and the shift are applied.
//!
//! The result is a real number, so a scale may be applied wherever it commutes to: to the weight, to the sum
//! of a segment, or in the epilogue. Scales that are constant along K are applied in the epilogue. Scales that
//! change along K multiply the sums of segments, unless dequantisation multiplies with them ([`FoldedScale`]),
//! the matrix instruction reads them ([`ScalePlacement::Product`]), or the product has no separate sums: then they
//! multiply the weight. Likewise the finest scale of x multiplies sums, unless the kernel that quantises x can multiply
//! each code with it exactly ([`ComputePlan::folds_input`]).
//! Zero point, offset and shift are one term per segment, the zero-point correction
//! `shift - scale * zero`, times the segment's sum of x; where weights are rounded after their scale, the term is added to
//! each weight.

use std::ops::RangeInclusive;

use quantloom_dsl::format::{BF16, FloatFormat, NUMBER_BF16, NUMBER_F16, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Activation, Code, Quantiser, ScaleLevel, ScaleType, Scheme};

use super::compute::ComputePlan;
use super::cost::costs;
use super::dequant::DequantPlan;
use super::native::{chunk_columns, lane_columns};
use super::operand::OperandType;
use crate::target::{Class, Half};

/// Columns of groups of x whose scales lanes of a warp find together, with 8 columns a lane: a warp has 32 lanes or more, and
/// what stands for a warp in a shader has 16.
fn groups_of_lanes(class: Class) -> RangeInclusive<u32> {
    8..=if class == Class::Shader { 128 } else { 256 }
}

/// Scales of groups of up to so many columns multiply weights, whatever the chunk: a group is two steps of an instruction of
/// 16 bits, whose sums cost as much to scale as to add.
const SHORT: u32 = 32;

/// Powers of two of last steps that are worth scales of their own: each takes two multiplications for every scale, and saves
/// one for every two codes.
const MOST_FACTORS: usize = 2;
/// The largest scales in parts that are also times the power of two of a last step: those of f16 times a byte. Weights are
/// 2^-38 of their size then, so that those of the smallest f16 are still numbers of bf16.
const MOST_SCALE: f64 = 16_777_216.0;
/// The power of two that what makes such a scale may be larger: integers of a byte are 2^-6 times what they are
/// (`schedule::dequantise`).
const HEADROOM: i32 = 8;

/// Where a scale is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalePlacement {
    /// To each element: of w during dequantisation, of x when x is quantised.
    Element,
    /// To the sum over a segment of columns.
    Segment,
    /// To each result, in the epilogue.
    Epilogue,
    /// To the operand, by the matrix instruction, which reads the scale's code.
    Product,
}

/// The plan of one level of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelPlan {
    /// Where the level is applied.
    pub placement: ScalePlacement,
    /// Whether the level divides.
    pub divide: bool,
}

/// Where scales, zero points and shifts are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePlan {
    /// Per scale level of the weight, finest first.
    pub levels: Vec<LevelPlan>,
    /// Per scale level of a quantised activation.
    pub input: Vec<LevelPlan>,
    /// Columns of a segment: columns that share all factors and terms of their sum. `None` for the whole
    /// row.
    pub segment: Option<u32>,
    /// Whether products have a zero-point correction, for the zero point, the shift, or the constant
    /// that the sequence adds.
    pub corrects: bool,
    /// Whether the correction is stored per group, and is not one number for the whole weight.
    pub corrects_by_group: bool,
    /// The dequantised elements are `2^exponent` too large, for which a scale compensates.
    pub exponent: i32,
    /// Whether columns are sorted by group and x is gathered.
    pub sorts_columns: bool,
    /// The scale that dequantisation multiplies with, if any.
    pub folded: Option<FoldedScale>,
}

/// Scales that multiply weights during dequantisation. If a scale is as large as the
/// operand's largest numbers (e8m0 in bf16), larger products are infinite; if a scale is below 2^-124 (e8m0 with e4m3 in
/// bf16), exact products lose at most 2^-134. In f16 scales and terms are those of a range
/// ([`Problem::param_ranges`](crate::schedule::Problem::param_ranges)), so that no weight is infinite; weights below 2^-14 are rounded to
/// multiples of 2^-24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldedScale {
    /// How products are rounded to the operand.
    pub rounding: WeightRounding,
    /// Columns that share all scales and terms.
    pub columns: u32,
    /// The last dequantisation step, a multiplication with a power of two, multiplies with the scale
    /// times 2^exponent instead; `None` if the scale has a step of its own (but for
    /// powers of two of a range: `schedule::Problem::power_of_range`).
    pub exponent: Option<i32>,
    /// The elements are then this many powers of two too small.
    pub exponent_deficit: i32,
}

/// How weights are rounded to the operand after they are multiplied with their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightRounding {
    /// Every product is a number of the operand's type.
    Exact,
    /// The scale is of the operand's type: one multiplication rounds once.
    Once,
    /// The scale has more digits: it is the sum of two numbers of the operand's type, as is the term that is added to the
    /// weight, if there is one.
    InParts,
    /// The scale is rounded to the operand's type before, as is the term that is added to the weight, if there is one.
    Twice,
}

impl ScalePlan {
    /// Plans the scales of a scheme for one product.
    pub fn new(
        scheme: &Scheme,
        activation: &Activation,
        (compute, class): (&ComputePlan, Class),
        dequant: &DequantPlan,
    ) -> Self {
        let (add, exponent) = dequant.encoding();
        let decodes = compute.product.weight == OperandType::F32 && class == Class::Lanes;
        let by_segment = if decodes { ScalePlacement::Element } else { ScalePlacement::Segment };
        // A shift is added after the scales: a per-channel scale would multiply it too.
        let at_the_end =
            if scheme.shifts.is_empty() { ScalePlacement::Epilogue } else { by_segment };
        let placement =
            |cols: GroupSize, by_segment: ScalePlacement, at_the_end: ScalePlacement| match cols {
                GroupSize::All => at_the_end,
                GroupSize::Each(_) => by_segment,
            };
        let scales = compute.product.scaling().is_some();
        let by_segment = if scales { ScalePlacement::Product } else { by_segment };
        let level = |scale: &ScaleLevel| LevelPlan {
            placement: placement(scale.group.cols, by_segment, at_the_end),
            divide: scale.divide,
        };
        let folds_input = compute.folds_input;
        let x_by_segment = match (scales, folds_input) {
            (true, _) => ScalePlacement::Product,
            (false, true) => ScalePlacement::Element,
            (false, false) => ScalePlacement::Segment,
        };
        let input = match activation {
            Activation::Float(_) => Vec::new(),
            Activation::Quantised(quantiser) => {
                let level = |scale: &ScaleLevel| LevelPlan {
                    placement: placement(scale.group.cols, x_by_segment, ScalePlacement::Epilogue),
                    divide: scale.divide,
                };
                quantiser.scales.iter().map(level).collect()
            }
        };
        let corrects_by_group = scheme.zero.is_some() || !scheme.shifts.is_empty();
        let mut levels: Vec<LevelPlan> = scheme.scales.iter().map(level).collect();
        let lanes = Lanes {
            columns: lane_columns(&compute.product, class),
            chunk: compute.rounds_weights.then(|| chunk_columns(dequant, &compute.product, class)),
            in_range: compute.scales_in_range,
        };
        let folded = FoldedScale::new(scheme, &levels, (dequant, lanes));
        if folded.is_some() {
            let folded =
                levels.iter_mut().filter(|level| level.placement == ScalePlacement::Segment);
            folded.for_each(|level| level.placement = ScalePlacement::Element);
        }
        Self {
            levels,
            input,
            segment: match scales {
                true => None,
                false => common(
                    weight_groups(scheme)
                        .filter(|_| folded.is_none())
                        .chain(input_groups(activation).filter(|_| !folds_input)),
                ),
            },
            folded,
            corrects: corrects_by_group || add != 0,
            corrects_by_group,
            exponent,
            sorts_columns: scheme.index.is_some(),
        }
    }
}

impl ScalePlan {
    /// Whether weights are rounded after they are multiplied with their scales, whatever the schedule.
    pub fn rounds_weights(&self) -> bool {
        self.folded.is_some_and(|folded| folded.rounding != WeightRounding::Exact)
    }

    /// Whether scales multiply weights only since they are known to be in the range that the operand takes
    /// ([`ComputePlan::scales_in_range`]).
    pub fn is_of_range(&self, dequant: &DequantPlan) -> bool {
        self.rounds_weights() && dequant.operand == OperandType::F16
    }

    /// Instructions per 1,000 codes of a step in which scales multiply weights, beside those of the dequantisation sequence.
    pub(super) fn own_step(&self, dequant: &DequantPlan, class: Class) -> u32 {
        let own = self.folded.is_some_and(|folded| folded.exponent.is_none());
        let half = match dequant.operand {
            OperandType::F16 => Half::F16,
            _ => Half::Bf16,
        };
        // Two codes a multiplication.
        if own { 500 * costs(class).half(half).unwrap_or(0) } else { 0 }
    }

    /// Of how many numbers of the operand's type these scales, and terms of weights, are sums, if lanes make such numbers of
    /// parameters that have more digits; `None` if the parameters are such numbers.
    pub fn parts(&self) -> Option<u32> {
        match self.folded?.rounding {
            WeightRounding::Exact | WeightRounding::Once => None,
            WeightRounding::InParts => Some(2),
            WeightRounding::Twice => Some(1),
        }
    }

    /// Whether static scales of all of x are part of the per-channel scale: the product's instruction reads the other
    /// scales of x.
    pub fn input_in_channel_scale(&self) -> bool {
        let placed =
            |placement: ScalePlacement| self.input.iter().any(|level| level.placement == placement);
        placed(ScalePlacement::Product) && placed(ScalePlacement::Epilogue)
    }
}

/// The columns of a product's lanes, as far as scales on weights depend on them.
struct Lanes {
    /// The most adjacent columns of a lane: they share a scale.
    columns: u32,
    /// If scales may multiply weights with a rounding: columns of a chunk of the layout for sums over whole rows.
    chunk: Option<u32>,
    /// [`ComputePlan::scales_in_range`].
    in_range: bool,
}

impl FoldedScale {
    /// The scales that dequantisation can multiply with: those that change along K, one per row. Exactly, if there is one of a
    /// type whose product with any code is a number of the operand's type; or, if groups are short, with a rounding.
    fn new(
        scheme: &Scheme,
        levels: &[LevelPlan],
        (dequant, lanes): (&DequantPlan, Lanes),
    ) -> Option<Self> {
        let segments = scheme.scales.iter().zip(levels);
        let segments = segments.filter(|(_, level)| level.placement == ScalePlacement::Segment);
        let segments: Vec<(&ScaleLevel, &LevelPlan)> = segments.collect();
        let of_rows = segments.iter().all(|(scale, _)| scale.group.rows == GroupSize::Each(1));
        if segments.is_empty() || !of_rows || scheme.index.is_some() {
            return None;
        }
        let columns = common(weight_groups(scheme))?;
        // Schedules multiply elements of 16 bits, two at a time.
        let Number::Float(operand) = dequant.operand.number() else { return None };
        // A lane's columns of a step share a scale.
        let whole = columns.is_power_of_two() && columns >= lanes.columns;
        if operand.bits() != 16 || !whole {
            return None;
        }
        let has_terms = scheme.zero.is_some() || !scheme.shifts.is_empty();
        let alone = match segments[..] {
            [(scale, level)] if !has_terms => (!level.divide).then_some(scale.number),
            _ => None,
        };
        let number = match alone {
            Some(ScaleType::Number(number)) => Some(number),
            Some(ScaleType::InputDtype) | None => None,
        };
        let exact = number.and_then(|number| Self::exact((number, columns), (dequant, operand)));
        // A step of its own costs more than scaled sums of long groups.
        let in_chunk = lanes.chunk.is_some_and(|chunk| columns < chunk);
        let exact = exact.filter(|exact| {
            exact.exponent.is_some() || columns <= SHORT || in_chunk || operand == BF16
        });
        let largest = largest(segments.iter().map(|(scale, _)| *scale));
        // Powers of two have a range in which they are no numbers of f16.
        let power = |(scale, _): &(&ScaleLevel, _)| scale.number == ScaleType::Number(Number::E8m0);
        let powers = alone.is_none() && segments.iter().any(power);
        let rounded = || Self::rounded((number, largest, columns), (dequant, lanes));
        exact.or_else(|| rounded().filter(|this| !powers || this.rounding != WeightRounding::Twice))
    }

    /// A scale whose product with any code is a number of the operand's type.
    fn exact(
        (scale, columns): (Number, u32),
        (dequant, operand): (&DequantPlan, FloatFormat),
    ) -> Option<Self> {
        let Code::Number(Number::Float(code)) = dequant.weight.code else { return None };
        let Magnitudes { mantissa, smallest, largest } = Magnitudes::of(scale, operand)?;
        let fits = products_fit(code, mantissa, operand);
        let room = |most: f64| (operand.max() / most).log2().floor() as i32;
        let (_, decoded) = dequant.encoding();
        let (exponent, exponent_deficit) = match (largest, dequant.factor()) {
            (Some(most), Some(factor)) => {
                let exponent = factor.min(room(most));
                (Some(exponent), factor - exponent)
            }
            // The step of its own makes good what decoding leaves codes too small, as far as the operand holds the scale.
            (Some(most), None) => (None, -room(most).min(-decoded)),
            (None, _) => (None, 0),
        };
        // The smallest and the largest product are numbers of the operand too; of powers of two the smallest loses half of the
        // operand's smallest.
        let unit = match exponent {
            Some(_) => -exponent_deficit,
            None => decoded - exponent_deficit,
        };
        let held = largest.is_none_or(|most| {
            least(code) + smallest + unit >= least(operand)
                && code.max() * most * 2f64.powi(unit) <= operand.max()
        });
        let rounding = WeightRounding::Exact;
        (fits && held).then_some(Self { rounding, columns, exponent, exponent_deficit })
    }

    /// Scales in bf16, which has the range of f32: what underflows in a product is as small as in f32. In f16 those that are
    /// known to be no larger than it takes. `None` unless groups are
    /// shorter than a chunk, or in bf16 short ([`SHORT`]), and the operand holds all codes. `scale` is the only parameter of w along
    /// K, if there is only one, and `largest` no less than any scale.
    fn rounded(
        (scale, largest, columns): (Option<Number>, Option<f64>, u32),
        (dequant, lanes): (&DequantPlan, Lanes),
    ) -> Option<Self> {
        let in_chunk = lanes.chunk.is_some_and(|chunk| columns < chunk);
        let (add, decoded) = dequant.encoding();
        let held = !dequant.rounds() && add == 0;
        if dequant.operand == OperandType::F16 {
            let rounding = match scale {
                Some(NUMBER_F16 | NUMBER_BF16) => WeightRounding::Once,
                // A scale below f16's smallest number is 0: then all its weights are to be less than half of that.
                Some(Number::E8m0) if dequant.largest() <= 1.0 => WeightRounding::Once,
                Some(Number::E8m0) => return None,
                _ => WeightRounding::Twice,
            };
            // Weights are as they should be: smaller ones would lose digits.
            let this = Self { rounding, columns, exponent: None, exponent_deficit: decoded };
            // Scales make good what decoding leaves codes too small; too large ones would leave them too small themselves.
            let held = held && decoded <= 0;
            return (lanes.in_range && in_chunk && held).then_some(this);
        }
        let short = in_chunk || lanes.chunk.is_some() && columns <= SHORT;
        let held = held && dequant.operand == OperandType::Bf16;
        let rounding = match scale {
            Some(NUMBER_BF16) => WeightRounding::Once,
            _ => WeightRounding::InParts,
        };
        // Scales in parts that are times a power of two as large as bf16 takes leave decoding one step less.
        let factors = dequant.factors().filter(|factors| factors.len() <= MOST_FACTORS);
        let factor = factors.filter(|_| rounding == WeightRounding::InParts).map(|of| of[0]);
        let most = largest.filter(|&largest| largest <= MOST_SCALE);
        let exponent = factor.zip(most).map(|(factor, largest)| {
            (factor, factor.min((BF16.max() / largest).log2().floor() as i32 - HEADROOM))
        });
        let exponent_deficit = exponent.map_or(0, |(factor, exponent)| factor - exponent);
        let exponent = exponent.map(|(_, exponent)| exponent);
        (short && held).then_some(Self { rounding, columns, exponent, exponent_deficit })
    }
}

/// A product of levels of scales that is no smaller than any of them; `None` if one divides or has the type of x.
fn largest<'s>(levels: impl IntoIterator<Item = &'s ScaleLevel>) -> Option<f64> {
    levels.into_iter().try_fold(1f64, |product, level| {
        let ScaleType::Number(number) = level.number else { return None };
        let ends = [number.min(), number.max()].map(|end| (end - f64::from(level.offset)).abs());
        (!level.divide).then_some(product * ends[0].max(ends[1]))
    })
}

/// The scales of a type that an operand holds, times any power of two.
struct Magnitudes {
    /// Significant bits without the leading one.
    mantissa: u8,
    /// The exponent of the smallest scale.
    smallest: i32,
    /// The largest scale; `None` if scales have the exponents of the operand.
    largest: Option<f64>,
}

impl Magnitudes {
    fn of(scale: Number, operand: FloatFormat) -> Option<Self> {
        match scale {
            Number::Float(scale) if scale.bits() == 8 => Some(Self {
                mantissa: scale.mantissa_bits,
                smallest: least(scale),
                largest: Some(scale.max()),
            }),
            Number::E8m0 if operand.exponent_bits >= 8 => {
                Some(Self { mantissa: 0, smallest: -127, largest: None })
            }
            _ => None,
        }
    }
}

/// The exponent of the smallest number of a format.
fn least(format: FloatFormat) -> i32 {
    1 - format.bias() - i32::from(format.mantissa_bits)
}

/// Whether the product of a code and a scale with so many mantissa bits has no more significant bits than the operand.
fn products_fit(code: FloatFormat, mantissa: u8, operand: FloatFormat) -> bool {
    let bits = u32::from(code.mantissa_bits) + u32::from(mantissa) + 2;
    bits <= u32::from(operand.mantissa_bits) + 1
}

/// Whether the kernel that quantises x can multiply each code with the finest scale exactly, in a 16-bit or f32 operand: a
/// scale of e8m0 or of 8 bits whose product with any code is a number of the operand's type, chosen for a group of a
/// token that the lanes of a warp share. (x of e8m0 beyond 2^127 becomes infinite, which is beyond bf16's own x.) Coarser
/// scales do not change along a row.
pub(crate) fn folds_input(
    scheme: &Scheme,
    quantiser: &Quantiser,
    (operand, class): (OperandType, Class),
) -> bool {
    let [finest, coarser @ ..] = &quantiser.scales[..] else { return false };
    let (ScaleType::Number(scale), GroupSize::Each(columns)) = (finest.number, finest.group.cols)
    else {
        return false;
    };
    let (Number::Float(code), Number::Float(operand)) = (quantiser.code, operand.number()) else {
        return false;
    };
    if operand.bits() < 16 {
        return false;
    }
    let Some(Magnitudes { mantissa, smallest, largest }) = Magnitudes::of(scale, operand) else {
        return false;
    };
    // Of powers of two that are chosen from x, the product is x or a multiple of a larger step: no x of 16 bits has
    // smaller steps than bf16. Of x in f32, codes below 2^-6 times the smallest scales are rounded once more.
    let held = (largest.is_none() || least(code) + smallest >= least(operand))
        && largest.is_none_or(|largest| code.max() * largest <= operand.max());
    let found_by_lanes = finest.group.rows == GroupSize::Each(1)
        && columns.is_power_of_two()
        && groups_of_lanes(class).contains(&columns);
    let alone = quantiser.zero.is_none() && scheme.index.is_none() && !finest.stored;
    products_fit(code, mantissa, operand)
        && held
        && found_by_lanes
        && alone
        && !finest.divide
        && coarser.iter().all(|level| level.group.cols == GroupSize::All)
}

/// Columns that share all scales, zero points and shifts; `None` for the whole row.
pub(super) fn segment(scheme: &Scheme, activation: &Activation) -> Option<u32> {
    common(weight_groups(scheme).chain(input_groups(activation)))
}

/// Groups of the scales, the zero points and the shifts of w along K.
pub(crate) fn weight_groups(scheme: &Scheme) -> impl Iterator<Item = GroupSize> {
    let scales = scheme.scales.iter().map(|scale| scale.group);
    let zeros = scheme.zero.iter().map(|zero| zero.group);
    let shifts = scheme.shifts.iter().map(|shift| shift.group);
    scales.chain(zeros).chain(shifts).map(|group| group.cols)
}

/// Groups of the scales of x along K.
pub(crate) fn input_groups(activation: &Activation) -> impl Iterator<Item = GroupSize> {
    let scales = match activation {
        Activation::Float(_) => &[][..],
        Activation::Quantised(quantiser) => &quantiser.scales,
    };
    scales.iter().map(|scale| scale.group.cols)
}

/// The greatest common divisor of groups; `None` if all are rows.
fn common(groups: impl Iterator<Item = GroupSize>) -> Option<u32> {
    fn gcd(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    let segment = groups.fold(0, |segment, cols| match cols {
        GroupSize::Each(cols) => gcd(segment, cols),
        GroupSize::All => segment,
    });
    (segment > 0).then_some(segment)
}
