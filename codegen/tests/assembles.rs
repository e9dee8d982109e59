//! Every operation, printed for every NVIDIA target, goes through the vendor's assembler.

#![allow(clippy::print_stdout, reason = "a skipped part says so")]

mod kernels;

use kernels::assembler;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::verify;

#[test]
fn every_operation_assembles() {
    let ptxas = assembler::find();
    if ptxas.is_none() {
        println!("skipped: ptxas not found");
    }
    for target in ["sm_80", "sm_89", "sm_90a"] {
        for kernel in kernels::all(target) {
            let name = kernel.name.clone();
            let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{target}: {refusals}"));
            let text = ptx::emit(&kernel).unwrap();
            assert_eq!(text, ptx::emit(&kernel).unwrap(), "{name} for {target} is emitted twice");
            let Some(ptxas) = &ptxas else { continue };
            let assembled = assembler::assemble(ptxas, &text, target);
            assert!(assembled.is_clean(), "{name} for {target}:\n{}\n{text}", assembled.report);
        }
    }
}
