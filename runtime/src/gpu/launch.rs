//! The launches of a product: its tensors on the device, and the kernels that are queued on them.
//!
//! [`GpuWeight::tensors`] makes room, [`GpuWeight::queue`] launches, [`GpuWeight::result`] waits for y.

use std::collections::BTreeMap;
use std::sync::Arc;

use quantloom_dsl::Scheme;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;

use super::executor::{Executor, Launch, Slot};
use super::products::Choice;
use super::weight::GpuWeight;
use crate::element::Values;
use crate::op::{self, ProductError};
use crate::source::{Access, ParameterKind, Problem, Refusal};

/// x, y and what lies between them on the device.
pub struct Tensors<E: Executor> {
    /// What they were made for.
    scheme: Arc<Scheme>,
    shape: Shape,
    /// Those in the order of the product, if it has one.
    columns: Option<u64>,
    element: FloatFormat,
    problem: Problem,
    /// In the order of their launches; the last one is the product.
    kernels: Vec<E::Kernel>,
    /// By the names of buffers.
    memory: BTreeMap<String, E::Memory>,
}

/// The user's x, and the y of a product.
const X: &str = "x";
const Y: &str = "y";
/// What kernels make of x.
const OPERAND: &str = "operand";
/// The column of x at each place of it.
pub(super) const ORDER: &str = "order";

/// What a source's rule gets wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the kernel's rule names the buffer `{0}`, which is none of a product's")]
struct UnknownBuffer(String);

/// Tensors that a weight's products do not take.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the tensors were made for a weight of another scheme, shape or number of columns")]
struct OtherWeight;

impl<E: Executor> Tensors<E> {
    /// Whether a kernel of its own makes the product's operand of x: quantised, gathered or padded.
    pub fn has_operand(&self) -> bool {
        self.kernels.len() > 1
    }
}

impl<E: Executor> GpuWeight<E> {
    /// Uploads x, at most [`Choice::tokens`] rows of it, and makes room for y and what lies between.
    ///
    /// # Errors
    /// See [`GpuWeight::choice`]; whatever the device says.
    pub fn tensors(&self, x: Values<'_>) -> Result<Tensors<E>, ProductError> {
        let tokens = op::tokens(self.shape, x.len())? as u64;
        let choice = self.choice(x.format(), tokens)?;
        self.tensors_for(&choice, x)
    }

    /// As [`GpuWeight::tensors`], for a kernel of the caller's choice, such as one to be measured.
    ///
    /// # Errors
    /// As there; a kernel of another product.
    pub fn tensors_for(&self, choice: &Choice, x: Values<'_>) -> Result<Tensors<E>, ProductError> {
        let element = x.format();
        let tokens = op::tokens(self.shape, x.len())? as u64;
        let product = self.product(element)?;
        let own = self.choice(element, tokens)?.key.work;
        if choice.key.work != own || choice.key.target != self.executor.target() {
            let why = format!("{} is no kernel of this weight's products", choice.key);
            return Err(ProductError::NotScheduled(why));
        }
        let mut kernels = Vec::new();
        for key in product.operand.iter().chain([&choice.key]) {
            kernels.push(self.executor.kernel(key).map_err(Into::into)?);
        }
        let Shape { n, k, .. } = self.shape;
        let problem = Problem { m: tokens, n, k, multiprocessors: self.executor.multiprocessors() };
        let mut memory = BTreeMap::new();
        memory.insert(X.to_owned(), self.executor.upload(&bytes(x)).map_err(Into::into)?);
        for kernel in &kernels {
            for parameter in &self.executor.rule(kernel).parameters {
                let ParameterKind::Buffer { access, bytes, .. } = &parameter.kind else { continue };
                // A rule that gives no number here is refused by the launch, with its name.
                let bytes = bytes.of(&problem).unwrap_or(0);
                let made = match access {
                    Access::Read => continue,
                    Access::Write => self.executor.output(bytes),
                    Access::ReadWrite => self.executor.zeroed(bytes),
                };
                memory.insert(parameter.name.clone(), made.map_err(Into::into)?);
            }
        }
        let order = product.order.as_ref();
        let (scheme, columns) = (self.scheme.clone(), order.map(|order| order.columns));
        Ok(Tensors { scheme, shape: self.shape, columns, element, problem, kernels, memory })
    }

    /// Queues `y = x w^T` on the tensors of this weight, or of another one of the same scheme and
    /// shape. Allocates nothing on the device.
    ///
    /// # Errors
    /// Tensors of another scheme or shape, or what the device says.
    pub fn queue(&self, tensors: &mut Tensors<E>, overlap: bool) -> Result<(), E::Error> {
        self.queue_from(0, tensors, overlap)
    }

    /// As [`GpuWeight::queue`], of the product alone: what was made of x is there from a call of that
    /// one on these tensors.
    ///
    /// # Errors
    /// As there.
    pub fn queue_product(&self, tensors: &mut Tensors<E>, overlap: bool) -> Result<(), E::Error> {
        self.queue_from(tensors.kernels.len().saturating_sub(1), tensors, overlap)
    }

    /// The launches from one of them on.
    fn queue_from(
        &self,
        first: usize,
        tensors: &mut Tensors<E>,
        overlap: bool,
    ) -> Result<(), E::Error> {
        let scheme = Arc::ptr_eq(&self.scheme, &tensors.scheme) || self.scheme == tensors.scheme;
        let product = self.products.iter().find(|product| product.element == tensors.element);
        let parts = product.map_or(&[][..], |product| &product.parts);
        let order = product.and_then(|product| product.order.as_ref());
        let columns = order.map(|order| order.columns);
        if !scheme || (self.shape, columns) != (tensors.shape, tensors.columns) {
            return Err(Refusal::Reason(Arc::new(OtherWeight)).into());
        }
        let last = tensors.kernels.len().saturating_sub(1);
        for (at, kernel) in tensors.kernels.iter().enumerate().skip(first) {
            let mut memory: BTreeMap<&str, &mut E::Memory> =
                tensors.memory.iter_mut().map(|(name, memory)| (name.as_str(), memory)).collect();
            let mut slots = Vec::new();
            for parameter in &self.executor.rule(kernel).parameters {
                let ParameterKind::Buffer { access, .. } = parameter.kind else { continue };
                let name = match parameter.name.as_str() {
                    // What was made of x is the x of the product.
                    X if at == last && at > 0 => OPERAND,
                    name => name,
                };
                let part = parts.iter().find(|part| part.native.buffer == name);
                let given = match name {
                    ORDER => order.map(|order| &order.memory),
                    name => self.given.get(name).map(|given| &**given),
                };
                let slot = match (part, given, access) {
                    (Some(part), _, Access::Read) => Some(Slot::Read(&part.memory)),
                    (None, Some(given), Access::Read) => Some(Slot::Read(given)),
                    (None, None, Access::Read) => {
                        memory.remove(name).map(|memory| Slot::Read(memory))
                    }
                    (_, _, Access::Write | Access::ReadWrite) => {
                        memory.remove(name).map(Slot::Write)
                    }
                };
                let unknown = || Refusal::Fault(Arc::new(UnknownBuffer(parameter.name.clone())));
                slots.push(slot.ok_or_else(unknown)?);
            }
            // SAFETY: keys of the source for this weight, or of the caller for the same product
            // (`tensors_for`); the order, which was made of the weight's index or read from a file and
            // looked at, names columns of its K, which is that of the tensors; workspaces begin as 0.
            let launch = unsafe { Launch::new(kernel, &tensors.problem, overlap, &mut slots) };
            self.executor.launch(launch)?;
        }
        Ok(())
    }

    /// y, after all that was queued: [M, N] as the kernels write it, little-endian.
    ///
    /// # Errors
    /// What the device says.
    pub fn result(&self, tensors: &Tensors<E>) -> Result<Vec<u8>, E::Error> {
        let y = tensors.memory.get(Y);
        let unknown = || Refusal::Fault(Arc::new(UnknownBuffer(Y.to_owned())));
        self.executor.download(y.ok_or_else(unknown)?)
    }
}

/// Elements as they are.
fn bytes(x: Values<'_>) -> Vec<u8> {
    match x {
        Values::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Values::F16(values) => values.iter().flat_map(|value| value.0.to_le_bytes()).collect(),
        Values::Bf16(values) => values.iter().flat_map(|value| value.0.to_le_bytes()).collect(),
    }
}
