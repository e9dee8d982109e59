//! Drivers without a GPU, as libraries that a process loads in place of the vendors': `runtime/tests/drivers/fake`.

use std::path::Path;
use std::process::{Command, id};

/// Compiles a driver to a library: `source` is its file there, with these flags of its configuration. The library is there at once and
/// whole, so that other processes may load it meanwhile.
///
/// # Panics
/// If the compiler does not run, or refuses.
pub fn compile(source: &str, flags: &[&str], library: &Path) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/tests/drivers/fake");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let own = library.with_extension(id().to_string());
    let mut command = Command::new(&rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-o"]);
    command.arg(&own).arg(Path::new(folder).join(source));
    command.args(flags.iter().flat_map(|flag| ["--cfg", flag]));
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{} does not run: {error}", rustc.display()));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    std::fs::rename(own, library).expect("the library has a place");
}
