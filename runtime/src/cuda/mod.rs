//! NVIDIA GPUs through the driver API: kernels come as PTX text, nothing is linked, no toolkit is
//! needed, and a machine without a driver is an error value.
//!
//! In: a [`KernelSource`](crate::source::KernelSource) and device memory. Out: kernels queued on
//! a stream. Start at [`Context`] (a device), then [`Loader`] (key -> text -> image -> kernel),
//! then [`Kernel::launch`]. One idea a file:
//!
//! | file | what |
//! |---|---|
//! | `driver` | the library: found once, each function looked up once |
//! | `device` | devices and their facts, contexts |
//! | `stream`, `graph`, `buffer` | order and time, repetition, memory |
//! | `order` | who uses memory on which stream, and what a graph keeps |
//! | `link` | PTX -> image, by the driver's own compiler |
//! | `module`, `loader` | image -> kernel; key -> kernel |
//! | `launch`, `tensor_map` | what was checked by [`crate::gpu::arguments`], launched; boxes of tensors |
//! | `executor` | the device as what products run on ([`crate::gpu`]) |
//! | `engine` | products in memory and on a stream of the caller |
//!
//! Every object belongs to a [`Context`] and may be used from any thread. No call leaves another
//! context current than it found. Only [`Kernel::launch`], launches of plans in a caller's memory,
//! asynchronous copies of borrowed memory and foreign handles are `unsafe`: what a kernel's text does is beyond the compiler's sight. Why the
//! rest is safe: `order`, which keeps streams from racing and graphs from outliving what they use, and
//! `docs/soundness.md`.

mod buffer;
mod device;
mod driver;
mod engine;
mod error;
mod executor;
mod graph;
mod launch;
mod link;
mod loader;
mod module;
mod order;
mod prepared;
mod stream;
mod tensor_map;

pub use crate::gpu::arguments::{DeviceSlice, DeviceSliceMut, LaunchFault, Limits};
pub use crate::image_cache::{ImageCache, ImageKey, VARIABLE};
pub use buffer::{Buffer, Element, Pinned};
pub use device::{Context, DeviceInfo, devices, runs};
pub use driver::{Driver, version_text};
pub use error::CudaError;
pub use executor::{Cuda, Ready};
pub use graph::Graph;
pub use launch::{Argument, Prepared};
pub use link::text_target;
pub use loader::{Loader, Origin, load};
pub use module::{Kernel, KernelFacts};
pub use stream::{Event, Stream};
pub use tensor_map::{TensorMap, TensorMapFault, TensorShape};
