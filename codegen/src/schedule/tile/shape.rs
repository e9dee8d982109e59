//! The free choices of a tile kernel, and the ones that are good.

use super::{ring, tile};
use crate::ir::{Half, Kernel};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::choices::choices;
use crate::schedule::constants::Constants;
use crate::schedule::epilogue::ORDER;
use crate::schedule::interface::{Resources, Schedule, multiplies_otherwise};
use crate::schedule::mapping::MainLoop;
use crate::schedule::problem::{Problem, Unscheduled};
use crate::schedule::table::Table;
use crate::target::{Class, Feature};

choices! {
    /// The free choices of a tile kernel.
    "tile": pub struct TileShape {
        /// Rows of x a block: 16, 32, 64 or 128.
        pub tokens: u32,
        /// Rows of w a block: 16, 32 or 64 a warp.
        pub rows: u32,
        /// Warps a block.
        pub warps: u32,
        /// Blocks that share a multiprocessor; bounds the registers.
        pub min_blocks: u32,
        /// K-tiles in the ring, the one in use included.
        pub stages: u32,
        /// Blocks that split K.
        pub splits: u32,
        /// May start before the kernel before it has ended.
        pub programmatic: bool,
    }
}

/// Blocks to choose from: rows, warps, and how many share a processor.
const BLOCKS: &[(u32, u32, u32)] =
    &[(256, 8, 1), (128, 8, 2), (128, 4, 2), (64, 4, 2), (64, 2, 2), (32, 2, 2)];
/// One more where a k-tile has several segments: a tile of rows a warp, and registers for all of them.
const BLOCK_OF_SEGMENTS: (u32, u32, u32) = (128, 8, 1);
/// Processors of a large device, a little fewer than the 132 of an H200: a power of two leaves no
/// rest.
const PROCESSORS: u32 = 128;
/// Columns that a block should have at least, so that filling its ring is not most of its time: four
/// k-tiles of the usual length.
const FEWEST_COLUMNS: u32 = 512;
/// And k-tiles, where these are short.
const FEWEST_K_ITERS: u32 = 4;
/// Tokens up to which blocks are small, and twice as many as the processors hold at once: with so
/// little to multiply a block waits more than it computes (docs/performance/skinny.md).
const FEW: u32 = 32;
/// Rows of a small block.
const SMALL: u32 = 64;
/// Blocks along the second axis of a grid at most.
const SECOND_AXIS: u32 = 65_535;
/// Registers of a thread.
const MOST_REGISTERS: u32 = 255;
/// Stages beyond which a ring hides nothing more.
const MOST_STAGES: u32 = 4;
/// Independent products that keep a warp's share of the matrix unit busy.
const CHAINS: u32 = 4;

/// Tokens from which tiles are worth measuring: fewer than the most that a skinny product takes.
const MEASURED_FROM: u32 = 9;

/// Parts into which K is split at most.
fn most_splits(main: &MainLoop<'_>) -> u32 {
    let fewest = FEWEST_K_ITERS.min(FEWEST_COLUMNS / main.k_tile()).max(1);
    (main.k_iters() / fewest).max(1)
}

impl Schedule for TileShape {
    fn serves(problem: &Problem, _tokens: u32) -> bool {
        problem.by_matrix()
    }

    /// The shape for a number of tokens.
    ///
    /// Few tokens are one block wide, so that w is read once; from 64 on blocks are 64 wide, which
    /// with 32 rows a warp is what registers hold. The rest is decided by what passes through the
    /// second cache: every block reads its tokens' x, so that more rows are better; and where blocks
    /// are then too few for all processors K is split, which costs the sums of each part.
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
        // Where a processor has too little shared memory, one block at a time, then of fewer tokens.
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
        // Of few tokens only if no small block fits.
        let large = |shape: &Self| tokens <= FEW && shape.rows > SMALL;
        let cost = |shape: &Self| shape.cost(main, tokens);
        let cheapest = split.min_by(|one, other| {
            large(one).cmp(&large(other)).then(cost(one).total_cmp(&cost(other)))
        });
        cheapest.ok_or_else(|| {
            Unscheduled::Tile(format!("no tile of a product fits {}", main.problem.target()))
        })
    }

    /// Shapes that are worth measuring: those that fit, K whole or in parts that leave a block k-tiles
    /// enough.
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
        // More blocks than that are only more sums.
        let few = |shape: &Self| {
            let blocks = shape.blocks(main, tokens) * u64::from(shape.splits);
            shape.splits == 1 || blocks <= 2 * u64::from(PROCESSORS * shape.min_blocks)
        };
        all.retain(|shape| few(shape) && shape.fits(problem));
        all
    }

    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled> {
        if main.instruction().is_none() {
            return Err(multiplies_otherwise::<Self>(main));
        }
        let native = &main.problem.plan.native;
        if !main.problem.input.bytes(main.k_tile()).is_multiple_of(SHARED_BYTES) {
            let what = format!("turns of {} columns in a tile", main.k_tile());
            return Err(Unscheduled::Scheme { target: main.problem.target().name, what });
        }
        let threads = self.warps * main.problem.target().gpu.map_or(0, |gpu| gpu.warp);
        let apart = ring::swizzle(main).and_then(|swizzle| swizzle.apart(main, threads));
        let copies = apart.is_some_and(|apart| self.tokens.is_multiple_of(apart));
        let per_warp = self.warps > 0
            && self.rows.is_multiple_of(self.warps * native.rows)
            && matches!(self.row_tiles(main), 1 | 2 | 4);
        let rules = [
            (matches!(self.tokens, 16 | 32 | 64 | 128), "tokens are 16, 32, 64 or 128"),
            (per_warp, "a warp has 16, 32 or 64 rows"),
            (self.min_blocks > 0, "there is at least a block"),
            (copies, "the threads copy turns of whole tokens, at once a part of the block's"),
            ((2..=16).contains(&self.stages), "stages are 2 to 16"),
            (
                (1..=main.k_iters()).contains(&self.splits),
                "K is split into at most as many parts as it has groups",
            ),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(Unscheduled::Tile(format!("{self:?}: {rule}")));
        }
        main.problem.may_start_early(self.programmatic)
    }

    fn resources(&self, main: &MainLoop<'_>) -> Resources {
        let constants = Constants::words(main.problem, self.rows, self.tokens);
        let table = Table::words(main.problem);
        let registers = self.registers(main);
        Resources {
            threads: self.warps * main.problem.target().gpu.map_or(0, |gpu| gpu.warp),
            min_blocks: self.min_blocks,
            shared_bytes: 4 * (ring::words(*self, main) + constants + ORDER + table),
            // No thread has more than that.
            registers: if registers > MOST_REGISTERS { u32::MAX } else { registers },
        }
    }

    /// The most rows of x, whole tiles, whose elements are numbered in 32 bits: of x and y, and of
    /// the sums that blocks which split K leave behind.
    fn most_tokens(&self, problem: &Problem) -> u32 {
        let padded = u64::from(self.row_blocks(problem)) * u64::from(self.rows);
        let sums = if self.splits > 1 { padded * u64::from(self.splits) } else { padded };
        let widest = sums.max(u64::from(problem.input.columns));
        let most = u64::from(u32::MAX) / widest / u64::from(self.tokens) * u64::from(self.tokens);
        u32::try_from(most).unwrap_or(u32::MAX).max(self.tokens)
    }

    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled> {
        tile(main, *self)
    }
}

impl TileShape {
    /// A shape of a block (rows, warps, blocks a processor) and of stages that does not split K.
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

    /// Blocks that give all processors of a large device as much as they can hold; of small blocks
    /// twice that.
    fn wanted(&self) -> u64 {
        let waves = if self.tokens <= FEW { 2 } else { 1 };
        u64::from(PROCESSORS * self.min_blocks * waves)
    }

    /// Blocks of other rows and tokens.
    fn blocks(&self, main: &MainLoop<'_>, tokens: u32) -> u64 {
        u64::from(self.row_blocks(main.problem)) * u64::from(tokens.div_ceil(self.tokens))
    }

    /// Bytes through the second cache, as if it served the processors that have a block at a rate
    /// of their own: w and x of each block, sums of 4 bytes written and read where K is split.
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
        problem.n.div_ceil(self.rows)
    }

    /// Whether rows are the first axis of the grid, which alone takes so many blocks.
    pub(super) fn rows_first(&self, main: &MainLoop<'_>) -> bool {
        self.row_blocks(main.problem) > SECOND_AXIS
    }

    /// Tiles of tokens that are multiplied side by side.
    pub(super) fn together(&self, main: &MainLoop<'_>) -> u32 {
        (CHAINS / self.row_tiles(main)).max(1)
    }

    /// Registers of a thread without which the assembler spills, as it reported them: the sums, A
    /// of a k-tile, and what is on its way through them. Several segments that are as wide as a lane's
    /// loads of x are all on their way at once, each with its numbers; there bf16, older targets and
    /// codes that are put together also hold more constants.
    fn registers(&self, main: &MainLoop<'_>) -> u32 {
        let tiles = self.row_tiles(main);
        let held = &main.lanes();
        let sums = held.d.registers.len() as u32 * tiles * self.tokens / main.token_tile();
        let a = tiles * held.a.registers as u32 * main.k_tile() / main.step();
        let segments = main.k_tile() / main.segment();
        let wide = main.problem.input.bytes(main.lane_columns()) >= 16;
        let of_segments = if segments > 1 && wide {
            let numbers = [main.problem.scale, main.problem.zero, main.problem.correction]
                .into_iter()
                .flatten();
            let numbers: u32 = numbers.map(|of| of.lane_words(main)).sum();
            let f16 = main.problem.half() == Some(Half::F16);
            let placed = main.problem.plan.dequant.placed().is_some();
            let few = f16 && !placed && main.problem.target().class == Class::Hopper;
            14 * numbers + if few { 0 } else { 7 * segments }
        } else {
            0
        };
        let all = sums + a + 72 + of_segments + main.compiled(tiles * self.together(main));
        // The estimate is above what a tile of rows needs by itself, which always fits.
        if tiles == 1 { all.min(MOST_REGISTERS) } else { all }
    }

    /// Its part of a kernel's name.
    pub(super) fn label(&self) -> String {
        let Self { tokens, rows, warps, min_blocks, stages, splits, programmatic } = self;
        let split = if *splits > 1 { format!("k{splits}") } else { String::new() };
        let early = if *programmatic { "p" } else { "" };
        format!("tile_m{tokens}r{rows}w{warps}b{min_blocks}s{stages}{split}{early}")
    }
}
