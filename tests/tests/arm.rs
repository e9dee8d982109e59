//! The Arm half of the CPU path, cross-compiled and run under qemu by `.ci/arm`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Whether a program of this name is in the search path.
fn found(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

#[test]
fn the_neon_path_is_right_under_qemu() {
    if !found("qemu-aarch64") {
        // Not `println!`: of a test that passes, that would not be shown.
        writeln!(std::io::stderr(), "skipped: qemu-aarch64 not found").unwrap();
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(root.join(".ci/arm")).arg("test").output().unwrap();
    assert!(
        output.status.success(),
        "again: .ci/arm test\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
