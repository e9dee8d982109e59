//! What tools made of texts, kept in `target/assembled` by a hash of everything that decides the result.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// The file that `make` writes for these parts (a tool's version, flags, texts); a file that an earlier
/// run kept is not made again. Failures are not kept.
pub(super) fn kept(
    parts: &[&str],
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    let name: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/assembled"));
    let path = folder.join(name);
    if !path.exists() {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        // Two tests may make the same file at once: each makes its own, and the last rename counts.
        let made = tempfile::tempdir_in(folder).map_err(failed)?;
        make(&made.path().join("made"))?;
        std::fs::rename(made.path().join("made"), &path).map_err(failed)?;
    }
    Ok(path)
}
