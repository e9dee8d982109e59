//! The schedule of warp groups: right on ragged shapes, assembled without spills and without waits that the
//! assembler adds (`warp_group_mutations`: nothing that is wrong in it stays unnoticed).

use crate::kernels::mutation::mutate;
use crate::kernels::product::RandomProduct;
use crate::kernels::products::{problem, problem_of_range};
use crate::kernels::tiles::WARP_GROUP;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{Binary, Half, Op, Statement, verify};
use quantloom_codegen::jit::{LaunchRuleError, launch_rule};
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{ChoiceRule, Problem, Schedule, Unscheduled};
use quantloom_dsl::format::{NUMBER_F32, Number};
use quantloom_runtime::source::LaunchRule;
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::ptxas;
use rayon::prelude::*;

/// A scheme, its activation, N and K.
type Case = (&'static str, usize, (u32, u32));

fn check((scheme, activation, shape): Case, m: u32, tile: WarpGroupTile) {
    check_giving((scheme, activation, shape), None, m, tile);
}

/// The same with y of a type; `None` for that of the scheme.
fn check_giving(
    (scheme, activation, shape): Case,
    output: Option<Number>,
    m: u32,
    tile: WarpGroupTile,
) {
    let giving = |problem: Problem| match output {
        Some(output) => problem.giving(output).unwrap(),
        None => problem,
    };
    let any = giving(problem(scheme, activation, "sm_90a", shape));
    // Kernels of weights whose scales are in a range: below 2 they are in the constants of last steps, and in f16 there is
    // no other kernel with scales on weights.
    let in_range = || giving(problem_of_range(scheme, activation, "sm_90a", shape));
    let in_range = Some(tile).filter(|tile| !tile.exact).map(|_| in_range());
    let in_range = in_range.filter(Problem::scales_in_range);
    let any = Some(any).filter(|any| tile.exact || any.half() == Some(Half::Bf16));
    for problem in any.into_iter().chain(in_range) {
        let kernel = tile.build(&problem).unwrap_or_else(|why| panic!("{scheme}: {why}"));
        let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
        let product = RandomProduct::draw(&problem, m as usize, u64::from(shape.0 * shape.1 + m));
        let product = if tile.exact { product } else { product.with_scaled_weights() };
        for seed in 0..2 {
            let report = product.simulate(&kernel, 64, seed);
            let report = report.unwrap_or_else(|wrong| panic!("{}, M = {m}: {wrong}", kernel.name));
            // Words of a plane of 2 bits are in 256 bytes.
            let rounds = problem.plan.native.plane_words.contains(&2);
            assert!(rounds || report.conflicts() == 0, "{}, M = {m}:\n{report}", kernel.name);
        }
    }
}

/// Scales are in constants where they multiply weights of integer codes and no zero point is in the constants already:
/// a multiplication less for each register of the operand, one more for each constant, row and group.
#[test]
fn scales_in_constants_take_fewer_multiplications() {
    let multiplications = |problem: &Problem, tile: WarpGroupTile| {
        let mut kernel = tile.build(problem).unwrap();
        let mut count = 0;
        mutate(&mut kernel, |place, op| {
            if let Op::Binary { op: Binary::MulPacked(_), .. } = op
                && place.in_loop
            {
                count += 1;
            }
        });
        count
    };
    let tile =
        WarpGroupTile { tokens: 8, groups: 1, row_tiles: 1, stages: 4, batch: 2, ..WARP_GROUP };
    // Of 128 columns and 16 rows a lane has 32 registers of 16 bits; each of its two rows has a factor and a base.
    for (scheme, any, in_range) in
        [("sym", 32, 4), ("short", 32, 16), ("bytes", 16, 4), ("five", 32, 4), ("asym", 32, 32)]
    {
        let problem = problem(scheme, 0, "sm_90a", (72, 512));
        let of_scales = problem.clone().of_scales(true);
        let found = [&problem, &of_scales].map(|problem| multiplications(problem, tile));
        assert_eq!(found, [any, in_range], "{scheme}");
        assert_eq!(of_scales.scales_in_range(), any != in_range, "{scheme}");
    }
}

/// A tile with scales on weights and all of K.
fn tile(tokens: u32, groups: u32, row_tiles: u32, stages: u32, batch: u32) -> WarpGroupTile {
    WarpGroupTile { tokens, groups, row_tiles, stages, batch, ..WARP_GROUP }
}

/// M, N and K that no tile divides, one token, one k-tile, fewer k-tiles than stages, K within a chunk.
#[test]
fn products_are_right() {
    let cases = [
        (("sym", 0, (40, 840)), 33, tile(32, 2, 1, 2, 4)),
        (("sym", 0, (200, 128)), 1, tile(8, 1, 1, 2, 2)),
        (("sym", 0, (136, 328)), 64, tile(64, 1, 2, 3, 2)),
        (("sym", 0, (72, 392)), 17, tile(16, 2, 1, 4, 1)),
        (("asym", 0, (72, 520)), 9, tile(8, 1, 2, 2, 4)),
        (("bias", 0, (264, 8)), 3, tile(8, 3, 1, 2, 4)),
        (("sym", 0, (72, 264)), 43, tile(48, 1, 1, 2, 4)),
        (("halves", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("asym_halves", 0, (72, 520)), 9, tile(8, 1, 2, 2, 4)),
        (("short", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("short", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("sym", 0, (40, 136)), 75, tile(80, 1, 1, 2, 2)),
        (("sym", 0, (72, 136)), 20, tile(24, 1, 2, 2, 2)),
        (("sym", 0, (40, 136)), 111, tile(112, 1, 1, 2, 2)),
        (("sym", 0, (40, 136)), 145, tile(144, 1, 1, 2, 1)),
        (("sym", 0, (40, 136)), 170, tile(176, 1, 1, 2, 1)),
        (("sym", 0, (40, 136)), 239, tile(240, 1, 1, 2, 1)),
        (("parts", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("parts", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("terms", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("terms", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("three", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("three", 1, (136, 328)), 33, tile(32, 1, 2, 3, 2)),
        (("five", 0, (40, 840)), 33, tile(32, 2, 1, 2, 4)),
        (("five", 1, (72, 264)), 9, tile(16, 1, 2, 2, 2)),
        (("six", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("six", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("seven", 0, (72, 200)), 17, tile(16, 2, 1, 4, 1)),
        (("seven", 0, (136, 328)), 9, tile(8, 1, 2, 3, 2)),
        (("levels", 0, (72, 840)), 9, tile(16, 2, 1, 3, 4)),
        (("levels", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("minima", 0, (72, 840)), 9, tile(16, 2, 1, 3, 4)),
        (("minima", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("most", 0, (72, 392)), 9, tile(16, 2, 1, 3, 2)),
        // In f16, of a range.
        (("short", 1, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("parts", 1, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("terms", 1, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("terms", 1, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("levels", 1, (72, 840)), 9, tile(16, 2, 1, 3, 4)),
        (("levels", 1, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("minima", 1, (72, 840)), 9, tile(16, 2, 1, 3, 4)),
        (("minima", 1, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
    ];
    for (case, m, tile) in cases {
        check(case, m, tile);
    }
}

/// Scales of f16 and bf16 on sums: groups as long as a k-tile, and half as long.
#[test]
fn exact_products_are_right() {
    let exact = WarpGroupTile { exact: true, ..WARP_GROUP };
    let cases = [
        (("sym", 0, (72, 392)), 17, WarpGroupTile { tokens: 16, ..exact }),
        (("sym", 1, (40, 264)), 33, WarpGroupTile { groups: 1, stages: 3, batch: 2, ..exact }),
        (("halves", 0, (136, 328)), 9, WarpGroupTile { tokens: 8, batch: 4, ..exact }),
        (("bias", 0, (72, 520)), 5, WarpGroupTile { tokens: 8, groups: 1, ..exact }),
        (("five", 0, (72, 392)), 17, WarpGroupTile { tokens: 16, ..exact }),
        (("three", 0, (136, 264)), 9, WarpGroupTile { tokens: 8, groups: 1, ..exact }),
    ];
    for (case, m, tile) in cases {
        check(case, m, tile);
    }
}

/// K in two parts, of as many stages and of one more; stages of half a k-tile.
#[test]
fn parts_of_k_are_right() {
    let split = WarpGroupTile { splits: 2, ..WARP_GROUP };
    let half = WarpGroupTile { parts: 2, batch: 2, stages: 3, ..WARP_GROUP };
    let cases = [
        (("sym", 0, (40, 840)), 33, split),
        (
            ("asym", 0, (136, 256)),
            15,
            WarpGroupTile { tokens: 16, row_tiles: 2, groups: 1, ..split },
        ),
        (("halves", 0, (72, 392)), 40, WarpGroupTile { exact: true, ..split }),
        (("sym", 0, (72, 392)), 35, half),
        (("asym", 0, (40, 328)), 20, WarpGroupTile { splits: 2, batch: 1, ..half }),
        // Groups of each half: of bf16, f16, bytes with levels, and with a first stage that is a second half.
        (("short", 0, (72, 392)), 35, half),
        (("parts", 0, (40, 328)), 20, WarpGroupTile { splits: 2, batch: 1, ..half }),
        (("terms", 0, (72, 392)), 35, half),
        (("six", 0, (40, 328)), 20, WarpGroupTile { splits: 2, batch: 1, ..half }),
        (("levels", 0, (72, 648)), 35, half),
        (("levels", 0, (40, 584)), 20, WarpGroupTile { splits: 2, batch: 1, ..half }),
        (("minima", 0, (72, 648)), 35, WarpGroupTile { row_tiles: 2, groups: 1, ..half }),
        (("minima", 0, (40, 328)), 20, WarpGroupTile { splits: 2, batch: 1, ..half }),
        (("sym", 0, (72, 264)), 41, WarpGroupTile { tokens: 48, groups: 1, ..split }),
        (
            ("sym", 0, (40, 264)),
            111,
            WarpGroupTile { tokens: 112, groups: 1, stages: 2, batch: 2, ..split },
        ),
    ];
    for (case, m, tile) in cases {
        check(case, m, tile);
    }
    // Halves of the tokens are stored eight by eight.
    let problem = problem("sym", 0, "sm_90a", (136, 512));
    for tokens in [8, 24] {
        let why = WarpGroupTile { tokens, ..split }.build(&problem).unwrap_err();
        assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::Cluster, .. }), "{why}");
    }
}

/// Copies of x by two blocks for both, of which the last may have no rows; 16 tokens and more, fewer k-tiles than stages.
#[test]
fn shared_copies_of_x_are_right() {
    let shared = WarpGroupTile { multicast: 2, ..WARP_GROUP };
    let cases = [
        (("sym", 0, (264, 840)), 33, shared),
        (
            ("asym", 0, (72, 392)),
            20,
            WarpGroupTile { tokens: 16, groups: 1, stages: 3, batch: 2, ..shared },
        ),
        (("halves", 0, (136, 128)), 40, WarpGroupTile { exact: true, ..shared }),
        (
            ("bias", 0, (200, 264)),
            90,
            WarpGroupTile { tokens: 48, groups: 1, stages: 2, batch: 2, ..shared },
        ),
    ];
    for (case, m, tile) in cases {
        check(case, m, tile);
    }
    let problem = problem("sym", 0, "sm_90a", (136, 512));
    for tile in [
        WarpGroupTile { splits: 2, ..shared },
        WarpGroupTile { tokens: 8, ..shared },
        WarpGroupTile { multicast: 3, ..shared },
    ] {
        let why = tile.build(&problem).unwrap_err();
        assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::Multicast, .. }), "{why}");
    }
}

/// Blocks that persist: several tiles a block, fewer tiles than blocks, two halves of the tokens of each of several tiles, more
/// rows than a band has.
#[test]
fn blocks_that_persist_are_right() {
    let persistent = WarpGroupTile { persistent: true, ..WARP_GROUP };
    let small = WarpGroupTile { tokens: 8, groups: 1, batch: 2, ..persistent };
    let cases = [
        (("sym", 0, (264, 136)), 35, small),
        (
            ("asym", 0, (72, 392)),
            20,
            WarpGroupTile { tokens: 16, stages: 3, batch: 2, ..persistent },
        ),
        (("halves", 0, (136, 128)), 40, WarpGroupTile { exact: true, ..persistent }),
        (("bias", 0, (1160, 136)), 60, WarpGroupTile { stages: 3, programmatic: false, ..small }),
        (("sym", 0, (24, 136)), 9, small),
        (
            ("sym", 0, (392, 136)),
            270,
            WarpGroupTile { tokens: 256, groups: 1, batch: 1, ..persistent },
        ),
        // All tokens' lines at once, and in two halves.
        (
            ("sym", 0, (136, 136)),
            290,
            WarpGroupTile { tokens: 144, groups: 1, stages: 3, batch: 1, ..persistent },
        ),
        (
            ("sym", 0, (136, 136)),
            450,
            WarpGroupTile { tokens: 224, groups: 1, stages: 2, batch: 1, ..persistent },
        ),
        // Two blocks share copies of x: bands have an even number of blocks of rows.
        (
            ("sym", 0, (1096, 136)),
            70,
            WarpGroupTile {
                tokens: 16,
                groups: 1,
                stages: 3,
                batch: 2,
                multicast: 2,
                ..persistent
            },
        ),
    ];
    for (case, m, tile) in cases {
        check(case, m, tile);
    }
    let problem = problem("sym", 0, "sm_90a", (136, 512));
    let why = WarpGroupTile { splits: 2, ..persistent }.build(&problem).unwrap_err();
    assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::Persistent, .. }), "{why}");
}

/// Rows of y that are no whole vectors of 16 bytes, of an odd and an even number of numbers: one block, several tiles of rows of a
/// warp group, a part of K, shared copies of x, blocks that persist, halves of the tokens; one row. (Bytes: `tests::warp_group`.)
#[test]
fn any_number_of_rows_is_right() {
    let persistent = WarpGroupTile { persistent: true, stages: 3, ..WARP_GROUP };
    let cases = [
        (("sym", 0, (41, 264)), 33, tile(32, 2, 1, 2, 4)),
        (("sym", 0, (138, 264)), 65, tile(64, 1, 2, 3, 2)),
        (("bias", 0, (1, 136)), 5, tile(8, 1, 1, 2, 4)),
        (("halves", 0, (67, 264)), 9, tile(16, 2, 1, 3, 4)),
        (("sym", 0, (77, 840)), 17, WarpGroupTile { splits: 2, ..tile(16, 1, 1, 2, 2) }),
        (("sym", 0, (263, 264)), 33, WarpGroupTile { multicast: 2, ..WARP_GROUP }),
        (
            ("sym", 0, (265, 136)),
            35,
            WarpGroupTile { tokens: 8, groups: 1, batch: 2, ..persistent },
        ),
        (
            ("sym", 0, (394, 136)),
            270,
            WarpGroupTile { tokens: 256, groups: 1, batch: 1, stages: 2, ..persistent },
        ),
    ];
    for (case, m, tile) in cases {
        check(case, m, tile);
    }
    // No tensor copy stores such rows.
    let maps = |n| {
        let kernel = WARP_GROUP.build(&problem("sym", 0, "sm_90a", (n, 264))).unwrap();
        kernel.tensors.iter().filter(|map| map.name == "y_map").count()
    };
    assert_eq!([136, 137, 138, 140, 144].map(maps), [1, 0, 0, 0, 1]);
    // What has no form for these rows refuses them.
    let blocks = problem("blocks", 0, "sm_90a", (138, 264));
    let unswapped = WarpGroupTile { unswapped: true, tokens: 128, ..WARP_GROUP };
    let why = unswapped.build(&blocks).unwrap_err();
    assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::Unswapped, .. }), "{why}");
}

/// y in f32, which lanes store: ragged in M, N and K, a part of K, blocks that persist, two tiles of rows, scales on sums.
#[test]
fn y_in_f32_is_right() {
    let persistent = WarpGroupTile { persistent: true, stages: 3, ..WARP_GROUP };
    let cases = [
        (("sym", 0, (72, 392)), 17, tile(16, 2, 1, 4, 1)),
        (("sym", 0, (41, 264)), 33, tile(32, 2, 1, 2, 4)),
        (("asym", 0, (138, 264)), 65, tile(64, 1, 2, 3, 2)),
        (("halves", 0, (136, 328)), 9, WarpGroupTile { tokens: 8, exact: true, ..WARP_GROUP }),
        (("sym", 0, (77, 840)), 17, WarpGroupTile { splits: 2, ..tile(16, 1, 1, 2, 2) }),
        // Whole blocks of rows, and beside them a block of a cluster without rows.
        (("sym", 0, (256, 136)), 17, tile(16, 2, 1, 4, 1)),
        (("sym", 0, (128, 264)), 33, WarpGroupTile { multicast: 2, ..WARP_GROUP }),
        (("sym", 0, (384, 136)), 33, WarpGroupTile { multicast: 2, ..persistent }),
        (
            ("bias", 0, (265, 136)),
            35,
            WarpGroupTile { tokens: 8, groups: 1, batch: 2, ..persistent },
        ),
    ];
    for (case, m, tile) in cases {
        check_giving(case, Some(NUMBER_F32), m, tile);
    }
}

/// Operands that are not swapped have 64 tokens for each tile of a warp group, and bytes with scales of x along K.
#[test]
fn unswapped_operands_have_rules() {
    let one = WarpGroupTile {
        tokens: 64,
        groups: 1,
        stages: 2,
        batch: 1,
        unswapped: true,
        exact: true,
        ..WARP_GROUP
    };
    let build = |scheme, tile: WarpGroupTile| tile.build(&problem(scheme, 0, "sm_90a", (264, 512)));
    assert!(build("blocks", one).is_ok());
    let of_rule = |rule: ChoiceRule, scheme, tile| {
        let why = build(scheme, tile).unwrap_err();
        assert!(
            matches!(&why, Unscheduled::Choices { rule: broken, .. } if *broken == rule),
            "{why}"
        );
    };
    of_rule(ChoiceRule::Unswapped, "sym", one);
    of_rule(ChoiceRule::Unswapped, "nibbles", one);
    of_rule(ChoiceRule::UnswappedTokens, "blocks", WarpGroupTile { tokens: 128, ..one });
    of_rule(ChoiceRule::UnswappedChoices, "blocks", WarpGroupTile { batch: 2, ..one });
    of_rule(ChoiceRule::UnswappedChoices, "blocks", WarpGroupTile { exact: false, ..one });
    let wide = WarpGroupTile { tokens: 384, groups: 3, row_tiles: 2, ..one };
    of_rule(ChoiceRule::UnswappedTokens, "blocks", wide);
    of_rule(ChoiceRule::RingStages, "blocks", WarpGroupTile { stages: 1, ..one });
    let tall = build("blocks", WarpGroupTile { tokens: 256, groups: 2, row_tiles: 2, ..one });
    assert!(tall.is_ok(), "{tall:?}");
}

/// A tile of 64 columns, as 8-bit codes have, has one line of 128 bytes of x: half a line a stage would leave
/// the other half of the ring's line unwritten.
#[test]
fn halves_of_a_line_of_x_are_no_stages() {
    let half = WarpGroupTile { parts: 2, batch: 1, stages: 3, ..WARP_GROUP };
    let problem = |scheme| problem(scheme, 0, "sm_90a", (72, 512));
    assert!(half.build(&problem("sym")).is_ok());
    let why = half.build(&problem("bytes")).unwrap_err();
    assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::Parts, .. }), "{why}");
}

/// The least number of tokens of an instruction that leaves the fewest over; with scales of x along K whole tiles of 32.
#[test]
fn tiles_have_as_many_tokens_as_instructions_do() {
    for (scheme, m, tokens) in [
        ("sym", 40, 48),
        ("sym", 75, 80),
        ("sym", 300, 160),
        ("sym", 210, 224),
        ("sym", 20, 32),
        ("integers", 90, 96),
        ("blocks", 40, 64),
        ("blocks", 75, 96),
        // Where scales multiply sums, of a third more blocks than the fewest.
        ("nibbles", 4096, 192),
    ] {
        let problem = problem(scheme, 0, "sm_90a", (8192, 8192));
        let tiles = WarpGroupTile::candidates(&problem, m);
        assert!(tiles.iter().any(|tile| tile.tokens == tokens), "{scheme}, M = {m}");
        let over = |tile: &&WarpGroupTile| {
            !tile.unswapped && (tokens + 1..2 * tokens).contains(&tile.tokens)
        };
        let over = tiles.iter().filter(over);
        assert_eq!(over.count(), 0, "{scheme}, M = {m}");
    }
    let problem = problem("blocks", 0, "sm_90a", (72, 512));
    for tokens in [24, 48] {
        let tile = WarpGroupTile { tokens, stages: 3, exact: true, ..WARP_GROUP };
        let why = tile.build(&problem).expect_err("tiles of 32 tokens in part");
        assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::TokenTiles, .. }), "{why}");
    }
}

/// Consumers of 4-bit codes that are multiplied as e4m3 load words of the next stage before they release one: with the stage whose
/// sums are not ready a consumer has three, and would wait forever in a ring of two.
#[test]
fn rings_have_the_stages_that_consumers_hold() {
    let problem = problem("nibbles", 0, "sm_90a", (72, 512));
    let refused = |stages| {
        let tile = WarpGroupTile { groups: 1, stages, batch: 2, exact: true, ..WARP_GROUP };
        tile.build(&problem).err()
    };
    assert!(refused(3).is_none());
    let why = refused(2).expect("a ring of two stages");
    assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::RingStages, .. }), "{why}");
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn products_of_large_tiles_are_right() {
    let large = [(128, 2, 1, 4, 2), (256, 1, 1, 2, 1), (128, 2, 2, 3, 1), (64, 3, 1, 4, 4)];
    let of =
        |(tokens, groups, row_tiles, stages, batch)| tile(tokens, groups, row_tiles, stages, batch);
    let mut all = Vec::new();
    for tile in Share::new(1, 4).of(large).into_iter().map(of) {
        all.push((("sym", 0, (392, 1096)), 300, tile));
        all.push((("asym", 0, (256, 640)), 130, tile));
    }
    let large = WarpGroupTile { tokens: 128, stages: 3, batch: 2, ..WARP_GROUP };
    let wide = WarpGroupTile { tokens: 256, parts: 2, batch: 1, stages: 4, ..WARP_GROUP };
    all.push((("halves", 0, (392, 1096)), 300, WarpGroupTile { exact: true, ..large }));
    for tile in
        [WarpGroupTile { splits: 2, ..large }, WarpGroupTile { multicast: 2, ..large }, wide]
    {
        all.push((("sym", 0, (392, 1096)), 300, tile));
    }
    all.into_par_iter().for_each(|(of, m, tile)| check(of, m, tile));
}

/// The tiles of a large product that tuning measures.
#[test]
fn tiles_assemble() {
    let share = Share::new(29, 24);
    let Some(ptxas) = ptxas::find() else { return };
    let mut failed = Vec::new();
    let schemes = [
        "sym",
        "halves",
        "asym",
        "asym_halves",
        "bias",
        "integers",
        "integers5",
        "integers7",
        "e4m3",
        "blocks",
        "mixed",
        "nibbles",
        "short",
        "parts",
        "terms",
    ];
    let in_f16 = ["parts", "terms", "levels", "minima"].map(|scheme| (scheme, 1));
    let all = schemes.map(|scheme| (scheme, 0)).into_iter().chain(in_f16);
    for (of, (scheme, activation)) in all.enumerate() {
        // Where there are kernels for scales of a range: these.
        let problem = problem_of_range(scheme, activation, "sm_90a", (8192, 8192));
        let mut all = WarpGroupTile::candidates(&problem, 256);
        all.retain(|tile| tile.fits(&problem));
        assert!(all.len() >= 8, "{scheme}: {} tiles", all.len());
        let all = all.into_iter().enumerate().filter(|(at, _)| share.takes(512 * of + at));
        let wide = WarpGroupTile { tokens: 256, stages: 3, batch: 1, ..WARP_GROUP };
        let several = [
            WarpGroupTile { multicast: 2, ..wide },
            WarpGroupTile { persistent: true, stages: 4, ..wide },
        ];
        let of_nibbles = WarpGroupTile { tokens: 192, exact: true, batch: 1, ..wide };
        let of_nibbles = [
            of_nibbles,
            WarpGroupTile { persistent: true, ..of_nibbles },
            WarpGroupTile { groups: 1, batch: 2, ..of_nibbles },
        ];
        let several = match scheme {
            "e4m3" => several.to_vec(),
            "nibbles" => of_nibbles.to_vec(),
            _ => Vec::new(),
        };
        let several = several.into_iter().map(|tile| (0, tile));
        let all = all.chain(several).map(|(_, tile)| tile.build(&problem).unwrap());
        // The model's tiles of y in f32, and of rows that no tensor copy stores.
        let others = [64, 256, 1024].into_iter().enumerate().flat_map(|(at, m)| {
            let of_f32 = problem.clone().giving(NUMBER_F32).unwrap();
            let ragged = problem_of_range(scheme, activation, "sm_90a", (8191, 8192));
            let taken = share.takes(512 * of + 300 + at);
            let problems = [of_f32, ragged].into_iter().filter(move |_| taken);
            problems.map(move |problem| {
                WarpGroupTile::choose(&problem, m).unwrap().build(&problem).unwrap()
            })
        });
        for kernel in all.chain(others) {
            let kernel = verify(kernel).unwrap();
            let assembled = ptxas.assemble(&ptx::emit(&kernel).unwrap(), "sm_90a");
            if !assembled.is_clean() {
                failed.push(format!("{}:\n{}", kernel.name, assembled.report));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Roles that ask for more registers than a block has would wait for each other for ever.
#[test]
fn too_many_registers_are_refused() {
    let problem = problem("sym", 0, "sm_90a", (128, 256));
    let mut kernel = WARP_GROUP.build(&problem).unwrap();
    let Some(Statement::Roles(roles)) = kernel.body.last_mut() else { panic!("no roles") };
    roles[0].registers = Some(240);
    let refusals = verify(kernel).unwrap_err().to_string();
    assert!(refusals.contains("would deadlock"), "{refusals}");
}

/// A launch passes so many tensor maps: of x, y, three planes of codes, two levels of scales and two of minima there are nine.
#[test]
fn kernels_have_as_many_tensor_maps_as_a_launch_passes() {
    let problem = problem("most", 0, "sm_90a", (72, 392));
    let tile = WarpGroupTile { stages: 3, batch: 2, ..WARP_GROUP };
    let mut kernel = tile.build(&problem).unwrap();
    assert_eq!(kernel.tensors.len(), 9);
    assert!(launch_rule(&kernel).is_ok());
    let map = kernel.tensors[0].clone();
    kernel.tensors.resize(LaunchRule::MOST_TENSOR_MAPS + 1, map);
    assert!(matches!(launch_rule(&kernel), Err(LaunchRuleError::TensorMaps { .. })));
}

/// Scales and terms of half a k-tile have the same places if their numbers have the same bits: 16 and 8, or 8 and 32, have no
/// stages of half a k-tile.
#[test]
fn numbers_of_other_bits_have_whole_stages() {
    for (numbers, halves) in [
        ("shift: f16, scale: f16 per 1x32", true),
        ("shift: -u6, shift: f16 per 1x256, scale: f16 per 1x32", false),
        ("zero: u4, scale: u6 per 1x32, scale: f16 per 1x256", false),
        ("shift: f16, scale: u6 per 1x32, scale: f16 per 1x256", false),
    ] {
        let text =
            format!("mixed {{ weight: u6, {numbers}, pack: u32 [k:* | w, n], activation: bf16 }}");
        let scheme = quantloom_dsl::parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"));
        let target = quantloom_codegen::target::target("sm_90a").unwrap();
        let shape = (8192, 8192);
        let problem = Problem::new(&scheme, &scheme.activations[0], target, shape).unwrap();
        let half = WarpGroupTile { parts: 2, batch: 2, stages: 3, ..WARP_GROUP };
        match half.build(&problem) {
            Ok(_) => assert!(halves, "{text}"),
            Err(Unscheduled::Choices { rule, .. }) => {
                assert!(!halves && rule == ChoiceRule::Parts, "{text}: {rule:?}");
            }
            Err(why) => panic!("{text}: {why}"),
        }
        // What is chosen for many tokens is written.
        quantloom_codegen::schedule::choose(&problem, 1024).unwrap().write(&problem).unwrap();
    }
}
