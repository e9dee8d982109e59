//! Streams: order.
//!
//! Work on one stream is in order; [`Stream::order`] puts it after that of others which use the same
//! memory, by waiting for those: products run on one stream, and nothing waits there.

use std::ptr::null_mut;
use std::sync::Arc;

use super::buffer::Memory;
use super::device::Device;
use super::error::HipError;
use super::library::{Handle, Runtime};
use crate::source::Access;

/// Memory that a call uses, and how.
pub(super) type Use<'u> = (&'u Memory, Access);

/// A queue of work on a device.
pub struct Stream(Arc<Queue>);

/// A stream of the runtime, kept as long as memory was used on it that no later call waits for.
pub(super) struct Queue {
    device: Device,
    handle: Handle,
}

// SAFETY: a stream may be used from any thread; the runtime locks where it must.
unsafe impl Send for Queue {}
// SAFETY: as for `Send`.
unsafe impl Sync for Queue {}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle && self.device.is(&other.device)
    }
}

impl Queue {
    fn synchronize(&self) -> Result<(), HipError> {
        self.device.enter()?.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |runtime| unsafe { (runtime.hipStreamSynchronize)(self.handle) },
        )
    }
}

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
        Ok(Self(Arc::new(Queue { device: device.clone(), handle })))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Waits until everything that was queued is done.
    ///
    /// # Errors
    /// What the runtime answered: also a fault of a kernel that was queued.
    pub fn synchronize(&self) -> Result<(), HipError> {
        self.0.synchronize()
    }

    /// Waits for the uses of memory on other streams that one on this stream has to come after.
    pub(super) fn order<'u>(&self, uses: impl Iterator<Item = Use<'u>>) -> Result<(), HipError> {
        for (memory, access) in uses {
            let before = memory.uses().before(&self.0, access);
            before.iter().try_for_each(|queue| queue.synchronize())?;
        }
        Ok(())
    }

    /// Makes a call that queues work, and notes what it uses.
    pub(super) fn queue<'u>(
        &self,
        uses: impl Iterator<Item = Use<'u>>,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&Runtime, Handle) -> i32,
    ) -> Result<(), HipError> {
        let current = self.device().enter()?;
        let result = current.call(doing, |runtime| call(runtime, self.handle()));
        // Noted even if the call failed: the runtime does not say how far it came.
        uses.for_each(|(memory, access)| memory.uses().mark(&self.0, access));
        result
    }

    /// Makes a call that copies memory of the caller's, lent for the time of the call, and waits.
    pub(super) fn lend(
        &self,
        (memory, access): Use<'_>,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&Runtime, Handle) -> i32,
    ) -> Result<(), HipError> {
        self.order(std::iter::once((memory, access)))?;
        let current = self.device().enter()?;
        let queued = current.call(doing, |runtime| call(runtime, self.handle()));
        // Also where queuing failed, since the runtime does not say how far it came. A failure to wait
        // is one of the device, which does nothing any more then.
        let waited = current.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |runtime| unsafe { (runtime.hipStreamSynchronize)(self.handle()) },
        );
        queued.and(waited)?;
        memory.uses().waited(&self.0, access);
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Ok(current) = self.device.enter() {
            // SAFETY: made by `Stream::new` and used by nobody after this; queued work still runs.
            current.release("destroying a stream", |runtime| unsafe {
                (runtime.hipStreamDestroy)(self.handle)
            });
        }
    }
}
