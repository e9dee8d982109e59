//! The compiler with free choices of its schedules replaced: to measure and to verify other tiles.

use quantloom_dsl::format::FloatFormat;
use quantloom_runtime::gpu::{Arrangement, Basis, Choice, Moves, NativePart, Products, Request};
use quantloom_runtime::source::{KernelKey, KernelSource, KernelText, Refusal};

use super::compile::{choice, problem};
use super::{Jit, JitError, Overrides};
use crate::schedule::Chosen;

/// [`Jit`] with these choices.
#[derive(Clone, Debug, Default)]
pub struct Retuned(pub Overrides);

impl KernelSource for Retuned {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        Jit.text(key)
    }
}

impl Products for Retuned {
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Jit.arrangement(request)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        Jit.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
        overridden(request, Jit.choose(request, tokens)?, &self.0)
    }

    fn operand(&self, request: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand(request)
    }

    fn rounds_x(&self, request: &Request<'_>) -> Result<FloatFormat, Refusal> {
        Jit.rounds_x(request)
    }

    fn moves(&self, request: &Request<'_>, part: &NativePart) -> Result<Moves, Refusal> {
        Jit.moves(request, part)
    }
}

/// A choice with other free choices of its schedule, if there are any.
pub(super) fn overridden(
    request: &Request<'_>,
    made: Choice,
    overrides: &Overrides,
) -> Result<Choice, Refusal> {
    let mut schedule = made.key.schedule.clone();
    if !overrides.apply(&mut schedule)? {
        return Ok(made);
    }
    let (chosen, problem) = (Chosen::read(&schedule.name, &schedule.parameters), problem(request)?);
    let chosen = chosen.and_then(|chosen| chosen.schedule().checked(&problem).map(|_| chosen));
    choice(request, &problem, chosen.map_err(JitError::from)?, Basis::Asked)
}
