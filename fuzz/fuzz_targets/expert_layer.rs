//! `cargo +nightly fuzz run expert_layer`: any bytes as the text of an expert layer, or as a file with one.
#![no_main]

#[path = "../src/drive.rs"]
#[allow(dead_code)]
mod drive;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drive::expert_layer(bytes));
