//! Whole expert layers on simulated GPUs: within derived bounds of the reference, with every routing.

use quantloom::codegen::jit::Simulator;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tools::conformance::experts::ExpertSuite;

/// Targets of each kind of kernel source.
const TARGETS: [&str; 5] = ["sm_80", "sm_90a", "gfx942", "gfx950", "wgsl"];

fn conforms(suite: &ExpertSuite, schemes: &[&str]) {
    let devices = TARGETS.map(|target| GpuDevice::new(Simulator::new(target).unwrap()));
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    for name in schemes {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let results = suite.run(scheme, name, &backends, &|_| {});
        for (target, result) in TARGETS.into_iter().zip(results) {
            let summary = result.unwrap_or_else(|failure| panic!("{target}: {failure}"));
            assert!(summary.calls > 0, "{name} on {target}: {summary:?}");
        }
    }
}

#[test]
fn a_scheme_of_each_kind_conforms() {
    conforms(&ExpertSuite { every: 8, ..ExpertSuite::default() }, &["ct_w4a16", "ct_w4a8"]);
}
