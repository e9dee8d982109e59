//! Tiles of GPU kernels that were measured on a device of this machine.
//!
//! Which tile of a kernel is the fastest depends on the GPU. The compiler has a table of tiles and a model
//! ([`quantloom_codegen::schedule::measured_rows`]). [`Device::tune`](crate::Device::tune), [`Device::tune_experts`](crate::Device::tune_experts) and `quantloom tune --keep` measure the
//! tiles of a product, or of an expert layer, shape and M on a GPU, and keep the fastest in the cache next to compiled images (`QUANTLOOM_CACHE`), a text file
//! for each name of a device. [`Device::cuda`](crate::Device::cuda) reads that file, and chooses these tiles before all others.
//! With [`VARIABLE`] set to `first-use` (or [`Opening::tune_at_first_use`](crate::device::Opening::tune_at_first_use)) a device measures by
//! itself what the file does not have, before the first product of that shape and M.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use quantloom_codegen::jit::TileTable;
use quantloom_codegen::schedule::{Case, Chosen, Measured, measured_lines, merged};
use quantloom_runtime::atomic_file::AtomicFile;
use quantloom_runtime::image_cache::ImageCache;
use quantloom_runtime::source::Refusal;

/// The environment variable that asks devices to measure at first use: `first-use`.
pub const VARIABLE: &str = "QUANTLOOM_TUNE";

/// Whether [`VARIABLE`] asks for measuring at first use. Another value than `first-use` is a warning.
pub(crate) fn asked_by_environment() -> bool {
    match std::env::var_os(VARIABLE) {
        None => false,
        Some(value) if value == "first-use" => true,
        Some(value) => {
            if !value.is_empty() {
                tracing::warn!(?value, "{VARIABLE} is `first-use` or not set; nothing is measured");
            }
            false
        }
    }
}

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

/// The tiles of a file: none if there is no file. A line that does not parse, as of a version with other free choices, is
/// skipped, with a warning.
pub fn read_file(path: &Path) -> Vec<Measured> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    parsed(path, &text).collect()
}

/// The tiles of a file's text.
fn parsed(path: &Path, text: &str) -> impl Iterator<Item = Measured> {
    measured_lines(text).filter_map(move |line| match line.parse() {
        Ok(row) => Some(row),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a tile that was measured is skipped");
            None
        }
    })
}

/// The tiles of a device: those of its file, and those that this program has measured.
#[derive(Debug)]
pub struct DeviceTiles {
    rows: RwLock<BTreeMap<Case, Chosen>>,
    /// `None` if the cache is off: tiles are then kept as long as the device is open. Locked by who writes.
    file: Mutex<Option<PathBuf>>,
    tunes_at_first_use: bool,
}

/// A table that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", path.display())]
struct NotWritten {
    path: PathBuf,
    #[source]
    error: std::io::Error,
}

impl DeviceTiles {
    /// The tiles of a file ([`path`]), and whether cases that it does not have are measured at first use.
    pub fn new(file: Option<PathBuf>, tunes_at_first_use: bool) -> Self {
        let rows = file.as_deref().map(read_file).unwrap_or_default();
        let rows = rows.into_iter().map(|row| (row.case, row.chosen)).collect();
        Self { rows: RwLock::new(rows), file: Mutex::new(file), tunes_at_first_use }
    }

    /// The file's lines, of another program too, with a new one.
    fn write(path: &Path, row: &Measured) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let known = match std::fs::read_to_string(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            known => known.unwrap_or_default(),
        };
        // Lines of another version, which do not parse, are left out.
        let known: String = parsed(path, &known).map(|row| format!("{row}\n")).collect();
        let text = merged(&known, std::slice::from_ref(row)).map_err(std::io::Error::other)?;
        let mut file = AtomicFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.keep()
    }
}

impl TileTable for DeviceTiles {
    fn fastest(&self, case: &Case) -> Option<Chosen> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner).get(case).copied()
    }

    fn keep(&self, row: Measured) -> Result<(), Refusal> {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        rows.insert(row.case.clone(), row.chosen);
        drop(rows);
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &*file else { return Ok(()) };
        Self::write(path, &row)
            .map_err(|error| Refusal::Reason(Arc::new(NotWritten { path: path.clone(), error })))
    }

    fn tunes_at_first_use(&self) -> bool {
        self.tunes_at_first_use
    }
}
