//! The Arm half of the CPU path, cross-compiled and run under qemu by `.ci/arm`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

#[test]
fn the_neon_path_is_right_under_qemu() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(root.join(".ci/arm")).arg("test").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for line in said.lines().filter(|line| line.starts_with("skipped: ")) {
        // Not `println!`, whose output is hidden for a test that passes.
        writeln!(std::io::stderr(), "{line}").unwrap();
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "again: .ci/arm test\n{said}\n{errors}");
}
