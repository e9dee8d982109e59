//! Files that are whole or absent: written beside their target, renamed when they are complete.
//!
//! What is being written is listed ([`discard_pending`]), so that a program that is about to end
//! can remove it.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile};

/// Temporary files of this process that are neither renamed nor removed yet.
static PENDING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn pending() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every file that is being written, and lets no new one begin: for a program that ends
/// next, since it was interrupted. What holds such a file fails when it is done.
pub fn discard_pending() {
    let files = pending();
    for file in files.iter() {
        // One that has just been renamed is not there any more.
        let _ = std::fs::remove_file(file);
    }
    // Locked for good: a file that began now would stay.
    std::mem::forget(files);
}

/// A file that is being written beside its target.
#[derive(Debug)]
pub struct Output {
    target: PathBuf,
    /// Taken when it is renamed.
    file: Option<NamedTempFile>,
}

impl Output {
    /// Begins a file whose mode follows the process's umask.
    ///
    /// # Errors
    /// What is at `target` is no ordinary file; what the operating system says.
    pub fn create(target: &Path) -> io::Result<Self> {
        // Renaming would put a file in the place of a device, a pipe or a link.
        let target = match std::fs::metadata(target) {
            Ok(there) if !there.is_file() => {
                let what = "what is there is not an ordinary file";
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

    /// Where the bytes are until [`Output::keep`].
    pub fn path(&self) -> &Path {
        self.file.as_ref().map_or(&self.target, NamedTempFile::path)
    }

    /// Renames the file to its target.
    ///
    /// # Errors
    /// What the operating system says; nothing is left then.
    pub fn keep(mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let path = file.path().to_owned();
        let kept = file.persist(&self.target).map(|_| ()).map_err(|error| error.error);
        pending().remove(&path);
        kept
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let path = file.path().to_owned();
            drop(file);
            pending().remove(&path);
        }
    }
}

impl Write for Output {
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
