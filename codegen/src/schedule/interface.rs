//! What a schedule is: free choices of its own, a way to choose them, and the kernel that follows.
//!
//! A schedule is a type of free choices ([`choices!`](super::choices)) that implements [`Schedule`],
//! and a line in the list of [`Chosen`](super::Chosen).

use std::collections::BTreeMap;

use super::mapping::MainLoop;
use super::problem::{Problem, Unscheduled};
use crate::ir::Kernel;
use crate::target::Target;

/// The free choices of a schedule by name, as a kernel's key holds them.
pub trait FreeChoices {
    /// The schedule's name in a kernel's key.
    fn schedule() -> &'static str
    where
        Self: Sized;

    /// The same.
    fn name(&self) -> &'static str;

    /// The free choices by name. N and K, which are constants of the text too, are the problem's.
    fn parameters(&self) -> Vec<(&'static str, u64)>;

    /// The free choices of a key: the inverse. Parameters of other names are not looked at.
    ///
    /// # Errors
    /// A parameter that is missing or too large.
    fn read(parameters: &BTreeMap<String, u64>) -> Result<Self, Unscheduled>
    where
        Self: Sized;
}

/// A schedule, with its free choices.
pub trait Schedule: FreeChoices {
    /// Whether the schedule's model is asked for the product of so many tokens (rows of x, M), where
    /// no schedule before it in the list is.
    fn serves(problem: &Problem, tokens: u32) -> bool
    where
        Self: Sized;

    /// The free choices for so many tokens, by the schedule's model.
    ///
    /// # Errors
    /// If no choices fit.
    fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled>
    where
        Self: Sized;

    /// All free choices that are worth measuring for so many tokens; none if the schedule does not
    /// multiply as the problem's plan says.
    fn candidates(problem: &Problem, tokens: u32) -> Vec<Self>
    where
        Self: Sized;

    /// By which instruction, and in which k-tiles, these choices multiply: as the plan says, unless the
    /// schedule has a way of its own.
    fn main_loop<'p>(&self, problem: &'p Problem) -> MainLoop<'p> {
        MainLoop::new(problem)
    }

    /// Whether the schedule takes these choices for a main loop.
    ///
    /// # Errors
    /// The rule that they break.
    fn check(&self, main: &MainLoop<'_>) -> Result<(), Unscheduled>;

    /// What a block takes of a multiprocessor; asked of choices that [`Self::check`] has taken.
    fn resources(&self, main: &MainLoop<'_>) -> Resources;

    /// Writes the kernel; asked of choices that [`Self::check`] has taken.
    ///
    /// # Errors
    /// What the schedule does not take.
    fn write(&self, main: &MainLoop<'_>) -> Result<Kernel, Unscheduled>;

    /// The most rows of x that one launch takes.
    fn most_tokens(&self, problem: &Problem) -> u32;

    /// The main loop of these choices, if the schedule takes them for the problem.
    ///
    /// # Errors
    /// The rule that they break.
    fn checked<'p>(&self, problem: &'p Problem) -> Result<MainLoop<'p>, Unscheduled> {
        let main = self.main_loop(problem);
        self.check(&main).map(|()| main)
    }

    /// Whether the schedule takes these choices, and as many blocks as they want share a
    /// multiprocessor.
    fn fits(&self, problem: &Problem) -> bool {
        let main = self.checked(problem);
        main.is_ok_and(|main| self.resources(&main).fit(problem.target()))
    }

    /// The kernel of these choices.
    ///
    /// # Errors
    /// What the schedule does not take.
    fn build(&self, problem: &Problem) -> Result<Kernel, Unscheduled> {
        self.write(&self.checked(problem)?)
    }
}

/// The refusal of a problem whose products are by matrix instructions where the schedule's are not, or
/// the other way round.
pub(super) fn multiplies_otherwise<S: Schedule>(main: &MainLoop<'_>) -> Unscheduled {
    let (name, target) = (S::schedule(), main.problem.target());
    Unscheduled::Tile(format!("the schedule {name} has no products of {target}"))
}

/// What a block of threads takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that are to share a multiprocessor.
    pub min_blocks: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Registers of a thread, estimated; 0 where nothing is known of them.
    pub registers: u32,
}

impl Resources {
    /// Whether as many blocks share a multiprocessor of the target.
    pub fn fit(&self, target: &Target) -> bool {
        let Some(gpu) = target.gpu else { return false };
        let threads = self.threads * self.min_blocks;
        // Registers are handed out by eights.
        let registers = (gpu.registers / threads.max(1)) & !7;
        self.threads <= gpu.block_threads
            && threads <= gpu.sm_threads
            && self.shared_bytes <= gpu.block_shared
            && (self.shared_bytes + gpu.reserved_shared) * self.min_blocks <= gpu.sm_shared
            && self.registers <= registers
    }
}
