//! Programs of others that tests run: vendors' assemblers and compilers. A machine may lack them; CI
//! may not. What they make of a text is kept, so that an unchanged text starts no process.

use std::io::Write as _;

pub mod clang;
mod kept;
pub mod ptxas;

/// Says that a part of a test is left out, and why. Under CI, which installs every tool, nothing may be.
///
/// # Panics
/// If the environment variable `CI` is set.
pub fn skip(why: &str) {
    let ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(!ci, "{why}; .ci/run installs what the tests need, and CI leaves nothing out");
    // Not `eprintln!`: the output of a test that passes is not shown. Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}
