//! The choice of a schedule and of its free choices for a number of tokens.
//!
//! In: a [`Problem`] and a number of tokens. Out: a [`Chosen`], which writes the kernel and gives the
//! schedule's name and parameters in a kernel's key; [`Chosen::read`] is the inverse. The table of
//! measured tiles has precedence over the schedules' models.

use std::collections::BTreeMap;

use super::interface::{FreeChoices, Schedule};
use super::measured::measured;
use super::problem::Problem;
use super::shader::ShaderTile;
use super::skinny::SkinnyTile;
use super::tensor_memory::TmemTile;
use super::tile::TileShape;
use super::unscheduled::Unscheduled;
use super::warp_group::WarpGroupTile;
use crate::ir::Kernel;

/// The list of schedules: each is a variant of [`Chosen`]. The first that serves a product and has a
/// choice for it chooses.
macro_rules! schedules {
    ($($(#[$doc:meta])* $variant:ident($choices:ty),)*) => {
        /// A schedule and its free choices.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Chosen {
            $($(#[$doc])* $variant($choices),)*
        }

        /// The functions of each schedule that need no choice yet.
        const SCHEDULES: &[Listed] = &[$(Listed {
            name: <$choices>::schedule,
            choices: <$choices>::choices,
            serves: <$choices>::serves,
            choose: |problem, tokens| <$choices>::choose(problem, tokens).map(Chosen::$variant),
            candidates: |problem, tokens| {
                let all = <$choices>::candidates(problem, tokens);
                all.into_iter().map(Chosen::$variant).collect()
            },
            read: |parameters| <$choices>::read(parameters).map(Chosen::$variant),
        },)*];

        impl Chosen {
            /// The schedule that was chosen.
            pub fn schedule(&self) -> &dyn Schedule {
                match self {
                    $(Self::$variant(choices) => choices,)*
                }
            }
        }
    };
}

schedules! {
    /// Any M, on tensor memory.
    TensorMemory(TmemTile),
    /// M <= 16.
    Skinny(SkinnyTile),
    /// Any M, on warp-group instructions.
    WarpGroup(WarpGroupTile),
    /// Any M, on matrix instructions.
    Tile(TileShape),
    /// Any M, without matrix instructions.
    Shader(ShaderTile),
}

/// A schedule of the list, as functions that give a [`Chosen`].
struct Listed {
    name: fn() -> &'static str,
    choices: fn() -> &'static [&'static str],
    serves: fn(&Problem, u32) -> bool,
    choose: fn(&Problem, u32) -> Result<Chosen, Unscheduled>,
    candidates: fn(&Problem, u32) -> Vec<Chosen>,
    read: fn(&BTreeMap<String, u64>) -> Result<Chosen, Unscheduled>,
}

/// The schedule for a number of tokens (rows of x, M): the fastest of the table of measured tiles, or
/// else the choice of the schedules' models.
///
/// # Errors
/// If no schedule supports the problem with that many tokens.
pub fn choose(problem: &Problem, tokens: u32) -> Result<Chosen, Unscheduled> {
    measured(problem, tokens).map_or_else(|| choose_by_model(problem, tokens), Ok)
}

/// The schedule for a number of tokens, by the schedules' models alone.
///
/// # Errors
/// If no schedule supports the problem with that many tokens.
pub fn choose_by_model(problem: &Problem, tokens: u32) -> Result<Chosen, Unscheduled> {
    let mut refused = None;
    for choice in models(problem, tokens) {
        match choice {
            Ok(chosen) => return Ok(chosen),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused.unwrap_or(Unscheduled::NoSchedule(problem.target().name)))
}

/// The choices of the schedules that serve a number of tokens, each by its model, the preferred one first.
pub(super) fn models(
    problem: &Problem,
    tokens: u32,
) -> impl Iterator<Item = Result<Chosen, Unscheduled>> {
    let serving = SCHEDULES.iter().filter(move |schedule| (schedule.serves)(problem, tokens));
    serving.map(move |schedule| (schedule.choose)(problem, tokens))
}

/// The choices worth measuring for a number of tokens: first the model's, then all others of which blocks fit whatever registers
/// they may have, from few to many rows, warps, blocks and splits of K.
pub fn candidates(problem: &Problem, tokens: u32) -> Vec<Chosen> {
    let model = choose_by_model(problem, tokens).ok();
    let all = SCHEDULES.iter().flat_map(|schedule| (schedule.candidates)(problem, tokens));
    let others = all.filter(|chosen| Some(*chosen) != model && chosen.runs(problem, tokens));
    model.into_iter().chain(others).collect()
}

impl Chosen {
    /// The choice of one schedule for a number of tokens.
    ///
    /// # Errors
    /// An unknown name, or a product that the schedule does not support.
    pub fn of(name: &str, problem: &Problem, tokens: u32) -> Result<Self, Unscheduled> {
        (listed(name)?.choose)(problem, tokens)
    }

    /// The same with blocks that make their operand of x, where that takes less time for a call of so many tokens.
    #[must_use]
    pub fn making_operand(self, problem: &Problem, tokens: u32) -> Self {
        match self {
            Self::Skinny(tile) => Self::Skinny(tile.making_operand(problem, tokens)),
            other => other,
        }
    }

    /// The names of all schedules.
    pub fn names() -> Vec<&'static str> {
        SCHEDULES.iter().map(|schedule| (schedule.name)()).collect()
    }

    /// The names of a schedule's free choices; none of a name that is no schedule's.
    pub fn choices(name: &str) -> &'static [&'static str] {
        listed(name).map_or(&[], |schedule| (schedule.choices)())
    }

    /// Writes the kernel.
    ///
    /// # Errors
    /// If the schedule does not support the problem.
    pub fn write(&self, problem: &Problem) -> Result<Kernel, Unscheduled> {
        self.schedule().build(problem)
    }

    /// Whether the schedule supports the problem with that many tokens in one launch, and blocks fit by the estimate of their
    /// registers.
    pub fn takes(&self, problem: &Problem, tokens: u32) -> bool {
        self.schedule().fits(problem) && self.most_tokens(problem) >= u64::from(tokens)
    }

    /// The same whatever the estimate says: what may be measured, and chosen again on the device where it was. (The table of tiles
    /// asks [`Self::takes`]: a kernel may have more registers than when a line was measured.)
    pub fn runs(&self, problem: &Problem, tokens: u32) -> bool {
        self.schedule().is_launchable(problem) && self.most_tokens(problem) >= u64::from(tokens)
    }

    /// The most tokens of one launch; of an expert layer before they are routed.
    fn most_tokens(&self, problem: &Problem) -> u64 {
        match problem.stack {
            None => self.tokens(problem).into(),
            Some(stack) => stack.most_tokens(problem, *self),
        }
    }

    /// The most rows of x of one launch: those of a skinny tile, or as many as 32-bit indices of x, y and
    /// the sums of a split K allow.
    pub fn tokens(&self, problem: &Problem) -> u32 {
        self.schedule().most_tokens(problem)
    }

    /// The schedule's name in a kernel's key.
    pub fn name(&self) -> &'static str {
        self.schedule().name()
    }

    /// The free choices by name, for a kernel's key. N and K, also constants of the source, are in the
    /// problem.
    pub fn parameters(&self) -> Vec<(&'static str, u64)> {
        self.schedule().parameters()
    }

    /// The schedule of a key: the inverse of [`Self::name`] and [`Self::parameters`]. Parameters
    /// of other names are ignored.
    ///
    /// # Errors
    /// An unknown name, or a parameter that is missing or too large.
    pub fn read(name: &str, parameters: &BTreeMap<String, u64>) -> Result<Self, Unscheduled> {
        (listed(name)?.read)(parameters)
    }
}

/// The schedule of a name.
fn listed(name: &str) -> Result<&'static Listed, Unscheduled> {
    let schedule = SCHEDULES.iter().find(|schedule| (schedule.name)() == name);
    let none = || Unscheduled::UnknownSchedule { name: name.to_owned(), known: Chosen::names() };
    schedule.ok_or_else(none)
}
