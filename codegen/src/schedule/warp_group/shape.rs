//! The free choices of a warp-group kernel, and the rules of a tile.

use super::consumer::Batches;
use super::limits::{
    element, exact_pairs, multiplies_nibbles_as_floats, supported, unswapped_products,
    whole_token_tiles,
};
use super::stage::{kinds, ring_bytes};
use super::{exchange, model, pairs, store, write, y_lines};
use crate::ir::{Kernel, MATRIX_OPS, MatrixOp, MatrixScope};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::activation::ActivationProblem;
use crate::schedule::choices::choices;
use crate::schedule::epilogue::EpilogueOp;
use crate::schedule::group_params::GroupParams;
use crate::schedule::input::InputScale;
use crate::schedule::interface::{
    FreeChoices, Resources, Schedule, broken_rule, multiplies_otherwise,
};
use crate::schedule::mapping::MainLoop;
use crate::schedule::problem::Problem;
use crate::schedule::stack::Stack;
use crate::schedule::table::Table;
use crate::schedule::unscheduled::{ChoiceRule, Unscheduled};
use crate::target::Feature;

choices! {
    /// The free choices of a warp-group kernel.
    "warp_group": pub struct WarpGroupTile {
        /// Rows of x per block: N of a warp-group instruction; 64 a tile if operands are not swapped.
        pub tokens: u32,
        /// Warp groups that multiply, 1 to 4.
        pub groups: u32,
        /// Tiles of 64 rows of w per warp group, 1 or 2; of 64 tokens if operands are not swapped.
        pub row_tiles: u32,
        /// Stages of the ring.
        pub stages: u32,
        /// Stages of a k-tile, 1 or 2.
        pub parts: u32,
        /// Fragments that are dequantised and multiplied together.
        pub batch: u32,
        /// Blocks that split K, 1 or 2: a cluster.
        pub splits: u32,
        /// Blocks of neighbouring rows that copy a part of x each, for all of them: 1, or 2 in a cluster.
        pub multicast: u32,
        /// Whether blocks of a single matrix have one tile after another, as those of an expert layer do.
        pub persistent: bool,
        /// Whether x is operand A and w is operand B, both in shared memory, and not w in registers and x: then a product has 64
        /// tokens and 128 rows of w.
        pub unswapped: bool,
        /// Whether scales of groups multiply sums, exactly, and not weights, which are then rounded.
        pub exact: bool,
        /// Programmatic dependent launch: the kernel may start before the previous one ends.
        pub programmatic: bool,
    }
}

/// The most warp groups that multiply: threads of four have few registers, which suffice for the few tokens of experts.
const MOST_GROUPS: u32 = 4;
/// Rows of operand A of a warp-group instruction: of w, or of x if operands are not swapped.
pub(super) const ROWS: u32 = 64;
/// Rows of w of a block whose operands are not swapped, and of its products.
pub(super) const UNSWAPPED_ROWS: u32 = 128;
/// Warp groups of such a block and their tiles of tokens. One group alone has nothing to multiply while it adds sums.
pub(super) const UNSWAPPED_GROUPS: [(u32, u32); 3] = [(2, 1), (3, 1), (2, 2)];
/// The most stages of such a block: with 128 tokens six were slower than five.
const MOST_UNSWAPPED_STAGES: u32 = 5;
/// Words of 16 bytes: the least that a tensor copy moves, and what a lane gives to `ldmatrix`.
pub(super) const VECTOR_WORDS: u32 = 4;
/// The most tokens of a block, as the box of a tensor copy.
const MOST_TOKENS: u32 = 256;
/// Lines after which their swizzle begins anew.
pub(super) const SWIZZLED_LINES: u32 = 8;
/// Stages below which products wait for copies: int8 on both sides with two took 1.7 times the model's time.
pub(super) const ENOUGH_STAGES: u32 = 3;
/// Stages beyond which a ring hides nothing more.
const MOST_STAGES: u32 = 10;
/// Registers of a consumer's thread besides sums and fragments, from the assembler's reports.
const OTHER_REGISTERS: u32 = 64;
/// The same of a single matrix whose codes of 4 bits are multiplied as e4m3.
const OTHER_REGISTERS_OF_NIBBLES: u32 = 32;
/// The same of four warp groups, whose codes are not in planes: the assembler needs no more for any scheme.
const OTHER_REGISTERS_OF_FOUR: u32 = 48;
/// The same, in addition, of four warp groups whose codes are in planes, with two tiles of rows and more than 16 tokens: 6 bits beside 24
/// slots spilled.
const OTHER_REGISTERS_OF_FOUR_IN_PLANES: u32 = 8;
/// The same, in addition, of y in f32 and sums of more than 128 tokens, which spilled where rows are gathered, or of more than 48 in three
/// warp groups.
const OTHER_REGISTERS_OF_WIDE_Y: u32 = 12;
/// The same of a thread whose operands are not swapped: it has no fragments.
const OTHER_REGISTERS_UNSWAPPED: u32 = 32;
/// The same, in addition, of integers in three planes that multiply bytes, for each tile of rows.
const OTHER_REGISTERS_OF_PLANES: u32 = 22;
/// Registers of a thread of a block with one consumer.
const REGISTERS: u32 = 248;
/// Tokens of a block that only expert layers have: a single matrix of FP8 took 1.15 of the time that it takes with
/// 32, with programmatic launch, and 0.99 without.
const TOKENS_OF_STACKS_ALONE: u32 = 24;
/// The fewest tokens for which the schedule is the fastest.
const SERVED_FROM: u32 = 17;
/// The fewest slots of a token block of an expert layer for which the schedule is chosen, with any number of rows an expert
/// (docs/performance/experts.md): where codes are decoded,
const STACKED_FROM: u32 = 16;
/// where sums of such codes are integers, or floats of 8 bits are multiplied as they are stored,
const STACKED_BYTES_FROM: u32 = 32;
/// and where integers of 8 bits are: with 32 slots tiles took 0.92 to 0.98 of the time.
const STACKED_INTEGERS_FROM: u32 = 48;
/// Codes of fewer bits whose scales are in range take less time than in skinny products where experts have two rows on average, if
/// tiles of more than two warp groups are two waves, whole but for a tenth;
const FEW_ROWS: f64 = 2.0;
const FEW_WAVES: f64 = 2.0;
const FULL_WAVES: f64 = 0.9;
/// and where they have one, if rows are short, and the tiles that memory alone bounds are such waves (Qwen3-30B `ct_w4a16`: 0.97 of
/// the time; rows of 4096 columns, of Mixtral 8x7B: 1.04).
const ONE_ROW: f64 = 1.0;
/// The most blocks along the second axis of a grid.
const SECOND_AXIS: u32 = 65_535;

impl Schedule for WarpGroupTile {
    /// From the first M that no skinny product serves: the schedule was faster than a tile there
    /// (docs/performance/warp_group.md).
    fn serves(problem: &Problem, tokens: u32) -> bool {
        let problem = problem.of_warp_groups();
        let narrow = problem.plan.dequant.weight.code.bits() < 8;
        let stored = problem.half().is_none() && !narrow;
        let from = match (problem.stack, problem.sums_integers()) {
            (None, _) => SERVED_FROM,
            (Some(_), true) if stored => STACKED_INTEGERS_FROM,
            (Some(_), integers) if integers || stored => STACKED_BYTES_FROM,
            (Some(_), _) => STACKED_FROM,
        };
        tokens >= from && supported(&MainLoop::new(problem)).is_ok()
    }

    /// The fastest tile of the model.
    fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled> {
        let problem = problem.of_warp_groups();
        supported(&MainLoop::new(problem))?;
        let (schedule, target) = (Self::schedule(), problem.target().name);
        model::fastest(problem, tokens).ok_or(Unscheduled::NothingFits { schedule, target })
    }

    fn candidates(problem: &Problem, tokens: u32) -> Vec<Self> {
        let problem = problem.of_warp_groups();
        let tiles = Self::token_tiles(problem, tokens).into_iter();
        let blocks = match problem.stack {
            None => &[(1, 1), (2, 1), (2, 2), (3, 1)][..],
            Some(_) => &model::STACKED,
        };
        let all = tiles.flat_map(|own| blocks.iter().map(move |&block| (own, block)));
        let all = all.flat_map(|(own, block)| Self::variants(problem, own, block));
        let grids = [false, true].into_iter();
        let unswapped = grids.flat_map(|persistent| {
            let blocks = UNSWAPPED_GROUPS.map(|of| (of.0 * of.1 * ROWS, of)).into_iter();
            let ping_pong = [1, 2].map(|tiles| (tiles * ROWS, (2, tiles))).into_iter();
            let ping_pong = ping_pong.filter(|_| problem.stack.is_some());
            blocks.chain(ping_pong).filter_map(move |block| {
                Self::deepest_unswapped(problem, block, persistent, Self::is_launchable)
            })
        });
        let all = all.chain(unswapped);
        let all = all
            .filter(|tile| !tile.persistent || tile.tiles(problem, tokens) > model::AT_ONCE.into());
        all.flat_map(|tile| [1, 2, 4].map(|batch| Self { batch, ..tile }))
            .filter(|tile| tile.is_launchable(problem))
            .collect()
    }

    fn main_loop<'p>(&self, problem: &'p Problem) -> MainLoop<'p> {
        MainLoop::new(problem.of_warp_groups())
    }

    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled> {
        if main.instruction().is_none() {
            return Err(multiplies_otherwise::<Self>(main));
        }
        supported(main)?;
        let problem = main.problem;
        if self.unswapped {
            return self.check_unswapped(main);
        }
        let batches = matches!(self.parts, 1 | 2).then(|| Batches::of(main, self));
        let held = batches.as_ref().filter(|batches| batches.count().is_some());
        let held = held.map_or(2, Batches::held);
        let batches = batches.and_then(|batches| batches.count());
        let of_halves = |of: GroupParams| {
            of.of_k_tile(main.k_tile()) == 1
                || of.has_half_k_tiles(main) && problem.plan.scale.folded.is_some()
        };
        // A group has the same place among scales and terms.
        let mut bits =
            kinds(main).filter(|of| of.of_k_tile(main.k_tile()) > 1).map(|of| of.group_bits(main));
        let first = bits.next();
        let alike = bits.all(|bits| Some(bits) == first);
        let has_halves = main.segment() == main.k_tile() && kinds(main).all(of_halves) && alike;
        let sums = self.sum_registers(main);
        let rules = [
            (self.product(main).is_some(), ChoiceRule::WarpGroupTokens),
            (whole_token_tiles(problem, self.tokens), ChoiceRule::TokenTiles),
            ((1..=MOST_GROUPS).contains(&self.groups), ChoiceRule::WarpGroups),
            (matches!(self.row_tiles, 1 | 2), ChoiceRule::WarpGroupRows),
            (self.holds(main, sums), ChoiceRule::WarpGroupRegisters),
            (self.stages >= held, ChoiceRule::RingStages),
            (batches.is_some_and(|batches| batches >= 2), ChoiceRule::Batches),
            (
                self.parts == 1
                    || !self.exact
                        && has_halves
                        && main.k_tile_chunks().is_multiple_of(2)
                        && problem.input.bytes(main.k_tile() / 2).is_multiple_of(SHARED_BYTES),
                ChoiceRule::Parts,
            ),
            (
                !self.exact
                    || problem.scales_segments() && (self.row_tiles == 1 || exact_pairs(main)),
                ChoiceRule::ExactRows,
            ),
            (
                !self.exact || main.segment_steps().is_multiple_of(self.batch),
                ChoiceRule::ExactBatches,
            ),
            (self.exact || problem.may_scale_weights(), ChoiceRule::ScaledWeights),
            (problem.together() == 1 || self.row_tiles == 2, ChoiceRule::GatedRows),
            (self.shares_copies(problem), ChoiceRule::Multicast),
            (
                !self.persistent || self.splits == 1 && problem.stack.is_none(),
                ChoiceRule::Persistent,
            ),
            (
                self.splits == 1
                    || self.splits == 2
                        && problem.stack.is_none()
                        && self.tokens.is_multiple_of(2 * SWIZZLED_LINES)
                        && self.k_stages(main) >= 2
                        && problem.target().has(Feature::Cluster),
                ChoiceRule::Cluster,
            ),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(broken_rule(self, rule));
        }
        problem.refuse_dependent_launch(self.programmatic)
    }

    fn resources(&self, main: &MainLoop<'_>) -> Resources {
        Resources {
            threads: self.threads(main),
            min_blocks: 1,
            shared_bytes: self.shared_bytes(main),
            registers: self.registers_of(main.problem, self.sum_registers(main)),
            given_registers: Some(self.given_registers(main.problem)),
        }
    }

    /// Scales that elsewhere multiply sums may multiply weights here.
    fn rounds_scaled_weights(&self, problem: &Problem) -> bool {
        let problem = problem.of_warp_groups();
        let by_plan = problem.plan.scale.rounds_weights();
        by_plan || problem.scales_sums() && !self.exact
    }

    /// The most rows of x, in whole tiles, for which 32-bit lengths of x and y suffice.
    fn most_tokens(&self, problem: &Problem) -> u32 {
        let widest = problem.input.columns.max(problem.n);
        let blocks = (u32::MAX / widest / self.tokens.max(1)).clamp(1, SECOND_AXIS);
        blocks * self.tokens
    }

    fn block_tokens(&self) -> u32 {
        self.tokens
    }

    /// A block has whole groups of columns of h, as lines in shared memory, before it stores them: those of one tile of rows of y a warp
    /// group.
    fn writes_operand(&self, problem: &Problem) -> bool {
        let columns =
            problem.operand_of_y.as_deref().and_then(ActivationProblem::columns_of_vectors);
        let of_block = self.rows() / problem.together();
        let one_tile = self.row_tiles == problem.together() && self.splits == 1;
        let lines = !self.unswapped && one_tile && store::half_of(problem.output).is_some();
        lines && columns.is_some_and(|columns| of_block.is_multiple_of(columns))
    }

    /// Tensor copies read neighbouring rows.
    fn copies_token_blocks(&self, stack: Stack) -> bool {
        !stack.gathers()
    }

    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled> {
        let none = || multiplies_otherwise::<Self>(main);
        write(main, self.product(main).ok_or_else(none)?, *self)
    }
}

impl WarpGroupTile {
    /// The tiles of this size with each place of scales and each number of blocks that split K, the preferred
    /// ones first; of a single matrix those whose blocks persist too.
    fn variants(problem: &Problem, tokens: u32, block: (u32, u32)) -> Vec<Self> {
        let exact = match (problem.may_scale_weights(), problem.scales_segments()) {
            (true, false) => &[false][..],
            (true, true) => &[false, true],
            (false, _) => &[true],
        };
        let grids = [(1, false), (2, false), (1, true)];
        let grids = &grids[..if problem.stack.is_some() { 2 } else { 3 }];
        let all = exact.iter().flat_map(|&exact| grids.iter().map(move |&grid| (exact, grid)));
        let admits = Self::is_launchable;
        all.filter_map(|of| Self::deepest(problem, tokens, block, of, admits)).collect()
    }

    /// The tile with as many stages as are admitted, with a place of scales and a grid: blocks that split K, and whether they
    /// persist; `None` if none are. A model admits what [`Self::fits`], measuring what [`Self::is_launchable`].
    pub(super) fn deepest(
        problem: &Problem,
        tokens: u32,
        (groups, row_tiles): (u32, u32),
        (exact, (splits, persistent)): (bool, (u32, bool)),
        admits: impl Fn(&Self, &Problem) -> bool,
    ) -> Option<Self> {
        let batch = match tokens {
            // Measured: where scales are in constants 2 is faster with a single matrix, and slower in expert layers.
            ..=64 if exact || !problem.scales_in_range() || problem.stack.is_some() => 4,
            // The assembler spills with 2 there.
            65..=80 if problem.stack.is_some() && problem.sums_integers() => 4,
            ..=128 => 2,
            _ => 1,
        };
        let programmatic = problem.target().has(Feature::GridDependency);
        // Stages of half a k-tile where x is large. Whole ones, if three fit, where each half has to take scales apart (Q4_K in bf16 at M =
        // 1024: 173 us with three whole stages, 180 with five halves; in f16, where scales are one number, 175.8 and 174.2), and in expert
        // layers (Mixtral 8x7B, 144 slots, M = 512: 662 us, and 692 to 720 with six or seven halves).
        let whole_stages = problem.plan.scale.parts() == Some(2) || problem.stack.is_some();
        let parts: &[(u32, u32)] = match (tokens > 128, whole_stages) {
            (false, _) => &[(1, 2)],
            (true, true) => &[(1, ENOUGH_STAGES), (2, 2), (1, 2)],
            (true, false) => &[(2, 2), (1, 2)],
        };
        let tile = |(stages, batch, parts)| Self {
            tokens,
            groups,
            row_tiles,
            stages,
            parts,
            batch,
            splits,
            // Two were slower in every case measured (docs/performance/warp_group.md).
            multicast: 1,
            persistent,
            unswapped: false,
            exact,
            programmatic,
        };
        let smaller = [batch, 2, 1].into_iter().filter(|&other| other <= batch);
        let all = smaller.flat_map(|batch| parts.iter().map(move |&parts| (batch, parts)));
        let mut all = all.flat_map(|(batch, (parts, least))| {
            (least..=MOST_STAGES).rev().map(move |stages| (stages, batch, parts))
        });
        all.find_map(|choice| Some(tile(choice)).filter(|tile| admits(tile, problem)))
    }

    /// The rules of a tile whose operands are not swapped.
    fn check_unswapped(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled> {
        let problem = main.problem;
        let sums = self.sum_registers(main);
        let rules = [
            (unswapped_products(main), ChoiceRule::Unswapped),
            (
                self.exact && (self.parts, self.batch, self.splits) == (1, 1, 1),
                ChoiceRule::UnswappedChoices,
            ),
            (self.shares_copies(problem), ChoiceRule::Multicast),
            ((1..=MOST_GROUPS).contains(&self.groups), ChoiceRule::WarpGroups),
            (!self.persistent || problem.stack.is_none(), ChoiceRule::Persistent),
            (matches!(self.row_tiles, 1 | 2), ChoiceRule::WarpGroupRows),
            (
                (self.is_ping_pong(problem) || self.tokens == self.groups * self.row_tiles * ROWS)
                    && self.tokens <= MOST_TOKENS,
                ChoiceRule::UnswappedTokens,
            ),
            (self.holds(main, sums), ChoiceRule::WarpGroupRegisters),
            (self.stages >= 2, ChoiceRule::RingStages),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(broken_rule(self, rule));
        }
        problem.refuse_dependent_launch(self.programmatic)
    }

    /// The tile whose operands are not swapped with as many stages as are admitted, whose blocks persist or not; `None` if none
    /// are.
    pub(super) fn deepest_unswapped(
        problem: &Problem,
        (tokens, (groups, row_tiles)): (u32, (u32, u32)),
        persistent: bool,
        admits: impl Fn(&Self, &Problem) -> bool,
    ) -> Option<Self> {
        let depths = (2..=MOST_UNSWAPPED_STAGES).rev();
        let mut all = depths.map(|stages| Self {
            tokens,
            groups,
            row_tiles,
            stages,
            parts: 1,
            batch: 1,
            splits: 1,
            multicast: 1,
            persistent,
            unswapped: true,
            exact: true,
            programmatic: problem.target().has(Feature::GridDependency),
        });
        all.find(|tile| admits(tile, problem))
    }

    /// Whether copies of x are shared by as many blocks as can.
    fn shares_copies(&self, problem: &Problem) -> bool {
        self.multicast == 1
            || self.multicast == 2
                && self.splits == 1
                && problem.stack.is_none()
                && self.tokens.is_multiple_of(2 * SWIZZLED_LINES)
                && problem.target().has(Feature::Cluster)
    }

    /// Tokens of a block that the products of a problem may have: N of the warp-group instructions for its elements,
    /// ascending.
    pub(in crate::schedule) fn token_counts(problem: &Problem) -> Vec<u32> {
        let problem = problem.of_warp_groups();
        let element = element(problem);
        let ops = MATRIX_OPS.iter().filter(|op| {
            op.scope == MatrixScope::WarpGroup && op.shape[0] == ROWS && Some(op.a) == element
        });
        let counts = ops.map(|op| op.shape[1]);
        let mut counts: Vec<u32> =
            counts.filter(|&tokens| whole_token_tiles(problem, tokens)).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// The fewest slots of a token block that are worth having where rows fill fewer: those of bytes as they are stored, which
    /// decoding does not bound, or all that the products may have.
    pub(in crate::schedule) fn fewest_slots(problem: &Problem) -> Option<u32> {
        let counts = Self::token_counts(problem);
        let own = problem.of_warp_groups();
        let stored = own.half().is_none() && own.plan.dequant.weight.code.bits() == 8;
        let from = if stored && !own.sums_integers() { STACKED_BYTES_FROM } else { 0 };
        counts.into_iter().find(|&slots| slots >= from)
    }

    /// Tokens of a block worth comparing for M tokens: those of the fewest blocks, and of twice as many, that leave the
    /// fewest tokens over; where scales multiply sums, whose registers the most tokens leave no room for, those of a third
    /// more blocks.
    pub(super) fn token_tiles(problem: &Problem, tokens: u32) -> Vec<u32> {
        let mut counts = Self::token_counts(problem);
        counts.retain(|&count| problem.stack.is_some() || count != TOKENS_OF_STACKS_ALONE);
        let Some(&most) = counts.last() else { return Vec::new() };
        let fewest = tokens.div_ceil(most).max(1);
        let of_blocks = |blocks: u32| {
            let each = tokens.div_ceil(blocks);
            counts.iter().copied().find(|&count| count >= each)
        };
        let third = (!problem.may_scale_weights()).then(|| (4 * fewest).div_ceil(3));
        let blocks = [Some(fewest), third, Some(2 * fewest)].into_iter().flatten();
        let mut tiles: Vec<u32> = blocks.filter_map(of_blocks).collect();
        tiles.dedup();
        tiles
    }

    /// Whether the schedule is the fastest for experts with so many rows on average, in token blocks of so many slots.
    pub(in crate::schedule) fn serves_experts(problem: &Problem, slots: u32, rows: f64) -> bool {
        if Self::serves(problem, slots) {
            return true;
        }
        let own = problem.of_warp_groups();
        let few = own.scales_in_range() && own.plan.dequant.weight.code.bits() < 8;
        let Some(stack) = own.stack.filter(|_| few && rows >= ONE_ROW) else { return false };
        if supported(&MainLoop::new(own)).is_err() {
            return false;
        }
        let met = f64::from(stack.experts) * (1.0 - (-rows).exp());
        let whole = |tile: Self| {
            let waves = met * f64::from(tile.row_blocks(own)) / f64::from(model::AT_ONCE);
            waves >= FEW_WAVES && waves / waves.ceil() >= FULL_WAVES
        };
        match model::shared_out(own, slots, stack) {
            Some(small) => whole(small),
            None => model::fastest(own, slots)
                .is_some_and(|tile| rows >= FEW_ROWS && tile.groups > 2 && whole(tile)),
        }
    }

    /// Microseconds of an expert layer's product with so many slots a token block, if each expert has one, by the model;
    /// `None` if no tile fits.
    pub(in crate::schedule) fn microseconds(problem: &Problem, slots: u32) -> Option<f64> {
        model::microseconds_of_stack(problem.of_warp_groups(), slots)
    }

    /// The instruction that multiplies 64 rows by the tokens, whose A is, warp by warp, that of the plan's own; or 64 tokens by rows.
    fn product(&self, main: &MainLoop<'_>) -> Option<&'static MatrixOp> {
        let element = element(main.problem)?;
        let of_warp = main.instruction()?.a_layout.trim_end_matches(']');
        let of_group = format!("{of_warp}, n/16:4]");
        MATRIX_OPS.iter().find(|op| {
            op.scope == MatrixScope::WarpGroup
                && op.shape[0] == ROWS
                && op.shape[1] == if self.unswapped { UNSWAPPED_ROWS } else { self.tokens }
                && op.a == element
                && op.a_layout == of_group
                && main.problem.target().has(op.needs)
        })
    }

    /// Threads of a block: consumers and the producer.
    pub(super) fn threads(&self, main: &MainLoop<'_>) -> u32 {
        let gpu = main.problem.target().gpu;
        let group = gpu.map_or(0, |gpu| gpu.warp * gpu.warp_group.unwrap_or(1));
        (self.groups + 1) * group
    }

    /// Rows of w of a block.
    pub(super) const fn rows(&self) -> u32 {
        if self.unswapped { UNSWAPPED_ROWS } else { self.groups * self.row_tiles * ROWS }
    }

    /// Whether each of two warp groups has tiles of its own, in an expert layer.
    pub(super) fn is_ping_pong(&self, problem: &Problem) -> bool {
        let own = self.unswapped && self.groups == 2 && self.tokens == self.row_tiles * ROWS;
        own && problem.stack.is_some()
    }

    /// Whether a block has one tile after another.
    pub(super) const fn persists(&self, problem: &Problem) -> bool {
        self.persistent || problem.stack.is_some()
    }

    /// Tokens whose lines of y are in shared memory at once: all that a block stores, or half of 128 or more if blocks of a single
    /// matrix persist, whose y has memory of its own beside the ring. A half is whole stores of 16 tokens, or there are none.
    pub(super) fn tokens_of_lines(&self, problem: &Problem) -> u32 {
        let all = self.tokens / self.splits;
        let halves = problem.stack.is_none() && self.persistent && all >= 128;
        if halves && all.is_multiple_of(4 * SWIZZLED_LINES) { all / 2 } else { all }
    }

    /// Stages of all of K.
    pub(super) fn k_stages(&self, main: &MainLoop<'_>) -> u32 {
        main.problem.k.div_ceil(main.k_tile() / self.parts.max(1))
    }

    /// Blocks along the rows: in whole clusters.
    pub(super) fn row_blocks(&self, problem: &Problem) -> u32 {
        problem.grid_rows().div_ceil(self.rows()).next_multiple_of(self.multicast)
    }

    /// Tiles of a single matrix for M tokens: blocks of a launch that do not persist.
    pub(super) fn tiles(&self, problem: &Problem, tokens: u32) -> u64 {
        let rows = self.row_blocks(problem) * self.splits;
        u64::from(rows) * u64::from(tokens.div_ceil(self.tokens))
    }

    /// Blocks of a cluster.
    pub(super) const fn cluster(&self) -> u32 {
        self.splits * self.multicast
    }

    /// Registers of a thread that multiplies, and of one of the producer; `None` if a block has as many as
    /// there are anyway. Their sum over warps is what a block gets at launch.
    /// Lanes that copy rows of x have more.
    pub(super) fn registers(&self, problem: &Problem) -> [Option<u32>; 2] {
        match (self.groups, problem.stack.is_some_and(Stack::gathers)) {
            (2, true) => [Some(224), Some(56)],
            (2, false) => [Some(232), Some(40)],
            (3, true) => [Some(144), Some(80)],
            (3, false) => [Some(160), Some(32)],
            (4, _) => [Some(104), Some(64)],
            _ => [None, None],
        }
    }

    /// Registers of a consumer's thread: those that its role is given, or those of the launch.
    fn given_registers(&self, problem: &Problem) -> u32 {
        self.registers(problem)[0].unwrap_or(REGISTERS)
    }

    /// Registers of a thread for the sums of a tile of rows; as many as there are numbers without a product.
    fn sum_registers(&self, main: &MainLoop<'_>) -> u32 {
        self.product(main).map_or(u32::MAX, |product| {
            product.registers(main.problem.target().gpu.map_or(32, |gpu| gpu.warp))[2]
        })
    }

    /// Whether a consumer's thread has registers for its sums, and for one instruction those that it has at the launch (ptxas
    /// C7602): it is compiled before roles have theirs. Where operands are not swapped, whose threads have little besides sums, for that
    /// too: three groups have no room for it where the producer's lanes copy rows.
    fn holds(&self, main: &MainLoop<'_>, sums: u32) -> bool {
        let share = main.problem.target().gpu.map_or(0, |gpu| gpu.registers / self.threads(main));
        let others = if self.unswapped { OTHER_REGISTERS_UNSWAPPED } else { 0 };
        let needed = self.sums_of(sums).saturating_add(others);
        needed <= self.given_registers(main.problem) && sums < (share & !7)
    }

    /// Registers for all sums of a consumer's thread: of each tile of rows, and of a segment where scales multiply sums.
    const fn sums_of(&self, sums: u32) -> u32 {
        sums.saturating_mul(self.row_tiles + self.exact as u32)
    }

    /// Registers of a consumer's thread, of which a tile of rows has so many of sums: an estimate, from the assembler's reports.
    fn registers_of(&self, problem: &Problem, sums: u32) -> u32 {
        let all = self.sums_of(sums);
        if self.unswapped {
            return all.saturating_add(OTHER_REGISTERS_UNSWAPPED);
        }
        // Scales of tokens, half as many as a tile's sums, take half of their registers from the others.
        let along_k = problem.input.scale.and_then(InputScale::columns).is_some();
        let of_tokens = if along_k { sums / 4 } else { 0 };
        let one_plane = problem.plan.native.plane_words.len() == 1;
        let three_planes = problem.joins_to_bytes() && problem.plan.dequant.planes.len() > 2;
        let of_planes = if three_planes { OTHER_REGISTERS_OF_PLANES * self.row_tiles } else { 0 };
        let others = match problem.stack {
            None if multiplies_nibbles_as_floats(problem) => OTHER_REGISTERS_OF_NIBBLES,
            Some(_) if self.groups > 3 && one_plane => OTHER_REGISTERS_OF_FOUR,
            Some(_) if self.groups > 3 && self.row_tiles > 1 && self.tokens > 16 => {
                OTHER_REGISTERS + OTHER_REGISTERS_OF_FOUR_IN_PLANES
            }
            Some(_)
                if (self.tokens > 128 || self.groups > 2 && self.tokens > 48)
                    && store::half_of(problem.output).is_none() =>
            {
                OTHER_REGISTERS + OTHER_REGISTERS_OF_WIDE_Y
            }
            _ => OTHER_REGISTERS,
        };
        all.saturating_add(of_tokens).saturating_add(2 * 4 * self.batch + others + of_planes)
    }

    /// Bytes of shared memory of a block.
    fn shared_bytes(&self, main: &MainLoop<'_>) -> u32 {
        const ALIGN: u32 = 1024;
        let native = self.rows() / main.problem.plan.native.rows;
        let barriers = (2 * 8 * self.stages).next_multiple_of(ALIGN);
        let y = match store::half_of(main.problem.output) {
            Some(_) if self.unswapped => y_lines::words(self.groups, ROWS),
            Some(_) => y_lines::words(self.groups, self.tokens_of_lines(main.problem)),
            None => 0,
        };
        let threads = self.threads(main) / (self.groups + 1) * self.groups;
        let sums = self.product(main).map_or(0, |product| {
            product.registers(main.problem.target().gpu.map_or(32, |gpu| gpu.warp))[2]
        });
        let exchange = match self.splits {
            1 => 0,
            _ => exchange::words(threads, sums * self.row_tiles),
        };
        let pairs = match main.problem.stack {
            Some(stack) => pairs::words(stack, (self.groups, self.tokens)),
            None => 0,
        };
        let ring = (self.stages, (self.tokens, self.parts));
        let ring = ring_bytes(main, ring, native, (self.persists(main.problem), y, exchange));
        // Parts begin at lines whose swizzle begins anew.
        (barriers + ring + 4 * (Table::words(main.problem) + pairs)).next_multiple_of(ALIGN)
    }

    /// The steps from sums to y.
    pub(super) fn finish(&self, problem: &Problem) -> Vec<EpilogueOp> {
        let mut ops = EpilogueOp::list(problem, true);
        // Elsewhere these scales multiply sums, and have that power of two.
        let (_, exponent) = problem.plan.dequant.encoding();
        let exponent = problem.exponent() + exponent - problem.scaled_exponent();
        if problem.scales_sums() && !self.exact && exponent != 0 {
            ops.insert(0, EpilogueOp::Multiply(2f32.powi(exponent)));
        }
        ops
    }

    /// The shape's part of a kernel's name.
    pub(super) fn label(&self) -> String {
        let Self { tokens, groups, row_tiles, stages, batch, .. } = self;
        let half = if self.parts > 1 { "h" } else { "" };
        let several =
            |sign, blocks| if blocks > 1 { format!("{sign}{blocks}") } else { String::new() };
        let (split, shared) = (several("k", self.splits), several("c", self.multicast));
        let exact = if self.exact { "x" } else { "" };
        let several_tiles = if self.persistent { "t" } else { "" };
        let unswapped = if self.unswapped { "u" } else { "" };
        let early = if self.programmatic { "p" } else { "" };
        format!(
            "warp_group_m{tokens}g{groups}r{row_tiles}s{stages}{half}b{batch}{split}{shared}{several_tiles}{unswapped}{exact}{early}"
        )
    }
}
