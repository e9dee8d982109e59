//! AMD GPUs through the HIP runtime: kernels come as HIP C++, which the runtime's own compiler
//! (hiprtc) turns into code objects; nothing is linked, no toolkit is needed to build, and a machine
//! without ROCm is an error value.
//!
//! In: a [`KernelSource`](crate::source::KernelSource) and device memory. Out: kernels queued on a
//! stream. Start at [`Device`], then [`Loader`] (key -> text -> code object -> kernel), then
//! [`Kernel::launch`]. One idea a file:
//!
//! | file | what |
//! |---|---|
//! | `library` | the two libraries: found once, each function looked up once |
//! | `device` | devices and their facts; which one is the thread's |
//! | `stream`, `buffer` | order and memory |
//! | `compile` | HIP C++ -> code object |
//! | `loader`, `module` | key -> kernel; code object -> kernel, and its launch |
//! | `executor` | the device as what products run on ([`crate::gpu`]) |
//!
//! Images are kept by [`crate::image_cache`], arguments are checked by [`crate::gpu::arguments`]: both
//! are CUDA's too. Every object belongs to a [`Device`] and may be used from any thread; no call
//! leaves another device current than it found. Only [`Kernel::launch`] is `unsafe`: what a kernel's
//! text does is beyond the compiler's sight. Why the rest is safe stands in `docs/soundness.md`.

mod buffer;
mod compile;
mod device;
mod error;
mod executor;
mod library;
mod loader;
mod module;
mod stream;

pub use buffer::Buffer;
pub use device::{Device, DeviceInfo, devices};
pub use error::HipError;
pub use executor::Hip;
pub use library::Libraries;
pub use loader::{Loader, Origin, load};
pub use module::{Argument, Kernel, KernelFacts};
pub use stream::Stream;
