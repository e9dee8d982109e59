//! Atomic files: complete or absent. A file is written under a temporary name in the directory of
//! its target, and renamed when it is complete.
//!
//! Unfinished files are listed ([`discard_pending`]), so that an interrupted program can remove
//! them.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile};

/// Temporary files and folders of this process that are neither renamed nor removed yet.
static PENDING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

pub(crate) fn pending() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished files and blocks new ones, for an interrupted program that is about to
/// end. Finishing a removed file fails.
pub fn discard_pending() {
    let files = pending();
    for file in files.iter() {
        // A file that has just been renamed no longer exists.
        if std::fs::remove_file(file).is_err() {
            let _ = std::fs::remove_dir_all(file);
        }
    }
    // Locked forever: a new file would not be removed.
    std::mem::forget(files);
}

/// An unfinished file in the directory of its target.
#[derive(Debug)]
pub struct AtomicFile {
    target: PathBuf,
    /// `None` after the rename.
    file: Option<NamedTempFile>,
}

impl AtomicFile {
    /// Creates a file whose mode follows the process's umask.
    ///
    /// # Errors
    /// `target` exists and is not a regular file; I/O errors.
    pub fn create(target: &Path) -> io::Result<Self> {
        // Renaming would replace a device, a pipe or a link by a file.
        let target = match std::fs::metadata(target) {
            Ok(there) if !there.is_file() => {
                let what = "the path exists and is not a regular file";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            Ok(_) => std::fs::canonicalize(target)?,
            Err(_) => target.to_owned(),
        };
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut builder = Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let mut files = pending();
        let file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
        files.insert(file.path().to_owned());
        drop(files);
        Ok(Self { target, file: Some(file) })
    }

    /// The temporary path, which contains the bytes until [`AtomicFile::keep`].
    pub fn path(&self) -> &Path {
        self.file.as_ref().map_or(&self.target, NamedTempFile::path)
    }

    /// Renames the file to its target.
    ///
    /// # Errors
    /// I/O errors, after which no file is left.
    pub fn keep(mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let path = file.path().to_owned();
        let kept = file.persist(&self.target).map(|_| ()).map_err(|error| error.error);
        pending().remove(&path);
        kept
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let path = file.path().to_owned();
            drop(file);
            pending().remove(&path);
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => Err(io::Error::other("the file is closed")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}
