//! The launches of a product on memory of its executor: its tensors, and the kernels that are queued
//! on them.
//!
//! [`GpuWeight::tensors`] makes room, [`GpuWeight::queue`] launches, [`GpuWeight::result`] waits for y.

use std::ops::Range;
use std::sync::Arc;

use quantloom_dsl::Scheme;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;

use super::executor::{Executor, Launch, LaunchBuffer};
use super::plan::{BufferLocation, Chunk, Constant};
use super::products::ChosenKernel;
use super::weight::{GpuWeight, PreparedProduct};
use crate::element::Values;
use crate::op::{self, NotScheduled, ProductError};
use crate::source::{Access, BufferRole, Refusal, Storage};

/// x, y and what is computed between them, on the device.
pub struct ProductTensors<E: Executor> {
    /// What they were made for.
    scheme: Arc<Scheme>,
    shape: Shape,
    /// Those in the order of the product, if it has one.
    columns: Option<u64>,
    element: FloatFormat,
    chunk: Arc<Chunk<E>>,
    x: E::Memory,
    y: E::Memory,
    workspace: Vec<E::Memory>,
}

/// Tensors that a weight's products do not take.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the tensors were made for a weight of another scheme, shape or number of columns")]
struct OtherWeight;

impl<E: Executor> ProductTensors<E> {
    /// Whether a kernel of its own makes the product's operand of x: quantised, gathered or padded.
    pub fn has_operand(&self) -> bool {
        self.chunk.launches.len() > 1
    }
}

impl<E: Executor> GpuWeight<E> {
    /// Uploads x, at most [`ChosenKernel::tokens`] rows of it, and makes room for y and the workspace.
    ///
    /// # Errors
    /// See [`GpuWeight::choice`]; whatever the device says.
    pub fn tensors(&self, x: Values<'_>) -> Result<ProductTensors<E>, ProductError> {
        let tokens = op::tokens(self.shape, x.len())? as u64;
        let choice = self.choice(x.format(), tokens)?;
        self.tensors_for(&choice, x)
    }

    /// As [`GpuWeight::tensors`], for a kernel of the caller's choice, such as one to be measured.
    ///
    /// # Errors
    /// As there; a kernel of another product.
    pub fn tensors_for(
        &self,
        choice: &ChosenKernel,
        x: Values<'_>,
    ) -> Result<ProductTensors<E>, ProductError> {
        let tokens = op::tokens(self.shape, x.len())? as u64;
        let product = self.product(x.format())?;
        let own = self.choice(x.format(), tokens)?.key.work;
        if choice.key.work != own || choice.key.target != self.executor.target() {
            return Err(NotScheduled::OtherProduct(Box::new(choice.key.clone())).into());
        }
        let chunk = Arc::new(self.chunk(product, choice, tokens)?);
        self.tensors_of(product, chunk, x)
    }

    /// Uploads the x of a chunk, and makes room for its y and workspace.
    pub(super) fn tensors_of(
        &self,
        product: &PreparedProduct<E>,
        chunk: Arc<Chunk<E>>,
        x: Values<'_>,
    ) -> Result<ProductTensors<E>, ProductError> {
        let executor = &*self.executor;
        let workspace = chunk.workspace_buffers.iter().map(|buffer| match buffer.storage {
            Storage::Counters => executor.zeroed(buffer.bytes),
            _ => executor.output(buffer.bytes),
        });
        let workspace = workspace.collect::<Result<_, _>>().map_err(Into::into)?;
        let x = executor.upload(&bytes(x)).map_err(Into::into)?;
        let y = executor.output(chunk.y_bytes).map_err(Into::into)?;
        let columns = product.order.as_ref().map(|order| order.columns);
        let (scheme, shape, element) = (self.scheme.clone(), self.shape, product.element);
        Ok(ProductTensors { scheme, shape, columns, element, chunk, x, y, workspace })
    }

    /// Queues `y = x w^T` on the tensors of this weight, or of another one of the same scheme and
    /// shape. Allocates nothing on the device.
    ///
    /// # Errors
    /// Tensors of another scheme or shape, or what the device says.
    pub fn queue(&self, tensors: &mut ProductTensors<E>, overlap: bool) -> Result<(), E::Error> {
        self.queue_from(0, tensors, overlap)
    }

    /// As [`GpuWeight::queue`], of the product alone: what was made of x is there from a call of that
    /// one on these tensors.
    ///
    /// # Errors
    /// As there.
    pub fn queue_product(
        &self,
        tensors: &mut ProductTensors<E>,
        overlap: bool,
    ) -> Result<(), E::Error> {
        self.queue_from(tensors.chunk.launches.len().saturating_sub(1), tensors, overlap)
    }

    /// The launches from one of them on.
    fn queue_from(
        &self,
        first: usize,
        tensors: &mut ProductTensors<E>,
        overlap: bool,
    ) -> Result<(), E::Error> {
        let other = || Refusal::Reason(Arc::new(OtherWeight));
        let scheme = Arc::ptr_eq(&self.scheme, &tensors.scheme) || self.scheme == tensors.scheme;
        let product = self.products.iter().find(|product| product.element == tensors.element);
        let product = product.ok_or_else(other)?;
        let columns = product.order.as_ref().map(|order| order.columns);
        if !scheme || (self.shape, columns) != (tensors.shape, tensors.columns) {
            return Err(other().into());
        }
        let ProductTensors { chunk, x, y, workspace, .. } = tensors;
        let bound = Bound {
            constant: &|constant| self.constant(product, constant.role).map(|memory| &**memory),
            input: &|_| Some(&*x),
            y,
            workspace,
        };
        // SAFETY: keys of the source for this weight, or of the caller for the same product
        // (`tensors_for`); the order, which was made of the weight's index or read from a file and
        // looked at, names columns of its K, which is that of the tensors; counters begin as 0.
        unsafe { queued(&*self.executor, chunk, first..usize::MAX, bound, overlap) }
    }

    /// y, after all that was queued: [M, N] as the kernels write it, little-endian.
    ///
    /// # Errors
    /// What the device says.
    pub fn result(&self, tensors: &ProductTensors<E>) -> Result<Vec<u8>, E::Error> {
        self.executor.download(&tensors.y)
    }
}

/// Memory of a chunk's launches.
pub(super) struct Bound<'t, M> {
    /// That of a constant buffer; `None` if there is none.
    pub(super) constant: &'t dyn Fn(&'t Constant<M>) -> Option<&'t M>,
    /// That of an input.
    pub(super) input: &'t dyn Fn(BufferRole) -> Option<&'t M>,
    pub(super) y: &'t mut M,
    /// By the places of the chunk's workspace.
    pub(super) workspace: &'t mut [M],
}

/// Queues some of a chunk's launches.
///
/// # Safety
/// As [`Launch::new`]: the chunk's kernels are those of the executor's source, and the memory's contents are
/// in their range.
///
/// # Errors
/// Memory that is missing, or what the device says.
pub(super) unsafe fn queued<'c, E: Executor>(
    executor: &E,
    chunk: &'c Chunk<E>,
    launches: Range<usize>,
    bound: Bound<'c, E::Memory>,
    overlap: bool,
) -> Result<(), E::Error> {
    let other = || Refusal::Reason(Arc::new(OtherWeight));
    let Bound { constant, input, y, workspace } = bound;
    for launch in chunk.launches.iter().take(launches.end).skip(launches.start) {
        // A plan binds what a launch writes once.
        let mut y = Some(&mut *y);
        let mut workspace: Vec<_> = workspace.iter_mut().map(Some).collect();
        let mut slots = Vec::new();
        for (location, access) in &launch.slots {
            let slot = match *location {
                BufferLocation::Constant(at) => {
                    constant(&chunk.constants[at]).map(LaunchBuffer::Read)
                }
                BufferLocation::Input(role) => input(role).map(LaunchBuffer::Read),
                BufferLocation::Y => y.take().map(LaunchBuffer::Write),
                BufferLocation::Workspace(at) => workspace[at].take().map(|memory| match access {
                    Access::Read => LaunchBuffer::Read(&*memory),
                    Access::Write | Access::ReadWrite => LaunchBuffer::Write(memory),
                }),
            };
            slots.push(slot.ok_or_else(other)?);
        }
        // SAFETY: the caller's promise.
        let launch = unsafe { Launch::new(&launch.ready, overlap, &mut slots) };
        executor.launch(launch)?;
    }
    Ok(())
}

/// Elements as they are.
pub(super) fn bytes(x: Values<'_>) -> Vec<u8> {
    match x {
        Values::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Values::F16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Values::Bf16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}
