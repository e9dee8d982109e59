//! The compiler: from a scheme to kernels.
//!
//! In: a [`Scheme`](quantloom_dsl::Scheme) and a [`Target`](target::Target). Out: whether the
//! target can run it, or a typed reason why not ([`plan::support`]); the plan of its products
//! ([`plan::plan()`]: sequences of steps, matrix instructions, scales, layouts); and GPU kernels in
//! the kernel IR ([`mod@ir`]), built by [`schedule`]s and printed by [`emit`]. `expand` (feature
//! `rust`) expands `scheme!`, `catalogue` (feature `catalogue`) generates the files of
//! `quantloom-kernels`, `sim` (feature `sim`) simulates kernels on the CPU, `jit` (feature `jit`)
//! supplies them to the runtime. This crate uses no driver.

#![forbid(unsafe_code)]

#[cfg(feature = "catalogue")]
pub mod catalogue;
pub mod emit;
#[cfg(feature = "rust")]
pub mod expand;
pub mod ir;
#[cfg(feature = "jit")]
pub mod jit;
pub mod plan;
pub mod schedule;
#[cfg(feature = "sim")]
pub mod sim;
pub mod target;
