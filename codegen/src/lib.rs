//! From a scheme to what is computed for it.
//!
//! In: a [`Scheme`](quantloom_dsl::Scheme) and a [`Target`](target::Target). Out: whether the
//! target can run it, or a typed reason why not ([`plan::support`]), what is computed there
//! ([`plan::plan()`]: sequences of steps, products, scales, layouts), and GPU kernels as values
//! of the kernel IR ([`mod@ir`]), written by [`schedule`]s and printed by [`emit`]. `expand`
//! (feature `rust`) is what `scheme!` does with a declaration, `catalogue` (feature `catalogue`)
//! makes the files of `quantloom-kernels`, `sim` (feature `sim`) runs kernels here, `jit`
//! (feature `jit`) hands them to the runtime. This crate knows no driver.

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
