//! The order of work: queues of the device, what a capture keeps, and who waits for whom.
//!
//! Three rules make safe calls on streams safe:
//! - all work goes through [`Queue::queue`], which notes on which queue memory was used, so that a
//!   safe use on another queue is put after it ([`Queue::order`]);
//! - while a queue is captured, the same call gives what the work uses to the capture's [`Record`],
//!   from which the graph takes it over; work is queued and noted under one lock, so that neither
//!   the beginning nor the end of a capture comes between;
//! - host memory that is only lent for a call is copied by [`Queue::lend`], which waits under that
//!   lock and refuses a queue that is captured.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::buffer::Allocation;
use super::device::Context;
use super::driver::Functions;
use super::error::CudaError;
use super::module::Module;
use super::stream::RawEvent;
use crate::source::Access;

/// Memory that a call uses, and how.
pub(super) type Use<'u> = (&'u Arc<Allocation>, Access);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of the driver, kept as long as memory was used on it that no later call waits for.
pub(super) struct Queue {
    context: Context,
    handle: sys::CUstream,
    owned: bool,
    capture: Mutex<Option<Joined>>,
}

// SAFETY: a stream may be used from any thread; the driver locks where it must.
unsafe impl Send for Queue {}
// SAFETY: as for `Send`.
unsafe impl Sync for Queue {}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle && self.context.is(&other.context)
    }
}

/// That a queue is captured, by itself or since it waits for one that is.
struct Joined {
    record: Arc<Record>,
    /// The queue's end before: what others wait for meanwhile.
    before: Arc<RawEvent>,
}

/// What captured work uses; nothing once the capture has ended.
pub(super) struct Record(Mutex<Option<Kept>>);

impl Record {
    /// Whether the capture goes on.
    pub(super) fn open(&self) -> bool {
        lock(&self.0).is_some()
    }
}

/// Memory and kernels that a graph uses.
#[derive(Default)]
pub(super) struct Kept {
    memory: HashMap<usize, (Arc<Allocation>, Access)>,
    modules: HashMap<usize, Arc<Module>>,
}

impl Kept {
    /// The memory.
    pub(super) fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        self.memory.values().map(|(memory, access)| (memory, *access))
    }

    fn add<'u>(&mut self, uses: impl Iterator<Item = Use<'u>>, module: Option<&Arc<Module>>) {
        for (memory, access) in uses {
            let place = Arc::as_ptr(memory).addr();
            let known = self.memory.entry(place).or_insert_with(|| (memory.clone(), access));
            if known.1 != access {
                known.1 = Access::ReadWrite;
            }
        }
        if let Some(module) = module {
            self.modules.entry(Arc::as_ptr(module).addr()).or_insert_with(|| module.clone());
        }
    }
}

impl Queue {
    pub(super) fn new(context: &Context, handle: sys::CUstream, owned: bool) -> Self {
        Self { context: context.clone(), handle, owned, capture: Mutex::default() }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Whether it is captured.
    pub(super) fn captured(&self) -> Option<Arc<Record>> {
        open(&lock(&self.capture)).map(|joined| joined.record.clone())
    }

    /// Makes a call that queues work.
    ///
    /// It is not put after other queues: see [`Self::order`].
    pub(super) fn queue<'u>(
        self: &Arc<Self>,
        uses: impl Iterator<Item = Use<'u>>,
        module: Option<&Arc<Module>>,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&Functions, sys::CUstream) -> i32,
    ) -> Result<(), CudaError> {
        let current = self.context.enter()?;
        let capture = lock(&self.capture);
        let mut record = capture.as_ref().map(|joined| lock(&joined.record.0));
        let kept = record.as_mut().and_then(|record| record.as_mut());
        let result = current.call(doing, |driver| call(driver, self.handle));
        // Noted even if the call failed: the driver does not say how far it came.
        match kept {
            Some(kept) => kept.add(uses, module),
            None => uses.for_each(|(memory, access)| memory.uses().mark(self, access)),
        }
        result
    }

    /// Puts what is queued from now on after the uses on other queues that it has to come after. Work
    /// that is captured is put in order when the graph is launched.
    pub(super) fn order<'u>(
        self: &Arc<Self>,
        uses: impl Iterator<Item = Use<'u>>,
    ) -> Result<(), CudaError> {
        if self.captured().is_some() {
            return Ok(());
        }
        let mut waited: Vec<Arc<Self>> = Vec::new();
        for (memory, access) in uses {
            let before = memory.uses().before(self, access);
            for other in before {
                if !waited.contains(&other) {
                    self.after(&other)?;
                    waited.push(other);
                }
            }
        }
        Ok(())
    }

    /// Waits, on the device, for what another queue holds now. The two locks are not held at once.
    fn after(&self, other: &Self) -> Result<(), CudaError> {
        let event = {
            let capture = lock(&other.capture);
            match open(&capture) {
                Some(joined) => joined.before.clone(),
                None => Arc::new(RawEvent::at_the_end_of(other)?),
            }
        };
        let _capture = lock(&self.capture);
        event.delay(self)
    }

    /// Makes a call that copies memory of the caller's, lent for the time of the call, and waits.
    pub(super) fn lend<'u>(
        self: &Arc<Self>,
        (memory, access): Use<'u>,
        copying: &'static str,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&Functions, sys::CUstream) -> i32,
    ) -> Result<(), CudaError> {
        self.order(std::iter::once((memory, access)))?;
        let current = self.context.enter()?;
        let capture = lock(&self.capture);
        if open(&capture).is_some() {
            return Err(CudaError::Captured(copying));
        }
        let queued = current.call(doing, |driver| call(driver, self.handle));
        // Also where queuing failed, since the driver does not say how far it came. A failure to wait
        // is one of the device, which does nothing any more then.
        let waited = current.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |driver| unsafe { (driver.cuStreamSynchronize)(self.handle) },
        );
        queued.and(waited)?;
        memory.uses().waited(self, access);
        Ok(())
    }

    /// Begins a capture.
    pub(super) fn begin(&self) -> Result<Arc<Record>, CudaError> {
        let mut capture = lock(&self.capture);
        if open(&capture).is_some() {
            return Err(CudaError::Captured("capturing a graph"));
        }
        let before = Arc::new(RawEvent::at_the_end_of(self)?);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.context.enter()?.call(
            || "starting to capture a graph".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |driver| unsafe { (driver.cuStreamBeginCapture_v2)(self.handle, mode) },
        )?;
        let record = Arc::new(Record(Mutex::new(Some(Kept::default()))));
        *capture = Some(Joined { record: record.clone(), before });
        Ok(record)
    }

    /// Ends the capture that began with a record: the graph, and what it uses.
    pub(super) fn end(&self, record: &Record) -> Result<(sys::CUgraph, Kept), CudaError> {
        let mut capture = lock(&self.capture);
        let mut kept = lock(&record.0);
        let mut handle = std::ptr::null_mut();
        let ended = self.context.enter().and_then(|current| {
            current.call(
                || "ending the capture of a graph".to_owned(),
                // SAFETY: `handle` may be written, and the stream lives as long as `self`.
                |driver| unsafe { (driver.cuStreamEndCapture)(self.handle, &mut handle) },
            )
        });
        let kept = kept.take().unwrap_or_default();
        *capture = None;
        ended.map(|()| (handle, kept))
    }

    /// Records an event at the present end, and says in which capture.
    pub(super) fn record(&self, event: &RawEvent) -> Result<Option<Arc<Record>>, CudaError> {
        let capture = lock(&self.capture);
        event.record(self)?;
        Ok(open(&capture).map(|joined| joined.record.clone()))
    }

    /// Waits for an event, and takes part in the capture that the event belongs to, if there is one.
    pub(super) fn wait(
        &self,
        event: &RawEvent,
        record: Option<&Arc<Record>>,
    ) -> Result<(), CudaError> {
        let mut capture = lock(&self.capture);
        let joins = record.filter(|record| record.open() && open(&capture).is_none());
        let joined = match joins {
            None => None,
            Some(record) => {
                let before = Arc::new(RawEvent::at_the_end_of(self)?);
                Some(Joined { record: record.clone(), before })
            }
        };
        event.delay(self)?;
        if joined.is_some() {
            *capture = joined;
        }
        Ok(())
    }
}

/// The capture that goes on, if there is one: that of another queue may have ended without this one.
fn open(capture: &Option<Joined>) -> Option<&Joined> {
    capture.as_ref().filter(|joined| joined.record.open())
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `Stream::new` and used by nobody after this; queued work still runs.
            current.release("destroying a stream", |driver| unsafe {
                (driver.cuStreamDestroy_v2)(self.handle)
            });
        }
    }
}
