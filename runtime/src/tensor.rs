//! Float tensors of a checkpoint as reals, and back.

pub use crate::checkpoint::reals::{float_format, reals, reals_of};

/// `f32` values as little-endian bytes.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
