//! A layer's forward pass as its own software computes it: quantise the activation, multiply, add
//! the bias.

use std::borrow::Cow;

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Activation, Group, Scheme};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{CheckpointFormat, Layer, Tensor};
use quantloom_runtime::element::{OwnedValues, bf16, f16, f32_to_bf16, f32_to_f16};
use quantloom_runtime::float_mode::standard;
use quantloom_runtime::op::{Op, ProductError};
use quantloom_runtime::tensor::{float_format, reals};
use quantloom_runtime::unpacked::Unpacked;
use quantloom_runtime::weight_data::WeightData;

pub mod experts;

/// An activation tensor [..., K] and the type whose values it holds.
#[derive(Clone, Debug)]
pub struct Input {
    /// Values, row-major.
    pub values: Vec<f64>,
    /// Dimensions, slowest first; the last is K.
    pub shape: Vec<u64>,
    /// The input dtype, in which `own` scales are computed.
    pub own: FloatFormat,
}

impl Input {
    /// A tensor of a file as an activation of a layer of this scheme; `None` if it is no float tensor.
    ///
    /// A model computes in one type. If all values of an f32 tensor are representable in the 16-bit
    /// type of the layer's scales (bf16 if the scales have no such type), that is the activation's
    /// type.
    pub fn of(tensor: &Tensor, scheme: &Scheme) -> Option<Self> {
        let values = reals(tensor)?;
        let stored = float_format(tensor.dtype())?;
        let model = match scheme.scales.first().and_then(|scale| scale.stored_number()) {
            Some(Number::Float(F32)) => F32,
            Some(Number::Float(F16)) => F16,
            _ => BF16,
        };
        let carried = stored == F32 && values.iter().all(|value| model.round(*value) == *value);
        let shape = tensor.shape().iter().map(|size| *size as u64).collect();
        Some(Self { values, shape, own: if carried { model } else { stored } })
    }

    /// The same in the type that the file stores it in.
    pub fn of_type(tensor: &Tensor) -> Option<Self> {
        let shape = tensor.shape().iter().map(|size| *size as u64).collect();
        Some(Self { values: reals(tensor)?, shape, own: float_format(tensor.dtype())? })
    }
}

/// The scheme that a format's software uses for an input of this rank.
///
/// compressed-tensors computes the scale of its `token` strategy over every dimension but the first
/// two (`compute_dynamic_scales_and_zp`): one per token for [B, T, K], but a single one for a
/// two-dimensional [M, K]. Its results can be reproduced only in the same way.
pub fn as_called(scheme: &Scheme, family: CheckpointFormat, rank: usize) -> Cow<'_, Scheme> {
    let per_token = |activation: &Activation| match activation {
        Activation::Quantised(quantiser) => {
            quantiser.scales.iter().any(|scale| scale.group == Group::ROW && !scale.stored)
        }
        Activation::Float(_) => false,
    };
    let whole = family == CheckpointFormat::CompressedTensors && rank == 2;
    if !whole || !scheme.activations.iter().any(per_token) {
        return Cow::Borrowed(scheme);
    }
    let mut scheme = scheme.clone();
    for activation in &mut scheme.activations {
        if let Activation::Quantised(quantiser) = activation {
            for scale in &mut quantiser.scales {
                if scale.group == Group::ROW {
                    scale.group.rows = GroupSize::All;
                }
            }
        }
    }
    Cow::Owned(scheme)
}

/// `y = x~ w^T + bias` of one expert of a layer, [..., N] in `f32`, prepared and computed on a
/// backend: from the stored tensors if the backend accepts them, else from the unpacked layer.
///
/// # Errors
/// See [`ProductError`].
pub fn forward(
    backend: &dyn Backend,
    scheme: &Scheme,
    layer: &Layer,
    weight: &Unpacked,
    expert: u64,
    x: &Input,
) -> Result<Vec<f32>, ProductError> {
    let (found, expected) = (x.shape.last().copied().unwrap_or(1), weight.shape().k);
    if found != expected {
        return Err(ProductError::Columns { expected, found });
    }
    let data = WeightData::stored(scheme, layer.shape(), |name| layer.store(name));
    let op = backend.prepare_weight(&data.with_unpacked(weight))?;
    multiply(op.as_ref(), expert, x)
}

/// The same with a prepared weight.
///
/// # Errors
/// See [`ProductError`].
pub fn multiply(op: &dyn Op, expert: u64, x: &Input) -> Result<Vec<f32>, ProductError> {
    standard(|| op.matmul(expert, (&narrowed(x)).into()))
}

/// The values in their type.
fn narrowed(x: &Input) -> OwnedValues {
    standard(|| {
        let values = x.values.iter().map(|value| *value as f32);
        match x.own {
            BF16 => OwnedValues::Bf16(values.map(|x| bf16::from_bits(f32_to_bf16(x))).collect()),
            F16 => OwnedValues::F16(values.map(|x| f16::from_bits(f32_to_f16(x))).collect()),
            _ => OwnedValues::F32(values.collect()),
        }
    })
}
