//! The constant buffers of a product, as every schedule reads them.

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, NUMBER_F32, Number};
use quantloom_dsl::layout::{Component, Grain, Grains};
use quantloom_dsl::parse_layout;
use quantloom_runtime::gpu::{Form, NativePart};

use super::JitError;
use crate::ir::Half;
use crate::schedule::{BIAS_LAYOUT, PER_GROUP_LAYOUT, Problem};

/// Codes, scales, zero points, bias: names and layouts are those of [`Io`](crate::schedule::Io).
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
    let per_group = |buffer, component, half| {
        let cols = Grain::Each(problem.group);
        numbers(buffer, component, PER_GROUP_LAYOUT, cols, number(half))
    };
    let mut parts = vec![codes, per_group("scale", Component::Scale(0), problem.scale)?];
    if problem.zero {
        parts.push(per_group("zero", Component::Zero, problem.activation)?);
    }
    if problem.bias {
        parts.push(numbers("bias", Component::Bias, BIAS_LAYOUT, Grain::All, NUMBER_F32)?);
    }
    Ok(parts)
}

/// A component of numbers, one for each row and `cols` columns.
fn numbers(
    buffer: &str,
    component: Component,
    layout: &str,
    cols: Grain,
    number: Number,
) -> Result<NativePart, JitError> {
    let layout =
        parse_layout(layout, component).map_err(|faults| JitError::Layout(faults.to_string()))?;
    let grains = Grains { bits: number.bits(), rows: Grain::Each(1), cols };
    let form = Form::Numbers(number);
    Ok(NativePart { buffer: buffer.to_owned(), component, layout, grains, form })
}

fn number(half: Half) -> Number {
    match half {
        Half::Bf16 => NUMBER_BF16,
        Half::F16 => NUMBER_F16,
    }
}
