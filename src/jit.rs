//! The compiler as the source of a GPU's kernels.
//!
//! GPUs run the texts of a source as they are, so that somebody has to vouch for them
//! ([`Trusted::new`] is `unsafe`). For the compiler of this package that is done here, once: a program
//! opens a GPU without `unsafe`.
//!
//! ```no_run
//! # #[cfg(feature = "cuda")]
//! # fn open() -> Result<(), Box<dyn std::error::Error>> {
//! use quantloom::runtime::cuda::Cuda;
//! use quantloom::runtime::gpu::GpuDevice;
//!
//! // As `quantloom::Device::cuda(0)` does, which reads the tiles of this device besides (`quantloom::tiles`).
//! let device = GpuDevice::new(Cuda::new(0, quantloom::jit::source())?);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use quantloom_codegen::jit::{Jit, JitWithOverrides, Overrides, TileTable};
use quantloom_runtime::gpu::{Products, Trusted};

/// The compiler.
pub fn source() -> Trusted {
    vouch(Arc::new(Jit))
}

/// The compiler, with other free choices of its schedules.
pub fn with_overrides(choices: Overrides) -> Trusted {
    vouch(Arc::new(JitWithOverrides::new(choices)))
}

/// The compiler for a device, with the tiles that were measured on it (`crate::tiles::DeviceTiles`) and other free choices of
/// its schedules.
pub fn of_device(tiles: Arc<dyn TileTable>, choices: Overrides) -> Trusted {
    vouch(Arc::new(JitWithOverrides::new(choices).with_tiles(tiles)))
}

/// The compiler's own sources, whose texts are all made in one way.
#[expect(
    unsafe_code,
    reason = "the texts of the compiler are vouched for where compiler and devices meet"
)]
fn vouch(source: Arc<dyn Products>) -> Trusted {
    // SAFETY: each text is printed from a kernel that `codegen::ir::verify` accepted, and its rule is
    // derived from the same kernel: the parameters are the text's, and buffers have the extents that the
    // kernel declares. That no access leaves those is what the simulator, which runs the same kernels
    // with every address checked, is there for: CI does so for each schedule, over the catalogue and
    // random schemes, with ragged shapes. Free choices pass the same verifier, and a key
    // without a meaning has no text.
    unsafe { Trusted::new(source) }
}
