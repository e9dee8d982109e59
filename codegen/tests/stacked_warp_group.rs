//! Products over a stack of experts on warp groups: each pair's row has the bits that its expert's matrix alone
//! gives, a gate in the epilogue those of the gate's own kernel, and nothing that is wrong in it stays unnoticed.

use crate::kernels::mutation::{OpLocation, gone, keep_unpaired, leave_unused, mutate};
use crate::kernels::stacked::{RandomStack, Routing, scheme, stack};
use crate::kernels::tiles::WARP_GROUP;
use quantloom_codegen::ir::{
    Binary, Compare, Extent, Kernel, MatrixOperand, Op, Operand, Special, TensorId, Verified,
    verify,
};
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{
    ChoiceRule, Chosen, Problem, Schedule, Stack, Unscheduled, UnscheduledPart, WarpGroupLimit,
};
use quantloom_codegen::target::target;
use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::NUMBER_F32;

/// Scales on weights and on sums, zero points, biases, scales of channels, codes of a table, groups of 32.
pub(crate) const SCHEMES: [(&str, &str); 6] = [
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
pub(crate) fn check(layer: &RandomStack, tile: WarpGroupTile) {
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
        (4, ExpertProduct::Down, (72, 136), (75, Routing::Random), (64, 3, 2, 2)),
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
