//! What becomes of a file that lies.

use quantloom_runtime::checkpoint::{Checkpoint, Options};

/// Opens the file, finds the layer and unpacks it; the first error.
pub(crate) fn read(bytes: Vec<u8>, layer: &str) -> Result<(), String> {
    let checkpoint =
        Checkpoint::from_bytes(bytes, Options::default()).map_err(|error| error.to_string())?;
    let layer = checkpoint.layer(layer).map_err(|error| error.to_string())?;
    layer.unpack().map(|_| ()).map_err(|error| error.to_string())
}

/// The error of a file that must be rejected; it must contain one of the words.
#[track_caller]
pub(crate) fn refused(what: &str, bytes: Vec<u8>, layer: &str, words: &[&str]) {
    let error = read(bytes, layer).expect_err(what);
    assert!(words.iter().any(|word| error.contains(word)), "{what}: {error}");
    assert!(!error.contains('\n') && error.len() < 3000, "{what}: {error}");
}
