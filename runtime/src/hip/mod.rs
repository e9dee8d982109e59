//! AMD GPUs through the HIP runtime: kernels come as HIP C++, which the runtime's own compiler
//! (hiprtc) turns into code objects; nothing is linked, no toolkit is needed to build, and a machine
//! without ROCm is an error value.
//!
//! Most of it is [`crate::driver`]'s, which is CUDA's too: start there, at [`Device`] (its `Context`),
//! then [`Loader`] (key -> text -> code object -> kernel), then [`LoadedKernel::launch`]. Here is what only HIP
//! has:
//!
//! | file | what |
//! |---|---|
//! | `library` | the two libraries: found once; what the runtime does in its own way |
//! | `architecture` | which one a device has |
//! | `compile` | HIP C++ -> code object |

mod architecture;
mod compile;
mod library;
mod prepared;

use crate::driver;

pub use crate::driver::{
    Argument, DeviceInfo, DeviceSlice, DeviceSliceMut, DriverError as HipError, ExpertSlices,
    KernelFacts, Origin, RoutedSlices, load,
};
pub use library::Libraries;

/// A device.
pub type Device = driver::Context<Libraries>;
/// A queue of work on a device.
pub type Stream = driver::Stream<Libraries>;
/// A point in a stream, with its time.
pub type Event = driver::Event<Libraries>;
/// Elements in a device's memory.
pub type DeviceBuffer<T> = driver::DeviceBuffer<Libraries, T>;
/// A kernel that can be launched.
pub type LoadedKernel = driver::LoadedKernel<Libraries>;
/// The kernels of one device and one source, each loaded once.
pub type Loader = driver::Loader<Libraries>;
/// An AMD GPU, the source of its kernels, and the stream on which they run.
pub type Hip = driver::DriverExecutor<Libraries>;

/// Every device that the runtime shows.
///
/// # Errors
/// Why there is no runtime, or what it answered.
pub fn devices() -> Result<Vec<DeviceInfo>, HipError> {
    driver::devices::<Libraries>()
}
