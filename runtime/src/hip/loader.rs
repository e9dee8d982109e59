//! From a key to a kernel that can be launched: the source's text, the kept code object if there is
//! one, else hiprtc.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::compile::compile;
use super::device::Device;
use super::error::HipError;
use super::module::Kernel;
use crate::image_cache::{ImageCache, ImageKey};
use crate::source::{KernelKey, KernelSource, KernelText};

/// Where a kernel's code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the disk.
    Kept,
    /// Compiled now, and kept if the cache is on.
    Compiled,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept image",
            Self::Compiled => "compiled",
        })
    }
}

/// Loads a text: from the cache, or through hiprtc.
///
/// # Errors
/// A text that hiprtc or the device refuses; never a failure of the cache.
pub fn load(
    device: &Device,
    cache: &ImageCache,
    text: &KernelText<'_>,
) -> Result<(Arc<Kernel>, Origin), HipError> {
    let info = device.info();
    let key = ImageKey {
        text: &text.text,
        architecture: &info.architecture,
        // The compiler is of the runtime's release.
        driver_version: info.runtime_version,
    };
    let ready = |image: &[u8]| Kernel::load(device, image, &text.entry, (*text.rule).clone());
    if let Some(image) = cache.get(&key) {
        match ready(&image) {
            Ok(kernel) => return Ok((kernel, Origin::Kept)),
            Err(error) => {
                tracing::warn!(%error, "a kept image does not load and is forgotten");
                cache.forget(&key);
            }
        }
    }
    let image = compile(device, &text.entry, &text.text)?;
    let kernel = ready(&image)?;
    cache.put(&key, &image);
    Ok((kernel, Origin::Compiled))
}

/// The kernels of one device and one source, each loaded once.
pub struct Loader {
    device: Device,
    cache: ImageCache,
    source: Arc<dyn KernelSource>,
    kernels: Mutex<HashMap<KernelKey, Arc<Kernel>>>,
}

impl Loader {
    /// A loader.
    pub fn new(device: &Device, cache: ImageCache, source: Arc<dyn KernelSource>) -> Self {
        Self { device: device.clone(), cache, source, kernels: Mutex::default() }
    }

    /// The kernel of a key. Nothing is emitted, read or compiled for one that was asked before.
    ///
    /// # Errors
    /// A key for another target, the source's refusal, or as [`load`].
    pub fn kernel(&self, key: &KernelKey) -> Result<Arc<Kernel>, HipError> {
        let kernels = || self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels().get(key) {
            return Ok(kernel.clone());
        }
        let info = self.device.info();
        if info.architecture != key.target {
            let (kernel, device) = (key.to_string(), info.architecture.clone());
            return Err(HipError::Target { kernel, device });
        }
        // Not under the lock: two threads may compile two kernels at once. If they compile the
        // same, the first one stays.
        let text = self.source.text(key)?;
        let start = std::time::Instant::now();
        let (kernel, origin) = load(&self.device, &self.cache, &text)?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(%key, entry = kernel.entry(), %origin, milliseconds, "kernel loaded");
        Ok(kernels().entry(key.clone()).or_insert(kernel).clone())
    }
}
