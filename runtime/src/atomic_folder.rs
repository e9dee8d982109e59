//! Atomic folders: complete or absent. A folder is filled under a temporary name beside its target,
//! and renamed when it is complete. What is interrupted is removed as unfinished files are
//! ([`discard_pending`](crate::atomic_file::discard_pending)).

use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::atomic_file::pending;

/// An unfinished folder beside its target.
#[derive(Debug)]
pub struct AtomicFolder {
    target: PathBuf,
    /// `None` after the rename.
    folder: Option<TempDir>,
}

impl AtomicFolder {
    /// Creates a folder whose mode follows the process's umask.
    ///
    /// # Errors
    /// `AlreadyExists` if the target exists and is no empty folder; I/O errors.
    pub fn create(target: &Path) -> io::Result<Self> {
        if target.symlink_metadata().is_ok() {
            let empty = std::fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
            if !empty {
                let what = "the path exists and is no empty folder";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
        }
        let beside = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut builder = Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            builder.permissions(std::fs::Permissions::from_mode(0o777));
        }
        let mut all = pending();
        let folder = builder.tempdir_in(beside.unwrap_or(Path::new(".")))?;
        all.insert(folder.path().to_owned());
        drop(all);
        Ok(Self { target: target.to_owned(), folder: Some(folder) })
    }

    /// The temporary path, in which files are written until [`AtomicFolder::keep`].
    pub fn path(&self) -> &Path {
        self.folder.as_ref().map_or(&self.target, TempDir::path)
    }

    /// Renames the folder to its target.
    ///
    /// # Errors
    /// I/O errors, after which no folder is left.
    pub fn keep(mut self) -> io::Result<()> {
        let Some(folder) = self.folder.take() else { return Ok(()) };
        let path = folder.path().to_owned();
        // On Windows a folder is not renamed to one that exists.
        #[cfg(not(unix))]
        let _ = std::fs::remove_dir(&self.target);
        let renamed = std::fs::rename(&path, &self.target);
        pending().remove(&path);
        if renamed.is_ok() {
            // Nothing is there any more that would be removed.
            let _ = folder.keep();
        }
        renamed
    }
}

impl Drop for AtomicFolder {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            let path = folder.path().to_owned();
            drop(folder);
            pending().remove(&path);
        }
    }
}
