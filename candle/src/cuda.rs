//! Products on NVIDIA GPUs: in candle's memory, on candle's stream.
//!
//! This file has what weights and expert layers share: candle's contexts, and the memory of a call.

mod experts;
mod weight;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr};
use candle_core::{CudaDevice, DType, Error, Result, Tensor, bail};
use quantloom::dsl::format::{BF16, F16, F32, FloatFormat};
use quantloom::runtime::cuda::{Context, Cuda, CudaError, Stream};
use quantloom::runtime::gpu::{GpuDevice, WorkspaceBytes};

pub(crate) use experts::CudaExperts;
pub(crate) use weight::CudaWeight;

/// A context of candle's, with the kernels that are loaded in it.
struct Gpu {
    device: GpuDevice<Cuda>,
    // After the kernels, which are unloaded in it.
    context: Arc<CudaContext>,
}

/// The contexts that weights are in, by their handles: weights of one share its kernels.
static GPUS: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());

impl Gpu {
    /// The context of a device.
    fn of(device: &CudaDevice) -> Result<Arc<Self>> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let mut known = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        let live = known.iter().filter_map(Weak::upgrade);
        if let Some(gpu) = live.into_iter().find(|gpu| gpu.context.cu_ctx() == context.cu_ctx()) {
            return Ok(gpu);
        }
        let made = || -> std::result::Result<_, CudaError> {
            // SAFETY: `Gpu` keeps the context, and every weight in it keeps its `Gpu`, until what was made
            // in it is gone: fields are dropped in their order.
            let own = unsafe { Context::from_raw(context.cu_ctx().cast()) }?;
            // Weights are prepared on a stream of their own: candle's may be another one on each thread.
            Cuda::on(Stream::new(&own)?, quantloom::jit::source())
        };
        let device = GpuDevice::new(made().map_err(Error::wrap)?);
        let gpu = Arc::new(Self { device, context: context.clone() });
        known.retain(|gpu| gpu.strong_count() > 0);
        known.push(Arc::downgrade(&gpu));
        Ok(gpu)
    }

    /// candle's stream on a device, which has to be in this context.
    fn stream(&self, device: &CudaDevice) -> Result<Arc<CudaStream>> {
        let stream = device.cuda_stream();
        if stream.context().cu_ctx() != self.context.cu_ctx() {
            bail!("x and the weight are on different GPUs")
        }
        Ok(stream)
    }
}

/// Room for `elements` of y, and for a workspace, whose counters are 0: allocated on the stream.
fn room<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    stream: &Arc<CudaStream>,
    elements: usize,
    needed: WorkspaceBytes,
) -> Result<(CudaSlice<T>, CudaSlice<u8>)> {
    let bytes = usize::try_from(needed.total()).unwrap_or(usize::MAX);
    // SAFETY: nothing reads y or scratch before the product has written it. The driver allocates no 0 bytes.
    let (y, mut workspace) =
        unsafe { (device.alloc::<T>(elements.max(1))?, device.alloc::<u8>(bytes.max(1))?) };
    if needed.counters > 0 {
        let mut counters = workspace.slice_mut(..needed.counters as usize);
        stream.memset_zeros(&mut counters).map_err(Error::wrap)?;
    }
    Ok((y, workspace))
}

/// The type of x as kernels name it.
fn format(dtype: DType) -> Result<FloatFormat> {
    match dtype {
        DType::BF16 => Ok(BF16),
        DType::F16 => Ok(F16),
        DType::F32 => Ok(F32),
        other => bail!("x is in {other:?}; a product takes F32, F16 or BF16"),
    }
}

/// x at an address that kernels load from: a multiple of 16 bytes. candle's memory begins at one; a part of
/// it that does not is copied.
pub(crate) fn aligned(x: Tensor) -> Result<Tensor> {
    let at = x.layout().start_offset() * x.dtype().size_in_bytes();
    if at.is_multiple_of(16) || !x.device().is_cuda() { Ok(x) } else { x.force_contiguous() }
}
