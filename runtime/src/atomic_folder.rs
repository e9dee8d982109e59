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
    /// Whether a folder can get this name by a rename: before the work that fills it.
    ///
    /// # Errors
    /// `InvalidInput` if the path does not end in a name (`.`, `/`), or is a symbolic link or a mount point;
    /// `AlreadyExists` if it exists and is no empty folder.
    pub fn check(target: &Path) -> io::Result<()> {
        let refused = |kind, what: &str| Err(io::Error::new(kind, what.to_owned()));
        let invalid = |what: &str| refused(io::ErrorKind::InvalidInput, what);
        // After a slash a link would be followed.
        let target = &without_slash(target);
        if target.file_name().is_none() {
            return invalid("the path does not end in a folder's name");
        }
        let Ok(found) = target.symlink_metadata() else { return Ok(()) };
        if found.is_symlink() {
            return invalid("the path is a symbolic link; name the folder that it leads to");
        }
        let empty = std::fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
        if !empty {
            let what = "the path exists and is no empty folder";
            return refused(io::ErrorKind::AlreadyExists, what);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            if std::fs::metadata(beside(target))?.dev() != found.dev() {
                return invalid("the path is a mount point; name a new folder in it");
            }
        }
        Ok(())
    }

    /// Creates a folder whose mode follows the process's umask.
    ///
    /// # Errors
    /// Those of [`AtomicFolder::check`]; I/O errors.
    pub fn create(target: &Path) -> io::Result<Self> {
        Self::check(target)?;
        let target = &without_slash(target);
        let mut builder = Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            builder.permissions(std::fs::Permissions::from_mode(0o777));
        }
        let mut all = pending();
        let folder = builder.tempdir_in(beside(target))?;
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

/// A path without a slash at its end.
fn without_slash(path: &Path) -> PathBuf {
    path.components().collect()
}

/// The folder that a path is in.
fn beside(target: &Path) -> &Path {
    let parent = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
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
