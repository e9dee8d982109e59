//! Scales and terms of weights that have more digits than the operand, in two parts in bf16 and rounded in f16, in every schedule: right on
//! ragged shapes, and nothing that is wrong in them stays unnoticed.

use crate::kernels::mutation::{Mutation, all_found};
use crate::kernels::product::RandomProduct;
use crate::kernels::products::{problem, problem_of_range};
use crate::kernels::tiles::{SKINNY, TILE, WARP_GROUP};
use quantloom_codegen::ir::{Binary, Half, Op, Operand, Ternary, verify};
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{Chosen, ParamKind, Problem, Schedule, choose};

/// A scale of f16 in groups of 32 columns, alone and with a minimum; two levels in groups of 16, and of 32 with a minimum.
const SCHEMES: [&str; 4] = ["parts", "terms", "levels", "minima"];

/// The product of one of these with x in bf16, and that with x in f16, of a range.
fn products(scheme: &str, shape: (u32, u32)) -> [Problem; 2] {
    [problem(scheme, 0, "sm_90a", shape), problem_of_range(scheme, 1, "sm_90a", shape)]
}

/// What `choose` takes, from one token on: `skinny`, `warp_group`; and `tile`, which takes their place for other targets.
#[test]
fn chosen_products_are_right() {
    for scheme in SCHEMES {
        for (shape, m, schedule) in [
            ((41, 200), 1, "skinny"),
            ((72, 1096), 3, "skinny"),
            ((40, 840), 16, "skinny"),
            ((4112, 264), 9, "skinny"),
            ((41, 392), 33, "warp_group"),
            ((41, 392), 33, "tile"),
            ((136, 296), 65, "warp_group"),
        ] {
            // So many rows take long.
            if shape.0 > 4096 && scheme != "minima" {
                continue;
            }
            for problem in products(scheme, shape) {
                let chosen = match schedule {
                    "tile" => Chosen::Tile(TileShape::choose(&problem, m).unwrap()),
                    _ => choose(&problem, m).unwrap(),
                };
                assert_eq!(chosen.name(), schedule, "{scheme}, {shape:?}, M = {m}");
                let kernel = verify(chosen.write(&problem).unwrap()).unwrap();
                let product = RandomProduct::draw(&problem, m as usize, u64::from(m));
                let report = product.simulate(&kernel, 64, 1);
                report.unwrap_or_else(|wrong| panic!("{}, M = {m}: {wrong}", kernel.name));
            }
        }
    }
}

/// Many rows: two tiles of rows and two blocks, which leave the assembler registers for the parts.
#[test]
fn many_rows_take_two_blocks() {
    let tiles = [
        ("parts", 1, &[12][..]),
        ("parts", 8, &[12]),
        ("parts", 9, &[8]),
        ("parts", 16, &[8]),
        ("levels", 1, &[12, 12]),
        ("levels", 2, &[8, 12]),
        ("levels", 9, &[8, 8]),
        ("minima", 1, &[12, 12]),
        ("minima", 2, &[12, 12]),
        ("minima", 3, &[8, 12]),
    ];
    for (scheme, m, warps) in tiles {
        for (problem, &warps) in products(scheme, (8192, 8192)).iter().zip(warps) {
            let Ok(Chosen::Skinny(tile)) = choose(problem, m) else { panic!("{scheme}, M = {m}") };
            let found = (tile.row_tiles, tile.warps, tile.min_blocks);
            assert_eq!(found, (2, warps, 2), "{scheme}, M = {m}");
        }
    }
}

/// 256 tokens: parts cost so much that each weight is decoded once, for all of them. Scales of one part let two blocks decode it, for
/// 128 tokens each.
#[test]
fn weights_are_decoded_once_for_256_tokens() {
    let tokens = |scheme: &str| match choose(&problem(scheme, 0, "sm_90a", (8192, 8192)), 256) {
        Ok(Chosen::WarpGroup(tile)) => tile.tokens,
        other => panic!("{scheme}: {other:?}"),
    };
    for scheme in SCHEMES {
        assert_eq!(tokens(scheme), 256, "{scheme}");
    }
    assert_eq!(tokens("sym"), 128);
}

/// 128 tokens and few rows: blocks of 64 rows, each with all tokens. Blocks of 128 rows and 64 tokens read x less often and each weight
/// twice: they would be faster if the cache gave 16-bit x only at the rate of bytes.
#[test]
fn one_warp_group_multiplies_128_tokens() {
    for shape in [(4096, 4096), (4096, 14336)] {
        match choose(&problem("sym", 0, "sm_90a", shape), 128) {
            Ok(Chosen::WarpGroup(tile)) => assert_eq!((tile.tokens, tile.groups), (128, 1)),
            other => panic!("{other:?}"),
        }
    }
}

/// Many tokens: three whole stages if they fit where scales are in two parts, or else halves of k-tiles, of which there are more, and blocks
/// that persist.
#[test]
fn many_tokens_take_whole_stages_or_halves() {
    for (scheme, x, parts, persistent) in [
        ("parts", 0, 1, false),
        ("minima", 0, 1, false),
        ("levels", 0, 2, true),
        ("short", 0, 2, true),
        ("minima", 1, 2, true),
        ("terms", 1, 2, true),
    ] {
        let problem = problem_of_range(scheme, x, "sm_90a", (8192, 8192));
        let Ok(Chosen::WarpGroup(tile)) = choose(&problem, 1024) else { panic!("{scheme}") };
        assert_eq!(
            (tile.tokens, tile.parts, tile.persistent),
            (256, parts, persistent),
            "{scheme}"
        );
        assert!(tile.stages >= 3, "{scheme}: {}", tile.stages);
    }
}

/// The unit of weights times their scales, which bounds have for what is lost below the smallest number, is that of the terms
/// that are added to them: far below that of decoded codes where scales stand for a power of two.
#[test]
fn weights_and_terms_have_one_unit() {
    for scheme in ["terms", "minima"] {
        let [problem, in_f16] = products(scheme, (64, 256));
        assert_eq!(problem.scaled_exponent(), problem.correction_exponent(), "{scheme}");
        assert!(problem.scaled_exponent() < problem.plan.dequant.encoding().1 - 16, "{scheme}");
        assert_eq!([in_f16.scaled_exponent(), in_f16.correction_exponent()], [0, 0], "{scheme}");
    }
}

/// Levels of a shift are stored where they are all that is added: a zero point is in the same term.
#[test]
fn terms_of_zero_points_are_computed() {
    let shift = "shift: f16, scale: f16 per 1x32";
    for (numbers, stored) in
        [(shift.to_owned(), true), (format!("zero: u4 u32 [n:8 | n, g], {shift}"), false)]
    {
        let text =
            format!("s {{ weight: u4, {numbers}, pack: u32 [k:8 | k, n], activation: bf16 }}");
        let scheme = quantloom_dsl::parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"));
        let target = quantloom_codegen::target::target("sm_90a").unwrap();
        let problem = Problem::new(&scheme, &scheme.activations[0], target, (64, 256)).unwrap();
        let kind = problem.correction.unwrap().kind;
        assert_eq!(matches!(kind, ParamKind::Stored(_)), stored, "{text}: {kind:?}");
    }
}

/// What may be wrong with scales and terms in parts.
const MUTATIONS: &[(&str, &str, Mutation)] = &[
    ("no low parts", "expected", |_, op| {
        if let Op::Binary { op: Binary::SubF32, a, b, .. } = op {
            *a = *b;
        }
    }),
    ("low parts of another number", "expected", |_, op| {
        if let Op::Binary { op: Binary::SubF32, b, .. } = op {
            *b = Operand::F32(0.0);
        }
    }),
    ("the low half of a number as its high part", "expected", |_, op| {
        if let Op::Ternary { op: Ternary::Permute, c, .. } = op
            && *c == Operand::U32(0x3232)
        {
            *c = Operand::U32(0x1010);
        }
    }),
    ("products without what is added to them", "expected", |place, op| {
        if let Op::Ternary { op: Ternary::FmaPacked(Half::Bf16), c, .. } = op
            && place.in_loop
            && matches!(c, Operand::Reg(_))
        {
            *c = Operand::U32(0x8000_8000);
        }
    }),
];

/// The same of f16.
const MUTATIONS_IN_F16: &[(&str, &str, Mutation)] = &[
    ("the first row of a lane for its second", "expected", |_, op| {
        if let Op::Ternary { op: Ternary::Permute, c, .. } = op
            && *c == Operand::U32(0x3232)
        {
            *c = Operand::U32(0x1010);
        }
    }),
    ("weights without a term", "expected", |place, op| {
        if let Op::Ternary { op: Ternary::FmaPacked(Half::F16), b: Operand::Reg(_), c, .. } = op
            && place.in_loop
            && matches!(c, Operand::Reg(_))
        {
            *c = Operand::U32(0x8000_8000);
        }
    }),
    ("bytes under another exponent", "expected", |_, op| {
        if let Op::Ternary { op: Ternary::Permute, b, .. } = op
            && *b == Operand::U32(0x64)
        {
            *b = Operand::U32(0x65);
        }
    }),
];

/// With a single column of x for each token, so that the bound is that of one weight.
#[test]
fn mutations_are_found() {
    for (scheme, in_f16) in SCHEMES.into_iter().zip([&[0][..], &[0, 1], &[0, 2], &[0, 1, 2]]) {
        let of_f16: Vec<_> = in_f16.iter().map(|&at| MUTATIONS_IN_F16[at]).collect();
        for (problem, mutations) in products(scheme, (72, 840)).iter().zip([MUTATIONS, &of_f16]) {
            let product = RandomProduct::draw(problem, 16, 21).with_single_columns();
            let of_warps =
                WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, ..WARP_GROUP };
            for chosen in [
                Chosen::Skinny(SkinnyTile { tokens: 16, ..SKINNY }),
                Chosen::Tile(TILE),
                Chosen::WarpGroup(of_warps),
            ] {
                all_found(&chosen.write(problem).unwrap(), &product, mutations);
            }
        }
    }
}
