//! The generated files of `quantloom-kernels`.
//!
//! In: the folder's `schemes/*.scheme`. Out: every file generated from them, as text: the decoders
//! of the code types (`decoders`), the catalogue's schemes as types (`ops`) and the MANIFEST
//! (`manifest`). `quantloom-catalogue` writes these files or lists the stale ones.

mod decoders;
mod hash;
mod manifest;
mod ops;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use quantloom_dsl::{Diagnostics, Scheme, parse};

use crate::emit::rust::RustEmitError;

/// The command that regenerates the files; part of their headers.
pub const REGENERATE: &str =
    "cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write";

/// A generated file: its path in the crate's folder, and its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Relative to the folder.
    pub path: String,
    /// Its contents.
    pub text: String,
}

/// Why files cannot be generated, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// A file or folder cannot be read or written.
    #[error("cannot {what} {}: {error}", path.display())]
    Io {
        /// `read` or `write`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// An invalid scheme.
    #[error("{} is not a valid scheme\n{faults}", path.display())]
    Scheme {
        /// The file.
        path: PathBuf,
        /// Its errors.
        faults: Diagnostics,
    },
    /// A code type without a decoder.
    #[error(transparent)]
    Emit(#[from] RustEmitError),
    /// A code type without a decoder in the list.
    #[error("{scheme}: no decoder for {code}; add it to `codegen::catalogue::decoders`")]
    NoDecoder {
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
/// [`CatalogueError::Emit`], [`CatalogueError::NoDecoder`].
pub fn files(schemes: &[Scheme]) -> Result<Vec<GeneratedFile>, CatalogueError> {
    let mut files = decoders::files()?;
    files.push(ops::file(schemes)?);
    files.push(manifest::file(schemes)?);
    Ok(files)
}

/// The paths of files that are missing or differ, and of files in the decoders' folder that are no
/// longer generated.
///
/// # Errors
/// [`CatalogueError::Io`].
pub fn stale(folder: &Path, files: &[GeneratedFile]) -> Result<Vec<String>, CatalogueError> {
    let differs = |file: &&GeneratedFile| {
        std::fs::read_to_string(folder.join(&file.path)).ok().as_ref() != Some(&file.text)
    };
    let mut stale: Vec<String> = files.iter().filter(differs).map(|f| f.path.clone()).collect();
    stale.extend(orphans(folder, files)?);
    Ok(stale)
}

/// Files in the decoders' folder that are not generated.
fn orphans(folder: &Path, files: &[GeneratedFile]) -> Result<Vec<String>, CatalogueError> {
    let path = folder.join(decoders::FOLDER);
    let Ok(entries) = std::fs::read_dir(&path) else { return Ok(Vec::new()) };
    let mut orphans = Vec::new();
    for entry in entries {
        let unread = |error| CatalogueError::Io { what: "read", path: path.clone(), error };
        let name = entry.map_err(unread)?.file_name().to_string_lossy().into_owned();
        let name = format!("{}/{name}", decoders::FOLDER);
        if !files.iter().any(|file| file.path == name) {
            orphans.push(name);
        }
    }
    orphans.sort();
    Ok(orphans)
}

/// Writes the stale files, each atomically, and removes files that are no longer generated. Returns
/// the paths of the stale files.
///
/// # Errors
/// [`CatalogueError::Io`].
pub fn write(folder: &Path, files: &[GeneratedFile]) -> Result<Vec<String>, CatalogueError> {
    let stale = stale(folder, files)?;
    for name in &stale {
        let path = folder.join(name);
        let done = match files.iter().find(|file| file.path == *name) {
            Some(file) => write_atomically(&path, &file.text),
            None => std::fs::remove_file(&path),
        };
        done.map_err(|error| CatalogueError::Io { what: "write", path, error })?;
    }
    Ok(stale)
}

/// Writes a temporary file in the same folder, then renames it.
fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
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
