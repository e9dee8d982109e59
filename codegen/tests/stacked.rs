//! Products over a stack of experts: each pair's row has the bits that its expert's matrix alone gives,
//! within the bound of the exact product; nothing of a slot without a pair is read or written.

use std::collections::BTreeMap;

use crate::kernels::mutation::{gone, mutate};
use crate::kernels::stacked::{RandomStack, Routing, asked, scheme, stack};
use crate::kernels::tiles::{SKINNY, TILE, WARP_GROUP};
use quantloom_codegen::emit;
use quantloom_codegen::ir::{
    Access, Address, Buffer, BufferId, Kernel, Op, Space, Verified, Width, verify,
};
use quantloom_codegen::jit::Jit;
use quantloom_codegen::schedule::shader::ShaderTile;
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
use quantloom_codegen::schedule::{Chosen, Problem, Stack, choose_stacked};
use quantloom_codegen::target::target;
use quantloom_dsl::BufferRole;
use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::{F32, NUMBER_BF16, NUMBER_F32};
use quantloom_runtime::gpu::{Products as _, Stacked};
use quantloom_runtime::source::Work;
use quantloom_tests::sweep::{self, Share};
use rayon::prelude::*;

pub(crate) const TARGETS: [&str; 7] =
    ["sm_80", "sm_90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "wgsl"];

/// Each way in which parameters reach a product: scales of sums and of weights, zero points, corrections,
/// per-channel scales, biases, scales of x by row and by column, scales of the instruction.
pub(crate) const SCHEMES: &[(&str, &str)] = &[
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
        "channel_scale",
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
pub(crate) fn wrong(layer: &RandomStack, chosen: Chosen) -> Option<String> {
    let kernel = layer.kernel(chosen, &layer.problem);
    let slots = chosen.schedule().block_tokens();
    let mut first = None;
    for seed in 0..2 {
        let run = match layer.run(&kernel, slots, seed) {
            Ok(run) => run,
            Err(why) => return Some(format!("{}: {why}", kernel.name)),
        };
        if run.report.conflicts() > 0 && kernel.target.name != "wgsl" && slots >= 8 {
            return Some(format!("{}: {}", kernel.name, run.report));
        }
        match &first {
            None => {
                if let Err(why) = layer.compare(chosen, &run) {
                    return Some(format!("{}: {why}", kernel.name));
                }
                first = Some(run.y);
            }
            Some(first) if *first != run.y => {
                return Some(format!("{}: other bits in another order", kernel.name));
            }
            Some(_) => {}
        }
    }
    None
}

/// Ragged rows and columns; a case is a choice for a product of a scheme on a target.
fn compared(share: Share, shape: (u32, u32), cases: &[(usize, Routing)]) {
    let all = TARGETS.iter().enumerate().flat_map(|(at, sm)| {
        SCHEMES.iter().enumerate().map(move |(of, text)| (at + of, *sm, *text))
    });
    let all: Vec<_> = all.collect();
    let done = all.par_iter().map(|&(number, sm, text)| {
        let scheme = scheme(text);
        let (mut there, mut done) = (0, 0);
        for (turn, product) in [ExpertProduct::GateUp, ExpertProduct::Down].into_iter().enumerate()
        {
            for &(tokens, routing) in cases {
                let stack = stack(product, 4, 3);
                let drawn = RandomStack::draw(&scheme, sm, shape, stack, (tokens, routing), 7);
                let Some(layer) = drawn else { continue };
                let choices = choices(&layer.problem);
                assert!(choices.len() >= 2, "{} on {sm}", scheme.name);
                there += choices.len();
                for (at, chosen) in choices.into_iter().enumerate() {
                    if share.takes((number * 2 + turn) * 97 + 31 * tokens + at) {
                        assert_eq!(wrong(&layer, chosen), None, "{} on {sm}", scheme.name);
                        done += 1;
                    }
                }
            }
        }
        (sm, there, done)
    });
    let (mut by_target, mut all_done) = (BTreeMap::new(), 0);
    for (sm, there, done) in done.collect::<Vec<_>>() {
        *by_target.entry(sm).or_insert(0) += there;
        all_done += done;
    }
    // A share may have none of a target.
    assert!(
        by_target.len() == TARGETS.len() && by_target.values().all(|there| *there >= 1),
        "{by_target:?}"
    );
    assert!(all_done > 0, "none of {by_target:?}");
}

#[test]
fn products_of_experts_are_right() {
    let cases = [7, 1, 3, 17, 33].map(|tokens| (tokens, Routing::Random));
    let sweep = sweep::is_asked();
    compared(Share::new(20, 48), (40, 608), if sweep { &cases } else { &cases[..1] });
    if sweep {
        compared(Share::new(6, 48), (72, 256), &cases[2..]);
    }
}

/// Bytes of global memory that a kernel accesses; with `prefetched` it also writes a word at each address that it prefetches, to a
/// buffer of which no word may be written twice.
fn bytes_accessed(
    layer: &RandomStack,
    kernel: &Verified<Kernel>,
    slots: u32,
    prefetched: bool,
) -> u64 {
    let mut kernel = Kernel::clone(kernel);
    if prefetched {
        let codes = kernel.buffers.iter().find(|buffer| buffer.role == Some(BufferRole::Codes));
        let name = "prefetched".to_owned();
        let (access, role) = (Access::WriteSome, Some(BufferRole::Extremes));
        let buffer = Buffer { name, access, role, ..codes.unwrap().clone() };
        let space = Space::Global(BufferId(kernel.buffers.len() as u32));
        kernel.buffers.push(buffer);
        mutate(&mut kernel, |_, op| match op {
            Op::Prefetch { from, mask } => {
                let (to, values) = (Address { space, ..*from }, vec![1u32.into()]);
                *op = Op::Store { to, values, width: Width::B32, mask: *mask };
            }
            // Before the wait no kernel may write.
            Op::GridWait | Op::GridLaunch => gone(op),
            _ => {}
        });
        kernel.launch.programmatic = false;
    }
    let kernel = verify(kernel).unwrap_or_else(|why| panic!("{why}"));
    let run = layer.run(&kernel, slots, 0).unwrap_or_else(|why| panic!("{why}"));
    let global = run.report.accesses.iter().filter(|access| access.sectors.is_some());
    global.map(|access| access.bytes).sum()
}

/// Each line of all weights is prefetched one time, where there are as many pairs as experts; none where there are fewer, and none of
/// more slots than an expert's rows fill.
#[test]
fn weights_are_prefetched() {
    let (share, mut case) = (Share::new(3, 4), 0);
    let scheme = scheme(SCHEMES[0]);
    let (skinny, tile) =
        (SkinnyTile { programmatic: true, ..SKINNY }, TileShape { programmatic: true, ..TILE });
    let all = [
        Chosen::Skinny(SkinnyTile { tokens: 8, row_tiles: 2, ..skinny }),
        Chosen::Tile(TileShape { tokens: 32, rows: 64, warps: 4, stages: 2, ..tile }),
        Chosen::WarpGroup(WarpGroupTile { tokens: 8, row_tiles: 2, stages: 3, ..WARP_GROUP }),
        Chosen::WarpGroup(WarpGroupTile { tokens: 48, row_tiles: 2, batch: 2, ..WARP_GROUP }),
        Chosen::Skinny(SkinnyTile { tokens: 8, row_tiles: 2, ..SKINNY }),
    ];
    for chosen in all {
        for (product, gate) in [
            (ExpertProduct::GateUp, Some(Gate::Silu)),
            (ExpertProduct::GateUp, None),
            (ExpertProduct::Down, None),
        ] {
            for (tokens, chosen_from) in [(1, 4), (2, 4), (2, 7)] {
                case += 1;
                if !share.takes(case) {
                    continue;
                }
                let stack = Stack { chosen_from, ..stack(product, 4, 3) };
                let routing = (tokens, Routing::Random);
                let layer =
                    RandomStack::draw(&scheme, "sm_90a", (72, 512), stack, routing, 5).unwrap();
                let problem = match gate {
                    Some(_) => layer.of_stack(gate, false),
                    None => layer.problem.clone(),
                };
                let kernel = layer.kernel(chosen, &problem);
                let slots = slots(false, chosen);
                let [without, with] = [false, true]
                    .map(|prefetched| bytes_accessed(&layer, &kernel, slots, prefetched));
                let matrices = 4 * stack.shards;
                // A launch of blocks that persist has four in the simulator, which prefetch their first tiles.
                let of_block = if gate.is_some() { stack.shards } else { 1 };
                let persists = chosen.name() == "warp_group";
                let matrices = if persists { matrices.min(4 * of_block) } else { matrices };
                // Five tiles of 16 rows of 512 codes of 4 bits.
                let lines = u64::from(matrices) * 5 * 16 * 512 / 2 / 128;
                let prefetches =
                    kernel.launch.programmatic && slots <= 32 && tokens * 3 >= chosen_from as usize;
                let expected = if prefetches { 4 * lines } else { 0 };
                assert_eq!(with - without, expected, "{}, {tokens} tokens", kernel.name);
                // Tensor copies of what is read once have the hint.
                let has_hint = emit::source(&kernel).unwrap().contains("L2::evict_first");
                assert_eq!(has_hint, persists && slots <= 32, "{}", kernel.name);
            }
        }
    }
}

/// All pairs on one expert: as many token blocks as there can be of one; and no pair has an expert.
#[test]
fn one_expert_takes_all_or_none_takes_any() {
    let (share, mut case) = (Share::new(6, 16), 0);
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
            let layer = RandomStack::draw(&scheme, sm, (24, 264), stack, (9, routing), 3).unwrap();
            for chosen in choices(&layer.problem) {
                case += 1;
                if share.takes(case) {
                    assert_eq!(wrong(&layer, chosen), None);
                }
            }
        }
    }
}

/// The runtime's question and the key that answers it: slots by the pairs of an expert, the same for the
/// second product; the key gives the kernel again.
#[test]
fn keys_of_products_of_experts_give_kernels() {
    let routings = [(1, 8, 2), (3, 4, 3), (9, 3, 1)];
    for (number, sm) in TARGETS.into_iter().enumerate() {
        let scheme = scheme(SCHEMES[0]);
        for (tokens, experts, top_k) in [routings[number % 3], routings[(number + 1) % 3]] {
            let mut slots = None;
            for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
                let stack = stack(product, experts, top_k);
                let routing = Routing::Random;
                let layer =
                    RandomStack::draw(&scheme, sm, (40, 256), stack, (tokens, routing), 5).unwrap();
                let stacked = asked(stack, slots, F32);
                let made = Jit.choose_stacked(&layer.request(), &stacked, tokens as u64).unwrap();
                assert!(slots.is_none_or(|slots| slots == made.slots));
                slots = Some(made.slots);
                if product == ExpertProduct::Down && layer.problem.by_matrix() {
                    sum_of_experts_by_its_key(&layer, &stacked);
                }
                let key = &made.choice.key;
                assert!(
                    matches!(key.work, Work::Product { experts: Some(own), .. } if own.product == product)
                );
                assert!(made.choice.tokens >= 1 << 12, "{}", made.choice.tokens);
                let kernel = Jit.kernel(key).unwrap();
                let chosen = Chosen::read(&key.schedule.name, &key.schedule.parameters).unwrap();
                let run = layer.run(&kernel, made.slots as u32, 1).unwrap();
                layer.compare(chosen, &run).unwrap();
            }
        }
    }
}

/// The key of a product that adds experts, and shared ones, gives its kernel.
fn sum_of_experts_by_its_key(layer: &RandomStack, stacked: &Stacked) {
    let (weighted, shared) = (true, Some(F32));
    let of = Stacked { slots: None, direct: true, weighted, combined: true, shared, ..*stacked };
    let made = Jit.choose_stacked(&layer.request(), &of, 1).unwrap();
    let kernel = Jit.kernel(&made.choice.key).unwrap();
    let problem = layer.combined(weighted, false, shared);
    assert_eq!(
        kernel.name,
        choose_stacked(&problem, 1, None).unwrap().write(&problem).unwrap().name
    );
    let text = made.choice.key.to_string();
    assert!(text.contains("weighted combined down and shared experts in f32"), "{text}");
}

/// Rows of pairs in 16 bits are those in f32, rounded: by every schedule on every target, also of odd length.
#[test]
fn rows_of_pairs_are_rounded() {
    let (share, routed) = (Share::new(3, 2), (9, Routing::Random));
    let all: Vec<_> = TARGETS.into_iter().enumerate().collect();
    let done = all.par_iter().map(|&(number, sm)| {
        let (text, n) = (SCHEMES[number % 2], 40 + (number as u32 % 2) * 5);
        let stack = stack(ExpertProduct::Down, 4, 3);
        let layer = RandomStack::draw(&scheme(text), sm, (n, 264), stack, routed, 11).unwrap();
        let mut done = 0;
        for (at, chosen) in choices(&layer.problem).into_iter().enumerate() {
            if at > 0 && !share.takes(number + at) {
                continue;
            }
            let slots = chosen.schedule().block_tokens();
            let run = |problem: &Problem| {
                let kernel = layer.kernel(chosen, problem);
                layer.run(&kernel, slots, 1).unwrap_or_else(|why| panic!("{}: {why}", kernel.name))
            };
            let (wide, narrow) = (run(&layer.weighted(false)), run(&layer.rounded(false)));
            let expected = layer.as_rounded(&wide.y.words());
            assert!(narrow.y.bytes == expected, "{chosen:?} on {sm}");
            done += 1;
        }
        done
    });
    assert!(done.all(|done| done >= 1));
}

const GATES: [Gate; 3] =
    [Gate::Silu, Gate::SwigluOai { alpha: 1.702, limit: 7.0 }, Gate::UngatedRelu2];

/// The gate in the epilogue gives the bits that a kernel of its own makes of the first product's rows, and
/// zeros where that gives zeros.
#[test]
fn a_gate_in_the_epilogue_is_the_gate_after_it() {
    let all = TARGETS.iter().enumerate().flat_map(|(at, sm)| {
        SCHEMES.iter().enumerate().map(move |(of, text)| (at + of, *sm, *text))
    });
    let all: Vec<_> = all.collect();
    let done = all.par_iter().map(|&(number, sm, text)| {
        let scheme = scheme(text);
        let gate = GATES[number % 3];
        let shards = gate.shards() as u32;
        let stack = Stack { shards, ..stack(ExpertProduct::GateUp, 4, 3) };
        let routing = (5, Routing::Random);
        let Some(layer) = RandomStack::draw(&scheme, sm, (40, 392), stack, routing, 9) else {
            return 0;
        };
        let fused = layer.of_stack(Some(gate), false);
        let choices = choices(&fused);
        assert!(!choices.is_empty(), "{} on {sm}", scheme.name);
        let mut done = 0;
        for (at, chosen) in choices.into_iter().enumerate() {
            if (number + at) % 2 > 0 {
                continue;
            }
            let slots = chosen.schedule().block_tokens();
            let alone = layer.kernel(chosen, &layer.problem);
            let z = layer.run(&alone, slots, 0).unwrap_or_else(|why| panic!("{why}"));
            let expected = layer.gated(z, gate, slots).unwrap_or_else(|why| panic!("{why}"));
            let kernel = layer.kernel(chosen, &fused);
            let run = layer.run(&kernel, slots, 1);
            let run = run.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
            assert!(run.y == expected, "{}", kernel.name);
            // On AMD the two sums of a result share banks: lanes are served in another order.
            if sm.starts_with("sm_") && slots >= 8 {
                assert_eq!(run.report.conflicts(), 0, "{}:\n{}", kernel.name, run.report);
            }
            done += 1;
        }
        done
    });
    let done: Vec<usize> = done.collect();
    assert!(done.iter().sum::<usize>() > 40, "{done:?}");
}

fn slots(direct: bool, chosen: Chosen) -> u32 {
    if direct { 1 } else { chosen.schedule().block_tokens() }
}

/// Without an order each pair is a token block: rows of pairs, with and without a gate, of either product,
/// as with an order of token blocks of one slot.
#[test]
fn direct_products_are_right() {
    for (number, sm) in TARGETS.into_iter().enumerate() {
        for text in [SCHEMES[number % 2], SCHEMES[4 + number % 2]] {
            let scheme = scheme(text);
            for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
                let stack = stack(product, 4, 3);
                let routing = (2, Routing::Random);
                let drawn = RandomStack::draw(&scheme, sm, (40, 392), stack, routing, 4);
                let Some(layer) = drawn else { continue };
                let chosen = match layer.problem.by_matrix() {
                    // Also more tokens than the one slot.
                    true => {
                        let tokens = 1 + number as u32 % 2;
                        Chosen::Skinny(SkinnyTile { tokens, row_tiles: 2, ..SKINNY })
                    }
                    false => {
                        Chosen::Shader(ShaderTile { tokens: 1, row_tiles: 1, groups: 2, parts: 4 })
                    }
                };
                let kernel = layer.kernel(chosen, &layer.of_stack(None, true));
                let plain = layer.run(&kernel, 1, 0).unwrap_or_else(|why| panic!("{why}"));
                layer
                    .compare(chosen, &plain)
                    .unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
                if product == ExpertProduct::Down {
                    for direct in [false, true] {
                        let kernel = layer.kernel(chosen, &layer.weighted(direct));
                        let run = layer.run(&kernel, slots(direct, chosen), 0);
                        let run = run.unwrap_or_else(|why| panic!("{why}"));
                        let expected = layer.with_weights(&plain, &run);
                        assert!(run.y.words() == expected, "{}", kernel.name);
                        let kernel = layer.kernel(chosen, &layer.rounded(direct));
                        let run = layer.run(&kernel, slots(direct, chosen), 0);
                        let run = run.unwrap_or_else(|why| panic!("{why}"));
                        assert!(run.y.bytes == layer.as_rounded(&expected), "{}", kernel.name);
                    }
                    continue;
                }
                let [sorted, direct] = [false, true].map(|direct| {
                    let problem = layer.of_stack(Some(Gate::Silu), direct);
                    let kernel = layer.kernel(chosen, &problem);
                    let run = layer.run(&kernel, slots(direct, chosen), 0);
                    let run = run.unwrap_or_else(|why| panic!("{why}"));
                    let row = run.y.bytes.len() / run.of_slots.len();
                    let rows = run.of_slots.into_iter().zip(run.y.bytes.chunks(row));
                    let held = rows.filter(|(pair, _)| *pair < 6);
                    held.map(|(pair, row)| (pair, row.to_vec())).collect::<BTreeMap<_, _>>()
                });
                assert!(!direct.is_empty() && sorted == direct, "{}", kernel.name);
            }
        }
    }
}

/// A block that adds a token's experts gives what `combine` makes of the rows of its pairs, to the bit: on every target with
/// matrix instructions, weighted and not, in f32 and in 16 bits, with one warp an expert and with several, where some
/// experts are not here and where none is.
#[test]
fn experts_of_a_token_are_added() {
    let targets = TARGETS.into_iter().filter(|sm| *sm != "wgsl").enumerate();
    let all: Vec<_> = targets
        .flat_map(|(at, sm)| SCHEMES.iter().enumerate().map(move |(of, text)| (at + of, sm, *text)))
        .collect();
    let done = all.par_iter().map(|&(number, sm, text)| {
        let scheme = scheme(text);
        let stack = stack(ExpertProduct::Down, 4, 3);
        let routing = if number % 5 == 4 { Routing::Nowhere } else { Routing::Random };
        let n = 40 + (number as u32 % 2) * 5;
        let drawn = RandomStack::draw(&scheme, sm, (n, 392), stack, (3, routing), number as u64);
        let Some(layer) = drawn.filter(|layer| layer.problem.by_matrix()) else { return 0 };
        let warps = 1 + number as u32 % 2;
        let programmatic = sm == "sm_90a";
        let tile = SkinnyTile {
            tokens: 1 + number as u32 / 2 % 2,
            row_tiles: 1 + number as u32 % 2,
            warps,
            programmatic,
            ..SKINNY
        };
        let added = Chosen::Skinny(SkinnyTile { warps: 3 * warps, ..tile });
        let kernel = layer.kernel(Chosen::Skinny(tile), &layer.of_stack(None, true));
        let plain = layer.run(&kernel, 1, 0).unwrap_or_else(|why| panic!("{why}"));
        let (weighted, rounded) = (number % 3 > 0, number % 4 < 2);
        let shared = [None, Some(F32), Some(layer.own)][number % 7 % 3];
        let kernel = layer.kernel(added, &layer.combined(weighted, rounded, shared));
        let run = layer.run(&kernel, 1, 1).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
        let expected = layer.sums_of_pairs(&plain, &run, weighted, shared);
        match rounded {
            true => assert!(run.y.bytes == layer.as_rounded(&expected), "{}", kernel.name),
            false => assert!(run.y.words() == expected, "{}", kernel.name),
        }
        1
    });
    let done: usize = done.sum();
    assert!(done > 30, "{done}");
}

/// One expert a token, as many as a block of NVIDIA has warps, and more than a block of AMD has, whose calls have `combine`.
#[test]
fn any_number_of_experts_is_added_or_refused() {
    for (sm, top_k) in
        [("sm_90a", 1), ("sm_90a", 16), ("sm_90a", 32), ("gfx942", 1), ("gfx942", 16)]
    {
        let stack = stack(ExpertProduct::Down, 4, top_k);
        let routed = (1, Routing::Random);
        let layer =
            RandomStack::draw(&scheme(SCHEMES[0]), sm, (24, 264), stack, routed, 2).unwrap();
        let problem = layer.combined(true, false, None);
        let chosen = choose_stacked(&problem, 1, None).unwrap_or_else(|why| panic!("{sm}: {why}"));
        let Chosen::Skinny(tile) = chosen else { panic!("{chosen:?}") };
        let alone = Chosen::Skinny(SkinnyTile { warps: tile.warps / top_k, ..tile });
        let plain = layer.run(&layer.kernel(alone, &layer.of_stack(None, true)), 1, 0).unwrap();
        let run = layer.run(&layer.kernel(chosen, &problem), 1, 1).unwrap();
        let expected = layer.sums_of_pairs(&plain, &run, true, None);
        assert!(run.y.words() == expected, "{sm}, top {top_k}");
    }
    let refused = |sm, top_k| {
        let stack = stack(ExpertProduct::Down, 4, top_k);
        let routed = (1, Routing::Random);
        let layer =
            RandomStack::draw(&scheme(SCHEMES[0]), sm, (24, 264), stack, routed, 2).unwrap();
        let why = choose_stacked(&layer.combined(true, false, None), 1, None);
        why.err().map(|why| why.to_string()).unwrap_or_default()
    };
    assert!(refused("gfx942", 32).contains("as many warps for each"), "{}", refused("gfx942", 32));
    assert!(refused("wgsl", 2).contains("schedule shader"), "{}", refused("wgsl", 2));
}

/// Other schedules, K split over blocks, several tokens and a number of warps that experts do not share alike are refused.
#[test]
fn experts_of_a_token_are_added_by_some_blocks_alone() {
    let stack = stack(ExpertProduct::Down, 4, 3);
    let routed = (1, Routing::Random);
    let layer =
        RandomStack::draw(&scheme(SCHEMES[0]), "sm_90a", (40, 392), stack, routed, 1).unwrap();
    let problem = layer.combined(true, false, None);
    let tile = SkinnyTile { warps: 6, ..SKINNY };
    let right = |tile: SkinnyTile| Chosen::Skinny(tile).schedule().checked(&problem).is_ok();
    assert!(right(tile));
    assert!(!right(SkinnyTile { warps: 4, ..tile }));
    assert!(!right(SkinnyTile { splits: 2, ..tile }));
    assert!(!right(SkinnyTile { tokens: 4, ..tile }));
    let refused = Chosen::Tile(TILE).schedule().checked(&problem).err().map(|why| why.to_string());
    assert_eq!(
        refused.as_deref(),
        Some("blocks of the schedule tile do not add the experts of a token")
    );
    let sorted = Stack { direct: false, ..problem.stack.unwrap() };
    assert!(problem.single().stacked(sorted).is_err());
}

/// A guess reads rows of h whose expert may be elsewhere: not where operands differ by expert, which have no such rows; and guesses were
/// measured on Hopper alone.
#[test]
fn experts_are_guessed_where_all_rows_of_h_are_written() {
    let stack = stack(ExpertProduct::Down, 4, 3);
    let guesses = |(sm, programmatic, operand)| {
        let routed = (1, Routing::Random);
        let layer =
            RandomStack::draw(&scheme(SCHEMES[0]), sm, (40, 392), stack, routed, 1).unwrap();
        let problem = layer.combined(true, false, None);
        let of = Stack { operand, ..problem.stack.unwrap() };
        let problem = problem.single().stacked(of).unwrap();
        let tile = SkinnyTile { warps: 6, programmatic, ..SKINNY };
        let kernel = layer.kernel(Chosen::Skinny(tile), &problem);
        let guesses = kernel.to_string().contains(" = guess ");
        // Past the first level of cache, which might keep a word for reads after the wait.
        let text = quantloom_codegen::emit::ptx::emit(&kernel).unwrap();
        assert_eq!(text.contains("ld.relaxed.gpu.global.b32"), guesses, "{text}");
        guesses
    };
    assert!(guesses(("sm_90a", true, OperandOf::Row)));
    assert!(!guesses(("sm_90a", false, OperandOf::Row)));
    assert!(!guesses(("sm_90a", true, OperandOf::Expert)));
    assert!(!guesses(("sm_100a", true, OperandOf::Row)));
}

/// On Hopper the pairs of a token take the skinny blocks that were measured (docs/performance/experts.md): row tiles, warps
/// and blocks of a multiprocessor of both products.
#[test]
fn pairs_of_a_token_take_the_blocks_that_were_measured() {
    let int4 = scheme((
        "int4",
        "weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16",
    ));
    let mxfp4 = "weight: e2m1, scale: e8m0 per 1x32, pack: u8 [k:2 | k, n], activation: bf16";
    let mxfp4 = scheme(("mxfp4", mxfp4));
    let cases = [
        (1, (2048, 768, 8), [(2, 8, 3), (1, 24, 1)]),
        (8, (2048, 768, 8), [(2, 4, 8), (2, 8, 4)]),
        (1, (2880, 2880, 4), [(2, 8, 3), (2, 24, 1)]),
        (1, (4096, 14_336, 2), [(2, 8, 4), (2, 24, 1)]),
    ];
    for (tokens, (hidden, intermediate, top_k), expected) in cases {
        let scheme = if top_k == 4 { &mxfp4 } else { &int4 };
        let of = |product, (n, k), gate, combined| {
            let single =
                Problem::new(scheme, &scheme.activations[0], target("sm_90a").unwrap(), (n, k));
            let stack = stack(product, 16, top_k);
            let stack = Stack { gate, direct: true, weighted: combined, combined, ..stack };
            let problem = single.unwrap().giving(NUMBER_BF16).unwrap().stacked(stack).unwrap();
            match choose_stacked(&problem, tokens, None).unwrap() {
                Chosen::Skinny(tile) => (tile.row_tiles, tile.warps, tile.min_blocks),
                other => panic!("{other:?}"),
            }
        };
        let gate_up = of(ExpertProduct::GateUp, (intermediate, hidden), Some(Gate::Silu), false);
        let down = of(ExpertProduct::Down, (hidden, intermediate), None, true);
        assert_eq!([gate_up, down], expected, "M = {tokens}, {hidden} x {intermediate}");
    }
}

/// Few tokens of many experts: four warps a block, of which a Hopper multiprocessor has eight where registers allow that (with zero
/// points they do not) and where they gain (not with codes of 8 bits).
#[test]
fn eight_sorted_slots_have_small_blocks_on_hopper() {
    let groups = "scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16";
    let symmetric = format!("weight: i4, {groups}");
    let zeros = format!("weight: u4, zero: u4 per 1x128, {groups}");
    let bytes =
        "weight: i8, scale: bf16 per 1x128, pack: u32 [k:4 | k, n], activation: bf16".to_owned();
    for (text, [hidden, intermediate, experts, top_k], blocks) in [
        (&symmetric, [2048, 768, 128, 8], 8),
        (&symmetric, [4096, 14_336, 8, 2], 8),
        (&zeros, [2048, 768, 128, 8], 2),
        (&bytes, [2048, 768, 128, 8], 2),
    ] {
        let scheme = scheme(("few", text));
        for (product, shape, gate) in [
            (ExpertProduct::GateUp, (intermediate, hidden), Some(Gate::Silu)),
            (ExpertProduct::Down, (hidden, intermediate), None),
        ] {
            let target = target("sm_90a").unwrap();
            let problem = Problem::new(&scheme, &scheme.activations[0], target, shape);
            let output = if gate.is_some() { NUMBER_BF16 } else { NUMBER_F32 };
            let stack = Stack { gate, ..stack(product, experts, top_k) };
            let problem = problem.unwrap().giving(output).unwrap().stacked(stack).unwrap();
            let Chosen::Skinny(tile) = choose_stacked(&problem, 12.min(experts), None).unwrap()
            else {
                panic!("{text} {shape:?}: not skinny");
            };
            let found = (tile.tokens, tile.row_tiles, tile.warps, tile.min_blocks);
            assert_eq!(found, (8, 2, 4, blocks), "{text} {shape:?}");
        }
    }
}
