//! The driver's library: found once, its functions looked up once.
//!
//! In: nothing. Out: [`Driver::get`], the driver or why there is none. `cudarc` gives the types and
//! nothing else, so that it does not matter how a program that uses `cudarc` too links the driver. The
//! library and its functions are found here: `cudarc` panics where one is missing, and returns results
//! as a Rust enum, which a driver newer than the bindings may leave. Here a missing function is an
//! error and a result a number.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use super::error::CudaError;

/// One table row a function: its name in the library and its parameters. The rows' order and
/// types are those of `cuda.h`; all return a `CUresult`, here an `i32`.
macro_rules! functions {
    ($($name:ident($($type:ty),* $(,)?) since $since:literal;)*) => {
        /// The driver's functions.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> i32,)*
        }

        impl Functions {
            fn look_up(library: &'static Library) -> Result<Self, CudaError> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the type is the one that `cuda.h` declares for this name; the
                        // library is never unloaded.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> i32>(name)
                        };
                        match symbol {
                            Ok(symbol) => *symbol,
                            Err(_) => {
                                let function = stringify!($name);
                                return Err(CudaError::MissingFunction { function, since: $since });
                            }
                        }
                    },)*
                })
            }
        }
    };
}

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUjit_option, CUjitInputType, CUlaunchConfig,
    CUlinkState, CUmodule, CUstream, CUstreamCaptureMode, CUtensorMap, CUtensorMapDataType,
    CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};

functions! {
    cuInit(c_uint) since "2.0";
    cuDriverGetVersion(*mut c_int) since "2.2";
    cuGetErrorName(i32, *mut *const c_char) since "6.0";
    cuGetErrorString(i32, *mut *const c_char) since "6.0";
    cuDeviceGetCount(*mut c_int) since "2.0";
    cuDeviceGet(*mut CUdevice, c_int) since "2.0";
    cuDeviceGetName(*mut c_char, c_int, CUdevice) since "2.0";
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice) since "2.0";
    cuDeviceTotalMem_v2(*mut usize, CUdevice) since "3.2";
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice) since "7.0";
    cuDevicePrimaryCtxRelease_v2(CUdevice) since "11.0";
    cuCtxGetCurrent(*mut CUcontext) since "4.0";
    cuCtxGetDevice(*mut CUdevice) since "2.0";
    cuCtxPushCurrent_v2(CUcontext) since "4.0";
    cuCtxPopCurrent_v2(*mut CUcontext) since "4.0";
    cuCtxSynchronize() since "2.0";
    cuStreamCreate(*mut CUstream, c_uint) since "2.0";
    cuStreamDestroy_v2(CUstream) since "4.0";
    cuStreamSynchronize(CUstream) since "2.0";
    cuStreamIsCapturing(CUstream, *mut c_int) since "10.0";
    cuStreamWaitEvent(CUstream, CUevent, c_uint) since "3.2";
    cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode) since "10.1";
    cuStreamEndCapture(CUstream, *mut CUgraph) since "10.0";
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong) since "11.4";
    cuGraphLaunch(CUgraphExec, CUstream) since "10.0";
    cuGraphExecDestroy(CUgraphExec) since "10.0";
    cuGraphDestroy(CUgraph) since "10.0";
    cuEventCreate(*mut CUevent, c_uint) since "2.0";
    cuEventRecord(CUevent, CUstream) since "2.0";
    cuEventSynchronize(CUevent) since "2.0";
    cuEventElapsedTime(*mut f32, CUevent, CUevent) since "2.0";
    cuEventDestroy_v2(CUevent) since "4.0";
    cuMemAlloc_v2(*mut CUdeviceptr, usize) since "3.2";
    cuMemFree_v2(CUdeviceptr) since "3.2";
    cuMemAllocHost_v2(*mut *mut c_void, usize) since "3.2";
    cuMemFreeHost(*mut c_void) since "2.0";
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream) since "3.2";
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) since "3.2";
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream) since "3.2";
    cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream) since "3.2";
    cuLinkCreate_v2(c_uint, *mut CUjit_option, *mut *mut c_void, *mut CUlinkState) since "6.5";
    cuLinkAddData_v2(
        CUlinkState, CUjitInputType, *mut c_void, usize, *const c_char, c_uint,
        *mut CUjit_option, *mut *mut c_void,
    ) since "6.5";
    cuLinkComplete(CUlinkState, *mut *mut c_void, *mut usize) since "5.5";
    cuLinkDestroy(CUlinkState) since "5.5";
    cuModuleLoadData(*mut CUmodule, *const c_void) since "2.0";
    cuModuleUnload(CUmodule) since "2.0";
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char) since "2.0";
    cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction) since "2.2";
    cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int) since "9.0";
    cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void)
        since "11.8";
    cuTensorMapEncodeTiled(
        *mut CUtensorMap, CUtensorMapDataType, c_uint, *mut c_void, *const u64, *const u64,
        *const c_uint, *const c_uint, CUtensorMapInterleave, CUtensorMapSwizzle,
        CUtensorMapL2promotion, CUtensorMapFloatOOBfill,
    ) since "12.0";
}

/// The files that the driver's library may be, by system.
const FILES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The first of them that loads; it is never unloaded.
fn open() -> Option<&'static Library> {
    // SAFETY: this loads the driver's library, whose initialisers have no preconditions.
    let found = FILES.iter().find_map(|file| unsafe { Library::new(*file) }.ok());
    found.map(|library| &*Box::leak(Box::new(library)))
}

/// The loaded and initialised driver.
pub struct Driver {
    functions: Functions,
    version: u32,
}

impl Driver {
    /// The driver of this machine.
    ///
    /// The first call loads it, every later one gives the same answer.
    ///
    /// # Errors
    /// [`CudaError::LibraryNotFound`], [`CudaError::MissingFunction`], or the driver's own
    /// refusal to start, as where it sees no device.
    pub fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, CudaError> {
        let library = open().ok_or(CudaError::LibraryNotFound)?;
        let mut driver = Self { functions: Functions::look_up(library)?, version: 0 };
        // SAFETY: 0 is the only value that the flags may have.
        let result = unsafe { (driver.functions.cuInit)(0) };
        driver.check(result, || "starting the NVIDIA driver".to_owned())?;
        let mut version = 0;
        // SAFETY: `version` may be written.
        let result = unsafe { (driver.functions.cuDriverGetVersion)(&mut version) };
        driver.check(result, || "asking the NVIDIA driver for its version".to_owned())?;
        driver.version = version.unsigned_abs();
        Ok(driver)
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The newest CUDA version that the driver serves, as 1000 * major + 10 * minor.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// An error with the driver's own words unless the result is 0.
    pub(super) fn check(
        &self,
        result: i32,
        doing: impl FnOnce() -> String,
    ) -> Result<(), CudaError> {
        if result == 0 {
            return Ok(());
        }
        let name = self.words(self.functions.cuGetErrorName, result);
        let text = self.words(self.functions.cuGetErrorString, result);
        Err(CudaError::Driver {
            doing: doing(),
            code: result,
            name: name.unwrap_or_else(|| "an error that the driver does not name".to_owned()),
            text: text.unwrap_or_else(|| "and says nothing about".to_owned()),
        })
    }

    fn words(
        &self,
        ask: unsafe extern "C" fn(i32, *mut *const c_char) -> i32,
        code: i32,
    ) -> Option<String> {
        let mut words = std::ptr::null();
        // SAFETY: `words` may be written; an unknown code gives an error or a null pointer.
        let result = unsafe { ask(code, &mut words) };
        if result != 0 || words.is_null() {
            return None;
        }
        // SAFETY: the driver gives a string that ends in 0 and is never freed.
        Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
    }

    /// For a destructor: the result goes to the log, since nobody is left to take it.
    pub(super) fn note(&self, result: i32, doing: &'static str) {
        if let Err(error) = self.check(result, || doing.to_owned()) {
            tracing::warn!(%error, "a CUDA object was not released");
        }
    }
}

/// `12.8` for 12080.
pub fn version_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
