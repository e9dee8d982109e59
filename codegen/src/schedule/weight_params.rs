//! The parameters of w as products read them: which scales, zero points and shifts of a scheme are read as
//! they are stored, and which are computed when a weight is prepared.

use quantloom_dsl::format::{BF16, F16, NUMBER_F32, Number};
use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::{ScaleType, Scheme, Zero, ZeroPointCorrection};

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
        let scale = match (scale, plan.scale.folded) {
            (None, Some(folded)) => Some(GroupParams::computed(ParamKind::Scale, folded.columns)),
            (None, None) if placed(ScalePlacement::Segment).next().is_some() => {
                Some(GroupParams::computed(ParamKind::Scale, segment))
            }
            (scale, _) => scale,
        };
        let scale = scale.map(|scale| GroupParams { of_weights: on_weights, ..scale });
        let (add, _) = plan.dequant.encoding();
        // Where scales multiply weights in parts, zero points are in the term that is added.
        let zero = scheme.zero.filter(|_| plan.scale.folded.is_none());
        let zero = zero.and_then(|zero| subtracted_zeros(&zero, plan, (add, k_tile)));
        let adds = correction_terms(plan, zero.as_ref()).needed(scheme);
        let columns = plan.scale.folded.map_or(segment, |folded| folded.columns);
        let correction = GroupParams::computed(ParamKind::ZeroPointCorrection, columns);
        let of_weights = plan.scale.folded.is_some();
        Self {
            scale,
            zero,
            correction: adds.then_some(GroupParams { of_weights, ..correction }),
            channel_scale: placed(ScalePlacement::Epilogue).next().is_some()
                || plan.scale.input_in_channel_scale(),
        }
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
