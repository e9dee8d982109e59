//! Runs of the command, as a shell starts it.

use std::ffi::OsStr;
use std::process::Command;

/// The command, which cargo built before this test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_quantloom");

/// What a run of the command left.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The command line, for messages.
    pub(crate) line: String,
    /// Exit status; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Ran {
    /// Itself, if it ended with status 0.
    pub(crate) fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{}\n{}{}", self.line, self.out, self.err);
        self
    }

    /// Its standard output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{}: {error}", self.line))
    }
}

/// Runs the built command.
pub(crate) fn quantloom<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    quantloom_with(&[], arguments)
}

/// Runs the built command with environment variables, NAME and value.
pub(crate) fn quantloom_with<S: AsRef<OsStr>>(variables: &[(&str, &str)], arguments: &[S]) -> Ran {
    let output = Command::new(BINARY)
        .args(arguments)
        // Where it is not set, Mesa's Vulkan driver complains on the standard error.
        .env("XDG_RUNTIME_DIR", std::env::temp_dir())
        .envs(variables.iter().copied())
        .output()
        .unwrap_or_else(|error| panic!("{BINARY} does not start: {error}"));
    let shown = arguments.iter().map(|a| a.as_ref().to_string_lossy()).collect::<Vec<_>>();
    Ran {
        line: format!("quantloom {}", shown.join(" ")),
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
