//! HIP's libraries without a GPU, which the test compiles: see `device.rs`. Device 0 is a gfx942, device 1 a
//! gfx90a.
//!
//! `--cfg runtime` gives it the functions of libamdhip64, `--cfg compiler` those of libhiprtc; `--cfg
//! before`: without what came with ROCm 6.0.

#![allow(non_snake_case, unused_variables, dead_code, unused_imports, unused_macros)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

mod device;
#[macro_use]
mod functions;
mod kernels;
use device::*;

const ARCHITECTURES: [&str; 2] = ["gfx942", "gfx90a"];
const DEVICE: &CStr = c"Fake Instinct";
const MEMORY: usize = 192 << 30;
const FIRST_DEVICE: c_int = 0;
const VERSION: c_int = 70_051_831;
/// Shared memory of a block.
const SHARED: u32 = 64 << 10;
const LOADS_TEXT: bool = false;
const COMPILATION: i32 = 6;

const NAMES: &[(i32, &CStr, &CStr)] = &[
    (INVALID_VALUE, c"hipErrorInvalidValue", c"invalid argument"),
    (OUT_OF_MEMORY, c"hipErrorOutOfMemory", c"out of memory"),
    (100, c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
    (999, c"hipErrorUnknown", c"unknown error"),
];

/// An attribute of a device.
fn attribute(attribute: c_int, _ordinal: usize) -> Option<c_int> {
    match attribute {
        19 => Some(4 << 20),
        63 => Some(304),
        74 => Some(64 << 10),
        _ => None,
    }
}

/// The device that is set.
fn current(state: &State) -> usize {
    state.contexts.last().copied().unwrap_or(0)
}

/// A program of hiprtc: its text, its image and the log.
type Compiled = (String, Vec<u8>, Vec<u8>);

#[cfg(runtime)]
shared! {
    init: hipInit, version: hipRuntimeGetVersion, error_name: hipDrvGetErrorName,
    error_string: hipDrvGetErrorString, device_count: hipGetDeviceCount, device: hipDeviceGet,
    device_name: hipDeviceGetName, device_attribute: hipDeviceGetAttribute,
    device_memory: hipDeviceTotalMem, synchronize: hipDeviceSynchronize,
    stream_create: hipStreamCreateWithFlags, stream_destroy: hipStreamDestroy,
    stream_synchronize: hipStreamSynchronize, stream_is_capturing: hipStreamIsCapturing,
    stream_wait_event: hipStreamWaitEvent, begin_capture: hipStreamBeginCapture,
    end_capture: hipStreamEndCapture, graph_instantiate: hipGraphInstantiateWithFlags,
    graph_launch: hipGraphLaunch, executable_destroy: hipGraphExecDestroy,
    graph_destroy: hipGraphDestroy, event_create: hipEventCreateWithFlags,
    event_record: hipEventRecord, event_synchronize: hipEventSynchronize,
    event_elapsed: hipEventElapsedTime, event_destroy: hipEventDestroy, alloc: hipMalloc,
    free: hipFree, copy_to_device: hipMemcpyHtoDAsync, copy_to_host: hipMemcpyDtoHAsync,
    copy: hipMemcpyDtoDAsync, fill: hipMemsetD8Async, module_load: hipModuleLoadData,
    module_unload: hipModuleUnload, module_function: hipModuleGetFunction,
    function_attribute: hipFuncGetAttribute,
}

#[cfg(all(runtime, not(before)))]
library! {
    fn hipGetDevicePropertiesR0600(state, to: *mut u8, device: c_int) {
        let Some(name) = [c"gfx942:sramecc+:xnack-", c"gfx90a"].get(device as usize) else {
            return INVALID_DEVICE;
        };
        to.write_bytes(0, 1472);
        DEVICE.as_ptr().copy_to(to.cast(), DEVICE.count_bytes());
        name.as_ptr().copy_to(to.add(1160).cast(), name.count_bytes() + 1);
        0
    }
}

#[cfg(runtime)]
library! {
    fn hipGetDevice(state, to: *mut c_int) { *to = current(&state) as c_int; 0 }
    fn hipSetDevice(state, device: c_int) {
        if device as usize >= ARCHITECTURES.len() {
            return INVALID_DEVICE;
        }
        state.contexts = vec![device as usize];
        0
    }
    fn hipMemcpy2DAsync(state, to: u64, to_pitch: u64, from: u64, from_pitch: u64, bytes: u64,
                        rows: u64, kind: c_int, stream: Handle) {
        if kind != 3 {
            return INVALID_VALUE;
        }
        copy_rows(&mut state, [to, to_pitch, from, from_pitch, bytes, rows], stream)
    }
    fn hipModuleLaunchKernel(state, function: Handle, x: c_uint, y: c_uint, z: c_uint,
                             threads: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
                             stream: Handle, parameters: *const *const u8, extra: Handle) {
        if !extra.is_null() {
            return INVALID_VALUE;
        }
        let sizes = ([x, y, z], [threads, by, bz], shared);
        launch(&mut state, function, sizes, (1, false), stream, parameters)
    }
}

#[cfg(compiler)]
#[unsafe(no_mangle)]
pub extern "C" fn hiprtcGetErrorString(code: i32) -> *const c_char {
    match code {
        COMPILATION => c"HIPRTC_ERROR_COMPILATION".as_ptr(),
        999 => c"unknown error".as_ptr(),
        _ => std::ptr::null(),
    }
}

#[cfg(compiler)]
library! {
    fn hiprtcVersion(state, major: *mut c_int, minor: *mut c_int) { *major = 9; *minor = 0; 0 }
    fn hiprtcCreateProgram(state, to: *mut Handle, text: *const c_char, name: *const c_char,
                           headers: c_int, contents: Handle, names: Handle) {
        if headers != 0 || name.is_null() {
            return INVALID_VALUE;
        }
        let text = CStr::from_ptr(text).to_str().unwrap().to_owned();
        let program = state.handle();
        state.compiled.insert(program, (text, Vec::new(), Vec::new()));
        *to = program as Handle;
        0
    }
    fn hiprtcCompileProgram(state, program: Handle, count: c_int, options: *const *const c_char) {
        let options = (0..count as usize)
            .map(|at| CStr::from_ptr(*options.add(at)).to_str().unwrap().to_owned());
        let options: Vec<String> = options.collect();
        let target = options.iter().find_map(|option| option.strip_prefix("--offload-arch="));
        let (text, image, log) = state.compiled.get_mut(&(program as usize)).unwrap();
        let Some(target) = target else { return INVALID_VALUE };
        if text.contains("nonsense") {
            *log = b"kernel.hip:5:1: error: unknown type name 'nonsense'\n\0".to_vec();
            return COMPILATION;
        }
        *image = format!("FAKE {target} {}\n{text}\0", std::process::id()).into_bytes();
        0
    }
    fn hiprtcGetProgramLogSize(state, program: Handle, to: *mut usize) {
        *to = state.compiled[&(program as usize)].2.len();
        0
    }
    fn hiprtcGetProgramLog(state, program: Handle, to: *mut u8) {
        let log = &state.compiled[&(program as usize)].2;
        log.as_ptr().copy_to(to, log.len());
        0
    }
    fn hiprtcGetCodeSize(state, program: Handle, to: *mut usize) {
        *to = state.compiled[&(program as usize)].1.len();
        0
    }
    fn hiprtcGetCode(state, program: Handle, to: *mut u8) {
        let image = &state.compiled[&(program as usize)].1;
        image.as_ptr().copy_to(to, image.len());
        0
    }
    fn hiprtcDestroyProgram(state, program: *mut Handle) {
        state.compiled.remove(&(*program as usize));
        *program = std::ptr::null_mut();
        0
    }
}
