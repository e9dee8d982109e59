//! Tensors of candle as the stored tensors of a scheme.

use candle_core::{DType, Device, Error, Result, bail};
use quantloom::dsl::Scheme;
use quantloom::runtime::checkpoint::{Dtype, Tensor, element_dtype};
use safetensors::View as _;

/// The tensors of a scheme's stores by name. `tensor` is asked for each by its name and the type in which
/// candle has its bits.
pub(crate) fn stores(
    scheme: &Scheme,
    tensor: impl Fn(&str, DType) -> Result<candle_core::Tensor>,
) -> Result<Vec<(String, Tensor)>> {
    let stored = |store: &quantloom::dsl::Store| {
        let element = element_dtype(scheme, store);
        let dtype = candle_dtype(element).ok_or_else(|| {
            Error::msg(format!(
                "the tensor `{}` is of {element:?}, which candle has not",
                store.name
            ))
        })?;
        let tensor = tensor(&store.name, dtype)?;
        if !same_bits(tensor.dtype(), dtype) {
            let (name, found) = (&store.name, tensor.dtype());
            bail!("the tensor `{name}` is in {found:?}, the scheme stores {dtype:?}")
        }
        // `View` panics where it cannot read a tensor: its errors come here.
        let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
        let bytes = tensor.data().into_owned();
        Ok((store.name.clone(), Tensor::new(element, tensor.dims().to_vec(), bytes)))
    };
    scheme.stores.iter().map(stored).collect()
}

/// The type of candle with the bits of a stored element.
fn candle_dtype(element: Dtype) -> Option<DType> {
    Some(match element {
        Dtype::U8 | Dtype::I8 => DType::U8,
        Dtype::I16 | Dtype::U16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I64 | Dtype::U64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F8_E4M3 => DType::F8E4M3,
        _ => return None,
    })
}

/// Whether two types are one, or integers of one size.
fn same_bits(one: DType, other: DType) -> bool {
    let raw = |dtype| match dtype {
        DType::U8 | DType::F8E8M0 => Some(8),
        DType::U32 | DType::I32 => Some(32),
        _ => None,
    };
    one == other || raw(one).is_some() && raw(one) == raw(other)
}
