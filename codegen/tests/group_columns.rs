//! Sums of groups in columns of D: products of one or two tokens whose weights no scale rounds.

use crate::kernels::mutation::{Mutation, all_found};
use crate::kernels::product::RandomProduct;
use crate::kernels::products::{problem, problem_of_range};
use crate::kernels::tiles::SKINNY;
use quantloom_codegen::ir::{Op, Operand, Ternary, verify};
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::{Chosen, Problem, choose};

/// Schemes, whether x is in f16, and the most tokens for which columns are left: lanes of a row have one, two or four groups side by
/// side.
const SCHEMES: &[(&str, bool, u32)] = &[
    ("parts", false, 2),
    ("terms", false, 2),
    ("terms", true, 2),
    ("minima", false, 2),
    ("minima", true, 2),
    ("levels", false, 1),
    ("levels", true, 1),
    ("bytes32", false, 2),
];

fn product(scheme: &str, in_f16: bool, shape: (u32, u32)) -> Problem {
    match in_f16 {
        false => problem(scheme, 0, "sm_90a", shape),
        true => problem_of_range(scheme, 1, "sm_90a", shape),
    }
}

/// Within the bound of exact weights; K that ends in a k-tile, within a group too, and several tiles of rows.
#[test]
fn no_weight_is_rounded() {
    for &(scheme, in_f16, most) in SCHEMES {
        for shape in [(41, 200), (72, 1096), (40, 8), (4112, 264)] {
            // Two tiles of rows: of one scheme, since so many rows take long.
            if shape.0 > 4096 && scheme != "minima" {
                continue;
            }
            let problem = product(scheme, in_f16, shape);
            for m in 1..=3 {
                let chosen = choose(&problem, m).unwrap();
                let rounds = chosen.schedule().rounds_scaled_weights(&problem);
                assert_eq!(rounds, m > most, "{scheme}, M = {m}");
                if rounds {
                    continue;
                }
                let kernel = verify(chosen.write(&problem).unwrap()).unwrap();
                let product = RandomProduct::draw(&problem, m as usize, u64::from(m));
                let report = product.with_exact_weights().simulate(&kernel, 64, 1);
                report.unwrap_or_else(|wrong| panic!("{}, M = {m}: {wrong}", kernel.name));
            }
        }
    }
}

/// A tile for two tokens serves one too.
#[test]
fn one_token_has_the_tile_of_two() {
    for in_f16 in [false, true] {
        let problem = product("minima", in_f16, (72, 520));
        let kernel = Chosen::Skinny(SkinnyTile { tokens: 2, ..SKINNY }).write(&problem).unwrap();
        let product = RandomProduct::draw(&problem, 1, 3).with_exact_weights();
        product.simulate(&verify(kernel).unwrap(), 64, 1).unwrap();
    }
}

/// What may be wrong with columns that have groups.
const MUTATIONS: &[(&str, &str, Mutation)] = &[
    ("other lanes' groups forgotten", "expected", |_, op| {
        if let Op::Shuffle { by: by @ Operand::U32(2), .. } = op {
            *by = Operand::U32(0);
        }
    }),
    ("x in all columns", "expected", |place, op| {
        if let Op::Load { from, mask: Some(mask), .. } = op
            && place.is(from.space, "x")
        {
            mask.condition = Operand::Pred(true);
        }
    }),
    ("one group's numbers for all", "expected", |place, op| {
        if let Op::Ternary { op: Ternary::Fma, a, b, .. } = op
            && place.in_loop
        {
            *a = *b;
        }
    }),
];

/// Of terms and two tokens.
const OF_TERMS: &[(&str, &str, Mutation)] = &[
    ("one token's sum for the other", "expected", |_, op| {
        if let Op::Shuffle { by: by @ Operand::U32(1), .. } = op {
            *by = Operand::U32(0);
        }
    }),
    ("sums of x of no columns", "expected", |_, op| {
        if let Op::Copy { a: a @ Operand::U32(0x3f80_3f80 | 0x3c00_3c00), .. } = op {
            *a = Operand::U32(0);
        }
    }),
];

#[test]
fn mutations_are_found() {
    for &(scheme, in_f16, most) in SCHEMES {
        // Whole k-tiles, so that masks of x are those of groups alone.
        let problem = product(scheme, in_f16, (72, 896));
        let tile = SkinnyTile { tokens: most, ..SKINNY };
        let kernel = Chosen::Skinny(tile).write(&problem).unwrap();
        let product = RandomProduct::draw(&problem, most as usize, 21).with_exact_weights();
        // One lane has all groups of codes of a byte.
        let of_all = if scheme == "bytes32" { &MUTATIONS[1..] } else { MUTATIONS };
        all_found(&kernel, &product, of_all);
        if problem.correction.is_some() {
            all_found(&kernel, &product, OF_TERMS);
        }
    }
}
