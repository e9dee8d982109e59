//! Devices by their names.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use quantloom::Device;

use crate::error::raised;

/// What was opened, by the name that was asked for: layers on one GPU share its kernels.
static OPENED: Mutex<Option<HashMap<String, Device>>> = Mutex::new(None);

/// The device of a name, the same one for all layers.
///
/// # Errors
/// A name that is unknown; a device that is not there: which ones are.
pub(crate) fn named(name: &str) -> PyResult<Device> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = opened.get_or_insert_default();
    if let Some(device) = opened.get(name) {
        return Ok(device.clone());
    }
    let device = Device::named(name).map_err(raised)?;
    opened.insert(name.to_owned(), device.clone());
    Ok(device)
}

/// The devices that this machine and this build have: for each name that `Layer.prepare` takes, what it is.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Vec<(String, String)> {
    let all = py.detach(Device::list);
    let present = all.into_iter().filter(|listed| listed.absent.is_none());
    present.map(|listed| (listed.name, listed.description)).collect()
}
