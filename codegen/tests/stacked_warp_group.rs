//! Products over a stack of experts on warp groups: each pair's row has the bits that its expert's matrix alone
//! gives, a gate in the epilogue those of the gate's own kernel, and nothing that is wrong in it stays unnoticed.

use crate::kernels::stacked::{Layer, Routing};
use crate::kernels::tiles::WARP_GROUP;
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{Chosen, Stack};
use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf};
use quantloom_dsl::{Scheme, parse};

/// Scales on weights and on sums, zero points, biases, scales of channels, codes of a table, groups of 32.
const SCHEMES: [(&str, &str); 5] = [
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
    ("powers", "weight: e2m1, scale: e8m0 per 1x32, pack: u8 [k:2 | k, n], activation: bf16"),
];

fn scheme((name, clauses): (&str, &str)) -> Scheme {
    parse(&format!("{name} {{ {clauses} }}")).unwrap_or_else(|faults| panic!("{name}: {faults:?}"))
}

const fn stack(product: ExpertProduct, experts: u32, top_k: u32) -> Stack {
    let shards = match product {
        ExpertProduct::GateUp => 2,
        ExpertProduct::Down => 1,
    };
    Stack {
        product,
        experts,
        shards,
        top_k,
        gate: None,
        direct: false,
        weighted: false,
        operand: OperandOf::Row,
    }
}

/// Whether scales multiply sums is the scheme's: f16 cannot multiply weights exactly.
fn tile(name: &str, (tokens, groups, row_tiles, stages): (u32, u32, u32, u32)) -> WarpGroupTile {
    let exact = name == "halves";
    WarpGroupTile { tokens, groups, row_tiles, stages, batch: 2, exact, ..WARP_GROUP }
}

/// What is wrong with a product in two orders of blocks and warps.
fn check(layer: &Layer, tile: WarpGroupTile) {
    let chosen = Chosen::WarpGroup(tile);
    let kernel = layer.kernel(chosen, &layer.problem);
    let mut first = None;
    for seed in 0..2 {
        let run = layer.run(&kernel, tile.tokens, seed);
        let run = run.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
        assert_eq!(run.report.conflicts(), 0, "{}: {}", kernel.name, run.report);
        match &first {
            None => {
                let right = layer.compare(chosen, &run);
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
        (3, ExpertProduct::GateUp, (40, 192), (1, Routing::Random), (8, 1, 2, 2)),
        (3, ExpertProduct::Down, (264, 136), (33, Routing::Random), (32, 2, 2, 2)),
        (4, ExpertProduct::GateUp, (40, 360), (33, Routing::One), (32, 1, 1, 5)),
        (4, ExpertProduct::Down, (24, 136), (5, Routing::Nowhere), (8, 2, 1, 3)),
    ];
    for (of, product, shape, routed, block) in cases {
        let (text, stack) = (SCHEMES[of], stack(product, 4, 3));
        let layer = Layer::draw(&scheme(text), "sm_90a", shape, stack, routed, 7).unwrap();
        check(&layer, tile(text.0, block));
    }
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
        (4, Gate::UngatedRelu2, (72, 264), (5, Routing::Random), (8, 1, 1, 3)),
    ];
    for (of, gate, shape, routed, block) in gates {
        let text = SCHEMES[of];
        let shards = gate.shards() as u32;
        let stack = Stack { shards, ..stack(ExpertProduct::GateUp, 4, 3) };
        let layer = Layer::draw(&scheme(text), "sm_90a", shape, stack, routed, 9).unwrap();
        let tile = tile(text.0, block);
        let chosen = Chosen::WarpGroup(tile);
        let alone = layer.kernel(chosen, &layer.problem);
        let z = layer.run(&alone, tile.tokens, 0).unwrap_or_else(|why| panic!("{why}"));
        let expected = layer.gated(z, gate, tile.tokens).unwrap_or_else(|why| panic!("{why}"));
        let kernel = layer.kernel(chosen, &layer.of_stack(Some(gate), false));
        for seed in 0..2 {
            let run = layer.run(&kernel, tile.tokens, seed);
            let run = run.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            assert!(run.y == expected, "{}", kernel.name);
            assert_eq!(run.report.conflicts(), 0, "{}:\n{}", kernel.name, run.report);
        }
    }
}

/// Rows of pairs times their router weights.
#[test]
fn rows_are_weighted() {
    let stack = stack(ExpertProduct::Down, 4, 3);
    let routed = (9, Routing::Random);
    let layer = Layer::draw(&scheme(SCHEMES[0]), "sm_90a", (40, 264), stack, routed, 4).unwrap();
    let tile = tile("sym", (8, 2, 1, 3));
    let chosen = Chosen::WarpGroup(tile);
    let plain = layer.run(&layer.kernel(chosen, &layer.problem), tile.tokens, 0).unwrap();
    let kernel = layer.kernel(chosen, &layer.weighted(false));
    let run = layer.run(&kernel, tile.tokens, 0).unwrap_or_else(|why| panic!("{why}"));
    assert!(run.y.words() == layer.with_weights(&plain, &run));
}
