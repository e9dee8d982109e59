//! Launching: what was prepared, in one driver call.

use cudarc::driver::sys::{self, CUlaunchAttributeID as Id};

use super::error::CudaError;
use super::module::Kernel;
use super::stream::Stream;
use super::tensor_map::TensorMap;
use crate::gpu::arguments::{self, Limits};
use crate::source::Problem;

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
    /// # Safety
    /// The kernel's text touches no more than its rule says, and what the arguments point to
    /// stays there until the kernel has run: if a graph captures the launch, until its last
    /// replay has.
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
        if !self.context().is(stream.context()) {
            return Err(CudaError::Mixed("launching a kernel"));
        }
        let limits =
            Limits { threads: self.facts().threads, shared_bytes: self.most_shared_bytes() };
        let mut prepared = Prepared::new(self.rule(), problem, limits, arguments)
            .map_err(|fault| CudaError::Launch { entry: self.entry().to_owned(), fault })?;
        let mut pointers = prepared.pointers(|map| map.raw().cast_mut().cast());
        let (mut attributes, count) = attributes(prepared.cluster, overlap && self.rule().overlaps);
        let config = sys::CUlaunchConfig {
            gridDimX: prepared.grid[0],
            gridDimY: prepared.grid[1],
            gridDimZ: prepared.grid[2],
            blockDimX: prepared.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: prepared.shared_bytes,
            hStream: stream.handle(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        let current = self.context().enter()?;
        self.allow_shared(&current, prepared.shared_bytes)?;
        current.call(
            || format!("launching {}", self.entry()),
            // SAFETY: one pointer a parameter of the rule, which the caller says is the text's;
            // each points to a value at least as wide as the parameter. The driver copies
            // values and attributes before it returns.
            |driver| unsafe {
                let none = std::ptr::null_mut();
                (driver.cuLaunchKernelEx)(&config, self.function(), pointers.as_mut_ptr(), none)
            },
        )
    }
}

/// The launch attributes that are set, and their number.
fn attributes(cluster: [u32; 3], overlap: bool) -> ([sys::CUlaunchAttribute; 2], u32) {
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
