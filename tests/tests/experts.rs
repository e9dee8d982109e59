//! Whole expert layers on the CPU: every scheme of the catalogue within derived bounds, the same bits on
//! any number of threads, and the edges of a call.

use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_tools::conformance::experts::ExpertSuite;

/// The instruction sets of this machine.
fn devices() -> Vec<CpuDevice> {
    Isa::present()
        .map(|isa| CpuDevice::of(isa).unwrap().with_decoders(quantloom_kernels::DECODERS))
        .collect()
}

fn conforms(suite: &ExpertSuite, schemes: &[&str]) {
    let devices = devices();
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    for name in schemes {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        for result in suite.run(scheme, name, &backends, &|_| {}) {
            let summary = result.unwrap_or_else(|failure| panic!("{failure}"));
            assert!(summary.calls > 0 && summary.not_scheduled.is_empty(), "{name}: {summary:?}");
        }
    }
}

#[test]
fn a_scheme_of_each_kind_conforms() {
    let suite = ExpertSuite { every: 4, ..ExpertSuite::default() };
    conforms(&suite, &["ct_w4a16", "arm_w4a8_g32"]);
}
