//! From a prepared layer to its weight, or its experts, on an NVIDIA GPU.

use super::Cuda;
use crate::experts::ExpertOp;
use crate::gpu::{GpuExpertLayer, GpuWeight};
use crate::prepared::PreparedLayer;

impl PreparedLayer {
    /// The weight on an NVIDIA GPU, for streams, graphs and memory of the caller's own. `None` if the
    /// layer was prepared on another device, or stacks experts.
    pub fn as_cuda(&self) -> Option<&GpuWeight<Cuda>> {
        self.downcast_ref()
    }
}

impl dyn ExpertOp {
    /// The layer on an NVIDIA GPU, for streams, graphs and memory of the caller's own:
    /// [`GpuExpertLayer::plan`], [`LayerPlan::launch`](crate::gpu::LayerPlan::launch). `None` if the layer was
    /// prepared on another device.
    pub fn as_cuda(&self) -> Option<&GpuExpertLayer<Cuda>> {
        self.downcast_ref()
    }
}
