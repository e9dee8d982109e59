//! Products on the CPU.
//!
//! In: an unpacked layer, then activations. Out: y = x w^T + bias. [`CpuDevice`] prepares a layer,
//! [`select`] says on which kernel the layer runs. A layer is packed once into
//! native panels ([`native`]). A product packs its tokens ([`tokens`], `activation`) and loops over
//! panels (`product`, with the sizes of [`blocking`]). A [`decoder`] decodes a code type; a
//! [`vector`] wraps an instruction set, which may replace the default [`tile`]s; [`isa`] compiles
//! each decoder for each instruction set. [`weight`] is the operation that callers use.
//!
//! Matrix instructions multiply whole blocks instead of tiles: AMX of decoded codes, AMX and
//! `bfmmla` of weights and tokens split into bf16 parts ([`split_bf16`]).
//!
//! Start at [`native`] for the layout, at [`tile`] for the arithmetic.

pub(crate) mod activation;
// No instruction set of other architectures has such products yet.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod bf16_dot;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub mod bf16_row;
pub mod blocking;
pub mod decoder;
mod device;
pub mod dot_row;
mod epilogue;
pub mod experts;
mod groups;
pub mod isa;
pub mod kernels;
pub mod native;
mod prefetch;
mod product;
mod quantiser;
mod queue;
mod rows;
pub mod select;
pub mod split_bf16;
mod team;
pub mod tile;
pub mod tokens;
pub mod vector;
pub mod weight;

pub use device::CpuDevice;
pub use team::{set_spin, spin};

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
