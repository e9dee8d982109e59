//! Clauses of scheme texts that several formats share.

use super::LayerSource;
use super::layer::LayerError;

/// The type name, in the scheme language, of a 16- or 32-bit float tensor.
pub(super) fn float_name(
    layer: &str,
    tensor: &str,
    dtype: safetensors::Dtype,
) -> Result<&'static str, LayerError> {
    match dtype {
        safetensors::Dtype::F32 => Ok("f32"),
        safetensors::Dtype::F16 => Ok("f16"),
        safetensors::Dtype::BF16 => Ok("bf16"),
        other => Err(LayerError::of_type(layer, tensor, other, "F32, F16 or BF16")),
    }
}

/// `bias: TYPE,` if the layer has one.
pub(super) fn bias_clause(source: &LayerSource<'_>, layer: &str) -> Result<String, LayerError> {
    match source.tensor(layer, "bias") {
        None => Ok(String::new()),
        Some(bias) => Ok(format!("bias: {},", float_name(layer, "bias", bias.dtype())?)),
    }
}
