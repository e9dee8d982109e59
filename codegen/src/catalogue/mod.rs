//! The generated files of `quantloom-kernels`.
//!
//! In: the folder's `schemes/*.scheme`. Out: every file that is made of them, as text: the
//! families of the code types ([`families`]), the catalogue's schemes as types ([`ops`]) and the
//! MANIFEST ([`manifest`]). `quantloom-catalogue` writes them or says which are stale.

mod families;
mod manifest;
mod ops;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use quantloom_dsl::{Diagnostics, Scheme, parse};

use crate::emit::rust::EmitError;

/// The command that makes the files again, as their headers say it.
pub const AGAIN: &str =
    "cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write";

/// A file of the crate: its path in the crate's folder, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Relative to the folder.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Why files could not be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// A file or folder.
    #[error("cannot {what} {}: {error}", path.display())]
    Io {
        /// `read` or `write`.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A scheme with mistakes.
    #[error("{} is not a valid scheme\n{faults}", path.display())]
    Scheme {
        /// The file.
        path: PathBuf,
        /// Its mistakes.
        faults: Diagnostics,
    },
    /// A code type without a decoder.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// A code type that no family of the list serves.
    #[error("{scheme}: no family serves {code}; add it to `codegen::catalogue::families`")]
    NoFamily {
        /// The scheme.
        scheme: String,
        /// Its code type.
        code: String,
    },
}

/// The schemes of a folder, by name.
///
/// # Errors
/// [`CatalogueError::Io`], [`CatalogueError::Scheme`].
pub fn schemes(folder: &Path) -> Result<Vec<Scheme>, CatalogueError> {
    let folder = folder.join("schemes");
    let unread = |path: &Path, error| CatalogueError::Io { what: "read", path: path.into(), error };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|error| unread(&folder, error))? {
        let path = entry.map_err(|error| unread(&folder, error))?.path();
        if path.extension().is_some_and(|extension| extension == "scheme") {
            paths.push(path);
        }
    }
    paths.sort();
    let scheme = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).map_err(|error| unread(&path, error))?;
        parse(&text).map_err(|faults| CatalogueError::Scheme { path, faults })
    };
    paths.into_iter().map(scheme).collect()
}

/// Every generated file.
///
/// # Errors
/// [`CatalogueError::Emit`], [`CatalogueError::NoFamily`].
pub fn files(schemes: &[Scheme]) -> Result<Vec<File>, CatalogueError> {
    let mut files = families::files()?;
    files.push(ops::file(schemes)?);
    files.push(manifest::file(schemes)?);
    Ok(files)
}

/// The paths of generated files that are missing, differ, or lie in the families' folder and are
/// not generated any more.
///
/// # Errors
/// [`CatalogueError::Io`].
pub fn stale(folder: &Path, files: &[File]) -> Result<Vec<String>, CatalogueError> {
    let differs = |file: &&File| {
        std::fs::read_to_string(folder.join(&file.path)).ok().as_ref() != Some(&file.text)
    };
    let mut stale: Vec<String> = files.iter().filter(differs).map(|f| f.path.clone()).collect();
    stale.extend(left_over(folder, files)?);
    Ok(stale)
}

/// Files of the families' folder that nothing generates.
fn left_over(folder: &Path, files: &[File]) -> Result<Vec<String>, CatalogueError> {
    let path = folder.join(families::FOLDER);
    let Ok(entries) = std::fs::read_dir(&path) else { return Ok(Vec::new()) };
    let mut left = Vec::new();
    for entry in entries {
        let unread = |error| CatalogueError::Io { what: "read", path: path.clone(), error };
        let name = entry.map_err(unread)?.file_name().to_string_lossy().into_owned();
        let name = format!("{}/{name}", families::FOLDER);
        if !files.iter().any(|file| file.path == name) {
            left.push(name);
        }
    }
    left.sort();
    Ok(left)
}

/// Writes what is stale, each file whole or not at all, and removes what is left over. Returns
/// the paths that were stale.
///
/// # Errors
/// [`CatalogueError::Io`].
pub fn write(folder: &Path, files: &[File]) -> Result<Vec<String>, CatalogueError> {
    let stale = stale(folder, files)?;
    for name in &stale {
        let path = folder.join(name);
        let done = match files.iter().find(|file| file.path == *name) {
            Some(file) => whole(&path, &file.text),
            None => std::fs::remove_file(&path),
        };
        done.map_err(|error| CatalogueError::Io { what: "write", path, error })?;
    }
    Ok(stale)
}

/// Beside its place first, then renamed.
fn whole(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o644));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}
