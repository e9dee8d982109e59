//! Warnings of the libraries on stderr, each once: a command prepares many weights, and says of all of them what it
//! says of one.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use crate::commands::eprint_line;

/// Shows warnings from now on.
pub(crate) fn show() {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(|| Once)
        .with_ansi(false)
        .with_level(false)
        .with_target(false)
        .without_time()
        .init();
}

/// Takes a warning a write, and prints those that it has not taken before.
struct Once;

impl Write for Once {
    fn write(&mut self, warning: &[u8]) -> io::Result<usize> {
        static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
        let text = String::from_utf8_lossy(warning).trim().to_owned();
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        if said.get_or_insert_default().insert(text.clone()) {
            eprint_line(&format!("quantloom: warning: {text}"));
        }
        Ok(warning.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
