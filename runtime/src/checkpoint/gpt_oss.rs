//! gpt-oss: MXFP4 experts, recognised by their tensors' names. `X_blocks` [E, N, G, 16],
//! `X_scales` [E, N, G], `X_bias` [E, N]; rows of gate_up alternate gate, up.
//! Source: transformers, `integrations/mxfp4.py` (`convert_moe_packed_tensors`).

use quantloom_dsl::layout::Shape;
use safetensors::Dtype;

use super::files::Tensors;
use super::layer::{LayerError, Recognised};
use super::{CheckpointError, Found, having};

pub(super) fn layers(tensors: &Tensors) -> Found {
    let with_scales = |layer: &String| tensors.get(&format!("{layer}_scales")).is_some();
    let names = having(tensors, "_blocks").into_iter().filter(with_scales);
    names
        .map(|layer| {
            let recognised = recognise(tensors, &layer);
            (layer, recognised)
        })
        .collect()
}

fn recognise(tensors: &Tensors, layer: &str) -> Result<Recognised, CheckpointError> {
    let fault = |what: String| CheckpointError::from(LayerError::inconsistent(layer, what));
    let shape = tensors.get(&format!("{layer}_blocks")).map_or(&[][..], |t| t.shape());
    let &[experts, n, groups, 16] = shape else {
        let (tensor, expected) = (format!("{layer}_blocks"), "[E, N, K/32, 16]");
        return Err(LayerError::of_shape(layer, &tensor, shape, expected).into());
    };
    let bias = match tensors.get(&format!("{layer}_bias")).map(|bias| bias.dtype()) {
        None => String::new(),
        Some(Dtype::BF16) => "bias: bf16 [n, e] as \"_bias\",".to_owned(),
        Some(Dtype::F16) => "bias: f16 [n, e] as \"_bias\",".to_owned(),
        Some(Dtype::F32) => "bias: f32 [n, e] as \"_bias\",".to_owned(),
        Some(other) => return Err(fault(format!("`{layer}_bias` is of type {other:?}"))),
    };
    let shards = if layer.ends_with("gate_up_proj") { "interleaved" } else { "single" };
    let scheme = format!(
        "GptOss {{ weight: e2m1, scale: e8m0 per 1x32 [g, n, e] as \"_scales\",
           pack: u8 [k:2 | k/2:16, k, n, e] as \"_blocks\", activation: bf16 | f16, {bias}
           experts: {shards} }}"
    );
    let k = (groups as u64).checked_mul(32).ok_or_else(|| fault("K is too large".to_owned()))?;
    let shape = Shape { experts: experts as u64, n: n as u64, k };
    Ok(Recognised::new(scheme, shape))
}
