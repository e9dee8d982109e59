//! Compiled images on disk: a kernel is compiled once per machine instead of once per process.
//!
//! In: an [`ImageKey`]. Out: its compiled image, if the cache has an intact one. The contract:
//! - the name of an entry is the SHA-256 of everything that determines the image: the kernel
//!   source, the device's architecture, the driver's version; entries are never stale, only unused;
//! - an entry is written to a temporary file and renamed, so that no process reads half of one, and
//!   has a digest, so that a damaged entry counts as absent and is replaced;
//! - directory and images belong to this user, and nobody else may write them (mode 0700), since an
//!   image is code that is run. Files of other users are neither read nor written, not even by
//!   root;
//! - the directory has a size limit, and the least recently used entries are removed first;
//! - no error in the cache makes a launch fail: errors become `tracing` events.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

/// Everything that determines an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageKey<'a> {
    /// The kernel source.
    pub text: &'a str,
    /// The device's architecture: `sm_90`.
    pub architecture: &'a str,
    /// The driver's version, 1000 * major + 10 * minor.
    pub driver_version: u32,
}

impl ImageKey<'_> {
    /// Changed when the format of entries changes, so that older entries are not read.
    const FORM: &'static str = "quantloom image 1";

    /// The entry's name.
    fn name(&self) -> String {
        let mut digest = Sha256::new();
        // Each part is preceded by its length, so that different keys have different bytes.
        let version = self.driver_version.to_string();
        for part in [Self::FORM, self.architecture, &version, self.text] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let digest = digest.finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + SUFFIX
    }
}

const SUFFIX: &str = ".image";
/// The most bytes in the directory: some thousand kernels.
const CAP: u64 = 256 << 20;
/// Temporary files older than this were left by a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Bytes of the digest before the image.
const DIGEST: usize = 32;

/// The environment variable: a directory, or `off`.
pub const VARIABLE: &str = "QUANTLOOM_CACHE";

/// A directory of compiled images, or none.
#[derive(Clone, Debug)]
pub struct ImageCache {
    directory: Option<PathBuf>,
    cap: u64,
}

impl ImageCache {
    /// The user's own cache: where [`VARIABLE`] says, else in the user's cache directory.
    pub fn from_environment() -> Self {
        Self::from_variables(&|name| env::var_os(name), env::home_dir())
    }

    /// As [`Self::from_environment`], with the variables and the home directory given.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
    ) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let root = match given(VARIABLE) {
            Some(value) if value == "off" => None,
            Some(value) => Some(PathBuf::from(value)),
            None => {
                // The XDG base directory specification ignores a path that is not absolute.
                let xdg = given("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
                let local = given("LOCALAPPDATA").map(PathBuf::from);
                let user = xdg.or(local).or_else(|| home.map(|home| home.join(".cache")));
                user.map(|user| user.join("quantloom"))
            }
        };
        Self { directory: root.map(|root| root.join("images")), cap: CAP }
    }

    /// A cache that is off.
    pub fn off() -> Self {
        Self { directory: None, cap: CAP }
    }

    /// A cache in the subdirectory `images` of a directory, with at most `cap` bytes.
    pub fn in_directory(root: &Path, cap: u64) -> Self {
        Self { directory: Some(root.join("images")), cap }
    }

    /// The directory of the images; `None` if the cache is off.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The cached image of a key.
    pub fn get(&self, key: &ImageKey<'_>) -> Option<Vec<u8>> {
        let directory = self.directory.as_deref()?;
        let path = directory.join(key.name());
        match read(directory, &path) {
            Ok(Some(image)) => Some(image),
            Ok(None) => {
                tracing::warn!(path = %path.display(), "a cached image is damaged and not used");
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a cached image cannot be read");
                None
            }
        }
    }

    /// Caches an image.
    pub fn put(&self, key: &ImageKey<'_>, image: &[u8]) {
        let Some(directory) = self.directory.as_deref() else { return };
        if image.len() as u64 > self.cap {
            tracing::debug!(bytes = image.len(), "an image is larger than the cache");
            return;
        }
        let kept = write(directory, &key.name(), image).and_then(|()| evict(directory, self.cap));
        if let Err(error) = kept {
            let directory = directory.display();
            tracing::warn!(%directory, %error, "an image cannot be cached");
        }
    }

    /// Removes the image of a key, for example because the driver does not load it.
    pub fn forget(&self, key: &ImageKey<'_>) {
        let Some(directory) = self.directory.as_deref() else { return };
        let removed = own(directory).and_then(|()| fs::remove_file(directory.join(key.name())));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "a cached image cannot be removed");
            }
            _ => {}
        }
    }
}

/// The image of an entry, `None` if it is damaged. Reading an entry updates its time of use.
fn read(directory: &Path, path: &Path) -> io::Result<Option<Vec<u8>>> {
    own(directory)?;
    let mut file = File::open(path)?;
    // Of the open file, which no other file can replace.
    private(&file.metadata()?, path)?;
    let mut entry = Vec::new();
    file.read_to_end(&mut entry)?;
    let Some((digest, image)) = entry.split_at_checked(DIGEST) else { return Ok(None) };
    if Sha256::digest(image).as_slice() != digest {
        return Ok(None);
    }
    if let Err(error) = file.set_modified(SystemTime::now()) {
        tracing::debug!(%error, "the time of use of a cached image cannot be updated");
    }
    Ok(Some(image.to_vec()))
}

fn write(directory: &Path, name: &str, image: &[u8]) -> io::Result<()> {
    create(directory)?;
    own(directory)?;
    let mut file = tempfile::Builder::new().prefix("writing-").tempfile_in(directory)?;
    file.write_all(&Sha256::digest(image))?;
    file.write_all(image)?;
    file.persist(directory.join(name)).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(unix)]
fn create(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(not(unix))]
fn create(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)
}

/// Checks that the directory belongs to this user and that nobody else can write to it.
#[cfg(unix)]
fn own(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let facts = fs::metadata(directory)?;
    ours(&facts, directory)?;
    if facts.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
}

#[cfg(not(unix))]
fn own(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Rejects files of another user: that user controls their contents, and root could read them
/// anyway.
#[cfg(unix)]
fn ours(facts: &fs::Metadata, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let (owner, user) = (facts.uid(), rustix::process::geteuid().as_raw());
    if owner == user {
        return Ok(());
    }
    let why = format!("{} belongs to user {owner}, this is user {user}", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Rejects an image that another user has written or may write.
#[cfg(unix)]
fn private(facts: &fs::Metadata, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    ours(facts, path)?;
    if facts.permissions().mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!("{} may be written by others", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(not(unix))]
fn private(_: &fs::Metadata, _: &Path) -> io::Result<()> {
    Ok(())
}

/// Removes the least recently used entries beyond the limit, and temporary files of processes that
/// died.
fn evict(directory: &Path, cap: u64) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Another process may have removed it meanwhile.
        let Ok(facts) = entry.metadata() else { continue };
        let used = facts.modified()?;
        let abandoned = used.elapsed().is_ok_and(|age| age > ABANDONED);
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == &SUFFIX[1..]) {
            entries.push((used, path, facts.len()));
        } else if abandoned {
            remove(&path)?;
        }
    }
    entries.sort();
    let mut total: u64 = entries.iter().map(|(_, _, bytes)| bytes).sum();
    for (_, path, bytes) in entries {
        if total <= cap {
            break;
        }
        remove(&path)?;
        total -= bytes;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
