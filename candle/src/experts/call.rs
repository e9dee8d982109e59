//! The tensors of a call: checked against the layer, and brought into the types that the runtime reads.

use candle_core::{DType, Result, Tensor, bail};
use quantloom::runtime::experts::ExpertLayer;

use super::Routed;

/// A call whose tensors fit the layer: contiguous, on one device.
pub(crate) struct Call {
    /// [.., H].
    pub(crate) x: Tensor,
    /// M.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "GPUs plan their launches by it")
    )]
    pub(crate) tokens: usize,
    pub(crate) routed: RoutedTensors,
    /// [.., H].
    pub(crate) shared: Option<Tensor>,
}

/// Which experts the tokens meet.
pub(crate) enum RoutedTensors {
    /// [.., E] in `f32`.
    Logits(Tensor),
    /// [.., k]: ids in `u32` or `i32`, of which below 0 and from 2^31 on have the same bits; weights in `f32`.
    Chosen { ids: Tensor, weights: Tensor },
}

impl Call {
    pub(super) fn new(
        layer: &ExpertLayer,
        x: &Tensor,
        routed: Routed<'_>,
        shared: Option<&Tensor>,
    ) -> Result<Self> {
        let hidden = layer.hidden as usize;
        let Some((_, rows)) = x.dims().split_last().filter(|(last, _)| **last == hidden) else {
            bail!("x is {:?}; the layer takes rows of {hidden}", x.shape())
        };
        let tokens: usize = rows.iter().product();
        let rows_of = |what: &str, tensor: &Tensor, columns: usize| {
            if !tensor.device().same_device(x.device()) {
                bail!("{what} and x are on different devices")
            }
            let whole = tensor.dims().last() == Some(&columns);
            if !whole || tensor.elem_count() != tokens * columns {
                let found = tensor.shape();
                bail!("{what}: {found:?}, expected {tokens} rows of {columns}")
            }
            ready(tensor)
        };
        let (experts, top_k) = (layer.experts as usize, layer.top_k as usize);
        let routed = match routed {
            Routed::Logits(logits) => {
                let logits = floats("the router's logits", logits)?;
                RoutedTensors::Logits(rows_of("the router's logits", &logits, experts)?)
            }
            Routed::Chosen { ids, weights } => {
                let weights = floats("the router weights", weights)?;
                RoutedTensors::Chosen {
                    ids: rows_of("the ids of experts", &integers(ids)?, top_k)?,
                    weights: rows_of("the router weights", &weights, top_k)?,
                }
            }
        };
        let shared = shared.map(|shared| {
            let what = "the result of shared experts";
            float_type(what, shared)?;
            rows_of(what, shared, hidden)
        });
        float_type("x", x)?;
        Ok(Self { x: ready(x)?, tokens, routed, shared: shared.transpose()? })
    }
}

/// A tensor as kernels read it: rows without gaps, at an address that they load from.
fn ready(tensor: &Tensor) -> Result<Tensor> {
    let tensor = tensor.contiguous()?;
    #[cfg(feature = "cuda")]
    let tensor = crate::cuda::aligned(tensor)?;
    Ok(tensor)
}

fn float_type(what: &str, tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => bail!("{what}: {other:?}; an expert layer takes F32, F16 or BF16"),
    }
}

/// Floats in `f32`, which has all numbers of f16 and bf16.
fn floats(what: &str, tensor: &Tensor) -> Result<Tensor> {
    float_type(what, tensor)?;
    tensor.to_dtype(DType::F32)
}

/// Ids in 32 bits. Below 0 and from 2^31 on there is no expert.
fn integers(ids: &Tensor) -> Result<Tensor> {
    match ids.dtype() {
        DType::U32 | DType::I32 => Ok(ids.clone()),
        // -1 becomes 2^32 - 1.
        DType::I64 => ids.clamp(-1i64, 1i64 << 31)?.to_dtype(DType::U32),
        other => bail!("the ids of experts: {other:?}; an expert layer takes U32, I32 or I64"),
    }
}
