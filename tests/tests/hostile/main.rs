//! Hostile input: files that are truncated, have flipped bits, or contain false statements. Each
//! gives one error that names the problem; none panics, allocates by an unchecked header, or leaves
//! output behind.
//!
//! The modules have tables of false statements; `fuzz/` searches for more, and its findings are
//! replayed here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;

use quantloom_tests::Random;
use quantloom_tests::file::File;
use quantloom_tests::sweep;
use refused::{read, refused};

mod container;
mod convert;
mod directories;
#[path = "../../../fuzz/src/drive.rs"]
mod drive;
mod experts;
mod gguf;
mod lies;
mod refused;

/// The files are below 400 KiB: no allocation for them needs more.
const MOST_BYTES: usize = 32 << 20;

/// An allocator that fails for more than [`MOST_BYTES`] at once, which ends the test.
struct Bounded;

// SAFETY: every call goes to the system's allocator unchanged, or fails as an allocator may.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

/// One golden file per checkpoint format, and one of its quantised layers.
const FAMILIES: &[(&str, &str)] = &[
    ("ct_w4a16", "layer"),
    ("ct_w4a16_asym", "layer"),
    ("ct_w3a16_aligned", "layer"),
    ("ct_w4a8", "layer"),
    ("ct_w8a8", "layer"),
    ("ct_fp8", "layer"),
    ("ct_fp8_block", "layer"),
    ("ct_nvfp4", "layer"),
    ("ct_mxfp4", "layer"),
    ("ct_mxfp6a8", "layer"),
    ("gptq3", "layer"),
    ("gptq4_v1_actorder", "layer"),
    ("awq4", "layer"),
    ("modelopt_nvfp4", "layer"),
    ("quark_w_mxfp4", "layer"),
    ("quark_w_mxfp6_e3m2", "layer"),
    ("quark_w8a8_int8_channel", "layer"),
    ("gpt_oss_mxfp4", "experts.gate_up_proj"),
];
#[test]
fn golden_files_are_read() {
    for (name, layer) in FAMILIES {
        assert_eq!(read(File::golden(name).bytes(), layer), Ok(()), "{name}");
    }
}

#[test]
fn truncated_files() {
    for (name, layer) in FAMILIES {
        let bytes = File::golden(name).bytes();
        let lengths = (0..bytes.len()).filter(|at| *at < 600 || at % 331 == 0);
        for length in lengths.chain([bytes.len() - 1]) {
            refused(name, bytes[..length].to_vec(), layer, &["not a valid safetensors file"]);
        }
        let longer = [&bytes[..], &[0]].concat();
        refused(name, longer, layer, &["not a valid safetensors file"]);
    }
}

/// Three of four flips are in the header, where they matter most.
#[test]
fn flipped_bits() {
    flip_bits(if sweep::is_asked() { 2000 } else { 150 });
}

/// So many files of each family with one bit changed, most of them in the header.
fn flip_bits(flips: u64) {
    for (number, (name, _)) in (0..).zip(FAMILIES) {
        let mut bytes = File::golden(name).bytes();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let mut random = Random(number);
        for flip in 0..flips {
            let range = if flip % 4 == 0 { bytes.len() as u64 } else { header };
            let (at, bit) = (random.below(range) as usize, 1 << random.below(8));
            bytes[at] ^= bit;
            drive::checkpoint(&bytes);
            bytes[at] ^= bit;
        }
    }
}

/// The corpus of `fuzz/`, and every input that once failed there, by fuzz target.
#[test]
fn the_fuzzers_corpus() {
    let fuzz = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"));
    type Drive = fn(&[u8]);
    let targets: [(_, Drive); 4] = [
        ("scheme_text", drive::scheme_text),
        ("checkpoint", drive::checkpoint),
        ("gguf", drive::gguf),
        ("expert_layer", drive::expert_layer),
    ];
    for (target, drive) in targets {
        let mut replayed = 0;
        for folder in [fuzz.join("corpus"), fuzz.join("regressions")] {
            let Ok(entries) = std::fs::read_dir(folder.join(target)) else { continue };
            for entry in entries {
                drive(&std::fs::read(entry.unwrap().path()).unwrap());
                replayed += 1;
            }
        }
        assert!(replayed >= 10, "{target}: {replayed} files; is fuzz/corpus there?");
    }
}
