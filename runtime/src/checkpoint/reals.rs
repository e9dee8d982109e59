//! Float tensors as reals.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use safetensors::Dtype;

use super::Tensor;

/// The float format of a tensor's elements, if it is of f32, f16 or bf16.
pub fn float_format(dtype: Dtype) -> Option<FloatFormat> {
    match dtype {
        Dtype::F32 => Some(F32),
        Dtype::F16 => Some(F16),
        Dtype::BF16 => Some(BF16),
        _ => None,
    }
}

/// The elements of an f32, f16 or bf16 tensor, which `f64` holds exactly.
pub fn reals(tensor: &Tensor) -> Option<Vec<f64>> {
    reals_of(tensor.dtype(), tensor.bytes())
}

/// The same of some elements of a tensor, little-endian.
pub fn reals_of(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f64>> {
    let format = float_format(dtype)?;
    let number = Number::Float(format);
    let value = |bytes: &[u8]| {
        number.decode(bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    };
    Some(bytes.chunks_exact(format.bits() as usize / 8).map(value).collect())
}
