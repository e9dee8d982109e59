//! What `{:?}` says of a device, of a weight on it and of the tensors of a product: names, no numbers.

use std::fmt;

use super::device::GpuDevice;
use super::executor::Executor;
use super::experts::GpuExperts;
use super::launch::ProductTensors;
use super::weight::GpuWeight;

impl<E: Executor> fmt::Debug for GpuDevice<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, target) = (self.executor().name(), self.executor().target());
        f.debug_struct("GpuDevice").field("name", &name).field("target", &target).finish()
    }
}

impl<E: Executor> fmt::Debug for GpuWeight<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("GpuWeight");
        fields.field("device", &self.executor().name()).field("scheme", &self.scheme.name);
        fields.field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<E: Executor> fmt::Debug for GpuExperts<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuExperts").field("first", &self.expert(0)).finish_non_exhaustive()
    }
}

impl<E: Executor> fmt::Debug for ProductTensors<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProductTensors")
            .field("has_operand", &self.has_operand())
            .finish_non_exhaustive()
    }
}
