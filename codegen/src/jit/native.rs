//! The constant buffers of a product, as every schedule reads them.

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, Number};
use quantloom_dsl::layout::{Component, Grain, Grains};
use quantloom_dsl::parse_layout;
use quantloom_runtime::gpu::{Form, NativePart};

use super::JitError;
use crate::ir::Half;
use crate::schedule::{PER_GROUP_LAYOUT, Problem};

/// Codes, scales, zero points: names and layouts are those of [`Io`](crate::schedule::Io).
pub(super) fn parts(problem: &Problem) -> Result<Vec<NativePart>, JitError> {
    let dequant = &problem.plan.dequant;
    let codes = NativePart {
        buffer: "w".to_owned(),
        component: Component::Code,
        layout: problem.plan.native.layout.clone(),
        grains: Grains {
            bits: dequant.weight.code.bits(),
            rows: Grain::Each(1),
            cols: Grain::Each(1),
        },
        form: Form::Codes(dequant.recode.clone()),
    };
    let mut parts = vec![codes, per_group(problem, "scale", Component::Scale(0), problem.scale)?];
    if problem.zero {
        parts.push(per_group(problem, "zero", Component::Zero, problem.activation)?);
    }
    Ok(parts)
}

fn per_group(
    problem: &Problem,
    buffer: &str,
    component: Component,
    half: Half,
) -> Result<NativePart, JitError> {
    let layout = parse_layout(PER_GROUP_LAYOUT, component)
        .map_err(|faults| JitError::Layout(faults.to_string()))?;
    let cols = Grain::Each(problem.group);
    let grains = Grains { bits: 16, rows: Grain::Each(1), cols };
    let form = Form::Numbers(number(half));
    Ok(NativePart { buffer: buffer.to_owned(), component, layout, grains, form })
}

fn number(half: Half) -> Number {
    match half {
        Half::Bf16 => NUMBER_BF16,
        Half::F16 => NUMBER_F16,
    }
}
