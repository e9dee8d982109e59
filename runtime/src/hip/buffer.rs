//! Memory of a device, in bytes, and copies of it.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::device::Device;
use super::error::HipError;
use super::stream::Stream;
use crate::gpu::arguments::{DeviceSlice, DeviceSliceMut};

/// Bytes in a device's memory. Freeing waits for the work of the device.
pub struct Buffer {
    device: Device,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: an address of the device's memory, which belongs to no thread.
unsafe impl Send for Buffer {}
// SAFETY: as for `Send`; writing needs `&mut`.
unsafe impl Sync for Buffer {}

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
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Memory full of one byte, in the order of a stream.
    ///
    /// # Errors
    /// As [`Self::uninitialised`].
    pub fn filled(stream: &Stream, bytes: usize, byte: u8) -> Result<Self, HipError> {
        let buffer = Self::uninitialised(stream.device(), bytes)?;
        if bytes > 0 {
            stream.device().enter()?.call(
                || "filling a buffer".to_owned(),
                // SAFETY: the buffer has `bytes` bytes from its address on.
                |runtime| unsafe {
                    (runtime.hipMemsetAsync)(buffer.address, byte.into(), bytes, stream.handle())
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
            stream.device().enter()?.call(
                || format!("copying {} bytes to a device", values.len()),
                // SAFETY: both sides have that many bytes, and `values` are borrowed until the copy is
                // done, which `synchronize` waits for.
                |runtime| unsafe {
                    let from = values.as_ptr().cast();
                    let (to, bytes) = (buffer.address, buffer.bytes);
                    (runtime.hipMemcpyHtoDAsync)(to, from, bytes, stream.handle())
                },
            )?;
            stream.synchronize()?;
        }
        Ok(buffer)
    }

    /// All of it, after what is queued on the stream.
    ///
    /// # Errors
    /// Another device's stream, or what the runtime answered.
    pub fn to_host(&self, stream: &Stream) -> Result<Vec<u8>, HipError> {
        if !self.device.is(stream.device()) {
            return Err(HipError::Mixed("copying from a device"));
        }
        let mut values = vec![0u8; self.bytes];
        if self.bytes > 0 {
            self.device.enter()?.call(
                || format!("copying {} bytes from a device", self.bytes),
                // SAFETY: both sides have that many bytes, and `values` stay until the copy is done,
                // which `synchronize` waits for.
                |runtime| unsafe {
                    let to = values.as_mut_ptr().cast();
                    (runtime.hipMemcpyDtoHAsync)(to, self.address, self.bytes, stream.handle())
                },
            )?;
            stream.synchronize()?;
        }
        Ok(values)
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it, to be read.
    pub fn read(&self) -> DeviceSlice<'_> {
        DeviceSlice::new(self.address as u64, self.bytes as u64)
    }

    /// All of it, to be written.
    pub fn write_to(&mut self) -> DeviceSliceMut<'_> {
        DeviceSliceMut::new(self.address as u64, self.bytes as u64)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address.is_null() {
            return;
        }
        if let Ok(current) = self.device.enter() {
            // SAFETY: allocated by `uninitialised` and used by nobody after this.
            current
                .release("freeing a buffer", |runtime| unsafe { (runtime.hipFree)(self.address) });
        }
    }
}
