//! FP8 as DeepSeek-V3 and transformers write it: e4m3 weights with `weight_scale_inv` per
//! block (a multiplier, in spite of its name) or `weight_scale` per tensor.

use quantloom_dsl::layout::Shape;
use serde_json::Value;

use super::clause::{bias_clause, float_name};
use super::layer::Recognised;
use super::{CheckpointError, Found, Source};

pub(super) fn layers(source: &Source<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let block = match fields.get("weight_block_size") {
        None => None,
        Some(value) => {
            let side = |at: usize| value.as_array().and_then(|sides| sides.get(at)?.as_u64());
            match (side(0), side(1)) {
                (Some(rows), Some(cols))
                    if (1..=1 << 24).contains(&rows) && (1..=1 << 24).contains(&cols) =>
                {
                    Some((rows, cols))
                }
                _ => return Err(fields.fault(format!("`weight_block_size` is {value}"))),
            }
        }
    };
    let activation = fields.text("activation_scheme")?.unwrap_or("dynamic");
    if !["dynamic", "static"].contains(&activation) {
        return Err(fields.fault(format!("the activation_scheme `{activation}` is not known")));
    }
    if fields.get("modules_to_not_convert").is_some_and(|value| !matches!(value, Value::Array(_))) {
        return Err(fields.fault("`modules_to_not_convert` is not a list"));
    }
    let scale = if block.is_some() { "weight_scale_inv" } else { "weight_scale" };
    let found = source.having(scale).into_iter().map(|layer| {
        let recognised = recognise(source, &layer, block, scale, activation == "static");
        (layer, recognised)
    });
    Ok(found.collect())
}

fn recognise(
    source: &Source<'_>,
    layer: &str,
    block: Option<(u64, u64)>,
    scale: &str,
    fixed: bool,
) -> Result<Recognised, CheckpointError> {
    let [n, k] = source.matrix(layer, "weight", "[N, K]")?;
    let number = float_name(layer, scale, source.needed(layer, scale)?.dtype())?;
    let bias = bias_clause(source, layer)?;
    let (group, activation) = match block {
        Some((rows, cols)) => {
            (format!("{rows}x{cols}"), format!("e4m3 {{ scale: f32 per 1x{cols} }}"))
        }
        None if fixed => {
            let tensor = source.needed(layer, "input_scale")?;
            let number = float_name(layer, "input_scale", tensor.dtype())?;
            ("tensor [g]".to_owned(), format!("e4m3 {{ scale: {number} per tensor static }}"))
        }
        None => ("tensor [g]".to_owned(), "e4m3 { scale: f32 per tensor }".to_owned()),
    };
    let scheme = format!(
        "Fp8 {{ weight: e4m3, scale: {number} per {group} as \"{scale}\", pack: [k, n],
           activation: {activation}, {bias} }}"
    );
    Ok(Recognised { scheme: scheme.into(), shape: Shape::matrix(n, k) })
}
