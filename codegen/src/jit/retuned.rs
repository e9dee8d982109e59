//! The compiler with free choices of its schedules replaced: to measure and to verify other tiles.

use std::collections::BTreeMap;

use quantloom_runtime::gpu::{Choice, Moves, NativePart, Products, Request};
use quantloom_runtime::source::{KernelKey, KernelSource, KernelText, Refusal};

use super::{Jit, JitError, problem};
use crate::schedule::Chosen;

/// [`Jit`], where each of these parameters of a schedule has this value.
#[derive(Clone, Debug, Default)]
pub struct Retuned(pub BTreeMap<String, u64>);

impl KernelSource for Retuned {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        Jit.text(key)
    }
}

impl Products for Retuned {
    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        Jit.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
        let mut choice = Jit.choose(request, tokens)?;
        let schedule = &mut choice.key.schedule;
        for (name, value) in &self.0 {
            let free = name != "n" && name != "k";
            match schedule.parameters.get_mut(name).filter(|_| free) {
                Some(parameter) => *parameter = *value,
                None => {
                    let known = schedule.parameters.keys().filter(|key| *key != "n" && *key != "k");
                    return Err(Refusal::from(JitError::Parameter {
                        schedule: schedule.name.clone(),
                        parameter: name.clone(),
                        known: known.cloned().collect::<Vec<_>>().join(", "),
                    }));
                }
            }
        }
        let chosen = Chosen::read(&schedule.name, &schedule.parameters).map_err(JitError::from)?;
        choice.tokens = u64::from(chosen.tokens(&problem(request)?));
        Ok(choice)
    }

    fn operand(&self, request: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand(request)
    }

    fn moves(&self, request: &Request<'_>, part: &NativePart) -> Result<Moves, Refusal> {
        Jit.moves(request, part)
    }
}
