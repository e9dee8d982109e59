//! Products over a stack of experts on warp groups: each pair's row has the bits that its expert's matrix alone
//! gives, a gate in the epilogue those of the gate's own kernel, and nothing that is wrong in it stays unnoticed.

use crate::kernels::mutation::{OpLocation, gone, keep_unpaired, leave_unused, mutate};
use crate::kernels::stacked::{RandomStack, Routing, scheme, stack};
use crate::kernels::tiles::WARP_GROUP;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{
    Binary, Compare, Extent, Kernel, MatrixOperand, Op, Operand, Special, TensorId, Verified,
    verify,
};
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{
    ChoiceRule, Chosen, Problem, Schedule, Stack, Unscheduled, UnscheduledPart, WarpGroupLimit,
    choose_stacked,
};
use quantloom_codegen::target::target;
use quantloom_dsl::Activation;
use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F32};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::ptxas;

/// Scales on weights and on sums, zero points, biases, scales of channels, codes of a table, groups of 32.
const SCHEMES: [(&str, &str); 6] = [
    (
        "sym",
        "weight: u4 - 8, scale: bf16 per 1x128, bias: f32, pack: u32 [k:8 | k, n], \
         activation: bf16",
    ),
    (
        "asym",
        "weight: u4, zero: u4 per 1x128, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
         activation: bf16",
    ),
    ("halves", "weight: u4 - 8, scale: f16 per 1x128, pack: u32 [k:8 | k, n], activation: f16"),
    ("channels", "weight: i8, scale: f32 per channel, bias: f32, pack: [k, n], activation: bf16"),
    (
        "halves_of_64",
        "weight: u4 - 8, scale: f16 per 1x64, pack: u32 [k:8 | k, n], activation: f16",
    ),
    ("powers", "weight: e2m1, scale: e8m0 per 1x32, pack: u8 [k:2 | k, n], activation: bf16"),
];

/// Whether scales multiply sums is the scheme's: f16 cannot multiply weights exactly.
fn tile(name: &str, (tokens, groups, row_tiles, stages): (u32, u32, u32, u32)) -> WarpGroupTile {
    let exact = name == "halves" || name == "halves_of_64";
    WarpGroupTile { tokens, groups, row_tiles, stages, batch: 2, exact, ..WARP_GROUP }
}

/// The same kernel with so many blocks, which have several tiles each.
fn of_blocks(kernel: &Kernel, blocks: u32) -> Verified<Kernel> {
    let mut kernel = kernel.clone();
    assert_eq!(kernel.launch.grid[0], Extent::Multiprocessors);
    kernel.launch.grid[0] = Extent::Constant(blocks);
    verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"))
}

/// What is wrong with a product: in two orders of blocks and warps, with a tile a block and with several.
fn check(layer: &RandomStack, tile: WarpGroupTile) {
    let chosen = Chosen::WarpGroup(tile);
    let kernel = layer.kernel(chosen, &layer.problem);
    let mut first = None;
    for (seed, blocks) in [(0, 132), (0, 2), (1, 3)] {
        let run = layer.run(&of_blocks(&kernel, blocks), tile.tokens, seed);
        let run = run.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
        assert_eq!(run.report.conflicts(), 0, "{}: {}", kernel.name, run.report);
        match &first {
            None => {
                // A single matrix has no scales on the sums of two tiles of rows: one tile's are the same.
                let row_tiles = if tile.exact { 1 } else { tile.row_tiles };
                let alone = Chosen::WarpGroup(WarpGroupTile { row_tiles, ..tile });
                let right = layer.compare(alone, &run);
                right.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
                first = Some(run.y);
            }
            Some(first) => assert!(*first == run.y, "{}: other bits in another order", kernel.name),
        }
    }
}

/// Ragged rows and columns, one token, one expert for all, no pair with an expert; as many stages as k-tiles, fewer and
/// more.
#[test]
fn products_are_right() {
    let cases = [
        (0, ExpertProduct::Down, (40, 264), (17, Routing::Random), (8, 2, 1, 3)),
        (0, ExpertProduct::GateUp, (72, 520), (17, Routing::Random), (8, 1, 1, 4)),
        (1, ExpertProduct::GateUp, (40, 392), (9, Routing::One), (16, 2, 1, 2)),
        (2, ExpertProduct::Down, (136, 328), (9, Routing::Random), (16, 1, 1, 3)),
        (4, ExpertProduct::Down, (136, 328), (9, Routing::Random), (16, 1, 2, 3)),
        (3, ExpertProduct::GateUp, (40, 192), (1, Routing::Random), (8, 1, 2, 2)),
        (3, ExpertProduct::Down, (264, 136), (33, Routing::Random), (32, 2, 2, 2)),
        (5, ExpertProduct::GateUp, (40, 360), (33, Routing::One), (32, 1, 1, 5)),
        (5, ExpertProduct::Down, (24, 136), (5, Routing::Nowhere), (8, 2, 1, 3)),
        (0, ExpertProduct::GateUp, (40, 264), (65, Routing::Random), (48, 1, 1, 3)),
        (0, ExpertProduct::Down, (72, 136), (75, Routing::Random), (80, 1, 1, 2)),
        (0, ExpertProduct::GateUp, (40, 264), (40, Routing::Random), (24, 2, 1, 3)),
        (1, ExpertProduct::Down, (72, 136), (30, Routing::One), (24, 1, 2, 2)),
        (0, ExpertProduct::GateUp, (40, 136), (100, Routing::Random), (112, 1, 1, 2)),
        (2, ExpertProduct::Down, (136, 136), (150, Routing::One), (144, 1, 2, 2)),
        (0, ExpertProduct::GateUp, (72, 264), (17, Routing::Random), (16, 4, 2, 3)),
        (1, ExpertProduct::GateUp, (40, 392), (9, Routing::One), (8, 3, 2, 2)),
        (3, ExpertProduct::Down, (264, 136), (33, Routing::Random), (32, 4, 1, 2)),
        // Two bands, of 9 and 8 blocks of rows.
        (0, ExpertProduct::Down, (1064, 136), (5, Routing::Random), (8, 1, 1, 3)),
        // Two bands of 9 blocks, and none with a token block in use.
        (0, ExpertProduct::GateUp, (1152, 136), (5, Routing::Random), (8, 1, 1, 3)),
        (0, ExpertProduct::Down, (1152, 136), (5, Routing::Nowhere), (8, 1, 1, 3)),
    ];
    for (of, product, shape, routed, block) in cases {
        let (text, stack) = (SCHEMES[of], stack(product, 4, 3));
        let layer = RandomStack::draw(&scheme(text), "sm_90a", shape, stack, routed, 7).unwrap();
        check(&layer, tile(text.0, block));
    }
}

/// Scales of x along K are in tiles of 32 tokens, which the experts share.
#[test]
fn scales_of_x_along_k_have_tiles_of_tokens() {
    let weight = "weight: e4m3, scale: f32 per 128x128, pack: [k, n]";
    let text = format!("{weight}, activation: e4m3 {{ scale: f32 per 1x128 }}");
    let scheme = scheme(("x", &text));
    let activation = scheme.activations[0].clone();
    let dense = Problem::new(&scheme, &activation, target("sm_90a").unwrap(), (72, 512)).unwrap();
    let refused = |operand, tokens| {
        let stack = Stack { operand, ..stack(ExpertProduct::GateUp, 4, 3) };
        let problem = dense.clone().stacked(stack).unwrap().giving(NUMBER_F32).unwrap();
        let tile = WarpGroupTile { exact: true, ..tile("x", (tokens, 1, 1, 3)) };
        tile.build(&problem).err()
    };
    assert!(refused(OperandOf::Row, 32).is_none());
    let why = refused(OperandOf::Row, 16).expect("part of a tile");
    assert!(matches!(why, Unscheduled::Choices { rule: ChoiceRule::TokenTiles, .. }), "{why}");
    let why = refused(OperandOf::Expert, 32).expect("experts that read x in their own ways");
    let UnscheduledPart::WarpGroups(limit) = (match &why {
        Unscheduled::Scheme { part, .. } => part,
        _ => panic!("{why}"),
    }) else {
        panic!("{why}")
    };
    assert_eq!(*limit, WarpGroupLimit::Experts);
}

/// The gate in the epilogue gives the bits that its own kernel makes of the same tile's sums.
#[test]
fn a_gate_in_the_epilogue_is_the_gate_after_it() {
    let gates = [
        (0, Gate::Silu, (72, 264), (17, Routing::Random), (8, 2, 2, 3)),
        (
            1,
            Gate::SwigluOai { alpha: 1.702, limit: 7.0 },
            (40, 392),
            (9, Routing::Random),
            (16, 1, 2, 2),
        ),
        (3, Gate::Silu, (136, 192), (33, Routing::One), (32, 1, 2, 4)),
        (2, Gate::Silu, (72, 328), (9, Routing::Random), (16, 1, 2, 3)),
        (5, Gate::UngatedRelu2, (72, 264), (5, Routing::Random), (8, 1, 1, 3)),
        (0, Gate::Silu, (40, 264), (75, Routing::Random), (48, 1, 2, 3)),
        (0, Gate::Silu, (40, 264), (40, Routing::Random), (24, 2, 2, 3)),
        (0, Gate::Silu, (40, 136), (150, Routing::One), (144, 1, 2, 2)),
    ];
    for (of, gate, shape, routed, block) in gates {
        let text = SCHEMES[of];
        let shards = gate.shards() as u32;
        let stack = Stack { shards, ..stack(ExpertProduct::GateUp, 4, 3) };
        let layer = RandomStack::draw(&scheme(text), "sm_90a", shape, stack, routed, 9).unwrap();
        let tile = tile(text.0, block);
        let chosen = Chosen::WarpGroup(tile);
        let alone = layer.kernel(chosen, &layer.problem);
        let z = layer.run(&alone, tile.tokens, 0).unwrap_or_else(|why| panic!("{why}"));
        let expected = layer.gated(z, gate, tile.tokens).unwrap_or_else(|why| panic!("{why}"));
        let kernel = layer.kernel(chosen, &layer.of_stack(Some(gate), false));
        for (seed, blocks) in [(0, 132), (1, 2)] {
            let run = layer.run(&of_blocks(&kernel, blocks), tile.tokens, seed);
            let run = run.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            assert!(run.y == expected, "{}", kernel.name);
            assert_eq!(run.report.conflicts(), 0, "{}:\n{}", kernel.name, run.report);
        }
    }
}

/// Where operands are not swapped, rows of h of slots without a pair are 0, which a bias would not leave them; others are not.
#[test]
fn rows_without_a_pair_are_0() {
    let text = "weight: e4m3, scale: f32 per 128x128, bias: f32, pack: [k, n], \
                activation: e4m3 { scale: f32 per 1x128 }";
    for (tokens, groups, row_tiles) in [(64, 2, 1), (128, 2, 1), (128, 2, 2)] {
        let stack = Stack { shards: 2, ..stack(ExpertProduct::GateUp, 4, 3) };
        let routed = (33, Routing::Random);
        let scheme = scheme(("x", text));
        let layer = RandomStack::draw(&scheme, "sm_90a", (72, 264), stack, routed, 9).unwrap();
        let (problem, layer) = (layer.of_stack(Some(Gate::Silu), false), layer.of_ones());
        let tile = WarpGroupTile {
            unswapped: true,
            exact: true,
            ..tile("x", (tokens, groups, row_tiles, 3))
        };
        let chosen = Chosen::WarpGroup(WarpGroupTile { batch: 1, ..tile });
        let run = layer.run(&of_blocks(&layer.kernel(chosen, &problem), 2), tokens, 0);
        let run = run.unwrap_or_else(|why| panic!("{why}"));
        let rows = run.y.bytes.chunks(2 * 72).zip(&run.of_slots);
        let (paired, empty): (Vec<_>, Vec<_>) = rows.partition(|(_, pair)| **pair < 99);
        assert!(paired.len() > 20 && empty.len() > 20, "{} and {}", paired.len(), empty.len());
        assert!(empty.iter().all(|(row, _)| row.iter().all(|byte| *byte == 0)), "{tokens}");
        assert!(paired.iter().all(|(row, _)| row.iter().any(|byte| *byte != 0)), "{tokens}");
    }
}

/// Rows of pairs times their router weights.
#[test]
fn rows_are_weighted() {
    let stack = stack(ExpertProduct::Down, 4, 3);
    let routed = (9, Routing::Random);
    let layer =
        RandomStack::draw(&scheme(SCHEMES[0]), "sm_90a", (40, 264), stack, routed, 4).unwrap();
    let tile = tile("sym", (8, 2, 1, 3));
    let chosen = Chosen::WarpGroup(tile);
    let plain = layer.run(&layer.kernel(chosen, &layer.problem), tile.tokens, 0).unwrap();
    let kernel = layer.kernel(chosen, &layer.weighted(false));
    let run = layer.run(&of_blocks(&kernel, 3), tile.tokens, 0);
    let run = run.unwrap_or_else(|why| panic!("{why}"));
    assert!(run.y.words() == layer.with_weights(&plain, &run));
}

/// Rows of pairs in 16 bits are those in f32, rounded: token blocks of every number of rounds of copies, one in
/// part; rows that tiles do not divide; several tiles a block.
#[test]
fn rows_of_pairs_are_rounded() {
    let cases = [
        (0, (72, 264), (9, Routing::Random), (8, 2, 1, 3)),
        (2, (136, 328), (9, Routing::Random), (16, 1, 2, 3)),
        (3, (264, 136), (33, Routing::Random), (32, 3, 2, 2)),
        (5, (24, 136), (75, Routing::Random), (48, 2, 1, 3)),
        (1, (200, 136), (75, Routing::One), (80, 1, 2, 2)),
        (0, (72, 136), (40, Routing::One), (24, 2, 2, 3)),
        (0, (72, 136), (150, Routing::One), (144, 1, 2, 2)),
        (0, (72, 136), (5, Routing::Nowhere), (8, 2, 1, 3)),
    ];
    for (of, shape, routed, block) in cases {
        let (text, stack) = (SCHEMES[of], stack(ExpertProduct::Down, 4, 3));
        let layer = RandomStack::draw(&scheme(text), "sm_90a", shape, stack, routed, 8).unwrap();
        let tile = tile(text.0, block);
        let chosen = Chosen::WarpGroup(tile);
        let wide = layer.kernel(chosen, &layer.weighted(false));
        let wide = layer.run(&wide, tile.tokens, 0).unwrap_or_else(|why| panic!("{why}"));
        let expected = layer.as_rounded(&wide.y.words());
        let kernel = layer.kernel(chosen, &layer.rounded(false));
        for (seed, blocks) in [(0, 132), (1, 3)] {
            let run = layer.run(&of_blocks(&kernel, blocks), tile.tokens, seed);
            let run = run.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            assert!(run.y.bytes == expected, "{}", kernel.name);
            assert_eq!(run.report.conflicts(), 0, "{}:\n{}", kernel.name, run.report);
        }
    }
}

/// A mutation, and what it has seen of the operations before.
type Mutation = fn(&mut Seen, &OpLocation, &mut Op);

/// What a mutation knows.
#[derive(Default)]
struct Seen {
    /// The names of tensor maps.
    maps: Vec<String>,
    /// The matrix of the first copy.
    matrix: Option<Operand>,
    /// The places of the copies of a map in a stage.
    offsets: Vec<u32>,
    /// How many operations of the mutation's kind.
    count: usize,
}

impl Seen {
    fn is(&self, map: TensorId, name: &str) -> bool {
        self.maps[map.0 as usize] == name
    }
}

/// Whether the operation loads a part of the order: the count at 0, else experts and pairs.
fn of_order(location: &OpLocation, op: &Op, offset: u32) -> bool {
    matches!(op, Op::Load { from, .. } if location.is(from.space, "slots") && from.offset == offset)
}

fn becomes(op: &mut Op, value: u32) {
    if let [dst] = op.writes()[..] {
        *op = Op::Copy { dst, a: value.into() };
    }
}

/// The copies of a map are of matrix 0.
fn of_matrix_0(name: &str, seen: &Seen, op: &mut Op) {
    if let Op::TensorLoad { map, at, .. } = op
        && seen.is(*map, name)
        && let Some(matrix) = at.last_mut()
    {
        *matrix = 0u32.into();
    }
}

/// Of every product.
const OF_ALL: &[(&str, Mutation)] = &[
    ("codes of expert 0", |seen, _, op| of_matrix_0("w_map", seen, op)),
    ("scales of expert 0", |seen, _, op| of_matrix_0("param0_map", seen, op)),
    ("biases of expert 0", |_, _, op| {
        if matches!(op, Op::Binary { op: Binary::Mul, b: Operand::U32(72), .. }) {
            becomes(op, 0);
        }
    }),
    ("only the first token block", |_, location, op| {
        if of_order(location, op, 0) {
            becomes(op, 1);
        }
    }),
    ("token blocks beyond those in use", |_, location, op| {
        if of_order(location, op, 0)
            && let [dst] = op.writes()[..]
        {
            *op = Op::Copy { dst, a: 16u32.into() };
        }
    }),
    ("the tiles of another block", |_, _, op| {
        if matches!(op, Op::Special { value: Special::Blocks(0), .. }) {
            becomes(op, 2);
        }
    }),
    ("the last stage of a tile is not released, or before it is read", |seen, _, op| {
        // Of the consumers' releases the second one.
        if *op == Op::WarpSync {
            seen.count += 1;
            if seen.count == 2 {
                gone(op);
            }
        }
    }),
    ("the expert of the next token block", |seen, location, op| {
        if of_order(location, op, 1)
            && let Op::Load { from, .. } = op
        {
            seen.count += 1;
            from.offset += u32::from(seen.count == 1);
        }
    }),
    ("the pair of the slot beside", |seen, location, op| {
        if of_order(location, op, 1)
            && let Op::Load { from, .. } = op
        {
            seen.count += 1;
            from.offset += u32::from(seen.count > 1);
        }
    }),
    ("the order before earlier kernels end", |_, _, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
];

/// Where lanes copy rows of x.
const OF_GATHERED: &[(&str, Mutation)] = &[
    ("the row of the pair", |_, _, op| {
        if let Op::Binary { dst, op: Binary::Div, a, b: Operand::U32(3) } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("one more expert a token", |_, _, op| {
        if let Op::Binary { op: Binary::Div, b: b @ Operand::U32(3), .. } = op {
            *b = 4u32.into();
        }
    }),
    ("rows of slots without a pair are read", |_, location, op| match op {
        Op::CopyAsync { from, mask, .. } if location.is(from.space, "x") => *mask = None,
        _ => {}
    }),
    ("columns beyond K are read", |_, _, op| {
        if let Op::Compare { dst, op: Compare::Less, b: Operand::U32(520), .. } = op {
            *op = Op::Copy { dst: *dst, a: true.into() };
        }
    }),
    ("vectors where they are without a swizzle", |_, _, op| {
        if let Op::Binary { op: Binary::Rem | Binary::And, b: Operand::U32(7 | 8), .. } = op {
            becomes(op, 0);
        }
    }),
    ("rows that the async proxy does not see", |seen, _, op| {
        // The consumers' fence is first.
        if *op == Op::FenceAsync {
            seen.count += 1;
            if seen.count > seen.maps.iter().filter(|map| *map == "y_map").count() {
                gone(op);
            }
        }
    }),
    ("a stage that arrives before its rows", |_, _, op| {
        if let Op::CopyWait { pending } = op {
            *pending += 1;
        }
    }),
    ("no wait for rows", |_, _, op| {
        if matches!(op, Op::CopyWait { .. }) {
            gone(op);
        }
    }),
    ("groups of copies that are not closed", |_, _, op| {
        if *op == Op::CopyCommit {
            gone(op);
        }
    }),
    ("a warp that arrives before all of its lanes", |_, _, op| {
        if *op == Op::WarpSync {
            gone(op);
        }
    }),
    ("stages that are filled while they are read", |_, location, op| {
        if matches!(op, Op::MbarrierWait { .. }) && location.in_loop {
            gone(op);
        }
    }),
    ("fewer arrivals than warps", |_, _, op| {
        if let Op::MbarrierInit { arrivals, .. } = op {
            *arrivals -= 1;
        }
    }),
    ("x of the other line", |_, _, op| {
        if let Op::Matrix { b: MatrixOperand::Shared(x), .. } = op {
            x.offset = 0;
        }
    }),
];

/// With rows of pairs, or of shards and slots.
const OF_ROWS: &[(&str, Mutation)] =
    &[("slots without a pair, and rows beyond N are stored", |_, location, op| match op {
        Op::Store { to, mask, .. } if location.is(to.space, "y") => *mask = None,
        _ => {}
    })];

/// With rows of pairs in 16 bits.
const OF_LINES: &[(&str, Mutation)] = &[
    ("lines that are copied before all warps have written them", |seen, _, op| {
        // Those of the exchange of pairs are first.
        if matches!(op, Op::NamedBarrier { .. }) {
            seen.count += 1;
            if seen.count == 3 {
                gone(op);
            }
        }
    }),
    ("lines that are written before they are copied", |seen, _, op| {
        if matches!(op, Op::NamedBarrier { .. }) {
            seen.count += 1;
            if seen.count == 4 {
                gone(op);
            }
        }
    }),
    ("the weight of the slot beside", |_, location, op| match op {
        // Behind the pairs of eight slots.
        Op::Load { from, .. } if location.is(from.space, "pairs") && from.offset >= 8 => {
            from.offset ^= 1;
        }
        _ => {}
    }),
    ("vectors of lines where they are without a swizzle", |_, location, op| match op {
        Op::Load { from, .. } if location.is(from.space, "y_lines") => from.offset ^= 4,
        _ => {}
    }),
    ("the line of the token beside", |_, location, op| match op {
        Op::Load { from, .. } if location.is(from.space, "y_lines") => from.offset ^= 32,
        _ => {}
    }),
];

/// With a gate in the epilogue.
const OF_FUSED: &[(&str, Mutation)] = &[
    ("the codes of gate for up", |seen, _, op| {
        if let Op::TensorLoad { map, at, .. } = op
            && seen.is(*map, "w_map")
            && let Some(matrix) = at.last_mut()
        {
            *matrix = *seen.matrix.get_or_insert(*matrix);
        }
    }),
    ("the scales of gate for up", |seen, _, op| {
        if let Op::TensorLoad { map, at, .. } = op
            && seen.is(*map, "param0_map")
            && let Some(matrix) = at.last_mut()
        {
            *matrix = *seen.matrix.get_or_insert(*matrix);
        }
    }),
    ("gate and up exchanged", |seen, _, op| {
        if let Op::TensorLoad { to, map, .. } = op
            && (seen.is(*map, "w_map") || seen.is(*map, "param0_map"))
        {
            let all =
                [seen.offsets[2 * seen.count.min(1)], seen.offsets[2 * seen.count.min(1) + 1]];
            to.offset = all[0] + all[1] - to.offset;
            seen.count += usize::from(seen.is(*map, "w_map") && to.offset == all[0]);
        }
    }),
    ("rows of slots without a pair are not 0", |_, _, op| keep_unpaired(op)),
    ("rows of token blocks that are not in use are not written", |_, location, op| {
        leave_unused(location, op);
    }),
    ("lines of y that the store does not see", |seen, _, op| {
        if *op == Op::FenceAsync {
            seen.count += 1;
            if seen.count == 1 {
                gone(op);
            }
        }
    }),
];

/// What is wrong with a kernel after a mutation; `None` if nothing is.
fn wrong(
    kernel: &Kernel,
    mutation: Option<Mutation>,
    right: &dyn Fn(&Verified<Kernel>) -> Result<(), String>,
) -> Option<String> {
    let mut kernel = kernel.clone();
    if let Some(mutation) = mutation {
        let maps: Vec<String> = kernel.tensors.iter().map(|map| map.name.clone()).collect();
        let mut offsets = [Vec::new(), Vec::new()];
        mutate(&mut kernel, |_, op| {
            if let Op::TensorLoad { to, map, .. } = op {
                match &maps[map.0 as usize][..] {
                    "w_map" => offsets[0].push(to.offset),
                    "param0_map" => offsets[1].push(to.offset),
                    _ => {}
                }
            }
        });
        let mut seen = Seen { maps, offsets: offsets.concat(), ..Seen::default() };
        if !mutate(&mut kernel, |location, op| mutation(&mut seen, location, op)) {
            return None;
        }
    }
    match verify(kernel) {
        Ok(kernel) => right(&kernel).err(),
        Err(refusals) => Some(refusals.to_string()),
    }
}

fn all_found(
    kernel: &Kernel,
    mutations: &[(&str, Mutation)],
    right: &dyn Fn(&Verified<Kernel>) -> Result<(), String>,
) {
    assert_eq!(wrong(kernel, None, right), None, "{}", kernel.name);
    let found = |mutation: &Mutation| wrong(kernel, Some(*mutation), right).is_some();
    let missed = mutations.iter().filter(|(_, mutation)| !found(mutation));
    let missed: Vec<&str> = missed.map(|(what, _)| *what).collect();
    assert!(missed.is_empty(), "{}: not found: {missed:?}", kernel.name);
}

/// A layer whose rows and columns no tile divides, with experts of an odd number of pairs, and a tile whose ring is used again.
fn mutated(product: ExpertProduct) -> (RandomStack, WarpGroupTile) {
    let (routed, shape) = ((9, Routing::Random), (72, 520));
    let layer =
        RandomStack::draw(&scheme(SCHEMES[0]), "sm_90a", shape, stack(product, 4, 3), routed, 22);
    (layer.unwrap(), tile("sym", (8, 1, 2, 3)))
}

#[test]
fn mutations_are_found() {
    for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
        let (layer, tile) = mutated(product);
        let chosen = Chosen::WarpGroup(tile);
        let right = |kernel: &_| {
            let run = layer.run(kernel, tile.tokens, 1)?;
            layer.compare(chosen, &run)
        };
        let kernel = of_blocks(&chosen.write(&layer.problem).unwrap(), 3);
        let gathered = if product == ExpertProduct::GateUp { OF_GATHERED } else { &[] };
        all_found(&kernel, &[OF_ALL, OF_ROWS, gathered].concat(), &right);
    }
}

#[test]
fn mutations_of_rounded_rows_are_found() {
    let (layer, tile) = mutated(ExpertProduct::Down);
    let chosen = Chosen::WarpGroup(tile);
    let wide = layer.run(&layer.kernel(chosen, &layer.weighted(false)), tile.tokens, 0).unwrap();
    let expected = layer.as_rounded(&wide.y.words());
    let right = |kernel: &_| {
        let run = layer.run(kernel, tile.tokens, 1)?;
        if run.y.bytes == expected { Ok(()) } else { Err("other bits".to_owned()) }
    };
    let kernel = of_blocks(&chosen.write(&layer.rounded(false)).unwrap(), 3);
    all_found(&kernel, &[OF_ALL, OF_ROWS, OF_LINES].concat(), &right);
}

#[test]
fn mutations_of_a_gate_in_the_epilogue_are_found() {
    let (layer, tile) = mutated(ExpertProduct::GateUp);
    let chosen = Chosen::WarpGroup(tile);
    let z = layer.run(&layer.kernel(chosen, &layer.problem), tile.tokens, 0).unwrap();
    let expected = layer.gated(z, Gate::Silu, tile.tokens).unwrap();
    let right = |kernel: &_| {
        let run = layer.run(kernel, tile.tokens, 1)?;
        if run.y == expected { Ok(()) } else { Err("other bits".to_owned()) }
    };
    let kernel = of_blocks(&chosen.write(&layer.of_stack(Some(Gate::Silu), false)).unwrap(), 3);
    all_found(&kernel, &[OF_ALL, OF_FUSED, OF_GATHERED].concat(), &right);
}

/// Schemes whose x has bytes, which tests through the runtime multiply.
const BYTES: [(&str, &str); 4] = [
    (
        "blocks",
        "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }",
    ),
    (
        "integers",
        "weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: f32 per token }",
    ),
    (
        "floats",
        "weight: e4m3, scale: f32 per channel, pack: [k, n], activation: e4m3 { scale: f32 per token }",
    ),
    (
        "nibbles",
        "weight: i4, scale: bf16 per 1x128, pack: i8 [code, pad 4 = sign | k, n], \
         activation: e4m3 { scale: f32 per token }",
    ),
];

/// Layers whose kernels are assembled: the columns of x, the rows of a shard of the first product, experts, and how many
/// of them a token has.
const LAYERS: [(u32, u32, u32, u32); 3] =
    [(2048, 768, 128, 8), (2880, 2880, 128, 4), (4096, 14_336, 8, 2)];

/// What is chosen for large layers, and other tiles, without spills and without waits that the assembler adds.
#[test]
fn tiles_assemble() {
    let share = Share::new(37, 144);
    let Some(ptxas) = ptxas::find() else { return };
    let (mut failed, mut number) = (Vec::new(), 0);
    for (problem, slots) in SCHEMES.into_iter().chain(BYTES).flat_map(large) {
        let chosen = choose_stacked(&problem, 1, Some(slots)).ok();
        let chosen = chosen.and_then(|chosen| match chosen {
            Chosen::WarpGroup(tile) => Some(tile),
            _ => None,
        });
        let mut others = WarpGroupTile::candidates(&problem, slots);
        let compared = slots >= 32 && !problem.scales_in_range();
        others.retain(|tile| compared && tile.fits(&problem));
        for tile in chosen.into_iter().chain(others) {
            number += 1;
            if !share.takes(number) {
                continue;
            }
            let kernel = verify(tile.build(&problem).unwrap()).unwrap();
            let assembled = ptxas.assemble(&ptx::emit(&kernel).unwrap(), "sm_90a");
            if !assembled.is_clean() {
                failed.push(format!("{}:\n{}", kernel.name, assembled.report));
            }
        }
    }
    assert!(number > 200 && failed.is_empty(), "{number} tiles:\n{}", failed.join("\n"));
}

/// Three warp groups have no room for sums of operands that are not swapped where the producer's lanes copy rows; two do.
#[test]
fn operands_that_are_not_swapped_have_room() {
    let scheme = scheme(BYTES[0]);
    for (product, groups, is_held) in [
        (ExpertProduct::GateUp, 2, true),
        (ExpertProduct::GateUp, 3, false),
        (ExpertProduct::Down, 3, true),
    ] {
        let target = target("sm_90a").unwrap();
        let problem = Problem::new(&scheme, &scheme.activations[0], target, (264, 512)).unwrap();
        let problem = problem.stacked(stack(product, 4, 3)).unwrap().giving(NUMBER_F32).unwrap();
        let sized = WarpGroupTile { tokens: 64 * groups, groups, row_tiles: 1, ..WARP_GROUP };
        let tile = WarpGroupTile { stages: 2, batch: 1, unswapped: true, exact: true, ..sized };
        match (tile.build(&problem), is_held) {
            (Ok(_), true) => {}
            (Err(Unscheduled::Choices { rule: ChoiceRule::WarpGroupRegisters, .. }), false) => {}
            (found, _) => panic!("{product:?}, {groups} groups: {:?}", found.err()),
        }
    }
}

/// Few slots have three or four warp groups a block, which hide each other's waits, many slots two; a block has no rows beyond those of
/// a matrix if three warp groups have none.
#[test]
fn few_slots_have_many_warp_groups() {
    let scheme = scheme((
        "m",
        "weight: e2m1, scale: e8m0 per 1x32, pack: u32 [k:8 | k, n], activation: bf16",
    ));
    for (slots, (n, k), groups) in [
        (16, (768, 2048), 4),
        (16, (2880, 2880), 3),
        (48, (2880, 2880), 3),
        (80, (768, 2048), 2),
        (128, (2880, 2880), 2),
    ] {
        let problem =
            Problem::new(&scheme, &scheme.activations[0], target("sm_90a").unwrap(), (n, k));
        let problem = problem.unwrap().of_scales(true);
        let gate = Some(Gate::Silu);
        let stack = Stack { gate, ..stack(ExpertProduct::GateUp, 128, 8) };
        let problem = problem.stacked(stack).unwrap();
        match choose_stacked(&problem, slots * 4, Some(slots)).unwrap() {
            Chosen::WarpGroup(tile) => assert_eq!(tile.groups, groups, "{slots} slots, {n} x {k}"),
            other => panic!("{slots} slots, {n} x {k}: {}", other.name()),
        }
    }
}

/// Two groups with six stages where memory bounds products of short rows and weights are made 16-bit numbers, four where codes take
/// longer; with a row an expert on average already, each product where its tiles are whole waves.
#[test]
fn tiles_that_memory_bounds_are_small() {
    let groups = "scale: bf16 per 1x128, pack: u32 [k:8 | k, n]";
    let integers = format!("weight: i4, {groups}, activation: bf16");
    let zeros = format!("weight: u4, zero: u4 per 1x128, {groups}, activation: bf16");
    let bytes = format!("weight: i4, {groups}, activation: e4m3 {{ scale: f32 per token }}");
    let floats =
        "weight: e2m1, scale: e8m0 per 1x32, pack: u32 [k:8 | k, n], activation: bf16".to_owned();
    let (qwen, mixtral) = ((2048, 768, 128, 8), (4096, 14_336, 8, 2));
    let small = |slots| Some((slots, 2, Some(6)));
    let large = |slots, groups| Some((slots, groups, None));
    for (text, tokens, (hidden, intermediate, experts, top_k), expected) in [
        (&integers, 12, qwen, [None; 2]),
        (&integers, 16, qwen, [small(8); 2]),
        (&integers, 24, qwen, [small(8), None]),
        (&integers, 32, qwen, [None, small(8)]),
        (&integers, 64, qwen, [small(8); 2]),
        (&integers, 128, qwen, [small(16); 2]),
        (&integers, 256, qwen, [small(24), large(24, 4)]),
        (&integers, 384, qwen, [large(32, 4); 2]),
        (&zeros, 128, qwen, [large(16, 4); 2]),
        (&bytes, 128, qwen, [large(16, 4); 2]),
        (&floats, 128, qwen, [large(16, 4); 2]),
        (&integers, 16, mixtral, [None; 2]),
    ] {
        let scheme = scheme(("short", text));
        let mut slots = None;
        for ((product, shape, gate), expected) in [
            (ExpertProduct::GateUp, (intermediate, hidden), Some(Gate::Silu)),
            (ExpertProduct::Down, (hidden, intermediate), None),
        ]
        .into_iter()
        .zip(expected)
        {
            let target = target("sm_90a").unwrap();
            let problem = Problem::new(&scheme, &scheme.activations[0], target, shape).unwrap();
            let problem = problem.of_scales(true);
            let stack = Stack { gate, ..stack(product, experts, top_k) };
            let problem = problem.stacked(stack).unwrap().giving(NUMBER_BF16).unwrap();
            let chosen = choose_stacked(&problem, tokens, slots).unwrap();
            slots = problem.slots(chosen);
            let found = match chosen {
                Chosen::WarpGroup(tile) => {
                    let stages = (tile.groups == 2).then_some(tile.stages);
                    Some((tile.tokens, tile.groups, stages))
                }
                _ => None,
            };
            assert_eq!(found, expected, "{text}: {tokens} tokens, {product:?} {shape:?}");
        }
    }
}

/// Bytes that are multiplied as they are stored, whose scales multiply sums after all of K: with few slots the part of a product that
/// does not depend on them is most of the time (Mixtral 8x7B at M = 1024 took 2321 us with 32 slots and 847 with 144).
#[test]
fn bytes_as_they_are_stored_have_many_slots() {
    let (integers, floats) = (BYTES[1], BYTES[2]);
    let (qwen, mixtral) = ((2048, 768, 128, 8), (4096, 14_336, 8, 2));
    for (text, tokens, (hidden, intermediate, experts, top_k), expected) in [
        (floats, 64, mixtral, 32),
        (floats, 256, mixtral, 80),
        (floats, 512, mixtral, 144),
        (floats, 1024, mixtral, 144),
        (integers, 256, mixtral, 80),
        (integers, 1024, mixtral, 144),
        (floats, 256, qwen, 32),
        (floats, 1024, qwen, 80),
    ] {
        let scheme = scheme(text);
        let mut slots = None;
        for (product, shape, gate) in [
            (ExpertProduct::GateUp, (intermediate, hidden), Some(Gate::Silu)),
            (ExpertProduct::Down, (hidden, intermediate), None),
        ] {
            let target = target("sm_90a").unwrap();
            let problem = Problem::new(&scheme, &scheme.activations[0], target, shape).unwrap();
            let weighted = product == ExpertProduct::Down;
            let stack = Stack { gate, weighted, ..stack(product, experts, top_k) };
            let problem = problem.stacked(stack).unwrap().giving(NUMBER_BF16).unwrap();
            match choose_stacked(&problem, tokens, slots).unwrap() {
                Chosen::WarpGroup(tile) => {
                    assert_eq!(tile.tokens, expected, "{text:?}: {tokens} tokens, {product:?}")
                }
                other => panic!("{text:?}: {tokens} tokens, {product:?}: {}", other.name()),
            }
            slots = Some(expected);
        }
    }
}

/// An expert of a part of them has as many rows as one of all.
#[test]
fn experts_elsewhere_take_their_rows_along() {
    for (text, tokens) in [(SCHEMES[0], 256), (SCHEMES[0], 1024), (BYTES[2], 1024)] {
        let scheme = scheme(text);
        let slots = [(128, 128), (16, 128), (4, 128)].map(|(experts, chosen_from)| {
            let target = target("sm_90a").unwrap();
            let shape = (768, 2048);
            let problem = Problem::new(&scheme, &scheme.activations[0], target, shape).unwrap();
            let gate = Some(Gate::Silu);
            let stack = Stack { gate, chosen_from, ..stack(ExpertProduct::GateUp, experts, 8) };
            let problem = problem.stacked(stack).unwrap().giving(NUMBER_BF16).unwrap();
            problem.slots(choose_stacked(&problem, tokens, None).unwrap())
        });
        assert_eq!(slots, [slots[0]; 3], "{text:?}: {tokens} tokens");
    }
}

/// FP8 in blocks: two warp groups, whose operands are swapped while a token block of 64 rows is half empty; the tokens from which on
/// they were not faster are measured (docs/performance/experts.md).
#[test]
fn full_token_blocks_of_fp8_in_blocks_are_not_swapped() {
    let scheme = scheme(BYTES[0]);
    let (qwen, mixtral) = ((2048, 768, 128, 8), (4096, 14_336, 8, 2));
    for (tokens, (hidden, intermediate, experts, top_k), expected) in [
        (128, qwen, (32, false)),
        (256, qwen, (32, false)),
        (512, qwen, (64, true)),
        (1024, qwen, (64, true)),
        (4096, qwen, (128, true)),
        (32, mixtral, (32, false)),
        (64, mixtral, (32, false)),
        (256, mixtral, (64, true)),
        (1024, mixtral, (128, true)),
    ] {
        let mut slots = None;
        for (product, shape, gate) in [
            (ExpertProduct::GateUp, (intermediate, hidden), Some(Gate::Silu)),
            (ExpertProduct::Down, (hidden, intermediate), None),
        ] {
            let target = target("sm_90a").unwrap();
            let problem = Problem::new(&scheme, &scheme.activations[0], target, shape).unwrap();
            let weighted = product == ExpertProduct::Down;
            let stack = Stack { gate, weighted, ..stack(product, experts, top_k) };
            let problem = problem.stacked(stack).unwrap().giving(NUMBER_BF16).unwrap();
            match choose_stacked(&problem, tokens, slots).unwrap() {
                Chosen::WarpGroup(tile) => {
                    let found = (tile.groups, (tile.tokens, tile.unswapped));
                    assert_eq!(found, (2, expected), "{tokens} tokens, {product:?} {shape:?}");
                    slots = Some(tile.tokens);
                }
                other => panic!("{tokens} tokens, {product:?} {shape:?}: {}", other.name()),
            }
        }
    }
}

/// Eight slots are those of warp groups if experts have two rows on average, there are some waves of tiles of three or four warp groups,
/// and scales are in range.
#[test]
fn few_rows_are_those_of_skinny_products() {
    let scheme = scheme((
        "m",
        "weight: e2m1, scale: e8m0 per 1x32, pack: u32 [k:8 | k, n], activation: bf16",
    ));
    let (small, one_wave, large) = ((2880, 2880), (4096, 4096), (14_336, 4096));
    for (tokens, experts, shape, in_range, expected) in [
        (64, 128, small, true, "warp_group"),
        (32, 128, small, true, "skinny"),
        (4, 8, small, true, "skinny"),
        (4, 8, large, true, "skinny"),
        (8, 8, one_wave, true, "skinny"),
        (64, 128, small, false, "skinny"),
    ] {
        let problem =
            Problem::new(&scheme, &scheme.activations[0], target("sm_90a").unwrap(), shape);
        let gate = Some(Gate::Silu);
        let stack = Stack { gate, ..stack(ExpertProduct::GateUp, experts, 4) };
        let problem = problem.unwrap().of_scales(in_range).stacked(stack).unwrap();
        let chosen = choose_stacked(&problem, tokens, None).unwrap();
        let found = (chosen.name(), problem.slots(chosen));
        assert_eq!(found, (expected, Some(8)), "{tokens} tokens, {experts} experts, {shape:?}");
    }
}

/// The products of large layers of a scheme, each with numbers of slots.
fn large(text: (&str, &str)) -> Vec<(Problem, u32)> {
    let (scheme, mut all) = (scheme(text), Vec::new());
    let activation = &scheme.activations[0];
    for (hidden, intermediate, experts, top_k) in LAYERS {
        let products = [
            (ExpertProduct::GateUp, (intermediate, hidden), (Some(Gate::Silu), true)),
            (ExpertProduct::GateUp, (intermediate, hidden), (None, false)),
            (ExpertProduct::Down, (hidden, intermediate), (None, false)),
            (ExpertProduct::Down, (hidden, intermediate), (None, true)),
        ];
        for (product, shape, (gate, rounded)) in products {
            let single = Problem::new(&scheme, activation, target("sm_90a").unwrap(), shape);
            let output = match (rounded, activation) {
                (true, Activation::Float(own)) => *own,
                (true, Activation::Quantised(_)) => NUMBER_BF16,
                (false, _) => NUMBER_F32,
            };
            let weighted = product == ExpertProduct::Down && rounded;
            let stack = Stack { gate, weighted, ..stack(product, experts, top_k) };
            let problem = single.unwrap().giving(output).unwrap().stacked(stack).unwrap();
            all.extend([32, 48, 64, 80, 96, 112, 128, 144].map(|slots| (problem.clone(), slots)));
            // Of few slots three and four warp groups have the fewest registers to spare.
            let in_range = problem.of_scales(true);
            all.extend([8, 16, 24, 32, 48].map(|slots| (in_range.clone(), slots)));
        }
    }
    all
}
