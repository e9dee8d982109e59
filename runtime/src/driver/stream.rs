//! Streams and events: order, and time.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::api::DriverApi;
use super::context::Context;
use super::error::DriverError;
use super::functions::Handle;
use super::order::{Queue, Record, lock};

/// A queue of work on a device: its own, or one that the caller made elsewhere.
pub struct Stream<D: DriverApi>(Arc<Queue<D>>);

/// A stream that does not wait for the legacy default stream, in both drivers.
const NON_BLOCKING: u32 = 1;

impl<D: DriverApi> Stream<D> {
    /// A new stream, which does not wait for the legacy default stream.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn new(context: &Context<D>) -> Result<Self, DriverError> {
        let mut handle = Handle::NULL;
        context.enter()?.call(
            || "creating a stream".to_owned(),
            // SAFETY: `handle` may be written.
            |driver| unsafe { (driver.stream_create)(&mut handle, NON_BLOCKING) },
        )?;
        Ok(Self(Arc::new(Queue::new(context, handle, true))))
    }

    /// The caller's own stream, a `CUstream`, `cudaStream_t` or `hipStream_t`; null is the legacy default one, 1 and 2
    /// are those that CUDA calls `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, and HIP alike.
    /// It is not destroyed when the value is dropped.
    ///
    /// # Safety
    /// - The handle is a stream of this context, or one of the three above. It exists until the value and
    ///   all buffers that were used with it are gone.
    /// - 2 is another stream on each thread: the value, and buffers that were used with it, are used on
    ///   one thread.
    /// - Where somebody else captures the stream into a graph, no call that copies host memory is made
    ///   on it meanwhile, and what other calls on it use stays until the last replay of that graph.
    /// - Where `cuda::Graph::capture` captures it, all work on it meanwhile is
    ///   queued through this value.
    pub unsafe fn from_raw(context: &Context<D>, handle: *mut c_void) -> Self {
        Self(Arc::new(Queue::new(context, Handle(handle), false)))
    }

    /// The context.
    pub fn context(&self) -> &Context<D> {
        self.0.context()
    }

    /// The stream's handle, a `CUstream` or `hipStream_t`.
    pub fn as_raw(&self) -> *mut c_void {
        self.0.handle().0
    }

    /// Whether somebody captures it into a graph: this library or another one.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn is_captured(&self) -> Result<bool, DriverError> {
        let mut status = 0;
        self.context().enter()?.call(
            || "asking whether a stream is captured".to_owned(),
            // SAFETY: `status` may be written, and the stream lives as long as `self`.
            |driver| unsafe { (driver.stream_is_capturing)(self.0.handle(), &mut status) },
        )?;
        // 0 says that nobody does.
        Ok(status != 0)
    }

    pub(crate) fn queue(&self) -> &Arc<Queue<D>> {
        &self.0
    }

    /// Waits until everything that was queued is done.
    ///
    /// # Errors
    /// What the driver answered: also a fault of a kernel that was queued.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.context().enter()?.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |driver| unsafe { (driver.stream_synchronize)(self.0.handle()) },
        )
    }

    /// What is queued from now on starts after the event. If the event was recorded on a stream that
    /// is captured, this stream is captured too, until that capture ends.
    ///
    /// # Errors
    /// An event of another device, or what the driver answered.
    pub fn wait(&self, event: &Event<D>) -> Result<(), DriverError> {
        event.of(self.context(), "waiting for an event")?;
        // Held, so that the event is recorded nowhere else meanwhile.
        let record = lock(&event.record);
        self.0.wait(&event.raw, record.as_ref())
    }
}

/// An event of the driver.
pub(crate) struct RawEvent<D: DriverApi> {
    context: Context<D>,
    handle: Handle,
}

impl<D: DriverApi> RawEvent<D> {
    fn new(context: &Context<D>) -> Result<Self, DriverError> {
        let mut handle = Handle::NULL;
        context.enter()?.call(
            || "creating an event".to_owned(),
            // SAFETY: `handle` may be written; 0 is the default, with timing.
            |driver| unsafe { (driver.event_create)(&mut handle, 0) },
        )?;
        Ok(Self { context: context.clone(), handle })
    }

    /// A new event, at the present end of a queue.
    pub(crate) fn at_the_end_of(queue: &Queue<D>) -> Result<Self, DriverError> {
        let event = Self::new(queue.context())?;
        event.record(queue)?;
        Ok(event)
    }

    /// Marks the present end of a queue.
    pub(crate) fn record(&self, queue: &Queue<D>) -> Result<(), DriverError> {
        self.context.enter()?.call(
            || "recording an event".to_owned(),
            // SAFETY: stream and event live as long as the borrows.
            |driver| unsafe { (driver.event_record)(self.handle, queue.handle()) },
        )
    }

    /// Makes a queue wait for it.
    pub(crate) fn delay(&self, queue: &Queue<D>) -> Result<(), DriverError> {
        self.context.enter()?.call(
            || "making a stream wait for an event".to_owned(),
            // SAFETY: stream and event live as long as the borrows; no flag is set. An event that is
            // destroyed before it has come is still waited for.
            |driver| unsafe { (driver.stream_wait_event)(queue.handle(), self.handle, 0) },
        )
    }
}

impl<D: DriverApi> Drop for RawEvent<D> {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `new` and used by nobody after this.
            current.release("destroying an event", |driver| unsafe {
                (driver.event_destroy)(self.handle)
            });
        }
    }
}

/// A point in a stream, with its time.
pub struct Event<D: DriverApi> {
    raw: RawEvent<D>,
    /// The capture that it was recorded in.
    record: Mutex<Option<Arc<Record<D>>>>,
}

impl<D: DriverApi> Event<D> {
    /// A new event.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn new(context: &Context<D>) -> Result<Self, DriverError> {
        Ok(Self { raw: RawEvent::new(context)?, record: Mutex::default() })
    }

    fn of(&self, context: &Context<D>, doing: &'static str) -> Result<(), DriverError> {
        if self.raw.context.is(context) { Ok(()) } else { Err(DriverError::Mixed(doing)) }
    }

    /// Marks the present end of a stream.
    ///
    /// # Errors
    /// A stream of another device, or what the driver answered.
    pub fn record(&self, stream: &Stream<D>) -> Result<(), DriverError> {
        self.of(stream.context(), "recording an event")?;
        let mut record = lock(&self.record);
        *record = stream.queue().record(&self.raw)?;
        Ok(())
    }

    /// Waits until the stream has come to the event.
    ///
    /// # Errors
    /// What the driver answered: also a fault of a kernel that was queued before it.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.raw.context.enter()?.call(
            || "waiting for an event".to_owned(),
            // SAFETY: the event lives as long as `self`.
            |driver| unsafe { (driver.event_synchronize)(self.raw.handle) },
        )
    }

    /// The device's time from another event to this one; both have passed.
    ///
    /// # Errors
    /// What the driver answered, as where one has not passed.
    pub fn since(&self, start: &Self) -> Result<Duration, DriverError> {
        start.of(&self.raw.context, "taking the time between two events")?;
        let mut milliseconds = 0f32;
        self.raw.context.enter()?.call(
            || "taking the time between two events".to_owned(),
            // SAFETY: `milliseconds` may be written; the events live as long as the borrows.
            |driver| unsafe {
                (driver.event_elapsed)(&mut milliseconds, start.raw.handle, self.raw.handle)
            },
        )?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}
