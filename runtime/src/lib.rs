//! The runtime of Quantloom: what a program that multiplies needs at run time.
//!
//! In: a checkpoint and an activation. Out: a product. [`checkpoint`] recognises the layers of
//! third-party files; a [`backend`] prepares a layer ([`cpu`] on any machine, [`gpu`] where something
//! runs kernels), and the [`prepared`] layer multiplies. This crate knows the scheme language and no
//! emitter; the facade `quantloom` gives all devices one type. What checks and measures products is the
//! crate `quantloom-tools`.

pub mod accumulation;
pub mod atomic_file;
pub mod atomic_folder;
pub mod backend;
mod buffer;
pub mod checkpoint;
mod column_order;
pub mod convert;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod declared;
#[cfg(any(feature = "cuda", feature = "hip"))]
pub mod driver;
pub mod element;
pub mod experts;
mod explanation;
pub mod float_mode;
mod forked;
pub mod gpu;
#[cfg(feature = "hip")]
pub mod hip;
#[cfg(any(feature = "cuda", feature = "hip"))]
pub mod image_cache;
pub mod op;
pub mod pack;
pub mod prepared;
pub mod quantise;
pub mod source;
pub mod tensor;
pub mod unpacked;
pub mod weight_data;
#[cfg(feature = "wgpu")]
pub mod wgpu;

/// Memory in the pages that weights have, for those who measure how fast they are read.
#[doc(hidden)]
pub use buffer::AlignedBuffer;
pub use forked::Forked;

/// The example of an engine, compiled.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../soundness.md")]
struct Soundness;
