//! Streams and events: order, and time.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys;

use super::device::Context;
use super::error::CudaError;
use super::order::{Queue, Record, lock};

/// A queue of work on a device: its own, or one that the caller made elsewhere.
pub struct Stream(Arc<Queue>);

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
        Ok(Self(Arc::new(Queue::new(context, handle, true))))
    }

    /// The caller's own stream, a `CUstream` or `cudaStream_t`; null is the legacy default one, 1 and 2
    /// are those that CUDA calls `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
    /// It is not destroyed when the value is dropped.
    ///
    /// # Safety
    /// - The handle is a stream of this context, or one of the three above. It exists until the value and
    ///   all buffers that were used with it are gone.
    /// - 2 is another stream on each thread: the value, and buffers that were used with it, are used on
    ///   one thread.
    /// - Where somebody else captures the stream into a graph, no call that copies host memory is made
    ///   on it meanwhile, and what other calls on it use stays until the last replay of that graph.
    /// - Where [`Graph::capture`](super::Graph::capture) captures it, all work on it meanwhile is
    ///   queued through this value.
    pub unsafe fn from_raw(context: &Context, handle: *mut c_void) -> Self {
        Self(Arc::new(Queue::new(context, handle.cast(), false)))
    }

    /// The context.
    pub fn context(&self) -> &Context {
        self.0.context()
    }

    /// The stream's handle, a `CUstream`.
    pub fn as_raw(&self) -> *mut c_void {
        self.0.handle().cast()
    }

    /// Whether somebody captures it into a graph: this library or another one.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn is_captured(&self) -> Result<bool, CudaError> {
        let mut status = 0;
        self.context().enter()?.call(
            || "asking whether a stream is captured".to_owned(),
            // SAFETY: `status` may be written, and the stream lives as long as `self`.
            |driver| unsafe { (driver.cuStreamIsCapturing)(self.0.handle(), &mut status) },
        )?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as i32)
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.0
    }

    /// Waits until everything that was queued is done.
    ///
    /// # Errors
    /// What the driver answered: also a fault of a kernel that was queued.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context().enter()?.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |driver| unsafe { (driver.cuStreamSynchronize)(self.0.handle()) },
        )
    }

    /// What is queued from now on starts after the event. If the event was recorded on a stream that
    /// is captured, this stream is captured too, until that capture ends.
    ///
    /// # Errors
    /// An event of another device, or what the driver answered.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        event.of(self.context(), "waiting for an event")?;
        // Held, so that the event is recorded nowhere else meanwhile.
        let record = lock(&event.record);
        self.0.wait(&event.raw, record.as_ref())
    }
}

/// An event of the driver.
pub(super) struct RawEvent {
    context: Context,
    handle: sys::CUevent,
}

// SAFETY: an event may be used from any thread; the driver locks where it must.
unsafe impl Send for RawEvent {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    fn new(context: &Context) -> Result<Self, CudaError> {
        let mut handle = null_mut();
        context.enter()?.call(
            || "creating an event".to_owned(),
            // SAFETY: `handle` may be written; 0 is the default, with timing.
            |driver| unsafe { (driver.cuEventCreate)(&mut handle, 0) },
        )?;
        Ok(Self { context: context.clone(), handle })
    }

    /// A new event, at the present end of a queue.
    pub(super) fn at_the_end_of(queue: &Queue) -> Result<Self, CudaError> {
        let event = Self::new(queue.context())?;
        event.record(queue)?;
        Ok(event)
    }

    /// Marks the present end of a queue.
    pub(super) fn record(&self, queue: &Queue) -> Result<(), CudaError> {
        self.context.enter()?.call(
            || "recording an event".to_owned(),
            // SAFETY: stream and event live as long as the borrows.
            |driver| unsafe { (driver.cuEventRecord)(self.handle, queue.handle()) },
        )
    }

    /// Makes a queue wait for it.
    pub(super) fn delay(&self, queue: &Queue) -> Result<(), CudaError> {
        self.context.enter()?.call(
            || "making a stream wait for an event".to_owned(),
            // SAFETY: stream and event live as long as the borrows; no flag is set. An event that is
            // destroyed before it has come is still waited for.
            |driver| unsafe { (driver.cuStreamWaitEvent)(queue.handle(), self.handle, 0) },
        )
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `new` and used by nobody after this.
            current.release("destroying an event", |driver| unsafe {
                (driver.cuEventDestroy_v2)(self.handle)
            });
        }
    }
}

/// A point in a stream, with its time.
pub struct Event {
    raw: RawEvent,
    /// The capture that it was recorded in.
    record: Mutex<Option<Arc<Record>>>,
}

impl Event {
    /// A new event.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self { raw: RawEvent::new(context)?, record: Mutex::default() })
    }

    fn of(&self, context: &Context, doing: &'static str) -> Result<(), CudaError> {
        if self.raw.context.is(context) { Ok(()) } else { Err(CudaError::Mixed(doing)) }
    }

    /// Marks the present end of a stream.
    ///
    /// # Errors
    /// A stream of another device, or what the driver answered.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.of(stream.context(), "recording an event")?;
        let mut record = lock(&self.record);
        *record = stream.queue().record(&self.raw)?;
        Ok(())
    }

    /// Waits until the stream has come to the event.
    ///
    /// # Errors
    /// What the driver answered: also a fault of a kernel that was queued before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.raw.context.enter()?.call(
            || "waiting for an event".to_owned(),
            // SAFETY: the event lives as long as `self`.
            |driver| unsafe { (driver.cuEventSynchronize)(self.raw.handle) },
        )
    }

    /// The device's time from another event to this one; both have passed.
    ///
    /// # Errors
    /// What the driver answered, as where one has not passed.
    pub fn since(&self, start: &Self) -> Result<Duration, CudaError> {
        start.of(&self.raw.context, "taking the time between two events")?;
        let mut milliseconds = 0f32;
        self.raw.context.enter()?.call(
            || "taking the time between two events".to_owned(),
            // SAFETY: `milliseconds` may be written; the events live as long as the borrows.
            |driver| unsafe {
                (driver.cuEventElapsedTime)(&mut milliseconds, start.raw.handle, self.raw.handle)
            },
        )?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}
