//! The numbers that rows and groups of columns of w share, as products want them: which of a scheme's
//! scales, zero points and shifts are read as they are stored, and which are computed when a weight is
//! prepared.

use quantloom_dsl::format::{BF16, F16, NUMBER_F32, Number};
use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::{ScaleType, Scheme, Zero, ZeroKind, ZeroPointCorrection};

use super::dequantise::takes_zeros;
use super::group_params::{GroupParams, ParamKind};
use crate::plan::scale::Place;
use crate::plan::{Operand, Plan};

/// The group parameters of w: scales, zero points that decoding subtracts, corrections, per-channel scales.
pub(super) struct WeightParams {
    /// Multiplies the sum of a segment of columns, or each weight of it.
    pub(super) scale: Option<GroupParams>,
    /// Taken off codes while they are decoded.
    pub(super) zero: Option<GroupParams>,
    /// Multiplies the sum of x over a segment of columns.
    pub(super) correction: Option<GroupParams>,
    /// Whether a number per row, f32, multiplies the finished sum.
    pub(super) channel_scale: bool,
}

impl WeightParams {
    pub(super) fn of(scheme: &Scheme, plan: &Plan, (n, k): (u32, u32), k_tile: u32) -> Self {
        let whole_row = k.next_multiple_of(k_tile);
        let segment = plan.scale.segment.unwrap_or(whole_row);
        let placed = |place: Place| {
            let levels = (0u8..).zip(&plan.scale.levels).zip(&scheme.scales);
            levels.filter(move |((_, level), _)| level.place == place)
        };
        // What decoding multiplies with is the only one.
        let mut by_segment =
            placed(Place::Weight).chain(placed(Place::Segment)).chain(placed(Place::Product));
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
                    ScaleType::Own => NUMBER_F32,
                };
                let kind = ParamKind::Stored(Component::Scale(at));
                GroupParams::stored(kind, number, (rows, columns), (plan.native.rows, k_tile))
            }
            _ => None,
        };
        // Of a type that has no way to f32 here, or of several, as f32.
        let on_weights = plan.scale.absorbed.is_some() || placed(Place::Product).next().is_some();
        let scale = match (scale, plan.scale.absorbed) {
            (None, Some(absorbed)) => {
                Some(GroupParams::computed(ParamKind::Scale, absorbed.columns))
            }
            (None, None) if placed(Place::Segment).next().is_some() => {
                Some(GroupParams::computed(ParamKind::Scale, segment))
            }
            (scale, _) => scale,
        };
        let scale = scale.map(|scale| GroupParams { of_weights: on_weights, ..scale });
        let (add, _) = plan.dequant.encoding();
        let zero = scheme.zero.and_then(|zero| subtracted(&zero, plan, (add, k_tile)));
        let adds = correction_terms(plan, zero.as_ref()).needed(scheme);
        Self {
            scale,
            zero,
            correction: adds
                .then(|| GroupParams::computed(ParamKind::ZeroPointCorrection, segment)),
            channel_scale: placed(Place::Epilogue).next().is_some(),
        }
    }
}

/// What sums lack, where decoding takes these zero points off, or none.
pub(super) fn correction_terms(
    plan: &Plan,
    subtracted: Option<&GroupParams>,
) -> ZeroPointCorrection {
    let (add, _) = plan.dequant.encoding();
    ZeroPointCorrection { zero: subtracted.is_none(), add }
}

/// Zero points that decoding subtracts, where sums of small integers are exact:
/// the code lies above a base of 128 in bf16, which has 8 bits, and of 1024 in f16, which has 11; base,
/// smallest code and zero point together, and the code less the zero point, stay within twice the base.
/// What is added to stored zero points counts.
fn subtracted(zero: &Zero, plan: &Plan, (add, k_tile): (i32, u32)) -> Option<GroupParams> {
    let (half, most, base) = match plan.dequant.operand {
        Operand::Bf16 => (BF16, 7, 128.0),
        Operand::F16 => (F16, 8, 1024.0),
        _ => return None,
    };
    let ZeroKind::Codes { number, plus, wraps } = zero.kind else { return None };
    let (Number::Uint(bits) | Number::Int(bits)) = number else { return None };
    // One that wraps is a number of its bits again.
    let plus = if wraps { 0.0 } else { f64::from(plus) };
    let (least, largest) = (number.min() + plus, number.max() + plus);
    let (low, high) = plan.dequant.weight.range();
    let exact = largest - low.min(0.0) <= base && high - least <= 2.0 * base;
    let (GroupSize::Each(1), GroupSize::Each(columns)) = (zero.group.rows, zero.group.cols) else {
        return None;
    };
    let last = plan.dequant.stages.last()?;
    if add != 0 || bits > most || !exact || !takes_zeros(last) {
        return None;
    }
    let kind = ParamKind::Stored(Component::Zero);
    let tile = (plan.native.rows, k_tile);
    let zeros = GroupParams::stored(kind, Number::Float(half), (1, columns), tile)?;
    Some(GroupParams { of_weights: true, ..zeros })
}
