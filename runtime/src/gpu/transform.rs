//! A transform: from stores to a native buffer, or back.
//!
//! In: what a product asks for, one of its native buffers, and bytes. Out: a [`Transform`], whose kernel can be queued
//! again and again, as when it is timed; `transformed` runs one once.

use std::sync::Arc;

use quantloom_dsl::layout::Shape;

use super::device::GpuDevice;
use super::executor::{Executor, Launch, LaunchBuffer};
use super::native::NativeBuffer;
use super::products::Request;
use crate::column_order::{ColumnOrder, NO_COLUMN};
use crate::op::{NotScheduled, ProductError};
use crate::source::{Access, KernelKey, LaunchRule, ParameterKind, ProblemSize};
use crate::unpacked::UnpackError;
use crate::weight_data::Stored;

/// The kernel of a transform, with buffers of its own.
pub struct Transform<E: Executor> {
    executor: Arc<E>,
    kernel: E::Ready,
    read: Vec<E::Memory>,
    written: E::Memory,
    bytes: u64,
}

impl<E: Executor> Transform<E> {
    /// The source's key for a request, so that `read` is what the kernel takes.
    fn new(
        executor: &Arc<E>,
        key: &KernelKey,
        shape: Shape,
        read: &[&[u8]],
    ) -> Result<Self, ProductError> {
        let executor = executor.clone();
        let kernel = executor.kernel(key).map_err(Into::into)?;
        let problem = problem(&*executor, shape);
        let written = written(executor.rule(&kernel), &problem);
        let kernel = executor.ready(&kernel, &problem).map_err(Into::into)?;
        let bytes = written + read.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let read = read.iter().map(|bytes| executor.upload(bytes));
        let read = read.collect::<Result<_, _>>().map_err(Into::into)?;
        let written = executor.output(written).map_err(Into::into)?;
        Ok(Self { executor, kernel, read, written, bytes })
    }

    /// Queues the kernel.
    ///
    /// # Errors
    /// What the device says.
    pub fn queue(&mut self) -> Result<(), E::Error> {
        let read = self.read.iter().map(LaunchBuffer::Read);
        let mut slots: Vec<_> = read.chain([LaunchBuffer::Write(&mut self.written)]).collect();
        // SAFETY: as `to_native` and `from_native` say, the only ones that make a value: the key is the
        // source's, and the order names columns that there are.
        let launch = unsafe { Launch::new(&self.kernel, false, &mut slots) };
        self.executor.launch(launch)
    }

    /// What it wrote, after all that was queued.
    ///
    /// # Errors
    /// What the device says.
    pub fn result(&self) -> Result<Vec<u8>, E::Error> {
        self.executor.download(&self.written)
    }

    /// Bytes that it reads and writes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<E: Executor> GpuDevice<E> {
    /// The transform from stores to a native buffer, with the order of the columns if they are
    /// sorted.
    ///
    /// # Errors
    /// Why the source has none; a store that is missing, an order of another weight, or what the device
    /// says.
    pub fn to_native(
        &self,
        request: &Request<'_>,
        part: &NativeBuffer,
        order: Option<&ColumnOrder>,
        stored: Stored<'_, '_>,
    ) -> Result<Transform<E>, ProductError> {
        let moves = self.executor().source().repack_kernels(request, part)?;
        let columns = order.map_or(&[][..], ColumnOrder::columns);
        let there = |column: &u32| *column == NO_COLUMN || u64::from(*column) < request.x_columns;
        if !columns.iter().all(there) {
            return Err(NotScheduled::OtherOrder.into());
        }
        let order = order.map_or_else(Vec::new, ColumnOrder::bytes);
        let mut read = Vec::new();
        for store in &moves.stores {
            let missing = || ProductError::Pack(Box::new(UnpackError::Missing(store.clone())));
            read.push(stored(store).ok_or_else(missing)?);
        }
        read.extend(moves.order.then_some(order.as_slice()));
        let shape = Shape::matrix(request.n, request.x_columns);
        Transform::new(self.shared(), &moves.to_native, shape, &read)
    }

    /// The transform from a native buffer to its only store.
    ///
    /// # Errors
    /// Why the source has none, or what the device says.
    pub fn from_native(
        &self,
        request: &Request<'_>,
        part: &NativeBuffer,
        native: &[u8],
    ) -> Result<Transform<E>, ProductError> {
        let moves = self.executor().source().repack_kernels(request, part)?;
        let shape = Shape::matrix(request.n, request.x_columns);
        Transform::new(self.shared(), &moves.from_native, shape, &[native])
    }
}

fn problem<E: Executor>(executor: &E, Shape { n, k, .. }: Shape) -> ProblemSize {
    ProblemSize::new(1, n, k, executor.multiprocessors())
}

/// Bytes of the array that a transform writes; a rule without one is refused by the launch.
fn written(rule: &LaunchRule, problem: &ProblemSize) -> u64 {
    let written = rule.parameters.iter().find_map(|parameter| match &parameter.kind {
        ParameterKind::Buffer { access: Access::Write, bytes, .. } => bytes.of(problem),
        _ => None,
    });
    written.unwrap_or(0)
}

/// Runs a transform: the array that it writes, and its bytes.
///
/// # Safety
/// The key is one that the executor's source gave for this shape, and an order of columns among the
/// arrays names columns that there are.
pub(super) unsafe fn transformed<E: Executor>(
    executor: &E,
    key: &KernelKey,
    shape: Shape,
    from: &[&E::Memory],
) -> Result<(E::Memory, u64), ProductError> {
    let kernel = executor.kernel(key).map_err(Into::into)?;
    let problem = problem(executor, shape);
    let bytes = written(executor.rule(&kernel), &problem);
    let kernel = executor.ready(&kernel, &problem).map_err(Into::into)?;
    let mut memory = executor.output(bytes).map_err(Into::into)?;
    // A rule with other buffers than these is refused by the launch.
    let read = from.iter().map(|from| LaunchBuffer::Read(*from));
    let mut slots: Vec<LaunchBuffer<'_, E::Memory>> =
        read.chain([LaunchBuffer::Write(&mut memory)]).collect();
    // SAFETY: the caller's promise.
    let launch = unsafe { Launch::new(&kernel, false, &mut slots) };
    executor.launch(launch).map_err(Into::into)?;
    Ok((memory, bytes))
}
