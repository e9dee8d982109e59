//! What can go wrong between us and a device, as one type.

use crate::source::{Count, Refusal};

/// A failure of the wgpu backend. None of them is a panic.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WgpuError {
    /// No driver for Vulkan, Metal or Direct3D 12 shows a device.
    #[error("no device for Vulkan, Metal or Direct3D 12 found")]
    NoAdapter,
    /// A device number beyond the devices that there are.
    #[error("there is no device {ordinal}: the drivers show {count}")]
    NoDevice {
        /// The device asked for, from 0.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },
    /// The device cannot be opened.
    #[error("opening {device}: {why}")]
    Open {
        /// The device's name.
        device: String,
        /// What the driver says.
        why: String,
    },
    /// The device is gone: it was reset, removed, or its driver gave up.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The memory of the device does not suffice.
    #[error("{doing}: out of memory on the device")]
    OutOfMemory {
        /// What we were doing.
        doing: String,
    },
    /// A text that the compiler of WGSL refuses, with its line.
    #[error("compiling {entry}: {why}")]
    Text {
        /// The kernel's entry point.
        entry: String,
        /// What the compiler says.
        why: String,
    },
    /// A call that the API or the driver refuses.
    #[error("{doing}: {why}")]
    Call {
        /// What we were doing.
        doing: String,
        /// What it says.
        why: String,
    },
    /// A launch that does not fit its rule or the device's limits.
    #[error("launching {entry}: {what}")]
    Launch {
        /// The kernel's entry point.
        entry: String,
        /// What does not fit.
        what: DispatchFault,
    },
    /// The source has no text for the kernel.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// What of a launch does not fit its rule or the device's limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchFault {
    /// A size that the kernel reads is no 32-bit number for this problem.
    #[error("the parameter `{0}` has no 32-bit value")]
    Parameter(String),
    /// A buffer of the kernel is not given.
    #[error("no buffer `{0}`")]
    NoBuffer(String),
    /// A buffer is shorter than the kernel touches.
    #[error("buffer `{buffer}` has {found} bytes, the kernel touches {expected}")]
    BufferBytes {
        /// The buffer.
        buffer: String,
        /// Its bytes.
        found: u64,
        /// Bytes that the kernel may touch.
        expected: u64,
    },
    /// More buffers are given than the kernel has.
    #[error("{0} buffers too many")]
    ExtraBuffers(usize),
    /// The grid's size is not a number for this problem, or beyond the device's limit.
    #[error("{blocks} blocks along {axis}, at most {limit}")]
    Blocks {
        /// The rule's formula of the size.
        blocks: Count,
        /// `x`, `y` or `z`.
        axis: &'static str,
        /// The most blocks along an axis.
        limit: u32,
    },
}
