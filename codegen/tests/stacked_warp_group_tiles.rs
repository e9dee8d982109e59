//! Which tiles of warp groups expert layers have: what is chosen for how many tokens, and that tiles assemble.

use crate::kernels::stacked::{scheme, stack};
use crate::kernels::tiles::WARP_GROUP;
use crate::stacked_warp_group::SCHEMES;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::verify;
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{
    ChoiceRule, Chosen, Problem, Schedule, Stack, Unscheduled, choose_stacked,
};
use quantloom_codegen::target::target;
use quantloom_dsl::experts::{ExpertProduct, Gate};
use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F32};
use quantloom_dsl::{Activation, Scheme};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::ptxas;

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

/// A layer: the columns of x, the rows of a shard of the first product, experts, and how many of them a token has.
type Layer = (u32, u32, u32, u32);

const QWEN: Layer = (2048, 768, 128, 8);
const MIXTRAL: Layer = (4096, 14_336, 8, 2);
/// Layers whose kernels are assembled.
const LAYERS: [Layer; 3] = [QWEN, (2880, 2880, 128, 4), MIXTRAL];

/// What is chosen for both products of a layer, whose scales are in range or not: the second with the slots of the first.
fn chosen(
    scheme: &Scheme,
    in_range: bool,
    (hidden, intermediate, experts, top_k): Layer,
    tokens: u32,
) -> [Chosen; 2] {
    let mut slots = None;
    [
        (ExpertProduct::GateUp, (intermediate, hidden), Some(Gate::Silu)),
        (ExpertProduct::Down, (hidden, intermediate), None),
    ]
    .map(|(product, shape, gate)| {
        let target = target("sm_90a").unwrap();
        let problem = Problem::new(scheme, &scheme.activations[0], target, shape).unwrap();
        let weighted = product == ExpertProduct::Down;
        let stack = Stack { gate, weighted, ..stack(product, experts, top_k) };
        let problem = problem.of_scales(in_range).stacked(stack).unwrap();
        let problem = problem.giving(NUMBER_BF16).unwrap();
        let chosen = choose_stacked(&problem, tokens, slots).unwrap();
        slots = problem.slots(chosen);
        chosen
    })
}

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
        (64, (2880, 2880), 3),
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

/// Three warp groups have registers for sums of 64 slots beside y in f32 with fewer fragments at once: four of them spilled.
#[test]
fn three_warp_groups_have_registers_for_y_in_f32() {
    let scheme = scheme((
        "m",
        "weight: e2m1, scale: e8m0 per 1x32, pack: u32 [k:8 | k, n], activation: bf16",
    ));
    let dense =
        Problem::new(&scheme, &scheme.activations[0], target("sm_90a").unwrap(), (2880, 2880));
    let stacked = dense.unwrap().stacked(stack(ExpertProduct::Down, 128, 4)).unwrap();
    for (output, is_held) in [(NUMBER_BF16, true), (NUMBER_F32, false)] {
        let problem = stacked.clone().giving(output).unwrap();
        let tile = WarpGroupTile { tokens: 64, groups: 3, row_tiles: 2, stages: 4, ..WARP_GROUP };
        let fits = |batch| WarpGroupTile { batch, ..tile }.fits(&problem);
        assert!(fits(2) && fits(4) == is_held, "{output}");
    }
}

/// Two groups with six stages where memory bounds products of short rows with up to 16 slots and weights are made 16-bit numbers, four
/// where codes take longer; with a row an expert on average already, each product where its tiles are whole waves.
#[test]
fn tiles_that_memory_bounds_are_small() {
    let groups = "scale: bf16 per 1x128, pack: u32 [k:8 | k, n]";
    let integers = format!("weight: i4, {groups}, activation: bf16");
    let zeros = format!("weight: u4, zero: u4 per 1x128, {groups}, activation: bf16");
    let bytes = format!("weight: i4, {groups}, activation: e4m3 {{ scale: f32 per token }}");
    let floats =
        "weight: e2m1, scale: e8m0 per 1x32, pack: u32 [k:8 | k, n], activation: bf16".to_owned();
    let small = |slots| Some((slots, 2, Some(6)));
    let large = |slots, groups| Some((slots, groups, None));
    for (text, tokens, layer, expected) in [
        (&integers, 12, QWEN, [None; 2]),
        (&integers, 16, QWEN, [small(8); 2]),
        (&integers, 24, QWEN, [small(8), None]),
        (&integers, 32, QWEN, [None, small(8)]),
        (&integers, 64, QWEN, [small(8); 2]),
        (&integers, 128, QWEN, [small(16); 2]),
        (&integers, 256, QWEN, [large(24, 4); 2]),
        (&integers, 384, QWEN, [large(32, 4); 2]),
        (&zeros, 128, QWEN, [large(16, 4); 2]),
        (&bytes, 128, QWEN, [large(16, 4); 2]),
        (&floats, 128, QWEN, [large(16, 4); 2]),
        (&integers, 16, MIXTRAL, [None; 2]),
    ] {
        let chosen = chosen(&scheme(("short", text)), true, layer, tokens);
        for (chosen, expected) in chosen.into_iter().zip(expected) {
            let found = match chosen {
                Chosen::WarpGroup(tile) => {
                    let stages = (tile.groups == 2).then_some(tile.stages);
                    Some((tile.tokens, tile.groups, stages))
                }
                _ => None,
            };
            assert_eq!(found, expected, "{text}: {tokens} tokens, {layer:?}");
        }
    }
}

/// FP8 in blocks is multiplied by warp groups, with 32 slots, where experts have five rows on average.
#[test]
fn bytes_in_blocks_have_warp_groups_from_five_rows_on() {
    let scheme = scheme((
        "blocks",
        "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }",
    ));
    for (tokens, slots) in [(64, None), (79, None), (80, Some(32)), (256, Some(32))] {
        for chosen in chosen(&scheme, true, QWEN, tokens) {
            let found = match chosen {
                Chosen::WarpGroup(tile) => Some(tile.tokens),
                _ => None,
            };
            assert_eq!(found, slots, "{tokens} tokens: {}", chosen.name());
        }
    }
}

/// Bytes that are multiplied as they are stored, whose scales multiply sums after all of K: with few slots the part of a product that
/// does not depend on them is most of the time (Mixtral 8x7B at M = 1024 took 2321 us with 32 slots and 847 with 144).
#[test]
fn bytes_as_they_are_stored_have_many_slots() {
    let (integers, floats) = (BYTES[1], BYTES[2]);
    for (text, tokens, layer, expected) in [
        (floats, 32, MIXTRAL, 32),
        (floats, 48, MIXTRAL, 32),
        (floats, 64, MIXTRAL, 32),
        (floats, 256, MIXTRAL, 80),
        (floats, 512, MIXTRAL, 144),
        (floats, 1024, MIXTRAL, 144),
        (integers, 256, MIXTRAL, 80),
        (integers, 1024, MIXTRAL, 144),
        (floats, 256, QWEN, 32),
        (floats, 1024, QWEN, 80),
    ] {
        for chosen in chosen(&scheme(text), false, layer, tokens) {
            let Chosen::WarpGroup(tile) = chosen else { panic!("{text:?}: {}", chosen.name()) };
            assert_eq!(tile.tokens, expected, "{text:?}: {tokens} tokens, {layer:?}");
        }
    }
    // With fewer than 8 rows an expert 32 slots are not worth it.
    for chosen in chosen(&scheme(floats), false, QWEN, 96) {
        assert_eq!((chosen.name(), chosen.schedule().block_tokens()), ("skinny", 8));
    }
}

/// With more than 128 slots a stage is a whole k-tile if three fit, also of codes whose k-tile has two halves.
#[test]
fn stages_of_many_slots_are_whole() {
    for chosen in chosen(&scheme(SCHEMES[0]), false, MIXTRAL, 1024) {
        let Chosen::WarpGroup(tile) = chosen else { panic!("{}", chosen.name()) };
        assert_eq!((tile.tokens, tile.parts, tile.stages), (144, 1, 3));
    }
}

/// Where each token chooses half of the experts, their rows spread half as much as where it chooses a few of many: 216 rows of an
/// expert, 10 more or less, need two token blocks of 112, and by a Poisson distribution, 15 more or less, often a third.
#[test]
fn rows_spread_by_the_share_of_experts() {
    for (tokens, expected) in [(144, 80), (432, 112), (752, 128)] {
        for chosen in chosen(&scheme(BYTES[2]), false, (4096, 14_336, 4, 2), tokens) {
            assert_eq!(chosen.schedule().block_tokens(), expected, "{tokens} tokens");
        }
    }
}

/// An expert of a part of them has as many rows as one of all, for the model of warp groups and elsewhere.
#[test]
fn experts_elsewhere_take_their_rows_along() {
    for (text, tokens, name) in [
        (SCHEMES[0], 256, "sm_90a"),
        (SCHEMES[0], 1024, "sm_90a"),
        (BYTES[2], 1024, "sm_90a"),
        (SCHEMES[0], 96, "sm_80"),
        (SCHEMES[0], 256, "gfx942"),
    ] {
        let scheme = scheme(text);
        let slots = [(128, 128), (16, 128), (4, 128)].map(|(experts, chosen_from)| {
            let (target, shape) = (target(name).unwrap(), (768, 2048));
            let problem = Problem::new(&scheme, &scheme.activations[0], target, shape).unwrap();
            let stack = Stack { chosen_from, ..stack(ExpertProduct::GateUp, experts, 8) };
            let problem = problem.stacked(stack).unwrap().giving(NUMBER_F32).unwrap();
            problem.slots(choose_stacked(&problem, tokens, None).unwrap())
        });
        assert_eq!(slots, [slots[0]; 3], "{text:?}: {tokens} tokens, {name}");
    }
}

/// FP8 in blocks: two warp groups, whose operands are swapped while a token block of 64 rows is half empty; the tokens from which on
/// they were not faster are measured (docs/performance/experts.md).
#[test]
fn full_token_blocks_of_fp8_in_blocks_are_not_swapped() {
    let scheme = scheme(BYTES[0]);
    for (tokens, layer, expected) in [
        (128, QWEN, (32, false)),
        (256, QWEN, (32, false)),
        (512, QWEN, (64, true)),
        (1024, QWEN, (64, true)),
        (4096, QWEN, (128, true)),
        (32, MIXTRAL, (32, false)),
        (64, MIXTRAL, (32, false)),
        (256, MIXTRAL, (64, true)),
        (1024, MIXTRAL, (128, true)),
    ] {
        for chosen in chosen(&scheme, false, layer, tokens) {
            let Chosen::WarpGroup(tile) = chosen else { panic!("{}", chosen.name()) };
            let found = (tile.groups, (tile.tokens, tile.unswapped));
            assert_eq!(found, (2, expected), "{tokens} tokens, {layer:?}");
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
