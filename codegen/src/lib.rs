//! The compiler: from a scheme to kernels.
//!
//! In: a [`Scheme`](quantloom_dsl::Scheme) and a [`Target`](target::Target). Out: the plan of its
//! products ([`plan::plan()`]: sequences of steps, matrix instructions, scales, layouts), or a typed
//! reason why there is none. With feature `gpu`: GPU kernels in the kernel IR (`ir`), built by
//! `schedule`s and printed by `emit`; `support` says which targets run a scheme. `expand` (feature
//! `rust`) expands `scheme!`, `catalogue` (feature `catalogue`) generates the files of
//! `quantloom-kernels`, `sim` (feature `sim`) simulates kernels on the CPU, `jit` (feature `jit`)
//! supplies them to the runtime. This crate uses no driver.

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
