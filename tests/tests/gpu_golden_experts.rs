//! Expert layers of golden files on simulated GPUs: what their own software computed.

use quantloom::codegen::jit::Simulator;
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::sweep::Share;
use quantloom_tests::{golden, golden_file};
use quantloom_tools::check::{Subject, Verdict, check};
use rayon::prelude::*;

/// Checks a file on a target: everything is computed, and passes.
fn passes(target: &str, file: &str) {
    let checkpoint = Checkpoint::open_with(golden_file(file), Options::default()).unwrap();
    let device = GpuDevice::new(Simulator::new(target).unwrap());
    let findings = check(&checkpoint, &device);
    for finding in &findings {
        assert_eq!(finding.verdict, Verdict::Pass, "{file} on {target}: {finding:?}");
    }
    let quantised = checkpoint.expert_layers().all(|(name, _)| {
        checkpoint.expert_layer(&name).is_ok_and(|experts| experts.schemes().is_some())
    });
    let products = findings.iter().filter(|finding| finding.subject == Subject::Product).count();
    assert_eq!(products > 0, quantised, "{file} on {target}: {findings:?}");
}

/// A static scale of each expert, an order of columns of each matrix, a result of shared experts.
#[test]
fn golden_layers_of_each_kind() {
    let files = ["moe_ct_nvfp4", "moe_gptq4_actorder", "moe_qwen2_shared"];
    files.par_iter().for_each(|file| passes("sm_90a", file));
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn every_golden_layer_on_every_target() {
    let files = std::fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("moe_") || name == "gpt_oss_mxfp4")
        .collect();
    assert!(files.len() > 15, "{files:?}");
    let targets = ["sm_80", "sm_90a", "gfx942", "gfx950", "wgsl"];
    let all: Vec<_> =
        targets.iter().flat_map(|target| files.iter().map(move |file| (*target, file))).collect();
    Share::new(1, 6).of(all).par_iter().for_each(|(target, file)| passes(target, file));
}
