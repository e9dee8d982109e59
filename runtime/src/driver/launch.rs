//! Launching: what was prepared, in one driver call.

use std::sync::Arc;

use super::api::DriverApi;
use super::arguments::{Argument, LaunchFault, Limits, Prepared, Sizes};
use super::buffer::Allocation;
use super::error::DriverError;
use super::module::LoadedKernel;
use super::order::Use;
use super::stream::Stream;
use crate::source::{Access, ProblemSize};

impl<D: DriverApi> LoadedKernel<D> {
    /// Queues the kernel on a stream for a problem.
    ///
    /// With `overlap`, a kernel whose rule says that it waits by itself may start before what is
    /// queued before it has ended (programmatic dependent launch, which is CUDA's alone).
    ///
    /// Buffers need not outlive the launch: freeing one waits, and a graph that captures the launch
    /// keeps its buffers and the kernel.
    ///
    /// # Safety
    /// - The kernel's text does what its rule says: it takes these parameters and touches no more than
    ///   the rule's bytes of each buffer, for any sizes that the rule gives numbers for, whatever numbers
    ///   the buffers hold; where what it touches depends on those (as with the order of columns), they
    ///   are such that it keeps to that.
    /// - A tensor map is of memory and of a shape that the text may touch.
    /// - What other streams do with the buffers meanwhile is ordered, as with an
    ///   [`Event`](super::Event), where it or this kernel writes. Safe calls that come later are put
    ///   after this one by themselves.
    ///
    /// # Errors
    /// Arguments that do not fit the rule, sizes beyond the hardware, or what the driver answered.
    pub unsafe fn launch(
        &self,
        stream: &Stream<D>,
        problem: &ProblemSize,
        overlap: bool,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_sized(stream, &self.sizes(problem)?, overlap, arguments) }
    }

    /// The sizes of a launch for a problem. The kernel may use that much shared memory from now on.
    pub(crate) fn sizes(&self, problem: &ProblemSize) -> Result<Sizes, DriverError> {
        let limits = Limits {
            threads: self.facts().threads,
            shared_bytes: self.most_shared_bytes(),
            grid_threads: D::GRID_THREADS,
            cluster_blocks: D::CLUSTER_BLOCKS,
        };
        let sizes = Sizes::new(self.rule(), problem, limits).map_err(|fault| self.fault(fault))?;
        self.allow_shared(sizes.shared_bytes)?;
        Ok(sizes)
    }

    pub(crate) fn fault(&self, fault: LaunchFault) -> DriverError {
        DriverError::Launch { entry: self.entry().to_owned(), fault }
    }

    /// As [`Self::launch`], with the sizes of this kernel for a problem.
    ///
    /// # Safety
    /// As [`Self::launch`].
    ///
    /// # Errors
    /// As [`Self::launch`].
    unsafe fn launch_sized(
        &self,
        stream: &Stream<D>,
        sizes: &Sizes,
        overlap: bool,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError> {
        self.of_one_device(stream, arguments)?;
        let mut prepared =
            Prepared::of(sizes, self.rule(), arguments).map_err(|fault| self.fault(fault))?;
        let mut pointers = prepared.pointers();
        let overlap = overlap && self.rule().overlaps;
        stream.queue().queue(
            uses(arguments),
            Some(self.module()),
            || format!("launching {}", self.entry()),
            // SAFETY: one pointer a parameter of the rule, which the caller says is the text's;
            // each points to a value at least as wide as the parameter. The driver copies
            // values before it returns. Buffers and the kernel's code go only after
            // the launch, and are kept by a graph that captures it.
            |driver, stream| unsafe {
                driver.launch(self.function(), sizes, overlap, stream, pointers.as_mut_ptr())
            },
        )
    }

    /// As [`Self::launch`], after what other streams do with the buffers.
    ///
    /// # Safety
    /// As [`Self::launch`], but for the order of streams.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub(crate) unsafe fn launch_in_order(
        &self,
        stream: &Stream<D>,
        sizes: &Sizes,
        overlap: bool,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError> {
        self.of_one_device(stream, arguments)?;
        stream.queue().order(uses(arguments))?;
        // SAFETY: the caller's promise, and the order has just been made.
        unsafe { self.launch_sized(stream, sizes, overlap, arguments) }
    }

    /// Whether stream and buffers are of the kernel's device.
    fn of_one_device(
        &self,
        stream: &Stream<D>,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError> {
        let context = self.context();
        // Memory of another backend has an owner of another type.
        let here = |argument: &Argument<'_>| match owner::<D>(argument) {
            None => true,
            Some(owner) => owner.is_some_and(|(memory, _)| memory.context().is(context)),
        };
        if context.is(stream.context()) && arguments.iter().all(here) {
            return Ok(());
        }
        Err(DriverError::Mixed("launching a kernel"))
    }
}

/// The buffer of an argument, if it is memory that a backend allocated; inside, if it is this one.
fn owner<'a, D: DriverApi>(argument: &'a Argument<'_>) -> Option<Option<Use<'a, D>>> {
    let (owner, access) = match argument {
        Argument::Read(slice) => (slice.owner(), Access::Read),
        Argument::Write(slice) => (slice.owner(), Access::ReadWrite),
        Argument::Map(map) => (map.memory()?.owner(), Access::Read),
        _ => return None,
    };
    let memory = owner?.downcast_ref::<Arc<Allocation<D>>>();
    Some(memory.map(|memory| (memory, access)))
}

/// The buffers of a launch.
fn uses<'a, D: DriverApi>(arguments: &'a [Argument<'_>]) -> impl Iterator<Item = Use<'a, D>> {
    arguments.iter().filter_map(|argument| owner(argument)?)
}
