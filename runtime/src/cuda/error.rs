//! What can go wrong between us and the driver, as one type.

use crate::gpu::arguments::LaunchFault;
use crate::gpu::log_lines;
use crate::source::Refusal;

/// A failure of the CUDA backend. None of them is a panic, and none a link error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver on this machine, or the loader does not find its library.
    #[error("libcuda not found")]
    LibraryNotFound,
    /// The driver's library is there but older than what is asked of it.
    #[error("the NVIDIA driver has no `{function}`: it is older than CUDA {since}")]
    MissingFunction {
        /// The function that is missing.
        function: &'static str,
        /// The CUDA version that brought it.
        since: &'static str,
    },
    /// A driver call failed.
    #[error("{doing}: {name} ({code}), {text}")]
    Driver {
        /// What we were doing.
        doing: String,
        /// The driver's number of the error.
        code: i32,
        /// The driver's name of it, as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's sentence for it.
        text: String,
    },
    /// A device number beyond the devices that there are.
    #[error("there is no CUDA device {ordinal}: the driver shows {count}")]
    NoDevice {
        /// The device asked for, from 0.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// A device before all targets that kernels are made for.
    #[error("{device} is {sm}; kernels are made for sm_80 and later")]
    TooOld {
        /// The product's name.
        device: String,
        /// Its target.
        sm: String,
    },
    /// The driver's compiler refused a text.
    #[error("compiling {entry}: {error}{}", log_lines(log))]
    Compile {
        /// The kernel's entry point.
        entry: String,
        /// The driver's error.
        error: Box<CudaError>,
        /// What the driver's compiler printed.
        log: String,
    },
    /// A text that is not for this device.
    #[error("{entry} is for {target}, the device is {device}")]
    Target {
        /// The kernel's entry point.
        entry: String,
        /// The target that the text names.
        target: String,
        /// The device's target.
        device: String,
    },
    /// A text that cannot be handed to the driver.
    #[error("the text of {entry}: {what}")]
    Text {
        /// The kernel's entry point.
        entry: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The source has no text for the kernel.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The arguments of a launch are not those of the kernel's signature.
    #[error("launching {entry}: {fault}")]
    Launch {
        /// The kernel's entry point.
        entry: String,
        /// What does not fit.
        fault: LaunchFault,
    },
    /// A tensor map that the hardware does not have.
    #[error("a tensor map: {0}")]
    TensorMap(#[from] super::tensor_map::TensorMapFault),
    /// Two things that must have the same length do not.
    #[error("{doing}: {expected} elements expected, {found} found")]
    Length {
        /// What we were doing.
        doing: &'static str,
        /// Elements of the one.
        expected: usize,
        /// Elements of the other.
        found: usize,
    },
    /// A call that a stream which is captured into a graph does not take.
    #[error("{0}: the stream is captured into a graph, which would outlive what the call is given")]
    Captured(&'static str),
    /// A kernel that would have to be loaded while the stream is captured, which could void the capture.
    #[error(
        "{kernel} is not loaded, and the stream is captured into a graph: warm the weight up before"
    )]
    NotWarm {
        /// The kernel.
        kernel: String,
    },
    /// A kernel that no plan can launch.
    #[error("{entry}: {what}")]
    NotPlanned {
        /// The kernel's entry point.
        entry: String,
        /// Why.
        what: &'static str,
    },
    /// Objects of two devices in one call.
    #[error("{0}: the objects belong to different devices")]
    Mixed(&'static str),
}
