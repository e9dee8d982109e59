//! Blocks that find the pairs of an expert by themselves, where pairs are not sorted.

use crate::kernels::mutation::{OpLocation, mutate};
use crate::kernels::stacked::{RandomStack, Routing, Run, asked, scheme, stack};
use crate::kernels::tiles::SKINNY;
use crate::stacked::SCHEMES;
use quantloom_codegen::ir::{
    Address, Binary, Compare, Kernel, Op, Operand, Ternary, Unary, Verified, verify,
};
use quantloom_codegen::jit::{Jit, JitWithOverrides};
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::{Chosen, Problem, Stack, choose_stacked};
use quantloom_codegen::target::target;
use quantloom_dsl::experts::{ExpertProduct, Gate};
use quantloom_dsl::format::{BF16, NUMBER_BF16};
use quantloom_runtime::gpu::{Products as _, Request};
use quantloom_tests::sweep::Share;
use rayon::prelude::*;

/// Targets whose warps have 32 lanes that vote.
const TARGETS: [&str; 4] = ["sm_80", "sm_90a", "gfx1100", "gfx1201"];

pub(crate) fn grouping(tile: SkinnyTile) -> Chosen {
    let parameters = Chosen::Skinny(tile).parameters().into_iter();
    let parameters = parameters.chain([("groups_pairs", 1)]);
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value)).collect();
    Chosen::read("skinny", &parameters).unwrap()
}

fn run(layer: &RandomStack, kernel: &Verified<Kernel>, seed: u64) -> Run {
    layer.run(kernel, 1, seed).unwrap_or_else(|why| panic!("{}: {why}", kernel.name))
}

/// Each pair has the bits of the expert's matrix alone and of blocks of one pair, and no other row is written but, with a gate, zeros:
/// experts with more pairs than a block, with as many, with one and with none; more pairs than a warp loads at once; pairs without an
/// expert here; both products, with a gate and without, with and without weights, in any order of blocks. A case is a target, M and the
/// experts, and a product.
#[test]
fn pairs_of_an_expert_share_blocks() {
    let cases = [
        (7, Routing::Random),
        (1, Routing::Random),
        (3, Routing::One),
        (47, Routing::One),
        (50, Routing::Random),
        (2, Routing::Nowhere),
    ];
    let all = TARGETS.into_iter().enumerate().flat_map(|(at, sm)| {
        cases.into_iter().enumerate().flat_map(move |(case, of)| {
            let text = SCHEMES[(at * 3 + case * 2) % SCHEMES.len()];
            [ExpertProduct::GateUp, ExpertProduct::Down].map(|product| (sm, of, product, text))
        })
    });
    let some = Share::new(3, 2).of(all);
    let done = some.par_iter().filter_map(|&(sm, of, product, text)| {
        let layer = RandomStack::draw(&scheme(text), sm, (40, 392), stack(product, 4, 3), of, 4)?;
        let tokens = if of.0 == 7 { 4 } else { 8 };
        let tile = SkinnyTile { tokens, row_tiles: 2, warps: 2, ..SKINNY };
        let (single, grouped) = (Chosen::Skinny(tile), grouping(tile));
        let kernel = layer.kernel(grouped, &layer.of_stack(None, true));
        let plain = run(&layer, &kernel, 0);
        layer.compare(single, &plain).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
        assert!(run(&layer, &kernel, 1).y == plain.y, "{}: another order", kernel.name);
        if product == ExpertProduct::Down {
            let kernel = layer.kernel(grouped, &layer.weighted(true));
            let weighted = run(&layer, &kernel, 0);
            let expected = layer.with_weights(&plain, &weighted);
            assert!(weighted.y.words() == expected, "{}", kernel.name);
            return Some(sm);
        }
        let gated = |chosen: Chosen| {
            let kernel = layer.kernel(chosen, &layer.of_stack(Some(Gate::Silu), true));
            run(&layer, &kernel, 0).y
        };
        // Zeros of pairs without an expert too.
        assert!(gated(grouped) == gated(single), "{}: with a gate", kernel.name);
        Some(sm)
    });
    let done: Vec<&str> = done.collect();
    assert!(!done.is_empty());
}

/// Blocks group pairs that are not sorted, on warps of 32 lanes, of whole rows of K.
#[test]
fn what_blocks_do_not_group_is_refused() {
    let problem = |sm: &str, direct: bool, combined: bool| {
        let scheme = scheme(SCHEMES[0]);
        let single = Problem::new(&scheme, &scheme.activations[0], target(sm).unwrap(), (40, 392));
        let stack = Stack { direct, combined, ..stack(ExpertProduct::Down, 4, 3) };
        single.unwrap().stacked(stack).unwrap()
    };
    let tile = SkinnyTile { tokens: 2, warps: 3, ..SKINNY };
    let taken = |tile: SkinnyTile, problem: Problem| {
        let checked = grouping(tile).schedule().checked(&problem).map_err(|why| why.to_string());
        checked.map(|_| ())
    };
    assert_eq!(taken(tile, problem("sm_90a", true, false)), Ok(()));
    let splits = SkinnyTile { splits: 2, ..tile };
    for (tile, problem) in [
        (tile, problem("sm_90a", false, false)),
        (tile, problem("sm_90a", true, true)),
        (tile, problem("sm_90a", true, false).single()),
        (tile, problem("gfx942", true, false)),
        (splits, problem("sm_90a", true, false)),
    ] {
        let why = taken(tile, problem).unwrap_err();
        assert!(why.contains("blocks that group pairs"), "{why}");
    }
}

/// On Hopper blocks group pairs where an expert has 1.1 of them on average (docs/performance/experts.md): 8 tokens of 128 experts, top 8
/// or 4, and not 4 of top 8; nowhere else, and not where a block adds the experts of a token.
#[test]
fn pairs_are_grouped_where_that_was_measured() {
    let with_columns = |sm: &str, text: &str, (experts, top_k, tokens), (k, combined)| {
        let scheme = scheme(("few", text));
        let (product, shape) = match combined {
            true => (ExpertProduct::Down, (2048, k)),
            false => (ExpertProduct::GateUp, (768, k)),
        };
        let gate = (!combined).then_some(Gate::Silu);
        let stack = Stack { gate, direct: true, combined, ..stack(product, experts, top_k) };
        let single = Problem::new(&scheme, &scheme.activations[0], target(sm).unwrap(), shape);
        let problem = single.unwrap().giving(NUMBER_BF16).unwrap().stacked(stack).unwrap();
        match choose_stacked(&problem, tokens, None).unwrap() {
            Chosen::Skinny(tile) => {
                tile.groups_pairs.0.then_some((tile.tokens, tile.warps, tile.min_blocks))
            }
            other => panic!("{other:?}"),
        }
    };
    let chosen = |sm: &str, text: &str, of, combined| with_columns(sm, text, of, (2048, combined));
    let int4 = "weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16";
    let bytes = "weight: e4m3, scale: f32 per 128x128, pack: [k, n], \
                 activation: e4m3 { scale: f32 per 1x128 }";
    let small = Some((8, 4, 8));
    assert_eq!(chosen("sm_90a", int4, (128, 8, 8), false), small);
    assert_eq!(chosen("sm_90a", int4, (128, 4, 8), false), small);
    assert_eq!(chosen("sm_90a", int4, (8, 2, 2), false), small);
    assert_eq!(chosen("sm_90a", bytes, (128, 8, 16), false), Some((8, 8, 4)));
    // Each of eight warps has a k-tile.
    assert_eq!(with_columns("sm_90a", bytes, (128, 8, 16), (256, false)), Some((8, 4, 2)));
    assert_eq!(chosen("sm_90a", int4, (128, 8, 4), false), None);
    assert_eq!(chosen("sm_90a", int4, (128, 8, 1), false), None);
    assert_eq!(chosen("sm_90a", int4, (128, 8, 8), true), None);
    assert_eq!(chosen("sm_80", int4, (128, 8, 8), false), None);
}

/// A request's kernel says that its blocks group pairs, and so do its key, of which a compiler makes the same kernel, and its name.
#[test]
fn keys_of_grouped_pairs_give_their_kernels() {
    let text = "weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16";
    let scheme = scheme(("few", text));
    let request = Request::new(&scheme, &scheme.activations[0], BF16, "sm_90a", [96, 256]);
    let stack = stack(ExpertProduct::GateUp, 32, 4);
    let asked = asked(Stack { gate: Some(Gate::Silu), direct: true, ..stack }, None, BF16);
    for (tokens, groups) in [(1, false), (2, false), (4, true), (8, true)] {
        let choice = Jit.choose_stacked(&request, &asked, tokens).unwrap();
        let named = choice.choice.key.schedule.parameters.get("groups_pairs").copied();
        let kernel = Jit.kernel(&choice.choice.key).unwrap();
        let searches = kernel.shared.iter().any(|block| block.name == "pairs");
        let label = kernel.name.split("__").nth(1).unwrap().split("_n").next().unwrap().to_owned();
        let found = (choice.groups_pairs, named.is_some(), searches, label.ends_with('g'));
        assert_eq!(found, (groups, groups, groups, groups), "M = {tokens}: {}", kernel.name);
        assert_eq!(choice.slots, 1);
    }
    // Overrides of something else leave that to the model's choice, where it may be so.
    for (choices, groups) in [
        ("skinny(warps=2)", true),
        ("use skinny; skinny(tokens=4)", true),
        ("skinny(splits=2)", false),
        ("skinny(groups_pairs=0)", false),
    ] {
        let jit = JitWithOverrides::new(choices.parse().unwrap());
        let choice = jit.choose_stacked(&request, &asked, 8).unwrap();
        assert_eq!(choice.groups_pairs, groups, "{choices}");
    }
    let both = JitWithOverrides::new("skinny(groups_pairs=1, splits=2)".parse().unwrap());
    assert!(both.choose_stacked(&request, &asked, 8).is_err());
}

/// A change of single operations, which counts those that it has seen.
type Mutation = fn(&OpLocation, &mut Op, &mut usize);

/// Makes 0 of one of the three counts of lanes for each load of ids.
fn count(op: &mut Op, seen: &mut usize, wanted: usize) {
    if let Op::Unary { op: Unary::PopCount, dst, .. } = op {
        *seen += 1;
        if (*seen - 1) % 3 == wanted {
            *op = Op::Copy { dst: *dst, a: 0u32.into() };
        }
    }
}

/// Replaces the number of the block among those of its expert, which follows the last count of lanes.
fn of_first(op: &mut Op, seen: &mut usize, of: fn(Operand) -> Operand) {
    match op {
        Op::Unary { op: Unary::PopCount, .. } => *seen = 1,
        Op::Binary { op: Binary::And, a, b: Operand::U32(3), dst } if *seen == 1 => {
            *seen = 2;
            *op = Op::Copy { dst: *dst, a: of(*a) };
        }
        _ => {}
    }
}

/// Leaves out one of the barriers of a warp.
fn without_sync(op: &mut Op, seen: &mut usize, wanted: usize) {
    if *op == Op::WarpSync {
        *seen += 1;
        if *seen == wanted {
            *op = Op::Comment("nothing".into());
        }
    }
}

const MUTATIONS: &[(&str, Mutation)] = &[
    ("lanes before are not counted", |_, op, seen| count(op, seen, 0)),
    ("earlier pairs are not counted", |_, op, seen| count(op, seen, 1)),
    ("pairs of earlier loads are not counted", |_, op, seen| count(op, seen, 2)),
    ("a pair of any expert", |location, op, seen| {
        // All ids of a turn are loaded before they are compared with the block's own.
        match op {
            Op::Load { from, mask: Some(_), .. } if location.is(from.space, "ids") => *seen += 1,
            Op::Compare { op: Compare::Equal, dst, .. } if (4..8).contains(seen) => {
                *seen += 1;
                *op = Op::Copy { dst: *dst, a: true.into() };
            }
            _ => {}
        }
    }),
    ("every block is the first", |_, op, seen| of_first(op, seen, |_| 0u32.into())),
    ("only the first block of an expert", |_, op, seen| of_first(op, seen, |before| before)),
    ("as many pairs as an expert has", |location, op, _| match op {
        Op::Store { to, mask, values, .. }
            if location.is(to.space, "pairs") && values[..] != [Operand::U32(u32::MAX)] =>
        {
            *mask = None;
        }
        _ => {}
    }),
    ("not the block's own pair", |location, op, seen| match op {
        Op::Load { from, mask: Some(_), .. } if location.is(from.space, "ids") => *seen += 1,
        Op::Binary { op: Binary::Add, dst, a, b: Operand::U32(1) } if *seen == 4 => {
            *seen += 1;
            *op = Op::Copy { dst: *dst, a: *a };
        }
        _ => {}
    }),
    ("lanes do not wait for empty slots", |_, op, seen| without_sync(op, seen, 1)),
    ("lanes do not wait for pairs", |_, op, seen| without_sync(op, seen, 2)),
    ("ids beyond the last", |location, op, _| match op {
        Op::Load { from, mask, .. } if location.is(from.space, "ids") => *mask = None,
        _ => {}
    }),
    ("slots without a pair have pair 0", |location, op, _| match op {
        Op::Store { to, values, .. } if location.is(to.space, "pairs") => {
            for value in values.iter_mut().filter(|value| **value == Operand::U32(u32::MAX)) {
                *value = 0u32.into();
            }
        }
        _ => {}
    }),
    ("the pair of the slot beside", |location, op, _| match op {
        Op::Load { from, .. } if location.is(from.space, "pairs") => {
            *from = Address { offset: from.offset + 1, ..*from };
        }
        _ => {}
    }),
    ("no barrier", |_, op, seen| {
        // The first one is that of the search.
        if *op == Op::Barrier {
            *seen += 1;
            if *seen == 1 {
                *op = Op::Comment("nothing".into());
            }
        }
    }),
    ("one more expert a token", |_, op, _| {
        if let Op::Binary { op: Binary::Div, b: b @ Operand::U32(3), .. } = op {
            *b = 4u32.into();
        }
    }),
    ("slots without a pair are stored", |location, op, _| match op {
        Op::Store { to, mask, .. } if location.is(to.space, "y") => *mask = None,
        _ => {}
    }),
];

/// With a gate rows of slots without a pair would be stored as the rows of other pairs.
const OF_GATE: &[(&str, Mutation)] = &[
    ("zeros of a block's other slots are stored", |location, op, _| match op {
        Op::Store { to, mask, .. } if location.is(to.space, "y") => *mask = None,
        _ => {}
    }),
    ("a row further", |_, op, _| {
        if let Op::Ternary { op: Ternary::Mad, b: b @ Operand::U32(40), .. } = op {
            *b = 41u32.into();
        }
    }),
];

#[test]
fn mutations_are_found() {
    let (scheme, of) = (scheme(SCHEMES[0]), (50, Routing::Random));
    let stack = stack(ExpertProduct::GateUp, 4, 3);
    let layer = RandomStack::draw(&scheme, "sm_90a", (40, 392), stack, of, 4).unwrap();
    let tile = SkinnyTile { tokens: 4, row_tiles: 2, warps: 2, programmatic: true, ..SKINNY };
    let (single, grouped) = (Chosen::Skinny(tile), grouping(tile));
    let alone = layer.kernel(single, &layer.of_stack(Some(Gate::Silu), true));
    let alone = run(&layer, &alone, 0);
    let wrong = |gate: Option<Gate>, mutation: Option<Mutation>| {
        let mut kernel = grouped.write(&layer.of_stack(gate, true)).unwrap();
        if let Some(mutation) = mutation {
            let mut seen = 0;
            let changed = mutate(&mut kernel, |location, op| mutation(location, op, &mut seen));
            if !changed {
                return Some(None);
            }
        }
        let found = verify(kernel).map_err(|refusals| refusals.to_string()).and_then(|kernel| {
            let run = layer.run(&kernel, 1, 1)?;
            match gate {
                None => layer.compare(single, &run),
                Some(_) if run.y == alone.y => Ok(()),
                Some(_) => Err("other bits".to_owned()),
            }
        });
        found.err().map(Some)
    };
    for (gate, mutations) in [(None, MUTATIONS), (Some(Gate::Silu), OF_GATE)] {
        assert_eq!(wrong(gate, None), None);
        for (name, mutation) in mutations {
            match wrong(gate, Some(*mutation)) {
                Some(Some(_)) => {}
                Some(None) => panic!("nothing to change: {name}"),
                None => panic!("not found: {name}"),
            }
        }
    }
}
