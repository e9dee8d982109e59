//! The free choices of a skinny kernel, and the model that chooses them.

use std::cmp::Reverse;

use super::group_columns::GroupColumns;
use super::{own_operand, skinny};
use crate::ir::{Half, Kernel};
use crate::plan::OperandType;
use crate::schedule::choices::{RareFlag, choices};
use crate::schedule::combined::CombinedBlock;
use crate::schedule::constants::Constants;
use crate::schedule::epilogue::{Epilogue, ORDER};
use crate::schedule::input::InputScale;
use crate::schedule::interface::{
    FreeChoices, Resources, Schedule, broken_rule, multiplies_otherwise,
};
use crate::schedule::mapping::MainLoop;
use crate::schedule::pair_group::PairGroup;
use crate::schedule::problem::Problem;
use crate::schedule::stack::Stack;
use crate::schedule::table::Table;
use crate::schedule::unscheduled::{ChoiceRule, Unscheduled};
use crate::target::{Class, Feature};

choices! {
    /// The free choices of a skinny kernel.
    "skinny": pub struct SkinnyTile {
        /// The largest M: 1, 2, 4, 8 or 16.
        pub tokens: u32,
        /// Tiles of 16 rows of w per block.
        pub row_tiles: u32,
        /// Warps per block.
        pub warps: u32,
        /// Blocks that have to fit on an SM; bounds the registers.
        pub min_blocks: u32,
        /// Blocks that split K.
        pub splits: u32,
        /// Whether the loads of the next k-tile are issued per tile of rows, after the last use of the
        /// tile's codes, and not all at the end of the k-tile.
        pub interleaved: bool,
        /// Programmatic dependent launch: the kernel may start before the previous one ends.
        pub programmatic: bool,
        /// Whether a block makes its operand of x itself, in shared memory; no kernel before the product does.
        pub makes_operand: RareFlag,
        /// Whether a block multiplies up to `tokens` pairs of one expert, though pairs are not sorted; else it has one pair.
        pub groups_pairs: RareFlag,
    }
}

/// SMs of a large device, slightly fewer than the 132 of an H200: a power of two leaves no remainder.
const SMS: u32 = 128;
/// Up to this many tiles of rows a block has one.
const ONE_TILE: u32 = 2 * SMS;
/// Words of codes of a lane in a k-tile that leave registers for levels of scales and 12 warps: with one token, and several.
const WORDS_BESIDE_LEVELS: [u32; 2] = [10, 6];
/// The most warps of a block.
const MOST_WARPS: u32 = 32;
/// Tokens of a block that adds the experts of one: as many as products of one token have.
const MOST_COMBINED_TOKENS: u32 = 2;
/// Registers that are enough on Hopper for one token of a pair or up to eight of an expert and at most two tiles of rows, of codes without
/// planes or zero points, where the estimate says at most [`MOST_ESTIMATED`]: the assembler shares registers more tightly there (all such
/// schemes of the catalogue assemble without spills; some with zero points do not).
const ENOUGH_FOR_PAIRS: u32 = 64;
/// The largest estimate of such a scheme, for one token and for several, of which one with an estimate of 78 spills.
const MOST_ESTIMATED: [u32; 2] = [84, 76];
/// Blocks of a multiprocessor from which blocks with so few registers are worth having: fewer and larger ones were slower.
const BLOCKS_OF_PAIRS: u32 = 4;
/// The most columns of x of which each block of a single matrix makes its operand: longer rows take each block as long as a kernel
/// before the product takes. Measured on an H200, with what else [`SkinnyTile::making_operand`] asks for (docs/performance/skinny.md).
const MOST_COLUMNS_MADE: u32 = 4096;
/// The largest M of a skinny product.
const MOST_TOKENS: u32 = 16;
/// Words of codes in flight per lane of an SM that are enough: 48 KB per SM. More would be better, but
/// two blocks that hide each other's epilogue are better still.
const UNDER_WAY: u32 = 384;

impl Schedule for SkinnyTile {
    fn serves(problem: &Problem, tokens: u32) -> bool {
        problem.by_matrix() && (1..=MOST_TOKENS).contains(&tokens)
    }

    /// The tile for a number of tokens, from measurements on an H200 (docs/performance/skinny.md).
    ///
    /// Few rows: one tile of rows per block, so that every SM has two blocks, of which one loads while
    /// the other adds its sums. More rows: two tiles, which is one wave again and halves the reads of x.
    /// Beyond 8 tokens registers allow one block only: four tiles and 12 warps, which halves the reads
    /// of x once more. Other sizes only if registers leave too few bytes in flight; blocks are as large
    /// as the number of k-tiles allows, since small blocks were slower everywhere. If there are too few
    /// rows for all SMs, blocks split K.
    fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled> {
        let main = &MainLoop::new(problem);
        if !(1..=MOST_TOKENS).contains(&tokens) {
            let rule = "expected 1 to 16 in a skinny product";
            return Err(Unscheduled::Shape { what: "M", value: tokens, rule });
        }
        let (schedule, target) = (Self::schedule(), main.problem.target().name);
        let unfit = || Unscheduled::NothingFits { schedule, target };
        let wanted = if main.problem.row_tiles() <= ONE_TILE { 1 } else { 2 };
        let of = |row_tiles, warps, min_blocks| {
            Self::whole(main, tokens, [row_tiles, warps, min_blocks]).split(main)
        };
        let fills_sms = |rows: u32| main.problem.row_tiles().div_ceil(rows) >= SMS;
        let rows = [wanted, 4, 2, 1].into_iter();
        let rows = rows.filter(|&rows| rows <= wanted || fills_sms(rows));
        let warps = [16, 12, 8, 4, 2, 1].into_iter().filter(|warps| *warps <= main.k_iters());
        let tiles = [2, 1].into_iter().flat_map(|blocks| {
            let rows = rows.clone();
            let of_warps = move |warps| rows.clone().map(move |rows| of(rows, warps, blocks));
            warps.clone().flat_map(of_warps)
        });
        // Scales that lanes make need registers for more than their numbers: with two blocks the assembler finds them (measured, 8192
        // x 8192: 4 tiles or one block were 1.1 to 1.3 times as slow), fewer if they have levels in two parts, beside many words of
        // codes.
        if let Some(parts) = problem.plan.scale.parts()
            && wanted == 2
            && problem.stack.is_none()
        {
            let most = WORDS_BESIDE_LEVELS[usize::from(tokens > 1)];
            let in_parts = parts > 1 && GroupColumns::of(main, tokens).is_none();
            let levels = problem.coarse_scale.is_some() && in_parts;
            let many = levels && main.k_tile_words() > most;
            let warps = if tokens <= 8 && !many { 12 } else { 8 };
            let tile = of(2, warps, 2);
            if warps <= main.k_iters() && tile.checked(problem).is_ok() {
                return Ok(tile);
            }
        }
        // Of equal tiles the first is chosen.
        let best = tiles.filter(|tile| tile.fits(problem)).reduce(|best, tile| {
            if tile.under_way(main) > best.under_way(main) { tile } else { best }
        });
        best.ok_or_else(unfit)
    }

    /// Tiles worth measuring: those that fit, with enough threads per SM to hide latency, without
    /// split-K or with splits that save k-tiles.
    fn candidates(problem: &Problem, tokens: u32) -> Vec<Self> {
        let main = &MainLoop::new(problem);
        if !Self::serves(problem, tokens) {
            return Vec::new();
        }
        let mut all = Vec::new();
        for row_tiles in [1, 2, 4] {
            for warps in [4, 6, 8, 10, 12, 16, 20, 24] {
                for min_blocks in [1, 2, 3, 4] {
                    let whole = Self::whole(main, tokens, [row_tiles, warps, min_blocks]);
                    all.push(whole);
                    all.extend((row_tiles > 1).then_some(Self { interleaved: false, ..whole }));
                    all.extend(Some(whole.split(main)).filter(|tile| tile.splits > 1));
                }
            }
        }
        all.retain(|tile| {
            (8..=48).contains(&(tile.warps * tile.min_blocks)) && tile.is_launchable(problem)
        });
        all
    }

    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled> {
        if main.instruction().is_none() {
            return Err(multiplies_otherwise::<Self>(main));
        }
        let together = main.problem.together();
        let rules = [
            (self.row_tiles.is_multiple_of(together), ChoiceRule::Together),
            (matches!(self.tokens, 1 | 2 | 4 | 8 | 16), ChoiceRule::SkinnyTokens),
            ((1..=8).contains(&self.row_tiles), ChoiceRule::RowTiles),
            ((1..=32).contains(&self.warps), ChoiceRule::Warps),
            ((1..=32).contains(&self.min_blocks), ChoiceRule::BlocksOfSm),
            ((1..=main.k_iters()).contains(&self.splits), ChoiceRule::Splits),
            (self.combines(main.problem), ChoiceRule::Combined),
            (
                !self.makes_operand.0 || own_operand::problem(main, self).is_some(),
                ChoiceRule::MakesOperand,
            ),
            (!self.groups_pairs.0 || self.may_group(main.problem), ChoiceRule::GroupsPairs),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(broken_rule(self, rule)),
            None => main.problem.refuse_dependent_launch(self.programmatic),
        }
    }

    fn resources(&self, main: &MainLoop<'_>) -> Resources {
        let warp = main.problem.target().gpu.map_or(0, |gpu| gpu.warp);
        Resources {
            threads: self.warps * warp,
            min_blocks: self.min_blocks,
            shared_bytes: self.shared_bytes(main),
            registers: self.registers(main),
            given_registers: None,
        }
    }

    /// Scales that elsewhere multiply weights multiply sums where columns of D have groups.
    fn rounds_scaled_weights(&self, problem: &Problem) -> bool {
        let groups = GroupColumns::of(&MainLoop::new(problem), self.tokens);
        problem.plan.scale.rounds_weights() && groups.is_none()
    }

    fn most_tokens(&self, _problem: &Problem) -> u32 {
        self.tokens
    }

    fn block_tokens(&self) -> u32 {
        self.tokens
    }

    fn combines_experts(&self) -> bool {
        true
    }

    fn makes_operand(&self) -> bool {
        self.makes_operand.0
    }

    fn groups_pairs(&self) -> bool {
        self.groups_pairs.0
    }

    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled> {
        skinny(main, *self)
    }
}

impl SkinnyTile {
    /// A tile with these numbers of tiles of rows, warps and blocks per SM, without split-K.
    fn whole(main: &MainLoop<'_>, tokens: u32, [row_tiles, warps, min_blocks]: [u32; 3]) -> Self {
        // One token of several segments needs more registers than two: the assembler keeps all segments
        // live.
        let fewest = if main.segment() < main.k_tile() { 2 } else { 1 };
        Self {
            tokens: tokens.next_power_of_two().max(fewest),
            row_tiles,
            warps,
            min_blocks,
            splits: 1,
            interleaved: row_tiles > 1,
            programmatic: main.problem.target().has(Feature::GridDependency),
            makes_operand: RareFlag(false),
            groups_pairs: RareFlag(false),
        }
    }

    /// The tile for the pairs of so many tokens, each of which has blocks of its own: of those that fit the one with the
    /// most bytes in flight (up to [`UNDER_WAY`]), then with the fewest k-tiles of a warp one after another, then with the fewest warps
    /// (docs/performance/experts.md).
    pub(in crate::schedule) fn of_pairs(problem: &Problem, tokens: u32) -> Option<Self> {
        let (main, stack) = (&MainLoop::new(problem), problem.stack?);
        let added = stack.summed_experts();
        let of_rows = tokens.saturating_mul(stack.top_k) / added;
        let tiles = [1, 2].into_iter().flat_map(|row_tiles| {
            [1, 2, 3, 4, 6, 8, 12, 16].into_iter().flat_map(move |warps| {
                let warps = warps * added;
                [1, 2, 3, 4].map(|blocks| Self::whole(main, 1, [row_tiles, warps, blocks]))
            })
        });
        let tiles = tiles.filter(|tile| tile.warps <= MOST_WARPS && tile.fits(problem));
        let score = |tile: &Self| {
            let blocks = problem.grid_row_tiles().div_ceil(tile.row_tiles).saturating_mul(of_rows);
            let resident = blocks.min(SMS * tile.min_blocks);
            let working = main.k_iters().div_ceil(tile.k_iters(main)) * added;
            let words = resident * working * tile.row_tiles * main.k_tile_words() / SMS;
            let waves = blocks.div_ceil(SMS * tile.min_blocks);
            let longest = waves * tile.k_iters(main) * tile.row_tiles;
            (Reverse(words.min(UNDER_WAY)), longest, tile.warps)
        };
        tiles.min_by_key(score)
    }

    /// The same with blocks that make their operand of x, if they may and a call of so many tokens takes less time with them.
    pub(in crate::schedule) fn making_operand(self, problem: &Problem, tokens: u32) -> Self {
        let this = Self { makes_operand: RareFlag(true), ..self };
        let integers = problem.plan.compute.product.activation == OperandType::I8;
        let along_k = problem.input.scale.and_then(InputScale::columns).is_some();
        let short = problem.k <= MOST_COLUMNS_MADE && (integers || along_k);
        let faster = !problem.plan.compute.folds_input && (problem.stack.is_some() || short);
        let fits = || {
            self.min_blocks < BLOCKS_OF_PAIRS
                || own_operand::is_short(&MainLoop::new(problem), &this)
        };
        let pays = tokens == 1 && faster && problem.target().class == Class::Hopper && fits();
        Self { makes_operand: RareFlag(pays && this.fits(problem)), ..self }
    }

    /// The same with blocks that find the pairs of an expert by themselves.
    pub(in crate::schedule) fn grouping_pairs(self) -> Self {
        Self { groups_pairs: RareFlag(true), ..self }
    }

    /// Whether blocks may find the pairs of an expert.
    fn may_group(&self, problem: &Problem) -> bool {
        let target = problem.target();
        let votes = target.has(Feature::Warp) && target.gpu.is_some_and(|gpu| gpu.warp == 32);
        let unsorted = problem.stack.is_some_and(|stack| stack.direct && !stack.combined);
        votes && unsorted && self.splits == 1
    }

    /// Matrices whose sums of a row a block adds to one another, each by as many warps.
    pub(super) fn matrices(&self, problem: &Problem) -> u32 {
        problem.stack.map_or(1, Stack::summed_experts)
    }

    /// The warps of a block that multiply one matrix.
    pub(super) fn warps_of_matrix(&self, problem: &Problem) -> u32 {
        self.warps / self.matrices(problem)
    }

    /// Whether blocks may add the experts of a token, if they do.
    fn combines(&self, problem: &Problem) -> bool {
        let combined = problem.stack.is_some_and(|stack| stack.combined);
        let even = self.warps.is_multiple_of(self.matrices(problem));
        !combined || even && self.splits == 1 && self.tokens <= MOST_COMBINED_TOKENS
    }

    /// The tile with split-K if there are fewer blocks than SMs: the fewest splits that give the fewest
    /// k-tiles per warp. A warp's time per k-tile is constant, so a split that saves no k-tile only adds
    /// the cost of its sums.
    fn split(self, main: &MainLoop<'_>) -> Self {
        let blocks = main.problem.row_tiles().div_ceil(self.row_tiles);
        let most = if blocks < SMS { SMS * self.min_blocks / blocks } else { 1 };
        let splits = (1..=most.min(main.k_iters())).map(|splits| Self { splits, ..self });
        splits.min_by_key(|tile| tile.k_iters(main)).unwrap_or(self)
    }

    /// K-tiles of a warp, at most.
    fn k_iters(&self, main: &MainLoop<'_>) -> u32 {
        main.k_iters().div_ceil(self.splits * self.warps_of_matrix(main.problem))
    }

    /// Words of codes in flight per SM, up to [`UNDER_WAY`].
    fn under_way(&self, main: &MainLoop<'_>) -> u32 {
        let blocks = main.problem.row_tiles().div_ceil(self.row_tiles) * self.splits;
        let blocks = blocks.div_ceil(SMS);
        let blocks = self.min_blocks.min(blocks);
        // Not more than exist: with split-K some warps may have no k-tile.
        let working = (self.splits * self.warps).min(main.k_iters());
        let there = (main.problem.row_tiles() * working).div_ceil(SMS);
        let tiles = (self.row_tiles * self.warps * blocks).min(there);
        (tiles * main.k_tile_words()).min(UNDER_WAY)
    }

    /// Registers of a thread below which the assembler spills, from its reports; slightly too many where
    /// the number decides nothing.
    fn registers(&self, main: &MainLoop<'_>) -> u32 {
        let groups = GroupColumns::of(main, self.tokens);
        let token_tiles = self.tokens.div_ceil(main.token_tile());
        let numbers = main.problem.group_params();
        let numbers: u32 = numbers.map(|(_, of)| of.lane_words(main)).sum();
        let x = main.problem.input.bytes(main.k_tile() / main.row_lanes()) / 4;
        let sums = main.lanes().d.registers.len() as u32 / if self.tokens == 1 { 2 } else { 1 };
        // The segments of a k-tile overlap, each with its own partial sums.
        let several = main.segment() < main.k_tile();
        // More with f16, which needs more constants.
        let overlap = match (several, main.problem.half()) {
            (true, Some(Half::F16)) => 18,
            (true, _) => 4,
            (false, _) => 0,
        };
        // Scales of x, and their products with those of w; more if codes are assembled from several
        // words.
        let x_scales = match main.problem.input.scale {
            Some(InputScale::Columns(columns)) => {
                let products = match (several, main.problem.plan.dequant.placed()) {
                    (true, Some(_)) => 30,
                    (true, None) => 14,
                    (false, _) => 0,
                };
                products + token_tiles * 2 * (main.k_tile() / columns).max(1)
            }
            Some(InputScale::Row) | None => 0,
        };
        // High and low parts of a group's scales, and of its terms.
        let in_parts = main.problem.plan.scale.parts().filter(|_| groups.is_none());
        let parts = 8 * in_parts.unwrap_or(0);
        // Ones, and sums of x over groups.
        let of_groups = if groups.is_some() && main.problem.correction.is_some() { 8 } else { 0 };
        // The initial values of integer sums, and sums of x.
        let integers = if main.problem.sums_integers() { 4 } else { 0 };
        let of_x = if main.problem.corrects_sums() { 8 } else { 0 };
        // A second tile of tokens: its x and partial sums of a segment once, its sums for each tile of
        // rows.
        let further = (token_tiles - 1) * (9 + 15 * self.row_tiles);
        // An expert layer's block keeps its place, and with a gate a first word of each tile.
        let stacked = match main.problem.stack {
            Some(_) => 8 + 2 * self.row_tiles,
            None => 0,
        };
        // A lane that has more of a row of A has more of it decoded at once.
        let ahead = 15 * (4 / main.row_lanes()).saturating_sub(1) * self.row_tiles;
        // One word of scales per tile is part of every tile's registers.
        let numbers = 2 * numbers.saturating_sub(1);
        let tile = main.k_tile_words() + sums + numbers;
        let x = x + x_scales;
        let all = 24
            + main.compiled(self.row_tiles * token_tiles)
            + x
            + integers
            + of_x
            + parts
            + of_groups
            + overlap
            + self.row_tiles * tile
            + further
            + ahead
            + stacked;
        let problem = main.problem;
        let several = self.groups_pairs.0 || problem.stack.is_some_and(|stack| !stack.direct);
        let few = problem.stack.is_some() && self.tokens <= if several { 8 } else { 1 };
        let whole = problem.plan.dequant.weight.code.bits().is_power_of_two();
        let symmetric = problem.zero.or(problem.correction).is_none();
        let small = self.min_blocks >= BLOCKS_OF_PAIRS && self.row_tiles <= 2;
        let tight = problem.target().class == Class::Hopper && few && whole && symmetric && small;
        if tight && all <= MOST_ESTIMATED[usize::from(several)] {
            all.min(ENOUGH_FOR_PAIRS)
        } else {
            all
        }
    }

    /// Shared memory of a block in bytes: the sums of its warps.
    fn shared_bytes(&self, main: &MainLoop<'_>) -> u32 {
        let rows = self.row_tiles * main.problem.plan.native.rows;
        let added = self.matrices(main.problem);
        let constants = Constants::words(main.problem, added * rows, added * self.tokens);
        let constants = constants + CombinedBlock::words(main.problem.stack);
        let pairs = if self.groups_pairs.0 { PairGroup::words(self.tokens) } else { 0 };
        let table = Table::words(main.problem);
        let operand = if self.makes_operand.0 { own_operand::words(main, self) } else { 0 };
        let sums = Epilogue::words(rows, self.tokens, self.warps);
        4 * (sums + constants + ORDER + table + operand + pairs)
    }

    /// The tile's part of a kernel's name.
    pub(super) fn label(&self) -> String {
        let Self { tokens, row_tiles, warps, min_blocks, splits, .. } = self;
        let Self { interleaved, programmatic, .. } = self;
        let split = if *splits > 1 { format!("k{splits}") } else { String::new() };
        let interleaved = if *interleaved { "e" } else { "" };
        let early = if *programmatic { "p" } else { "" };
        let grouped = if self.groups_pairs.0 { "g" } else { "" };
        let rows = 16 * row_tiles;
        format!("skinny_m{tokens}r{rows}w{warps}b{min_blocks}{split}{interleaved}{early}{grouped}")
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::experts::{ExpertProduct, OperandOf};
    use quantloom_dsl::parse;

    use super::*;
    use crate::target::target;

    /// A block that finds pairs has as many more bytes as it declares for them.
    #[test]
    fn shared_memory_is_that_of_the_pairs_too() {
        let text =
            "s { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }";
        let (scheme, hopper) = (parse(text).unwrap(), target("sm_90a").unwrap());
        let single = Problem::new(&scheme, &scheme.activations[0], hopper, (64, 256)).unwrap();
        let stack = Stack {
            product: ExpertProduct::Down,
            experts: 8,
            chosen_from: 8,
            shards: 1,
            top_k: 2,
            gate: None,
            direct: true,
            weighted: false,
            combined: false,
            shared: None,
            operand: OperandOf::Row,
        };
        let problem = single.stacked(stack).unwrap();
        let main = MainLoop::new(&problem);
        for tokens in [1, 2, 8] {
            let apart = SkinnyTile { tokens, ..SkinnyTile::whole(&main, 8, [1, 2, 1]) };
            let [apart, grouped] = [apart, apart.grouping_pairs()].map(|tile| {
                let declared = tile.write(&main).unwrap().shared.into_iter();
                let declared: u32 = declared.map(|block| 4 * block.len).sum();
                (tile.shared_bytes(&main), declared)
            });
            assert_eq!(grouped.0 - apart.0, grouped.1 - apart.1, "{tokens} tokens");
            assert!(grouped.1 > apart.1 && grouped.0 >= grouped.1);
        }
    }
}
