//! Whole expert layers on simulated GPUs: within derived bounds of the reference, with every routing.

use quantloom::codegen::jit::Simulator;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::sweep::{self, Share};
use quantloom_tools::conformance::experts::{ExpertFailure, ExpertSuite};
use rayon::prelude::*;

/// Targets of each kind of kernel source.
const TARGETS: [&str; 5] = ["sm_80", "sm_90a", "gfx942", "gfx950", "wgsl"];

/// A scheme of each kind.
const KINDS: [&str; 6] =
    ["ct_w4a16", "ct_w4a16_asym", "ct_w4a8", "ct_fp8_block", "ct_nvfp4", "gpt_oss_mxfp4_down"];

/// Codes with zero points and without, activations that are quantised by token, by group and with a
/// static scale, a bias; where more is asked for, the catalogue. A case is a scheme on a target. What is
/// not scheduled is printed.
#[test]
#[expect(clippy::print_stdout, reason = "what is not scheduled is no failure")]
fn layers_conform() {
    let every = if sweep::is_asked() { 24 } else { 96 };
    let suite = ExpertSuite { every, ..ExpertSuite::default() };
    let all = quantloom_kernels::catalogue().iter().filter_map(quantloom_kernels::name_of);
    let schemes = if sweep::is_asked() { all.collect() } else { KINDS.to_vec() };
    let cases =
        TARGETS.into_iter().flat_map(|target| schemes.iter().map(move |name| (target, *name)));
    let wrong: Vec<String> = Share::new(6, 30)
        .of(cases)
        .into_par_iter()
        .filter_map(|(target, name)| {
            let device = GpuDevice::new(Simulator::new(target).unwrap());
            let scheme = quantloom_kernels::scheme(name).unwrap();
            let backends: [&dyn Backend; 1] = [&device];
            match suite.run(scheme, name, &backends, &|_| {}).remove(0) {
                Ok(summary) => {
                    for (_, why) in &summary.not_scheduled {
                        println!("{name} on {target}: {why}");
                    }
                    (summary.calls == 0).then(|| format!("{name} on {target}: no call"))
                }
                // A scheme without products has no layers either.
                Err(ExpertFailure::NotScheduled { why, .. }) => {
                    println!("{name} on {target}: {why}");
                    None
                }
                Err(failure) => Some(format!("{target}: {failure}")),
            }
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
