//! The functions that CUDA's driver and the HIP runtime have alike: found once, each looked up once.
//!
//! Parameters, flags and numbers of attributes mean the same in both. All return 0 or the number of an
//! error: a number, and no Rust enum, which a newer driver may leave. A missing function is an error.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr::null_mut;

use super::error::DriverError;

/// An object of a driver: a stream, an event, a module, a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Handle(pub(crate) *mut c_void);

// SAFETY: the objects may be used from any thread (CUDA driver API; HIP API, "multi-threading"); the
// driver locks where it must.
unsafe impl Send for Handle {}
// SAFETY: as for `Send`.
unsafe impl Sync for Handle {}

impl Handle {
    /// None.
    pub(crate) const NULL: Self = Self(null_mut());
}

/// A loaded library, never unloaded.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    library: &'static libloading::Library,
    /// What errors call it.
    shown: &'static str,
    /// The oldest version that has all functions.
    since: &'static str,
    /// Which of the names of a row are its own.
    column: usize,
}

/// The column of CUDA's names.
#[cfg(feature = "cuda")]
pub(crate) const CUDA: usize = 0;
/// The column of HIP's names.
#[cfg(feature = "hip")]
pub(crate) const HIP: usize = 1;

impl Library {
    /// The first of these files that loads.
    pub(crate) fn open(
        files: &[&str],
        shown: &'static str,
        since: &'static str,
        column: usize,
    ) -> Option<Self> {
        // SAFETY: this loads a vendor's library, whose initialisers have no preconditions.
        let open = |file: &&str| unsafe { libloading::Library::new(*file) }.ok();
        let library = Box::leak(Box::new(files.iter().find_map(open)?));
        Some(Self { library, shown, since, column })
    }

    /// A function by the name in its own column, or by that of its row.
    ///
    /// # Safety
    /// `F` is the type of the function.
    pub(crate) unsafe fn find<F: Copy>(
        &self,
        row: &'static str,
        names: &[&'static str],
    ) -> Result<F, DriverError> {
        let function = names.get(self.column).copied().unwrap_or(row);
        // SAFETY: the caller's promise; the library is never unloaded.
        let symbol = unsafe { self.library.get::<F>(function.as_bytes()) };
        let (library, since) = (self.shown, self.since);
        symbol.map(|symbol| *symbol).map_err(|_| DriverError::MissingFunction {
            library,
            function,
            since,
        })
    }
}

/// One table row a function: its parameters, its result if it is not a number, and its names where they
/// are not the row's own.
macro_rules! functions {
    (@result) => { i32 };
    (@result $result:ty) => { $result };
    ($(#[$doc:meta])* $visibility:vis struct $table:ident:
     $($name:ident($($type:ty),* $(,)?) $(-> $result:ty)? $(= $($symbol:literal),+)?;)*) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        $visibility struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*)
                -> $crate::driver::functions::functions!(@result $($result)?),)*
        }

        impl $table {
            pub(crate) fn look_up(
                library: $crate::driver::functions::Library,
            ) -> Result<Self, $crate::driver::DriverError> {
                // SAFETY: the types are those that the vendor's headers declare for these names.
                unsafe {
                    Ok(Self { $($name: library.find(stringify!($name), &[$($($symbol),+)?])?,)* })
                }
            }
        }
    };
}
pub(crate) use functions;

functions! {
    /// The functions, with CUDA's names and HIP's. The rows are those of `cuda.h` and of
    /// `hip_runtime_api.h`, where an address is a pointer.
    pub struct Functions:
    init(c_uint) = "cuInit", "hipInit";
    version(*mut c_int) = "cuDriverGetVersion", "hipRuntimeGetVersion";
    error_name(i32, *mut *const c_char) = "cuGetErrorName", "hipDrvGetErrorName";
    error_string(i32, *mut *const c_char) = "cuGetErrorString", "hipDrvGetErrorString";
    device_count(*mut c_int) = "cuDeviceGetCount", "hipGetDeviceCount";
    device(*mut c_int, c_int) = "cuDeviceGet", "hipDeviceGet";
    device_name(*mut c_char, c_int, c_int) = "cuDeviceGetName", "hipDeviceGetName";
    device_attribute(*mut c_int, c_int, c_int) = "cuDeviceGetAttribute", "hipDeviceGetAttribute";
    device_memory(*mut usize, c_int) = "cuDeviceTotalMem_v2", "hipDeviceTotalMem";
    synchronize() = "cuCtxSynchronize", "hipDeviceSynchronize";
    stream_create(*mut Handle, c_uint) = "cuStreamCreate", "hipStreamCreateWithFlags";
    stream_destroy(Handle) = "cuStreamDestroy_v2", "hipStreamDestroy";
    stream_synchronize(Handle) = "cuStreamSynchronize", "hipStreamSynchronize";
    stream_is_capturing(Handle, *mut c_int) = "cuStreamIsCapturing", "hipStreamIsCapturing";
    stream_wait_event(Handle, Handle, c_uint) = "cuStreamWaitEvent", "hipStreamWaitEvent";
    event_create(*mut Handle, c_uint) = "cuEventCreate", "hipEventCreateWithFlags";
    event_record(Handle, Handle) = "cuEventRecord", "hipEventRecord";
    event_synchronize(Handle) = "cuEventSynchronize", "hipEventSynchronize";
    event_elapsed(*mut f32, Handle, Handle) = "cuEventElapsedTime", "hipEventElapsedTime";
    event_destroy(Handle) = "cuEventDestroy_v2", "hipEventDestroy";
    alloc(*mut u64, usize) = "cuMemAlloc_v2", "hipMalloc";
    free(u64) = "cuMemFree_v2", "hipFree";
    copy_to_device(u64, *const c_void, usize, Handle) = "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync";
    copy_to_host(*mut c_void, u64, usize, Handle) = "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync";
    copy(u64, u64, usize, Handle) = "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync";
    fill(u64, c_uchar, usize, Handle) = "cuMemsetD8Async", "hipMemsetD8Async";
    module_load(*mut Handle, *const c_void) = "cuModuleLoadData", "hipModuleLoadData";
    module_unload(Handle) = "cuModuleUnload", "hipModuleUnload";
    module_function(*mut Handle, Handle, *const c_char) = "cuModuleGetFunction", "hipModuleGetFunction";
    function_attribute(*mut c_int, c_int, Handle) = "cuFuncGetAttribute", "hipFuncGetAttribute";
}
