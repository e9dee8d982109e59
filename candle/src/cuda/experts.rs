//! An expert layer on an NVIDIA GPU.

use std::ops::Range;
use std::sync::Arc;

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaStream, DevicePtr as _, DevicePtrMut as _, DeviceRepr, SyncOnDrop,
};
use candle_core::{
    CudaDevice, CudaStorage, DType, Error, Layout, Result, Storage, StorageRef, Tensor, bail,
};
use quantloom::runtime::backend::Backend;
use quantloom::runtime::cuda::{Cuda, DeviceSlice, DeviceSliceMut, ExpertSlices, RoutedSlices};
use quantloom::runtime::element::{bf16, f16};
use quantloom::runtime::experts::ExpertOp;
use quantloom::runtime::gpu::{GpuExpertLayer, PlanKey, RoutedBy};

use super::{Gpu, format, room};
use crate::experts::call::{Call, RoutedTensors};

/// An expert layer in the context of a candle device.
pub(crate) struct CudaExperts {
    op: Box<dyn ExpertOp>,
    // After the layer, which is freed in its context.
    gpu: Arc<Gpu>,
}

impl CudaExperts {
    /// Uploads the matrices of all experts, in the layout of the kernels.
    pub(crate) fn new(
        device: &CudaDevice,
        prepare: impl FnOnce(&dyn Backend) -> Result<Box<dyn ExpertOp>>,
    ) -> Result<Self> {
        let gpu = Gpu::of(device)?;
        let op = prepare(&gpu.device)?;
        // Calls are queued on other streams than the one that has brought the matrices into place.
        gpu.device.executor().stream().synchronize().map_err(Error::wrap)?;
        Ok(Self { op, gpu })
    }

    pub(crate) fn op(&self) -> &dyn ExpertOp {
        &*self.op
    }

    fn layer(&self) -> Result<&GpuExpertLayer<Cuda>> {
        let layer = self.op.as_cuda();
        layer.ok_or_else(|| Error::msg("the experts are not those of an NVIDIA GPU"))
    }

    pub(crate) fn warm(&self, dtype: DType, tokens: &[usize], shared: bool) -> Result<()> {
        let element = format(dtype)?;
        for tokens in tokens {
            for routed in [RoutedBy::Logits, RoutedBy::Chosen] {
                let (tokens, shared) = (*tokens as u64, shared.then_some(element));
                let key = PlanKey { element, output: element, tokens, routed, shared };
                self.layer()?.plan(key).map_err(Error::wrap)?;
            }
        }
        Ok(())
    }

    /// y of a call, whose x are the elements `at`.
    pub(crate) fn forward(
        &self,
        x: &CudaStorage,
        at: Range<usize>,
        call: &Call,
    ) -> Result<CudaStorage> {
        match x.dtype() {
            DType::BF16 => self.rows::<bf16>(x, at, call),
            DType::F16 => self.rows::<f16>(x, at, call),
            _ => self.rows::<f32>(x, at, call),
        }
    }

    fn rows<T: CudaDType + DeviceRepr>(
        &self,
        x: &CudaStorage,
        at: Range<usize>,
        call: &Call,
    ) -> Result<CudaStorage> {
        let (device, element) = (x.device(), format(x.dtype())?);
        let stream = self.gpu.stream(device)?;
        let routed = match &call.routed {
            RoutedTensors::Logits(_) => RoutedBy::Logits,
            RoutedTensors::Chosen { .. } => RoutedBy::Chosen,
        };
        let shared = call.shared.as_ref().map(|shared| format(shared.dtype())).transpose()?;
        let tokens = call.tokens as u64;
        let key = PlanKey { element, output: element, tokens, routed, shared };
        let plan = self.layer()?.plan(key).map_err(Error::wrap)?;
        let (needed, elements) = (plan.workspace(), at.len());
        let (mut y, mut workspace) = room::<T>(device, &stream, elements, needed)?;
        // Storages are read, and guards record that the stream uses their memory, until the call has been queued.
        let (first, second) = match &call.routed {
            RoutedTensors::Logits(logits) => (Input::of(logits), None),
            RoutedTensors::Chosen { ids, weights } => (Input::of(ids), Some(Input::of(weights))),
        };
        let shared = call.shared.as_ref().map(Input::of);
        let first = first.queued(&stream)?;
        let second = second.as_ref().map(|input| input.queued(&stream)).transpose()?;
        let shared = shared.as_ref().map(|input| input.queued(&stream)).transpose()?;
        let x = x.as_cuda_slice::<T>()?.slice(at);
        {
            let (from, _x) = x.device_ptr(&stream);
            let (to, _y) = y.device_ptr_mut(&stream);
            let (beside, _workspace) = workspace.device_ptr_mut(&stream);
            // SAFETY: the stream is one of the layer's context, and this thread's if it is another one on each.
            // All slices are candle's memory of that context, of the lengths of their tensors; y and the workspace
            // are apart from one another and from all others, and of the lengths that the plan says. candle frees
            // memory on the stream, behind the call. The counters are 0. The plan's layer waits for the device
            // before it is freed.
            let launched = unsafe {
                let of = |(address, bytes): (u64, u64)| DeviceSlice::from_raw(address, bytes);
                let inputs = ExpertSlices {
                    x: DeviceSlice::from_raw(from, (elements * size_of::<T>()) as u64),
                    routed: match &second {
                        None => RoutedSlices::Logits(of(first.slice)),
                        Some(weights) => RoutedSlices::Chosen {
                            ids: of(first.slice),
                            weights: of(weights.slice),
                        },
                    },
                    shared: shared.as_ref().map(|shared| of(shared.slice)),
                };
                plan.launch(
                    stream.cu_stream().cast(),
                    &inputs,
                    DeviceSliceMut::from_raw(to, plan.y_bytes()),
                    DeviceSliceMut::from_raw(beside, needed.total()),
                    false,
                )
            };
            launched.map_err(Error::wrap)?;
        }
        Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
    }
}

/// A tensor beside x that a call reads.
struct Input<'t> {
    storage: StorageRef<'t>,
    layout: &'t Layout,
}

/// Its memory, while work that reads it is queued.
struct Queued<'s> {
    /// Address and bytes.
    slice: (u64, u64),
    /// Records that the stream reads it, when it is dropped.
    _guard: SyncOnDrop<'s>,
}

impl<'t> Input<'t> {
    fn of(tensor: &'t Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    fn queued<'s>(&'s self, stream: &'s CudaStream) -> Result<Queued<'s>> {
        let Storage::Cuda(storage) = &*self.storage else {
            bail!("x is on a GPU, and another tensor is not")
        };
        match storage.dtype() {
            DType::U32 => self.memory::<u32>(storage, stream),
            DType::I32 => self.memory::<i32>(storage, stream),
            DType::F32 => self.memory::<f32>(storage, stream),
            DType::F16 => self.memory::<f16>(storage, stream),
            DType::BF16 => self.memory::<bf16>(storage, stream),
            other => bail!("an expert layer reads no tensor in {other:?}"),
        }
    }

    fn memory<'s, T: CudaDType + 's>(
        &'s self,
        storage: &'s CudaStorage,
        stream: &'s CudaStream,
    ) -> Result<Queued<'s>> {
        let at = crate::experts::elements(self.layout)?;
        let (base, guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
        let [before, bytes] = [at.start, at.len()].map(|count| (count * size_of::<T>()) as u64);
        Ok(Queued { slice: (base + before, bytes), _guard: guard })
    }
}
