//! Products on the CPU, in candle's memory.

use std::cell::RefCell;
use std::ops::Range;

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, Error, Result, bail};
use quantloom::runtime::element::{Values, ValuesMut};
use quantloom::runtime::op::Workspace;
use quantloom::runtime::prepared::PreparedLayer;

thread_local! {
    /// What a product needs besides x and y, kept for the next one.
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// y of the elements `at` of x; y has `len` elements.
pub(crate) fn product(
    weight: &PreparedLayer,
    x: &CpuStorage,
    at: Range<usize>,
    len: usize,
) -> Result<CpuStorage> {
    match x {
        CpuStorage::F32(x) => rows(weight, &x[at], len).map(CpuStorage::F32),
        CpuStorage::F16(x) => rows(weight, &x[at], len).map(CpuStorage::F16),
        CpuStorage::BF16(x) => rows(weight, &x[at], len).map(CpuStorage::BF16),
        other => bail!("x is in {:?}; a product takes F32, F16 or BF16", other.dtype()),
    }
}

fn rows<T: Clone + Default>(weight: &PreparedLayer, x: &[T], len: usize) -> Result<Vec<T>>
where
    for<'a> Values<'a>: From<&'a [T]>,
    for<'a> ValuesMut<'a>: From<&'a mut [T]>,
{
    let mut y = vec![T::default(); len];
    with_workspace(|workspace| weight.matmul_into(x, &mut y[..], workspace))
        .map_err(Error::wrap)?;
    Ok(y)
}

/// Calls a product with this thread's workspace.
pub(crate) fn with_workspace<R>(product: impl FnOnce(&mut Workspace) -> R) -> R {
    // Taken, not borrowed: while it waits for its threads, rayon may run another product on this one.
    let mut workspace = WORKSPACE.take();
    let result = product(&mut workspace);
    WORKSPACE.set(workspace);
    result
}
