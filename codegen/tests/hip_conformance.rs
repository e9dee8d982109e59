//! Products by HIP texts, run on this machine, against the reference: all that a device does but the
//! compiler's last steps, from stored tensors to y.

use crate::kernels::host::Host;
use crate::kernels::products::catalogue;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::clang;
use quantloom_tools::conformance::Suite;
use rayon::prelude::*;

/// Schemes that together have every kind of work: decoding by shifts, tables and from planes, scales
/// and zero points of each kind, operands of x by kernels, integer and FP8 products of both forms,
/// products that scale their operands.
const SCHEMES: [(&str, &str); 22] = [
    ("ct_w4a16", "gfx942"),
    ("gptq4_v1_actorder", "gfx950"),
    ("gptq3_v1", "gfx942"),
    ("ct_mxfp4a16", "gfx950"),
    ("quark_w_mxfp6_e3m2", "gfx942"),
    ("ct_w8a8", "gfx950"),
    ("ct_w4a8", "gfx942"),
    ("fp8_block", "gfx950"),
    ("fp8_fnuz_block", "gfx942"),
    ("ct_fp8_dynamic", "gfx942"),
    ("ct_mxfp4", "gfx950"),
    ("ct_mxfp6a8", "gfx950"),
    ("quark_w_mxfp4_a_mxfp6_e3m2", "gfx950"),
    ("ct_w4a16", "gfx1100"),
    ("gptq3_v1", "gfx1151"),
    ("ct_w4a8", "gfx1100"),
    ("ct_mxfp4a16", "gfx1201"),
    ("ct_w8a8", "gfx1201"),
    ("fp8_block", "gfx1201"),
    ("ct_fp8_dynamic", "gfx1200"),
    ("ct_w4a4", "gfx1100"),
    ("ct_w4a4", "gfx1201"),
];

/// Schemes of the table by the texts of the compiler.
#[test]
fn texts_multiply() {
    let share = Share::new(12, 8);
    let Some(clang) = clang::find() else { return };
    let schemes = catalogue();
    let wrong = SCHEMES
        .par_iter()
        .enumerate()
        .filter(|(number, _)| share.takes(*number))
        .filter_map(|(number, &(name, chip))| {
            let scheme = schemes.iter().find(|scheme| scheme.name == name);
            let scheme = scheme.unwrap_or_else(|| panic!("the catalogue has no {name}"));
            let device = GpuDevice::new(Host::new(clang, chip));
            let tokens = vec![1, 17];
            // N that is no tile's, several k-tiles.
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
