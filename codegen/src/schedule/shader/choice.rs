//! The free choices of a shader kernel, and the model that chooses them.

use super::shader;
use crate::ir::Kernel;
use crate::schedule::choices::choices;
use crate::schedule::interface::{
    FreeChoices, Resources, Schedule, broken_rule, multiplies_otherwise,
};
use crate::schedule::mapping::MainLoop;
use crate::schedule::problem::Problem;
use crate::schedule::table::Table;
use crate::schedule::unscheduled::{ChoiceRule, Unscheduled};

choices! {
    /// The free choices of a shader kernel; powers of two.
    "shader": pub struct ShaderTile {
        /// Rows of x per block.
        pub tokens: u32,
        /// Rows of w per lane, each in a tile of its own.
        pub row_tiles: u32,
        /// Groups of lanes with different rows.
        pub groups: u32,
        /// Groups of lanes that split K.
        pub parts: u32,
    }
}

/// Up to this many tokens a block is chosen to read w once.
const FEW: u32 = 8;
/// The most blocks along an axis of a launch, by WebGPU's default limits.
const MOST_BLOCKS: u32 = 65_535;
/// The most sums of a lane.
const MOST_SUMS: u32 = 32;

impl Schedule for ShaderTile {
    fn serves(problem: &Problem, _tokens: u32) -> bool {
        !problem.by_matrix()
    }

    /// The tile for a number of tokens. Few tokens are bound by memory: one row per lane, and as many
    /// groups that split K as there are chunks. For more, a load of x should serve many products: eight
    /// tokens and four rows per lane.
    fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled> {
        let main = &MainLoop::new(problem);
        if tokens == 0 {
            let rule = "expected at least 1";
            return Err(Unscheduled::Shape { what: "M", value: tokens, rule });
        }
        let of = |tokens, row_tiles, [groups, parts]: [u32; 2]| Self {
            tokens,
            row_tiles,
            groups,
            parts,
        };
        let few = tokens.min(FEW).next_power_of_two();
        let lanes = [[1, 16], [2, 8], [2, 4], [4, 2], [4, 1], [1, 1]];
        let tiles = lanes.map(|lanes| of(few, 1, lanes));
        let many = [[8, 1], [4, 2], [4, 1], [1, 1]].map(|lanes| of(FEW, 4, lanes));
        let all = if tokens > FEW { [&many[..], &tiles[..]] } else { [&tiles[..], &many[..]] };
        let fits = |tile: &&Self| tile.check(main).is_ok();
        let whole = |tile: &&Self| tile.parts <= main.problem.chunks();
        let found = all.into_iter().flatten().filter(fits).find(whole);
        let (schedule, target) = (Self::schedule(), main.problem.target().name);
        found.copied().ok_or(Unscheduled::NothingFits { schedule, target })
    }

    /// Tiles worth measuring for a number of tokens: those that fit.
    fn candidates(problem: &Problem, tokens: u32) -> Vec<Self> {
        let main = &MainLoop::new(problem);
        if !Self::serves(problem, tokens) {
            return Vec::new();
        }
        let mut all: Vec<Self> = Self::choose(problem, tokens).into_iter().collect();
        for count in [1, 2, 4, 8].into_iter().filter(|count| count / 2 < tokens) {
            for row_tiles in [1, 2, 4] {
                for groups in [1, 2, 4, 8, 16] {
                    for parts in [1, 2, 4, 8, 16] {
                        let tile = Self { tokens: count, row_tiles, groups, parts };
                        if tile.check(main).is_ok() && !all.contains(&tile) {
                            all.push(tile);
                        }
                    }
                }
            }
        }
        all
    }

    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled> {
        if main.instruction().is_some() {
            return Err(multiplies_otherwise::<Self>(main));
        }
        let rule = |rule| Err(broken_rule(self, rule));
        let Some(gpu) = main.problem.target().gpu else { return rule(ChoiceRule::Gpu) };
        let all = [self.tokens, self.row_tiles, self.groups, self.parts];
        if !all.iter().all(|choice| choice.is_power_of_two() && *choice <= gpu.block_threads) {
            return rule(ChoiceRule::PowersOfTwo);
        }
        if !(self.row_tiles * self.groups).is_multiple_of(main.problem.together()) {
            return rule(ChoiceRule::Together);
        }
        if self.threads(main) > gpu.block_threads {
            return rule(ChoiceRule::Threads(gpu.block_threads));
        }
        if self.tokens * self.row_tiles > MOST_SUMS {
            return rule(ChoiceRule::Sums(MOST_SUMS));
        }
        if 4 * (self.shared_words(main) + Table::words(main.problem)) > gpu.block_shared {
            return rule(ChoiceRule::SharedSums(gpu.block_shared));
        }
        let exact = main.problem.plan.compute.longest_sum.unwrap_or(u64::MAX);
        if main.problem.plan.scale.segment.is_none() && u64::from(main.problem.k) > exact {
            let rule = "expected no more columns than exact sums of integers take";
            return Err(Unscheduled::Shape { what: "K", value: main.problem.k, rule });
        }
        Ok(())
    }

    fn resources(&self, main: &MainLoop<'_>) -> Resources {
        let words = self.shared_words(main) + Table::words(main.problem);
        let threads = self.threads(main);
        Resources {
            threads,
            min_blocks: 1,
            shared_bytes: 4 * words,
            registers: 0,
            given_registers: None,
        }
    }

    /// The most rows of x of a launch: elements of x and y are indexed with 32 bits, and the kernel of
    /// x's operand has one block per row.
    fn most_tokens(&self, problem: &Problem) -> u32 {
        let widest = problem.input.columns.max(problem.n).max(problem.input.groups().unwrap_or(1));
        (u32::MAX / widest).min(MOST_BLOCKS)
    }

    fn block_tokens(&self) -> u32 {
        self.tokens
    }

    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled> {
        Ok(shader(main, *self))
    }
}

impl ShaderTile {
    /// Threads of a block.
    pub(super) fn threads(&self, main: &MainLoop<'_>) -> u32 {
        main.problem.target().gpu.map_or(1, |gpu| gpu.warp) * self.groups * self.parts
    }

    /// Rows of w of a block.
    pub(super) const fn rows(&self, main: &MainLoop<'_>) -> u32 {
        main.problem.plan.native.rows * self.row_tiles * self.groups
    }

    /// Words of a block's sums, of all parts of K.
    pub(super) const fn shared_words(&self, main: &MainLoop<'_>) -> u32 {
        self.rows(main) * self.tokens * self.parts
    }

    /// The tile's part of a kernel's name.
    pub(super) fn label(&self) -> String {
        let Self { tokens, row_tiles, groups, parts } = self;
        format!("shader_m{tokens}r{row_tiles}g{groups}p{parts}")
    }
}
