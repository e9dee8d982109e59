//! What can go wrong between us and a driver, as one type.

use super::arguments::LaunchFault;
use super::tensor_map::TensorMapFault;
use crate::op::ProductError;
use crate::source::{BufferRole, Refusal};

/// A failure of the CUDA or the HIP backend. None of them is a panic, and none a link error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no driver on this machine, or the loader does not find its library.
    #[error("{library} not found")]
    LibraryNotFound {
        /// The library, without the version in its name.
        library: &'static str,
    },
    /// A library is there but older than what is asked of it.
    #[error("{library} has no `{function}`: it is older than {since}")]
    MissingFunction {
        /// The library.
        library: &'static str,
        /// The function that is missing.
        function: &'static str,
        /// The oldest version that is asked for.
        since: &'static str,
    },
    /// A driver call failed.
    #[error("{doing}: {name} ({code}), {text}")]
    Driver {
        /// What we were doing.
        doing: String,
        /// The driver's number of the error.
        code: i32,
        /// The driver's name of it, as `CUDA_ERROR_OUT_OF_MEMORY` or `hipErrorOutOfMemory`.
        name: String,
        /// The driver's sentence for it.
        text: String,
    },
    /// A device number beyond the devices that there are.
    #[error("there is no {name} device {ordinal}: the driver shows {count}")]
    NoDevice {
        /// `CUDA` or `HIP`.
        name: &'static str,
        /// The device asked for, from 0.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// A device that no kernels are made for.
    #[error("{device} is {architecture}; kernels are made for {targets}")]
    Unsupported {
        /// The product's name.
        device: String,
        /// Its architecture.
        architecture: String,
        /// The targets that kernels are made for.
        targets: &'static str,
    },
    /// The driver's compiler refused a text.
    #[error("compiling {entry}: {error}{}", log_lines(log))]
    Compile {
        /// The kernel's entry point.
        entry: String,
        /// The compiler's error.
        error: Box<DriverError>,
        /// What it printed.
        log: String,
    },
    /// A kernel that is not for this device.
    #[error("{kernel} is for {target}, the device is {device}")]
    Target {
        /// The kernel, or its entry point.
        kernel: String,
        /// Its target.
        target: String,
        /// The device's architecture.
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
    TensorMap(#[from] TensorMapFault),
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
    /// A call of an expert layer lacks something that its plan reads.
    #[error("the plan reads `{input}`, and the call has none")]
    MissingInput {
        /// What.
        input: BufferRole,
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

impl DriverError {
    /// A failed call, with what words there are for it.
    pub(crate) fn of(doing: String, code: i32, name: Option<String>, text: Option<String>) -> Self {
        let name = name.unwrap_or_else(|| "an error that the driver does not name".to_owned());
        let text = text.unwrap_or_else(|| "and says nothing about".to_owned());
        Self::Driver { doing, code, name, text }
    }
}

impl From<DriverError> for ProductError {
    fn from(error: DriverError) -> Self {
        match error {
            DriverError::Refused(why) => why.into(),
            error => Self::device(error),
        }
    }
}

/// The lines of a compiler's log that say something, each on its own and indented.
fn log_lines(log: &str) -> String {
    let lines = log.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| format!("\n  {}", line.trim_end())).collect()
}
