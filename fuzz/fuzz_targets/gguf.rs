//! `cargo +nightly fuzz run gguf`: any bytes as a GGUF file.
#![no_main]

#[path = "../src/drive.rs"]
#[allow(dead_code)]
mod drive;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drive::gguf(bytes));
