//! What rustc shows of the errors of `scheme!`: that it underlines the places that the expansion names
//! (`codegen/tests/mistakes`), and that the rest of a user's file is checked all the same. After a change
//! of messages: `TRYBUILD=overwrite cargo test --test tests ui -- --ignored`, and
//! read the difference.

use std::process::Command;

use quantloom_tests::tools::skip;

/// The toolchain whose messages the files hold.
const PINNED: &str = "rustc 1.95.";

#[test]
#[ignore = "it builds the library once more, by a cargo of its own; .ci/run does"]
fn rustc_underlines_what_the_expansion_says() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).into());
    if !version.starts_with(PINNED) {
        return skip(&format!("the messages are those of {PINNED}x, here is {}", version.trim()));
    }
    trybuild::TestCases::new().compile_fail("ui/fail/*.rs");
}
