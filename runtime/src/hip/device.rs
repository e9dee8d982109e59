//! Devices: what there is, and one of them made the thread's.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::marker::PhantomData;

use super::error::HipError;
use super::library::{Libraries, Runtime};

/// The targets that kernel texts are made for, which are architectures.
pub(super) const TARGETS: &[&str] = &["gfx942", "gfx950"];

/// Numbers of `hipDeviceAttribute_t`, the same in all versions from 5 on.
mod attribute {
    pub(super) const L2_CACHE_SIZE: i32 = 19;
    pub(super) const MULTIPROCESSOR_COUNT: i32 = 63;
    pub(super) const SHARED_MEMORY_PER_BLOCK: i32 = 74;
}

/// Room for `hipDeviceProp_t`, which has 1472 bytes and grows.
const PROPERTIES: usize = 16 << 10;

/// What is known of a device before anything is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The runtime's number of it, from 0.
    pub ordinal: u32,
    /// The product's name.
    pub name: String,
    /// The architecture, without the features that stand behind it: `gfx942`.
    pub architecture: String,
    /// Compute units.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Most shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// The runtime's version, as 10,000,000 * major + 100,000 * minor + patch.
    pub runtime_version: u32,
}

impl DeviceInfo {
    /// The target that kernel texts are made for, `None` on other architectures.
    pub fn target(&self) -> Option<&'static str> {
        TARGETS.iter().copied().find(|target| *target == self.architecture)
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, {} CU, {} MiB, HIP {}.{}",
            self.name,
            self.architecture,
            self.multiprocessors,
            self.memory_bytes >> 20,
            self.runtime_version / 10_000_000,
            self.runtime_version / 100_000 % 100,
        )
    }
}

/// Every device that the runtime shows.
///
/// # Errors
/// Why there is no runtime, or what it answered.
pub fn devices() -> Result<Vec<DeviceInfo>, HipError> {
    let libraries = Libraries::get()?;
    (0..count(libraries)?).map(|ordinal| describe(libraries, ordinal)).collect()
}

fn count(libraries: &Libraries) -> Result<u32, HipError> {
    let mut count = 0;
    // SAFETY: `count` may be written.
    let result = unsafe { (libraries.runtime.hipGetDeviceCount)(&mut count) };
    libraries.check(result, || "counting the HIP devices".to_owned())?;
    Ok(count.unsigned_abs())
}

fn describe(libraries: &Libraries, ordinal: u32) -> Result<DeviceInfo, HipError> {
    let runtime = &libraries.runtime;
    let doing = || format!("asking what HIP device {ordinal} is");
    let number = number(ordinal);
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: `name` has the length given, less the last byte, which stays 0; a number without a
    // device gives an error, here and below.
    let result = unsafe { (runtime.hipDeviceGetName)(name.as_mut_ptr(), 255, number) };
    libraries.check(result, doing)?;
    // SAFETY: the last byte of `name` is 0.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0usize;
    // SAFETY: `memory` may be written.
    let result = unsafe { (runtime.hipDeviceTotalMem)(&mut memory, number) };
    libraries.check(result, doing)?;
    let mut properties = vec![0u8; PROPERTIES];
    // SAFETY: the function of this name writes the structure of HIP 6, which is far smaller.
    let result =
        unsafe { (runtime.hipGetDevicePropertiesR0600)(properties.as_mut_ptr().cast(), number) };
    libraries.check(result, doing)?;
    let attribute = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: `value` may be written.
        let result = unsafe { (runtime.hipDeviceGetAttribute)(&mut value, attribute, number) };
        libraries.check(result, doing)?;
        Ok::<_, HipError>(value.unsigned_abs())
    };
    Ok(DeviceInfo {
        ordinal,
        name,
        architecture: architecture(&properties).unwrap_or_else(|| "unknown".to_owned()),
        multiprocessors: attribute(attribute::MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory as u64,
        l2_bytes: u64::from(attribute(attribute::L2_CACHE_SIZE)?),
        shared_bytes: attribute(attribute::SHARED_MEMORY_PER_BLOCK)?,
        runtime_version: libraries.version(),
    })
}

/// The architecture among a device's properties: `gcnArchName` is the only string there that starts
/// with `gfx`, wherever the version puts it. No attribute gives it, and the compute capability does
/// not tell `gfx90a` from `gfx90c`.
fn architecture(properties: &[u8]) -> Option<String> {
    let mut strings = properties.split(|byte| *byte == 0);
    let name = strings.find_map(|string| {
        let at = string.windows(3).rposition(|part| part == b"gfx")?;
        std::str::from_utf8(&string[at..]).ok()
    })?;
    // Behind a colon: features that may be on or off, as in `gfx942:sramecc+:xnack-`.
    Some(name.split(':').next().unwrap_or(name).to_owned())
}

fn number(ordinal: u32) -> c_int {
    c_int::try_from(ordinal).unwrap_or(c_int::MAX)
}

/// A device. Cloning is cheap.
#[derive(Clone)]
pub struct Device {
    libraries: &'static Libraries,
    info: std::sync::Arc<DeviceInfo>,
}

impl Device {
    /// A device by the runtime's number.
    ///
    /// # Errors
    /// Why there is no runtime or no such device, or what the runtime answered.
    pub fn new(ordinal: u32) -> Result<Self, HipError> {
        let libraries = Libraries::get()?;
        let count = count(libraries)?;
        if ordinal >= count {
            return Err(HipError::NoDevice { ordinal, count });
        }
        Ok(Self { libraries, info: describe(libraries, ordinal)?.into() })
    }

    /// What is known of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.libraries
    }

    /// Whether both are the same device.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.info.ordinal == other.info.ordinal
    }

    /// Makes the device the thread's current one until the guard is dropped; the one that was is
    /// current again then.
    pub(super) fn enter(&self) -> Result<Current<'_>, HipError> {
        let runtime = &self.libraries.runtime;
        let doing = || format!("entering HIP device {}", self.info.ordinal);
        let mut before = 0;
        // SAFETY: `before` may be written.
        self.libraries.check(unsafe { (runtime.hipGetDevice)(&mut before) }, doing)?;
        let number = number(self.info.ordinal);
        if before != number {
            // SAFETY: a device that there is.
            self.libraries.check(unsafe { (runtime.hipSetDevice)(number) }, doing)?;
        }
        Ok(Current { device: self, before, thread: PhantomData })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.info).finish()
    }
}

/// The device is the thread's current one. Not `Send`: what is current belongs to the thread.
pub(super) struct Current<'d> {
    device: &'d Device,
    before: c_int,
    thread: PhantomData<*const ()>,
}

impl Current<'_> {
    /// Makes a call and turns its result into an error.
    pub(super) fn call(
        &self,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&Runtime) -> i32,
    ) -> Result<(), HipError> {
        let libraries = self.device.libraries;
        libraries.check(call(&libraries.runtime), doing)
    }

    /// As [`Self::call`], in a destructor.
    pub(super) fn release(&self, doing: &'static str, call: impl FnOnce(&Runtime) -> i32) {
        let libraries = self.device.libraries;
        libraries.note(call(&libraries.runtime), doing);
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.before != number(self.device.info.ordinal) {
            // SAFETY: the device that was current before.
            self.release("leaving a device", |runtime| unsafe {
                (runtime.hipSetDevice)(self.before)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_stands_somewhere_among_the_properties() {
        let mut properties = vec![0u8; 4096];
        properties[..18].copy_from_slice(b"AMD Instinct MI300");
        assert_eq!(architecture(&properties), None);
        // Numbers that have no zero byte may stand right before it.
        properties[1158..1160].fill(7);
        properties[1160..1182].copy_from_slice(b"gfx942:sramecc+:xnack-");
        assert_eq!(architecture(&properties).unwrap(), "gfx942");
    }
}
