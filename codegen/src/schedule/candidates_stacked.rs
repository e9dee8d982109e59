//! The choices worth measuring for the products of an expert layer.
//!
//! In: a [`Problem`] with a stack and M tokens, before they are routed. Out: choices, the schedules' models' first. Before pairs are
//! in order each number of slots of a token block has a few, by the models ([`of_each_block`]); after that all that have its slots.

use std::collections::BTreeMap;

use super::choose::{Chosen, candidates};
use super::choose_stacked::{SLOTS, choose_stacked, choose_stacked_of, other_direct};
use super::interface::Schedule;
use super::problem::Problem;
use super::skinny::SkinnyTile;
use super::stack::Stack;
use super::warp_group::WarpGroupTile;

/// Token blocks of an expert, beyond which more slots are worth measuring instead.
const MOST_BLOCKS_OF_EXPERT: f64 = 6.0;
/// Slots over the rows of an expert, beyond which fewer slots are.
const MOST_SLOTS_OF_ROW: f64 = 4.0;
/// Slots that are worth measuring with any number of rows.
const FEWEST_SLOTS: u32 = 16;
/// Tiles of rows, warps for each matrix of which a block adds the rows, and blocks of a multiprocessor of skinny products.
const SKINNY_ROWS: [u64; 3] = [1, 2, 4];
const SKINNY_WARPS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
const SKINNY_BLOCKS: [u64; 4] = [1, 2, 3, 4];
/// The same where token blocks share weights: fewer, larger steps.
const SORTED_WARPS: [u64; 3] = [2, 4, 8];
const SORTED_BLOCKS: [u64; 4] = [1, 2, 4, 8];
/// The most warps of a multiprocessor that such products are worth measuring with.
const MOST_SKINNY_WARPS: u64 = 48;
/// Stages of the ring of warp groups, beside the deepest.
const STAGES: [u32; 3] = [3, 4, 6];

/// The choices worth measuring for M tokens, with `slots` slots a token block if the order of pairs exists already: first the model's, then
/// all others of which blocks fit whatever registers they may have. None if no schedule supports the problem.
pub fn candidates_stacked(problem: &Problem, tokens: u32, slots: Option<u32>) -> Vec<Chosen> {
    let (Some(stack), Ok(model)) = (problem.stack, choose_stacked(problem, tokens, slots)) else {
        return Vec::new();
    };
    let slots = slots.or_else(|| stack.direct.then_some(1));
    let others = match slots {
        None => of_each_block(problem, stack, tokens),
        Some(slots) => of_block(problem, stack, slots, model),
    };
    let mut all = vec![model];
    for chosen in other_direct(problem, tokens, model).into_iter().chain(others) {
        let of_slots = slots.is_none_or(|slots| problem.slots(chosen) == Some(slots));
        if of_slots && !all.contains(&chosen) && chosen.runs(problem, tokens) {
            all.push(chosen);
        }
    }
    all
}

/// The schedules' models' choices with each number of slots of a token block that is worth measuring.
fn of_each_block(problem: &Problem, stack: Stack, tokens: u32) -> Vec<Chosen> {
    let rows = stack.rows_of_expert(tokens);
    let mut counts = [&SLOTS[..], &WarpGroupTile::token_counts(problem)].concat();
    counts.sort_unstable();
    counts.dedup();
    counts.retain(|&slots| slots <= FEWEST_SLOTS || f64::from(slots) <= MOST_SLOTS_OF_ROW * rows);
    let of_schedules = |slots: u32| -> (u32, Vec<Chosen>) {
        let names = [None].into_iter().chain(Chosen::names().into_iter().map(Some));
        let of_name = |name| choose_stacked_of(problem, (tokens, Some(slots)), name).ok();
        (slots, names.filter_map(of_name).collect())
    };
    let mut all: Vec<(u32, Vec<Chosen>)> = counts.into_iter().map(of_schedules).collect();
    all.retain(|(_, choices)| !choices.is_empty());
    // The largest ones are worth it with any number of rows.
    let large = all.last().map_or(0, |(slots, _)| slots / 4);
    all.retain(|(slots, _)| *slots >= large || rows <= MOST_BLOCKS_OF_EXPERT * f64::from(*slots));
    all.into_iter().flat_map(|(_, choices)| choices).collect()
}

/// The choices of all schedules with so many slots; of skinny products alone where a pair is a token block.
fn of_block(problem: &Problem, stack: Stack, slots: u32, model: Chosen) -> Vec<Chosen> {
    let single = problem.single();
    let skinny = match model {
        Chosen::Skinny(_) => Some(model),
        _ => SkinnyTile::choose(&single, slots).ok().map(Chosen::Skinny),
    };
    let skinny = skinny.into_iter().flat_map(|base| skinny_variants(base, stack));
    if stack.direct {
        return skinny.collect();
    }
    let warp_groups = WarpGroupTile::candidates(problem, slots).into_iter();
    let warp_groups = warp_groups.flat_map(|tile| {
        let shallow = STAGES.into_iter().filter(move |stages| *stages < tile.stages);
        let stages = shallow.chain([tile.stages]);
        stages.map(move |stages| Chosen::WarpGroup(WarpGroupTile { stages, ..tile }))
    });
    // What blocks split of K they would have to add up.
    let whole = |chosen: &Chosen| {
        let mut parameters = chosen.parameters().into_iter();
        parameters.all(|(name, value)| name != "splits" || value == 1)
    };
    let of_tiles = candidates(&single, slots).into_iter();
    let of_tiles = of_tiles.filter(|chosen| matches!(chosen, Chosen::Tile(_) | Chosen::Shader(_)));
    skinny.chain(of_tiles.filter(whole)).chain(warp_groups).collect()
}

/// A skinny product with other tiles of rows, warps and blocks.
fn skinny_variants(base: Chosen, stack: Stack) -> Vec<Chosen> {
    let added = u64::from(stack.summed_experts());
    let known: BTreeMap<String, u64> =
        base.parameters().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let (warps, blocks) = match stack.direct && !base.schedule().groups_pairs() {
        true => (&SKINNY_WARPS[..], &SKINNY_BLOCKS),
        false => (&SORTED_WARPS[..], &SORTED_BLOCKS),
    };
    let sizes = SKINNY_ROWS.into_iter().flat_map(|rows| {
        warps.iter().flat_map(move |warps| blocks.map(|blocks| (rows, warps * added, blocks)))
    });
    let sizes = sizes.filter(|(_, warps, blocks)| warps * blocks <= MOST_SKINNY_WARPS);
    let all = sizes.flat_map(|(rows, warps, blocks)| {
        let interleaved = if rows > 1 { &[0, 1][..] } else { &[0] };
        interleaved.iter().map(move |interleaved| {
            [
                ("row_tiles", rows),
                ("warps", warps),
                ("min_blocks", blocks),
                ("interleaved", *interleaved),
                ("splits", 1),
            ]
        })
    });
    let read = |replaced: [(&str, u64); 5]| {
        let mut parameters = known.clone();
        parameters.extend(replaced.map(|(name, value)| (name.to_owned(), value)));
        Chosen::read(base.name(), &parameters).ok()
    };
    all.filter_map(read).collect()
}
