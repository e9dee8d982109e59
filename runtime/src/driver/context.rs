//! Devices: what there is, and a context on one of them.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::api::DriverApi;
use super::error::DriverError;

/// What is known of a device before anything is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's number of it, from 0.
    pub ordinal: u32,
    /// The product's name.
    pub name: String,
    /// The architecture: `sm_90`, `gfx942`.
    pub architecture: String,
    /// The best target that kernels are made for; `None` where none runs.
    pub target: Option<&'static str>,
    /// Multiprocessors, or compute units.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Most shared memory that a block can have, in bytes.
    pub shared_bytes: u32,
    /// The driver's version. CUDA's: the newest CUDA that it serves, as 1000 * major + 10 * minor. HIP's:
    /// 10,000,000 * major + 100,000 * minor + patch.
    pub driver_version: u32,
    in_words: String,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_words)
    }
}

/// Every device that a driver shows.
///
/// # Errors
/// Why there is no driver, or what it answered.
pub fn devices<D: DriverApi>() -> Result<Vec<DeviceInfo>, DriverError> {
    let driver = D::get()?;
    (0..count(driver)?).map(|ordinal| Ok(describe(driver, ordinal)?.0)).collect()
}

pub(crate) fn count<D: DriverApi>(driver: &D) -> Result<u32, DriverError> {
    let mut count = 0;
    // SAFETY: `count` may be written.
    let result = unsafe { (driver.device_count)(&mut count) };
    driver.check(result, || format!("counting the {} devices", D::NAME))?;
    Ok(count.unsigned_abs())
}

/// A device, and the driver's name of it.
pub(crate) fn describe<D: DriverApi>(
    driver: &D,
    ordinal: u32,
) -> Result<(DeviceInfo, c_int), DriverError> {
    let doing = || format!("asking what {} device {ordinal} is", D::NAME);
    let mut device = 0;
    // SAFETY: `device` may be written; a number without a device gives an error.
    let result =
        unsafe { (driver.device)(&mut device, c_int::try_from(ordinal).unwrap_or(c_int::MAX)) };
    driver.check(result, doing)?;
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: `name` has the length given, less the last byte, which stays 0.
    let result = unsafe { (driver.device_name)(name.as_mut_ptr(), 255, device) };
    driver.check(result, doing)?;
    // SAFETY: the last byte of `name` is 0.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0usize;
    // SAFETY: `memory` may be written and `device` is one of the driver's.
    let result = unsafe { (driver.device_memory)(&mut memory, device) };
    driver.check(result, doing)?;
    let [multiprocessors, l2, shared] = D::ATTRIBUTES;
    let multiprocessors = attribute(driver, device, multiprocessors)?;
    let architecture = driver.architecture(device)?;
    let in_words = format!(
        "{name}, {architecture}, {multiprocessors} {}, {} MiB, {}",
        D::MULTIPROCESSORS,
        memory >> 20,
        driver.version_in_words()
    );
    let target = D::TARGETS.0.iter().copied().find(|target| D::runs(target, &architecture));
    let info = DeviceInfo {
        ordinal,
        name,
        architecture,
        target,
        multiprocessors,
        memory_bytes: memory as u64,
        l2_bytes: u64::from(attribute(driver, device, l2)?),
        shared_bytes: attribute(driver, device, shared)?,
        driver_version: driver.driver_version(),
        in_words,
    };
    Ok((info, device))
}

/// An attribute of a device.
pub(crate) fn attribute<D: DriverApi>(
    driver: &D,
    device: c_int,
    attribute: c_int,
) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: `value` may be written and `device` is one of the driver's.
    let result = unsafe { (driver.device_attribute)(&mut value, attribute, device) };
    driver.check(result, || format!("asking for attribute {attribute} of a {} device", D::NAME))?;
    Ok(value.unsigned_abs())
}

struct Opened<D: DriverApi> {
    driver: &'static D,
    info: DeviceInfo,
    device: c_int,
    raw: D::Raw,
    /// Whether it was opened for this value.
    owned: bool,
}

impl<D: DriverApi> Drop for Opened<D> {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the context was opened once for this value.
            let result = unsafe { self.driver.close(self.device) };
            self.driver.note(result, "closing a context");
        }
    }
}

/// A context, to which streams, memory and kernels belong. Cloning is cheap.
///
/// CUDA's is a device's primary one, which other CUDA libraries of the process use too, so that their
/// memory and streams can be mixed with ours, or any other that a caller has; HIP's is a device.
pub struct Context<D: DriverApi>(Arc<Opened<D>>);

impl<D: DriverApi> Clone for Context<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: DriverApi> Context<D> {
    /// The context of a device by the driver's number.
    ///
    /// # Errors
    /// Why there is no driver or no such device, or what the driver answered.
    pub fn new(ordinal: u32) -> Result<Self, DriverError> {
        let driver = D::get()?;
        let count = count(driver)?;
        if ordinal >= count {
            return Err(DriverError::NoDevice { name: D::NAME, ordinal, count });
        }
        let (info, device) = describe(driver, ordinal)?;
        let raw = driver.open(device)?;
        Ok(Self::opened(driver, info, device, raw, true))
    }

    pub(crate) fn opened(
        driver: &'static D,
        info: DeviceInfo,
        device: c_int,
        raw: D::Raw,
        owned: bool,
    ) -> Self {
        Self(Arc::new(Opened { driver, info, device, raw, owned }))
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The libraries: HIP's compiler is one of them.
    #[cfg(feature = "hip")]
    pub(crate) fn driver(&self) -> &'static D {
        self.0.driver
    }

    pub(crate) fn raw(&self) -> D::Raw {
        self.0.raw
    }

    /// Whether both are the same context.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }

    /// Makes the context the thread's current one until the guard is dropped; the caller's own
    /// is current again then. Where it is current already, nothing is done.
    pub(crate) fn enter(&self) -> Result<Current<'_, D>, DriverError> {
        let doing = || format!("entering {} device {}", D::NAME, self.0.info.ordinal);
        Current::enter(self.0.driver, self.0.raw, doing)
    }
}

impl<D: DriverApi> fmt::Debug for Context<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.info).finish()
    }
}

/// The context is the thread's current one. Not `Send`: what is current belongs to the thread.
pub(crate) struct Current<'c, D: DriverApi> {
    driver: &'static D,
    /// What was current before, if it was another one.
    before: Option<D::Raw>,
    /// The context lives as long; what is current belongs to the thread.
    context: PhantomData<(&'c Context<D>, *const ())>,
}

impl<D: DriverApi> Current<'_, D> {
    pub(crate) fn enter(
        driver: &'static D,
        raw: D::Raw,
        doing: impl Fn() -> String,
    ) -> Result<Self, DriverError> {
        let mut current = D::NO_CONTEXT;
        driver.check(driver.current(&mut current), &doing)?;
        let before = (current != raw).then_some(current);
        if before.is_some() {
            // SAFETY: the context exists as long as the value that the guard borrows.
            driver.check(unsafe { driver.enter(raw) }, doing)?;
        }
        Ok(Self { driver, before, context: PhantomData })
    }

    /// Makes a driver call and turns its result into an error.
    pub(crate) fn call(
        &self,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&D) -> i32,
    ) -> Result<(), DriverError> {
        self.driver.check(call(self.driver), doing)
    }

    /// As [`Self::call`], in a destructor.
    pub(crate) fn release(&self, doing: &'static str, call: impl FnOnce(&D) -> i32) {
        self.driver.note(call(self.driver), doing);
    }
}

impl<D: DriverApi> Drop for Current<'_, D> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: `before` was current when `enter` made this one so, on this thread.
            let result = unsafe { self.driver.leave(before) };
            self.driver.note(result, "leaving a context");
        }
    }
}
