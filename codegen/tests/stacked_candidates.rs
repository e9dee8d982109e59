//! The choices worth measuring for the products of expert layers, and the table that keeps the fastest.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::jit::Tiles;
use crate::kernels::stacked::{RandomStack, Routing, asked, scheme, stack};
use crate::stacked::wrong;
use crate::stacked_warp_group::check;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::verify;
use quantloom_codegen::jit::{
    Jit, JitWithOverrides, Overrides, TileTable as _, measured_row_of_experts,
};
use quantloom_codegen::schedule::{
    Case, Chosen, Measured, Problem, Stack, candidates_stacked, choose_stacked,
};
use quantloom_codegen::target::target;
use quantloom_dsl::experts::{ExpertProduct, Gate};
use quantloom_dsl::format::{BF16, F32};
use quantloom_dsl::{Accuracy, Scheme};
use quantloom_runtime::gpu::{
    ChoiceSource, Products as _, Request, Stacked, StackedAlternatives, StackedChoice,
};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::ptxas;
use rayon::prelude::*;

const INTEGERS: (&str, &str) =
    ("integers", "weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16");
const BLOCKS: (&str, &str) = (
    "blocks",
    "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }",
);

/// The first product of a layer of 128 experts with the gate in it.
fn gate_up(text: (&str, &str), sm: &str, direct: bool) -> Problem {
    let scheme = scheme(text);
    let problem =
        Problem::new(&scheme, &scheme.activations[0], target(sm).unwrap(), (768, 2048)).unwrap();
    let stack = stack(ExpertProduct::GateUp, 128, 8);
    problem.stacked(Stack { gate: Some(Gate::Silu), direct, ..stack }).unwrap()
}

fn slots_of(problem: &Problem, all: &[Chosen]) -> BTreeSet<u32> {
    all.iter().map(|chosen| problem.slots(*chosen).unwrap()).collect()
}

/// The model's choice is the first, no two are the same, and their kernels are valid. Before pairs are in order slots differ, as far as
/// rows fill them; after that there are many of the slots that are given.
#[test]
fn slots_are_compared_first_then_tiles() {
    for (text, sm) in [(INTEGERS, "sm_90a"), (BLOCKS, "sm_90a"), (INTEGERS, "sm_80")] {
        let problem = gate_up(text, sm, false);
        // Slots up to four times the rows, 16 with any number of these; as many as leave six token blocks an expert, or the largest.
        for (tokens, fewest, most) in
            [(16, 8, 16), (256, 8, 64), (1024, 11, 256), (1 << 16, 16, 256)]
        {
            let first = candidates_stacked(&problem, tokens, None);
            let all_slots = slots_of(&problem, &first);
            let (low, high) = (*all_slots.first().unwrap(), *all_slots.last().unwrap());
            let what = format!("{} on {sm}, M = {tokens}: {all_slots:?}", text.0);
            assert!(low >= fewest && high <= most && all_slots.len() >= 2, "{what}");
            assert_eq!(first[0], choose_stacked(&problem, tokens, None).unwrap(), "{what}");
            let model = problem.slots(first[0]);
            let tiles = candidates_stacked(&problem, tokens, model);
            assert_eq!(tiles[0], choose_stacked(&problem, tokens, model).unwrap(), "{what}");
            assert_eq!(slots_of(&problem, &tiles), model.into_iter().collect(), "{what}");
            assert!(tiles.len() > 10, "{what}: {} tiles", tiles.len());
            for all in [first, tiles] {
                let different: std::collections::HashSet<&Chosen> = all.iter().collect();
                assert_eq!(different.len(), all.len(), "{what}");
            }
        }
    }
    // One token's pairs are blocks of their own.
    let direct = gate_up(INTEGERS, "sm_90a", true);
    let kinds = |tokens| -> BTreeSet<bool> {
        let all = candidates_stacked(&direct, tokens, None).into_iter();
        all.map(|chosen| chosen.schedule().groups_pairs()).collect()
    };
    // Of several tokens some group pairs.
    let both = BTreeSet::from([false, true]);
    assert_eq!([1, 4, 8].map(kinds), [BTreeSet::from([false]), both.clone(), both]);
    let all = candidates_stacked(&direct, 1, None);
    assert!(all.len() > 10 && all.iter().all(|chosen| chosen.name() == "skinny"), "{all:?}");
    assert_eq!(candidates_stacked(&direct, 1, Some(1)), all);
    // No product of a single matrix.
    assert_eq!(candidates_stacked(&direct.single(), 1, None), []);
}

/// Kernels that are measured are right, whatever is chosen of them: of sorted pairs, and of pairs as they are. (FP8 in blocks, whose x warp groups read in another form, is multiplied by whole layers.)
/// Kernels of all schedules are among the cases; a share may have none of one.
#[test]
fn candidates_are_right() {
    let share = Share::new(72, 96);
    let of = |sm| move |product| (sm, product);
    let products = [ExpertProduct::GateUp, ExpertProduct::Down];
    let cases = products.map(of("sm_80")).into_iter().chain(products.map(of("sm_90a")));
    let cases: Vec<_> = cases.enumerate().collect();
    let done = cases.par_iter().map(|&(number, (sm, product))| {
        let (scheme, routed) = (scheme(INTEGERS), (9, Routing::Random));
        let layer = RandomStack::draw(&scheme, sm, (40, 264), stack(product, 4, 3), routed, 9);
        let layer = layer.unwrap();
        let of_slots = |slots| candidates_stacked(&layer.problem, 9, Some(slots));
        let mut names = BTreeSet::new();
        for (at, chosen) in [8, 16, 24, 32].into_iter().flat_map(of_slots).enumerate() {
            names.insert(chosen.name());
            if !share.takes(31 * number + at) {
                continue;
            }
            match chosen {
                Chosen::WarpGroup(tile) => check(&layer, tile),
                _ => assert_eq!(wrong(&layer, chosen), None, "{sm}"),
            }
        }
        // Each pair is a token block.
        let (direct, pairs) = (layer.of_stack(None, true), (2, Routing::Random));
        let few =
            RandomStack::draw(&scheme, sm, (40, 392), stack(product, 4, 3), pairs, 4).unwrap();
        let of_tokens = [1, 2].map(|tokens| candidates_stacked(&direct, tokens, None));
        for (at, chosen) in of_tokens.into_iter().flatten().enumerate() {
            if share.takes(31 * number + at) {
                let kernel = few.kernel(chosen, &few.of_stack(None, true));
                let run = few.run(&kernel, 1, 0).unwrap_or_else(|why| panic!("{why}"));
                few.compare(chosen, &run).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            }
        }
        (sm, names)
    });
    for (sm, names) in done.collect::<Vec<_>>() {
        let all: &[&str] =
            if sm == "sm_90a" { &["skinny", "tile", "warp_group"] } else { &["skinny", "tile"] };
        assert!(names.iter().eq(all), "{sm}: {names:?}");
    }
}

/// The vendor's assembler takes what is measured; whether registers are spilled is found where it is measured.
#[test]
fn candidates_assemble() {
    let Some(ptxas) = ptxas::find() else { return };
    let (share, mut failed, mut number) = (Share::new(36, 96), Vec::new(), 0);
    for text in [INTEGERS, BLOCKS] {
        let problem = gate_up(text, "sm_90a", false);
        for slots in [8, 16, 32, 64, 96, 128, 144, 256] {
            for chosen in candidates_stacked(&problem, slots * 12, Some(slots)) {
                number += 1;
                if !share.takes(number) {
                    continue;
                }
                let kernel = verify(chosen.write(&problem).unwrap()).unwrap();
                let assembled = ptxas.assemble(&ptx::emit(&kernel).unwrap(), "sm_90a");
                if !assembled.ok {
                    failed.push(format!("{}:\n{}", kernel.name, assembled.report));
                }
            }
        }
    }
    assert!(number > 400 && failed.is_empty(), "{number} tiles:\n{}", failed.join("\n"));
}

/// What is asked of the compiler for a layer of Qwen3's sizes.
fn of_layer(scheme: &Scheme) -> (Request<'_>, Stacked) {
    let request = Request::new(scheme, &scheme.activations[0], BF16, "sm_90a", [768, 2048]);
    let stack = Stack { gate: Some(Gate::Silu), ..stack(ExpertProduct::GateUp, 128, 8) };
    (request, asked(stack, None, BF16))
}

/// Tiles that were measured on the device come before the model's: the first product's with its slots, the second's where those are
/// its slots; for the layer's sizes and M alone.
#[test]
fn tiles_of_the_device_come_first() {
    let scheme = scheme(INTEGERS);
    let (request, stacked) = of_layer(&scheme);
    let table = Arc::new(Tiles::default());
    let jit = JitWithOverrides::default().with_tiles(table.clone());
    let plain = jit.choose_stacked(&request, &stacked, 64).unwrap();
    assert_ne!(plain.choice.by, ChoiceSource::Tuned);
    let StackedAlternatives { tokens, kernels } =
        jit.alternatives_stacked(&request, &stacked, 57).unwrap();
    // Four steps from 32 to 64.
    assert_eq!((tokens, &kernels[0].choice.key), (64, &plain.choice.key));
    let fastest = kernels.iter().find(|kernel| kernel.slots == 16).unwrap();
    assert_ne!(plain.slots, 16);
    jit.keep_stacked(&request, &stacked, tokens, fastest).unwrap();
    // As it is written and read.
    table.reread();
    let chosen = |of: &Stacked, tokens| jit.choose_stacked(&request, of, tokens).unwrap();
    let tuned = |of: &StackedChoice| {
        (of.choice.by == ChoiceSource::Tuned).then(|| (of.slots, of.choice.key.clone()))
    };
    let expected = Some((16, fastest.choice.key.clone()));
    for tokens in [57, 60, 64] {
        assert_eq!(tuned(&chosen(&stacked, tokens)), expected, "M = {tokens}");
    }
    for other in [56, 65, 128] {
        assert_eq!(tuned(&chosen(&stacked, other)), None, "M = {other}");
    }
    for other in [
        Stacked { experts: 64, chosen_from: 64, ..stacked },
        Stacked { chosen_from: 256, ..stacked },
        Stacked { top_k: 4, ..stacked },
        Stacked { gate: Some(Gate::Gelu), ..stacked },
        Stacked { slots: Some(32), ..stacked },
        Stacked { direct: true, ..stacked },
    ] {
        assert_eq!(tuned(&chosen(&other, 64)), None, "{other:?}");
    }
    // An override comes before all.
    let overrides: Overrides = "use tile".parse().unwrap();
    let over = JitWithOverrides::new(overrides).with_tiles(table.clone());
    let over = over.choose_stacked(&request, &stacked, 64).unwrap();
    assert_eq!(
        (over.choice.by, over.choice.key.schedule.name.as_str()),
        (ChoiceSource::Override, "tile")
    );
    // The second product's, with and without the router's weights.
    let (product, shards) = (ExpertProduct::Down, 1);
    let second = Stacked { product, shards, gate: None, output: F32, weighted: true, ..stacked };
    let second = Stacked { slots: Some(32), ..second };
    let of = Request { n: 2048, k: 768, x_columns: 768, ..request };
    let kernels = jit.alternatives_stacked(&of, &second, 64).unwrap().kernels;
    assert!(kernels.len() > 10 && kernels.iter().all(|kernel| kernel.slots == 32));
    let fastest = kernels.last().unwrap();
    jit.keep_stacked(&of, &second, 64, fastest).unwrap();
    for (slots, weighted, is_tuned) in [(32, true, true), (32, false, true), (16, true, false)] {
        let like = Stacked { slots: Some(slots), weighted, ..second };
        let chosen = jit.choose_stacked(&of, &like, 64).unwrap();
        assert_eq!(chosen.choice.by == ChoiceSource::Tuned, is_tuned, "{slots} slots, {weighted}");
    }
    // Nothing is kept without a table, nor of exact products.
    let without = Jit.keep_stacked(&of, &second, 64, fastest).unwrap_err().to_string();
    assert_eq!(without, "this source of kernels keeps no measurements");
    let exact = scheme.with_accuracy(Accuracy::Exact);
    let (exact, _) = of_layer(&exact);
    let refused = jit.keep_stacked(&exact, &stacked, 64, &plain).unwrap_err().to_string();
    assert_eq!(refused, "the table of tiles has no lines of exact products");
}

/// A line whose tile a layer does not take serves nobody: one of other slots, one that blocks do not have room for.
#[test]
fn wrong_lines_of_the_device_serve_nobody() {
    let scheme = scheme(INTEGERS);
    let (request, stacked) = of_layer(&scheme);
    let table = Arc::new(Tiles::default());
    let jit = JitWithOverrides::default().with_tiles(table.clone());
    let kernels = jit.alternatives_stacked(&request, &stacked, 64).unwrap().kernels;
    let fastest = kernels.iter().find(|kernel| kernel.slots == 16).unwrap();
    let given = Stacked { slots: Some(8), ..stacked };
    let row = measured_row_of_experts(&request, &given, 64, &fastest.choice.key).unwrap();
    assert!(row.case.product.ends_with("_b8"), "{row}");
    table.push(row.clone());
    let chosen = jit.choose_stacked(&request, &given, 64).unwrap();
    assert_eq!((chosen.slots, chosen.choice.by), (8, ChoiceSource::Model));
    // 9 and more stages of as many slots do not fit.
    let large = row.to_string().replace("_b8", "").replace("stages=", "stages=9");
    let large: Measured = large.parse().unwrap();
    table.push(large.clone());
    assert_eq!(table.fastest(&large.case), Some(large.chosen));
    assert_eq!(jit.choose_stacked(&request, &stacked, 64).unwrap().choice.by, ChoiceSource::Model);
}

/// M of a case: powers of two of single matrices, four steps between them of expert layers.
#[test]
fn tokens_of_cases_are_rounded_up() {
    let stacked = gate_up(INTEGERS, "sm_90a", false);
    let single = stacked.single();
    for (tokens, of_single, of_stack) in [
        (0, 1, 0),
        (1, 1, 1),
        (3, 4, 3),
        (7, 8, 7),
        (9, 16, 10),
        (16, 16, 16),
        (17, 32, 20),
        (100, 128, 112),
        (1000, 1024, 1024),
        (1025, 2048, 1280),
        (u32::MAX, u32::MAX, u32::MAX),
    ] {
        let cases = [&single, &stacked].map(|problem| Case::new(problem, tokens).m);
        assert_eq!(cases, [of_single, of_stack], "M = {tokens}");
    }
}
