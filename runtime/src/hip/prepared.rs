//! From a prepared layer to its weight on an AMD GPU.

use super::Hip;
use crate::gpu::GpuWeight;
use crate::prepared::PreparedLayer;

impl PreparedLayer {
    /// The weight on an AMD GPU, for streams and memory of the caller's own. `None` if the layer was prepared on another
    /// device, or stacks experts.
    pub fn as_hip(&self) -> Option<&GpuWeight<Hip>> {
        self.downcast_ref()
    }
}
