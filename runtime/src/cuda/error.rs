//! What can go wrong between us and the driver, as one type.

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
    /// Objects of two devices in one call.
    #[error("{0}: the objects belong to different devices")]
    Mixed(&'static str),
}

/// Why a launch does not fit its kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchFault {
    /// Too few or too many arguments.
    #[error("{expected} arguments expected, {found} given")]
    Count {
        /// Parameters that a caller passes.
        expected: usize,
        /// Arguments passed.
        found: usize,
    },
    /// An argument of another kind.
    #[error("parameter `{parameter}` is {expected}, {found} given")]
    Kind {
        /// The parameter.
        parameter: String,
        /// What it is.
        expected: &'static str,
        /// What was passed.
        found: &'static str,
    },
    /// A buffer that is too small.
    #[error("buffer `{parameter}` has {found} bytes, the kernel touches {expected}")]
    Size {
        /// The parameter.
        parameter: String,
        /// Bytes that the kernel may touch.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// A buffer at an address that the kernel's loads do not take.
    #[error("buffer `{parameter}` lies at {address:#x}, the kernel needs a multiple of {align}")]
    Align {
        /// The parameter.
        parameter: String,
        /// Its address.
        address: u64,
        /// The alignment in bytes.
        align: u32,
    },
    /// A number that does not fit where the hardware wants it.
    #[error("{what} is {found}, at most {limit}")]
    Limit {
        /// The number.
        what: String,
        /// Its value.
        found: u64,
        /// The largest that there is.
        limit: u64,
    },
    /// A rule that gives no number for this problem.
    #[error("{what} = {rule} is no 64-bit number for this problem")]
    Rule {
        /// What the rule is of.
        what: String,
        /// The rule.
        rule: String,
    },
    /// A grid that is not whole clusters.
    #[error("{blocks} blocks along {axis} are not whole clusters of {cluster}")]
    Cluster {
        /// x, y or z.
        axis: char,
        /// Blocks.
        blocks: u32,
        /// Blocks of a cluster.
        cluster: u32,
    },
    /// An empty grid, block or cluster.
    #[error("{0} is 0")]
    Empty(&'static str),
}

fn log_lines(log: &str) -> String {
    let lines = log.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| format!("\n  {}", line.trim_end())).collect()
}
