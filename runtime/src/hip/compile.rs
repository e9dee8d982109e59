//! From HIP C++ to the code object that a device runs: hiprtc.

use std::ffi::{CString, c_char, c_int};
use std::ptr::null;

use super::{Device, HipError, Libraries};
use crate::driver::functions::Handle;

/// A program of hiprtc.
struct Program {
    libraries: &'static Libraries,
    handle: Handle,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `compile` and used by nobody after this.
        let result = unsafe { (self.libraries.compiler.hiprtcDestroyProgram)(&mut self.handle) };
        if let Err(error) =
            self.libraries.check_compiler(result, || "destroying a program".to_owned())
        {
            tracing::warn!(%error, "a program of hiprtc was not released");
        }
    }
}

/// Compiles a text for a device. The text says itself how it rounds; the compiler's own settings are
/// those of IEEE 754.
///
/// # Errors
/// A text with a zero byte, or hiprtc's refusal with what it printed.
pub(super) fn compile(device: &Device, entry: &str, text: &str) -> Result<Vec<u8>, HipError> {
    let libraries = device.driver();
    let compiler = &libraries.compiler;
    let plain = |text: &str| {
        let what = "it holds a zero byte";
        CString::new(text).map_err(|_| HipError::Text { entry: entry.to_owned(), what })
    };
    let (source, name) = (plain(text)?, plain(&format!("{entry}.hip"))?);
    let architecture = plain(&format!("--offload-arch={}", device.info().architecture))?;
    let options = [architecture.as_ptr(), c"-O3".as_ptr()];
    let mut handle = Handle::NULL;
    // SAFETY: texts that end in 0, no headers.
    let result = unsafe {
        let (source, name) = (source.as_ptr(), name.as_ptr());
        (compiler.hiprtcCreateProgram)(&mut handle, source, name, 0, null(), null())
    };
    libraries.check_compiler(result, || format!("handing {entry} to hiprtc"))?;
    let program = Program { libraries, handle };
    // SAFETY: as many options as said, each a text that ends in 0.
    let result = unsafe {
        (compiler.hiprtcCompileProgram)(handle, options.len() as c_int, options.as_ptr())
    };
    let compiled = libraries.check_compiler(result, || "hiprtc on the text".to_owned());
    if let Err(error) = compiled {
        let (entry, log) = (entry.to_owned(), log(&program));
        return Err(HipError::Compile { entry, error: Box::new(error), log });
    }
    let doing = || format!("taking the code of {entry}");
    let mut size = 0;
    // SAFETY: `size` may be written.
    libraries.check_compiler(unsafe { (compiler.hiprtcGetCodeSize)(handle, &mut size) }, doing)?;
    let mut code = vec![0u8; size];
    // SAFETY: `code` has as many bytes as hiprtc writes.
    let result = unsafe { (compiler.hiprtcGetCode)(handle, code.as_mut_ptr().cast::<c_char>()) };
    libraries.check_compiler(result, doing)?;
    Ok(code)
}

/// What hiprtc printed; nothing if it does not say.
fn log(program: &Program) -> String {
    let compiler = &program.libraries.compiler;
    let mut size = 0;
    // SAFETY: `size` may be written.
    if unsafe { (compiler.hiprtcGetProgramLogSize)(program.handle, &mut size) } != 0 {
        return String::new();
    }
    let mut log = vec![0u8; size];
    // SAFETY: `log` has as many bytes as hiprtc writes, a last 0 included.
    let result = unsafe {
        (compiler.hiprtcGetProgramLog)(program.handle, log.as_mut_ptr().cast::<c_char>())
    };
    if result != 0 {
        return String::new();
    }
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).into_owned()
}
