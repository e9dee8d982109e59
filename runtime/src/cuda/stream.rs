//! Streams and events: order, and time.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys;

use super::device::Context;
use super::error::CudaError;

/// A queue of work on a device: its own, or one that the caller made elsewhere.
pub struct Stream {
    context: Context,
    handle: sys::CUstream,
    owned: bool,
}

// SAFETY: a stream may be used from any thread; the driver locks where it must.
unsafe impl Send for Stream {}
// SAFETY: as for `Send`.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream, which does not wait for the legacy default stream.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let mut handle = null_mut();
        context.enter()?.call(
            || "creating a stream".to_owned(),
            // SAFETY: `handle` may be written.
            |driver| unsafe { (driver.cuStreamCreate)(&mut handle, flags) },
        )?;
        Ok(Self { context: context.clone(), handle, owned: true })
    }

    /// The caller's own stream, a `CUstream` or `cudaStream_t`; null is the legacy default one.
    /// It is not destroyed when the value is dropped.
    ///
    /// # Safety
    /// The handle is a stream of this context (or null) and outlives the value.
    pub unsafe fn from_raw(context: &Context, handle: *mut c_void) -> Self {
        Self { context: context.clone(), handle: handle.cast(), owned: false }
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Waits until everything that was queued is done.
    ///
    /// # Errors
    /// What the driver answered: also a fault of a kernel that was queued.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.enter()?.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |driver| unsafe { (driver.cuStreamSynchronize)(self.handle) },
        )
    }

    /// What is queued from now on starts after the event.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.context.enter()?.call(
            || "making a stream wait for an event".to_owned(),
            // SAFETY: stream and event live as long as the borrows; no flag is set.
            |driver| unsafe { (driver.cuStreamWaitEvent)(self.handle, event.handle, 0) },
        )
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `new` and used by nobody after this; queued work still runs.
            current.release("destroying a stream", |driver| unsafe {
                (driver.cuStreamDestroy_v2)(self.handle)
            });
        }
    }
}

/// A point in a stream, with its time.
pub struct Event {
    context: Context,
    handle: sys::CUevent,
}

// SAFETY: an event may be used from any thread; the driver locks where it must.
unsafe impl Send for Event {}
// SAFETY: as for `Send`.
unsafe impl Sync for Event {}

impl Event {
    /// A new event.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let mut handle = null_mut();
        context.enter()?.call(
            || "creating an event".to_owned(),
            // SAFETY: `handle` may be written; 0 is the default, with timing.
            |driver| unsafe { (driver.cuEventCreate)(&mut handle, 0) },
        )?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Marks the present end of a stream.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.enter()?.call(
            || "recording an event".to_owned(),
            // SAFETY: stream and event live as long as the borrows.
            |driver| unsafe { (driver.cuEventRecord)(self.handle, stream.handle) },
        )
    }

    /// Waits until the stream has come to the event.
    ///
    /// # Errors
    /// What the driver answered: also a fault of a kernel that was queued before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.enter()?.call(
            || "waiting for an event".to_owned(),
            // SAFETY: the event lives as long as `self`.
            |driver| unsafe { (driver.cuEventSynchronize)(self.handle) },
        )
    }

    /// The device's time from another event to this one; both have passed.
    ///
    /// # Errors
    /// What the driver answered, as where one has not passed.
    pub fn since(&self, start: &Self) -> Result<Duration, CudaError> {
        let mut milliseconds = 0f32;
        self.context.enter()?.call(
            || "taking the time between two events".to_owned(),
            // SAFETY: `milliseconds` may be written; the events live as long as the borrows.
            |driver| unsafe {
                (driver.cuEventElapsedTime)(&mut milliseconds, start.handle, self.handle)
            },
        )?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `new` and used by nobody after this.
            current.release("destroying an event", |driver| unsafe {
                (driver.cuEventDestroy_v2)(self.handle)
            });
        }
    }
}
