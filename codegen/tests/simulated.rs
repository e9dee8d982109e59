//! Every schedule in the simulator, on ragged shapes, against the exact product.

use crate::kernels::product::RandomProduct;
use crate::kernels::products::problem;
use crate::kernels::tiles::{SKINNY, TILE};
use quantloom_codegen::ir::verify;
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;
use quantloom_codegen::schedule::{Chosen, choose};
use quantloom_tests::sweep::Share;

/// Runs a schedule's kernel; what is wrong names the case.
fn check(case: (&str, usize, &str, (u32, u32)), m: u32, chosen: Chosen) {
    let (scheme, activation, sm, shape) = case;
    let problem = problem(scheme, activation, sm, shape);
    let kernel = chosen.write(&problem).unwrap();
    let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
    let product = RandomProduct::draw(&problem, m as usize, u64::from(shape.0 * shape.1 + m));
    for seed in 0..2 {
        let report = product.simulate(&kernel, 64, seed);
        let report = report.unwrap_or_else(|wrong| panic!("{}, M = {m}: {wrong}", kernel.name));
        // Rows of three or five tiles, which are never chosen, do not fill the banks evenly.
        let (rows, tokens) = match chosen {
            Chosen::Skinny(tile) => (16 * tile.row_tiles, tile.tokens),
            Chosen::Tile(shape) => (shape.rows, shape.tokens),
            Chosen::WarpGroup(tile) => (64 * tile.groups * tile.row_tiles, tile.tokens),
            Chosen::TensorMemory(tile) => (128, tile.tokens),
            Chosen::Shader(tile) => (16 * tile.row_tiles * tile.groups, tile.tokens),
        };
        if rows.is_power_of_two() || tokens == 1 {
            assert_eq!(report.conflicts(), 0, "{}, M = {m}:\n{report}", kernel.name);
        }
    }
}

/// Shapes that no tile divides, K below a group, K that ends inside of a lane's columns.
#[test]
fn decode_products_are_right() {
    let tile = |tokens, row_tiles, warps, splits| SkinnyTile {
        tokens,
        row_tiles,
        warps,
        splits,
        ..SKINNY
    };
    let cases = [
        (("sym", 0, "sm_90a", (40, 2880)), 1, tile(1, 1, 16, 1)),
        (("sym", 0, "sm_80", (41, 200)), 1, tile(1, 2, 4, 2)),
        (("sym", 1, "sm_90a", (100, 1096)), 3, tile(4, 2, 3, 1)),
        (("asym", 0, "sm_80", (56, 1288)), 3, tile(4, 4, 4, 3)),
        (("asym", 1, "sm_89", (48, 512)), 8, tile(8, 1, 4, 1)),
        (("asym", 0, "sm_90a", (33, 2880)), 8, tile(8, 2, 8, 2)),
        (("halves", 0, "sm_90a", (72, 328)), 5, tile(8, 3, 2, 1)),
        (("halves", 0, "sm_80", (16, 8)), 1, tile(1, 1, 4, 1)),
        (("sym", 0, "sm_90a", (24, 392)), 16, tile(16, 1, 4, 2)),
        (("asym", 0, "sm_80", (80, 648)), 13, tile(16, 2, 4, 1)),
        (("bias", 0, "sm_90a", (40, 840)), 1, tile(1, 1, 4, 1)),
        (("bias", 1, "sm_80", (41, 520)), 3, tile(4, 2, 2, 2)),
        (("bias", 0, "sm_90a", (48, 392)), 11, tile(16, 4, 3, 3)),
    ];
    for (case, m, tile) in cases {
        check(case, m, Chosen::Skinny(tile));
        let early = case.2 == "sm_90a";
        check(
            case,
            m,
            Chosen::Skinny(SkinnyTile { programmatic: early, interleaved: true, ..tile }),
        );
    }
}

/// M that no tile divides, one token, rows and columns with tails, K split, every number of stages.
#[test]
fn tile_products_are_right() {
    let tile = |tokens, rows, warps, stages, splits| TileShape {
        tokens,
        rows,
        warps,
        stages,
        splits,
        ..TILE
    };
    let cases = [
        (("sym", 0, "sm_90a", (40, 2880)), 17, tile(16, 32, 2, 3, 2)),
        (("sym", 0, "sm_80", (41, 200)), 1, tile(16, 64, 2, 2, 1)),
        (("sym", 1, "sm_89", (72, 392)), 3, tile(16, 64, 4, 4, 1)),
        (("asym", 0, "sm_80", (100, 648)), 64, tile(64, 64, 2, 3, 3)),
        (("asym", 1, "sm_90a", (48, 1288)), 19, tile(32, 32, 2, 4, 2)),
        (("asym", 0, "sm_90a", (136, 136)), 8, tile(16, 128, 2, 2, 1)),
        (("halves", 0, "sm_90a", (33, 328)), 65, tile(64, 32, 2, 3, 1)),
        (("sym", 0, "sm_90a", (24, 8)), 130, tile(128, 16, 1, 2, 1)),
        (("bias", 0, "sm_90a", (41, 520)), 19, tile(16, 32, 2, 3, 2)),
        (("bias", 1, "sm_80", (72, 392)), 33, tile(32, 64, 2, 2, 1)),
    ];
    for (case, m, shape) in cases {
        let programmatic = case.2 == "sm_90a";
        check(case, m, Chosen::Tile(TileShape { programmatic, ..shape }));
    }
}

/// What `choose` takes, for every target and scheme, each on two of the shapes.
#[test]
fn chosen_products_are_right() {
    let (share, mut case) = (Share::new(18, 6), 0);
    let shapes = [(41, 200), (72, 2880), (100, 1096), (48, 8)];
    let schemes = [("sym", 0), ("sym", 1), ("asym", 0), ("asym", 1), ("halves", 0), ("bias", 1)];
    for (at, sm) in ["sm_80", "sm_89", "sm_90a"].into_iter().enumerate() {
        for (of, (scheme, activation)) in schemes.into_iter().enumerate() {
            for (turn, m) in [1, 3, 8, 16, 17, 64].into_iter().enumerate() {
                case += 1;
                if !share.takes(case) {
                    continue;
                }
                let shape = shapes[(at + of + turn) % 4];
                let problem = problem(scheme, activation, sm, shape);
                check((scheme, activation, sm, shape), m, choose(&problem, m).unwrap());
            }
        }
    }
}
