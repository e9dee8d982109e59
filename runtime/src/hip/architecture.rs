//! Which architecture a device has.

use std::ffi::c_int;

use super::{HipError, Libraries};
use crate::driver::DriverApi as _;

/// Room for `hipDeviceProp_t`, which has 1472 bytes and grows.
const PROPERTIES: usize = 16 << 10;

/// The architecture of a device, without the features that stand behind it: `gfx942`.
pub(super) fn of(libraries: &Libraries, device: c_int) -> Result<String, HipError> {
    let mut properties = vec![0u8; PROPERTIES];
    let to = properties.as_mut_ptr().cast();
    // SAFETY: the function of this name writes the structure of HIP 6, which is far smaller.
    let result = unsafe { (libraries.own.hipGetDevicePropertiesR0600)(to, device) };
    libraries.check(result, || "asking for the properties of a HIP device".to_owned())?;
    Ok(architecture(&properties).unwrap_or_else(|| "unknown".to_owned()))
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
