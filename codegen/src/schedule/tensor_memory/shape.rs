//! The free choices of a product on tensor memory, and their model.

use super::{ROWS, WARPS, scales, stages, write};
use crate::ir::{Kernel, MatrixOp, MatrixScope};
use crate::schedule::choices::choices;
use crate::schedule::constants::Constants;
use crate::schedule::epilogue::{Epilogue, ORDER};
use crate::schedule::interface::{
    FreeChoices, Resources, Schedule, broken_rule, multiplies_otherwise,
};
use crate::schedule::mapping::MainLoop;
use crate::schedule::problem::Problem;
use crate::schedule::unscheduled::{ChoiceRule, Unscheduled, UnscheduledPart};
use crate::target::{Feature, TMEM_COLUMNS};

choices! {
    /// The free choices of a product on tensor memory.
    "tensor_memory": pub struct TmemTile {
        /// Rows of x per block: 8, 16, 32, 64 or 128.
        pub tokens: u32,
        /// Stages of the ring.
        pub stages: u32,
        /// Blocks that split K.
        pub splits: u32,
        /// Programmatic dependent launch: the kernel may start before the previous one ends.
        pub programmatic: bool,
    }
}

/// Tokens of a block.
const TOKENS: [u32; 5] = [8, 16, 32, 64, 128];
/// Stages beyond which a ring hides nothing more: 16 KiB of codes each.
const MOST_STAGES: u32 = 6;
/// Multiprocessors of a large device, slightly fewer than the 148 of a B200: a power of two leaves no remainder.
const MULTIPROCESSORS: u32 = 128;
/// The fewest k-tiles of a block: with fewer, filling the ring dominates.
const FEWEST_K_TILES: u32 = 4;
/// The most blocks along the second axis of a grid.
const SECOND_AXIS: u32 = 65_535;
/// Registers of a thread besides its sums: scales of a k-tile, addresses.
const OTHER_REGISTERS: u32 = 96;

/// Tokens of blocks that are not mostly empty.
fn tokens_of_blocks(tokens: u32) -> impl Iterator<Item = u32> {
    TOKENS.into_iter().filter(move |of_block| *of_block == TOKENS[0] || *of_block / 2 < tokens)
}

/// The most splits of K.
fn most_splits(main: &MainLoop<'_>) -> u32 {
    (main.k_iters() / FEWEST_K_TILES).max(1)
}

/// The instruction of a product, if it is one of tensor memory that scales its operands.
fn instruction(main: &MainLoop<'_>) -> Option<&'static MatrixOp> {
    main.instruction().filter(|op| op.scope == MatrixScope::TensorMemory && op.scaling.is_some())
}

/// Refuses an expert layer: no tensor copy brings rows of x that are not neighbours.
fn refuse_stack(problem: &Problem) -> Result<(), Unscheduled> {
    match problem.stack {
        None => Ok(()),
        Some(_) => Err(Unscheduled::Scheme {
            target: problem.target().name,
            part: UnscheduledPart::StackInTensorMemory,
        }),
    }
}

impl Schedule for TmemTile {
    fn serves(problem: &Problem, _tokens: u32) -> bool {
        instruction(&MainLoop::new(problem)).is_some()
    }

    /// As many tokens as there are, up to 128, as many stages as fit, and K split until every multiprocessor has a block.
    /// Nobody has measured it.
    fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled> {
        let main = &MainLoop::new(problem);
        if tokens == 0 {
            let rule = "expected 1 or more";
            return Err(Unscheduled::Shape { what: "M", value: tokens, rule });
        }
        refuse_stack(problem)?;
        let of_block = tokens_of_blocks(tokens).last().unwrap_or(TOKENS[0]);
        let blocks = u64::from(problem.row_tiles()) * u64::from(tokens.div_ceil(of_block));
        let wanted = u64::from(MULTIPROCESSORS) / blocks.max(1);
        let splits = (wanted as u32).clamp(1, most_splits(main));
        let programmatic = problem.target().has(Feature::GridDependency);
        let tile = |stages| Self { tokens: of_block, stages, splits, programmatic };
        let fitting = (2..=MOST_STAGES).rev().map(tile).find(|tile| tile.fits(problem));
        let (schedule, target) = (Self::schedule(), problem.target().name);
        fitting.ok_or(Unscheduled::NothingFits { schedule, target })
    }

    fn candidates(problem: &Problem, tokens: u32) -> Vec<Self> {
        if !Self::serves(problem, tokens) || problem.stack.is_some() {
            return Vec::new();
        }
        let programmatic = problem.target().has(Feature::GridDependency);
        let mut all = Vec::new();
        let most = most_splits(&MainLoop::new(problem));
        for of_block in tokens_of_blocks(tokens) {
            for stages in 2..=MOST_STAGES {
                for splits in [1, 2, 3, 4, 6, 8].into_iter().filter(|splits| *splits <= most) {
                    all.push(Self { tokens: of_block, stages, splits, programmatic });
                }
            }
        }
        all.retain(|tile| tile.is_launchable(problem));
        all
    }

    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled> {
        if instruction(main).is_none() {
            return Err(multiplies_otherwise::<Self>(main));
        }
        refuse_stack(main.problem)?;
        let columns = self.tokens.saturating_add(self.scale_columns(main));
        let rules = [
            (TOKENS.contains(&self.tokens), ChoiceRule::TmemTokens),
            ((2..=16).contains(&self.stages), ChoiceRule::Stages),
            (columns <= TMEM_COLUMNS, ChoiceRule::TmemColumns),
            ((1..=main.k_iters()).contains(&self.splits), ChoiceRule::Splits),
            (main.problem.row_tiles() <= SECOND_AXIS, ChoiceRule::TmemRows),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(broken_rule(self, rule));
        }
        main.problem.refuse_dependent_launch(self.programmatic)
    }

    fn resources(&self, main: &MainLoop<'_>) -> Resources {
        let constants = Constants::words(main.problem, ROWS, self.tokens);
        let stages: u32 = stages::words(main, self.tokens).iter().sum();
        let sums = match self.sums_take_codes(main) {
            true => 0,
            false => Epilogue::words(ROWS, self.tokens, 1),
        };
        // Barriers, the address of the columns, and what blocks of shared memory are aligned to.
        let aligned = 512;
        Resources {
            threads: WARPS * main.problem.target().gpu.map_or(0, |gpu| gpu.warp),
            min_blocks: 1,
            shared_bytes: 4 * (self.stages * stages + sums + constants + ORDER + aligned),
            registers: self.tokens + OTHER_REGISTERS,
            given_registers: None,
        }
    }

    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled> {
        let op = instruction(main).ok_or_else(|| multiplies_otherwise::<Self>(main))?;
        Ok(write(main, op, *self))
    }

    /// The most rows of x, in whole tiles, for which 32-bit indices of x, y and the sums of a split K suffice.
    fn most_tokens(&self, problem: &Problem) -> u32 {
        let padded = u64::from(problem.row_tiles()) * u64::from(ROWS);
        let widest = (padded * u64::from(self.splits)).max(u64::from(problem.input.columns));
        let most = u64::from(u32::MAX) / widest / u64::from(self.tokens) * u64::from(self.tokens);
        u32::try_from(most).unwrap_or(u32::MAX).max(self.tokens)
    }

    fn block_tokens(&self) -> u32 {
        self.tokens
    }
}

impl TmemTile {
    /// Columns of the scales of all stages.
    fn scale_columns(&self, main: &MainLoop<'_>) -> u32 {
        self.stages.saturating_mul(scales::stage_columns(main))
    }

    /// Columns of tensor memory of a block.
    pub(super) fn columns(&self, main: &MainLoop<'_>) -> u32 {
        (self.tokens + self.scale_columns(main)).next_power_of_two().max(32)
    }

    /// Whether the sums of the epilogue have room where codes were.
    pub(super) fn sums_take_codes(&self, main: &MainLoop<'_>) -> bool {
        let [codes, _] = stages::words(main, self.tokens);
        Epilogue::words(ROWS, self.tokens, 1) <= self.stages * codes
    }

    /// The tile's part of a kernel's name.
    pub(super) fn label(&self) -> String {
        let Self { tokens, stages, splits, programmatic } = self;
        let split = if *splits > 1 { format!("k{splits}") } else { String::new() };
        let early = if *programmatic { "p" } else { "" };
        format!("tensor_memory_m{tokens}s{stages}{split}{early}")
    }
}
