//! The compiler: from a scheme to kernels.
//!
//! In: a [`Scheme`](quantloom_dsl::Scheme) and a [`Target`](target::Target). Out: what is computed
//! there ([`plan::plan()`]: sequences of steps, products, scales, layouts), or a typed reason why it
//! is not. With feature `gpu`: GPU kernels as values of the kernel IR (`ir`), written by `schedule`s
//! and printed by `emit`; `support` says which targets run a scheme. `expand` (feature `rust`) is
//! what `scheme!` does with a declaration, `catalogue` (feature `catalogue`) makes the files of
//! `quantloom-kernels`, `sim` (feature `sim`) runs kernels here, `jit` (feature `jit`) hands them to
//! the runtime. This crate knows no driver.

#![forbid(unsafe_code)]

#[cfg(feature = "catalogue")]
pub mod catalogue;
pub mod emit;
#[cfg(feature = "rust")]
pub mod expand;
#[cfg(feature = "gpu")]
pub mod ir;
#[cfg(feature = "jit")]
pub mod jit;
pub mod plan;
#[cfg(feature = "gpu")]
pub mod schedule;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "gpu")]
pub mod support;
pub mod target;
