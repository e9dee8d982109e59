//! The interface of schedules: their free choices, a model that chooses them, the kernel.
//!
//! A schedule is a type of free choices ([`choices!`](super::choices)) that implements [`Schedule`],
//! and a line in the list of [`Chosen`](super::Chosen).

use std::collections::BTreeMap;

use super::mapping::MainLoop;
use super::problem::Problem;
use super::stack::Stack;
use super::unscheduled::{ChoiceRule, Unscheduled};
use crate::ir::Kernel;
use crate::target::Target;

/// The free choices of a schedule by name, as a kernel's key stores them.
pub trait FreeChoices {
    /// The schedule's name in a kernel's key.
    fn schedule() -> &'static str
    where
        Self: Sized;

    /// [`Self::schedule`], of a value.
    fn name(&self) -> &'static str;

    /// The names of all free choices.
    fn choices() -> &'static [&'static str]
    where
        Self: Sized;

    /// The free choices by name. N and K, also constants of the source, are in the problem.
    fn parameters(&self) -> Vec<(&'static str, u64)>;

    /// The free choices of a key: the inverse of [`Self::parameters`]. Parameters of other names are
    /// ignored.
    ///
    /// # Errors
    /// A parameter that is missing or too large.
    fn read(parameters: &BTreeMap<String, u64>) -> Result<Self, Unscheduled>
    where
        Self: Sized;
}

/// A schedule, with its free choices.
pub trait Schedule: FreeChoices {
    /// Whether the schedule chooses for products of that many tokens (rows of x, M). Of several such
    /// schedules the first in the list chooses.
    fn serves(problem: &Problem, tokens: u32) -> bool
    where
        Self: Sized;

    /// The free choices for a number of tokens, by the schedule's model.
    ///
    /// # Errors
    /// If no choices fit.
    fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled>
    where
        Self: Sized;

    /// All free choices worth measuring for a number of tokens; none if the schedule does not support
    /// the plan's product.
    fn candidates(problem: &Problem, tokens: u32) -> Vec<Self>
    where
        Self: Sized;

    /// The instruction and the k-tile of these choices: the plan's, unless the schedule overrides this.
    fn main_loop<'p>(&self, problem: &'p Problem) -> MainLoop<'p> {
        MainLoop::new(problem)
    }

    /// Whether these choices are valid for a main loop.
    ///
    /// # Errors
    /// The rule that the choices break.
    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled>;

    /// The resources of a block; the choices have passed [`Self::check`].
    fn resources(&self, main: &MainLoop<'_>) -> Resources;

    /// Writes the kernel; the choices have passed [`Self::check`].
    ///
    /// # Errors
    /// If the schedule does not support the product.
    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled>;

    /// Whether weights are rounded to the operand after they are multiplied with their scale: by the plan, or by a choice
    /// of the schedule.
    fn rounds_scaled_weights(&self, problem: &Problem) -> bool {
        problem.plan.scale.rounds_weights()
    }

    /// The most rows of x of one launch.
    fn most_tokens(&self, problem: &Problem) -> u32;

    /// Tokens of a block; slots of a token block in an expert layer.
    fn block_tokens(&self) -> u32;

    /// Whether blocks may add the rows of a token's experts ([`Stack::combined`]).
    fn combines_experts(&self) -> bool {
        false
    }

    /// Whether blocks make their operand of x themselves: no kernel before the product does.
    fn makes_operand(&self) -> bool {
        false
    }

    /// Whether blocks write what another product reads of y, where a problem says so ([`Problem::writing`]).
    fn writes_operand(&self, _problem: &Problem) -> bool {
        false
    }

    /// Whether blocks find the pairs of an expert that are not sorted, and multiply them together.
    fn groups_pairs(&self) -> bool {
        false
    }

    /// Whether blocks copy the rows of x of whole token blocks of an expert layer: those of slots without a
    /// pair too, if their token block is in use.
    fn copies_token_blocks(&self, _stack: Stack) -> bool {
        false
    }

    /// The main loop of these choices, if they are valid for the problem.
    ///
    /// # Errors
    /// The rule that the choices break.
    fn checked<'p>(&self, problem: &'p Problem) -> Result<MainLoop<'p>, Unscheduled> {
        if problem.stack.is_some_and(|stack| stack.combined) && !self.combines_experts() {
            return Err(Unscheduled::Combined(self.name()));
        }
        if problem.operand_of_y.is_some() && !self.writes_operand(problem) {
            return Err(Unscheduled::WritesOperand(self.name()));
        }
        let main = self.main_loop(problem);
        self.check(&main).map(|()| main)
    }

    /// Whether these choices are valid and `min_blocks` blocks fit on a multiprocessor, by the estimate of their registers: what
    /// a model may choose.
    fn fits(&self, problem: &Problem) -> bool {
        let main = self.checked(problem);
        main.is_ok_and(|main| self.resources(&main).fit(problem.target()))
    }

    /// The same whatever the estimate says: what is worth compiling, since the device's compiler tells how many registers a
    /// kernel has.
    fn is_launchable(&self, problem: &Problem) -> bool {
        let main = self.checked(problem);
        main.is_ok_and(|main| self.resources(&main).are_launchable(problem.target()))
    }

    /// The kernel of these choices.
    ///
    /// # Errors
    /// If the schedule does not support the problem.
    fn build(&self, problem: &Problem) -> Result<Kernel, Unscheduled> {
        self.write(&self.checked(problem)?)
    }
}

/// The refusal of a schedule with matrix instructions for a product without them, and vice versa.
pub(super) fn multiplies_otherwise<S: Schedule>(main: &MainLoop<'_>) -> Unscheduled {
    Unscheduled::OtherProducts { schedule: S::schedule(), target: main.problem.target().name }
}

/// The refusal of free choices that break a rule.
pub(super) fn broken_rule(choices: &impl std::fmt::Debug, rule: ChoiceRule) -> Unscheduled {
    Unscheduled::Choices { choices: format!("{choices:?}"), rule }
}

/// The resources of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that have to fit on a multiprocessor.
    pub min_blocks: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Registers of a thread, estimated; 0 if unknown.
    pub registers: u32,
    /// Registers that a thread is given, if not an even share of the multiprocessor's.
    pub given_registers: Option<u32>,
}

impl Resources {
    /// Whether `min_blocks` blocks fit on a multiprocessor of the target.
    pub fn fit(&self, target: &Target) -> bool {
        let Some(gpu) = target.gpu else { return false };
        // Registers are allocated in units of eight.
        let share = (gpu.registers / (self.threads * self.min_blocks).max(1)) & !7;
        let registers = self.given_registers.unwrap_or(share.min(gpu.thread_registers));
        self.are_launchable(target) && self.registers <= registers
    }

    /// The same of threads and shared memory alone.
    pub fn are_launchable(&self, target: &Target) -> bool {
        let Some(gpu) = target.gpu else { return false };
        self.threads <= gpu.block_threads
            && self.threads * self.min_blocks <= gpu.sm_threads
            && self.shared_bytes <= gpu.block_shared
            && (self.shared_bytes + gpu.reserved_shared) * self.min_blocks <= gpu.sm_shared
    }
}
