//! Experts on a GPU.
//!
//! [`GpuExperts`] has the experts of a stacked weight, a weight each, multiplied one at a time.
//! [`GpuExpertLayer`] has a whole layer: both products of all experts, each a stack of matrices that one
//! launch multiplies, and all between them.
//!
//! | file | what |
//! |---|---|
//! | `layer` | a prepared layer: what an engine holds |
//! | `stack` | the constant buffers of a product, of all experts |
//! | `input` | what the inputs of all experts share: static scales |
//! | `choices` | which kernels multiply M tokens, and how the two products work together |
//! | `plan` | the launches for M tokens |
//! | `tensors` | memory of the executor, and the launches on it |
//! | `call` | the op for the host's memory |
//! | `tune` | the fastest kernels for M tokens, found by measuring |

mod call;
mod choices;
mod input;
mod layer;
mod pairs;
mod plan;
mod stack;
mod tensors;
mod tune;

pub use layer::GpuExpertLayer;
pub use plan::{LayerPlan, PlanKey, RoutedBy};
pub use tensors::ExpertTensors;
pub use tune::{ExpertTuner, TimedExperts, TunedExperts};

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Shape;

use super::device::GpuDevice;
use super::executor::Executor;
use super::weight::GpuWeight;
use crate::accumulation::Accumulation;
use crate::buffer::Workspace;
use crate::element::{Values, ValuesMut};
use crate::op::{self, Op, ProductError};
use crate::unpacked::Unpacked;

/// The experts of a layer, each a weight of its own.
pub struct GpuExperts<E: Executor> {
    scheme: Scheme,
    shape: Shape,
    /// The first one; it stands for all where only the scheme and the shape matter.
    first: GpuWeight<E>,
    others: Vec<GpuWeight<E>>,
}

impl<E: Executor> GpuExperts<E> {
    /// Packs and uploads each expert of an unpacked layer.
    ///
    /// # Errors
    /// See [`GpuDevice::prepare`]; [`ProductError::Expert`] if there is none.
    pub fn new(
        device: &GpuDevice<E>,
        scheme: &Scheme,
        weight: &Unpacked,
    ) -> Result<Self, ProductError> {
        op::same_weight(scheme, weight)?;
        let dense = Scheme { experts: None, ..scheme.clone() };
        let experts = weight.shape().experts;
        let prepared = |expert: u64| {
            let none = ProductError::Expert { expert, experts };
            device.prepare(&dense, &weight.expert(expert).ok_or(none)?)
        };
        let first = prepared(0)?;
        let others = (1..experts).map(prepared).collect::<Result<_, _>>()?;
        Ok(Self { scheme: scheme.clone(), shape: weight.shape(), first, others })
    }

    /// One expert's weight.
    pub fn expert(&self, expert: u64) -> Option<&GpuWeight<E>> {
        match usize::try_from(expert).ok()?.checked_sub(1) {
            None => Some(&self.first),
            Some(other) => self.others.get(other),
        }
    }
}

impl<E: Executor + 'static> Op for GpuExperts<E> {
    fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn kernel(&self, tokens: usize) -> String {
        self.first.kernel(tokens)
    }

    fn explain(&self, tokens: usize) -> String {
        let each = format!("{} experts, one launch each", self.shape.experts);
        format!("{each}\n{}", self.first.explain(tokens))
    }

    /// That of one expert, which is that of all.
    fn accumulation(&self) -> &dyn Accumulation {
        &self.first
    }

    fn workspace_size(&self, tokens: usize) -> usize {
        self.first.workspace_size(tokens)
    }

    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        let none = ProductError::Expert { expert, experts: self.shape.experts };
        self.expert(expert).ok_or(none)?.matmul_into(0, x, y, workspace)
    }
}
