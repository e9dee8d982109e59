//! The table of measured tiles: its text, what it serves, and how lines are replaced.

use crate::kernels::products::catalogue;
use quantloom_codegen::schedule::{Case, Measured, Problem, choose_by_model, measured_in, merged};

/// The table.
const LINES: &str = include_str!("../src/schedule/measured.txt");

/// The lines of a text, without comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[test]
fn every_line_is_one_and_in_order() {
    let rows: Result<Vec<Measured>, _> = lines(LINES).map(str::parse).collect();
    let rows = rows.unwrap();
    let text: Vec<String> = rows.iter().map(Measured::to_string).collect();
    assert_eq!(text, lines(LINES).collect::<Vec<_>>());
    assert!(rows.is_sorted_by(|one, next| one.case < next.case));
    assert_eq!(merged(LINES, &rows).unwrap(), LINES);
}

#[test]
fn what_was_measured_serves_its_case() {
    let text = "sym { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
                activation: bf16 }";
    let scheme = quantloom_dsl::parse(text).unwrap();
    let target = quantloom_codegen::target::target("sm_90a").unwrap();
    let activation = &scheme.activations[0];
    let problem = |n| Problem::new(&scheme, activation, target, (n, 4096)).unwrap();
    let line = format!(
        "sm_90a {} 4096 4096 4 skinny tokens=8 row_tiles=1 warps=3 min_blocks=1 splits=2 \
         interleaved=1 programmatic=0",
        problem(4096).product_name()
    );
    let row: Measured = line.parse().unwrap();
    let rows = [row.clone()];
    for tokens in [3, 4] {
        assert_eq!(measured_in(&rows, &problem(4096), tokens), Some(row.chosen));
        assert_ne!(choose_by_model(&problem(4096), tokens).unwrap(), row.chosen);
    }
    for (tokens, n) in [(2, 4096), (5, 4096), (4, 4112)] {
        assert_eq!(measured_in(&rows, &problem(n), tokens), None, "M = {tokens}, N = {n}");
    }
    // A tile that its own case does not fit serves nobody.
    for wrong in [line.replace("tokens=8", "tokens=2"), line.replace("warps=3", "warps=99")] {
        let rows = [wrong.parse().unwrap()];
        assert_eq!(measured_in(&rows, &problem(4096), 4), None, "{wrong}");
    }
}

/// x whose elements have their scale is x in bf16 to the product: lines of the one serve the other.
#[test]
fn products_of_elements_with_their_scale_are_those_of_16_bits() {
    let name = |scheme: &str, chip: &str| {
        let all = catalogue();
        let scheme = all.iter().find(|known| known.name == scheme).unwrap();
        let target = quantloom_codegen::target::target(chip).unwrap();
        let problem = Problem::new(scheme, &scheme.activations[0], target, (4096, 4096));
        problem.unwrap().product_name()
    };
    for (quantised, plain) in [
        ("ct_mxfp4", "ct_mxfp4a16"),
        ("ct_nvfp4", "ct_nvfp4a16"),
        ("quark_w_mxfp6_e3m2_a_mxfp4", "quark_w_mxfp6_e3m2"),
    ] {
        assert_eq!(name(quantised, "sm_90a"), name(plain, "sm_90a"));
        assert!(LINES.contains(&name(quantised, "sm_90a")), "{quantised}");
        // There the instruction scales.
        assert_ne!(name(quantised, "sm_120a"), name(plain, "sm_120a"));
    }
}

#[test]
fn lines_take_the_place_of_their_case() {
    let text = "# a table\nsm_90a q4 64 64 1 skinny tokens=1 row_tiles=1 warps=4 min_blocks=2 \
                splits=1 interleaved=0 programmatic=1\n";
    let row: Measured = lines(text).next().unwrap().parse().unwrap();
    let slower = text.replace("warps=4", "warps=8");
    assert_eq!(merged(&slower, std::slice::from_ref(&row)).unwrap(), text);
    let other = Measured { case: Case { m: 2, ..row.case.clone() }, ..row };
    assert_eq!(merged(text, &[other]).unwrap().lines().count(), 3);
    assert!(merged("sm_90a q4 64 64 1 skinny tokens=1\n", &[]).is_err(), "choices are missing");
}
