//! Graphs: work that is queued once and launched often.

use std::ptr::null_mut;

use cudarc::driver::sys;

use super::device::Context;
use super::error::CudaError;
use super::stream::Stream;

/// A captured and instantiated sequence of work.
pub struct Graph {
    context: Context,
    executable: sys::CUgraphExec,
}

// SAFETY: an executable graph may be launched from any thread, one at a time: `launch` takes
// `&mut self`.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `work` queues on the stream (it is not run), and instantiates it.
    ///
    /// Other threads may go on allocating and copying meanwhile; `work` may not.
    ///
    /// # Errors
    /// The error of `work`, or what the driver answered; nothing stays captured then.
    pub fn capture(
        stream: &Stream,
        work: impl FnOnce(&Stream) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let context = stream.context();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        context.enter()?.call(
            || "starting to capture a graph".to_owned(),
            // SAFETY: the stream lives as long as the borrow.
            |driver| unsafe { (driver.cuStreamBeginCapture_v2)(stream.handle(), mode) },
        )?;
        let mut capture = Capture { stream, ended: false };
        work(stream)?;
        let graph = capture.end()?;
        let mut executable = null_mut();
        context.enter()?.call(
            || "instantiating a graph".to_owned(),
            // SAFETY: `executable` may be written, and the graph lives until the end of scope.
            |driver| unsafe {
                (driver.cuGraphInstantiateWithFlags)(&mut executable, graph.handle, 0)
            },
        )?;
        Ok(Self { context: context.clone(), executable })
    }

    /// Queues the whole of it on a stream.
    ///
    /// What its kernels touch must still be there: that is part of what the `unsafe` launch of
    /// each of them promised.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn launch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.context.enter()?.call(
            || "launching a graph".to_owned(),
            // SAFETY: graph and stream live as long as the borrows.
            |driver| unsafe { (driver.cuGraphLaunch)(self.executable, stream.handle()) },
        )
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `capture` and used by nobody after this.
            current.release("destroying a graph", |driver| unsafe {
                (driver.cuGraphExecDestroy)(self.executable)
            });
        }
    }
}

/// A capture that is ended whatever happens: a stream left capturing would be of no use.
struct Capture<'s> {
    stream: &'s Stream,
    ended: bool,
}

impl<'s> Capture<'s> {
    fn end(&mut self) -> Result<Captured<'s>, CudaError> {
        self.ended = true;
        let mut handle = null_mut();
        self.stream.context().enter()?.call(
            || "ending the capture of a graph".to_owned(),
            // SAFETY: `handle` may be written, and the stream lives as long as the borrow.
            |driver| unsafe { (driver.cuStreamEndCapture)(self.stream.handle(), &mut handle) },
        )?;
        Ok(Captured { context: self.stream.context(), handle })
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
    handle: sys::CUgraph,
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by the end of a capture and used by nobody after this; an executable
            // made from it does not need it.
            current.release("destroying a captured graph", |driver| unsafe {
                (driver.cuGraphDestroy)(self.handle)
            });
        }
    }
}
