//! From a key to a kernel that can be launched: the source's text, the kept image if there is
//! one, else the driver's compiler.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::device::Context;
use super::error::CudaError;
use super::link;
use super::module::Kernel;
use crate::image_cache::{ImageCache, ImageKey};
use crate::source::{KernelKey, KernelSource, KernelText};

/// Where a kernel's image came from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// From the disk.
    Kept,
    /// Compiled now, and kept if the cache is on.
    Compiled,
    /// Compiled now by the module loader, which gives no image, since the linker refused: why.
    NotKept(Box<CudaError>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str("kept image"),
            Self::Compiled => f.write_str("compiled"),
            Self::NotKept(why) => write!(f, "compiled, not kept: {why}"),
        }
    }
}

/// Loads a text: from the cache, or through the driver's compiler.
///
/// # Errors
/// A text for another device or one that the driver refuses; never a failure of the cache.
pub fn load(
    context: &Context,
    cache: &ImageCache,
    text: &KernelText<'_>,
) -> Result<(Arc<Kernel>, Origin), CudaError> {
    let info = context.info();
    let architecture = info.sm();
    let key = ImageKey {
        text: &text.text,
        architecture: &architecture,
        driver_version: info.driver_version,
    };
    let ready = |image: &[u8]| Kernel::load(context, image, &text.entry, (*text.rule).clone());
    if let Some(image) = cache.get(&key) {
        match ready(&image) {
            Ok(kernel) => return Ok((kernel, Origin::Kept)),
            Err(error) => {
                tracing::warn!(%error, "a kept image does not load and is forgotten");
                cache.forget(&key);
            }
        }
    }
    let error = match link::compile(context, &text.entry, &text.text) {
        Ok(image) => {
            let kernel = ready(&image)?;
            cache.put(&key, &image);
            return Ok((kernel, Origin::Compiled));
        }
        Err(error @ CudaError::Compile { .. }) => error,
        Err(error) => return Err(error),
    };
    // The linker is asked only so that the image can be kept: where it refuses what the module
    // loader takes, nothing is kept, and the launch goes on.
    let mut terminated = text.text.as_bytes().to_vec();
    terminated.push(0);
    match ready(&terminated) {
        Ok(kernel) => {
            tracing::warn!(%error, "a kernel's image cannot be kept");
            Ok((kernel, Origin::NotKept(Box::new(error))))
        }
        Err(_) => Err(error),
    }
}

/// The kernels of one device and one source, each loaded once.
pub struct Loader {
    context: Context,
    cache: ImageCache,
    source: Arc<dyn KernelSource>,
    kernels: Mutex<HashMap<KernelKey, Arc<Kernel>>>,
}

impl Loader {
    /// A loader.
    pub fn new(context: &Context, cache: ImageCache, source: Arc<dyn KernelSource>) -> Self {
        Self { context: context.clone(), cache, source, kernels: Mutex::default() }
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The kernel of a key, if it is loaded.
    pub fn loaded(&self, key: &KernelKey) -> Option<Arc<Kernel>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// The kernel of a key. Nothing is emitted, read or compiled for one that was asked before.
    ///
    /// # Errors
    /// The source's refusal, or as [`load`].
    pub fn kernel(&self, key: &KernelKey) -> Result<Arc<Kernel>, CudaError> {
        let kernels = || self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels().get(key) {
            return Ok(kernel.clone());
        }
        // Not under the lock: two threads may compile two kernels at once. If they compile the
        // same, the first one stays.
        let text = self.source.text(key)?;
        let start = std::time::Instant::now();
        let (kernel, origin) = load(&self.context, &self.cache, &text)?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(%key, entry = kernel.entry(), %origin, milliseconds, "kernel loaded");
        Ok(kernels().entry(key.clone()).or_insert(kernel).clone())
    }
}
