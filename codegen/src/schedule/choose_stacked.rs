//! The choice of a schedule for the products of an expert layer.
//!
//! In: a [`Problem`] with a stack and M tokens, before they are routed. Out: a [`Chosen`] whose blocks have
//! as many tokens as token blocks have slots. A token block reads the weights of its expert: with more slots
//! than an expert has rows they would be idle, with fewer the weights would be read again, from the second
//! cache.

use std::collections::BTreeMap;

use super::choose::{Chosen, candidates, choose_by_model};
use super::problem::{Problem, Unscheduled};
use super::stack::Stack;
use crate::target::Class;

/// Slots of a token block to choose from.
const SLOTS: [u32; 4] = [8, 16, 32, 64];
/// Tenths of a token block that an expert's rows may fill on average: beyond, many experts need a second
/// token block.
const FILLED: u64 = 9;
/// The most blocks along an axis of a launch, by WebGPU's default limits.
const MOST_BLOCKS: u64 = 65_535;

/// The schedule for M tokens, by the schedules' models, with `slots` slots a token block if the order of
/// pairs exists already.
///
/// # Errors
/// If no schedule supports the problem with that many tokens, or with such token blocks.
pub fn choose_stacked(
    problem: &Problem,
    tokens: u32,
    slots: Option<u32>,
) -> Result<Chosen, Unscheduled> {
    let Some(stack) = problem.stack else { return choose_by_model(problem, tokens) };
    let wanted = match slots {
        Some(slots) => vec![slots],
        None => {
            let first = stack.fitting_slots(tokens);
            let larger = SLOTS.into_iter().filter(|slots| *slots > first);
            let smaller = SLOTS.into_iter().rev().filter(|slots| *slots < first);
            [first].into_iter().chain(smaller).chain(larger).collect()
        }
    };
    let mut refused = None;
    for slots in wanted {
        match of_slots(problem, slots) {
            Ok(chosen) if u64::from(tokens) <= stack.most_tokens(problem, chosen) => {
                return Ok(chosen);
            }
            Ok(_) => {
                let rule = "expected so few that rows of slots are numbered with 32 bits";
                refused = refused.or(Some(Unscheduled::Shape { what: "M", value: tokens, rule }));
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused.unwrap_or(Unscheduled::NoSchedule(problem.target().name)))
}

/// The model's choice with blocks of so many tokens, whose blocks do not split K: there are enough of them,
/// since each expert has its own.
fn of_slots(problem: &Problem, slots: u32) -> Result<Chosen, Unscheduled> {
    let single = problem.single();
    let fits = |chosen: &Chosen| {
        chosen.schedule().block_tokens() == slots && chosen.schedule().fits(problem)
    };
    let model = choose_by_model(&single, slots).and_then(whole_k);
    let model = model.ok().filter(fits);
    let others = || candidates(&single, slots).into_iter().filter_map(|all| whole_k(all).ok());
    let found = model.or_else(|| others().find(fits));
    let unfit = || Unscheduled::Shape {
        what: "slots of a token block",
        value: slots,
        rule: "expected a number of tokens that blocks of a schedule take here",
    };
    found.ok_or_else(unfit)
}

/// The same choice without split-K.
fn whole_k(chosen: Chosen) -> Result<Chosen, Unscheduled> {
    let parameters = chosen.parameters().into_iter();
    let mut parameters: BTreeMap<String, u64> =
        parameters.map(|(name, value)| (name.to_owned(), value)).collect();
    if let Some(splits) = parameters.get_mut("splits") {
        *splits = 1;
    }
    Chosen::read(chosen.name(), &parameters)
}

impl Stack {
    /// The slots of a token block for M tokens: the fewest that an expert's share of the pairs does not
    /// fill.
    fn fitting_slots(self, tokens: u32) -> u32 {
        let pairs = u64::from(tokens) * u64::from(self.top_k);
        let fits = |slots: &u32| 10 * pairs < FILLED * u64::from(*slots) * u64::from(self.experts);
        let most = SLOTS[SLOTS.len() - 1];
        SLOTS.into_iter().find(fits).unwrap_or(most)
    }

    /// The most tokens of a launch of a choice: elements of x and y, sums of a split K and the order's
    /// words are numbered with 32 bits, and a launch has so many blocks.
    pub fn most_tokens(self, problem: &Problem, chosen: Chosen) -> u64 {
        let slots = u64::from(chosen.schedule().block_tokens());
        let (experts, top_k) = (u64::from(self.experts), u64::from(self.top_k));
        let splits = chosen.parameters().into_iter().find(|(name, _)| *name == "splits");
        let sums = splits.map_or(1, |(_, splits)| splits) * u64::from(self.shards);
        let padded = (u64::from(problem.n) + 512) * sums;
        let widest = padded.max(u64::from(problem.input.columns)).max(4);
        // T B is at most R + L (B - 1), and T at most that over B, plus 1.
        let all_slots = u64::from(u32::MAX) / widest;
        let all_slots = match problem.target().class {
            Class::Shader => all_slots.min((MOST_BLOCKS - 1) * slots),
            _ => all_slots,
        };
        all_slots.saturating_sub(experts * (slots - 1)) / top_k.max(1)
    }
}
