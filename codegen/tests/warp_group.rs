//! The schedule of warp groups: right on ragged shapes, assembled without spills and without waits that the
//! assembler adds, and nothing that is wrong in it stays unnoticed.

use crate::kernels::mutation::{Mutation, gone, mutate};
use crate::kernels::product::RandomProduct;
use crate::kernels::products::problem;
use crate::kernels::tiles::WARP_GROUP;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{Binary, Half, Kernel, Op, Operand, Statement, Ternary, verify};
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{ChoiceRule, Problem, Schedule, Unscheduled};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::ptxas;

/// A scheme, its activation, N and K.
type Case = (&'static str, usize, (u32, u32));

fn check((scheme, activation, shape): Case, m: u32, tile: WarpGroupTile) {
    let any = problem(scheme, activation, "sm_90a", shape);
    // Kernels of weights whose scales are in a range: below 2 they are in the constants of last steps, and in f16 there is
    // no other kernel with scales on weights.
    let in_range = any.clone().of_scales(!tile.exact);
    let in_range = Some(in_range).filter(Problem::scales_in_range);
    let any = Some(any).filter(|any| tile.exact || any.half() == Some(Half::Bf16));
    for problem in any.into_iter().chain(in_range) {
        let kernel = tile.build(&problem).unwrap_or_else(|why| panic!("{scheme}: {why}"));
        let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
        let product = RandomProduct::draw(&problem, m as usize, u64::from(shape.0 * shape.1 + m));
        let product = if tile.exact { product } else { product.with_scaled_weights() };
        for seed in 0..2 {
            let report = product.simulate(&kernel, 64, seed);
            let report = report.unwrap_or_else(|wrong| panic!("{}, M = {m}: {wrong}", kernel.name));
            assert_eq!(report.conflicts(), 0, "{}, M = {m}:\n{report}", kernel.name);
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
        [("sym", 32, 4), ("short", 32, 16), ("bytes", 16, 4), ("asym", 32, 32)]
    {
        let problem = problem(scheme, 0, "sm_90a", (72, 512));
        let of_scales = problem.clone().of_scales(true);
        let found = [&problem, &of_scales].map(|problem| multiplications(problem, tile));
        assert_eq!(found, [any, in_range], "{scheme}");
        assert_eq!(of_scales.scales_in_range(), any != in_range, "{scheme}");
    }
}

/// M, N and K that no tile divides, one token, one k-tile, fewer k-tiles than stages, K within a chunk.
#[test]
fn products_are_right() {
    let tile = |tokens, groups, row_tiles, stages, batch| WarpGroupTile {
        tokens,
        groups,
        row_tiles,
        stages,
        batch,
        ..WARP_GROUP
    };
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
        (("parts", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("parts", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
        (("terms", 0, (72, 392)), 9, tile(16, 2, 1, 3, 4)),
        (("terms", 0, (136, 296)), 33, tile(48, 1, 2, 2, 2)),
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
        (("sym", 0, (72, 264)), 41, WarpGroupTile { tokens: 48, groups: 1, ..split }),
    ];
    for (case, m, tile) in cases {
        check(case, m, tile);
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
    let tile = WarpGroupTile { tokens: 48, stages: 3, exact: true, ..WARP_GROUP };
    let why = tile.build(&problem).expect_err("tiles of 32 tokens in part");
    assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::TokenTiles, .. }), "{why}");
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
    for (tokens, groups, row_tiles, stages, batch) in Share::new(1, 2).of(large) {
        let tile = WarpGroupTile { tokens, groups, row_tiles, stages, batch, ..WARP_GROUP };
        check(("sym", 0, (392, 1096)), 300, tile);
        check(("asym", 0, (256, 640)), 130, tile);
    }
    let large = WarpGroupTile { tokens: 128, stages: 3, batch: 2, ..WARP_GROUP };
    check(("halves", 0, (392, 1096)), 300, WarpGroupTile { exact: true, ..large });
    check(("sym", 0, (392, 1096)), 300, WarpGroupTile { splits: 2, ..large });
    check(("sym", 0, (392, 1096)), 300, WarpGroupTile { multicast: 2, ..large });
    let wide = WarpGroupTile { tokens: 256, parts: 2, batch: 1, stages: 4, ..WARP_GROUP };
    check(("sym", 0, (392, 1096)), 300, wide);
}

/// The tiles of a large product that tuning measures.
#[test]
fn tiles_assemble() {
    let share = Share::new(29, 24);
    let Some(ptxas) = ptxas::find() else { return };
    let mut failed = Vec::new();
    for (of, scheme) in [
        "sym",
        "halves",
        "asym",
        "asym_halves",
        "bias",
        "integers",
        "e4m3",
        "blocks",
        "mixed",
        "nibbles",
        "short",
        "parts",
        "terms",
    ]
    .into_iter()
    .enumerate()
    {
        // Where there are kernels for scales of a range: these.
        let problem = problem(scheme, 0, "sm_90a", (8192, 8192)).of_scales(true);
        let all = WarpGroupTile::candidates(&problem, 256);
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
        for (_, tile) in all.chain(several) {
            let kernel = verify(tile.build(&problem).unwrap()).unwrap();
            let assembled = ptxas.assemble(&ptx::emit(&kernel).unwrap(), "sm_90a");
            if !assembled.is_clean() {
                failed.push(format!("{}:\n{}", kernel.name, assembled.report));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What is wrong with a kernel's result after a mutation: `None` if it is correct.
fn wrong(kernel: &Kernel, product: &RandomProduct, mutation: Option<Mutation>) -> Option<String> {
    let mut kernel = kernel.clone();
    if let Some(mutation) = mutation
        && !mutate(&mut kernel, mutation)
    {
        return Some("the kernel is the same".to_owned());
    }
    match verify(kernel) {
        Ok(kernel) => product.simulate(&kernel, 64, 1).err(),
        Err(refusals) => Some(refusals.to_string()),
    }
}

/// A mutation, its description, and a part of what must be said of it.
const MUTATIONS: &[(&str, &str, Mutation)] = &[
    ("no fence before products", "matrix fence", |_, op| {
        if *op == Op::MatrixFence {
            gone(op);
        }
    }),
    ("a batch more in flight than there are registers for", "", |place, op| {
        if let Op::MatrixWait { pending } = op
            && place.in_loop
        {
            *pending += 1;
        }
    }),
    ("sums exchanged or y written over stages that another warp reads", "unordered", |_, op| {
        if matches!(op, Op::NamedBarrier { id: 2, .. }) {
            gone(op);
        }
    }),
    ("sums read while products are in flight", "in flight", |place, op| {
        if matches!(op, Op::MatrixWait { .. }) && !place.in_loop {
            gone(op);
        }
    }),
    ("words read before they are there", "still being written", |place, op| {
        if matches!(op, Op::MbarrierWait { .. }) && !place.in_loop {
            gone(op);
        }
    }),
    ("a stage filled while it is read, or read while it is filled", "", |place, op| {
        if matches!(op, Op::MbarrierWait { .. }) && place.in_loop {
            gone(op);
        }
    }),
    ("a stage released before all lanes have read it", "unordered", |_, op| {
        if *op == Op::WarpSync {
            gone(op);
        }
    }),
    ("a stage that is never released", "wait", |_, op| {
        if matches!(op, Op::MbarrierArrive { expect: None, .. }) {
            gone(op);
        }
    }),
    ("more bytes announced than are copied", "wait", |_, op| {
        if let Op::MbarrierArrive { expect: Some(Operand::U32(bytes)), .. } = op {
            *bytes += 16;
        }
    }),
    ("fewer bytes announced than are copied", "", |_, op| {
        if let Op::MbarrierArrive { expect: Some(Operand::U32(bytes)), .. } = op {
            *bytes -= 16;
        }
    }),
    ("mbarriers that copies do not see", "MbarrierFence", |_, op| {
        if *op == Op::MbarrierFence {
            gone(op);
        }
    }),
    ("lines of y that the store does not see", "without a FenceAsync", |_, op| {
        if *op == Op::FenceAsync {
            gone(op);
        }
    }),
    ("lines of y stored before all warps wrote them", "unordered", |_, op| {
        if matches!(op, Op::NamedBarrier { .. }) {
            gone(op);
        }
    }),
    ("the block ends before y is read", "", |_, op| {
        if matches!(op, Op::BulkWait { .. }) {
            gone(op);
        }
    }),
    ("no wait for the grid before", "earlier grids", |_, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
    ("no swizzle", "", |_, op| {
        if let Op::Binary { op: op @ Binary::Xor, b, .. } = op
            && *b != Operand::U32(1)
        {
            *op = Binary::Or;
        }
    }),
    ("a parity that never changes", "", |_, op| {
        if let Op::Binary { op: Binary::Xor, b, .. } = op
            && *b == Operand::U32(1)
        {
            *b = Operand::U32(0);
        }
    }),
    ("y not transposed", "expected", |_, op| {
        if let Op::MatrixStore { transpose, .. } = op {
            *transpose = false;
        }
    }),
    ("words of another lane", "expected", |_, op| {
        if let Op::MatrixLoad { dst, .. } = op {
            dst.swap(0, 1);
        }
    }),
    ("x of the token beside", "expected", |_, op| {
        if let Op::TensorLoad { at, .. } = op
            && let [_, token] = &mut at[..]
        {
            *token = Operand::U32(1);
        }
    }),
    ("the scale of the first half of a tile for both", "expected", |_, op| {
        if let Op::Ternary { c, .. } = op
            && *c == Operand::U32(0x3232)
        {
            *c = Operand::U32(0x1010);
        }
    }),
];

#[test]
fn mutations_are_found() {
    // Ragged in M, N and K, with zero points; a stage is used again.
    let problem = problem("asym", 0, "sm_90a", (72, 840));
    let product = RandomProduct::draw(&problem, 9, 21).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, ..WARP_GROUP };
    all_found(&tile.build(&problem).unwrap(), &product, MUTATIONS);
}

/// What may be wrong with scales in constants.
const MUTATIONS_OF_CONSTANTS: &[(&str, &str, Mutation)] = &[
    ("the scale of one row for both", "expected", |_, op| {
        if let Op::Ternary { c, .. } = op
            && *c == Operand::U32(0x3232)
        {
            *c = Operand::U32(0x1010);
        }
    }),
    ("a base without its scale", "expected", |_, op| {
        // -8 / 64, the base of codes of 4 bits.
        if let Op::Binary { op: Binary::MulPacked(_), a, b, .. } = op
            && *b == Operand::U32(0xbe00_be00)
        {
            *a = Operand::U32(0x3f80_3f80);
        }
    }),
];

#[test]
fn mutations_of_constants_are_found() {
    let problem = problem("short", 0, "sm_90a", (72, 840)).of_scales(true);
    let product = RandomProduct::draw(&problem, 9, 21).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, ..WARP_GROUP };
    all_found(&tile.build(&problem).unwrap(), &product, MUTATIONS_OF_CONSTANTS);
}

/// What may be wrong with scales and terms in parts.
const MUTATIONS_OF_PARTS: &[(&str, &str, Mutation)] = &[
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

/// With a single column of x for each token, so that the bound is that of one weight.
#[test]
fn mutations_of_parts_are_found() {
    for scheme in ["parts", "terms"] {
        let problem = problem(scheme, 0, "sm_90a", (72, 840));
        let product = RandomProduct::draw(&problem, 16, 21).with_scaled_weights();
        let product = product.with_single_columns();
        let tile = WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, ..WARP_GROUP };
        all_found(&tile.build(&problem).unwrap(), &product, MUTATIONS_OF_PARTS);
    }
}

fn all_found(kernel: &Kernel, product: &RandomProduct, mutations: &[(&str, &str, Mutation)]) {
    assert_eq!(wrong(kernel, product, None), None);
    let missed = mutations.iter().filter_map(|(what, said, mutation)| {
        match wrong(kernel, product, Some(*mutation)) {
            Some(found) if found.contains(said) && !found.contains("is the same") => None,
            found => Some(format!("{what}: {found:?}")),
        }
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Mutations of kernels whose blocks split K.
const OF_CLUSTER: &[(&str, &str, Mutation)] = &[
    ("no barriers of the cluster", "", |_, op| {
        if *op == Op::ClusterBarrier {
            gone(op);
        }
    }),
    ("sums exchanged over codes that another warp reads", "unordered", |_, op| {
        if matches!(op, Op::NamedBarrier { id: 2, .. }) {
            gone(op);
        }
    }),
    ("the own sums twice", "expected", |_, op| {
        if let Op::ClusterLoad { block, .. } = op {
            *block = Operand::U32(0);
        }
    }),
];

/// A block that does not wait at its end, while the other one may still read its memory or arrive at its mbarriers.
fn an_early_end_is_found(mut kernel: Kernel, product: &RandomProduct) {
    let Some(Statement::Roles(roles)) = kernel.body.last_mut() else { panic!("no roles") };
    for role in roles {
        let last = role.body.iter().rposition(|op| *op == Statement::Op(Op::ClusterBarrier));
        role.body.remove(last.unwrap());
    }
    let found = wrong(&kernel, product, None).unwrap();
    assert!(found.contains("may end before"), "{found}");
}

#[test]
fn mutations_of_clusters_are_found() {
    let problem = problem("sym", 0, "sm_90a", (72, 520));
    let product = RandomProduct::draw(&problem, 9, 22).with_scaled_weights();
    // With one tile of rows a warp's sums take the place of its own codes alone.
    let tile = WarpGroupTile { tokens: 16, row_tiles: 2, stages: 3, splits: 2, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    all_found(&kernel, &product, OF_CLUSTER);
    an_early_end_is_found(kernel, &product);
}

/// A mutation of blocks that share copies of x, as above.
const OF_SHARED_COPIES: &[(&str, &str, Mutation)] = &[
    ("copies before the other block's mbarriers are there", "", |place, op| {
        if *op == Op::ClusterBarrier && !place.in_loop {
            *op = Op::Barrier;
        }
    }),
    ("no arrival at the other block", "wait", |_, op| {
        if matches!(op, Op::ClusterArrive { .. }) {
            gone(op);
        }
    }),
    ("two arrivals at one block", "", |_, op| {
        if let Op::ClusterArrive { block, .. } = op {
            *block = Operand::U32(0);
        }
    }),
    ("x for one block", "", |_, op| {
        if let Op::TensorLoad { multicast: Some(blocks), .. } = op {
            *blocks = Operand::U32(1);
        }
    }),
    ("half of the arrivals", "unordered", |_, op| {
        if let Op::MbarrierInit { arrivals, .. } = op
            && *arrivals > 1
        {
            *arrivals /= 2;
        }
    }),
];

#[test]
fn mutations_of_shared_copies_are_found() {
    let problem = problem("sym", 0, "sm_90a", (136, 1032));
    let product = RandomProduct::draw(&problem, 20, 22).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, stages: 3, multicast: 2, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    all_found(&kernel, &product, OF_SHARED_COPIES);
    an_early_end_is_found(kernel, &product);
}

/// Mutations of blocks that persist, as above, with 8 tokens a block.
const OF_PERSISTENT: &[(&str, &str, Mutation)] = &[
    ("lines of y written while the store of the tile before reads them", "", |place, op| {
        if matches!(op, Op::BulkWait { .. }) && place.in_loop {
            gone(op);
        }
    }),
    ("the block ends before its last tile is read", "", |place, op| {
        if matches!(op, Op::BulkWait { .. }) && !place.in_loop {
            gone(op);
        }
    }),
    ("no token block for the last tokens", "never written", |_, op| {
        if let Op::Binary { op: Binary::Add, b, .. } = op
            && *b == Operand::U32(7)
        {
            *b = Operand::U32(0);
        }
    }),
    ("the last stage of a tile is not released", "wait", |place, op| {
        if matches!(op, Op::MbarrierArrive { expect: None, .. }) && place.loops == 1 {
            gone(op);
        }
    }),
];

#[test]
fn mutations_of_blocks_that_persist_are_found() {
    let problem = problem("sym", 0, "sm_90a", (264, 392));
    let product = RandomProduct::draw(&problem, 20, 22).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 8, groups: 1, batch: 2, persistent: true, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    all_found(&kernel, &product, OF_PERSISTENT);
    // Both halves of many tokens in one buffer.
    let problem = self::problem("sym", 0, "sm_90a", (392, 136));
    let product = RandomProduct::draw(&problem, 200, 22).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 256, groups: 1, batch: 1, persistent: true, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    assert_eq!(wrong(&kernel, &product, None), None);
    // The wait before either half is needed: of one in turn there are no others.
    for half in 0..2 {
        let (mut kernel, mut number) = (kernel.clone(), 0);
        mutate(&mut kernel, |place, op| {
            if matches!(op, Op::BulkWait { .. }) && place.in_loop {
                if number == half {
                    gone(op);
                }
                number += 1;
            }
        });
        assert_eq!(number, 2);
        assert!(wrong(&kernel, &product, None).is_some(), "half {half}");
    }
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
