//! The messages that an author of a scheme sees: for each file of `ui/fail`, the exact compiler
//! errors. After a change of messages run `TRYBUILD=overwrite cargo test -p quantloom-tests --test
//! ui`, and check the difference.

use std::process::Command;

/// The toolchain whose messages are in the files.
const PINNED: &str = "rustc 1.95.";

#[test]
#[expect(clippy::print_stderr, reason = "reports the skipped test")]
fn each_mistake_is_underlined() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).into());
    if !version.starts_with(PINNED) {
        eprintln!("skipped: the messages are those of {PINNED}x, here is {}", version.trim());
        return;
    }
    trybuild::TestCases::new().compile_fail("ui/fail/*.rs");
}
