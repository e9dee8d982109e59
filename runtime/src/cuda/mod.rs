//! NVIDIA GPUs through the driver API: kernels come as PTX text, nothing is linked, no toolkit is
//! needed, and a machine without a driver is an error value.
//!
//! Most of it is [`crate::driver`]'s, which is HIP's too: start there, at [`Context`] (a device), then
//! [`Loader`] (key -> text -> image -> kernel), then [`LoadedKernel::launch`]. Here is what only CUDA has:
//!
//! | file | what |
//! |---|---|
//! | `library` | the driver: found once; what it does in its own way |
//! | `device` | compute capabilities; contexts of the caller |
//! | `link` | PTX -> image, by the driver's own compiler |
//! | `launch`, `tensor_map` | attributes of a launch, tensor maps, as the driver reads them |
//! | `graph`, `pinned` | repetition; page-locked memory |
//! | `timing` | the time of a call, as a model meets it |

mod device;
mod graph;
mod launch;
mod library;
mod link;
mod pinned;
mod prepared;
mod tensor_map;
pub mod timing;

pub use crate::driver::{
    Argument, DeviceInfo, DeviceSlice, DeviceSliceMut, DriverError as CudaError, Element,
    ExpertSlices, KernelFacts, LaunchFault, Limits, Origin, Prepared, RoutedSlices, TensorMap,
    TensorMapFault, TensorShape, load,
};
pub use crate::image_cache::{ImageCache, ImageKey, VARIABLE};
pub use device::runs;
pub use graph::Graph;
pub use library::{Driver, version_text};
pub use link::text_target;
pub use pinned::Pinned;

use crate::driver;

/// A CUDA context.
pub type Context = driver::Context<Driver>;
/// A queue of work on a device.
pub type Stream = driver::Stream<Driver>;
/// A point in a stream, with its time.
pub type Event = driver::Event<Driver>;
/// Elements in a device's memory.
pub type DeviceBuffer<T> = driver::DeviceBuffer<Driver, T>;
/// A kernel that can be launched.
pub type LoadedKernel = driver::LoadedKernel<Driver>;
/// The kernels of one device and one source, each loaded once.
pub type Loader = driver::Loader<Driver>;
/// An NVIDIA GPU, the source of its kernels, and the stream on which they run.
pub type Cuda = driver::DriverExecutor<Driver>;
/// A kernel with its sizes for a problem.
pub type Ready = driver::Ready<Driver>;

/// Every device that the driver shows.
///
/// # Errors
/// Why there is no driver, or what it answered.
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    driver::devices::<Driver>()
}
