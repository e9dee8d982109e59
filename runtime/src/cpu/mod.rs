//! Products on the CPU.
//!
//! In: an unpacked layer, then activations. Out: y = x w^T + bias. [`CpuDevice`] packs a layer once into native panels
//! ([`native`]); a product packs its tokens, loops over panels, and converts sums to y. Start at [`native`] for the layout, at
//! [`tile`] for the arithmetic.
//!
//! | what | modules |
//! |---|---|
//! | The choice | `device`: an instruction set and its decoders; [`select`]: the kernel, and why not another; [`isa`]: names, detection, the one dispatch |
//! | The weight | [`native`]: panels; `groups`: groups of w and x as segments; [`decoder`]: what a code type decides; [`weight`]: the operation that callers use |
//! | x | [`tokens`]: tiles of tokens; `activation`: x into the workspace; `quantiser`: codes and scales; `rows` |
//! | The loops | [`blocking`]: how a product is cut up; `product`; `team`: the threads of a short parallel region; `queue`: what they share; `prefetch`: what few tokens prefetch, also of the panels that a thread reads next; `epilogue`: sums to y |
//! | The arithmetic | [`vector`]: 64 bytes, with `avx2`, `avx512` and `neon` as its sets; [`tile`]; [`kernels`]: decoder by set; [`dot_row`], [`bf16_row`]: few tokens; `bf16_dot`: `vdpbf16ps`, where the processor's is faster than `f32`; [`split_bf16`]: weights and x as sums of bf16 numbers; `amx`: matrix registers, on whole blocks; `neon`: Arm's own tiles |
//! | Expert layers | [`experts`] |

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
