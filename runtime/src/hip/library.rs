//! The HIP runtime and its compiler: found once, their functions looked up once; and what the runtime does
//! in its own way.
//!
//! In: nothing. Out: [`Libraries::get`], the two libraries or why they are not there. No structure of HIP
//! is laid out here: they changed between its versions, the C functions below did not.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Deref;
use std::sync::OnceLock;

use super::{Device, HipError, architecture, compile};
use crate::driver::DriverApi;
use crate::driver::api::sealed::Sealed;
use crate::driver::arguments::Sizes;
use crate::driver::functions::{Functions, HIP, Handle, Library, functions};

/// The oldest release that has all functions.
const SINCE: &str = "ROCm 6.0";
/// The runtime's library, and its files.
const RUNTIME: (&str, &[&str]) =
    ("libamdhip64", &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"]);
/// The compiler's. Before ROCm 7 the runtime's library had its functions too.
const COMPILER: (&str, &[&str]) =
    ("libhiprtc", &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"]);

/// `hipMemcpyDeviceToDevice`.
const DEVICE_TO_DEVICE: c_int = 3;

functions! {
    /// The functions that only the HIP runtime has, or has in its own way. The rows are those of
    /// `hip_runtime_api.h`.
    pub(super) struct Own:
    hipGetDevice(*mut c_int);
    hipSetDevice(c_int);
    hipGetDevicePropertiesR0600(*mut c_void, c_int);
    hipMemcpy2DAsync(*mut c_void, usize, *const c_void, usize, usize, usize, c_int, Handle);
    hipModuleLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void,
    );
}

functions! {
    /// The compiler's functions.
    /// Those of `hiprtc.h`.
    pub(super) struct Compiler:
    hiprtcVersion(*mut c_int, *mut c_int);
    hiprtcGetErrorString(i32) -> *const c_char;
    hiprtcCreateProgram(
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
    );
    hiprtcCompileProgram(Handle, c_int, *const *const c_char);
    hiprtcGetProgramLogSize(Handle, *mut usize);
    hiprtcGetProgramLog(Handle, *mut c_char);
    hiprtcGetCodeSize(Handle, *mut usize);
    hiprtcGetCode(Handle, *mut c_char);
    hiprtcDestroyProgram(*mut Handle);
}

/// The loaded and initialised libraries.
pub struct Libraries {
    functions: Functions,
    pub(super) own: Own,
    pub(super) compiler: Compiler,
    runtime_version: u32,
    compiler_version: (u32, u32),
}

impl Deref for Libraries {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Libraries {
    /// The libraries of this machine. The first call loads them, every later one gives the same answer.
    ///
    /// # Errors
    /// [`HipError::LibraryNotFound`], [`HipError::MissingFunction`], or the runtime's own refusal to
    /// start, as where it sees no device.
    pub fn get() -> Result<&'static Self, HipError> {
        static LIBRARIES: OnceLock<Result<Libraries, HipError>> = OnceLock::new();
        LIBRARIES.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, HipError> {
        let open = |(library, files)| {
            let missing = HipError::LibraryNotFound { library };
            Library::open(files, library, SINCE, HIP).ok_or(missing)
        };
        let library = open(RUNTIME)?;
        let (functions, own) = (Functions::look_up(library)?, Own::look_up(library)?);
        let compiler = match open(COMPILER) {
            Ok(library) => Compiler::look_up(library)?,
            Err(missing) => Compiler::look_up(library).map_err(|_| missing)?,
        };
        let (runtime_version, compiler_version) = (0, (0, 0));
        let mut libraries = Self { functions, own, compiler, runtime_version, compiler_version };
        libraries.runtime_version = libraries.start()?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both may be written.
        let result = unsafe { (libraries.compiler.hiprtcVersion)(&mut major, &mut minor) };
        libraries.check_compiler(result, || "asking hiprtc for its version".to_owned())?;
        libraries.compiler_version = (major.unsigned_abs(), minor.unsigned_abs());
        Ok(libraries)
    }

    /// The runtime's version, as 10,000,000 * major + 100,000 * minor + patch: the compiler is of the
    /// same release.
    pub fn version(&self) -> u32 {
        self.runtime_version
    }

    /// hiprtc's version, major and minor.
    pub fn compiler_version(&self) -> (u32, u32) {
        self.compiler_version
    }

    /// An error with hiprtc's own words unless the result is 0: it has a sentence and no name.
    pub(super) fn check_compiler(
        &self,
        result: i32,
        doing: impl FnOnce() -> String,
    ) -> Result<(), HipError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: any number may be asked about.
        let words = unsafe { (self.compiler.hiprtcGetErrorString)(result) };
        let text = (!words.is_null()).then(|| {
            // SAFETY: the library gives a string that ends in 0 and is never freed.
            unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
        });
        Err(HipError::of(doing(), result, Some("hiprtc".to_owned()), text))
    }
}

impl Sealed for Libraries {}

impl DriverApi for Libraries {
    const NAME: &'static str = "HIP";
    const SHOWN: &'static str = "the HIP runtime";
    const BACKEND: &'static str = "hip";
    const MULTIPROCESSORS: &'static str = "CU";
    const TARGETS: (&'static [&'static str], &'static str) = (
        &["gfx950", "gfx942", "gfx1201", "gfx1200", "gfx1151", "gfx1100"],
        "gfx942, gfx950, gfx1100, gfx1151, gfx1200 and gfx1201",
    );
    /// Numbers of `hipDeviceAttribute_t`, the same in all versions from 5 on.
    const ATTRIBUTES: [c_int; 3] = [63, 19, 74];
    const SHARED_WITHOUT_OPT_IN: u32 = u32::MAX;
    /// The hardware counts them in 32 bits.
    const GRID_THREADS: u64 = u32::MAX as u64;
    const CLUSTER_BLOCKS: u32 = 1;
    const LOADS_TEXT: bool = false;

    type Raw = c_int;
    const NO_CONTEXT: c_int = -1;

    fn get() -> Result<&'static Self, HipError> {
        Self::get()
    }

    fn driver_version(&self) -> u32 {
        self.runtime_version
    }

    fn version_in_words(&self) -> String {
        let version = self.runtime_version;
        format!("HIP {}.{}", version / 10_000_000, version / 100_000 % 100)
    }

    fn architecture(&self, device: c_int) -> Result<String, HipError> {
        architecture::of(self, device)
    }

    fn runs(target: &str, architecture: &str) -> bool {
        target == architecture
    }

    /// A device needs no opening.
    fn open(&self, device: c_int) -> Result<c_int, HipError> {
        Ok(device)
    }

    unsafe fn close(&self, _device: c_int) -> i32 {
        0
    }

    fn current(&self, to: &mut c_int) -> i32 {
        // SAFETY: `to` may be written.
        unsafe { (self.own.hipGetDevice)(to) }
    }

    unsafe fn enter(&self, device: c_int) -> i32 {
        // SAFETY: a device that there is.
        unsafe { (self.own.hipSetDevice)(device) }
    }

    unsafe fn leave(&self, before: c_int) -> i32 {
        // SAFETY: a device that there is.
        unsafe { (self.own.hipSetDevice)(before) }
    }

    fn compile(device: &Device, entry: &str, text: &str) -> Result<Vec<u8>, HipError> {
        compile::compile(device, entry, text)
    }

    /// Launches of a stream follow one another; there is nothing to overlap with.
    unsafe fn launch(
        &self,
        function: Handle,
        sizes: &Sizes,
        _overlap: bool,
        stream: Handle,
        values: *mut *mut c_void,
    ) -> i32 {
        let ([x, y, z], threads, shared) = (sizes.grid, sizes.threads, sizes.shared_bytes);
        let none = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        unsafe {
            (self.own.hipModuleLaunchKernel)(
                function, x, y, z, threads, 1, 1, shared, stream, values, none,
            )
        }
    }

    unsafe fn copy_rows(
        &self,
        to: u64,
        from: u64,
        pitch: usize,
        bytes: usize,
        rows: usize,
        stream: Handle,
    ) -> i32 {
        let (to, from) = (to as *mut c_void, from as *const c_void);
        let copy = self.own.hipMemcpy2DAsync;
        // SAFETY: the caller's promise.
        unsafe { copy(to, bytes, from, pitch, bytes, rows, DEVICE_TO_DEVICE, stream) }
    }
}
