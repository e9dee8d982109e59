//! Streams: order.

use std::ptr::null_mut;

use super::device::Device;
use super::error::HipError;
use super::library::Handle;

/// A queue of work on a device.
pub struct Stream {
    device: Device,
    handle: Handle,
}

// SAFETY: a stream may be used from any thread; the runtime locks where it must.
unsafe impl Send for Stream {}
// SAFETY: as for `Send`.
unsafe impl Sync for Stream {}

/// `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;

impl Stream {
    /// A new stream, which does not wait for the default stream.
    ///
    /// # Errors
    /// What the runtime answered.
    pub fn new(device: &Device) -> Result<Self, HipError> {
        let mut handle = null_mut();
        device.enter()?.call(
            || "creating a stream".to_owned(),
            // SAFETY: `handle` may be written.
            |runtime| unsafe { (runtime.hipStreamCreateWithFlags)(&mut handle, NON_BLOCKING) },
        )?;
        Ok(Self { device: device.clone(), handle })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Waits until everything that was queued is done.
    ///
    /// # Errors
    /// What the runtime answered: also a fault of a kernel that was queued.
    pub fn synchronize(&self) -> Result<(), HipError> {
        self.device.enter()?.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |runtime| unsafe { (runtime.hipStreamSynchronize)(self.handle) },
        )
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(current) = self.device.enter() {
            // SAFETY: made by `new` and used by nobody after this; queued work still runs.
            current.release("destroying a stream", |runtime| unsafe {
                (runtime.hipStreamDestroy)(self.handle)
            });
        }
    }
}
