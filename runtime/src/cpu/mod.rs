//! Products on the CPU.
//!
//! In: an unpacked layer, then activations. Out: y = x w^T + bias. A layer is packed once into
//! native panels ([`native`]); a product packs its tokens ([`tokens`], `activation`) and loops
//! over panels (`product`, cut up by [`blocking`]). What a code type decides is a [`family`]; what an instruction set
//! decides is a [`vector`] (and, where it has instructions of another shape, its own [`tile`]s);
//! [`isa`] compiles the one for the other. [`weight`] is the operation that callers hold.
//!
//! Matrix instructions take whole blocks instead of tiles: AMX of decoded codes, AMX and `bfmmla` of
//! weights and tokens cut into bf16 [`parts`].
//!
//! Start at [`native`] for the layout, at [`tile`] for the arithmetic.

pub(crate) mod activation;
pub mod blocking;
pub mod decode;
mod epilogue;
pub mod family;
pub mod isa;
pub mod native;
pub mod parts;
mod product;
mod quantiser;
pub mod tile;
pub mod tokens;
pub mod vector;
pub mod weight;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
