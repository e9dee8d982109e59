//! The source of a verified kernel, in the language of its target.

use super::{hip, ptx, wgsl};
use crate::ir::{Kernel, Verified};
use crate::target::{Chip, Target};

/// Why a kernel has no source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// It cannot be printed as PTX.
    #[error(transparent)]
    Ptx(#[from] ptx::PtxEmitError),
    /// It cannot be printed as HIP C++.
    #[error(transparent)]
    Hip(#[from] hip::HipEmitError),
    /// It cannot be printed as WGSL.
    #[error(transparent)]
    Wgsl(#[from] wgsl::WgslEmitError),
}

/// The file extension of a target's kernels.
pub fn file_extension(target: &Target) -> &'static str {
    match target.gpu.map(|gpu| gpu.chip) {
        Some(Chip::Gfx(_)) => "hip",
        Some(Chip::Wgsl) => "wgsl",
        _ => "ptx",
    }
}

/// The source of a kernel, in the language of its target.
///
/// # Errors
/// [`EmitError`] if the kernel cannot be printed.
pub fn source(kernel: &Verified<Kernel>) -> Result<String, EmitError> {
    match kernel.target.gpu.map(|gpu| gpu.chip) {
        Some(Chip::Gfx(_)) => Ok(hip::emit(kernel)?),
        Some(Chip::Wgsl) => Ok(wgsl::emit(kernel)?),
        _ => Ok(ptx::emit(kernel)?),
    }
}

/// Bytes of dynamic shared memory of each block at launch: 0 for HIP, whose shared memory is
/// static.
pub fn dynamic_shared_bytes(kernel: &Kernel) -> u32 {
    match kernel.target.gpu.map(|gpu| gpu.chip) {
        Some(Chip::Gfx(_)) => 0,
        _ => kernel.shared_map().bytes,
    }
}
