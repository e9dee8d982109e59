//! Products on AMD GPUs: what is chosen verifies, and clang compiles it without spills or local memory,
//! in so many registers.

use std::collections::HashSet;
use std::fmt::Write;

use crate::kernels::products::{catalogue, problem};
use quantloom_codegen::emit::hip;
use quantloom_codegen::ir::{Kernel, Verified, verify};
use quantloom_codegen::schedule::{Problem, choose};
use quantloom_codegen::target::target;
use quantloom_dsl::parse;
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::clang::Compiled;
use quantloom_tests::tools::{clang, skip};
use rayon::prelude::*;

fn chosen(problem: &Problem, tokens: u32) -> Verified<Kernel> {
    let kernel = choose(problem, tokens).unwrap_or_else(|why| panic!("{why}"));
    verify(kernel.write(problem).unwrap()).unwrap_or_else(|refusals| panic!("{refusals}"))
}

/// What a few kernels take of a compute unit.
#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn kernels_take_so_many_registers() {
    let Some(clang) = clang::find() else { return };
    let products = [("sym", 0), ("sym", 1), ("asym", 0), ("bias", 0)];
    let cases = products.into_iter().flat_map(|product| {
        ["gfx942", "gfx950", "gfx1100", "gfx1201"]
            .into_iter()
            .flat_map(move |chip| [1, 16, 64].map(|tokens| (product, chip, tokens)))
    });
    let cases: Vec<_> = cases.collect();
    let mut problems: Vec<_> = cases
        .into_iter()
        .map(|((scheme, activation), chip, tokens)| {
            (problem(scheme, activation, chip, (4096, 4096)), chip, tokens)
        })
        .collect();
    // Products that scale their operands, of 4, 6 and 8 bits.
    let schemes = catalogue();
    for name in ["ct_mxfp4", "ct_mxfp8", "quark_w_mxfp6_e2m3_a_mxfp4", "ct_mxfp6a8"] {
        let scheme = schemes.iter().find(|scheme| scheme.name == name).unwrap();
        let (activation, chip) = (&scheme.activations[0], target("gfx950").unwrap());
        let problem = Problem::new(scheme, activation, chip, (4096, 4096)).unwrap();
        assert!(problem.plan.compute.product.scaling().is_some(), "{name}");
        problems.extend([1, 16, 64].map(|tokens| (problem.clone(), chip.name, tokens)));
    }
    let lines = problems.par_iter().map(|(problem, chip, tokens)| {
        let kernel = chosen(problem, *tokens);
        let compiled = clang.compile(&hip::emit(&kernel).unwrap(), chip);
        assert!(compiled.is_clean(), "{}: {compiled:?}", kernel.name);
        let planned = kernel.shared_map().bytes;
        assert_eq!(compiled.shared, planned, "{}", kernel.name);
        let Compiled { vgprs, agprs, .. } = compiled;
        format!("{}: {vgprs} VGPRs, {agprs} of them AGPRs, {planned} bytes shared", kernel.name)
    });
    let lines: Vec<String> = lines.collect();
    let mut resources = String::new();
    lines.iter().for_each(|line| writeln!(resources, "{line}").unwrap());
    // Registers are this compiler's; others count a little differently.
    match clang.is_version("22.") {
        true => {
            let mut settings = insta::Settings::clone_current();
            settings.set_snapshot_path("../../snapshots");
            settings.set_prepend_module_to_snapshot(false);
            settings.set_omit_expression(true);
            settings.bind(|| insta::assert_snapshot!("resources_hip", resources));
        }
        false => skip("registers are compared for clang 22 alone"),
    }
}

/// Chips, the shape of w, and M.
///
/// The small weights have tiles of few k-tiles, which clang sees whole: it would compute all segments at once.
const COMPILED: [(&str, (u32, u32), &[u32]); 10] = [
    ("gfx942", (1000, 4096), &[1, 64]),
    ("gfx950", (8192, 8192), &[16, 64]),
    ("gfx1100", (8192, 8192), &[1, 16, 64]),
    ("gfx1151", (1000, 4096), &[4, 33]),
    ("gfx1200", (1000, 4096), &[4, 33]),
    ("gfx1201", (8192, 8192), &[1, 16, 64]),
    ("gfx950", (64, 96), &[33]),
    ("gfx1100", (64, 96), &[33]),
    ("gfx1100", (41, 200), &[33]),
    ("gfx1201", (41, 200), &[33]),
];

/// The kernels of the catalogue; a case is a scheme with a chip and M.
#[test]
fn kernels_of_the_catalogue_compile() {
    let share = Share::new(40, 24);
    let Some(clang) = clang::find() else { return };
    let mut seen = HashSet::new();
    let mut texts = Vec::new();
    let cases = COMPILED
        .iter()
        .flat_map(|(chip, shape, tokens)| tokens.iter().map(move |m| (chip, *shape, *m)));
    let cases: Vec<_> = cases.collect();
    let schemes = catalogue();
    let schemes = schemes.iter().filter(|scheme| scheme.experts.is_none());
    for (number, scheme) in schemes.enumerate() {
        for (at, &(chip, shape, tokens)) in cases.iter().enumerate() {
            if !share.takes(number * cases.len() + at) {
                continue;
            }
            for activation in &scheme.activations {
                let problem = Problem::new(scheme, activation, target(chip).unwrap(), shape);
                let problem = problem.unwrap_or_else(|why| panic!("{}: {why}", scheme.name));
                let kernel = chosen(&problem, tokens);
                let text = hip::emit(&kernel).unwrap();
                // Schemes that differ in their packing alone have the same kernels.
                if seen.insert(text.replace(&kernel.name, "")) {
                    texts.push((scheme.name.clone(), chip, text));
                }
            }
        }
    }
    let spills = texts.par_iter().filter_map(|(scheme, chip, text)| {
        let compiled = clang.compile(text, chip);
        let line = text.lines().next().unwrap_or_default();
        (!compiled.is_clean()).then(|| format!("{scheme}: {line}: {compiled:?}"))
    });
    let spills: Vec<String> = spills.collect();
    let (of, all) = (spills.len(), texts.len());
    assert!(spills.is_empty(), "{of} of {all} kernels:\n{}", spills.join("\n"));
}

/// Eight segments a k-tile, each with a scale and a term in f32.
const MANY_PARAMETERS: &str = "s { weight: u2, shift: f16, scale: f32 per 1x16, pack: u32 [k:16 | k, n], \
                               activation: f16 }";

/// Without scheduling barriers clang computes all four segments of the only k-tile at once, and spills; with them it
/// spills where the parameters of all segments take many registers.
#[test]
fn segments_of_one_k_tile_need_registers_in_turn() {
    let Some(clang) = clang::find() else { return };
    let schemes = catalogue();
    let few = schemes.iter().find(|scheme| scheme.name == "ct_mxfp8").unwrap();
    let many = &parse(MANY_PARAMETERS).unwrap();
    for (chip, scheme) in [("gfx1100", few), ("gfx1201", few), ("gfx942", many), ("gfx950", many)] {
        let (activation, target) = (&scheme.activations[0], target(chip).unwrap());
        let problem = Problem::new(scheme, activation, target, (64, 96)).unwrap();
        let compiled = clang.compile(&hip::emit(&chosen(&problem, 33)).unwrap(), chip);
        assert!(compiled.is_clean(), "{chip}: {compiled:?}");
    }
}

/// The first matrix instruction of a listing that fewer than all lanes reach.
fn in_some_lanes(listing: &str) -> Option<&str> {
    let mut depth = 0;
    listing.lines().find(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [name, ..] if name.starts_with("v_cmpx") || name.starts_with("s_and_saveexec") => {
                depth += 1;
            }
            ["s_or_b32", "exec_lo,", "exec_lo,", _] | ["s_or_b64", "exec,", "exec,", _] => {
                depth -= 1;
            }
            _ => {}
        }
        let matrix = |name: &&str| name.starts_with("v_wmma") || name.starts_with("v_mfma");
        depth > 0 && words.first().is_some_and(matrix)
    })
}

/// clang 22 moves WMMA and MFMA with scales behind the branch of the lanes that store their result, and with
/// them what computes the operands of all lanes, unless the text forbids it.
#[test]
fn all_lanes_reach_every_matrix_instruction() {
    let Some(clang) = clang::find() else { return };
    let mut problems: Vec<_> = ["gfx942", "gfx950", "gfx1100", "gfx1201"]
        .map(|chip| (problem("sym", 0, chip, (64, 256)), chip))
        .into();
    let schemes = catalogue();
    for name in ["ct_mxfp4", "ct_mxfp8", "quark_w_mxfp6_e2m3_a_mxfp4", "ct_mxfp6a8"] {
        let scheme = schemes.iter().find(|scheme| scheme.name == name).unwrap();
        let (activation, chip) = (&scheme.activations[0], target("gfx950").unwrap());
        problems.push((Problem::new(scheme, activation, chip, (8192, 512)).unwrap(), chip.name));
    }
    let wrong = problems.par_iter().flat_map_iter(|(problem, chip)| {
        [1, 4, 33].into_iter().filter_map(|tokens| {
            let kernel = chosen(problem, tokens);
            let listing = clang.listing(&hip::emit(&kernel).unwrap(), chip);
            assert!(listing.contains("v_wmma_") || listing.contains("v_mfma_"), "{}", kernel.name);
            in_some_lanes(&listing).map(|line| format!("{}: {line}", kernel.name))
        })
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
