//! One program with two users of `cudarc`: the CUDA backend, and this crate, which asks for the features
//! that candle asks for. That it compiles is the test.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use quantloom_runtime::cuda::{Context, Cuda, CudaError, Stream};
use quantloom_runtime::gpu::Trusted;

/// The context of an engine as one of the backend.
///
/// # Errors
/// What the driver answered.
///
/// # Safety
/// As [`Context::from_raw`].
pub unsafe fn context_of(context: &Arc<CudaContext>) -> Result<Context, CudaError> {
    // SAFETY: the caller's promise.
    unsafe { Context::from_raw(context.cu_ctx().cast()) }
}

/// The stream of an engine as a device of the backend.
///
/// # Errors
/// A device that no kernels are made for, or what the driver answered.
///
/// # Safety
/// As [`Stream::from_raw`].
pub unsafe fn device_of(stream: &Arc<CudaStream>, source: Trusted) -> Result<Cuda, CudaError> {
    // SAFETY: the caller's promise.
    let context = unsafe { context_of(stream.context()) }?;
    // SAFETY: the caller's promise.
    Cuda::on(unsafe { Stream::from_raw(&context, stream.cu_stream().cast()) }, source)
}
