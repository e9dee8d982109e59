//! The constant buffers of a product, as every schedule reads them.

use quantloom_dsl::format::NUMBER_F32;
use quantloom_dsl::layout::{Component, Granularity, GroupSize};
use quantloom_dsl::{BufferRole, parse_layout};
use quantloom_runtime::gpu::{Computed, Form, NativePart};

use super::JitError;
use crate::schedule::{Grouped, PER_ROW_LAYOUT, Problem, What};

/// Codes and whatever goes with them: roles and layouts are those of [`Io`](crate::schedule::Io).
pub(super) fn parts(problem: &Problem) -> Result<Vec<NativePart>, JitError> {
    let dequant = &problem.plan.dequant;
    let granularity = Granularity {
        bits: dequant.weight.code.bits(),
        rows: GroupSize::Each(1),
        cols: GroupSize::Each(1),
    };
    let mut parts = vec![NativePart {
        role: BufferRole::Codes,
        component: Component::Code,
        layout: problem.plan.native.layout.clone(),
        granularity,
        form: Form::Codes(dequant.recode.clone()),
    }];
    let all = [
        (BufferRole::Scale, problem.scale),
        (BufferRole::Zero, problem.zero),
        (BufferRole::Correction, problem.addend),
    ];
    for (role, grouped) in all {
        if let Some(grouped) = grouped {
            parts.push(per_group(problem, role, grouped)?);
        }
    }
    let per_row = Granularity { bits: 32, rows: GroupSize::Each(1), cols: GroupSize::All };
    if problem.factor {
        let form = Form::Computed(Computed::Factor);
        parts.push(part(
            BufferRole::ChannelScale,
            Component::Scale(0),
            PER_ROW_LAYOUT,
            per_row,
            form,
        )?);
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
    grouped: Grouped,
) -> Result<NativePart, JitError> {
    let layout = grouped.layout(problem);
    let (component, form) = match grouped.what {
        What::Component(component) => (component, Form::Numbers(grouped.number)),
        What::Scale => (Component::Scale(0), Form::Computed(Computed::Scale)),
        What::Addend => {
            let (correction, exponent) = (problem.correction(), problem.addend_exponent());
            let addend = Computed::Addend { correction, exponent };
            (Component::Scale(0), Form::Computed(addend))
        }
    };
    part(role, component, &layout, grouped.granularity(), form)
}

fn part(
    role: BufferRole,
    component: Component,
    layout: &str,
    granularity: Granularity,
    form: Form,
) -> Result<NativePart, JitError> {
    let layout =
        parse_layout(layout, component).map_err(|faults| JitError::Layout(faults.to_string()))?;
    Ok(NativePart { role, component, layout, granularity, form })
}
