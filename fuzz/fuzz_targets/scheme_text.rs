//! `cargo +nightly fuzz run scheme_text`: any text as a scheme.
#![no_main]

#[path = "../src/drive.rs"]
#[allow(dead_code)]
mod drive;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drive::scheme_text(bytes));
