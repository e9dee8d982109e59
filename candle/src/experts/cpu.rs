//! Expert layers on the CPU, in candle's memory.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, DType, Error, Layout, Result, Storage, WithDType, bail};
use quantloom::runtime::element::{Values, ValuesMut};
use quantloom::runtime::experts::{self, ExpertCall, ExpertOp};

use super::call::{Call, RoutedTensors};
use super::elements;
use crate::cpu::with_workspace;

/// y of a call, as many elements as `at` of x.
pub(super) fn forward(
    op: &dyn ExpertOp,
    x: &CpuStorage,
    at: Range<usize>,
    call: &Call,
) -> Result<CpuStorage> {
    match x {
        CpuStorage::F32(x) => rows(op, &x[at], call).map(CpuStorage::F32),
        CpuStorage::F16(x) => rows(op, &x[at], call).map(CpuStorage::F16),
        CpuStorage::BF16(x) => rows(op, &x[at], call).map(CpuStorage::BF16),
        other => bail!("x is in {:?}; an expert layer takes F32, F16 or BF16", other.dtype()),
    }
}

fn rows<T: Clone + Default>(op: &dyn ExpertOp, x: &[T], call: &Call) -> Result<Vec<T>>
where
    for<'a> Values<'a>: From<&'a [T]>,
    for<'a> ValuesMut<'a>: From<&'a mut [T]>,
{
    let mut y = vec![T::default(); x.len()];
    let shared = call.shared.as_ref().map(|shared| shared.storage_and_layout());
    let shared = match &shared {
        Some((storage, layout)) => Some(values(storage, layout)?),
        None => None,
    };
    let mut run = |routed: experts::Routed<'_>| {
        let call = ExpertCall { x: x.into(), routed, shared };
        with_workspace(|workspace| op.forward_into(&call, (&mut y[..]).into(), workspace))
            .map_err(Error::wrap)
    };
    match &call.routed {
        RoutedTensors::Logits(logits) => {
            let (storage, layout) = logits.storage_and_layout();
            run(experts::Routed::Logits(slice(&storage, layout)?))?;
        }
        RoutedTensors::Chosen { ids, weights } => {
            let (of_ids, ids_layout) = ids.storage_and_layout();
            let (of_weights, weights_layout) = weights.storage_and_layout();
            let ids = integers(&of_ids, ids_layout)?;
            let weights = slice(&of_weights, weights_layout)?;
            run(experts::Routed::Chosen { ids: &ids, weights })?;
        }
    }
    Ok(y)
}

fn on_cpu(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        Storage::Cuda(_) | Storage::Metal(_) => bail!("x is on the CPU, and another tensor is not"),
    }
}

/// The elements of a tensor.
fn slice<'s, T: WithDType>(storage: &'s Storage, layout: &Layout) -> Result<&'s [T]> {
    Ok(&on_cpu(storage)?.as_slice::<T>()?[elements(layout)?])
}

fn values<'s>(storage: &'s Storage, layout: &Layout) -> Result<Values<'s>> {
    let at = elements(layout)?;
    match on_cpu(storage)? {
        CpuStorage::F32(values) => Ok((&values[at]).into()),
        CpuStorage::F16(values) => Ok((&values[at]).into()),
        CpuStorage::BF16(values) => Ok((&values[at]).into()),
        other => bail!("the result of shared experts is in {:?}", other.dtype()),
    }
}

/// Ids; those in `u32` have the bits of `i32`.
fn integers<'s>(storage: &'s Storage, layout: &Layout) -> Result<Cow<'s, [i32]>> {
    if on_cpu(storage)?.dtype() == DType::I32 {
        return slice(storage, layout).map(Cow::Borrowed);
    }
    let ids = slice::<u32>(storage, layout)?;
    Ok(ids.iter().map(|id| id.cast_signed()).collect())
}
