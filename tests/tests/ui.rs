//! What an author of a scheme sees: for each file of `ui/fail`, the compiler's errors to the
//! letter. After a change of messages: `TRYBUILD=overwrite cargo test -p quantloom-tests --test ui`,
//! and read the difference.

use std::process::Command;

/// The toolchain whose messages the files hold.
const PINNED: &str = "rustc 1.95.";

#[test]
#[expect(clippy::print_stderr, reason = "what is skipped is said")]
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
