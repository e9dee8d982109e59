//! Tiles of GPU kernels that were measured on a device of this machine.
//!
//! Which tile of a kernel is the fastest depends on the GPU. The compiler has a table of tiles and a model
//! ([`quantloom_codegen::schedule::measured_rows`]); `quantloom tune --keep` measures the tiles of a product, shape and M on a
//! GPU, and keeps the fastest in the cache next to compiled images (`QUANTLOOM_CACHE`), a text file for each name of a device.
//! [`Device::cuda`](crate::Device::cuda) reads that file, and chooses these tiles before all others.

use std::path::{Path, PathBuf};

use quantloom_codegen::schedule::{Measured, measured_lines};
use quantloom_runtime::image_cache::ImageCache;

/// The file of a device's tiles, by the name of the device ([`quantloom_runtime::driver::DeviceInfo::name`]); `None` where the cache
/// is off.
pub fn path(device: &str) -> Option<PathBuf> {
    path_in(&ImageCache::from_environment(), device)
}

/// The same of another cache than the user's.
pub fn path_in(cache: &ImageCache, device: &str) -> Option<PathBuf> {
    let root = cache.directory()?.parent()?;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let name: String = device.chars().map(plain).collect();
    Some(root.join("tiles").join(format!("{name}.txt")))
}

/// The tiles of a device's file: none if there is no file. A line that does not parse, as of a version with other free choices, is
/// skipped, with a warning.
pub fn read(device: &str) -> Vec<Measured> {
    path(device).map(|path| read_file(&path)).unwrap_or_default()
}

/// The same of a file.
pub fn read_file(path: &Path) -> Vec<Measured> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let read = |line: &str| match line.parse() {
        Ok(row) => Some(row),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a tile that was measured is skipped");
            None
        }
    };
    measured_lines(&text).filter_map(read).collect()
}
