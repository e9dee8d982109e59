//! Why there is no such device.

use quantloom_runtime::cpu::isa::UnsupportedIsa;
#[cfg(feature = "cuda")]
use quantloom_runtime::cuda::CudaError;
#[cfg(feature = "hip")]
use quantloom_runtime::hip::HipError;
use quantloom_runtime::source::Refusal;
#[cfg(feature = "wgpu")]
use quantloom_runtime::wgpu::WgpuError;

use super::list::Available;

/// Why a device cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No device is called that.
    #[error("there is no backend \"{name}\"; {available}")]
    Unknown {
        /// The name.
        name: String,
        /// The devices that this build has names for.
        available: Box<Available>,
    },
    /// No kernels are made for the CPU instruction set.
    #[error("there are no kernels for \"{name}\": {why}")]
    NoKernels {
        /// The name.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// The devices need a feature of the crate that this program was compiled without.
    #[error(
        "{feature}: this program was compiled without the feature `{feature}` of quantloom; `cargo add \
         quantloom --features {feature}` adds it (of the command, `cargo build -p quantloom-cli --features {feature}`)"
    )]
    NotCompiled {
        /// The feature, which is the name of the devices too.
        feature: &'static str,
    },
    /// The CPU lacks an instruction set.
    #[error(transparent)]
    Instructions(#[from] UnsupportedIsa),
    /// There is no simulator of the target.
    #[error("{refusal}{}", why.map_or(String::new(), |why| format!("; no target in this version: {why}")))]
    Target {
        /// The targets that there are.
        refusal: Refusal,
        /// What the schedules lack for a GPU that exists.
        why: Option<&'static str>,
    },
    /// The NVIDIA GPU, or its driver.
    #[cfg(feature = "cuda")]
    #[error("cuda: {0}")]
    Cuda(#[source] CudaError),
    /// The AMD GPU, or its runtime.
    #[cfg(feature = "hip")]
    #[error("hip: {0}")]
    Hip(#[source] HipError),
    /// The GPU that is reached through Vulkan, Metal or Direct3D 12.
    #[cfg(feature = "wgpu")]
    #[error("wgpu: {0}")]
    Wgpu(#[from] WgpuError),
}
