//! From PTX to the image that a device runs: the driver's own compiler, asked so that the image
//! can be kept.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{CUjit_option as Option_, CUjitInputType};

use super::device::{capability, runs};
use super::{Context, CudaError, Driver};
use crate::driver::context::Current;
use crate::driver::functions::Handle;

/// Room for what the driver's compiler prints, in bytes.
const LOG: usize = 16 << 10;

/// An `a` target's number for the driver is its capability plus this
/// (`CU_COMPUTE_ACCELERATED_TARGET_BASE` of `cuda.h`).
const ACCELERATED: usize = 0x10000;

/// The target that a PTX text names in its `.target` line.
pub fn text_target(text: &str) -> Option<&str> {
    let line = text.lines().map(str::trim_start).find(|line| line.starts_with(".target"))?;
    let name = line.strip_prefix(".target")?.trim_start();
    name.split(|c: char| c == ',' || c.is_whitespace()).next().filter(|name| !name.is_empty())
}

/// Whether the linker's compiler ignores instructions of a text. It compiles for other objects to be linked
/// to, which do not know how many registers a warp has left: `setmaxnreg` does nothing (ptxas -c says so,
/// C7504), and a consumer whose sums need more registers than a thread has at the launch keeps some in local
/// memory.
pub(super) fn ignores(text: &str) -> bool {
    text.contains("setmaxnreg")
}

/// Compiles a text for the device of a context.
///
/// # Errors
/// A text for another device, or the driver's refusal with its compiler's log.
pub(super) fn compile(context: &Context, entry: &str, text: &str) -> Result<Vec<u8>, CudaError> {
    let wrong = |what| CudaError::Text { entry: entry.to_owned(), what };
    let target = text_target(text).ok_or_else(|| wrong("it has no `.target` line"))?;
    if !runs(target, context.compute()) {
        let (kernel, target) = (entry.to_owned(), target.to_owned());
        return Err(CudaError::Target {
            kernel,
            target,
            device: context.info().architecture.clone(),
        });
    }
    let source = CString::new(text).map_err(|_| wrong("it holds a zero byte"))?;
    let name = CString::new(entry).map_err(|_| wrong("its name holds a zero byte"))?;
    let mut errors = vec![0u8; LOG];
    // An option's value stands in the pointer itself, or is a pointer to room for a text.
    let number = |value: usize| value as *mut c_void;
    let mut options = vec![
        (Option_::CU_JIT_ERROR_LOG_BUFFER, errors.as_mut_ptr().cast::<c_void>()),
        (Option_::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, number(LOG - 1)),
    ];
    // Without this the target follows from the context, which gives no `a`.
    if let Some(((major, minor), true)) = capability(target) {
        let target = ACCELERATED + (major * 10 + minor) as usize;
        options.push((Option_::CU_JIT_TARGET, number(target)));
    }
    let (mut keys, mut values): (Vec<_>, Vec<_>) = options.into_iter().unzip();
    let current = context.enter()?;
    let mut state = Handle::NULL;
    let count = keys.len() as u32;
    current.call(
        || "preparing the driver's compiler".to_owned(),
        // SAFETY: `count` options with their values; keys, values and the log live until the
        // state is destroyed at the end of this function.
        |driver| unsafe {
            (driver.own.cuLinkCreate_v2)(count, keys.as_mut_ptr(), values.as_mut_ptr(), &mut state)
        },
    )?;
    let compiled = add_and_complete(&current, state, &source, &name);
    current.release("destroying the driver's compiler", |driver| {
        // SAFETY: made above; the image was copied out of it.
        unsafe { (driver.own.cuLinkDestroy)(state) }
    });
    drop(current);
    compiled.map_err(|error| {
        let end = errors.iter().position(|byte| *byte == 0).unwrap_or(LOG);
        let log = String::from_utf8_lossy(&errors[..end]).into_owned();
        CudaError::Compile { entry: entry.to_owned(), error: Box::new(error), log }
    })
}

fn add_and_complete(
    current: &Current<'_, Driver>,
    state: Handle,
    source: &CString,
    name: &CString,
) -> Result<Vec<u8>, CudaError> {
    let kind = CUjitInputType::CU_JIT_INPUT_PTX;
    let bytes = source.as_bytes_with_nul();
    let data = bytes.as_ptr().cast_mut().cast::<c_void>();
    current.call(
        || "the driver's compiler on the PTX text".to_owned(),
        // SAFETY: the text ends in 0 and is only read; no further options.
        |driver| unsafe {
            let (name, none) = (name.as_ptr(), null_mut());
            (driver.own.cuLinkAddData_v2)(state, kind, data, bytes.len(), name, 0, none, null_mut())
        },
    )?;
    let (mut image, mut size) = (null_mut(), 0usize);
    current.call(
        || "the driver's linker".to_owned(),
        // SAFETY: both may be written.
        |driver| unsafe { (driver.own.cuLinkComplete)(state, &mut image, &mut size) },
    )?;
    // SAFETY: the driver says that `size` bytes lie there until the state is destroyed.
    let image = unsafe { std::slice::from_raw_parts(image.cast::<u8>().cast_const(), size) };
    Ok(image.to_vec())
}
