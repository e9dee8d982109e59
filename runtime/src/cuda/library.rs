//! The driver's library: found once, its functions looked up once; and what it does in its own way.
//!
//! In: nothing. Out: [`Driver::get`], the driver or why there is none. `cudarc` gives the types and
//! nothing else, so that it does not matter how a program that uses `cudarc` too links the driver. The
//! library and its functions are found here: `cudarc` panics where one is missing, and returns results
//! as a Rust enum, which a driver newer than the bindings may leave.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ops::Deref;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUdevice_attribute as Attribute, CUfunction_attribute, CUjit_option,
    CUjitInputType, CUlaunchConfig, CUmemorytype, CUstreamCaptureMode, CUtensorMapDataType,
    CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};

use super::{Context, Cuda, CudaError, device, launch, link, tensor_map};
use crate::driver::DriverApi;
use crate::driver::TensorShape;
use crate::driver::api::sealed::Sealed;
use crate::driver::arguments::Sizes;
use crate::driver::context::attribute;
use crate::driver::functions::{CUDA, Functions, Handle, Library, functions};
use crate::driver::tensor_map::RawTensorMap;
use crate::gpu::Clock;

functions! {
    /// The functions that only CUDA's driver has, or has in its own way. The rows are those of `cuda.h`.
    pub(super) struct Own:
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxGetCurrent(*mut Handle);
    cuCtxGetDevice(*mut c_int);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuStreamBeginCapture_v2(Handle, CUstreamCaptureMode);
    cuStreamEndCapture(Handle, *mut Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, c_ulonglong);
    cuGraphLaunch(Handle, Handle);
    cuGraphExecDestroy(Handle);
    cuGraphDestroy(Handle);
    cuMemAllocHost_v2(*mut *mut c_void, usize);
    cuMemFreeHost(*mut c_void);
    cuMemcpy2DAsync_v2(*const CUDA_MEMCPY2D, Handle);
    cuLinkCreate_v2(c_uint, *mut CUjit_option, *mut *mut c_void, *mut Handle);
    cuLinkAddData_v2(
        Handle, CUjitInputType, *mut c_void, usize, *const c_char, c_uint, *mut CUjit_option,
        *mut *mut c_void,
    );
    cuLinkComplete(Handle, *mut *mut c_void, *mut usize);
    cuLinkDestroy(Handle);
    cuFuncSetAttribute(Handle, CUfunction_attribute, c_int);
    cuLaunchKernelEx(*const CUlaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    cuTensorMapEncodeTiled(
        *mut RawTensorMap, CUtensorMapDataType, c_uint, *mut c_void, *const u64, *const u64,
        *const c_uint, *const c_uint, CUtensorMapInterleave, CUtensorMapSwizzle,
        CUtensorMapL2promotion, CUtensorMapFloatOOBfill,
    );
}

/// The files that the driver's library may be, by system.
const FILES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The loaded and initialised driver.
pub struct Driver {
    functions: Functions,
    pub(super) own: Own,
    version: u32,
}

impl Deref for Driver {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Driver {
    /// The driver of this machine. The first call loads it, every later one gives the same answer.
    ///
    /// # Errors
    /// [`CudaError::LibraryNotFound`], [`CudaError::MissingFunction`], or the driver's own
    /// refusal to start, as where it sees no device.
    pub fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, CudaError> {
        let library = Library::open(FILES, Self::SHOWN, "CUDA 12.0", CUDA)
            .ok_or(CudaError::LibraryNotFound { library: "libcuda" })?;
        let (functions, own) = (Functions::look_up(library)?, Own::look_up(library)?);
        let mut driver = Self { functions, own, version: 0 };
        driver.version = driver.start()?;
        Ok(driver)
    }

    /// The newest CUDA version that the driver serves, as 1000 * major + 10 * minor.
    pub fn version(&self) -> u32 {
        self.version
    }
}

/// `12.8` for 12080.
pub fn version_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl Sealed for Driver {}

impl DriverApi for Driver {
    const NAME: &'static str = "CUDA";
    const SHOWN: &'static str = "the NVIDIA driver";
    const BACKEND: &'static str = "cuda";
    const MULTIPROCESSORS: &'static str = "SM";
    const TARGETS: (&'static [&'static str], &'static str) =
        (&["sm_120", "sm_90a", "sm_89", "sm_80"], "sm_80 and later");
    const ATTRIBUTES: [c_int; 3] = [
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as c_int,
        Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE as c_int,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as c_int,
    ];
    /// CUDA programming guide, "Shared memory".
    const SHARED_WITHOUT_OPT_IN: u32 = 48 << 10;
    const GRID_THREADS: u64 = u64::MAX;
    const CLUSTER_BLOCKS: u32 = 8;
    const LOADS_TEXT: bool = true;

    type Raw = Handle;
    const NO_CONTEXT: Handle = Handle::NULL;

    fn get() -> Result<&'static Self, CudaError> {
        Self::get()
    }

    fn clock(executor: &Cuda) -> Option<&dyn Clock<CudaError>> {
        Some(executor)
    }

    fn driver_version(&self) -> u32 {
        self.version
    }

    fn version_in_words(&self) -> String {
        format!("driver for CUDA {}", version_text(self.version))
    }

    fn architecture(&self, device: c_int) -> Result<String, CudaError> {
        let of = |number: Attribute| attribute(self, device, number as c_int);
        let major = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(format!("sm_{major}{minor}"))
    }

    fn runs(target: &str, architecture: &str) -> bool {
        device::capability(architecture).is_some_and(|(compute, _)| device::runs(target, compute))
    }

    fn open(&self, device: c_int) -> Result<Handle, CudaError> {
        let mut context = Handle::NULL;
        // SAFETY: `context` may be written; a device that there is not gives an error.
        let result = unsafe { (self.own.cuDevicePrimaryCtxRetain)(&mut context, device) };
        self.check(result, || "opening a CUDA device".to_owned())?;
        Ok(context)
    }

    unsafe fn close(&self, device: c_int) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { (self.own.cuDevicePrimaryCtxRelease_v2)(device) }
    }

    fn current(&self, to: &mut Handle) -> i32 {
        // SAFETY: `to` may be written.
        unsafe { (self.own.cuCtxGetCurrent)(to) }
    }

    unsafe fn enter(&self, context: Handle) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { (self.own.cuCtxPushCurrent_v2)(context) }
    }

    unsafe fn leave(&self, _before: Handle) -> i32 {
        let mut popped = Handle::NULL;
        // SAFETY: `popped` may be written; `enter` pushed what this pops.
        unsafe { (self.own.cuCtxPopCurrent_v2)(&mut popped) }
    }

    fn compile(context: &Context, entry: &str, text: &str) -> Result<Vec<u8>, CudaError> {
        link::compile(context, entry, text)
    }

    fn loader_compiles_better(text: &str) -> bool {
        link::ignores(text)
    }

    unsafe fn opt_in(&self, function: Handle, bytes: c_int) -> i32 {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the caller's promise.
        unsafe { (self.own.cuFuncSetAttribute)(function, attribute, bytes) }
    }

    unsafe fn launch(
        &self,
        function: Handle,
        sizes: &Sizes,
        overlap: bool,
        stream: Handle,
        values: *mut *mut c_void,
    ) -> i32 {
        let (mut attributes, count) = launch::attributes(sizes.cluster, overlap);
        let config = launch::config(sizes, stream, &mut attributes, count);
        // SAFETY: the caller's promise; the driver copies the attributes before it returns.
        unsafe { (self.own.cuLaunchKernelEx)(&config, function, values, std::ptr::null_mut()) }
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
        let none = std::ptr::null_mut();
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: none,
            srcDevice: from,
            srcArray: std::ptr::null_mut(),
            srcPitch: pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: none,
            dstDevice: to,
            dstArray: std::ptr::null_mut(),
            dstPitch: bytes,
            WidthInBytes: bytes,
            Height: rows,
        };
        // SAFETY: the caller's promise; the driver copies the description before it returns.
        unsafe { (self.own.cuMemcpy2DAsync_v2)(&copy, stream) }
    }

    fn encode(&self, map: &mut RawTensorMap, address: u64, shape: &TensorShape) -> i32 {
        tensor_map::encode(self, map, address, shape)
    }
}
