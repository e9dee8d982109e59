//! Any GPU through Vulkan, Metal or Direct3D 12, by the crate wgpu: kernels come as WGSL.
//!
//! In: a [`KernelSource`](crate::source::KernelSource) of texts for the targets `wgsl` and
//! `wgsl_subgroups`. Out: an [`Executor`](crate::gpu::Executor). A machine without such a device, or
//! without the loader of its driver, is an error value. Start at [`Wgpu`].
//!
//! | file | what |
//! |---|---|
//! | `adapter` | the devices of this machine, and one of them opened |
//! | `fault` | errors of the API, which come beside its calls, as values |
//! | `memory` | buffers and copies |
//! | `pipeline` | text -> kernel |
//! | `executor` | the device as what products run on ([`crate::gpu`]) |
//! | `error` | what can go wrong |
//!
//! The API checks every access of a kernel against its buffers' lengths and every launch against its
//! pipeline, so that nothing here is `unsafe`, and any source of kernels may be given to it
//! (`docs/soundness.md`).

mod adapter;
mod error;
mod executor;
mod fault;
mod memory;
mod pipeline;

pub use adapter::{Found, devices};
pub use error::{DispatchFault, WgpuError};
pub use executor::Wgpu;
pub use memory::Memory;
pub use pipeline::Pipeline;
