//! Products by HIP texts, run on this machine, against the reference: all that a device does but the
//! compiler's last steps, from stored tensors to y.

#![cfg(feature = "jit")]
#![allow(clippy::print_stdout, reason = "a skipped part says so")]

mod kernels;

use kernels::compiler;
use kernels::host::Host;
use kernels::products::catalogue;
use quantloom_runtime::conformance::Suite;
use quantloom_runtime::gpu::GpuDevice;
use rayon::prelude::*;

/// Schemes that together have every kind of work: decoding by shifts, tables and from planes, scales
/// and zero points of each kind, operands of x by kernels, integer and FP8 products.
const SCHEMES: [&str; 9] = [
    "ct_w4a16",
    "gptq4_v1_actorder",
    "gptq3_v1",
    "ct_mxfp4a16",
    "quark_w_mxfp6_e3m2",
    "ct_w8a8_dyn",
    "ct_w4a8",
    "fp8_block",
    "ct_nvfp4a16",
];

#[test]
fn texts_multiply() {
    let Some(clang) = compiler::find() else {
        println!("skipped: clang for AMD GPUs not found");
        return;
    };
    let schemes = catalogue();
    let cases = SCHEMES.iter().flat_map(|name| ["gfx942", "gfx950"].map(|chip| (*name, chip)));
    let cases: Vec<_> = cases.enumerate().collect();
    let wrong = cases.par_iter().filter_map(|&(number, (name, chip))| {
        let scheme = schemes.iter().find(|scheme| scheme.name == name);
        let scheme = scheme.unwrap_or_else(|| panic!("the catalogue has no {name}"));
        let device = GpuDevice::new(Host::new(&clang, chip));
        let tokens = vec![1, 17];
        // N that is no tile's, several turns of K.
        let (shapes, seeds) = (vec![(40, 384)], vec![number as u64 % 6]);
        let products = shapes.len() * tokens.len();
        let suite = Suite { shapes, tokens, seeds, every: 1 };
        match suite.run(scheme, &[&device], &|_| {}).remove(0) {
            Ok(done) if done.products == products && device.executor().kernels() > 0 => None,
            Ok(done) => Some(format!("{name} for {chip}: {done:?}")),
            Err(failure) => Some(format!("{name} for {chip}: {failure}")),
        }
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
