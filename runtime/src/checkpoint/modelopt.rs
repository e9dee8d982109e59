//! NVIDIA ModelOpt: NVFP4 with a multiplying second scale, and FP8 per tensor. Source:
//! ModelOpt's unified checkpoint export (`quant_algo`, `exclude_modules`).

use quantloom_dsl::layout::Shape;

use super::clause::{bias_clause, float_name};
use super::layer::{LayerError, Recognised};
use super::patterns::{self, Compiler, Pattern};
use super::{CheckpointError, Found, Source};

pub(super) fn layers(source: &Source<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let algorithm = fields.needed("quant_algo", fields.text("quant_algo")?)?.to_ascii_uppercase();
    let nvfp4 = match algorithm.as_str() {
        "NVFP4" | "NVFP4_AWQ" | "W4A16_NVFP4" => true,
        "FP8" => false,
        other => {
            let what = format!("the quant_algo `{other}` is not known; NVFP4 and FP8 are");
            return Err(fields.fault(what));
        }
    };
    let group = fields.group_size("group_size")?.unwrap_or(16);
    let mut exclude = fields.list("exclude_modules")?;
    exclude.extend(fields.list("ignore")?);
    let mut compiler = Compiler::new();
    let exclude: Vec<Pattern> =
        exclude.into_iter().map(|text| compiler.glob(text)).collect::<Result<_, _>>()?;
    let recognise = |layer: &str| -> Result<Recognised, CheckpointError> {
        if patterns::any(&exclude, layer)? {
            let what = "`exclude_modules` names it, but it stores quantised tensors";
            return Err(LayerError::new(layer, what).into());
        }
        recognise(source, layer, nvfp4, group)
    };
    let found = source.having("weight_scale").into_iter().map(|layer| {
        let recognised = recognise(&layer);
        (layer, recognised)
    });
    Ok(found.collect())
}

fn recognise(
    source: &Source<'_>,
    layer: &str,
    nvfp4: bool,
    group: u32,
) -> Result<Recognised, CheckpointError> {
    let [n, width] = source.matrix(layer, "weight", "two dimensions")?;
    let input = source.tensor(layer, "input_scale").is_some();
    let bias = bias_clause(source, layer)?;
    let (scheme, per_byte) = if nvfp4 {
        // Both scales multiply; with the block scale's 448 and the code's 6 they reach amax.
        let activation = if input {
            "e2m1 { scale: e4m3 per 1xGROUP, scale: f32 per tensor from amax / 2688 static as \"input_scale\" }"
        } else {
            "bf16 | f16"
        };
        let text = format!(
            "ModelOpt {{ weight: e2m1, scale: e4m3 per 1x{group},
               scale: f32 per tensor from amax / 2688 [g] as \"weight_scale_2\",
               pack: u8 [k:2 | k, n], activation: {}, {bias} }}",
            activation.replace("GROUP", &group.to_string())
        );
        (text, 2)
    } else {
        let scale =
            float_name(layer, "weight_scale", source.needed(layer, "weight_scale")?.dtype())?;
        let activation = match source.tensor(layer, "input_scale") {
            None => "bf16 | f16".to_owned(),
            Some(tensor) => {
                let number = float_name(layer, "input_scale", tensor.dtype())?;
                format!("e4m3 {{ scale: {number} per tensor static }}")
            }
        };
        let text = format!(
            "ModelOpt {{ weight: e4m3, scale: {scale} per tensor [g], pack: [k, n],
               activation: {activation}, {bias} }}"
        );
        (text, 1)
    };
    Ok(Recognised { scheme: scheme.into(), shape: Shape::matrix(n, width * per_byte) })
}
