//! The choice of a schedule for the products of an expert layer.
//!
//! In: a [`Problem`] with a stack and M tokens, before they are routed. Out: a [`Chosen`] whose blocks have
//! as many tokens as token blocks have slots. A token block reads the weights of its expert: with more slots
//! than an expert has rows they would be idle, with fewer the weights would be read again, from the second
//! cache.

use std::collections::BTreeMap;

use quantloom_dsl::experts::experts_met;

use super::choose::{Chosen, candidates, choose_by_model, models};
use super::interface::{FreeChoices, Schedule};
use super::mapping::MainLoop;
use super::problem::Problem;
use super::skinny::SkinnyTile;
use super::stack::Stack;
use super::unscheduled::Unscheduled;
use super::warp_group::WarpGroupTile;
use crate::target::Class;

/// Slots of a token block to choose from; the last of them only where warp groups multiply.
pub(super) const SLOTS: [u32; 5] = [8, 16, 32, 64, 128];
/// The most slots for products of every schedule.
const MOST_SLOTS: u32 = 64;
/// The most slots that the model of warp groups compares: with more two warp groups have one tile of rows.
const MOST_WARP_GROUP_SLOTS: u32 = 144;
/// Rows of an expert from which a token block has the fewest slots that warp groups multiply, though so many rows fill fewer: FP8 in
/// blocks, which has 32, took 1.0 of the time of `skinny` with 4 rows, 0.98 with 5 (Qwen3-30B on an H200, h quantised by the first product:
/// docs/performance/experts.md).
const LEAST_WARP_GROUP_ROWS: f64 = 5.0;
/// The same of FP8 with a scale a channel or one in all, whose products may have fewer slots than the 32 that are worth it: with 6 and 7
/// rows it took 1.02 and 1.01 of the time of `skinny`, with 8 0.87 of that of `tile` (Qwen3-30B and Mixtral 8x7B).
const LEAST_ROWS_OF_BYTES: f64 = 8.0;
/// Tenths of a token block that an expert's rows may fill on average: beyond, many experts need a second
/// token block.
const FILLED: u64 = 9;
/// The most tiles of rows of a skinny block: with more, registers spill.
const MOST_SKINNY_TILES: u64 = 4;
/// The most warps of a skinny block where each expert has blocks of its own: they fill the chip, so that a
/// warp's part of K may be long. On an H200 M = 8 and 16 took 0.81 to 0.92 of the time with the model's 8 to
/// 16 warps (docs/performance/experts.md).
const MOST_SKINNY_WARPS: u64 = 4;
/// Such blocks that a multiprocessor has room for, where registers allow and weights are made 16-bit numbers of fewer bits: M = 8 to
/// 32 took 0.97 to 0.99 of the time of blocks whose registers are not bounded, of which it had six (docs/performance/experts.md;
/// 1.00 to 1.02 of FP8 in blocks, W8A16 and W4A8, which do not have them). They have two tiles of rows, whose loads come together, as
/// they were measured.
const SKINNY_BLOCKS: u64 = 8;
/// The most slots for which skinny products are preferred on Hopper: with 16 they took 1.06 to 1.18 of the time of tiles
/// on an H100, int4 and e2m1 with 16-bit x (docs/performance/experts.md).
const MOST_SKINNY_SLOTS: u32 = 8;
/// The most pairs of a block that finds them by itself: the tokens of an instruction.
const PAIRS_TOGETHER: u32 = 8;
/// Pairs of an expert that is met, on average, from which blocks find them: with 1.11 to 1.24 products took 0.94 to 0.99 of the time, with
/// 1.10 1.0 to 1.02 (docs/performance/experts.md).
const LEAST_PAIRS_TOGETHER: f64 = 1.1;
/// Warps of a block that finds pairs with weights of 8 bits, and such blocks of a multiprocessor: FP8 in blocks took 0.99 of the time that
/// four warps took whose registers are not bounded (Qwen3-30B on an H200).
const LARGE_BLOCKS: (u32, u32) = (8, 4);
/// Tiles of rows of a matrix from which a skinny block has two, and four of them.
const TWO_TILES: u32 = 32;
const FOUR_TILES: u32 = 256;
/// The most blocks along an axis of a launch, by WebGPU's default limits.
const MOST_BLOCKS: u64 = 65_535;

/// The schedule for M tokens, by the schedules' models, with `slots` slots a token block if the order of
/// pairs exists already.
///
/// # Errors
/// If no schedule supports the problem with that many tokens, or with such token blocks.
pub fn choose_stacked(
    problem: &Problem,
    tokens: u32,
    slots: Option<u32>,
) -> Result<Chosen, Unscheduled> {
    choose_stacked_of(problem, (tokens, slots), None)
}

/// As [`choose_stacked`], by the schedule of this name alone if there is one.
///
/// # Errors
/// As [`choose_stacked`].
pub fn choose_stacked_of(
    problem: &Problem,
    (tokens, slots): (u32, Option<u32>),
    only: Option<&str>,
) -> Result<Chosen, Unscheduled> {
    let Some(stack) = problem.stack else { return choose_by_model(problem, tokens) };
    let widest = SLOTS[SLOTS.len() - 1];
    let rows = stack.rows_of_expert(tokens);
    let most = if on_warp_groups(problem, widest, rows).is_some() { widest } else { MOST_SLOTS };
    let wanted = match (slots, stack.direct) {
        (Some(slots), _) => vec![slots],
        (None, true) => vec![1],
        (None, false) => {
            let first = stack.fitting_slots(tokens, most);
            let first = stack.fastest_slots(problem, tokens, first).unwrap_or(first);
            let larger = SLOTS.into_iter().filter(|slots| *slots > first && *slots <= most);
            let smaller = SLOTS.into_iter().rev().filter(|slots| *slots < first);
            [first].into_iter().chain(smaller).chain(larger).collect()
        }
    };
    let mut refused = None;
    for slots in wanted {
        match of_slots(problem, (tokens, slots), only) {
            Ok(chosen) if u64::from(tokens) <= stack.most_tokens(problem, chosen) => {
                return Ok(chosen);
            }
            Ok(_) => {
                let rule = "expected so few that rows of slots are numbered with 32 bits";
                refused = refused.or(Some(Unscheduled::Shape { what: "M", value: tokens, rule }));
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused.unwrap_or(Unscheduled::NoSchedule(problem.target().name)))
}

/// The model's choice with blocks of so many tokens, whose blocks do not split K: there are enough of them,
/// since each expert has its own. If a block multiplies two matrices, it has twice as many tiles, where
/// registers allow.
fn of_slots(
    problem: &Problem,
    (m, slots): (u32, u32),
    only: Option<&str>,
) -> Result<Chosen, Unscheduled> {
    let single = problem.single();
    let fits = |chosen: &Chosen| {
        only.is_none_or(|only| chosen.name() == only)
            && problem.slots(*chosen) == Some(slots)
            && chosen.schedule().fits(problem)
    };
    if only == Some(WarpGroupTile::schedule()) {
        return WarpGroupTile::choose(problem, slots).map(Chosen::WarpGroup);
    }
    if problem.stack.is_some_and(|stack| stack.direct) {
        let often = problem.stack.map_or(0.0, |stack| stack.pairs_of_met_expert(m));
        let grouped = (often >= LEAST_PAIRS_TOGETHER).then(|| grouping_pairs(problem, m));
        let direct = SkinnyTile::of_pairs(problem, m).map(Chosen::Skinny);
        let all = grouped.into_iter().flatten().chain(direct);
        if let Some(chosen) = all.into_iter().find(fits) {
            return Ok(chosen);
        }
    }
    let rows = problem.stack.map_or(0.0, |stack| stack.rows_of_expert(m));
    if let Some(chosen) = on_warp_groups(problem, slots, rows).filter(fits) {
        return Ok(chosen);
    }
    let tiles = u64::from(problem.together());
    let preferred = |model: &Chosen| {
        let hopper = problem.target().class == Class::Hopper;
        let many = hopper && only.is_none() && slots > MOST_SKINNY_SLOTS;
        !(many && matches!(model, Chosen::Skinny(_)))
    };
    let modelled = models(&single, slots).flatten().filter(preferred).flat_map(|model| {
        let few_warps = few_warps(problem, model);
        few_warps.into_iter().chain([tiles, 1].map(|by| adapted(model, by)))
    });
    let model = modelled.flatten().find(fits);
    let others = || {
        let all = candidates(&single, slots).into_iter();
        let all = all.filter(|chosen| !matches!(chosen, Chosen::WarpGroup(_)));
        all.filter_map(|chosen| adapted(chosen, 1).ok())
    };
    let found = model.or_else(|| others().find(fits));
    let unfit = || {
        let of_name = |model: &Chosen| only.is_none_or(|only| model.name() == only);
        let shape = |what, value, rule| Unscheduled::Shape { what, value, rule };
        let combined = problem.stack.filter(|stack| stack.combined);
        match (combined, models(&single, slots).flatten().find(of_name)) {
            (Some(_), Some(model)) if !model.schedule().combines_experts() => {
                Unscheduled::Combined(model.name())
            }
            (Some(stack), _) => {
                let rule = "expected so few that a block has as many warps for each of them";
                shape("top k", stack.top_k, rule)
            }
            (None, _) => {
                let rule = "expected a number of tokens that blocks of a schedule take here";
                shape("slots of a token block", slots, rule)
            }
        }
    };
    found.ok_or_else(unfit)
}

/// The choice of warp groups where they are the fastest for experts with so many rows: for the stack itself, since their blocks
/// have tiles of all matrices that they multiply.
fn on_warp_groups(problem: &Problem, slots: u32, rows: f64) -> Option<Chosen> {
    let serves = WarpGroupTile::serves_experts(problem, slots, rows);
    serves.then(|| WarpGroupTile::choose(problem, slots).ok().map(Chosen::WarpGroup)).flatten()
}

/// The other choice for pairs that are not sorted: blocks that find the pairs of an expert by themselves, if the model's have one pair, or
/// the other way round.
pub(super) fn other_direct(problem: &Problem, tokens: u32, model: Chosen) -> Option<Chosen> {
    let fits = |chosen: &Chosen| chosen.schedule().fits(problem);
    problem.stack.filter(|stack| stack.direct && tokens > 1)?;
    match model.schedule().groups_pairs() {
        true => SkinnyTile::of_pairs(problem, tokens).map(Chosen::Skinny).filter(fits),
        false => grouping_pairs(problem, tokens).into_iter().find(fits),
    }
}

/// Blocks of a skinny product that find the pairs of an expert by themselves, the best first, on Hopper, where they were measured: those of
/// sorted pairs, or larger ones for codes of 8 bits.
fn grouping_pairs(problem: &Problem, tokens: u32) -> Vec<Chosen> {
    let of = |stack: Stack| {
        if stack.combined || problem.target().class != Class::Hopper {
            return None;
        }
        let sorted = problem.single().stacked(Stack { direct: false, ..stack }).ok()?;
        let only = Some(SkinnyTile::schedule());
        match of_slots(&sorted, (tokens, PAIRS_TOGETHER), only).ok()? {
            Chosen::Skinny(tile) => Some(tile.grouping_pairs()),
            _ => None,
        }
    };
    let Some(tile) = problem.stack.and_then(of) else { return Vec::new() };
    let (warps, min_blocks) = LARGE_BLOCKS;
    let wide = problem.plan.dequant.weight.code.bits() == 8;
    let long = MainLoop::new(problem).k_iters() >= warps;
    let large = (wide && long).then_some(SkinnyTile { warps, min_blocks, ..tile });
    large.into_iter().chain([tile]).map(Chosen::Skinny).collect()
}

/// The same choice of a skinny product with few warps and several tiles of rows, on Hopper, where it
/// was measured: first with as many blocks a multiprocessor as were the fastest. None for one token, whose experts do not fill
/// the chip.
fn few_warps(problem: &Problem, chosen: Chosen) -> Vec<Result<Chosen, Unscheduled>> {
    let direct = problem.stack.is_none_or(|stack| stack.direct);
    if direct || problem.target().class != Class::Hopper || !matches!(chosen, Chosen::Skinny(_)) {
        return Vec::new();
    }
    let row_tiles = match problem.row_tiles() {
        FOUR_TILES.. => 4,
        TWO_TILES.. => 2,
        _ => return Vec::new(),
    };
    let with = |min_blocks: Option<u64>| {
        let parameters = chosen.parameters().into_iter().map(|(name, value)| {
            let value = match name {
                "splits" => 1,
                "row_tiles" => min_blocks.map_or(row_tiles, |_| 2),
                "warps" => value.min(MOST_SKINNY_WARPS),
                "min_blocks" => min_blocks.unwrap_or(value),
                "interleaved" => min_blocks.map_or(value, |_| 0),
                _ => value,
            };
            (name.to_owned(), value)
        });
        Chosen::read(chosen.name(), &parameters.collect())
    };
    let narrow = problem.half().is_some() && problem.plan.dequant.weight.code.bits() < 8;
    narrow.then(|| with(Some(SKINNY_BLOCKS))).into_iter().chain([with(None)]).collect()
}

/// The same choice without split-K, with so many times the tiles of rows of a block of a skinny product.
fn adapted(chosen: Chosen, tiles: u64) -> Result<Chosen, Unscheduled> {
    let parameters = chosen.parameters().into_iter();
    let mut parameters: BTreeMap<String, u64> =
        parameters.map(|(name, value)| (name.to_owned(), value)).collect();
    if let Some(splits) = parameters.get_mut("splits") {
        *splits = 1;
    }
    if let (Chosen::Skinny(_), Some(row_tiles)) = (chosen, parameters.get_mut("row_tiles")) {
        *row_tiles = (*row_tiles * tiles).min((*row_tiles).max(MOST_SKINNY_TILES));
    }
    Chosen::read(chosen.name(), &parameters)
}

impl Problem {
    /// The slots of a token block of a choice, if there is a stack: its tokens, or one without an order of
    /// pairs.
    pub fn slots(&self, chosen: Chosen) -> Option<u32> {
        let direct = self.stack?.direct;
        Some(if direct { 1 } else { chosen.schedule().block_tokens() })
    }
}

impl Stack {
    /// The slots of a token block for M tokens: the fewest that an expert's share of the pairs does not
    /// fill.
    fn fitting_slots(self, tokens: u32, most: u32) -> u32 {
        let pairs = u64::from(tokens) * u64::from(self.top_k);
        let experts = u64::from(self.chosen_from);
        let fits = |slots: &u32| 10 * pairs < FILLED * u64::from(*slots) * experts;
        SLOTS.into_iter().filter(|slots| *slots <= most).find(fits).unwrap_or(most)
    }

    /// The share of the tokens that choose an expert, if each token chooses any.
    fn share_of_expert(self) -> f64 {
        f64::from(self.top_k.min(self.chosen_from)) / f64::from(self.chosen_from)
    }

    /// The pairs of an expert that M tokens meet, on average.
    fn pairs_of_met_expert(self, tokens: u32) -> f64 {
        let [experts, top_k, tokens] = [self.chosen_from, self.top_k, tokens].map(f64::from);
        tokens * top_k.min(experts) / experts_met(experts, top_k, tokens)
    }

    /// The rows of an expert of M tokens, on average.
    pub(super) fn rows_of_expert(self, tokens: u32) -> f64 {
        f64::from(tokens) * self.share_of_expert()
    }

    /// The slots of a token block for which the model of warp groups gives the least time, if they multiply blocks of
    /// as many slots as `fitting` says, or of the fewest that they do for so many rows.
    fn fastest_slots(self, problem: &Problem, tokens: u32, fitting: u32) -> Option<u32> {
        let rows = self.rows_of_expert(tokens);
        let counts = WarpGroupTile::token_counts(problem);
        let fewest = WarpGroupTile::fewest_slots(problem).filter(|fewest| {
            let all = counts.first() == Some(fewest);
            rows >= if all { LEAST_WARP_GROUP_ROWS } else { LEAST_ROWS_OF_BYTES }
        });
        on_warp_groups(problem, fewest.unwrap_or(0).max(fitting), rows)?;
        let time = |slots: u32| {
            on_warp_groups(problem, slots, rows)?;
            let of_blocks = WarpGroupTile::microseconds(problem, slots)?;
            Some((slots, of_blocks * token_blocks(tokens, self.share_of_expert(), slots)))
        };
        let timed =
            counts.into_iter().filter(|slots| *slots <= MOST_WARP_GROUP_SLOTS).filter_map(time);
        timed.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(slots, _)| slots)
    }

    /// The most tokens of a launch of a choice: elements of x and y, sums of a split K and the order's
    /// words are numbered with 32 bits, and a launch has so many blocks.
    pub fn most_tokens(self, problem: &Problem, chosen: Chosen) -> u64 {
        let slots = u64::from(problem.slots(chosen).unwrap_or(1));
        let (experts, top_k) = (u64::from(self.experts), u64::from(self.top_k));
        let splits = chosen.parameters().into_iter().find(|(name, _)| *name == "splits");
        let sums = splits.map_or(1, |(_, splits)| splits) * u64::from(self.shards);
        let padded = (u64::from(problem.n) + 512) * sums;
        let of_x = u64::from(problem.input.columns) * u64::from(self.x_rows_of_slot());
        let widest = padded.max(of_x).max(4);
        // T B is at most R + L (B - 1), and T at most that over B, plus 1.
        let all_slots = u64::from(u32::MAX) / widest;
        let all_slots = match problem.target().class {
            Class::Shader => all_slots.min((MOST_BLOCKS - 1) * slots),
            _ => all_slots,
        };
        all_slots.saturating_sub(experts * (slots - 1)) / top_k.max(1)
    }
}

/// The token blocks of an expert that each of M tokens chooses with a probability of `share`, on average: one, and the sum over n = 1, 2, ...
/// of the probability that n blocks have too few slots, by the normal distribution's logistic approximation.
fn token_blocks(tokens: u32, share: f64, slots: u32) -> f64 {
    let rows = f64::from(tokens) * share;
    let deviation = (rows * (1.0 - share)).sqrt().max(0.5);
    let more_than = |of: u32| {
        let of = f64::from(of) * f64::from(slots) + 0.5;
        1.0 / (1.0 + (1.702 * (of - rows) / deviation).exp())
    };
    // Beyond the average by eight deviations there is nothing to add.
    let most = ((rows + 8.0 * deviation) / f64::from(slots)).ceil() as u32;
    1.0 + (1..=most).map(more_than).sum::<f64>()
}
