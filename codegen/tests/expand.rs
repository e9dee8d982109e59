//! `scheme!` outside of a macro: its expansion, and its time.

use std::path::Path;
use std::time::{Duration, Instant};

use proc_macro2::{TokenStream, TokenTree};
use quantloom_codegen::expand;
use quantloom_codegen::plan::planned;
use quantloom_codegen::schedule::Unscheduled;
use quantloom_codegen::support::support;
use quantloom_codegen::target::TARGETS;
use quantloom_dsl::parse;

#[path = "../../dsl/tests/errors/bad.rs"]
mod bad;

/// The expansion of a text, with `root` as the path.
fn expand(text: &str) -> TokenStream {
    let input = format!("(root) {text}");
    expand::scheme(input.parse().unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// How often an identifier occurs in an expansion, nested groups included.
fn count(stream: TokenStream, word: &str) -> usize {
    let one = |tree| match tree {
        TokenTree::Ident(ident) => usize::from(ident == word),
        TokenTree::Group(group) => count(group.stream(), word),
        TokenTree::Punct(_) | TokenTree::Literal(_) => 0,
    };
    stream.into_iter().map(one).sum()
}

/// The catalogue's files.
fn catalogue() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-generated/schemes");
    let files = std::fs::read_dir(folder).expect("the catalogue is part of the repository");
    let mut texts: Vec<_> = files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    texts.sort();
    assert!(!texts.is_empty());
    texts
}

/// Also a measurement: an expansion should take less than a second without optimisation,
/// `cargo test --test codegen --config profile.dev.opt-level=0 expand:: -- --nocapture`.
#[test]
#[expect(clippy::print_stdout, reason = "a measurement is printed, not asserted")]
fn the_catalogue_expands_without_errors_and_deterministically() {
    let mut slowest = (Duration::ZERO, String::new());
    let mut total = Duration::ZERO;
    let texts = catalogue();
    for (name, text) in &texts {
        let start = Instant::now();
        let expansion = expand(text);
        let took = start.elapsed();
        total += took;
        slowest = slowest.max((took, name.clone()));
        assert_eq!(count(expansion.clone(), "compile_error"), 0, "{name}");
        assert_eq!(count(expansion.clone(), "Declared"), 1, "{name}");
        assert_eq!(expansion.to_string(), expand(text).to_string(), "{name}");
    }
    let (took, name) = slowest;
    println!("{} expansions took {total:?}; the slowest, {name}, {took:?}", texts.len());
}

#[test]
fn each_mistake_is_one_error_and_the_type_is_declared() {
    let sound = |text: &str| text.parse::<TokenStream>().is_ok() && !text.contains('ü');
    for bad in bad::BAD.iter().filter(|bad| sound(bad.text)) {
        // Only the expansion checks targets.
        let faults = parse(bad.text).unwrap_err().faults().len();
        let expansion = expand(bad.text);
        assert_eq!(count(expansion.clone(), "compile_error"), faults, "{}", bad.text);
        assert_eq!(count(expansion, "Declared"), 1, "{}", bad.text);
    }
}

#[test]
fn listed_targets_are_checked() {
    let clauses = "weight: u4 - 8, pack: u32 [k:8 | k, n], activation: bf16";
    for (targets, errors) in [("portable", 0), ("msl", 1), ("msl | portable | gfx_942 | tpu", 3)] {
        let expansion = expand(&format!("S {{ {clauses}, targets: {targets} }}"));
        assert_eq!(count(expansion, "compile_error"), errors, "{targets}");
    }
    // Of a scheme with a mistake, only the existence of its targets is checked.
    let expansion = expand(&format!("S {{ {clauses}, output: u8, targets: gfx942 | tpu }}"));
    assert_eq!(count(expansion, "compile_error"), 2);
}

/// The macro judges targets by plans alone. For the schemes of the catalogue schedules say the same.
#[test]
fn plans_judge_targets_as_schedules_do() {
    for (name, text) in catalogue() {
        let scheme = parse(&text).unwrap();
        for target in TARGETS {
            let (planned, supported) = (planned(&scheme, target), support(&scheme, target));
            assert_eq!(planned.map_err(Unscheduled::from), supported, "{name} on {target}");
        }
    }
}

#[test]
fn without_a_name_no_type_is_declared() {
    for text in ["", "pub", "pub {}", "fn { weight: u4 }", "{}"] {
        let expansion = expand(text);
        assert!(count(expansion.clone(), "compile_error") > 0, "{text}");
        assert_eq!(count(expansion, "Declared"), 0, "{text}");
    }
    let without_root = expand::scheme("S { weight: u4 }".parse().unwrap());
    assert_eq!(count(without_root, "compile_error"), 1);
}
