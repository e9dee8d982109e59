//! Quantloom's products as candle modules.
//!
//! In: a quantised layer of a checkpoint (compressed-tensors, GPTQ, AWQ, Quark, ModelOpt, FP8, GGUF), or the
//! tensors of a scheme. Out: [`QuantLinear`], a [`Module`](candle_core::Module) that multiplies candle's own
//! memory: no tensor is copied on its way in or out, nothing is decoded ahead. [`QuantExperts`] is the same of a
//! whole expert layer (mixture of experts): router logits or chosen experts in, the sum of their results out.
//!
//! ```no_run
//! use candle_core::{Device, Module, Tensor};
//! use quantloom_candle::QuantLinear;
//! use quantloom_candle::quantloom::prelude::Checkpoint;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::open("model.gguf")?;
//! let down = QuantLinear::from_layer(checkpoint.layer("blk.0.ffn_down")?, &Device::Cpu)?;
//! let x = Tensor::zeros((1, 7, down.inputs()), candle_core::DType::F32, &Device::Cpu)?;
//! assert_eq!(down.forward(&x)?.dims(), [1, 7, down.outputs()]);
//! # Ok(())
//! # }
//! ```
//!
//! x is in `f32`, f16 or bf16, and y in the type of x. Errors are candle's, with Quantloom's message.
//!
//! **Threads.** On the CPU a product runs on the rayon pool of the caller: the global one, or the one that
//! is installed (`ThreadPool::install`, candle's `Device::with_context`).
//!
//! **CUDA** (feature `cuda`). A product is queued on candle's stream, in candle's memory, and waits for
//! nothing. Its kernels are compiled when they are first needed: [`QuantLinear::warm`] does so ahead, before a
//! stream is captured or the first request.
//!
//! Gradients do not go through a product: its result has none.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod experts;
mod linear;
mod stored;

pub use experts::{ExpertTensor, QuantExperts, Routed};
pub use linear::{QuantLinear, dequantize};
/// The crate whose schemes and checkpoints these are.
pub use quantloom;

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
