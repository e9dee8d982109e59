//! Memory: buffers of a device, and copies from and to the host.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use super::api::DriverApi;
use super::arguments::{DeviceSlice, DeviceSliceMut};
use super::context::Context;
use super::error::DriverError;
use super::order::{Queue, Use, lock};
use super::stream::Stream;
use super::uses::Uses;
use crate::source::Access;

mod element {
    pub trait Sealed {}
}

/// A type that buffers hold: any bits are a value of it. bf16 and f16 travel as `u16`.
pub trait Element: element::Sealed + Copy + Default + Send + Sync + 'static {}

macro_rules! elements {
    ($($type:ty)*) => { $(impl element::Sealed for $type {} impl Element for $type {})* };
}
elements! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

/// Device memory of a buffer, and who uses it: the buffer has it, and each graph that was captured
/// with it.
pub(crate) struct Allocation<D: DriverApi> {
    context: Context<D>,
    address: u64,
    uses: Mutex<Uses<Arc<Queue<D>>>>,
}

impl<D: DriverApi> Allocation<D> {
    fn new(context: &Context<D>, bytes: usize) -> Result<Self, DriverError> {
        let mut address = 0;
        if bytes > 0 {
            context.enter()?.call(
                || {
                    format!(
                        "allocating {bytes} bytes on {} device {}",
                        D::NAME,
                        context.info().ordinal
                    )
                },
                // SAFETY: `address` may be written.
                |driver| unsafe { (driver.alloc)(&mut address, bytes) },
            )?;
        }
        Ok(Self { context: context.clone(), address, uses: Mutex::default() })
    }

    pub(crate) fn context(&self) -> &Context<D> {
        &self.context
    }

    /// The queues that use it.
    pub(crate) fn uses(&self) -> MutexGuard<'_, Uses<Arc<Queue<D>>>> {
        lock(&self.uses)
    }
}

impl<D: DriverApi> Drop for Allocation<D> {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        if let Ok(current) = self.context.enter() {
            // SAFETY: allocated by `new` and named by nobody after this: no buffer, no graph. Work
            // that is queued on it is done first: the driver waits before it frees what was not
            // allocated on a stream. Where it refuses to wait, as on a thread that captures, it does
            // not free either.
            current.release("freeing a buffer", |driver| unsafe { (driver.free)(self.address) });
        }
    }
}

/// `len` elements in a device's memory.
///
/// Freeing waits for the work of the device, so that a buffer is not taken away from a kernel
/// that still runs; a graph keeps the memory of the buffers that it uses. Calls on several streams
/// are put in order by themselves: one that writes after all others, one that reads after those that
/// write; only [`LoadedKernel::launch`](super::LoadedKernel::launch), [`DeviceBuffer::queue_write`] and
/// [`DeviceBuffer::queue_read`], which are `unsafe`, leave that to the caller.
pub struct DeviceBuffer<D: DriverApi, T> {
    allocation: Arc<Allocation<D>>,
    len: usize,
    element: PhantomData<T>,
}

impl<D: DriverApi, T: Element> DeviceBuffer<D, T> {
    /// Memory with whatever is in it.
    ///
    /// # Errors
    /// What the driver answered, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn uninitialised(context: &Context<D>, len: usize) -> Result<Self, DriverError> {
        // More bytes than there are addresses are more than any device has.
        let bytes = size_of::<T>().saturating_mul(len);
        let allocation = Arc::new(Allocation::new(context, bytes)?);
        Ok(Self { allocation, len, element: PhantomData })
    }

    /// Memory full of 0, in the order of a stream.
    ///
    /// # Errors
    /// As [`Self::uninitialised`].
    pub fn zeroed(stream: &Stream<D>, len: usize) -> Result<Self, DriverError> {
        let mut buffer = Self::uninitialised(stream.context(), len)?;
        buffer.fill_bytes(stream, 0)?;
        Ok(buffer)
    }

    /// A copy of host memory. Waits for it.
    ///
    /// # Errors
    /// As [`Self::uninitialised`].
    pub fn from_host(stream: &Stream<D>, values: &[T]) -> Result<Self, DriverError> {
        let mut buffer = Self::uninitialised(stream.context(), values.len())?;
        buffer.write(stream, values)?;
        Ok(buffer)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bytes(&self) -> usize {
        size_of::<T>() * self.len
    }

    fn address(&self) -> u64 {
        self.allocation.address
    }

    fn used(&self, access: Access) -> Use<'_, D> {
        (&self.allocation, access)
    }

    /// All of it, to be read.
    pub fn read(&self) -> DeviceSlice<'_> {
        DeviceSlice::new(self.address(), self.bytes() as u64, &self.allocation)
    }

    /// All of it, to be written.
    pub fn write_to(&mut self) -> DeviceSliceMut<'_> {
        DeviceSliceMut::new(self.address(), self.bytes() as u64, &self.allocation)
    }

    /// Some elements of it, to be read; `None` beyond the end.
    pub fn range(&self, range: Range<usize>) -> Option<DeviceSlice<'_>> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let (first, bytes) = (range.start * size_of::<T>(), range.len() * size_of::<T>());
        let address = self.address() + first as u64;
        Some(DeviceSlice::new(address, bytes as u64, &self.allocation))
    }

    fn same_length(&self, doing: &'static str, found: usize) -> Result<(), DriverError> {
        let expected = self.len;
        if expected == found { Ok(()) } else { Err(DriverError::Length { doing, expected, found }) }
    }

    fn same_device(&self, doing: &'static str, stream: &Stream<D>) -> Result<(), DriverError> {
        let same = self.allocation.context().is(stream.context());
        if same { Ok(()) } else { Err(DriverError::Mixed(doing)) }
    }

    /// Sets every byte, in the order of the stream.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn fill_bytes(&mut self, stream: &Stream<D>, byte: u8) -> Result<(), DriverError> {
        self.same_device("filling a buffer", stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let uses = [self.used(Access::Write)];
        stream.queue().order(uses.into_iter())?;
        stream.queue().queue(
            uses.into_iter(),
            None,
            || "filling a buffer".to_owned(),
            // SAFETY: the buffer has `bytes` bytes from its address on; it is freed, and used on another
            // stream, after this, and kept by a graph that captures it.
            |driver, stream| unsafe { (driver.fill)(self.address(), byte, self.bytes(), stream) },
        )
    }

    /// Copies host memory into all of the buffer, after what is queued on the stream, and waits.
    ///
    /// # Errors
    /// Another length or device, a stream that is captured into a graph, or what the driver answered.
    pub fn write(&mut self, stream: &Stream<D>, values: &[T]) -> Result<(), DriverError> {
        let copying = "copying to a device";
        self.same_length(copying, values.len())?;
        self.same_device(copying, stream)?;
        if self.is_empty() {
            return Ok(());
        }
        stream.queue().lend(
            self.used(Access::Write),
            copying,
            || format!("copying {} bytes to a device", self.bytes()),
            // SAFETY: both sides have `bytes` bytes; `values` are borrowed until `lend` has waited.
            |driver, stream| unsafe {
                let from = values.as_ptr().cast::<c_void>();
                (driver.copy_to_device)(self.address(), from, self.bytes(), stream)
            },
        )
    }

    /// Copies all of the buffer into host memory, after what is queued on the stream, and waits.
    ///
    /// # Errors
    /// Another length or device, a stream that is captured into a graph, or what the driver answered.
    pub fn read_into(&self, stream: &Stream<D>, values: &mut [T]) -> Result<(), DriverError> {
        let copying = "copying from a device";
        self.same_length(copying, values.len())?;
        self.same_device(copying, stream)?;
        if self.is_empty() {
            return Ok(());
        }
        stream.queue().lend(
            self.used(Access::Read),
            copying,
            || format!("copying {} bytes from a device", self.bytes()),
            // SAFETY: both sides have `bytes` bytes, any bits are an element; `values` are borrowed
            // until `lend` has waited.
            |driver, stream| unsafe {
                let to = values.as_mut_ptr().cast::<c_void>();
                (driver.copy_to_host)(to, self.address(), self.bytes(), stream)
            },
        )
    }

    /// All of the buffer as a vector, after what is queued on the stream.
    ///
    /// # Errors
    /// As [`Self::read_into`].
    pub fn to_host(&self, stream: &Stream<D>) -> Result<Vec<T>, DriverError> {
        let mut values = vec![T::default(); self.len];
        self.read_into(stream, &mut values)?;
        Ok(values)
    }

    /// Queues a copy of host memory into all of the buffer. It overlaps with the host where the
    /// memory is page-locked (`cuda::Pinned`).
    ///
    /// # Safety
    /// `values` live, unchanged, until the stream has done the copy: if a graph captures it, until its
    /// last replay has. What other streams do with the buffer is ordered by the caller.
    ///
    /// # Errors
    /// Another length, or what the driver answered.
    pub unsafe fn queue_write(
        &mut self,
        stream: &Stream<D>,
        values: &[T],
    ) -> Result<(), DriverError> {
        self.same_length("copying to a device", values.len())?;
        self.same_device("copying to a device", stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let from = values.as_ptr().cast::<c_void>();
        stream.queue().queue(
            [self.used(Access::Write)].into_iter(),
            None,
            || format!("copying {} bytes to a device", self.bytes()),
            // SAFETY: both sides have `bytes` bytes; the caller keeps `values`.
            |driver, stream| unsafe {
                (driver.copy_to_device)(self.address(), from, self.bytes(), stream)
            },
        )
    }

    /// Queues a copy of all of the buffer into host memory. It overlaps with the host where the
    /// memory is page-locked (`cuda::Pinned`).
    ///
    /// # Safety
    /// `values` live, untouched, until the stream has done the copy: if a graph captures it, until its
    /// last replay has. What other streams do with the buffer is ordered by the caller.
    ///
    /// # Errors
    /// Another length, or what the driver answered.
    pub unsafe fn queue_read(
        &self,
        stream: &Stream<D>,
        values: &mut [T],
    ) -> Result<(), DriverError> {
        self.same_length("copying from a device", values.len())?;
        self.same_device("copying from a device", stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let to = values.as_mut_ptr().cast::<c_void>();
        stream.queue().queue(
            [self.used(Access::Read)].into_iter(),
            None,
            || format!("copying {} bytes from a device", self.bytes()),
            // SAFETY: both sides have `bytes` bytes, any bits are an element; the caller keeps
            // `values`.
            |driver, stream| unsafe {
                (driver.copy_to_host)(to, self.address(), self.bytes(), stream)
            },
        )
    }

    /// Queues a copy of all of another buffer of the same device.
    ///
    /// # Errors
    /// Another length or device, or what the driver answered.
    pub fn copy_from(&mut self, stream: &Stream<D>, other: &Self) -> Result<(), DriverError> {
        self.same_length("copying on a device", other.len)?;
        self.same_device("copying on a device", stream)?;
        other.same_device("copying on a device", stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let (to, from) = (self.address(), other.address());
        let uses = [self.used(Access::Write), other.used(Access::Read)];
        stream.queue().order(uses.into_iter())?;
        stream.queue().queue(
            uses.into_iter(),
            None,
            || format!("copying {} bytes on a device", self.bytes()),
            // SAFETY: both sides have `bytes` bytes; each is freed, and used on another stream, after
            // this, and kept by a graph that captures it.
            |driver, stream| unsafe { (driver.copy)(to, from, self.bytes(), stream) },
        )
    }
}
