//! A `libcuda.so` without a GPU, which the test compiles: see `device.rs`. Device 0 is an sm_90, device 1 an
//! sm_75.
//!
//! `--cfg before`: without what came with CUDA 12.0.

#![allow(non_snake_case, unused_variables)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

mod device;
#[macro_use]
mod functions;
mod kernels;
use device::*;

const ARCHITECTURES: [&str; 2] = ["sm_90", "sm_75"];
const DEVICE: &CStr = c"Fake GPU";
const MEMORY: usize = 141 << 30;
/// Numbers of devices are no ordinals.
const FIRST_DEVICE: c_int = 7;
const FIRST_CONTEXT: usize = 0x70;
const VERSION: c_int = 13000;
/// Shared memory that a block has without opting in.
const SHARED: u32 = 48 << 10;
const LOADS_TEXT: bool = true;

const NAMES: &[(i32, &CStr, &CStr)] = &[
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (INVALID_PTX, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// An attribute of a device.
fn attribute(attribute: c_int, ordinal: usize) -> Option<c_int> {
    Some(match attribute {
        16 => 132,
        38 => 60 << 20,
        75 => [9, 7][ordinal],
        76 => [0, 5][ordinal],
        97 => 227 << 10,
        _ => return None,
    })
}

/// The device of the current context.
fn current(state: &State) -> usize {
    state.contexts.last().map_or(0, |context| context - FIRST_CONTEXT)
}

/// What the linker has.
pub struct Compiled {
    log: *mut u8,
    log_size: usize,
    target: usize,
    image: Vec<u8>,
}

#[repr(C)]
pub struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    attributes: *const Attribute,
    count: c_uint,
}

#[repr(C)]
pub struct Attribute {
    id: c_uint,
    pad: u32,
    value: [u32; 16],
}

shared! {
    init: cuInit, version: cuDriverGetVersion, error_name: cuGetErrorName,
    error_string: cuGetErrorString, device_count: cuDeviceGetCount, device: cuDeviceGet,
    device_name: cuDeviceGetName, device_attribute: cuDeviceGetAttribute,
    device_memory: cuDeviceTotalMem_v2, synchronize: cuCtxSynchronize,
    stream_create: cuStreamCreate, stream_destroy: cuStreamDestroy_v2,
    stream_synchronize: cuStreamSynchronize, stream_is_capturing: cuStreamIsCapturing,
    stream_wait_event: cuStreamWaitEvent, begin_capture: cuStreamBeginCapture_v2,
    end_capture: cuStreamEndCapture, graph_instantiate: cuGraphInstantiateWithFlags,
    graph_launch: cuGraphLaunch, executable_destroy: cuGraphExecDestroy,
    graph_destroy: cuGraphDestroy, event_create: cuEventCreate, event_record: cuEventRecord,
    event_synchronize: cuEventSynchronize, event_elapsed: cuEventElapsedTime,
    event_destroy: cuEventDestroy_v2, alloc: cuMemAlloc_v2, free: cuMemFree_v2,
    copy_to_device: cuMemcpyHtoDAsync_v2, copy_to_host: cuMemcpyDtoHAsync_v2,
    copy: cuMemcpyDtoDAsync_v2, fill: cuMemsetD8Async, module_load: cuModuleLoadData,
    module_unload: cuModuleUnload, module_function: cuModuleGetFunction,
    function_attribute: cuFuncGetAttribute,
}

library! {
    fn cuDevicePrimaryCtxRetain(state, to: *mut Handle, device: c_int) {
        *to = (FIRST_CONTEXT + (device - FIRST_DEVICE) as usize) as Handle;
        0
    }
    fn cuDevicePrimaryCtxRelease_v2(state, device: c_int) { 0 }
    fn cuCtxGetCurrent(state, to: *mut Handle) {
        *to = state.contexts.last().copied().unwrap_or(0) as Handle;
        0
    }
    fn cuCtxGetDevice(state, to: *mut c_int) {
        *to = FIRST_DEVICE + current(&state) as c_int;
        if state.contexts.is_empty() { INVALID_CONTEXT } else { 0 }
    }
    fn cuCtxPushCurrent_v2(state, context: Handle) { state.contexts.push(context as usize); 0 }
    fn cuCtxPopCurrent_v2(state, to: *mut Handle) {
        let Some(context) = state.contexts.pop() else { return INVALID_VALUE };
        *to = context as Handle;
        0
    }
    fn cuMemAllocHost_v2(state, to: *mut *mut c_void, bytes: usize) {
        let block = vec![0xA5u64; bytes.div_ceil(8)].leak();
        *to = block.as_mut_ptr().cast();
        0
    }
    fn cuMemFreeHost(state, block: *mut c_void) { 0 }
    fn cuMemcpy2DAsync_v2(state, copy: *const [u64; 16], stream: Handle) {
        let [x, y, kind, _, from, _, from_pitch, to_x, to_y, to_kind, _, to, _, to_pitch, bytes, rows] = *copy;
        if [x, y, to_x, to_y] != [0; 4] || [kind as u32, to_kind as u32] != [2; 2] {
            return INVALID_VALUE;
        }
        copy_rows(&mut state, [to, to_pitch, from, from_pitch, bytes, rows], stream)
    }
    fn cuLinkCreate_v2(state, count: c_uint, keys: *const c_int, values: *const usize,
                       to: *mut Handle) {
        let (log, image) = (std::ptr::null_mut(), Vec::new());
        let mut link = Compiled { log, log_size: 0, target: 0, image };
        for at in 0..count as usize {
            let value = *values.add(at);
            match *keys.add(at) {
                5 => link.log = value as *mut u8,
                6 => link.log_size = value,
                9 => link.target = value,
                _ => return INVALID_VALUE,
            }
        }
        let handle = state.handle();
        state.compiled.insert(handle, link);
        *to = handle as Handle;
        0
    }
    fn cuLinkAddData_v2(state, link: Handle, kind: c_int, data: *const c_char, size: usize,
                        name: *const c_char, count: c_uint, keys: Handle, values: Handle) {
        let text = CStr::from_ptr(data);
        if kind != 1 || size != text.count_bytes() + 1 || name.is_null() || count != 0 {
            return INVALID_VALUE;
        }
        let text = text.to_str().unwrap();
        let architecture = ARCHITECTURES[current(&state)];
        let link = state.compiled.get_mut(&(link as usize)).unwrap();
        if text.contains("nonsense") {
            let line = b"ptxas fatal   : line 5; error: nonsense\n";
            let len = line.len().min(link.log_size);
            line.as_ptr().copy_to(link.log, len);
            return INVALID_PTX;
        }
        let accelerated = text.contains(".target sm_90a");
        if link.target != if accelerated { 65536 + 90 } else { 0 } {
            return NO_BINARY;
        }
        link.image = format!("FAKE {architecture} {}\n{text}", std::process::id()).into_bytes();
        0
    }
    fn cuLinkComplete(state, link: Handle, image: *mut *const u8, size: *mut usize) {
        let link = &state.compiled[&(link as usize)];
        *image = link.image.as_ptr();
        *size = link.image.len();
        0
    }
    fn cuLinkDestroy(state, link: Handle) { state.compiled.remove(&(link as usize)); 0 }
    fn cuFuncSetAttribute(state, function: Handle, attribute: c_int, value: c_int) {
        if attribute != 8 || value > 227 << 10 {
            return INVALID_VALUE;
        }
        state.functions.get_mut(&(function as usize)).unwrap().2 = value as u32;
        0
    }
    fn cuLaunchKernelEx(state, config: *const Config, function: Handle,
                        parameters: *const *const u8, extra: Handle) {
        let config = &*config;
        if state.contexts.is_empty() {
            return INVALID_CONTEXT;
        }
        let (mut cluster, mut overlaps) = (1, false);
        for at in 0..config.count as usize {
            let attribute = &*config.attributes.add(at);
            match attribute.id {
                4 => cluster = attribute.value[0] * attribute.value[1] * attribute.value[2],
                6 => overlaps = attribute.value[0] == 1,
                _ => return INVALID_VALUE,
            }
        }
        let sizes = (config.grid, config.block, config.shared);
        launch(&mut state, function, sizes, (cluster, overlaps), config.stream, parameters)
    }
}

#[cfg(not(before))]
library! {
    fn cuTensorMapEncodeTiled(state, to: *mut u64, kind: c_int, rank: c_uint, address: u64,
                              dims: *const u64, strides: *const u64, tile: *const c_uint,
                              steps: *const c_uint, interleave: c_int, swizzle: c_int,
                              promotion: c_int, fill: c_int) {
        // 16-bit words, two dimensions, every element, no interleave, 0 beyond the edges.
        let plain = (*steps, *steps.add(1), interleave, fill) == (1, 1, 0, 0);
        if kind != 1 || rank != 2 || !plain || !(to as usize).is_multiple_of(64) {
            return INVALID_VALUE;
        }
        let tile = [u64::from(*tile), u64::from(*tile.add(1))];
        let fields = [address, *dims, *dims.add(1), *strides, tile[0], tile[1], swizzle as u64];
        for (at, field) in fields.into_iter().enumerate() {
            *to.add(at) = field;
        }
        0
    }
}
