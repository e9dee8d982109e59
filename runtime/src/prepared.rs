//! A layer that a device has prepared: what a program multiplies with, the same on every device.
//!
//! In: x on the host. Out: y on the host. What is particular to a device (its own memory, streams,
//! graphs) is behind [`PreparedLayer::downcast_ref`].

use std::any::Any;
use std::fmt;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Shape;

use crate::backend::Backend;
use crate::buffer::Workspace;
use crate::element::{Values, ValuesMut};
use crate::op::{Op, ProductError};
use crate::weight_data::WeightData;

/// A layer on a device: `y = x w^T + bias`.
pub struct PreparedLayer {
    op: Box<dyn Op>,
}

impl PreparedLayer {
    /// A prepared product as a layer.
    pub fn new(op: Box<dyn Op>) -> Self {
        Self { op }
    }

    /// The scheme that it computes.
    pub fn scheme(&self) -> &Scheme {
        self.op.scheme()
    }

    /// The weight's shape.
    pub fn shape(&self) -> Shape {
        self.op.shape()
    }

    /// The kernel that multiplies M tokens and why; each one that was rejected, with the reason.
    pub fn explain(&self, tokens: usize) -> String {
        self.op.explain(tokens)
    }

    /// `y = x w^T + bias`: x is [M, K] in `f32`, f16 or bf16, the result [M, N].
    ///
    /// # Errors
    /// [`ProductError::Stacked`] for a layer of stacked experts; see [`ProductError`] for others.
    pub fn matmul<'x>(&self, x: impl Into<Values<'x>>) -> Result<Vec<f32>, ProductError> {
        self.op.matmul(self.only_expert()?, x.into())
    }

    /// [`PreparedLayer::matmul`] of rows of x that begin `stride` elements apart, a part of a wider
    /// tensor: they are copied next to one another first.
    ///
    /// # Errors
    /// [`ProductError::Stride`]; as there for others.
    pub fn matmul_strided<'x>(
        &self,
        x: impl Into<Values<'x>>,
        stride: usize,
    ) -> Result<Vec<f32>, ProductError> {
        let (x, k): (Values<'x>, u64) = (x.into(), self.shape().k);
        let rows = usize::try_from(k).ok().and_then(|k| x.dense_rows(k, stride));
        let wrong = || ProductError::Stride { k, stride, found: x.len() as u64 };
        self.matmul(rows.as_ref().ok_or_else(wrong)?)
    }

    /// [`PreparedLayer::matmul`] into the caller's y, [M, N] in `f32` or in the type of x.
    ///
    /// Allocates nothing on the host if the workspace has [`PreparedLayer::workspace_size`]; else the
    /// workspace grows.
    ///
    /// # Errors
    /// As there; y is then untouched.
    pub fn matmul_into<'x, 'y>(
        &self,
        x: impl Into<Values<'x>>,
        y: impl Into<ValuesMut<'y>>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        self.op.matmul_into(self.only_expert()?, x.into(), y.into(), workspace)
    }

    /// [`PreparedLayer::matmul`] with one of the experts that the layer stacks.
    ///
    /// # Errors
    /// [`ProductError::Expert`] if there are fewer; see [`ProductError`] for others.
    pub fn matmul_expert<'x>(
        &self,
        expert: u64,
        x: impl Into<Values<'x>>,
    ) -> Result<Vec<f32>, ProductError> {
        self.op.matmul(expert, x.into())
    }

    /// Bytes of workspace for M tokens on the threads of the caller's pool.
    pub fn workspace_size(&self, tokens: usize) -> usize {
        self.op.workspace_size(tokens)
    }

    /// The product, for an engine that holds layers of several kinds.
    pub fn op(&self) -> &dyn Op {
        &*self.op
    }

    /// The product itself.
    pub fn into_op(self) -> Box<dyn Op> {
        self.op
    }

    /// The product as what a device made it: `cpu::weight::CpuWeight`, or `gpu::GpuWeight` of an
    /// executor. `None` if another device did.
    pub fn downcast_ref<T: Op>(&self) -> Option<&T> {
        let op: &dyn Any = &*self.op;
        op.downcast_ref()
    }

    fn only_expert(&self) -> Result<u64, ProductError> {
        match self.op.shape().experts {
            0 | 1 => Ok(0),
            experts => Err(ProductError::Stacked { experts }),
        }
    }
}

impl WeightData<'_> {
    /// Prepares the weight on a device.
    ///
    /// # Errors
    /// See [`ProductError`].
    pub fn prepare(&self, device: &(impl Backend + ?Sized)) -> Result<PreparedLayer, ProductError> {
        device.prepare_weight(self).map(PreparedLayer::new)
    }
}

impl fmt::Debug for PreparedLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("PreparedLayer");
        fields.field("scheme", &self.scheme().name).field("shape", &self.shape());
        fields.field("kernel", &self.op.kernel(1)).finish()
    }
}
