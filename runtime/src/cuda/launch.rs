//! Launching: what was prepared, in one driver call.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUlaunchAttributeID as Id};

use super::buffer::Allocation;
use super::error::CudaError;
use super::module::Kernel;
use super::order::Use;
use super::stream::Stream;
use super::tensor_map::TensorMap;
use crate::gpu::arguments::{self, LaunchFault, Limits, Sizes};
use crate::source::{Access, Problem};

/// An argument, of the kind that the kernel's rule says at its place.
pub type Argument<'a> = arguments::Argument<'a, TensorMap<'a>>;
/// A launch whose sizes and arguments have been checked.
pub type Prepared<'a> = arguments::Prepared<'a, TensorMap<'a>>;

impl Kernel {
    /// Queues the kernel on a stream for a problem.
    ///
    /// With `overlap`, a kernel whose rule says that it waits by itself may start before what is
    /// queued before it has ended (programmatic dependent launch).
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
        stream: &Stream,
        problem: &Problem,
        overlap: bool,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_sized(stream, &self.sizes(problem)?, overlap, arguments) }
    }

    /// The sizes of a launch for a problem. The kernel may use that much shared memory from now on.
    pub(super) fn sizes(&self, problem: &Problem) -> Result<Sizes, CudaError> {
        let limits =
            Limits { threads: self.facts().threads, shared_bytes: self.most_shared_bytes() };
        let sizes = Sizes::new(self.rule(), problem, limits).map_err(|fault| self.fault(fault))?;
        self.allow_shared(&self.context().enter()?, sizes.shared_bytes)?;
        Ok(sizes)
    }

    pub(super) fn fault(&self, fault: LaunchFault) -> CudaError {
        CudaError::Launch { entry: self.entry().to_owned(), fault }
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
        stream: &Stream,
        sizes: &Sizes,
        overlap: bool,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        self.of_one_device(stream, arguments)?;
        let mut prepared =
            Prepared::of(sizes, self.rule(), arguments).map_err(|fault| self.fault(fault))?;
        let mut pointers = prepared.pointers(|map| map.raw().cast_mut().cast());
        let (mut attributes, count) = attributes(sizes.cluster, overlap && self.rule().overlaps);
        let config = config(sizes, stream.queue().handle(), &mut attributes, count);
        stream.queue().queue(
            uses(arguments),
            Some(self.module()),
            || format!("launching {}", self.entry()),
            // SAFETY: one pointer a parameter of the rule, which the caller says is the text's;
            // each points to a value at least as wide as the parameter. The driver copies
            // values and attributes before it returns. Buffers and the kernel's code go only after
            // the launch, and are kept by a graph that captures it.
            |driver, _| unsafe {
                let none = std::ptr::null_mut();
                (driver.cuLaunchKernelEx)(&config, self.function(), pointers.as_mut_ptr(), none)
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
    pub(super) unsafe fn launch_in_order(
        &self,
        stream: &Stream,
        sizes: &Sizes,
        overlap: bool,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        self.of_one_device(stream, arguments)?;
        stream.queue().order(uses(arguments))?;
        // SAFETY: the caller's promise, and the order has just been made.
        unsafe { self.launch_sized(stream, sizes, overlap, arguments) }
    }

    /// Whether stream and buffers are of the kernel's device.
    fn of_one_device(&self, stream: &Stream, arguments: &[Argument<'_>]) -> Result<(), CudaError> {
        let context = self.context();
        // Memory of another backend has an owner of another type.
        let here = |argument: &Argument<'_>| match owner(argument) {
            None => true,
            Some(owner) => owner.is_some_and(|(memory, _)| memory.context().is(context)),
        };
        if context.is(stream.context()) && arguments.iter().all(here) {
            return Ok(());
        }
        Err(CudaError::Mixed("launching a kernel"))
    }
}

/// The buffer of an argument, if it is memory that a backend allocated; inside, if it is this one.
fn owner<'a>(argument: &'a Argument<'_>) -> Option<Option<Use<'a>>> {
    let (owner, access) = match argument {
        Argument::Read(slice) => (slice.owner(), Access::Read),
        Argument::Write(slice) => (slice.owner(), Access::ReadWrite),
        Argument::Map(map) => (map.memory().owner(), Access::Read),
        _ => return None,
    };
    let memory = owner?.downcast_ref::<Arc<Allocation>>();
    Some(memory.map(|memory| (memory, access)))
}

/// The buffers of a launch.
fn uses<'a>(arguments: &'a [Argument<'_>]) -> impl Iterator<Item = Use<'a>> {
    arguments.iter().filter_map(|argument| owner(argument)?)
}

/// Where and how large a launch is. The attributes outlive the value's use.
pub(super) fn config(
    sizes: &Sizes,
    stream: sys::CUstream,
    attributes: &mut [sys::CUlaunchAttribute; 2],
    count: u32,
) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: sizes.grid[0],
        gridDimY: sizes.grid[1],
        gridDimZ: sizes.grid[2],
        blockDimX: sizes.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: sizes.shared_bytes,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: count,
    }
}

/// The launch attributes that are set, and their number.
pub(super) fn attributes(cluster: [u32; 3], overlap: bool) -> ([sys::CUlaunchAttribute; 2], u32) {
    let value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    let unset = sys::CUlaunchAttribute { id: Id::CU_LAUNCH_ATTRIBUTE_IGNORE, pad: [0; 4], value };
    let mut attributes = [unset; 2];
    let mut count = 0;
    if cluster != [1, 1, 1] {
        attributes[count].id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim.x = cluster[0];
        attributes[count].value.clusterDim.y = cluster[1];
        attributes[count].value.clusterDim.z = cluster[2];
        count += 1;
    }
    if overlap {
        attributes[count].id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        count += 1;
    }
    (attributes, count as u32)
}
