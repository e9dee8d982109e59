//! Compute capabilities, and contexts that a caller has.

use std::ffi::c_void;

use super::{Context, CudaError, Driver};
use crate::driver::DriverApi as _;
use crate::driver::context::{Current, count, describe};
use crate::driver::functions::Handle;

/// Whether a text for a target (`sm_80`, `sm_90a`) runs on a device of this compute capability. An `a`
/// target runs on exactly its own capability, any other on it and all later ones (PTX ISA, `.target`).
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

impl Context {
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
        let (driver, handle) = (Driver::get()?, Handle(handle));
        let doing = || "asking what a context's device is".to_owned();
        let mut device = 0;
        Current::enter(driver, handle, doing)?.call(
            doing,
            // SAFETY: `device` may be written, and the context is the thread's current one.
            |driver| unsafe { (driver.own.cuCtxGetDevice)(&mut device) },
        )?;
        let count = count(driver)?;
        for ordinal in 0..count {
            let (info, known) = describe(driver, ordinal)?;
            if known == device {
                return Ok(Self::opened(driver, info, device, handle, false));
            }
        }
        Err(CudaError::NoDevice { name: Driver::NAME, ordinal: device.unsigned_abs(), count })
    }

    /// The context's handle, a `CUcontext`.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().0
    }

    /// The compute capability of the device, major and minor.
    pub fn compute(&self) -> (u32, u32) {
        capability(&self.info().architecture).map_or((0, 0), |(compute, _)| compute)
    }
}
