//! The module: a quantised weight on a candle device.

use std::fmt;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, DType, Device, Error, Layout, Module, Result};
use candle_core::{Shape, Tensor, bail};
use quantloom::dsl::Scheme;
use quantloom::runtime::checkpoint::Layer;
use quantloom::runtime::prepared::PreparedLayer;
use quantloom::runtime::weight_data::WeightData;

#[cfg(feature = "cuda")]
use crate::cuda::CudaWeight;
use crate::experts::elements;
use crate::{cpu, stored};

/// A quantised linear layer, `y = x w^T + bias`: x is [.., K], y [.., N].
///
/// A clone is the same weight. The bias is the checkpoint's, where its layer has one.
#[derive(Clone)]
pub struct QuantLinear {
    weight: DeviceWeight,
    n: usize,
    k: usize,
}

/// Where the weight is.
#[derive(Clone)]
enum DeviceWeight {
    Cpu(Arc<PreparedLayer>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<CudaWeight>),
}

impl QuantLinear {
    /// A layer of a checkpoint, `Checkpoint::layer`, on a device. The stored tensors are brought into the
    /// layout that the device's kernels read, here and once; the checkpoint may be dropped afterwards.
    ///
    /// # Errors
    /// A layer of stacked experts; a layer for which the device has no kernel; what the device says. Metal
    /// has none of our kernels.
    pub fn from_layer(layer: &Layer, device: &Device) -> Result<Self> {
        Self::from_layer_as(layer, layer.scheme(), device)
    }

    /// [`QuantLinear::from_layer`] with another activation: `scheme` is that of the layer, but for what it
    /// says of x. So a layer whose file leaves x as it is may be multiplied in 8 bits, as llama.cpp does:
    ///
    /// ```
    /// # use candle_core::{Device, Error, Result};
    /// # use quantloom_candle::QuantLinear;
    /// # use quantloom_candle::quantloom::prelude::{Layer, parse};
    /// # fn load(layer: &Layer) -> Result<QuantLinear> {
    /// let eight = "x { weight: i8, pack: [k, n], activation: i8 { scale: f32 per 1x32 } }";
    /// let mut scheme = layer.scheme().clone();
    /// scheme.activations = parse(eight).map_err(Error::wrap)?.activations;
    /// QuantLinear::from_layer_as(layer, &scheme, &Device::Cpu)
    /// # }
    /// ```
    ///
    /// # Errors
    /// A scheme of other weights; as there.
    pub fn from_layer_as(layer: &Layer, scheme: &Scheme, device: &Device) -> Result<Self> {
        let (name, shape) = (layer.name(), layer.shape());
        let of_the_layer =
            |what: &dyn fmt::Display| Error::msg(format!("layer \"{name}\": {what}"));
        let mut own = scheme.clone();
        own.activations.clone_from(&layer.scheme().activations);
        if !own.same_meaning(layer.scheme()) {
            return Err(of_the_layer(&format!("{} is a scheme of other weights", scheme.name)));
        }
        if scheme.experts.is_some() {
            let what =
                format!("{} experts are stacked, and a linear layer is one matrix", shape.experts);
            return Err(of_the_layer(&what));
        }
        let weight = WeightData::stored(scheme, shape, |store| layer.store(store));
        let weight = match device {
            Device::Cpu => weight
                .prepare(&quantloom::Device::cpu())
                .map(|weight| DeviceWeight::Cpu(Arc::new(weight)))
                .map_err(|error| of_the_layer(&error))?,
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => CudaWeight::new(&weight, device)
                .map(|weight| DeviceWeight::Cuda(Arc::new(weight)))
                .map_err(|error| of_the_layer(&error))?,
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => bail!("quantloom-candle was compiled without its feature `cuda`"),
            Device::Metal(_) => bail!("quantloom-candle has no kernels for Metal"),
        };
        Ok(Self { weight, n: shape.n as usize, k: shape.k as usize })
    }

    /// A layer of tensors that candle has, such as those of a `VarBuilder`. `tensor` is asked for each
    /// stored tensor of the scheme by its name, and for the type in which candle has its bits; it must
    /// not convert them into another.
    ///
    /// ```
    /// # use candle_core::{Device, Result};
    /// # use candle_nn::VarBuilder;
    /// # use quantloom_candle::QuantLinear;
    /// # use quantloom_candle::quantloom::prelude::Scheme;
    /// # fn load(vb: &VarBuilder, scheme: &Scheme) -> Result<QuantLinear> {
    /// let vb = vb.pp("model.layers.0.mlp.down_proj");
    /// let stored = |name: &str, dtype| vb.get_unchecked_dtype(name, dtype);
    /// QuantLinear::from_tensors(scheme, (4096, 11008), stored, &Device::Cpu)
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `tensor`; a tensor of another type or size than the scheme says for [N, K]; as
    /// [`QuantLinear::from_layer`].
    pub fn from_tensors(
        scheme: &Scheme,
        (n, k): (usize, usize),
        tensor: impl Fn(&str, DType) -> Result<Tensor>,
        device: &Device,
    ) -> Result<Self> {
        let stores = stored::stores(scheme, tensor)?;
        let shape = quantloom::dsl::layout::Shape::matrix(n as u64, k as u64);
        let layer = Layer::from_tensors(&scheme.name, scheme, shape, |name| {
            stores.iter().find(|(store, _)| store == name).map(|(_, tensor)| tensor.clone())
        });
        Self::from_layer(&layer.map_err(Error::wrap)?, device)
    }

    /// K: elements of a row of x.
    pub fn inputs(&self) -> usize {
        self.k
    }

    /// N: elements of a row of y.
    pub fn outputs(&self) -> usize {
        self.n
    }

    /// The scheme of the weight.
    pub fn scheme(&self) -> &Scheme {
        self.prepared().scheme()
    }

    /// The kernel that multiplies so many rows of x and why, a line for each that was rejected.
    pub fn explain(&self, tokens: usize) -> String {
        self.prepared().explain(tokens)
    }

    /// Compiles and loads the kernels for these numbers of rows, where the device has kernels to load:
    /// before a CUDA stream is captured into a graph, and before the first request.
    ///
    /// # Errors
    /// A type of x or a number of rows without a kernel; what the device says.
    pub fn warm(&self, dtype: DType, tokens: &[usize]) -> Result<()> {
        match &self.weight {
            DeviceWeight::Cpu(_) => {
                let _ = (dtype, tokens);
                Ok(())
            }
            #[cfg(feature = "cuda")]
            DeviceWeight::Cuda(weight) => weight.warm(dtype, tokens),
        }
    }

    fn prepared(&self) -> &PreparedLayer {
        match &self.weight {
            DeviceWeight::Cpu(weight) => weight,
            #[cfg(feature = "cuda")]
            DeviceWeight::Cuda(weight) => weight.prepared(),
        }
    }

    /// The elements of x within its storage, M, and the dimensions of y.
    fn sizes(&self, x: &Layout) -> Result<(std::ops::Range<usize>, usize, Shape)> {
        let (n, k) = (self.n, self.k);
        let Some((_, rows)) = x.dims().split_last().filter(|(last, _)| **last == k) else {
            bail!("x is {:?}; a weight of {n} x {k} takes rows of {k}", x.shape())
        };
        let elements = elements(x)?;
        let mut dims = rows.to_vec();
        dims.push(n);
        Ok((elements, rows.iter().product(), dims.into()))
    }
}

impl Module for QuantLinear {
    /// x whose rows are not next to one another is copied first, by `Tensor::contiguous`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous()?;
        #[cfg(feature = "cuda")]
        let x = crate::cuda::aligned(x)?;
        x.apply_op1_no_bwd(&LinearOp(self))
    }
}

/// The product as candle calls it.
struct LinearOp<'a>(&'a QuantLinear);

impl CustomOp1 for LinearOp<'_> {
    fn name(&self) -> &'static str {
        "quantloom-linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (at, _, dims) = self.0.sizes(layout)?;
        match &self.0.weight {
            DeviceWeight::Cpu(weight) => {
                Ok((cpu::product(weight, x, at, dims.elem_count())?, dims))
            }
            #[cfg(feature = "cuda")]
            DeviceWeight::Cuda(_) => bail!("x is on the CPU, and the weight on a GPU"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (at, tokens, dims) = self.0.sizes(layout)?;
        match &self.0.weight {
            DeviceWeight::Cuda(weight) => Ok((weight.product(x, at, tokens)?, dims)),
            DeviceWeight::Cpu(_) => bail!("x is on a GPU, and the weight on the CPU"),
        }
    }
}

impl fmt::Debug for QuantLinear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.prepared().fmt(f)
    }
}

/// The weight of a layer as floats: [N, K], or [E, N, K] of stacked experts. Decoding is exact and rounds
/// once, to `dtype`, by way of `f32`.
///
/// For an embedding table, for merging an adapter, for comparing.
///
/// # Errors
/// Codes that their type does not have, scales that are NaN; what candle says.
pub fn dequantize(layer: &Layer, dtype: DType, device: &Device) -> Result<Tensor> {
    let unpacked = layer.unpack().map_err(Error::wrap)?;
    let shape = layer.shape();
    let values = unpacked.decode_rows(0..shape.experts * shape.n);
    let (n, k) = (shape.n as usize, shape.k as usize);
    let tensor = match layer.scheme().experts {
        None => Tensor::from_vec(values, (n, k), &Device::Cpu)?,
        Some(_) => Tensor::from_vec(values, (shape.experts as usize, n, k), &Device::Cpu)?,
    };
    tensor.to_dtype(dtype)?.to_device(device)
}
