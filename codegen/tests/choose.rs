//! The choice of a schedule: it can be written, and its key's name and parameters give it back.

use std::collections::BTreeMap;

use crate::kernels::products::{catalogue, problem};
use crate::kernels::stacked::stack;
use quantloom_codegen::ir::verify;
use quantloom_codegen::schedule::{
    Case, Chosen, Measured, Problem, Stack, candidates, choose, choose_by_model, choose_stacked,
    measured_rows,
};
use quantloom_codegen::target::target;
use quantloom_dsl::Scheme;
use quantloom_dsl::experts::{ExpertProduct, Gate};

#[test]
fn what_is_chosen_is_written_and_read_back() {
    for sm in ["sm_80", "sm_89", "sm_90a"] {
        for shape in [(4096, 4096), (5760, 2880), (1024, 4096), (8192, 28_672), (48, 128)] {
            let problem = problem("asym", 0, sm, shape);
            for tokens in [1, 3, 8, 16, 17, 64, 257] {
                let chosen = choose(&problem, tokens).unwrap();
                assert!(chosen.tokens(&problem) >= tokens, "{sm} {shape:?} {tokens}: {chosen:?}");
                let parameters: BTreeMap<String, u64> = chosen
                    .parameters()
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
                assert_eq!(Chosen::read(chosen.name(), &parameters).unwrap(), chosen);
                let kernel = chosen.write(&problem).unwrap();
                verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
            }
        }
    }
}

/// Elements are numbered in 32 bits: y [65537, 65536] would begin again at its first row.
#[test]
fn rows_beyond_32_bits_are_for_another_launch() {
    let problem = problem("sym", 0, "sm_90a", (65_536, 65_536));
    let most = choose(&problem, 65_537).unwrap().tokens(&problem);
    assert!(most < 65_536 && most > 32_768, "{most}");
}

/// A grid has 65,535 blocks at most along its second and third axis, and 2^31 - 1 along its first.
#[test]
fn any_number_of_rows_fits_the_grid() {
    use quantloom_runtime::source::ProblemSize;
    for target in ["sm_80", "sm_90a", "gfx942", "gfx1100", "gfx1201"] {
        for n in [4_194_240, 4_194_241, 5_000_000, 1 << 24] {
            let problem = problem("sym", 0, target, (n, 64));
            for tokens in [17, 64, 255] {
                let chosen = choose(&problem, tokens).unwrap();
                let kernel = verify(chosen.write(&problem).unwrap()).unwrap();
                let rule = quantloom_codegen::jit::launch_rule(&kernel).unwrap();
                let m = u64::from(tokens.min(chosen.tokens(&problem)));
                let sizes = ProblemSize::new(m, u64::from(n), 64, 132);
                let [x, y, z] = rule.grid.clone().map(|count| count.of(&sizes).unwrap());
                let case = format!("{n} rows, {tokens} tokens, {target}: {x} x {y} x {z}");
                assert!(x < 1 << 31 && y <= 65_535 && z <= 65_535, "{case}");
                if let Chosen::Tile(shape) = chosen {
                    let rows = u64::from(n.div_ceil(shape.rows));
                    let blocks = [m.div_ceil(u64::from(shape.tokens)), rows];
                    assert_eq!(x * y, blocks[0] * blocks[1], "{case}");
                    assert_eq!(y == rows, rows <= 65_535, "{case}");
                }
            }
        }
    }
}

#[test]
fn processors_without_rows_get_a_part_of_k() {
    let tile = |shape, tokens| match choose_by_model(&problem("sym", 0, "sm_90a", shape), tokens)
        .unwrap()
    {
        Chosen::Skinny(tile) => tile,
        other => panic!("{other:?}"),
    };
    // Tiles of 16 rows, groups of 128 columns; k-tiles of a warp without a split and with one.
    for (n, k, tokens, splits) in [
        (1024, 4096, 1, 2),   // 64 tiles, 32 groups: 2 k-tiles of 16 warps, 1
        (1024, 4096, 16, 3),  // 3 k-tiles of 12 warps, 1, with two blocks an SM
        (512, 8192, 8, 4),    // 32 tiles, 64 groups: 4 k-tiles, 1
        (1024, 16_384, 1, 4), // 128 groups: 8 k-tiles, 2, with two blocks an SM
        (1024, 2048, 1, 1),   // 16 groups: 1 k-tile, which nothing makes shorter
        (4096, 4096, 1, 1),   // as many blocks as are held at once
        (8192, 28_672, 16, 1),
    ] {
        let tile = tile((n, k), tokens);
        assert_eq!(tile.splits, splits, "{n} x {k}, M = {tokens}: {tile:?}");
    }
}

/// A second tile of tokens doubles the registers and the bytes of x. Four tiles of rows halve its
/// reads, and a block per SM is then one wave.
#[test]
fn many_tokens_and_rows_take_four_tiles_of_them() {
    for scheme in ["sym", "asym"] {
        for shape in [(8192, 8192), (8192, 28_672)] {
            for tokens in [9, 16] {
                let problem = problem(scheme, 0, "sm_90a", shape);
                let chosen = choose_by_model(&problem, tokens).unwrap();
                let Chosen::Skinny(tile) = chosen else { panic!("{chosen:?}") };
                let found = (tile.row_tiles, tile.warps, tile.min_blocks);
                assert_eq!(found, (4, 12, 1), "{scheme} {shape:?} {tokens}");
            }
        }
    }
}

/// Token blocks of 16 slots take tiles on Hopper, those of 8 skinny products (docs/performance/experts.md).
#[test]
fn token_blocks_of_16_slots_take_tiles_on_hopper() {
    let stack = stack(ExpertProduct::GateUp, 128, 8);
    let problem = problem("sym", 0, "sm_90a", (1536, 2048)).stacked(stack).unwrap();
    for (slots, name) in [(8, "skinny"), (16, "tile")] {
        let chosen = choose_stacked(&problem, slots * 8, Some(slots)).unwrap();
        assert_eq!(chosen.name(), name, "{slots} slots: {chosen:?}");
    }
}

/// FP8 in blocks has unswapped operands where products bound and not memory; of two tiles of rows that a gate needs, several
/// fragments are multiplied together (docs/performance/warp_group.md).
#[test]
fn fp8_in_blocks_has_operands_of_both_orders() {
    let single = problem("blocks", 0, "sm_90a", (8192, 8192));
    for (tokens, unswapped) in [(32, false), (64, false), (256, true), (4096, true)] {
        let chosen = choose_by_model(&single, tokens).unwrap();
        let Chosen::WarpGroup(tile) = chosen else { panic!("{chosen:?}") };
        assert_eq!(tile.unswapped, unswapped, "M = {tokens}: {tile:?}");
    }
    let stack = Stack { gate: Some(Gate::Silu), ..stack(ExpertProduct::GateUp, 128, 8) };
    let layer = problem("blocks", 0, "sm_90a", (1536, 2048)).stacked(stack).unwrap();
    // Each group with 64 tokens of its own, or both with those of a tile.
    for (slots, unswapped) in [(32, false), (64, true), (96, false), (128, true)] {
        let chosen = Chosen::of("warp_group", &layer, slots).unwrap();
        let Chosen::WarpGroup(tile) = chosen else { panic!("{chosen:?}") };
        assert_eq!(tile.unswapped, unswapped, "{slots} slots: {tile:?}");
        match unswapped {
            true => assert_eq!((tile.groups, tile.row_tiles), (2, 1), "{slots} slots: {tile:?}"),
            false => assert!(tile.batch > 1, "{slots} slots: {tile:?}"),
        }
    }
}

#[test]
fn a_key_that_says_too_little_is_refused() {
    let chosen = choose(&problem("sym", 0, "sm_90a", (4096, 4096)), 1).unwrap();
    for (missing, _) in chosen.parameters() {
        let others = chosen.parameters().into_iter().filter(|(name, _)| *name != missing);
        let others = others.map(|(name, value)| (name.to_owned(), value)).collect();
        let error = Chosen::read(chosen.name(), &others).unwrap_err().to_string();
        assert!(error.contains(missing), "{missing}: {error}");
    }
    let error = Chosen::read("coded", &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("no schedule coded"), "{error}");
}

/// From 64 tokens on warp groups multiply every scheme of the catalogue, with every type of x, if scales are of the size that
/// weights have.
#[test]
fn warp_groups_have_the_catalogue_on_hopper() {
    let target = target("sm_90a").unwrap();
    let mut seen = 0;
    for scheme in catalogue() {
        for activation in &scheme.activations {
            let problem = Problem::in_layout(&scheme, activation, target, ((4096, 4096), true));
            // Those of interleaved expert layers alone have no product of one matrix.
            let Ok(problem) = problem else { continue };
            for tokens in [64, 1024] {
                let chosen = choose(&problem, tokens).unwrap();
                assert_eq!(chosen.name(), "warp_group", "{} {activation:?} {tokens}", scheme.name);
            }
            seen += 1;
        }
    }
    assert!(seen >= 80, "{seen}");
}

/// What is measured does not depend on the estimate of registers, what a model chooses does.
#[test]
fn kernels_are_measured_whatever_registers_they_are_estimated_to_have() {
    let catalogue = catalogue();
    for (name, of_target, tokens) in [
        ("ct_w4a16", "sm_80", 1),
        ("ct_w4a16", "sm_80", 256),
        ("ct_w4a16", "sm_90a", 1),
        ("ct_w4a16", "sm_90a", 256),
        ("fp8_block", "sm_90a", 512),
    ] {
        let scheme = catalogue.iter().find(|scheme| scheme.name == name).unwrap();
        let (activation, target) = (&scheme.activations[0], target(of_target).unwrap());
        let problem = Problem::new(scheme, activation, target, (4096, 4096)).unwrap();
        let all = candidates(&problem, tokens);
        let (fit, beyond): (Vec<Chosen>, Vec<Chosen>) =
            all.iter().partition(|chosen| chosen.takes(&problem, tokens));
        assert_eq!(Some(&all[0]), choose_by_model(&problem, tokens).ok().as_ref());
        assert!(fit.contains(&all[0]), "{name} on {of_target}: {:?}", all[0]);
        assert!(fit.len() > 8 && !beyond.is_empty(), "{name} on {of_target}, M = {tokens}");
        for chosen in beyond {
            assert!(chosen.runs(&problem, tokens), "{chosen:?}");
            verify(chosen.write(&problem).unwrap()).unwrap();
        }
    }
}

/// The catalogue's problem of a line of the table of tiles, of a single matrix or of experts, and the slots that the line says.
fn measured_problem(row: &Measured, catalogue: &[Scheme]) -> Option<(Problem, Option<u32>)> {
    let (target, shape) = (target(&row.case.target)?, (row.case.n, row.case.k));
    let all = catalogue.iter().flat_map(|scheme| {
        let layouts =
            move |activation| [false, true].map(|of_range| (scheme, activation, (shape, of_range)));
        scheme.activations.iter().flat_map(layouts)
    });
    let slots = row.case.product.rsplit_once("_b").and_then(|(_, slots)| slots.parse().ok());
    let single = all.filter_map(|(scheme, activation, of)| {
        Problem::in_layout(scheme, activation, target, of).ok()
    });
    let mut all = single.flat_map(|single| {
        let stacks = stacks_of(&row.case).into_iter().filter_map({
            let single = single.clone();
            move |stack| single.clone().stacked(stack).ok()
        });
        stacks.chain([single]).collect::<Vec<_>>()
    });
    let problem =
        all.find(|problem| Case::new(problem, row.case.m).in_blocks(slots) == row.case)?;
    Some((problem, slots))
}

/// Stacks whose sizes a case's name has: those of `_x128s2k8` in it, with every gate and way.
fn stacks_of(case: &Case) -> Vec<Stack> {
    let sizes = || -> Option<[u32; 3]> {
        let (_, of) = case.product.split_once("_x")?;
        let (experts, of) = of.split_once('s')?;
        let (shards, of) = of.split_once('k')?;
        let top_k: String = of.chars().take_while(char::is_ascii_digit).collect();
        Some([experts.parse().ok()?, shards.parse().ok()?, top_k.parse().ok()?])
    };
    let Some([experts, shards, top_k]) = sizes() else { return Vec::new() };
    let swiglu = Gate::SwigluOai { alpha: 1.702, limit: 7.0 };
    let products = [ExpertProduct::GateUp, ExpertProduct::Down];
    let of_product = |product| {
        let gates = [None, Some(Gate::Silu), Some(Gate::Gelu), Some(swiglu)];
        gates.map(|gate| Stack { gate, shards, ..stack(product, experts, top_k) })
    };
    let ways = [(false, false), (true, false), (true, true)];
    let of_way = |of: Stack| ways.map(|(direct, combined)| Stack { direct, combined, ..of });
    products.into_iter().flat_map(of_product).flat_map(of_way).collect()
}

/// Whether a product of the catalogue has that name on that target, and the tile takes it.
fn serves(row: &Measured, catalogue: &[Scheme]) -> bool {
    measured_problem(row, catalogue).is_some_and(|(problem, slots)| {
        let of_slots = slots.is_none_or(|slots| problem.slots(row.chosen) == Some(slots));
        of_slots && row.chosen.takes(&problem, row.case.m)
    })
}

#[test]
fn tiles_were_measured_for_the_catalogue() {
    let catalogue = catalogue();
    for row in measured_rows() {
        assert!(serves(row, &catalogue), "{row}");
        let (problem, _) = measured_problem(row, &catalogue).unwrap();
        if problem.stack.is_none() {
            assert_eq!(choose(&problem, row.case.m).unwrap(), row.chosen, "{row}");
        }
    }
    let line = "sm_90a q4g128_bf16 4096 4096 4 skinny tokens=8 row_tiles=1 warps=4 min_blocks=2 \
                splits=1 interleaved=0 programmatic=1";
    let served = |line: String| serves(&line.parse().unwrap(), &catalogue);
    assert!(served(line.to_owned()));
    // Lines of expert layers too: these are Qwen3-30B's.
    let tile = "groups=4 row_tiles=2 stages=4 parts=1 batch=2 splits=1 multicast=1 persistent=0 \
                unswapped=0 exact=0 programmatic=1";
    let gate_up = format!(
        "sm_90a q4g128_bf16_gate_up_x128s2k8_silu 768 2048 112 warp_group tokens=16 {tile}"
    );
    let down =
        format!("sm_90a q4g128_bf16_down_x128s1k8_b16 2048 768 112 warp_group tokens=16 {tile}");
    for line in [gate_up, down] {
        assert!(served(line.clone()), "{line}");
        assert!(!served(line.replace("k8", "k0")), "{line}");
        assert!(!served(line.replace(" 112 ", " 100 ")), "{line}");
        assert!(!served(line.replace("stages=4", "stages=40")), "{line}");
        assert_eq!(
            served(line.replace("tokens=16", "tokens=24")),
            line.contains("gate_up"),
            "{line}"
        );
    }
    for (from, to) in [
        ("q4g128", "q4g96"),
        ("sm_90a", "sm_91"),
        ("warps=4", "warps=99"),
        ("tokens=8", "tokens=2"),
    ] {
        assert!(!served(line.replace(from, to)), "{to}");
    }
}
