//! Compiled images on disk, so that a kernel is compiled once a machine and not once a process.
//!
//! In: an [`ImageKey`]. Out: the image that was compiled for it, if it is there and whole. The
//! contract:
//! - an entry's name is the SHA-256 of all that decides the image: the text, the device's
//!   architecture, the driver's version; nothing is ever out of date, only unused;
//! - an entry is written beside its place and renamed, so that no process sees half of one, and
//!   carries a digest, so that a damaged one is taken for absent and replaced;
//! - directory and images are this user's, whom nobody else can write for (mode 0700): who can write
//!   an image there runs code. What is another user's is neither read nor written, by root either;
//! - the directory has a size cap, and what was not used for longest goes first;
//! - no failure in here ever fails a launch: it becomes a `tracing` event.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

/// All that decides an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageKey<'a> {
    /// The kernel's text.
    pub text: &'a str,
    /// The device's architecture: `sm_90`.
    pub architecture: &'a str,
    /// The driver's version, 1000 * major + 10 * minor.
    pub driver_version: u32,
}

impl ImageKey<'_> {
    /// Raised when an entry's form changes, so that older ones are not read.
    const FORM: &'static str = "quantloom image 1";

    /// The entry's name.
    fn name(&self) -> String {
        let mut digest = Sha256::new();
        // Each part with its length, so that no two keys have the same bytes.
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
/// Bytes that the directory may hold: some thousand kernels.
const CAP: u64 = 256 << 20;
/// A file that is being written is younger than this.
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

    /// No cache.
    pub fn off() -> Self {
        Self { directory: None, cap: CAP }
    }

    /// A cache in `images` of a directory, which holds at most `cap` bytes.
    pub fn in_directory(root: &Path, cap: u64) -> Self {
        Self { directory: Some(root.join("images")), cap }
    }

    /// Where the images lie; `None` if the cache is off.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The image that was kept for a key.
    pub fn get(&self, key: &ImageKey<'_>) -> Option<Vec<u8>> {
        let directory = self.directory.as_deref()?;
        let path = directory.join(key.name());
        match read(directory, &path) {
            Ok(Some(image)) => Some(image),
            Ok(None) => {
                tracing::warn!(path = %path.display(), "a kept image is damaged and not used");
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a kept image cannot be read");
                None
            }
        }
    }

    /// Keeps an image.
    pub fn put(&self, key: &ImageKey<'_>, image: &[u8]) {
        let Some(directory) = self.directory.as_deref() else { return };
        if image.len() as u64 > self.cap {
            tracing::debug!(bytes = image.len(), "an image is larger than the cache");
            return;
        }
        let kept = write(directory, &key.name(), image).and_then(|()| evict(directory, self.cap));
        if let Err(error) = kept {
            let directory = directory.display();
            tracing::warn!(%directory, %error, "an image cannot be kept");
        }
    }

    /// Forgets what was kept for a key, as where the driver does not load it.
    pub fn forget(&self, key: &ImageKey<'_>) {
        let Some(directory) = self.directory.as_deref() else { return };
        let removed = own(directory).and_then(|()| fs::remove_file(directory.join(key.name())));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "a kept image cannot be removed");
            }
            _ => {}
        }
    }
}

/// The image of an entry, `None` if it is damaged. Reading it makes it the youngest.
fn read(directory: &Path, path: &Path) -> io::Result<Option<Vec<u8>>> {
    own(directory)?;
    let mut file = File::open(path)?;
    // Of the open file, so that no other takes its place meanwhile.
    private(&file.metadata()?, path)?;
    let mut entry = Vec::new();
    file.read_to_end(&mut entry)?;
    let Some((digest, image)) = entry.split_at_checked(DIGEST) else { return Ok(None) };
    if Sha256::digest(image).as_slice() != digest {
        return Ok(None);
    }
    if let Err(error) = file.set_modified(SystemTime::now()) {
        tracing::debug!(%error, "the use of a kept image cannot be noted");
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

/// Makes sure that the directory is this user's and that nobody else can put an image there.
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

/// Refuses what belongs to another user: to its owner it is no secret, and root may read it all the
/// same.
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

/// Refuses an image that another user has written or may write.
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

/// Removes what was not used for longest until the rest fits, and what a process that died left.
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
