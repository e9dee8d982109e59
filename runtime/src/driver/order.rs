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

use super::api::DriverApi;
use super::buffer::Allocation;
use super::context::Context;
use super::error::DriverError;
use super::functions::Handle;
use super::module::Module;
use super::stream::RawEvent;
use crate::source::Access;

/// Memory that a call uses, and how.
pub(crate) type Use<'u, D> = (&'u Arc<Allocation<D>>, Access);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of the driver, kept as long as memory was used on it that no later call waits for.
pub(crate) struct Queue<D: DriverApi> {
    context: Context<D>,
    handle: Handle,
    owned: bool,
    /// Only graphs begin captures, which are CUDA's.
    pub(crate) capture: Mutex<Option<Joined<D>>>,
}

impl<D: DriverApi> PartialEq for Queue<D> {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle && self.context.is(&other.context)
    }
}

/// That a queue is captured, by itself or since it waits for one that is.
pub(crate) struct Joined<D: DriverApi> {
    pub(crate) record: Arc<Record<D>>,
    /// The queue's end before: what others wait for meanwhile.
    pub(crate) before: Arc<RawEvent<D>>,
}

/// What captured work uses; nothing once the capture has ended.
pub(crate) struct Record<D: DriverApi>(pub(crate) Mutex<Option<Kept<D>>>);

impl<D: DriverApi> Record<D> {
    /// Whether the capture goes on.
    pub(crate) fn open(&self) -> bool {
        lock(&self.0).is_some()
    }
}

/// Memory and kernels that a graph uses.
pub(crate) struct Kept<D: DriverApi> {
    memory: HashMap<usize, (Arc<Allocation<D>>, Access)>,
    modules: HashMap<usize, Arc<Module<D>>>,
}

impl<D: DriverApi> Default for Kept<D> {
    fn default() -> Self {
        Self { memory: HashMap::new(), modules: HashMap::new() }
    }
}

impl<D: DriverApi> Kept<D> {
    /// The memory.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Use<'_, D>> {
        self.memory.values().map(|(memory, access)| (memory, *access))
    }

    fn add<'u>(&mut self, uses: impl Iterator<Item = Use<'u, D>>, module: Option<&Arc<Module<D>>>) {
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

impl<D: DriverApi> Queue<D> {
    pub(crate) fn new(context: &Context<D>, handle: Handle, owned: bool) -> Self {
        Self { context: context.clone(), handle, owned, capture: Mutex::default() }
    }

    pub(crate) fn context(&self) -> &Context<D> {
        &self.context
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether it is captured.
    pub(crate) fn captured(&self) -> Option<Arc<Record<D>>> {
        open(&lock(&self.capture)).map(|joined| joined.record.clone())
    }

    /// Makes a call that queues work.
    ///
    /// It is not put after other queues: see [`Self::order`].
    pub(crate) fn queue<'u>(
        self: &Arc<Self>,
        uses: impl Iterator<Item = Use<'u, D>>,
        module: Option<&Arc<Module<D>>>,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&D, Handle) -> i32,
    ) -> Result<(), DriverError> {
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
    pub(crate) fn order<'u>(
        self: &Arc<Self>,
        uses: impl Iterator<Item = Use<'u, D>>,
    ) -> Result<(), DriverError> {
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
    fn after(&self, other: &Self) -> Result<(), DriverError> {
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
    pub(crate) fn lend<'u>(
        self: &Arc<Self>,
        (memory, access): Use<'u, D>,
        copying: &'static str,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&D, Handle) -> i32,
    ) -> Result<(), DriverError> {
        self.order(std::iter::once((memory, access)))?;
        let current = self.context.enter()?;
        let capture = lock(&self.capture);
        if open(&capture).is_some() {
            return Err(DriverError::Captured(copying));
        }
        let queued = current.call(doing, |driver| call(driver, self.handle));
        // Also where queuing failed, since the driver does not say how far it came. A failure to wait
        // is one of the device, which does nothing any more then.
        let waited = current.call(
            || "waiting for a stream".to_owned(),
            // SAFETY: the stream lives as long as `self`.
            |driver| unsafe { (driver.stream_synchronize)(self.handle) },
        );
        queued.and(waited)?;
        memory.uses().waited(self, access);
        Ok(())
    }

    /// Records an event at the present end, and says in which capture.
    pub(crate) fn record(
        &self,
        event: &RawEvent<D>,
    ) -> Result<Option<Arc<Record<D>>>, DriverError> {
        let capture = lock(&self.capture);
        event.record(self)?;
        Ok(open(&capture).map(|joined| joined.record.clone()))
    }

    /// Waits for an event, and takes part in the capture that the event belongs to, if there is one.
    pub(crate) fn wait(
        &self,
        event: &RawEvent<D>,
        record: Option<&Arc<Record<D>>>,
    ) -> Result<(), DriverError> {
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
pub(crate) fn open<D: DriverApi>(capture: &Option<Joined<D>>) -> Option<&Joined<D>> {
    capture.as_ref().filter(|joined| joined.record.open())
}

impl<D: DriverApi> Drop for Queue<D> {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(current) = self.context.enter() {
            // SAFETY: made by `Stream::new` and used by nobody after this; queued work still runs.
            current.release("destroying a stream", |driver| unsafe {
                (driver.stream_destroy)(self.handle)
            });
        }
    }
}
