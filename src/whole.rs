//! Text files that are whole or absent.

use std::io::Write as _;
use std::path::Path;

/// Writes beside the target and renames, so that nothing half-written stays.
pub(crate) fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        let what = "what is there is not an ordinary file";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o644));
    }
    let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}
