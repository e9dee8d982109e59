//! The parameters of w as products read them: which scales, zero points and shifts of a scheme are read as
//! they are stored, and which are computed when a weight is prepared.

use quantloom_dsl::format::{BF16, F16, NUMBER_F16, NUMBER_F32, Number};
use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::{Group, ScaleLevel, ScaleType, Scheme, ShiftLevel, Zero, ZeroPointCorrection};

use super::dequantise::subtracted_constants;
use super::group_params::{GroupParams, ParamKind};
use crate::plan::scale::ScalePlacement;
use crate::plan::{OperandType, Plan};
use crate::target::{ScaleCode, Scaling};

/// The group parameters and the per-channel scale of w.
pub(super) struct WeightParams {
    /// Multiplies the sum of a segment, or each weight.
    pub(super) scale: Option<GroupParams>,
    /// Subtracted from codes during dequantisation.
    pub(super) zero: Option<GroupParams>,
    /// The zero-point correction: multiplies the sum of x over a segment, or is added to each weight.
    pub(super) correction: Option<GroupParams>,
    /// Multiplies [`Self::scale`].
    pub(super) coarse_scale: Option<GroupParams>,
    /// Multiplies [`Self::correction`].
    pub(super) coarse_correction: Option<GroupParams>,
    /// Whether there is a per-channel scale: f32, one per row, applied in the epilogue.
    pub(super) channel_scale: bool,
}

impl WeightParams {
    pub(super) fn of(scheme: &Scheme, plan: &Plan, (n, k): (u32, u32), k_tile: u32) -> Self {
        let whole_row = k.next_multiple_of(k_tile);
        let segment = plan.scale.segment.unwrap_or(whole_row);
        let placed = |placement: ScalePlacement| {
            let levels = (0u8..).zip(&plan.scale.levels).zip(&scheme.scales);
            levels.filter(move |((_, level), _)| level.placement == placement)
        };
        let mut by_segment = placed(ScalePlacement::Element)
            .chain(placed(ScalePlacement::Segment))
            .chain(placed(ScalePlacement::Product));
        let scale = match (by_segment.next(), by_segment.next()) {
            (None, _) => None,
            (Some(((at, level), scale)), None) if !level.divide => {
                let rows = match scale.group.rows {
                    GroupSize::Each(rows) => rows,
                    GroupSize::All => n.next_multiple_of(plan.native.rows),
                };
                let columns = match scale.group.cols {
                    GroupSize::Each(columns) => columns,
                    GroupSize::All => whole_row,
                };
                let number = match scale.number {
                    ScaleType::Number(number) => number,
                    ScaleType::InputDtype => NUMBER_F32,
                };
                let component = Component::Scale(at);
                let unsigned = |of: Scaling| of.code == ScaleCode::UnsignedE4m3;
                let kind = match plan.compute.product.scaling().is_some_and(unsigned) {
                    true => ParamKind::Magnitudes(component),
                    false => ParamKind::Stored(component),
                };
                GroupParams::stored(kind, number, (rows, columns), (plan.native.rows, k_tile))
            }
            _ => None,
        };
        // A type without a conversion to f32, or several levels: computed as f32.
        let on_weights =
            plan.scale.folded.is_some() || placed(ScalePlacement::Product).next().is_some();
        // Where scales multiply weights, all kinds of parameters have the same groups.
        let has_groups = |scale: &GroupParams| {
            plan.scale.folded.is_none_or(|folded| folded.columns == scale.columns)
        };
        let scale = match (scale.filter(has_groups), plan.scale.folded) {
            (None, Some(folded)) => Some(GroupParams::computed(ParamKind::Scale, folded.columns)),
            (None, None) if placed(ScalePlacement::Segment).next().is_some() => {
                Some(GroupParams::computed(ParamKind::Scale, segment))
            }
            (scale, _) => scale,
        };
        let scale = scale.map(|scale| GroupParams { of_weights: on_weights, ..scale });
        let (add, _) = plan.dequant.encoding();
        // Where scales multiply weights with a term, zero points are in the term that is added.
        let zero = scheme.zero.filter(|_| plan.scale.folded.is_none());
        let zero = zero.and_then(|zero| subtracted_zeros(&zero, plan, (add, k_tile)));
        let adds = correction_terms(plan, zero.as_ref()).needed(scheme);
        let columns = plan.scale.folded.map_or(segment, |folded| folded.columns);
        let correction = GroupParams::computed(ParamKind::ZeroPointCorrection, columns);
        let of_weights = plan.scale.folded.is_some();
        let correction = adds.then_some(GroupParams { of_weights, ..correction });
        let made = plan.scale.folded.filter(|_| plan.scale.parts().is_some());
        let groups = made.map(|folded| (folded.columns, k_tile));
        let computed = scale.filter(|scale| scale.kind == ParamKind::Scale);
        let levels =
            groups.zip(computed).and_then(|(groups, _)| StoredLevels::of_scales(scheme, groups));
        let (scale, coarse_scale) = match levels {
            Some(StoredLevels { finest, coarse }) => (Some(finest), coarse),
            None => (scale, None),
        };
        let levels = groups.zip(correction).and_then(|(groups, _)| {
            let alone = scheme.zero.is_none() && add == 0;
            StoredLevels::of_shifts(scheme, groups).filter(|_| alone)
        });
        let (correction, coarse_correction) = match levels {
            Some(StoredLevels { finest, coarse }) => (Some(finest), coarse),
            None => (correction, None),
        };
        Self {
            scale,
            zero,
            correction,
            coarse_scale,
            coarse_correction,
            channel_scale: placed(ScalePlacement::Epilogue).next().is_some()
                || plan.scale.input_in_channel_scale(),
        }
    }
}

/// StoredLevels that products read as they are stored, and multiply: fewer bytes than their product in f32 has. The product is
/// exact: a level has at most 11 digits, another one 8.
struct StoredLevels {
    finest: GroupParams,
    coarse: Option<GroupParams>,
}

/// A level as a scheme has it.
struct StoredLevel {
    component: Component,
    stored: Number,
    /// The least and the largest number that a code stands for.
    range: [f64; 2],
    /// Whether a code stands for the stored number itself.
    as_stored: bool,
    group: Group,
}

impl StoredLevels {
    fn of_scales(scheme: &Scheme, groups: (u32, u32)) -> Option<Self> {
        let level = |(at, level): (u8, &ScaleLevel)| {
            let ScaleType::Number(stored) = level.number else { return None };
            let ends = [stored.min(), stored.max()].map(|end| end - f64::from(level.offset));
            (!level.divide).then_some(StoredLevel {
                component: Component::Scale(at),
                stored,
                range: ends,
                as_stored: level.offset == 0,
                group: level.group,
            })
        };
        Self::new((0u8..).zip(&scheme.scales).map(level).collect::<Option<_>>()?, groups)
    }

    fn of_shifts(scheme: &Scheme, groups: (u32, u32)) -> Option<Self> {
        let level = |(at, level): (u8, &ShiftLevel)| {
            let sign = if level.negative { -1.0 } else { 1.0 };
            let ends = [level.number.min(), level.number.max()];
            let [one, other] = ends.map(|end| sign * (end - f64::from(level.offset)));
            StoredLevel {
                component: Component::Shift(at),
                stored: level.number,
                range: [one.min(other), one.max(other)],
                as_stored: level.offset == 0 && !level.negative,
                group: level.group,
            }
        };
        Self::new((0u8..).zip(&scheme.shifts).map(level).collect(), groups)
    }

    /// A level of f16; or one of integers that fit a byte, for groups of so many columns, times one of f16 for groups of
    /// whole k-tiles.
    fn new(levels: Vec<StoredLevel>, (columns, k_tile): (u32, u32)) -> Option<Self> {
        match &levels[..] {
            [only] => {
                let finest = only.half()?;
                (finest.columns == columns).then_some(Self { finest, coarse: None })
            }
            [finest, coarse] => {
                let (finest, coarse) = (finest.byte()?, coarse.half()?);
                let held = finest.columns == columns && coarse.columns.is_multiple_of(k_tile);
                held.then_some(Self { finest, coarse: Some(coarse) })
            }
            _ => None,
        }
    }
}

impl StoredLevel {
    /// As f16, which it is. (Numbers of bf16 may be so large that no power of two may be multiplied with them.)
    fn half(&self) -> Option<GroupParams> {
        self.params(NUMBER_F16).filter(|of| of.number == self.stored && self.as_stored)
    }

    /// As a byte, if it is an integer that fits one.
    fn byte(&self) -> Option<GroupParams> {
        let (Number::Uint(_) | Number::Int(_)) = self.stored else { return None };
        let bytes = [Number::Uint(8), Number::Int(8)];
        let [least, largest] = self.range;
        let byte = bytes.into_iter().find(|byte| byte.min() <= least && largest <= byte.max())?;
        // A transform would keep the codes of the same type.
        self.params(byte).filter(|_| byte != self.stored || self.as_stored)
    }

    fn params(&self, number: Number) -> Option<GroupParams> {
        let (GroupSize::Each(1), GroupSize::Each(columns)) = (self.group.rows, self.group.cols)
        else {
            return None;
        };
        let kind = ParamKind::Stored(self.component);
        Some(GroupParams { kind, number, rows: 1, columns, apart: 1, of_weights: true })
    }
}

/// The terms of the zero-point correction, given the zero points that dequantisation subtracts.
pub(super) fn correction_terms(
    plan: &Plan,
    subtracted: Option<&GroupParams>,
) -> ZeroPointCorrection {
    let (add, _) = plan.dequant.encoding();
    ZeroPointCorrection { zero: subtracted.is_none(), add }
}

/// Zero points that dequantisation subtracts, if that is exact: the constant that its last step subtracts plus the
/// zero point, and code minus zero point, have to be integers that the type holds, up to 256 in bf16, which has 8
/// significant bits, and up to 2048 in f16, which has 11. Then the step rounds nothing. A constant added to stored
/// zero points counts.
fn subtracted_zeros(zero: &Zero, plan: &Plan, (add, k_tile): (i32, u32)) -> Option<GroupParams> {
    let half = match plan.dequant.operand {
        OperandType::Bf16 => BF16,
        OperandType::F16 => F16,
        _ => return None,
    };
    let (least, largest) = zero.kind.integer_range()?;
    let (low, high) = plan.dequant.weight.range();
    let (_, exponent) = plan.dequant.encoding();
    let most = 2f64.powi(i32::from(half.mantissa_bits) + 1);
    let held = |value: f64| value.abs() <= most;
    let constants = subtracted_constants(plan.dequant.stages.last()?)?;
    let mut constants = constants.iter().map(|(_, value)| value * 2f64.powi(-exponent));
    let exact = [low - largest, high - least, least, largest].into_iter().all(held)
        && constants.all(|constant| held(constant + least) && held(constant + largest));
    let (GroupSize::Each(1), GroupSize::Each(columns)) = (zero.group.rows, zero.group.cols) else {
        return None;
    };
    if add != 0 || !exact {
        return None;
    }
    let kind = ParamKind::Stored(Component::Zero);
    let tile = (plan.native.rows, k_tile);
    let zeros = GroupParams::stored(kind, Number::Float(half), (1, columns), tile)?;
    Some(GroupParams { of_weights: true, ..zeros })
}
