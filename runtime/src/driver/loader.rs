//! From a key to a kernel that can be launched: the source's text, the kept image if there is
//! one, else the driver's compiler.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::api::DriverApi;
use super::context::Context;
use super::error::DriverError;
use super::module::LoadedKernel;
use crate::image_cache::{ImageCache, ImageKey};
use crate::source::{KernelKey, KernelSource, KernelText};

/// Where a kernel's image came from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// From the disk.
    Kept,
    /// Compiled now, and kept if the cache is on.
    Compiled,
    /// Compiled by the module loader, which makes faster code of this text; the driver keeps it.
    Loaded,
    /// Compiled now by the module loader, which gives no image, since the
    /// compiler refused: why.
    NotKept(Box<DriverError>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str("kept image"),
            Self::Compiled => f.write_str("compiled"),
            Self::Loaded => f.write_str("compiled by the module loader"),
            Self::NotKept(why) => write!(f, "compiled, not kept: {why}"),
        }
    }
}

/// Loads a text: from the cache, or through the driver's compiler.
///
/// # Errors
/// A text for another device or one that the driver refuses; never a failure of the cache.
pub fn load<D: DriverApi>(
    context: &Context<D>,
    cache: &ImageCache,
    text: &KernelText<'_>,
) -> Result<(Arc<LoadedKernel<D>>, Origin), DriverError> {
    let info = context.info();
    let key = ImageKey {
        text: &text.text,
        architecture: &info.architecture,
        driver_version: info.driver_version,
    };
    let ready =
        |image: &[u8]| LoadedKernel::load(context, image, &text.entry, (*text.rule).clone());
    let terminated = || {
        let mut terminated = text.text.as_bytes().to_vec();
        terminated.push(0);
        terminated
    };
    // Where the loader refuses, the compiler says why.
    if D::LOADS_TEXT
        && D::loader_compiles_better(&text.text)
        && let Ok(kernel) = ready(&terminated())
    {
        return Ok((kernel, Origin::Loaded));
    }
    if let Some(image) = cache.get(&key) {
        match ready(&image) {
            Ok(kernel) => return Ok((kernel, Origin::Kept)),
            Err(error) => {
                tracing::warn!(%error, "a kept image does not load and is forgotten");
                cache.forget(&key);
            }
        }
    }
    let error = match D::compile(context, &text.entry, &text.text) {
        Ok(image) => {
            let kernel = ready(&image)?;
            cache.put(&key, &image);
            return Ok((kernel, Origin::Compiled));
        }
        Err(error @ DriverError::Compile { .. }) if D::LOADS_TEXT => error,
        Err(error) => return Err(error),
    };
    // The compiler is asked only so that the image can be kept: where it refuses what the module
    // loader takes, nothing is kept, and the launch goes on.
    match ready(&terminated()) {
        Ok(kernel) => {
            tracing::warn!(%error, "a kernel's image cannot be kept");
            Ok((kernel, Origin::NotKept(Box::new(error))))
        }
        Err(_) => Err(error),
    }
}

/// The kernels of one device and one source, each loaded once.
pub struct Loader<D: DriverApi> {
    context: Context<D>,
    cache: ImageCache,
    source: Arc<dyn KernelSource>,
    kernels: Mutex<HashMap<KernelKey, Arc<LoadedKernel<D>>>>,
}

impl<D: DriverApi> Loader<D> {
    /// A loader.
    pub fn new(context: &Context<D>, cache: ImageCache, source: Arc<dyn KernelSource>) -> Self {
        Self { context: context.clone(), cache, source, kernels: Mutex::default() }
    }

    /// The device.
    pub fn context(&self) -> &Context<D> {
        &self.context
    }

    /// The kernel of a key, if it is loaded.
    pub fn loaded(&self, key: &KernelKey) -> Option<Arc<LoadedKernel<D>>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// The kernel of a key. Nothing is emitted, read or compiled for one that was asked before.
    ///
    /// # Errors
    /// A key for another target, the source's refusal, or as [`load`].
    pub fn kernel(&self, key: &KernelKey) -> Result<Arc<LoadedKernel<D>>, DriverError> {
        let kernels = || self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels().get(key) {
            return Ok(kernel.clone());
        }
        let info = self.context.info();
        if !D::runs(&key.target, &info.architecture) {
            let (kernel, target) = (key.to_string(), key.target.clone());
            return Err(DriverError::Target { kernel, target, device: info.architecture.clone() });
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
