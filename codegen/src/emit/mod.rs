//! Text from plans and kernels, one folder a language. GPU emitters take a
//! `Verified` kernel: what is not verified cannot be printed. The same
//! input gives the same bytes.

#[cfg(feature = "gpu")]
mod header;
#[cfg(feature = "gpu")]
pub mod hip;
#[cfg(feature = "gpu")]
pub mod ptx;
#[cfg(feature = "rust")]
pub mod rust;
#[cfg(feature = "gpu")]
mod text;
#[cfg(feature = "gpu")]
pub mod wgsl;

#[cfg(feature = "gpu")]
pub use text::{Unprinted, ending, launch_shared, text};
