//! Graphs: work that is queued once and launched often.

use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUstreamCaptureMode;

use super::{Context, CudaError, Driver, Stream};
use crate::driver::functions::Handle;
use crate::driver::order::{Joined, Kept, Queue, Record, lock, open};
use crate::driver::stream::RawEvent;

impl Queue<Driver> {
    /// Begins a capture.
    fn begin(&self) -> Result<Arc<Record<Driver>>, CudaError> {
        let mut capture = lock(&self.capture);
        if open(&capture).is_some() {
            return Err(CudaError::Captured("capturing a graph"));
        }
        let before = Arc::new(RawEvent::at_the_end_of(self)?);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.context().enter()?.call(
            || "starting to capture a graph".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |driver| unsafe { (driver.own.cuStreamBeginCapture_v2)(self.handle(), mode) },
        )?;
        let record = Arc::new(Record(Mutex::new(Some(Kept::default()))));
        *capture = Some(Joined { record: record.clone(), before });
        Ok(record)
    }

    /// Ends the capture that began with a record: the graph, and what it uses.
    fn end(&self, record: &Record<Driver>) -> Result<(Handle, Kept<Driver>), CudaError> {
        let mut capture = lock(&self.capture);
        let mut kept = lock(&record.0);
        let mut handle = Handle::NULL;
        let ended = self.context().enter().and_then(|current| {
            current.call(
                || "ending the capture of a graph".to_owned(),
                // SAFETY: `handle` may be written, and the stream lives as long as `self`.
                |driver| unsafe { (driver.own.cuStreamEndCapture)(self.handle(), &mut handle) },
            )
        });
        let kept = kept.take().unwrap_or_default();
        *capture = None;
        ended.map(|()| (handle, kept))
    }
}

/// A captured and instantiated sequence of work.
///
/// It has a share in the memory of all buffers and in all kernels that the work uses, which may be
/// dropped: they go when the last graph goes. Memory that is not a
/// [`DeviceBuffer`](super::DeviceBuffer)'s is kept by whoever promised it to an `unsafe` call.
pub struct Graph {
    context: Context,
    executable: Handle,
    kept: Kept<Driver>,
}

impl Graph {
    /// Captures what `work` queues on the stream (it is not run), and instantiates it. A stream that
    /// waits for an event of this one meanwhile is captured too; it must be waited for in turn.
    ///
    /// Other threads may go on allocating and copying on other streams meanwhile; `work` may not.
    /// What it drops and has not used is not freed.
    ///
    /// # Errors
    /// The error of `work`, a stream that is captured already, or what the driver answered; nothing
    /// stays captured then.
    pub fn capture(
        stream: &Stream,
        work: impl FnOnce(&Stream) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let context = stream.context();
        let mut capture = Capture { stream, record: stream.queue().begin()?, ended: false };
        work(stream)?;
        let (graph, kept) = capture.end()?;
        let mut executable = Handle::NULL;
        context.enter()?.call(
            || "instantiating a graph".to_owned(),
            // SAFETY: `executable` may be written, and the graph lives until the end of scope.
            |driver| unsafe {
                (driver.own.cuGraphInstantiateWithFlags)(&mut executable, graph.handle, 0)
            },
        )?;
        Ok(Self { context: context.clone(), executable, kept })
    }

    /// Queues the whole of it on a stream, after what other streams do with its buffers.
    ///
    /// # Errors
    /// A stream of another device or one that is captured, or what the driver answered.
    pub fn launch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let doing = "launching a graph";
        if !self.context.is(stream.context()) {
            return Err(CudaError::Mixed(doing));
        }
        let queue = stream.queue();
        if queue.captured().is_some() {
            return Err(CudaError::Captured(doing));
        }
        queue.order(self.kept.uses())?;
        queue.queue(
            self.kept.uses(),
            None,
            || doing.to_owned(),
            // SAFETY: graph and stream live as long as the borrows; memory and kernels live as long as
            // the graph, which the driver destroys only after its replays.
            |driver, stream| unsafe { (driver.own.cuGraphLaunch)(self.executable, stream) },
        )
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `capture` and used by nobody after this; replays that are queued still
            // run. What it keeps goes after it.
            current.release("destroying a graph", |driver| unsafe {
                (driver.own.cuGraphExecDestroy)(self.executable)
            });
        }
    }
}

/// A capture that is ended whatever happens: a stream left capturing would be of no use.
struct Capture<'s> {
    stream: &'s Stream,
    record: Arc<Record<Driver>>,
    ended: bool,
}

impl<'s> Capture<'s> {
    fn end(&mut self) -> Result<(Captured<'s>, Kept<Driver>), CudaError> {
        self.ended = true;
        let (handle, kept) = self.stream.queue().end(&self.record)?;
        Ok((Captured { context: self.stream.context(), handle }, kept))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // The error that led here is the one to tell; the driver's answer adds nothing to it.
        if !self.ended {
            drop(self.end());
        }
    }
}

/// A graph before instantiation.
struct Captured<'s> {
    context: &'s Context,
    handle: Handle,
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if self.handle == Handle::NULL {
            return;
        }
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by the end of a capture and used by nobody after this; an executable
            // made from it does not need it.
            current.release("destroying a captured graph", |driver| unsafe {
                (driver.own.cuGraphDestroy)(self.handle)
            });
        }
    }
}
