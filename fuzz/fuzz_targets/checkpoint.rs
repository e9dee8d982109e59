//! `cargo +nightly fuzz run checkpoint`: any bytes as a safetensors file.
#![no_main]

#[path = "../src/drive.rs"]
#[allow(dead_code)]
mod drive;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drive::checkpoint(bytes));
