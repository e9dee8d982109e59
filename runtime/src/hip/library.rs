//! The HIP runtime and its compiler: found once, their functions looked up once.
//!
//! In: nothing. Out: [`Libraries::get`], the two libraries or why they are not there. Results are
//! numbers, handles are pointers, and no structure of HIP is laid out here: they changed between its
//! versions, the C functions below did not.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::error::HipError;

/// A handle of HIP: a stream, a module, a function, a program.
pub(super) type Handle = *mut c_void;

/// The runtime's library.
const RUNTIME: Names = Names {
    shown: "libamdhip64",
    files: &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"],
};
/// The compiler's. Before ROCm 7 the runtime's library had its functions too.
const COMPILER: Names =
    Names { shown: "libhiprtc", files: &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"] };

/// What a library is called, and the files to try.
struct Names {
    shown: &'static str,
    files: &'static [&'static str],
}

/// One table row a function: its name in the library, its parameters and its result. The rows are
/// those of `hip_runtime_api.h` and `hiprtc.h`.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident: $($name:ident($($type:ty),* $(,)?) -> $result:ty;)*) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl $table {
            fn look_up(library: &'static Library, shown: &'static str) -> Result<Self, HipError> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the type is the one that the header declares for this name; the
                        // library is never unloaded.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> $result>(name)
                        };
                        let function = stringify!($name);
                        let missing = |_| HipError::MissingFunction { library: shown, function };
                        *symbol.map_err(missing)?
                    },)*
                })
            }
        }
    };
}

functions! {
    /// The runtime's functions.
    Runtime:
    hipInit(c_uint) -> i32;
    hipRuntimeGetVersion(*mut c_int) -> i32;
    hipGetErrorName(i32) -> *const c_char;
    hipGetErrorString(i32) -> *const c_char;
    hipGetDeviceCount(*mut c_int) -> i32;
    hipGetDevice(*mut c_int) -> i32;
    hipSetDevice(c_int) -> i32;
    hipDeviceSynchronize() -> i32;
    hipDeviceGetName(*mut c_char, c_int, c_int) -> i32;
    hipDeviceTotalMem(*mut usize, c_int) -> i32;
    hipDeviceGetAttribute(*mut c_int, c_int, c_int) -> i32;
    hipGetDevicePropertiesR0600(*mut c_void, c_int) -> i32;
    hipStreamCreateWithFlags(*mut Handle, c_uint) -> i32;
    hipStreamDestroy(Handle) -> i32;
    hipStreamSynchronize(Handle) -> i32;
    hipMalloc(*mut *mut c_void, usize) -> i32;
    hipFree(*mut c_void) -> i32;
    hipMemcpyHtoDAsync(*mut c_void, *const c_void, usize, Handle) -> i32;
    hipMemcpyDtoHAsync(*mut c_void, *mut c_void, usize, Handle) -> i32;
    hipMemsetAsync(*mut c_void, c_int, usize, Handle) -> i32;
    hipModuleLoadData(*mut Handle, *const c_void) -> i32;
    hipModuleUnload(Handle) -> i32;
    hipModuleGetFunction(*mut Handle, Handle, *const c_char) -> i32;
    hipFuncGetAttribute(*mut c_int, c_int, Handle) -> i32;
    hipModuleLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void,
    ) -> i32;
}

functions! {
    /// The compiler's functions.
    Compiler:
    hiprtcVersion(*mut c_int, *mut c_int) -> i32;
    hiprtcGetErrorString(i32) -> *const c_char;
    hiprtcCreateProgram(
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
    ) -> i32;
    hiprtcCompileProgram(Handle, c_int, *const *const c_char) -> i32;
    hiprtcGetProgramLogSize(Handle, *mut usize) -> i32;
    hiprtcGetProgramLog(Handle, *mut c_char) -> i32;
    hiprtcGetCodeSize(Handle, *mut usize) -> i32;
    hiprtcGetCode(Handle, *mut c_char) -> i32;
    hiprtcDestroyProgram(*mut Handle) -> i32;
}

/// The loaded and initialised libraries.
pub struct Libraries {
    pub(super) runtime: Runtime,
    pub(super) compiler: Compiler,
    runtime_version: u32,
    compiler_version: (u32, u32),
}

/// The first file of a name that loads; it is never unloaded.
fn open(names: &Names) -> Option<&'static Library> {
    names.files.iter().find_map(|file| {
        // SAFETY: this loads AMD's library, whose initialisers have no preconditions.
        let library = unsafe { Library::new(OsStr::new(file)) }.ok()?;
        Some(&*Box::leak(Box::new(library)))
    })
}

impl Libraries {
    /// The libraries of this machine.
    ///
    /// The first call loads them, every later one gives the same answer.
    ///
    /// # Errors
    /// [`HipError::LibraryNotFound`], [`HipError::MissingFunction`], or the runtime's own refusal to
    /// start, as where it sees no device.
    pub fn get() -> Result<&'static Self, HipError> {
        static LIBRARIES: OnceLock<Result<Libraries, HipError>> = OnceLock::new();
        LIBRARIES.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, HipError> {
        let missing = |names: &Names| HipError::LibraryNotFound { library: names.shown };
        let library = open(&RUNTIME).ok_or_else(|| missing(&RUNTIME))?;
        let runtime = Runtime::look_up(library, RUNTIME.shown)?;
        let compiler = match open(&COMPILER) {
            Some(library) => Compiler::look_up(library, COMPILER.shown)?,
            None => Compiler::look_up(library, RUNTIME.shown).map_err(|_| missing(&COMPILER))?,
        };
        let mut libraries =
            Self { runtime, compiler, runtime_version: 0, compiler_version: (0, 0) };
        // SAFETY: 0 is the only value that the flags may have.
        let result = unsafe { (libraries.runtime.hipInit)(0) };
        libraries.check(result, || "starting the HIP runtime".to_owned())?;
        let mut version = 0;
        // SAFETY: `version` may be written.
        let result = unsafe { (libraries.runtime.hipRuntimeGetVersion)(&mut version) };
        libraries.check(result, || "asking the HIP runtime for its version".to_owned())?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both may be written.
        let result = unsafe { (libraries.compiler.hiprtcVersion)(&mut major, &mut minor) };
        libraries.check_compiler(result, || "asking hiprtc for its version".to_owned())?;
        libraries.runtime_version = version.unsigned_abs();
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

    /// An error with the runtime's own words unless the result is 0.
    pub(super) fn check(
        &self,
        result: i32,
        doing: impl FnOnce() -> String,
    ) -> Result<(), HipError> {
        if result == 0 {
            return Ok(());
        }
        let name = words(self.runtime.hipGetErrorName, result);
        let text = words(self.runtime.hipGetErrorString, result);
        Err(error(doing(), result, name, text))
    }

    /// The same of hiprtc, which has a sentence and no name.
    pub(super) fn check_compiler(
        &self,
        result: i32,
        doing: impl FnOnce() -> String,
    ) -> Result<(), HipError> {
        if result == 0 {
            return Ok(());
        }
        let text = words(self.compiler.hiprtcGetErrorString, result);
        Err(error(doing(), result, Some("hiprtc".to_owned()), text))
    }

    /// For a destructor: the result goes to the log, since nobody is left to take it.
    pub(super) fn note(&self, result: i32, doing: &'static str) {
        if let Err(error) = self.check(result, || doing.to_owned()) {
            tracing::warn!(%error, "a HIP object was not released");
        }
    }
}

fn error(doing: String, code: i32, name: Option<String>, text: Option<String>) -> HipError {
    HipError::Runtime {
        doing,
        code,
        name: name.unwrap_or_else(|| "an error that the runtime does not name".to_owned()),
        text: text.unwrap_or_else(|| "and says nothing about".to_owned()),
    }
}

fn words(ask: unsafe extern "C" fn(i32) -> *const c_char, code: i32) -> Option<String> {
    // SAFETY: any number may be asked about.
    let words = unsafe { ask(code) };
    if words.is_null() {
        return None;
    }
    // SAFETY: the library gives a string that ends in 0 and is never freed.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned();
    (!words.is_empty()).then_some(words)
}
