//! Memory of a device, in bytes, and copies of it.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Device;
use super::error::HipError;
use super::stream::{Queue, Stream, Use};
use crate::gpu::arguments::{DeviceSlice, DeviceSliceMut};
use crate::gpu::uses::Uses;
use crate::source::Access;

/// Bytes in a device's memory. Freeing waits for the work of the device. Calls on several streams are
/// put in order by themselves; only [`Kernel::launch`](super::Kernel::launch), which is `unsafe`,
/// leaves that to the caller.
pub struct Buffer(Memory);

/// Device memory, and who uses it.
pub(super) struct Memory {
    device: Device,
    address: *mut c_void,
    bytes: usize,
    uses: Mutex<Uses<Arc<Queue>>>,
}

// SAFETY: an address of the device's memory, which belongs to no thread.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`; writing needs `&mut` of the buffer.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The queues that use it.
    pub(super) fn uses(&self) -> MutexGuard<'_, Uses<Arc<Queue>>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// Memory with whatever is in it.
    ///
    /// # Errors
    /// What the runtime answered, as `hipErrorOutOfMemory`.
    pub fn uninitialised(device: &Device, bytes: usize) -> Result<Self, HipError> {
        let mut address = null_mut();
        if bytes > 0 {
            device.enter()?.call(
                || format!("allocating {bytes} bytes on HIP device {}", device.info().ordinal),
                // SAFETY: `address` may be written.
                |runtime| unsafe { (runtime.hipMalloc)(&mut address, bytes) },
            )?;
        }
        Ok(Self(Memory { device: device.clone(), address, bytes, uses: Mutex::default() }))
    }

    fn used(&self, access: Access) -> Use<'_> {
        (&self.0, access)
    }

    /// Memory full of one byte, in the order of a stream.
    ///
    /// # Errors
    /// As [`Self::uninitialised`].
    pub fn filled(stream: &Stream, bytes: usize, byte: u8) -> Result<Self, HipError> {
        let buffer = Self::uninitialised(stream.device(), bytes)?;
        if bytes > 0 {
            stream.queue(
                std::iter::once(buffer.used(Access::Write)),
                || "filling a buffer".to_owned(),
                // SAFETY: the buffer has `bytes` bytes from its address on; it is freed, and used on
                // another stream, after this.
                |runtime, stream| unsafe {
                    (runtime.hipMemsetAsync)(buffer.0.address, byte.into(), bytes, stream)
                },
            )?;
        }
        Ok(buffer)
    }

    /// A copy of host memory. Waits for it.
    ///
    /// # Errors
    /// As [`Self::uninitialised`].
    pub fn from_host(stream: &Stream, values: &[u8]) -> Result<Self, HipError> {
        let buffer = Self::uninitialised(stream.device(), values.len())?;
        if !values.is_empty() {
            stream.lend(
                buffer.used(Access::Write),
                || format!("copying {} bytes to a device", values.len()),
                // SAFETY: both sides have that many bytes, and `values` are borrowed until `lend` has
                // waited.
                |runtime, stream| unsafe {
                    let from = values.as_ptr().cast();
                    let (to, bytes) = (buffer.0.address, buffer.0.bytes);
                    (runtime.hipMemcpyHtoDAsync)(to, from, bytes, stream)
                },
            )?;
        }
        Ok(buffer)
    }

    /// All of it, after what is queued on the stream.
    ///
    /// # Errors
    /// Another device's stream, or what the runtime answered.
    pub fn to_host(&self, stream: &Stream) -> Result<Vec<u8>, HipError> {
        if !self.0.device.is(stream.device()) {
            return Err(HipError::Mixed("copying from a device"));
        }
        let mut values = vec![0u8; self.bytes()];
        if self.bytes() > 0 {
            stream.lend(
                self.used(Access::Read),
                || format!("copying {} bytes from a device", self.bytes()),
                // SAFETY: both sides have that many bytes, and `values` stay until `lend` has waited.
                |runtime, stream| unsafe {
                    let to = values.as_mut_ptr().cast();
                    (runtime.hipMemcpyDtoHAsync)(to, self.0.address, self.bytes(), stream)
                },
            )?;
        }
        Ok(values)
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// All of it, to be read.
    pub fn read(&self) -> DeviceSlice<'_> {
        DeviceSlice::new(self.0.address as u64, self.0.bytes as u64, &self.0)
    }

    /// All of it, to be written.
    pub fn write_to(&mut self) -> DeviceSliceMut<'_> {
        DeviceSliceMut::new(self.0.address as u64, self.0.bytes as u64, &self.0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address.is_null() {
            return;
        }
        if let Ok(current) = self.device.enter() {
            // SAFETY: allocated by `uninitialised` and used by nobody after this; the runtime waits for
            // the device before it frees.
            current
                .release("freeing a buffer", |runtime| unsafe { (runtime.hipFree)(self.address) });
        }
    }
}
