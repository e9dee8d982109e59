//! Products over a stack of experts: each pair's row has the bits that its expert's matrix alone gives,
//! within the bound of the exact product; nothing of a slot without a pair is read or written.

use std::collections::BTreeMap;

use crate::kernels::stacked::{Layer, Routing};
use crate::kernels::tiles::{SKINNY, TILE};
use quantloom_codegen::jit::Jit;
use quantloom_codegen::schedule::shader::ShaderTile;
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;
use quantloom_codegen::schedule::{Chosen, Problem, Stack};
use quantloom_dsl::experts::ExpertProduct;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::gpu::{Products as _, Stacked};
use quantloom_runtime::source::Work;
use rayon::prelude::*;

const TARGETS: [&str; 5] = ["sm_80", "sm_90a", "gfx942", "gfx950", "wgsl"];

/// Each way in which parameters reach a product: scales of sums and of weights, zero points, corrections,
/// per-channel scales, biases, scales of x by row and by column, scales of the instruction.
const SCHEMES: &[(&str, &str)] = &[
    ("sym", "weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16"),
    (
        "asym",
        "weight: u4, zero: u4 per 1x32, scale: bf16 per 1x32, bias: f32, pack: u32 [k:8 | k, n], \
         activation: f16",
    ),
    (
        "correction",
        "weight: u8, zero: u8 per 1x32, scale: bf16 per 1x32, pack: [k, n], activation: bf16",
    ),
    (
        "factor",
        "weight: e2m1, scale: e4m3 per 1x16, scale: f32 per channel, pack: u8 [k:2 | k, n], bias: f32, \
         activation: bf16",
    ),
    (
        "rows",
        "weight: i8, scale: f32 per channel, bias: f32, pack: [k, n], \
         activation: i8 { scale: f32 per token }",
    ),
    (
        "columns",
        "weight: e4m3, scale: f32 per 128x128, pack: [k, n], \
         activation: e4m3 { scale: f32 per 1x128 }",
    ),
    (
        "codes",
        "weight: e2m1, scale: e8m0 per 1x32, pack: u8 [k:2 | k, n], \
         activation: e2m1 { scale: e8m0 per 1x32 from pow2 }",
    ),
];

fn scheme((name, clauses): (&str, &str)) -> Scheme {
    parse(&format!("{name} {{ {clauses} }}")).unwrap_or_else(|faults| panic!("{name}: {faults:?}"))
}

const fn stack(product: ExpertProduct, experts: u32, top_k: u32) -> Stack {
    let shards = match product {
        ExpertProduct::GateUp => 2,
        ExpertProduct::Down => 1,
    };
    Stack { product, experts, shards, top_k }
}

/// Small blocks of every schedule that has products of the problem: fewer slots than the tokens of an
/// instruction, K split, as many slots as two tiles of tokens.
fn choices(problem: &Problem) -> Vec<Chosen> {
    let programmatic = problem.target().name == "sm_90a";
    let skinny = SkinnyTile { programmatic, ..SKINNY };
    let tile = TileShape { programmatic, ..TILE };
    let all = [
        Chosen::Skinny(SkinnyTile { tokens: 8, row_tiles: 2, interleaved: true, ..skinny }),
        Chosen::Skinny(SkinnyTile { tokens: 16, warps: 2, splits: 2, ..skinny }),
        Chosen::Skinny(SkinnyTile { tokens: 4, row_tiles: 3, ..skinny }),
        Chosen::Tile(tile),
        Chosen::Tile(TileShape { tokens: 32, rows: 64, warps: 4, stages: 2, ..tile }),
        Chosen::Tile(TileShape { tokens: 64, stages: 2, splits: 2, ..tile }),
        Chosen::Shader(ShaderTile { tokens: 4, row_tiles: 1, groups: 2, parts: 2 }),
        Chosen::Shader(ShaderTile { tokens: 8, row_tiles: 2, groups: 1, parts: 4 }),
    ];
    all.into_iter().filter(|chosen| chosen.schedule().checked(problem).is_ok()).collect()
}

/// What is wrong with a product by a choice, in two orders of blocks and warps.
fn wrong(layer: &Layer, chosen: Chosen) -> Option<String> {
    let kernel = layer.kernel(chosen, &layer.problem);
    let slots = chosen.schedule().block_tokens();
    let mut first = None;
    for seed in 0..2 {
        let run = layer.run(&kernel, slots, seed);
        let (y, of_slots, report) = match run {
            Ok(run) => run,
            Err(why) => return Some(format!("{}: {why}", kernel.name)),
        };
        if report.conflicts() > 0 && kernel.target.name != "wgsl" && slots >= 8 {
            return Some(format!("{}: {report}", kernel.name));
        }
        if first.as_ref().is_some_and(|first| *first != y) {
            return Some(format!("{}: other bits in another order", kernel.name));
        }
        if first.is_none() {
            if let Err(why) = layer.compare(chosen, (&y, &of_slots)) {
                return Some(format!("{}: {why}", kernel.name));
            }
            first = Some(y);
        }
    }
    None
}

/// Ragged rows and columns; all choices of each scheme, or every third.
fn compared(every: usize, shape: (u32, u32), cases: &[(usize, Routing)]) {
    let all = TARGETS.iter().enumerate().flat_map(|(at, sm)| {
        SCHEMES.iter().enumerate().map(move |(of, text)| (at + of, *sm, *text))
    });
    let all: Vec<_> = all.collect();
    let done = all.par_iter().map(|&(number, sm, text)| {
        let scheme = scheme(text);
        let mut done = 0;
        for (turn, product) in [ExpertProduct::GateUp, ExpertProduct::Down].into_iter().enumerate()
        {
            for &(tokens, routing) in cases {
                let stack = stack(product, 4, 3);
                let drawn = Layer::draw(&scheme, sm, shape, stack, (tokens, routing), 7);
                let Some(layer) = drawn else { continue };
                let choices = choices(&layer.problem);
                assert!(choices.len() >= 2, "{} on {sm}", scheme.name);
                for (at, chosen) in choices.into_iter().enumerate() {
                    if (number + turn + at) % every == 0 {
                        assert_eq!(wrong(&layer, chosen), None, "{} on {sm}", scheme.name);
                        done += 1;
                    }
                }
            }
        }
        (sm, done)
    });
    let mut by_target = BTreeMap::new();
    for (sm, done) in done.collect::<Vec<_>>() {
        *by_target.entry(sm).or_insert(0) += done;
    }
    assert!(by_target.len() == 5 && by_target.values().all(|done| *done >= 4), "{by_target:?}");
}

#[test]
fn products_of_experts_are_right() {
    compared(3, (40, 608), &[(7, Routing::Random)]);
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn products_of_experts_are_right_in_every_case() {
    let cases = [1, 3, 17, 33].map(|tokens| (tokens, Routing::Random));
    compared(1, (40, 608), &cases);
    compared(1, (72, 256), &cases[1..]);
}

/// All pairs on one expert: as many token blocks as there can be of one; and no pair has an expert.
#[test]
fn one_expert_takes_all_or_none_takes_any() {
    for (number, text) in SCHEMES[..2].iter().enumerate() {
        let scheme = scheme(*text);
        for (product, routing) in [
            (ExpertProduct::GateUp, Routing::One),
            (ExpertProduct::Down, Routing::One),
            (ExpertProduct::GateUp, Routing::Nowhere),
            (ExpertProduct::Down, Routing::Nowhere),
        ] {
            let sm = TARGETS[2 * number + 1];
            let stack = stack(product, 5, 2);
            let layer = Layer::draw(&scheme, sm, (24, 392), stack, (19, routing), 3).unwrap();
            for chosen in choices(&layer.problem) {
                assert_eq!(wrong(&layer, chosen), None);
            }
        }
    }
}

/// The runtime's question and the key that answers it: slots by the pairs of an expert, the same for the
/// second product; the key gives the kernel again.
#[test]
fn keys_of_products_of_experts_give_kernels() {
    for sm in TARGETS {
        let scheme = scheme(SCHEMES[0]);
        for (tokens, experts, top_k) in [(1, 8, 2), (3, 4, 3), (40, 4, 3)] {
            let mut slots = None;
            for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
                let stack = stack(product, experts, top_k);
                let routing = Routing::Random;
                let layer =
                    Layer::draw(&scheme, sm, (40, 256), stack, (tokens, routing), 5).unwrap();
                let Stack { product, experts, shards, top_k } = stack;
                let [experts, shards, top_k] = [experts, shards, top_k].map(u64::from);
                let stacked = Stacked { product, experts, shards, top_k, slots };
                let made = Jit.choose_stacked(&layer.request(), &stacked, tokens as u64).unwrap();
                assert!(slots.is_none_or(|slots| slots == made.slots));
                slots = Some(made.slots);
                let key = &made.choice.key;
                assert!(
                    matches!(key.work, Work::Product { experts: Some(own), .. } if own == product)
                );
                assert!(made.choice.tokens >= 1 << 12, "{}", made.choice.tokens);
                let kernel = Jit.kernel(key).unwrap();
                let chosen = Chosen::read(&key.schedule.name, &key.schedule.parameters).unwrap();
                let (y, of_slots, _) = layer.run(&kernel, made.slots as u32, 1).unwrap();
                layer.compare(chosen, (&y, &of_slots)).unwrap();
            }
        }
    }
}
