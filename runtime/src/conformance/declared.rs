//! A declared scheme on a device, with its generated decoder, as a backend.

use std::marker::PhantomData;

use quantloom_dsl::Scheme;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;

use crate::device::{Backend, Device};
use crate::element::{Values, ValuesMut};
use crate::op::{Declared, Decoded, Op, Packed, ProductError, Sums, Weight, Workspace};
use crate::unpacked::Unpacked;

/// Prepares weights of one declared scheme.
pub(super) struct OnDevice<S>(Device, PhantomData<S>);

impl<S> OnDevice<S> {
    pub(super) fn new(device: Device) -> Self {
        Self(device, PhantomData)
    }
}

impl<S: Declared> Backend for OnDevice<S> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn prepare(&self, _: &Scheme, weight: &Unpacked) -> Result<Box<dyn Op>, ProductError> {
        Ok(Box::new(Typed(Packed::<S>::new(weight.clone())?.prepare(&self.0)?)))
    }
}

/// A declared scheme's weight as an [`Op`].
struct Typed<S>(Weight<S>);

impl<S: Declared> Op for Typed<S> {
    fn scheme(&self) -> &Scheme {
        self.0.op().scheme()
    }
    fn shape(&self) -> Shape {
        self.0.op().shape()
    }
    fn kernel(&self, tokens: usize) -> String {
        self.0.op().kernel(tokens)
    }
    fn explain(&self, tokens: usize) -> String {
        self.0.op().explain(tokens)
    }
    fn sums(&self, tokens: usize) -> Sums {
        self.0.op().sums(tokens)
    }
    fn decoded(&self, x: FloatFormat, tokens: usize) -> Decoded {
        self.0.op().decoded(x, tokens)
    }
    fn rounded_to(&self, x: FloatFormat, y: FloatFormat) -> FloatFormat {
        self.0.op().rounded_to(x, y)
    }
    fn workspace_size(&self, tokens: usize) -> usize {
        self.0.op().workspace_size(tokens)
    }
    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        self.0.op().matmul_into(expert, x, y, workspace)
    }
}
