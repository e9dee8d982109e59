//! The configuration of a launch: its sizes and attributes, as the driver reads them.

use cudarc::driver::sys::{self, CUlaunchAttributeID as Id};

use crate::driver::arguments::Sizes;
use crate::driver::functions::Handle;

/// Where and how large a launch is. The attributes outlive the value's use.
pub(super) fn config(
    sizes: &Sizes,
    stream: Handle,
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
        hStream: stream.0.cast(),
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
