//! Text from kernels, one folder a language. Every emitter takes a
//! [`Verified`](crate::ir::Verified) kernel: what is not verified cannot be printed. The same
//! kernel gives the same bytes.

pub mod ptx;
