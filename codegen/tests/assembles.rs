//! The vendors' compilers accept every operation, printed for every GPU target.

use quantloom_codegen::emit::{hip, ptx};
use quantloom_codegen::ir::verify;
use quantloom_tests::tools::{clang, ptxas};

use crate::kernels;

/// NVIDIA's targets.
const NVIDIA: [&str; 8] =
    ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120", "sm_120a", "sm_121a"];

#[test]
fn every_operation_assembles() {
    let ptxas = ptxas::find();
    for target in NVIDIA {
        for kernel in kernels::all(target) {
            let name = kernel.name.clone();
            let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{target}: {refusals}"));
            let text = ptx::emit(&kernel).unwrap();
            assert_eq!(text, ptx::emit(&kernel).unwrap(), "{name} for {target} is emitted twice");
            let Some(ptxas) = ptxas else { continue };
            let assembled = ptxas.assemble(&text, target);
            assert!(assembled.is_clean(), "{name} for {target}:\n{}\n{text}", assembled.report);
        }
    }
}

#[test]
fn every_operation_compiles_for_amd() {
    let clang = clang::find();
    for target in ["gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201"] {
        for kernel in kernels::all(target) {
            let name = kernel.name.clone();
            let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{target}: {refusals}"));
            let text = hip::emit(&kernel).unwrap();
            assert_eq!(text, hip::emit(&kernel).unwrap(), "{name} for {target} is emitted twice");
            let Some(clang) = clang else { continue };
            let compiled = clang.compile(&text, target);
            assert!(compiled.is_clean(), "{name} for {target}: {compiled:#?}\n{text}");
            assert_eq!(compiled.shared, kernel.shared_map().bytes, "{name} for {target}");
        }
    }
}
