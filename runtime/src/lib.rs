//! The runtime of Quantloom: what a program that multiplies needs at run time.
//!
//! In: a checkpoint and an activation. Out: a product. [`checkpoint`] recognises the layers of
//! third-party files; a [`backend`] prepares a layer ([`cpu`] on any machine, [`gpu`] where something
//! runs kernels), and the [`prepared`] layer multiplies. This crate knows the scheme language and no
//! emitter; the facade `quantloom` gives all devices one type.

pub mod accumulation;
pub mod backend;
mod buffer;
pub mod check;
pub mod checkpoint;
pub mod conformance;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod declared;
pub mod element;
mod explanation;
mod float_mode;
mod forked;
pub mod forward;
pub mod gpu;
#[cfg(feature = "hip")]
pub mod hip;
#[cfg(any(feature = "cuda", feature = "hip"))]
pub mod image_cache;
pub mod measure;
pub mod op;
pub mod output;
pub mod pack;
pub mod prepared;
pub mod quantise;
pub mod source;
pub mod tensor;
pub mod unpacked;
pub mod weight_data;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use forked::Forked;

/// The example of an engine, compiled.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../soundness.md")]
struct Soundness;
