//! What the tests share: golden files, numbers, files that candle writes.

use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Result, Tensor};
use quantloom_candle::quantloom::prelude::{Checkpoint, Layer};

/// A golden file of the main workspace.
pub(crate) fn golden(name: &str) -> Checkpoint {
    let path = format!("{}/../tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    Checkpoint::open(path).expect("a golden file opens")
}

/// The first layer of a checkpoint.
pub(crate) fn first(checkpoint: &Checkpoint) -> &Layer {
    checkpoint.layers().next().expect("a layer").1.expect("a layer that is read")
}

/// Numbers between -1 and 1, other ones for another seed.
pub(crate) fn numbers(dims: &[usize], seed: u32, dtype: DType) -> Result<Tensor> {
    crate::random::numbers(dims, seed)?.to_dtype(dtype)
}

/// A GGUF file of candle's writer, in memory.
pub(crate) fn gguf(
    keys: &[(&str, Value)],
    tensors: &[(String, Tensor, GgmlDType)],
) -> Result<Vec<u8>> {
    let quantised = |(name, tensor, dtype): &(String, Tensor, GgmlDType)| {
        Ok((name.clone(), QTensor::quantize(tensor, *dtype)?))
    };
    let tensors: Vec<(String, QTensor)> = tensors.iter().map(quantised).collect::<Result<_>>()?;
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let keys: Vec<_> = keys.iter().map(|(key, value)| (*key, value)).collect();
    let mut file = std::io::Cursor::new(Vec::new());
    write(&mut file, &keys, &tensors)?;
    Ok(file.into_inner())
}

/// The elements in `f32`.
pub(crate) fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}
