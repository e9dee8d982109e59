//! From a prepared layer to its weight on an NVIDIA GPU.

use super::Cuda;
use crate::gpu::GpuWeight;
use crate::prepared::PreparedLayer;

impl PreparedLayer {
    /// The weight on an NVIDIA GPU, for streams, graphs and memory of the caller's own. `None` if the
    /// layer was prepared on another device, or stacks experts.
    pub fn as_cuda(&self) -> Option<&GpuWeight<Cuda>> {
        self.downcast_ref()
    }
}
