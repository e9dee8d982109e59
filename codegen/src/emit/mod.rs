//! Emitters: source code from plans and kernels, one folder per language. GPU emitters require a
//! `Verified` kernel. The output is deterministic.

#[cfg(feature = "gpu")]
mod header;
#[cfg(feature = "gpu")]
pub mod hip;
#[cfg(feature = "gpu")]
pub mod ptx;
#[cfg(feature = "rust")]
pub mod rust;
#[cfg(feature = "gpu")]
mod source;
#[cfg(feature = "gpu")]
mod walk;
#[cfg(feature = "gpu")]
pub mod wgsl;

#[cfg(feature = "gpu")]
pub use source::{EmitError, dynamic_shared_bytes, file_extension, source};
