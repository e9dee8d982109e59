//! Devices: what there is, and a context on one of them.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::driver::{Driver, version_text};
use super::error::CudaError;

/// The targets that kernel texts are made for, newest first, and the compute capability that
/// each needs. An `a` target runs on exactly that capability, any other on it and all later
/// ones (PTX ISA, `.target`).
const TARGETS: &[(&str, (u32, u32))] =
    &[("sm_120", (12, 0)), ("sm_90a", (9, 0)), ("sm_89", (8, 9)), ("sm_80", (8, 0))];

/// What is known of a device before anything is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's number of it, from 0.
    pub ordinal: u32,
    /// The product's name.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Most shared memory that a block can opt in to, in bytes.
    pub shared_bytes: u32,
    /// The newest CUDA version that the driver serves, as 1000 * major + 10 * minor.
    pub driver_version: u32,
}

impl DeviceInfo {
    /// The compute capability as a target: `sm_90`.
    pub fn sm(&self) -> String {
        format!("sm_{}{}", self.compute.0, self.compute.1)
    }

    /// The best target that kernel texts are made for, `None` on a device before `sm_80`.
    pub fn target(&self) -> Option<&'static str> {
        TARGETS.iter().map(|(target, _)| *target).find(|target| runs(target, self.compute))
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, {} SM, {} MiB, driver for CUDA {}",
            self.name,
            self.sm(),
            self.multiprocessors,
            self.memory_bytes >> 20,
            version_text(self.driver_version)
        )
    }
}

/// Whether a text for a target (`sm_80`, `sm_90a`) runs on a device of this compute capability.
pub fn runs(target: &str, compute: (u32, u32)) -> bool {
    match capability(target) {
        Some((needed, true)) => needed == compute,
        Some((needed, false)) => needed <= compute,
        None => false,
    }
}

/// The capability that a target's name says, and whether it is tied to that one (an `a`).
pub(super) fn capability(target: &str) -> Option<((u32, u32), bool)> {
    let number = target.strip_prefix("sm_")?;
    let (digits, tied) = match number.strip_suffix('a') {
        Some(digits) => (digits, true),
        None => (number, false),
    };
    let number: u32 = digits.parse().ok()?;
    Some(((number / 10, number % 10), tied))
}

/// Every device that the driver shows.
///
/// # Errors
/// Why there is no driver, or what it answered.
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    let driver = Driver::get()?;
    (0..count(driver)?).map(|ordinal| Ok(describe(driver, ordinal)?.0)).collect()
}

fn count(driver: &Driver) -> Result<u32, CudaError> {
    let mut count = 0;
    // SAFETY: `count` may be written.
    let result = unsafe { (driver.functions().cuDeviceGetCount)(&mut count) };
    driver.check(result, || "counting the CUDA devices".to_owned())?;
    Ok(count.unsigned_abs())
}

fn describe(driver: &Driver, ordinal: u32) -> Result<(DeviceInfo, sys::CUdevice), CudaError> {
    let functions = driver.functions();
    let doing = || format!("asking what CUDA device {ordinal} is");
    let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
    let mut device = 0;
    // SAFETY: `device` may be written; a number without a device gives an error.
    let result = unsafe { (functions.cuDeviceGet)(&mut device, number) };
    driver.check(result, doing)?;
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: `name` has the length given, less the last byte, which stays 0.
    let result = unsafe { (functions.cuDeviceGetName)(name.as_mut_ptr(), 255, device) };
    driver.check(result, doing)?;
    // SAFETY: the last byte of `name` is 0.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0usize;
    // SAFETY: `memory` may be written and `device` is one of the driver's.
    let result = unsafe { (functions.cuDeviceTotalMem_v2)(&mut memory, device) };
    driver.check(result, doing)?;
    let attribute = |attribute: CUdevice_attribute| {
        let mut value = 0;
        // SAFETY: `value` may be written and `device` is one of the driver's.
        let result = unsafe { (functions.cuDeviceGetAttribute)(&mut value, attribute, device) };
        driver.check(result, doing)?;
        Ok::<_, CudaError>(value.unsigned_abs())
    };
    use CUdevice_attribute as A;
    let info = DeviceInfo {
        ordinal,
        name,
        compute: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory as u64,
        l2_bytes: u64::from(attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        driver_version: driver.version(),
    };
    Ok((info, device))
}

struct Retained {
    driver: &'static Driver,
    info: DeviceInfo,
    device: sys::CUdevice,
    handle: sys::CUcontext,
    /// Whether it was retained for this value.
    owned: bool,
}

// SAFETY: a context may be used from any thread (CUDA driver API, "Context management"); the
// driver locks where it must.
unsafe impl Send for Retained {}
// SAFETY: as for `Send`.
unsafe impl Sync for Retained {}

impl Drop for Retained {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: the context was retained once for this value.
        let result = unsafe { (self.driver.functions().cuDevicePrimaryCtxRelease_v2)(self.device) };
        self.driver.note(result, "releasing a context");
    }
}

/// A context: a device's primary one, which other CUDA libraries of the process use too, so that their
/// memory and streams can be mixed with ours, or any other that a caller has. Cloning is cheap.
#[derive(Clone)]
pub struct Context(Arc<Retained>);

impl Context {
    /// The primary context of a device.
    ///
    /// # Errors
    /// Why there is no driver or no such device, or what the driver answered.
    pub fn new(ordinal: u32) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let count = count(driver)?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let (info, device) = describe(driver, ordinal)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` may be written and `device` is one of the driver's.
        let result = unsafe { (driver.functions().cuDevicePrimaryCtxRetain)(&mut handle, device) };
        driver.check(result, || format!("opening CUDA device {ordinal}"))?;
        Ok(Self(Arc::new(Retained { driver, info, device, handle, owned: true })))
    }

    /// The caller's own context, a `CUcontext`: the primary one of a device or any other. It is not
    /// released when the value is dropped.
    ///
    /// # Safety
    /// The handle is a context, which exists until the value and all that was made of it are gone:
    /// streams, buffers, kernels, weights and plans.
    ///
    /// # Errors
    /// Why there is no driver, or what the driver answered.
    pub unsafe fn from_raw(handle: *mut c_void) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let handle: sys::CUcontext = handle.cast();
        let doing = || "asking what a context's device is".to_owned();
        let mut device = 0;
        {
            let _current = Current::enter(driver, handle, doing)?;
            // SAFETY: `device` may be written, and the context is the thread's current one.
            let result = unsafe { (driver.functions().cuCtxGetDevice)(&mut device) };
            driver.check(result, doing)?;
        }
        let count = count(driver)?;
        for ordinal in 0..count {
            let (info, known) = describe(driver, ordinal)?;
            if known == device {
                return Ok(Self(Arc::new(Retained { driver, info, device, handle, owned: false })));
            }
        }
        Err(CudaError::NoDevice { ordinal: device.unsigned_abs(), count })
    }

    /// The context's handle, a `CUcontext`.
    pub fn as_raw(&self) -> *mut c_void {
        self.0.handle.cast()
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Whether both are the same context.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.handle == other.0.handle
    }

    /// Makes the context the thread's current one until the guard is dropped; the caller's own
    /// is current again then. Where it is current already, nothing is done.
    pub(super) fn enter(&self) -> Result<Current<'_>, CudaError> {
        let doing = || format!("entering CUDA device {}", self.0.info.ordinal);
        Current::enter(self.0.driver, self.0.handle, doing)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.info).finish()
    }
}

/// The context is the thread's current one. Not `Send`: what is current belongs to the thread.
pub(super) struct Current<'c> {
    driver: &'static Driver,
    /// Whether it was made so, and another one was before.
    pushed: bool,
    /// The context lives as long; what is current belongs to the thread.
    context: PhantomData<(&'c Context, *const ())>,
}

impl Current<'_> {
    fn enter(
        driver: &'static Driver,
        handle: sys::CUcontext,
        doing: impl Fn() -> String,
    ) -> Result<Self, CudaError> {
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` may be written.
        let result = unsafe { (driver.functions().cuCtxGetCurrent)(&mut current) };
        driver.check(result, &doing)?;
        let pushed = current != handle;
        if pushed {
            // SAFETY: the context exists as long as the value that the guard borrows.
            let result = unsafe { (driver.functions().cuCtxPushCurrent_v2)(handle) };
            driver.check(result, doing)?;
        }
        Ok(Self { driver, pushed, context: PhantomData })
    }

    /// Makes a driver call and turns its result into an error.
    pub(super) fn call(
        &self,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&super::driver::Functions) -> i32,
    ) -> Result<(), CudaError> {
        self.driver.check(call(self.driver.functions()), doing)
    }

    /// As [`Self::call`], in a destructor.
    pub(super) fn release(
        &self,
        doing: &'static str,
        call: impl FnOnce(&super::driver::Functions) -> i32,
    ) {
        self.driver.note(call(self.driver.functions()), doing);
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: `popped` may be written; `enter` pushed what this pops, on this thread.
        let result = unsafe { (self.driver.functions().cuCtxPopCurrent_v2)(&mut popped) };
        self.driver.note(result, "leaving a context");
    }
}
