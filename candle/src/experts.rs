//! The module of a whole expert layer (mixture of experts) on a candle device.

pub(crate) mod call;
mod cpu;
mod source;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{
    CpuStorage, CustomOp1, DType, Device, Error, Layout, Result, Shape, Tensor, bail,
};
use quantloom::dsl::Scheme;
use quantloom::runtime::backend::Backend;
use quantloom::runtime::checkpoint::CheckpointExperts;
use quantloom::runtime::experts::{ExpertLayer, ExpertOp, ExpertOptions, ExpertSource};

#[cfg(feature = "cuda")]
use crate::cuda::CudaExperts;
use call::Call;
pub use source::ExpertTensor;
use source::TensorExperts;

/// Which experts the tokens of a call meet. M is the number of rows of x.
#[derive(Clone, Copy, Debug)]
pub enum Routed<'t> {
    /// The router's logits [.., E], M rows: the layer's routing chooses. In `f32`; f16 and bf16 are widened first.
    Logits(&'t Tensor),
    /// Chosen by the caller.
    Chosen {
        /// [.., k], M rows, in the order of choice: `u32`, `i32` or `i64`. Below 0, or from 2^31
        /// on, it is no
        /// expert.
        ids: &'t Tensor,
        /// The router weights, as many. In `f32`; f16 and bf16 are widened first.
        weights: &'t Tensor,
    },
}

/// A quantised expert layer: x and y are [.., H], M rows.
///
/// What it computes, from the router's logits to the sum of the experts' results, is that of the checkpoint's
/// model: `quantloom`'s page on expert layers has the formulas. A clone is the same layer.
///
/// ```no_run
/// # use candle_core::{Device, Module, Result, Tensor};
/// use quantloom_candle::quantloom::prelude::Checkpoint;
/// use quantloom_candle::{QuantExperts, Routed};
///
/// # fn moe(checkpoint: &Checkpoint, router: &dyn Module, x: &Tensor) -> Result<Tensor> {
/// let layer = checkpoint.expert_layer("model.layers.0.mlp.experts").map_err(candle_core::Error::wrap)?;
/// let experts = QuantExperts::from_layer(&layer, &Device::Cpu)?;
/// experts.forward(x, Routed::Logits(&router.forward(x)?), None)
/// # }
/// ```
#[derive(Clone)]
pub struct QuantExperts(DeviceExperts);

/// Where the experts are.
#[derive(Clone)]
enum DeviceExperts {
    Cpu(Arc<dyn ExpertOp>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<CudaExperts>),
}

impl QuantExperts {
    /// An expert layer of a checkpoint, `Checkpoint::expert_layer`, on a device: each matrix is brought into the
    /// layout that the device's kernels read, here and once; the checkpoint may be dropped afterwards. The score
    /// bias is the checkpoint's, if the routing has one.
    ///
    /// The router, and an expert that every token meets, are the engine's: `CheckpointExperts::shared` is a layer of
    /// one expert, or three linear layers.
    ///
    /// # Errors
    /// A layer of floats; a layer that the files do not describe; a layer for which the device has no kernels; what
    /// the device says. Metal has none of our kernels.
    pub fn from_layer(experts: &CheckpointExperts<'_>, device: &Device) -> Result<Self> {
        Self::from_layer_with(experts, &ExpertOptions::default(), device)
    }

    /// [`QuantExperts::from_layer`] with an expert map, a score bias of the caller, a limit of the workspace.
    ///
    /// # Errors
    /// As there; options that do not fit the layer.
    pub fn from_layer_with(
        experts: &CheckpointExperts<'_>,
        options: &ExpertOptions,
        device: &Device,
    ) -> Result<Self> {
        Self::prepared(device, |device| experts.prepare_with(device, options).map_err(Error::wrap))
    }

    /// The layer of a description, whose matrices come from a source, one at a time.
    ///
    /// # Errors
    /// Matrices or options that do not fit the description; as [`QuantExperts::from_layer`].
    pub fn from_source(
        layer: &ExpertLayer,
        source: &dyn ExpertSource,
        options: &ExpertOptions,
        device: &Device,
    ) -> Result<Self> {
        let prepare = |device: &dyn Backend| device.prepare_experts(layer, source, options);
        Self::prepared(device, |device| prepare(device).map_err(Error::wrap))
    }

    /// The layer of a description, whose matrices are tensors that candle has, such as those of a `VarBuilder`.
    /// `schemes` are those of the matrices of the first and of the second product. `tensor` is asked for each
    /// stored tensor of each matrix, and for the type in which candle has its bits; it must not convert them into
    /// another.
    ///
    /// ```
    /// # use candle_core::{Device, Result};
    /// # use candle_nn::VarBuilder;
    /// # use quantloom_candle::{ExpertTensor, QuantExperts};
    /// # use quantloom_candle::quantloom::prelude::{ExpertLayer, ExpertOptions, Scheme};
    /// # fn load(vb: &VarBuilder, scheme: &Scheme, layer: &ExpertLayer) -> Result<QuantExperts> {
    /// let vb = vb.pp("model.layers.0.mlp.experts");
    /// let stored = |at: &ExpertTensor, dtype| {
    ///     let matrix = at.matrix(["gate_proj", "up_proj"], "down_proj");
    ///     vb.pp(at.expert).pp(matrix).get_unchecked_dtype(at.store, dtype)
    /// };
    /// let options = ExpertOptions::default();
    /// QuantExperts::from_tensors(layer, [scheme; 2], stored, &options, &Device::Cpu)
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `tensor`; a tensor of another type or size than the scheme says; as [`QuantExperts::from_source`].
    pub fn from_tensors(
        layer: &ExpertLayer,
        schemes: [&Scheme; 2],
        tensor: impl Fn(&ExpertTensor<'_>, DType) -> Result<Tensor>,
        options: &ExpertOptions,
        device: &Device,
    ) -> Result<Self> {
        let source = TensorExperts::new(layer, schemes, options, &tensor);
        Self::from_source(layer, &source, options, device)
    }

    fn prepared(
        device: &Device,
        prepare: impl FnOnce(&dyn Backend) -> Result<Box<dyn ExpertOp>>,
    ) -> Result<Self> {
        Ok(Self(match device {
            Device::Cpu => DeviceExperts::Cpu(prepare(&quantloom::Device::cpu())?.into()),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                DeviceExperts::Cuda(Arc::new(CudaExperts::new(device, prepare)?))
            }
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => bail!("quantloom-candle was compiled without its feature `cuda`"),
            Device::Metal(_) => bail!("quantloom-candle has no kernels for Metal"),
        }))
    }

    /// The description: E, H, I, k, the routing and the gate.
    pub fn layer(&self) -> &ExpertLayer {
        self.op().layer()
    }

    /// The schemes of the matrices of the first and of the second product.
    pub fn schemes(&self) -> [&Scheme; 2] {
        self.op().schemes()
    }

    /// The kernels of a call with M tokens and why, a line for each way that was rejected.
    pub fn explain(&self, tokens: usize) -> String {
        self.op().explain(tokens)
    }

    /// Compiles and loads the kernels of calls with these numbers of tokens, of logits and of chosen experts, where
    /// the device has kernels to load: before a CUDA stream is captured into a graph, and before the first request.
    /// `shared` says whether the calls add the result of shared experts, in the type of x.
    ///
    /// # Errors
    /// A type of x or a number of tokens without kernels; what the device says.
    pub fn warm(&self, dtype: DType, tokens: &[usize], shared: bool) -> Result<()> {
        match &self.0 {
            DeviceExperts::Cpu(_) => {
                let _ = (dtype, tokens, shared);
                Ok(())
            }
            #[cfg(feature = "cuda")]
            DeviceExperts::Cuda(experts) => experts.warm(dtype, tokens, shared),
        }
    }

    /// y, in the shape and the type of x: `f32`, f16 or bf16. `shared` is the result of experts that every token
    /// meets, in the shape of x and any of the three types, which is added.
    ///
    /// Tensors whose rows are not next to one another are copied first.
    ///
    /// # Errors
    /// Shapes, types or devices that do not fit. On the CPU an id of E or more, a logit that is NaN or +infinity; on
    /// a GPU such an id is no expert, and such a logit makes the token's y NaN.
    pub fn forward(
        &self,
        x: &Tensor,
        routed: Routed<'_>,
        shared: Option<&Tensor>,
    ) -> Result<Tensor> {
        let call = Call::new(self.layer(), x, routed, shared)?;
        call.x.apply_op1_no_bwd(&ExpertsOp { experts: self, call: &call })
    }

    fn op(&self) -> &dyn ExpertOp {
        match &self.0 {
            DeviceExperts::Cpu(experts) => &**experts,
            #[cfg(feature = "cuda")]
            DeviceExperts::Cuda(experts) => experts.op(),
        }
    }
}

/// The layer as candle calls it: an operation on x, which reads the call's other tensors.
struct ExpertsOp<'a> {
    experts: &'a QuantExperts,
    call: &'a Call,
}

/// The elements of a contiguous tensor within its storage.
pub(crate) fn elements(layout: &Layout) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => bail!("a tensor is not contiguous: {layout:?}"),
    }
}

impl CustomOp1 for ExpertsOp<'_> {
    fn name(&self) -> &'static str {
        "quantloom-experts"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        match &self.experts.0 {
            DeviceExperts::Cpu(experts) => {
                let y = cpu::forward(&**experts, x, elements(layout)?, self.call)?;
                Ok((y, layout.shape().clone()))
            }
            #[cfg(feature = "cuda")]
            DeviceExperts::Cuda(_) => bail!("x is on the CPU, and the experts on a GPU"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        match &self.experts.0 {
            DeviceExperts::Cuda(experts) => {
                Ok((experts.forward(x, elements(layout)?, self.call)?, layout.shape().clone()))
            }
            DeviceExperts::Cpu(_) => bail!("x is on a GPU, and the experts on the CPU"),
        }
    }
}

impl fmt::Debug for QuantExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.schemes();
        write!(f, "QuantExperts({}; {}, {})", self.layer(), first.name, second.name)
    }
}
