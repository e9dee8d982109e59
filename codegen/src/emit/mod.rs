//! Text from plans and kernels, one folder a language. GPU emitters take a
//! [`Verified`](crate::ir::Verified) kernel: what is not verified cannot be printed. The same
//! input gives the same bytes.

mod header;
pub mod hip;
pub mod ptx;
#[cfg(feature = "rust")]
pub mod rust;
pub mod wgsl;
