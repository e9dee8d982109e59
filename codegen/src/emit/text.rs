//! The text of a verified kernel, in the language of its target.

use super::{hip, ptx, wgsl};
use crate::ir::{Kernel, Verified};
use crate::target::{Chip, Target};

/// Why a kernel has no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unprinted {
    /// None in PTX.
    #[error(transparent)]
    Ptx(#[from] ptx::NotForPtx),
    /// None in HIP C++.
    #[error(transparent)]
    Hip(#[from] hip::NotForHip),
    /// None in WGSL.
    #[error(transparent)]
    Wgsl(#[from] wgsl::NotForWgsl),
}

/// The ending of files with a target's kernels.
pub fn ending(target: &Target) -> &'static str {
    match target.gpu.map(|gpu| gpu.chip) {
        Some(Chip::Gfx(_)) => "hip",
        Some(Chip::Wgsl) => "wgsl",
        _ => "ptx",
    }
}

/// The text of a kernel, in the language of its target.
///
/// # Errors
/// [`Unprinted`] if there is none.
pub fn text(kernel: &Verified<Kernel>) -> Result<String, Unprinted> {
    match kernel.target.gpu.map(|gpu| gpu.chip) {
        Some(Chip::Gfx(_)) => Ok(hip::emit(kernel)?),
        Some(Chip::Wgsl) => Ok(wgsl::emit(kernel)?),
        _ => Ok(ptx::emit(kernel)?),
    }
}

/// Bytes of shared memory that a launch of the text gives each block: a HIP text has its own.
pub fn launch_shared(kernel: &Kernel) -> u32 {
    match kernel.target.gpu.map(|gpu| gpu.chip) {
        Some(Chip::Gfx(_)) => 0,
        _ => kernel.shared_map().bytes,
    }
}
