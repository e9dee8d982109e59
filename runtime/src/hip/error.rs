//! What can go wrong between us and the HIP runtime, as one type.

use crate::gpu::arguments::LaunchFault;
use crate::gpu::log_lines;
use crate::source::Refusal;

/// A failure of the HIP backend. None of them is a panic, and none a link error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HipError {
    /// There is no ROCm on this machine, or the loader does not find its library.
    #[error("{library} not found")]
    LibraryNotFound {
        /// The library, without the version in its name.
        library: &'static str,
    },
    /// A library is there but older than what is asked of it.
    #[error("{library} has no `{function}`: it is older than ROCm 6.0")]
    MissingFunction {
        /// The library.
        library: &'static str,
        /// The function that is missing.
        function: &'static str,
    },
    /// A call failed.
    #[error("{doing}: {name} ({code}), {text}")]
    Runtime {
        /// What we were doing.
        doing: String,
        /// The runtime's number of the error.
        code: i32,
        /// The runtime's name of it, as `hipErrorOutOfMemory`.
        name: String,
        /// The runtime's sentence for it.
        text: String,
    },
    /// A device number beyond the devices that there are.
    #[error("there is no HIP device {ordinal}: the runtime shows {count}")]
    NoDevice {
        /// The device asked for, from 0.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// A device that no kernels are made for.
    #[error("{device} is {architecture}; kernels are made for {}", super::device::TARGETS.join(" and "))]
    Unsupported {
        /// The product's name.
        device: String,
        /// Its architecture.
        architecture: String,
    },
    /// hiprtc refused a text.
    #[error("compiling {entry}: {error}{}", log_lines(log))]
    Compile {
        /// The kernel's entry point.
        entry: String,
        /// hiprtc's error.
        error: Box<HipError>,
        /// What it printed.
        log: String,
    },
    /// A kernel of another target than the device's.
    #[error("{kernel} is not for the device, which is {device}")]
    Target {
        /// What was asked for.
        kernel: String,
        /// The device's target.
        device: String,
    },
    /// A text that cannot be handed to hiprtc.
    #[error("the text of {entry} holds a zero byte")]
    Text {
        /// The kernel's entry point.
        entry: String,
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
    /// Objects of two devices in one call.
    #[error("{0}: the objects belong to different devices")]
    Mixed(&'static str),
}
