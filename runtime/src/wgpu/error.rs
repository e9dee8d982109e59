//! What can go wrong between us and a device, as one type.

use crate::source::Refusal;

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
        what: String,
    },
    /// The source has no text for the kernel.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
