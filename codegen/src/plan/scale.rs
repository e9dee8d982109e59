//! The scale plan: where each level of scales, the zero point and the shift are applied.
//!
//! The meaning is a real number, so a factor may stand anywhere it commutes to: on the weight,
//! on the sum over a segment of columns, or on the finished row. What is constant along k goes to the
//! epilogue; what changes along k goes to the sums where the product keeps sums of segments apart, unless
//! decoding multiplies with it ([`Absorbed`]) or the product's instruction itself takes it
//! ([`Place::Product`]), else onto the weight. Zero point, offset and shift are one term per segment: `add = shift -
//! scale * zero`, times the sum of x over the segment.

use quantloom_dsl::format::{FloatFormat, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Activation, Code, ScaleType, Scheme};

use super::compute::ComputePlan;
use super::dequant::DequantPlan;
use super::native::lane_columns;
use super::operand::Operand;
use crate::target::Class;

/// Where a factor is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On each weight as it is decoded.
    Weight,
    /// On the sum over a segment of columns.
    Segment,
    /// Once a result.
    Epilogue,
    /// On the operand, by the product itself, which takes its codes.
    Product,
}

/// One level of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelPlan {
    /// Where it is applied.
    pub place: Place,
    /// Whether it divides.
    pub divide: bool,
}

/// Where everything that is not a code goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePlan {
    /// Per scale level of the weight, finest first.
    pub levels: Vec<LevelPlan>,
    /// Per scale level of a quantised activation.
    pub input: Vec<LevelPlan>,
    /// Columns that share everything that multiplies or is added to sums; `None` = the whole row.
    pub segment: Option<u32>,
    /// Whether a term times the sum of x is added, for the zero point, the shift, or what the
    /// sequence leaves (`add`).
    pub corrects: bool,
    /// Whether that term is stored per group, and not one number for the whole weight.
    pub corrects_by_group: bool,
    /// The decoded elements are `2^exponent` too large: a scale makes up for it.
    pub exponent: i32,
    /// Whether columns are sorted by group and x is gathered.
    pub sorts_columns: bool,
    /// The scale that the decoding multiplies with, if it does.
    pub absorbed: Option<Absorbed>,
}

/// A scale that multiplies weights as they are decoded, exactly; where the scale is as large as the
/// operand's largest numbers (e8m0 in bf16), products beyond those are infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absorbed {
    /// The level.
    pub level: usize,
    /// Columns that share one.
    pub columns: u32,
    /// The last step of the decoding, which multiplies by a power of two in any case, multiplies with
    /// the scale times two to this instead; `None` where the scale has a step of its own.
    pub exponent: Option<i32>,
    /// The elements are this many powers of two too small then.
    pub lack: i32,
}

impl ScalePlan {
    /// Places the scales of a scheme for one product.
    pub fn new(
        scheme: &Scheme,
        activation: &Activation,
        (compute, class): (&ComputePlan, Class),
        dequant: &DequantPlan,
    ) -> Self {
        let (add, exponent) = dequant.encoding();
        let decodes = compute.product.weight == Operand::F32 && class == Class::Lanes;
        let by_segment = if decodes { Place::Weight } else { Place::Segment };
        // A shift is added after the scales: a factor of the finished row would reach it too.
        let at_the_end = if scheme.shift.is_some() { by_segment } else { Place::Epilogue };
        let place = |cols: GroupSize, by_segment: Place, at_the_end: Place| match cols {
            GroupSize::All => at_the_end,
            GroupSize::Each(_) => by_segment,
        };
        let scales = compute.product.scaling().is_some();
        let by_segment = if scales { Place::Product } else { by_segment };
        let level = |scale: &quantloom_dsl::ScaleLevel| LevelPlan {
            place: place(scale.group.cols, by_segment, at_the_end),
            divide: scale.divide,
        };
        let x_by_segment = if scales { Place::Product } else { Place::Segment };
        let input = match activation {
            Activation::Float(_) => Vec::new(),
            Activation::Quantised(quantiser) => {
                let level = |scale: &quantloom_dsl::ScaleLevel| LevelPlan {
                    place: place(scale.group.cols, x_by_segment, Place::Epilogue),
                    divide: scale.divide,
                };
                quantiser.scales.iter().map(level).collect()
            }
        };
        let corrects_by_group = scheme.zero.is_some() || scheme.shift.is_some();
        let mut levels: Vec<LevelPlan> = scheme.scales.iter().map(level).collect();
        let absorbed = Absorbed::new(scheme, &input, &levels, dequant);
        if let Some(level) = absorbed.and_then(|absorbed| levels.get_mut(absorbed.level)) {
            level.place = Place::Weight;
        }
        Self {
            levels,
            input,
            segment: if absorbed.is_some() || scales { None } else { segment(scheme, activation) },
            absorbed,
            corrects: corrects_by_group || add != 0,
            corrects_by_group,
            exponent,
            sorts_columns: scheme.index.is_some(),
        }
    }
}

impl Absorbed {
    /// The scale that the decoding may multiply with, exactly: the only number that changes along k,
    /// one a row, of a type whose product with any code is one of the operand's.
    fn new(
        scheme: &Scheme,
        input: &[LevelPlan],
        levels: &[LevelPlan],
        dequant: &DequantPlan,
    ) -> Option<Self> {
        let by_segment = |level: &LevelPlan| level.place == Place::Segment;
        let mut segments = (0..).zip(levels).filter(|(_, level)| by_segment(level));
        let (Some((level, plan)), None) = (segments.next(), segments.next()) else { return None };
        let alone =
            scheme.zero.is_none() && scheme.shift.is_none() && !input.iter().any(by_segment);
        let sorted = scheme.index.is_some();
        let scale = &scheme.scales[level];
        let (GroupSize::Each(1), GroupSize::Each(columns)) = (scale.group.rows, scale.group.cols)
        else {
            return None;
        };
        let ScaleType::Number(scale) = scale.number else { return None };
        let Number::Float(operand) = dequant.operand.number() else { return None };
        let Code::Number(Number::Float(code)) = dequant.weight.code else { return None };
        let factor = dequant.factor()?;
        let least = |format: FloatFormat| 1 - format.bias() - i32::from(format.mantissa_bits);
        // Of the scale: its significant bits but the leading one, the exponent of its smallest value,
        // and that of its largest, if the operand holds all of them times two to something.
        let (mantissa, smallest, largest) = match scale {
            Number::Float(scale) if scale.bits() == 8 => {
                (scale.mantissa_bits, least(scale), Some(scale.max()))
            }
            // As wide as the operand's own exponents.
            Number::E8m0 if operand.exponent_bits == 8 => (0, -127, None),
            _ => return None,
        };
        let bits = u32::from(code.mantissa_bits) + u32::from(mantissa) + 2;
        let fits = bits <= u32::from(operand.mantissa_bits) + 1;
        let exponent = largest.map(|most| factor.min((operand.max() / most).log2().floor() as i32));
        let lack = exponent.map_or(0, |exponent| factor - exponent);
        // The smallest product is one of the operand's numbers too.
        let held = least(code) + smallest - lack >= least(operand);
        // A lane's columns of a step share one.
        let whole = columns.is_power_of_two() && columns >= lane_columns(dequant.operand.bits());
        let takes = alone && !sorted && !plan.divide && fits && held && whole;
        takes.then_some(Self { level, columns, exponent, lack })
    }
}

/// Columns over which all scales, zero points and shifts are constant.
pub(super) fn segment(scheme: &Scheme, activation: &Activation) -> Option<u32> {
    fn gcd(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    let scales = match activation {
        Activation::Float(_) => &[][..],
        Activation::Quantised(quantiser) => &quantiser.scales,
    };
    let groups = scheme.scales.iter().chain(scales).map(|scale| scale.group.cols);
    let groups = groups.chain(scheme.zero.map(|zero| zero.group.cols));
    let groups = groups.chain(scheme.shift.map(|shift| shift.group.cols));
    let segment = groups.fold(0, |segment, cols| match cols {
        GroupSize::Each(cols) => gcd(segment, cols),
        GroupSize::All => segment,
    });
    (segment > 0).then_some(segment)
}

/// A power of two that stays in the scales, and the rest, for the epilogue's factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerMove {
    /// Each scale is multiplied with two to this.
    pub scales: i32,
    /// The result is multiplied with two to this.
    pub epilogue: i32,
}

/// Splits `2^exponent` between scales of type `number`, whose values lie between `smallest`
/// and `largest` in magnitude (zeros left out), and the epilogue, so that no scale overflows or
/// loses bits: as much as possible stays in the scales.
///
/// `None` if the scales span more than the type holds normally, wherever they are moved.
pub fn move_power(exponent: i32, smallest: f64, largest: f64, number: Number) -> Option<PowerMove> {
    let Number::Float(format) = number else { return None };
    let (top, bottom) = (largest.log2().floor() as i32, smallest.log2().floor() as i32);
    let most = format.max().log2().floor() as i32;
    let least = 1 - format.bias();
    let (up, down) = (most - top, least - bottom);
    (down <= up).then(|| {
        let scales = exponent.clamp(down, up);
        PowerMove { scales, epilogue: exponent - scales }
    })
}
