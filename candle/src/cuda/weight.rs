//! A weight on an NVIDIA GPU.

use std::ops::Range;
use std::sync::Arc;

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr as _, DevicePtrMut as _, DeviceRepr};
use candle_core::{CudaDevice, CudaStorage, DType, Error, Result, bail};
use quantloom::runtime::cuda::{Cuda, DeviceSlice, DeviceSliceMut};
use quantloom::runtime::gpu::GpuWeight;
use quantloom::runtime::prepared::PreparedLayer;
use quantloom::runtime::weight_data::WeightData;

use super::{Gpu, format, room};

/// A weight in the context of a candle device.
pub(crate) struct CudaWeight {
    prepared: PreparedLayer,
    n: usize,
    // After the weight, which is freed in its context.
    gpu: Arc<Gpu>,
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
        let stream = self.gpu.stream(device)?;
        let plan = self.weight()?.plan(element, tokens as u64).map_err(Error::wrap)?;
        if plan.output() != element {
            bail!("the kernels write y in {}, not in the type of x", plan.output())
        }
        let x = x.as_cuda_slice::<T>()?.slice(at);
        let needed = plan.workspace();
        let (mut y, mut workspace) = room::<T>(device, &stream, tokens * self.n, needed)?;
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
