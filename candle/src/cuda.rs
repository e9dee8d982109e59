//! Products on NVIDIA GPUs: in candle's memory, on candle's stream.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, DevicePtr as _, DevicePtrMut as _, DeviceRepr,
};
use candle_core::{CudaDevice, CudaStorage, DType, Error, Result, Tensor, bail};
use quantloom::dsl::format::{BF16, F16, F32, FloatFormat};
use quantloom::runtime::cuda::{Context, Cuda, CudaError, DeviceSlice, DeviceSliceMut, Stream};
use quantloom::runtime::gpu::{GpuDevice, GpuWeight};
use quantloom::runtime::prepared::PreparedLayer;
use quantloom::runtime::weight_data::WeightData;

/// A weight in the context of a candle device.
pub(crate) struct CudaWeight {
    prepared: PreparedLayer,
    n: usize,
    // After the weight, which is freed in its context.
    gpu: Arc<Gpu>,
}

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
}

impl CudaWeight {
    /// Uploads a weight and brings it into the layout of the kernels.
    pub(crate) fn new(weight: &WeightData<'_>, device: &CudaDevice) -> Result<Self> {
        let gpu = Gpu::of(device)?;
        let prepared = weight.prepare(&gpu.device).map_err(Error::wrap)?;
        // Products are queued on other streams than the one that has brought the weight into place.
        gpu.device.executor().stream().synchronize().map_err(Error::wrap)?;
        Ok(Self { prepared, n: weight.shape().n as usize, gpu })
    }

    pub(crate) fn prepared(&self) -> &PreparedLayer {
        &self.prepared
    }

    pub(crate) fn warm(&self, dtype: DType, tokens: &[usize]) -> Result<()> {
        let tokens: Vec<u64> = tokens.iter().map(|tokens| *tokens as u64).collect();
        self.weight()?.warm(format(dtype)?, &tokens).map_err(Error::wrap)
    }

    /// y of the elements `at` of x, which are so many rows.
    pub(crate) fn product(
        &self,
        x: &CudaStorage,
        at: Range<usize>,
        tokens: usize,
    ) -> Result<CudaStorage> {
        match x.dtype() {
            DType::BF16 => self.rows::<quantloom::runtime::element::bf16>(x, at, tokens),
            DType::F16 => self.rows::<quantloom::runtime::element::f16>(x, at, tokens),
            _ => self.rows::<f32>(x, at, tokens),
        }
    }

    fn rows<T: CudaDType + DeviceRepr>(
        &self,
        x: &CudaStorage,
        at: Range<usize>,
        tokens: usize,
    ) -> Result<CudaStorage> {
        let (device, element) = (x.device(), format(x.dtype())?);
        let stream = device.cuda_stream();
        if stream.context().cu_ctx() != self.gpu.context.cu_ctx() {
            bail!("x and the weight are on different GPUs")
        }
        let plan = self.weight()?.plan(element, tokens as u64).map_err(Error::wrap)?;
        if plan.output() != element {
            bail!("the kernels write y in {}, not in the type of x", plan.output())
        }
        let x = x.as_cuda_slice::<T>()?.slice(at);
        let needed = plan.workspace();
        let bytes = usize::try_from(needed.total()).unwrap_or(usize::MAX);
        // SAFETY: nothing reads y or scratch before the product has written it. The driver allocates no 0 bytes.
        let (mut y, mut workspace) = unsafe {
            let elements = (tokens * self.n).max(1);
            (device.alloc::<T>(elements)?, device.alloc::<u8>(bytes.max(1))?)
        };
        if needed.counters > 0 {
            let mut counters = workspace.slice_mut(..needed.counters as usize);
            stream.memset_zeros(&mut counters).map_err(Error::wrap)?;
        }
        {
            // The guards record that the stream uses this memory, when the product has been queued.
            let (from, _x) = x.device_ptr(&stream);
            let (to, _y) = y.device_ptr_mut(&stream);
            let (beside, _workspace) = workspace.device_ptr_mut(&stream);
            // SAFETY: the stream is one of the weight's context, and this thread's if it is another one on
            // each. x, y and the workspace are candle's memory of that context, of the lengths that the plan
            // says, apart from one another; candle frees memory on the stream, behind the product. The
            // counters are 0. The plan's weight waits for the device before it is freed.
            let launched = unsafe {
                plan.launch(
                    stream.cu_stream().cast(),
                    DeviceSlice::from_raw(from, plan.x_bytes()),
                    DeviceSliceMut::from_raw(to, plan.y_bytes()),
                    DeviceSliceMut::from_raw(beside, needed.total()),
                    false,
                )
            };
            launched.map_err(Error::wrap)?;
        }
        Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
    }

    fn weight(&self) -> Result<&GpuWeight<Cuda>> {
        let weight = self.prepared.downcast_ref();
        weight.ok_or_else(|| Error::msg("the weight is not one of an NVIDIA GPU"))
    }
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
