//! The free choices of a tile kernel, and the model that chooses them.

use super::{ring, tile};
use crate::ir::{Half, Kernel};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::choices::choices;
use crate::schedule::constants::Constants;
use crate::schedule::epilogue::ORDER;
use crate::schedule::interface::{
    FreeChoices, Resources, Schedule, broken_rule, multiplies_otherwise,
};
use crate::schedule::mapping::MainLoop;
use crate::schedule::problem::Problem;
use crate::schedule::table::Table;
use crate::schedule::unscheduled::{ChoiceRule, Unscheduled, UnscheduledPart};
use crate::target::{Class, Feature};

choices! {
    /// The free choices of a tile kernel.
    "tile": pub struct TileShape {
        /// Rows of x per block: 16, 32, 64 or 128.
        pub tokens: u32,
        /// Rows of w per block: 16, 32 or 64 per warp.
        pub rows: u32,
        /// Warps per block.
        pub warps: u32,
        /// Blocks that have to fit on an SM; bounds the registers.
        pub min_blocks: u32,
        /// Stages of the ring, the one in use included.
        pub stages: u32,
        /// Blocks that split K.
        pub splits: u32,
        /// Programmatic dependent launch: the kernel may start before the previous one ends.
        pub programmatic: bool,
    }
}

/// Block sizes to choose from: rows, warps, blocks per SM.
const BLOCKS: &[(u32, u32, u32)] =
    &[(256, 8, 1), (128, 8, 2), (128, 4, 2), (64, 4, 2), (64, 2, 2), (32, 2, 2)];
/// One more if a k-tile has several segments: one tile of rows per warp, and registers for all segments.
const BLOCK_OF_SEGMENTS: (u32, u32, u32) = (128, 8, 1);
/// SMs of a large device, slightly fewer than the 132 of an H200: a power of two leaves no remainder.
const SMS: u32 = 128;
/// The fewest columns of a block with which filling the ring does not dominate: four k-tiles of the
/// usual length.
const FEWEST_COLUMNS: u32 = 512;
/// The fewest k-tiles of a block, if k-tiles are short.
const FEWEST_K_ITERS: u32 = 4;
/// Up to this many tokens blocks are small, and twice as many as fit on all SMs: with so little to
/// multiply a block waits more than it computes (docs/performance/skinny.md).
const FEW: u32 = 32;
/// Rows of a small block.
const SMALL: u32 = 64;
/// The most blocks along the second axis of a grid.
const SECOND_AXIS: u32 = 65_535;
/// The most registers of a thread.
const MOST_REGISTERS: u32 = 255;
/// Stages beyond which a ring hides nothing more.
const MOST_STAGES: u32 = 4;
/// The most registers of a thread for x of a segment at once: of interleaved tiles of 16-bit x on targets
/// whose fragments have no element twice. Where waves of 32 lanes hold tiles of 16 tokens (RDNA), fewer
/// tiles are interleaved.
const MOST_X: u32 = 64;
/// The most registers of a thread for parameters that may be live from segment to segment.
const MOST_PARAMETERS: u32 = 48;
/// Independent products that keep a warp's share of the matrix unit busy.
const CHAINS: u32 = 4;

/// The fewest tokens for which tiles are worth measuring: fewer than the largest M of a skinny product.
const MEASURED_FROM: u32 = 9;

/// The most splits of K.
fn most_splits(main: &MainLoop<'_>) -> u32 {
    let fewest = FEWEST_K_ITERS.min(FEWEST_COLUMNS / main.k_tile()).max(1);
    (main.k_iters() / fewest).max(1)
}

/// Registers of a thread for the group parameters of a tile of rows in a k-tile, as they are loaded.
fn parameters(main: &MainLoop<'_>) -> u32 {
    main.problem.group_params().map(|(_, of)| of.lane_words(main)).sum()
}

impl Schedule for TileShape {
    fn serves(problem: &Problem, _tokens: u32) -> bool {
        problem.by_matrix()
    }

    /// The shape for a number of tokens.
    ///
    /// Few tokens are one block wide, so that w is read once; from 64 tokens on blocks are 64 wide,
    /// which with 32 rows per warp is what registers allow. L2 traffic decides the rest: every block
    /// reads its tokens' x, so that more rows are better; if there are then too few blocks for all SMs,
    /// K is split, which costs the sums of each part.
    fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled> {
        let main = &MainLoop::new(problem);
        if tokens == 0 {
            return Err(Unscheduled::Shape {
                what: "M",
                value: tokens,
                rule: "expected 1 or more",
            });
        }
        let of_segments = (main.segment() < main.k_tile()).then_some(&BLOCK_OF_SEGMENTS);
        let largest = |tokens: u32, block: (u32, u32, u32)| {
            let stages = (2..=MOST_STAGES).rev();
            let shapes = stages.map(|stages| Self::whole(main, tokens, block, stages));
            shapes.into_iter().find(|shape| shape.fits(problem))
        };
        // If an SM has too little shared memory: one block per SM, then fewer tokens.
        let together = BLOCKS.iter().chain(of_segments).filter_map(|&block| largest(tokens, block));
        let mut fitting: Vec<Self> = together.collect();
        for fewer in [tokens, 32, 16].into_iter().filter(|&fewer| fewer <= tokens) {
            if fitting.is_empty() {
                let alone = BLOCKS.iter().map(|&(rows, warps, _)| (rows, warps, 1));
                fitting = alone.filter_map(|block| largest(fewer, block)).collect();
            }
        }
        let split = fitting.into_iter().map(|shape| {
            let most = most_splits(main);
            let splits = shape.wanted() / shape.blocks(main, tokens).max(1);
            Self { splits: (splits as u32).clamp(1, most), ..shape }
        });
        // Large blocks for few tokens only if no small block fits.
        let large = |shape: &Self| tokens <= FEW && shape.rows > SMALL;
        let cost = |shape: &Self| shape.cost(main, tokens);
        let cheapest = split.min_by(|one, other| {
            large(one).cmp(&large(other)).then(cost(one).total_cmp(&cost(other)))
        });
        let (schedule, target) = (Self::schedule(), main.problem.target().name);
        cheapest.ok_or(Unscheduled::NothingFits { schedule, target })
    }

    /// Shapes worth measuring: those that fit, without split-K or with enough k-tiles per block.
    fn candidates(problem: &Problem, tokens: u32) -> Vec<Self> {
        let main = &MainLoop::new(problem);
        if !Self::serves(problem, tokens) || tokens < MEASURED_FROM {
            return Vec::new();
        }
        let mut all = Vec::new();
        for &block in BLOCKS.iter().chain([&BLOCK_OF_SEGMENTS]) {
            for stages in 2..=MOST_STAGES {
                let whole = Self::whole(main, tokens, block, stages);
                let most = most_splits(main);
                let splits = [1, 2, 3, 4, 6, 8].into_iter().filter(|splits| *splits <= most);
                all.extend(splits.map(|splits| Self { splits, ..whole }));
            }
        }
        // More blocks than that only add sums.
        let few = |shape: &Self| {
            let blocks = shape.blocks(main, tokens) * u64::from(shape.splits);
            shape.splits == 1 || blocks <= 2 * u64::from(SMS * shape.min_blocks)
        };
        all.retain(|shape| few(shape) && shape.is_launchable(problem));
        all
    }

    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled> {
        if main.instruction().is_none() {
            return Err(multiplies_otherwise::<Self>(main));
        }
        let native = &main.problem.plan.native;
        if !main.problem.input.bytes(main.k_tile()).is_multiple_of(SHARED_BYTES) {
            let part = UnscheduledPart::KTiles(main.k_tile());
            return Err(Unscheduled::Scheme { target: main.problem.target().name, part });
        }
        let threads = self.warps * main.problem.target().gpu.map_or(0, |gpu| gpu.warp);
        let apart = ring::swizzle(main).and_then(|swizzle| swizzle.apart(main, threads));
        let copies = apart.is_some_and(|apart| self.tokens.is_multiple_of(apart));
        let per_warp = self.warps > 0
            && self.rows.is_multiple_of(self.warps * native.rows)
            && matches!(self.row_tiles(main), 1 | 2 | 4);
        let tiles = self.warps * self.row_tiles(main);
        let rules = [
            (tiles.is_multiple_of(main.problem.together()), ChoiceRule::Together),
            (matches!(self.tokens, 16 | 32 | 64 | 128), ChoiceRule::TileTokens),
            (per_warp, ChoiceRule::WarpRows),
            (self.min_blocks > 0, ChoiceRule::AnyBlock),
            (copies, ChoiceRule::Copies),
            ((2..=16).contains(&self.stages), ChoiceRule::Stages),
            ((1..=main.k_iters()).contains(&self.splits), ChoiceRule::Splits),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(broken_rule(self, rule));
        }
        main.problem.refuse_dependent_launch(self.programmatic)
    }

    fn resources(&self, main: &MainLoop<'_>) -> Resources {
        let constants = Constants::words(main.problem, self.rows, self.tokens);
        let table = Table::words(main.problem);
        let registers = self.registers(main);
        Resources {
            threads: self.warps * main.problem.target().gpu.map_or(0, |gpu| gpu.warp),
            min_blocks: self.min_blocks,
            shared_bytes: 4 * (ring::words(*self, main) + constants + ORDER + table),
            // No thread has more.
            registers: if registers > MOST_REGISTERS { u32::MAX } else { registers },
            given_registers: None,
        }
    }

    /// The most rows of x, in whole tiles, for which 32-bit indices of x, y and the sums of a split K
    /// suffice.
    fn most_tokens(&self, problem: &Problem) -> u32 {
        let padded = u64::from(self.row_blocks(problem)) * u64::from(self.rows);
        let sums = if self.splits > 1 { padded * u64::from(self.splits) } else { padded };
        let widest = sums.max(u64::from(problem.input.columns));
        let most = u64::from(u32::MAX) / widest / u64::from(self.tokens) * u64::from(self.tokens);
        u32::try_from(most).unwrap_or(u32::MAX).max(self.tokens)
    }

    fn block_tokens(&self) -> u32 {
        self.tokens
    }

    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled> {
        tile(main, *self)
    }
}

impl TileShape {
    /// A shape with this block size (rows, warps, blocks per SM) and number of stages, without split-K.
    fn whole(
        main: &MainLoop<'_>,
        tokens: u32,
        (rows, warps, min_blocks): (u32, u32, u32),
        stages: u32,
    ) -> Self {
        Self {
            tokens: tokens.checked_next_power_of_two().unwrap_or(64).clamp(16, 64),
            rows,
            warps,
            min_blocks,
            stages,
            splits: 1,
            programmatic: main.problem.target().has(Feature::GridDependency),
        }
    }

    /// The blocks that fill all SMs of a large device; twice as many for small blocks.
    fn wanted(&self) -> u64 {
        let waves = if self.tokens <= FEW { 2 } else { 1 };
        u64::from(SMS * self.min_blocks * waves)
    }

    /// Blocks without split-K.
    fn blocks(&self, main: &MainLoop<'_>, tokens: u32) -> u64 {
        u64::from(self.row_blocks(main.problem)) * u64::from(tokens.div_ceil(self.tokens))
    }

    /// L2 traffic in bytes, scaled as if each SM with a block had a constant share of the L2 bandwidth:
    /// w and x of each block; with split-K, sums of 4 bytes that are written and read.
    fn cost(&self, main: &MainLoop<'_>, tokens: u32) -> f64 {
        let (n, k) = (f64::from(main.problem.n), f64::from(main.problem.k));
        let token_blocks = f64::from(tokens.div_ceil(self.tokens));
        let padded = token_blocks * f64::from(self.tokens);
        let w =
            token_blocks * n * k * f64::from(main.problem.plan.dequant.weight.code.bits()) / 8.0;
        let x = f64::from(main.problem.input.operand.stored_bits()) / 8.0
            * padded
            * k
            * f64::from(self.row_blocks(main.problem));
        let sums = if self.splits > 1 { 8.0 * f64::from(self.splits) * padded * n } else { 0.0 };
        let blocks = self.blocks(main, tokens) * u64::from(self.splits);
        (w + x + sums) * (self.wanted() as f64 / blocks as f64).max(1.0)
    }

    /// Tiles of rows of a warp.
    pub(super) fn row_tiles(&self, main: &MainLoop<'_>) -> u32 {
        self.rows / (self.warps * main.problem.plan.native.rows).max(1)
    }

    /// Blocks along the rows.
    pub(super) fn row_blocks(&self, problem: &Problem) -> u32 {
        problem.grid_rows().div_ceil(self.rows)
    }

    /// Whether rows are the first axis of the grid, which alone has room for so many blocks.
    pub(super) fn rows_first(&self, main: &MainLoop<'_>) -> bool {
        self.row_blocks(main.problem) > SECOND_AXIS
    }

    /// Tiles of tokens whose instructions are interleaved.
    pub(super) fn together(&self, main: &MainLoop<'_>) -> u32 {
        let x = main.step_registers() * main.segment_steps();
        (CHAINS / self.row_tiles(main)).min(MOST_X / x).max(1)
    }

    /// Whether the target's compiler is held to one segment after another. Parameters of all segments are loaded
    /// before the first: if they are many, the compiler rather computes each where it is needed.
    pub(super) fn segments_in_turn(&self, main: &MainLoop<'_>) -> bool {
        self.row_tiles(main) * parameters(main) <= MOST_PARAMETERS
    }

    /// Registers of a thread below which the assembler spills, from its reports: the accumulators, A of
    /// a k-tile, and values in flight. If a k-tile has several segments as wide as a lane's loads of x,
    /// all of them are in flight at once, each with its parameters; bf16, older targets and codes that
    /// are assembled from several words then also need more constants.
    fn registers(&self, main: &MainLoop<'_>) -> u32 {
        let tiles = self.row_tiles(main);
        let held = &main.lanes();
        let sums = held.d.registers.len() as u32 * tiles * self.tokens / main.token_tile();
        let a = tiles * held.a.registers as u32 * main.k_tile() / main.step();
        let segments = main.k_tile() / main.segment();
        let wide = main.problem.input.bytes(main.lane_columns()) >= 16;
        let of_segments = if segments > 1 && wide {
            let f16 = main.problem.half() == Some(Half::F16);
            let placed = main.problem.plan.dequant.placed().is_some();
            let few = f16 && !placed && main.problem.target().class == Class::Hopper;
            14 * parameters(main) + if few { 0 } else { 7 * segments }
        } else {
            0
        };
        let all = sums + a + 72 + of_segments + main.compiled(tiles * self.together(main));
        // The estimate exceeds what one tile of rows needs, which always fits.
        if tiles == 1 { all.min(MOST_REGISTERS) } else { all }
    }

    /// The shape's part of a kernel's name.
    pub(super) fn label(&self) -> String {
        let Self { tokens, rows, warps, min_blocks, stages, splits, programmatic } = self;
        let split = if *splits > 1 { format!("k{splits}") } else { String::new() };
        let early = if *programmatic { "p" } else { "" };
        format!("tile_m{tokens}r{rows}w{warps}b{min_blocks}s{stages}{split}{early}")
    }
}
