//! candle's side: `QMatMul` on Q4K weights, and its f32 product.

use std::borrow::Cow;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module, Result, Tensor};

/// Copies of one random Q4K weight [N, K]: 4.5 bits a weight as stored.
pub fn q4k(n: usize, k: usize, copies: usize) -> Result<Vec<QMatMul>> {
    let w = Tensor::randn(0f32, 0.05, (n, k), &Device::Cpu)?;
    let one = QTensor::quantize(&w, GgmlDType::Q4K)?;
    let bytes = one.data()?;
    let copy = |_| {
        let bytes = Cow::Borrowed(bytes.as_ref());
        let storage = QStorage::from_data(bytes, &Device::Cpu, GgmlDType::Q4K)?;
        QMatMul::from_qtensor(QTensor::new(storage, (n, k))?)
    };
    (0..copies).map(copy).collect()
}

/// Copies of a random f32 weight, transposed to [K, N] as `Tensor::matmul` takes it.
pub fn f32(n: usize, k: usize, copies: usize) -> Result<Vec<Tensor>> {
    (0..copies).map(|_| Tensor::randn(0f32, 0.05, (n, k), &Device::Cpu)?.t()).collect()
}

/// Random tokens [M, K].
pub fn tokens(m: usize, k: usize) -> Result<Tensor> {
    Tensor::randn(0f32, 1.0, (m, k), &Device::Cpu)
}

/// y = x w^T by `QMatMul`.
pub fn quantised(weight: &QMatMul, x: &Tensor) -> Result<()> {
    std::hint::black_box(weight.forward(x)?);
    Ok(())
}

/// y = x w^T in f32.
pub fn float(weight: &Tensor, x: &Tensor) -> Result<()> {
    std::hint::black_box(x.matmul(weight)?);
    Ok(())
}
