//! The schedules: what is chosen verifies, and assembles without spills or local memory, in so many
//! registers; what a schedule does not take, it says.

use std::collections::HashSet;
use std::fmt::Write;

use crate::kernels::products::{SCHEMES, catalogue, problem};
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::verify;
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;
use quantloom_codegen::schedule::{Problem, Schedule, Unscheduled, choose};
use quantloom_codegen::target::target;
use quantloom_dsl::parse;
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::{ptxas, skip};
use rayon::prelude::*;

#[test]
fn kernels_verify_and_assemble() {
    let ptxas = ptxas::find();
    // Large, long, ragged, and few rows with K split over blocks; every target and scheme meets two.
    let cases = [
        ((8192, 8192), [1, 8, 64]),
        ((8192, 28_672), [8, 16, 17]),
        ((5760, 2880), [4, 16, 257]),
        ((1000, 4096), [2, 16, 33]),
    ];
    let products = [("sym", 0), ("sym", 1), ("asym", 0), ("halves", 0), ("bias", 0)];
    let mut resources = String::new();
    for (at, sm) in ["sm_80", "sm_89", "sm_90a"].into_iter().enumerate() {
        for (of, (scheme, activation)) in products.into_iter().enumerate() {
            for turn in 0..2 {
                let (shape, tokens) = cases[(at + of + 2 * turn) % 4];
                let problem = problem(scheme, activation, sm, shape);
                for tokens in tokens {
                    let kernel = choose(&problem, tokens).unwrap().write(&problem).unwrap();
                    let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
                    let text = ptx::emit(&kernel).unwrap();
                    let Some(ptxas) = ptxas else { continue };
                    let assembled = ptxas.assemble(&text, sm);
                    assert!(assembled.is_clean(), "{}:\n{}", kernel.name, assembled.report);
                    let registers = assembled.number_before("registers");
                    let (name, bytes) = (&kernel.name, kernel.shared_map().bytes);
                    writeln!(resources, "{name}: {registers} registers, {bytes} bytes shared")
                        .unwrap();
                }
            }
        }
    }
    // Registers are this assembler's; others count a little differently.
    match ptxas.is_some_and(|ptxas| ptxas.is_release("13.0")) {
        true => {
            let mut settings = insta::Settings::clone_current();
            settings.set_snapshot_path("../../snapshots");
            settings.set_prepend_module_to_snapshot(false);
            settings.set_omit_expression(true);
            settings.bind(|| insta::assert_snapshot!("resources", resources));
        }
        false => skip("registers are compared for ptxas 13.0 alone"),
    }
}

/// Targets, the shape of w, and M. On Hopper all that decides a tile; elsewhere some of it.
const ASSEMBLED: [(&str, (u32, u32), &[u32]); 7] = [
    ("sm_90a", (8192, 8192), &[1, 8, 16, 64]),
    ("sm_90a", (1000, 4096), &[1, 8, 16, 64]),
    ("sm_80", (8192, 8192), &[8, 64]),
    ("sm_89", (1000, 4096), &[1, 16, 64]),
    ("sm_100a", (8192, 8192), &[1, 16, 200]),
    ("sm_120", (8192, 8192), &[1, 64]),
    ("sm_120a", (8192, 8192), &[1, 16, 64]),
];

/// The kernels of the catalogue; a case is a scheme with a target, a shape and M.
#[test]
fn kernels_of_the_catalogue_assemble() {
    let share = Share::new(20, 8);
    let Some(ptxas) = ptxas::find() else { return };
    let mut seen = HashSet::new();
    let mut texts = Vec::new();
    let cases = ASSEMBLED
        .iter()
        .flat_map(|(sm, shape, tokens)| tokens.iter().map(move |m| (sm, *shape, *m)));
    let cases: Vec<_> = cases.collect();
    let schemes = catalogue();
    let schemes = schemes.iter().filter(|scheme| scheme.experts.is_none());
    for (number, scheme) in schemes.enumerate() {
        for (at, &(sm, shape, tokens)) in cases.iter().enumerate() {
            if !share.takes(number * cases.len() + at) {
                continue;
            }
            for activation in &scheme.activations {
                let problem = Problem::new(scheme, activation, target(sm).unwrap(), shape);
                let problem = problem.unwrap_or_else(|why| panic!("{}: {why}", scheme.name));
                let chosen = choose(&problem, tokens);
                let chosen = chosen.unwrap_or_else(|why| panic!("{}: {why}", scheme.name));
                let kernel = verify(chosen.write(&problem).unwrap());
                let kernel = kernel.unwrap_or_else(|refusals| panic!("{refusals}"));
                let text = ptx::emit(&kernel).unwrap();
                // Schemes that differ in their packing alone have the same kernels.
                if seen.insert(text.replace(&kernel.name, "")) {
                    texts.push((scheme.name.clone(), sm, text));
                }
            }
        }
    }
    let spills = texts.par_iter().filter_map(|(scheme, sm, text)| {
        let assembled = ptxas.assemble(text, sm);
        (!assembled.is_clean()).then(|| format!("{scheme}: {}", assembled.report))
    });
    let spills: Vec<String> = spills.collect();
    let (of, all) = (spills.len(), texts.len());
    assert!(spills.is_empty(), "{of} of {all} kernels:\n{}", spills.join("\n"));
}

/// The product of a scheme with its first activation.
fn posed(text: &str, sm: &str, shape: (u32, u32)) -> Result<Problem, Unscheduled> {
    let scheme = parse(text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
    Problem::new(&scheme, &scheme.activations[0], target(sm).unwrap(), shape)
}

#[test]
fn problems_that_are_not_taken_are_named() {
    let cases = [
        ("weight: u4 - 8, scale: bf16 per 1x128", (0, 128), "N = 0"),
        ("weight: u4 - 8, scale: bf16 per 1x128", (128, 0), "K = 0"),
        ("weight: u4 - 8, scale: bf16 per 1x128", (1 << 24, 1 << 24), "2^32 words of codes"),
    ];
    for (clauses, shape, expected) in cases {
        let text = format!("a {{ {clauses}, pack: u32 [k:8 | k, n], activation: bf16 }}");
        let error = posed(&text, "sm_90a", shape).unwrap_err();
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
    let experts = catalogue().into_iter().find(|scheme| scheme.experts.is_some()).unwrap();
    let hopper = target("sm_90a").unwrap();
    let error = Problem::new(&experts, &experts.activations[0], hopper, (64, 64)).unwrap_err();
    assert!(error.to_string().contains("handles experts"), "{error}");
    assert!(posed(SCHEMES[0].1, "msl", (4096, 4096)).is_err());
    let problem = problem("sym", 0, "sm_90a", (4096, 4096));
    assert!(matches!(
        SkinnyTile::choose(&problem, 17),
        Err(Unscheduled::Shape { what: "M", value: 17, .. })
    ));
    let tile = SkinnyTile::choose(&problem, 1).unwrap();
    for wrong in [
        SkinnyTile { tokens: 3, ..tile },
        SkinnyTile { splits: 33, ..tile },
        SkinnyTile { row_tiles: 0, ..tile },
    ] {
        assert!(matches!(wrong.build(&problem), Err(Unscheduled::Choices { .. })), "{wrong:?}");
    }
}

#[test]
fn what_a_tile_does_not_take_is_said() {
    let problem = problem("sym", 0, "sm_90a", (4096, 4096));
    let shape = TileShape::choose(&problem, 64).unwrap();
    for (wrong, rule) in [
        (TileShape { tokens: 48, ..shape }, "tokens must be"),
        (TileShape { rows: 24, ..shape }, "a warp must have"),
        (TileShape { rows: 1024, ..shape }, "a warp must have"),
        (TileShape { warps: 0, ..shape }, "a warp must have"),
        (TileShape { warps: 16, tokens: 16, ..shape }, "the tokens that the threads copy"),
        (TileShape { stages: 1, ..shape }, "stages must be"),
        (TileShape { splits: 33, ..shape }, "splits must be"),
    ] {
        let error = wrong.build(&problem).unwrap_err().to_string();
        assert!(error.contains(rule), "{wrong:?}: {error}");
    }
    assert!(matches!(
        TileShape::choose(&problem, 0),
        Err(Unscheduled::Shape { what: "M", value: 0, .. })
    ));
}
