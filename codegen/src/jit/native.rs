//! The constant buffers of a product, in the layouts that every schedule reads.

use quantloom_dsl::format::NUMBER_F32;
use quantloom_dsl::layout::{Component, Granularity, GroupSize};
use quantloom_dsl::{BufferRole, parse_layout};
use quantloom_runtime::gpu::{Computed, Form, NativeBuffer};

use super::JitError;
use crate::schedule::{GroupParams, PER_ROW_LAYOUT, ParamKind, Problem};

/// The codes and the parameters of w: roles and layouts are those of
/// [`ProductBuffers`](crate::schedule::ProductBuffers).
pub(super) fn parts(problem: &Problem) -> Result<Vec<NativeBuffer>, JitError> {
    let dequant = &problem.plan.dequant;
    let granularity = Granularity {
        bits: dequant.weight.code.bits(),
        rows: GroupSize::Each(1),
        cols: GroupSize::Each(1),
    };
    let mut parts = vec![NativeBuffer {
        role: BufferRole::Codes,
        component: Component::Code,
        layout: problem.plan.native.layout.clone(),
        granularity,
        form: match problem.scale.map(|scale| scale.kind) {
            Some(ParamKind::Magnitudes(of)) => Form::SignedCodes(of),
            _ => Form::Codes(dequant.recode.clone()),
        },
    }];
    for (role, params) in problem.group_params() {
        parts.push(per_group(problem, role, params)?);
    }
    let per_row = Granularity { bits: 32, rows: GroupSize::Each(1), cols: GroupSize::All };
    if problem.channel_scale {
        let form = Form::Computed(match problem.plan.scale.input_in_channel_scale() {
            true => Computed::ChannelScaleOfInput,
            false => Computed::ChannelScale,
        });
        parts.push(part(
            BufferRole::ChannelScale,
            Component::Scale(0),
            PER_ROW_LAYOUT,
            per_row,
            form,
        )?);
    }
    if problem.row_sum {
        let form = Form::RowSums;
        parts.push(part(BufferRole::RowSum, Component::Scale(0), PER_ROW_LAYOUT, per_row, form)?);
    }
    if problem.bias {
        let form = Form::Numbers(NUMBER_F32);
        parts.push(part(BufferRole::Bias, Component::Bias, PER_ROW_LAYOUT, per_row, form)?);
    }
    Ok(parts)
}

fn per_group(
    problem: &Problem,
    role: BufferRole,
    params: GroupParams,
) -> Result<NativeBuffer, JitError> {
    let layout = params.layout(problem);
    let (component, form) = match params.kind {
        ParamKind::Stored(component) => (component, Form::Numbers(params.number)),
        ParamKind::Magnitudes(component) => (component, Form::Magnitudes(params.number)),
        ParamKind::Scale => (Component::Scale(0), Form::Computed(Computed::Scale)),
        ParamKind::ZeroPointCorrection => {
            let (correction, exponent) =
                (problem.correction_terms(), problem.correction_exponent());
            let computed = Computed::Correction { correction, exponent };
            (Component::Scale(0), Form::Computed(computed))
        }
    };
    part(role, component, &layout, params.granularity(), form)
}

fn part(
    role: BufferRole,
    component: Component,
    layout: &str,
    granularity: Granularity,
    form: Form,
) -> Result<NativeBuffer, JitError> {
    let layout = parse_layout(layout, component).map_err(JitError::Layout)?;
    Ok(NativeBuffer { role, component, layout, granularity, form })
}
