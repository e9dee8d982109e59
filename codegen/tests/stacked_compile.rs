//! What is chosen for products of experts, and for one token, has the registers that it needs: the vendors' compilers take it
//! without spills.

use std::collections::HashSet;

use quantloom_codegen::emit;
use quantloom_codegen::ir::{Kernel, Verified, verify};
use quantloom_codegen::plan::product_name;
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::{Problem, Stack, choose, choose_stacked};
use quantloom_codegen::target::target;
use quantloom_dsl::Scheme;
use quantloom_dsl::experts::{ExpertProduct, Gate};
use quantloom_dsl::format::{BF16, F32, NUMBER_BF16, NUMBER_F32};
use quantloom_tests::sweep::{self, Share};
use quantloom_tests::tools::{clang, ptxas};
use rayon::prelude::*;

use crate::grouped_pairs::grouping;
use crate::kernels::products::catalogue;
use crate::kernels::stacked::{scheme, stack};
use crate::kernels::tiles::SKINNY;
use crate::stacked::{SCHEMES, TARGETS};

/// Layers whose kernels are compiled: the columns of x, the rows of a shard of the first product, experts.
pub(crate) const LAYERS: [(u32, u32, u32, u32); 3] =
    [(2048, 768, 128, 8), (2880, 2880, 32, 4), (4096, 14_336, 8, 2)];

/// The kernels of both products of a scheme for numbers of tokens: sorted and direct, with a gate and
/// without.
fn kernels_of_experts(
    scheme: &Scheme,
    sm: &'static str,
    (hidden, intermediate, experts, top_k): (u32, u32, u32, u32),
    tokens: &[u32],
) -> Vec<Verified<Kernel>> {
    let mut kernels = Vec::new();
    for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
        let (shape, gates) = match product {
            ExpertProduct::GateUp => {
                let oai = Gate::SwigluOai { alpha: 1.702, limit: 7.0 };
                ((intermediate, hidden), vec![None, Some(Gate::Silu), Some(oai)])
            }
            ExpertProduct::Down => ((hidden, intermediate), vec![None]),
        };
        let activation = &scheme.activations[0];
        let Ok(single) = Problem::new(scheme, activation, target(sm).unwrap(), shape) else {
            continue;
        };
        for gate in gates {
            let output = if gate.is_some() { NUMBER_BF16 } else { NUMBER_F32 };
            for (direct, combined) in [(false, false), (true, false), (true, true)] {
                if combined && (product == ExpertProduct::GateUp || !single.by_matrix()) {
                    continue;
                }
                let (weighted, stack) = (combined, stack(product, experts, top_k));
                let shared = combined.then_some(if top_k > 4 { F32 } else { BF16 });
                let stack = Stack { gate, direct, weighted, combined, shared, ..stack };
                let problem = single.clone().giving(output).unwrap().reading(BF16);
                let problem = problem.stacked(stack).unwrap();
                for &tokens in if direct { &[1, 2, 8][..] } else { tokens } {
                    let chosen = choose_stacked(&problem, tokens, None);
                    let chosen = chosen.unwrap_or_else(|why| panic!("{} {sm}: {why}", scheme.name));
                    let chosen = chosen.making_operand(&problem, tokens);
                    let kernel = verify(chosen.write(&problem).unwrap());
                    kernels.push(kernel.unwrap_or_else(|refusals| panic!("{refusals}")));
                }
            }
        }
    }
    kernels
}

/// The vendors' compilers take what is chosen for products of experts without spills; a case is a scheme
/// and a target.
#[test]
fn kernels_of_experts_compile() {
    let share = Share::new(108, 96);
    let tokens: &[u32] = if sweep::is_asked() { &[1, 16, 64, 1024] } else { &[4, 64] };
    let schemes = catalogue();
    let schemes = schemes.iter().filter(|scheme| scheme.experts.is_none());
    let mut texts = Vec::new();
    let mut seen = HashSet::new();
    for (number, scheme) in schemes.enumerate() {
        for (at, sm) in TARGETS.into_iter().enumerate() {
            if !share.takes(TARGETS.len() * number + at) {
                continue;
            }
            let layer = LAYERS[(number + at) % LAYERS.len()];
            for kernel in kernels_of_experts(scheme, sm, layer, tokens) {
                let text = emit::source(&kernel).unwrap();
                // Schemes that differ in their packing alone have the same kernels.
                if seen.insert(text.replace(&kernel.name, "")) {
                    texts.push((scheme.name.clone(), sm, text));
                }
            }
        }
    }
    assert!(!texts.is_empty(), "no scheme in this share");
    all_compile(&texts);
}

/// Compiles texts, each with its scheme and target.
pub(crate) fn all_compile(texts: &[(String, &str, String)]) {
    let (ptxas, clang) = (ptxas::find(), clang::find());
    let spills = texts.par_iter().filter_map(|(scheme, sm, text)| {
        let title = text.lines().next().unwrap_or_default();
        let said = if sm.starts_with("sm_") {
            let assembled = ptxas?.assemble(text, sm);
            (!assembled.is_clean()).then_some(assembled.report)
        } else if sm.starts_with("gfx") {
            let compiled = clang?.compile(text, sm);
            (!compiled.is_clean()).then(|| format!("{compiled:?}"))
        } else {
            crate::wgsl::check(text);
            None
        };
        said.map(|said| format!("{scheme}: {title}: {said}"))
    });
    let spills: Vec<String> = spills.collect();
    let (of, all) = (spills.len(), texts.len());
    assert!(spills.is_empty(), "{of} of {all} kernels:\n{}", spills.join("\n"));
}

/// Products whose skinny blocks have no register to spare.
#[test]
fn kernels_of_experts_with_many_registers_compile() {
    let tight =
        ["q2g128", "q4zg128f16o", "e2m1g32e8m0_e4m3", "e2m1g32e8m0_bf16", "e2m1g16e4m3tf32"];
    let mut texts = Vec::new();
    let mut seen = HashSet::new();
    let few = |scheme: &&Scheme| {
        let product = product_name(scheme, &scheme.activations[0]);
        scheme.experts.is_none() && tight.iter().any(|name| product.starts_with(name))
    };
    for scheme in catalogue().iter().filter(few) {
        for sm in ["sm_80", "sm_90a"] {
            for kernel in kernels_of_experts(scheme, sm, LAYERS[2], &[4]) {
                let text = emit::source(&kernel).unwrap();
                if seen.insert(text.replace(&kernel.name, "")) {
                    texts.push((scheme.name.clone(), sm, text));
                }
            }
        }
    }
    assert!(texts.len() > 30, "{}", texts.len());
    all_compile(&texts);
}

/// Pairs of schemes with zero points, for which 64 registers are too few.
#[test]
fn pairs_with_zero_points_compile() {
    let integers = "weight: u4, zero: u4 per 1x128, scale: f32 per 1x128, bias: f32, pack: u32 [k:8 | k, n], \
                    activation: i8 { scale: f32 per 1x128 }, output: bf16";
    let bits = "weight: u1, zero: u1 per 1x256, scale: bf16 per 1x256, pack: u32 [k:32 | k, n], activation: bf16";
    let mut texts = Vec::new();
    for text in [("integers", integers), ("bits", bits)] {
        for layer in [(1024, 512, 128, 8), (1536, 1024, 64, 4)] {
            for kernel in kernels_of_experts(&scheme(text), "sm_90a", layer, &[4]) {
                texts.push((text.0.to_owned(), "sm_90a", emit::source(&kernel).unwrap()));
            }
        }
    }
    assert!(texts.len() > 30, "{}", texts.len());
    all_compile(&texts);
}

/// Blocks that find the pairs of an expert by themselves, wherever they may.
#[test]
fn kernels_that_group_pairs_compile() {
    let scheme = scheme(SCHEMES[0]);
    let texts = ["sm_80", "sm_90a", "gfx1100", "gfx1201"].map(|sm| {
        let (target, stack) = (target(sm).unwrap(), stack(ExpertProduct::GateUp, 128, 8));
        let single = Problem::new(&scheme, &scheme.activations[0], target, (768, 2048)).unwrap();
        let stack = Stack { gate: Some(Gate::Silu), direct: true, ..stack };
        let problem = single.giving(NUMBER_BF16).unwrap().stacked(stack).unwrap();
        let chosen = grouping(SkinnyTile { row_tiles: 2, min_blocks: 2, ..SKINNY });
        let kernel = verify(chosen.write(&problem).unwrap()).unwrap();
        (scheme.name.clone(), sm, emit::source(&kernel).unwrap())
    });
    all_compile(&texts);
}

/// N and K of single matrices whose blocks make their operand.
const SHAPES: [(u32, u32); 4] = [(4096, 4096), (1536, 2048), (768, 2880), (4096, 1024)];

/// The kernels of one token, of single matrices and of experts, whose blocks make their operand of x.
fn kernels_that_make_their_operand(scheme: &Scheme) -> Vec<Verified<Kernel>> {
    let of = |shape: (u32, u32)| {
        let problem = Problem::new(scheme, &scheme.activations[0], target("sm_90a")?, shape);
        Some(problem.ok()?.giving(NUMBER_BF16).ok()?.reading(BF16))
    };
    let single = SHAPES.iter().filter_map(|&shape| {
        let problem = of(shape)?;
        let chosen = choose(&problem, 1).ok()?;
        Some((problem, chosen))
    });
    let of_experts = LAYERS.iter().flat_map(|&(hidden, intermediate, experts, top_k)| {
        let gate_up = (ExpertProduct::GateUp, (intermediate, hidden), Some(Gate::Silu));
        let down = (ExpertProduct::Down, (hidden, intermediate), None);
        [gate_up, down].into_iter().filter_map(move |(product, shape, gate)| {
            let (combined, stack) =
                (product == ExpertProduct::Down, stack(product, experts, top_k));
            let stack = Stack { gate, direct: true, weighted: combined, combined, ..stack };
            let problem = of(shape)?.stacked(stack).ok()?;
            let chosen = choose_stacked(&problem, 1, None).ok()?;
            Some((problem, chosen))
        })
    });
    let all = single.chain(of_experts);
    let all = all.map(|(problem, chosen)| (chosen.making_operand(&problem, 1), problem));
    let makes = all.filter(|(chosen, _)| chosen.schedule().makes_operand());
    makes.map(|(chosen, problem)| verify(chosen.write(&problem).unwrap()).unwrap()).collect()
}

#[test]
fn kernels_that_make_their_operand_compile() {
    let (mut texts, mut seen) = (Vec::new(), HashSet::new());
    for scheme in catalogue().iter().filter(|scheme| scheme.experts.is_none()) {
        for kernel in kernels_that_make_their_operand(scheme) {
            let text = emit::source(&kernel).unwrap();
            if seen.insert(text.replace(&kernel.name, "")) {
                texts.push((scheme.name.clone(), "sm_90a", text));
            }
        }
    }
    let texts = Share::new(6, 2).of(texts);
    assert!(texts.len() > 10, "{}", texts.len());
    all_compile(&texts);
}
