//! What CUDA and HIP have in common: devices, memory, streams, kernels and their launches, once for both
//! drivers.
//!
//! In: a [`DriverApi`], which is a vendor's library. Out: the types that [`cuda`](crate::cuda) and
//! [`hip`](crate::hip) have names for. One idea a file:
//!
//! | file | what |
//! |---|---|
//! | `functions` | the functions that both libraries have, and their names in each |
//! | `api` | what each does in its own way: the trait |
//! | `error` | what can go wrong |
//! | `context` | devices and their facts, contexts; which one is the thread's |
//! | `stream`, `buffer` | order and time, memory |
//! | `uses`, `order` | who uses memory on which stream, and what a capture keeps |
//! | `module`, `loader` | image -> kernel; key -> text -> image -> kernel |
//! | `arguments`, `tensor_map` | what a kernel is given, checked before a driver sees it; boxes of tensors |
//! | `launch` | what was checked, launched |
//! | `executor` | a device as what products run on ([`crate::gpu`]) |
//! | `engine` | products in memory and on a stream of the caller |
//! | `experts` | the same of expert layers |
//!
//! Every object belongs to a [`Context`] and may be used from any thread. No call leaves another
//! context current than it found. Only [`LoadedKernel::launch`], launches of plans in a caller's memory,
//! asynchronous copies of borrowed memory and foreign handles are `unsafe`: what a kernel's text does is
//! beyond the compiler's sight. Why the rest is safe: `order`, and `docs/soundness.md`.

pub(crate) mod api;
pub mod arguments;
mod buffer;
pub(crate) mod context;
mod engine;
mod error;
mod executor;
mod experts;
pub(crate) mod functions;
mod launch;
mod loader;
mod module;
pub(crate) mod order;
pub(crate) mod stream;
pub(crate) mod tensor_map;
mod uses;

pub use api::DriverApi;
pub use arguments::{Argument, DeviceSlice, DeviceSliceMut, LaunchFault, Limits, Prepared};
pub use buffer::{DeviceBuffer, Element};
pub use context::{Context, DeviceInfo, devices};
pub use error::DriverError;
pub use executor::{DriverExecutor, Ready};
pub use experts::{ExpertSlices, RoutedSlices};
pub use loader::{Loader, Origin, load};
pub use module::{KernelFacts, LoadedKernel};
pub use stream::{Event, Stream};
pub use tensor_map::{TensorMap, TensorMapFault, TensorShape};
