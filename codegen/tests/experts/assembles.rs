//! The vendors' compilers accept the kernels, without spills; naga accepts those in WGSL.

use quantloom_codegen::emit;
use quantloom_codegen::ir::{Kernel, verify};
use quantloom_codegen::schedule::experts::{
    CombineProblem, GateProblem, RouteProblem, SortProblem, WeighProblem, activate, combine, route,
    sort, weigh,
};
use quantloom_codegen::target::{Target, target};
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{BF16, F16, F32};
use quantloom_tests::tools::{clang, ptxas};
use rayon::prelude::*;

use super::function::GATES;

/// Kernels of layers of published sizes, and of ragged ones.
fn kernels(target: &'static Target) -> Vec<Kernel> {
    let mut all = Vec::new();
    for text in [
        "128 experts of 2048 x 768, top 8, softmax renormalised, silu",
        "256 experts of 7168 x 2048, top 8, sigmoid with bias in 4 of 8 groups renormalised times 2.5, \
         silu",
        "1024 experts of 41 x 41, top 32, sqrtsoftplus with bias, silu",
    ] {
        let ExpertLayer { routing, experts, top_k, .. } = text.parse().unwrap();
        all.push(route(&RouteProblem { target, routing, experts, top_k }));
    }
    for (experts, local, slots, chunked) in
        [(128, 128, 8, true), (1024, 700, 64, true), (8, 8, 16, false)]
    {
        let mapped = experts != local;
        all.extend(sort(&SortProblem { target, experts, local, mapped, slots, chunked }));
    }
    for (gate, (own, intermediate)) in
        GATES.into_iter().zip([(BF16, 2880), (F16, 41), (F32, 14_336)].into_iter().cycle())
    {
        all.push(activate(&GateProblem { target, gate, own, intermediate, local: 128, slots: 16 }));
    }
    for (own, output, hidden, top_k, slots) in
        [(BF16, BF16, 2880, 4, Some(8)), (F16, F32, 7168, 32, Some(64)), (F32, F32, 41, 8, None)]
    {
        let (local, weighted, shared) = (128, own != F16, own != BF16);
        let problem =
            CombineProblem { target, own, output, hidden, top_k, local, slots, weighted, shared };
        all.push(combine(&problem));
        all.push(weigh(&WeighProblem { target, own, hidden }));
    }
    all
}

/// The source of each kernel, with its name.
fn sources(name: &str) -> Vec<(String, String)> {
    let emitted = |kernel: Kernel| {
        let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
        (kernel.name.clone(), emit::source(&kernel).unwrap())
    };
    kernels(target(name).unwrap()).into_iter().map(emitted).collect()
}

/// No kernel of a target has anything to complain about.
fn all_clean(name: &str, complaint: impl Fn(&str) -> Option<String> + Sync) {
    let sources = sources(name);
    let wrong = sources.par_iter().filter_map(|(kernel, source)| {
        complaint(source).map(|complaint| format!("{kernel}: {complaint}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kernels_assemble_without_spills() {
    let Some(ptxas) = ptxas::find() else { return };
    for name in ["sm_80", "sm_90a"] {
        all_clean(name, |source| {
            let assembled = ptxas.assemble(source, name);
            (!assembled.is_clean()).then_some(assembled.report)
        });
    }
}

#[test]
fn kernels_compile_for_amd_without_spills() {
    let Some(clang) = clang::find() else { return };
    for name in ["gfx942", "gfx950"] {
        all_clean(name, |source| {
            let compiled = clang.compile(source, name);
            let used = format!(
                "{} spills, {} bytes of local memory\n{}",
                compiled.spills, compiled.scratch, compiled.report
            );
            // The prelude's number of lanes is not used by all kernels, which is a warning.
            let clean = compiled.ok && compiled.spills == 0 && compiled.scratch == 0;
            (!clean).then_some(used)
        });
    }
}

#[test]
fn kernels_are_wgsl() {
    for name in ["wgsl", "wgsl_subgroups"] {
        for (_, source) in sources(name) {
            crate::wgsl::check(&source);
        }
    }
}
