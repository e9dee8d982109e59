//! The lookup table of plans that dequantise by lookup, in shared memory.
//!
//! Lanes read the entries of their codes, so bank conflicts depend on the data; no order of the table
//! avoids them.

use super::problem::Problem;
use crate::ir::{Address, Builder, LOOKUP_TABLE, Operand, SharedId, Special, Width, Word};
use crate::plan::DequantPlan;
use crate::plan::step::Step;

/// A table in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Table {
    block: SharedId,
    width: Width,
}

/// The entries of a plan's lookup table as 32-bit words, and the type of an entry.
fn numbers(plan: &DequantPlan) -> Option<(Vec<u32>, Word)> {
    let mut steps = plan.stages.iter().flat_map(|stage| &stage.steps);
    steps.find_map(|step| match step {
        Step::LookupF32 { table, .. } => Some((table.clone(), Word::U32)),
        Step::LookupHalf { table, .. } => {
            let words =
                table.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |high| high << 16));
            Some((words.collect(), Word::U16))
        }
        _ => None,
    })
}

impl Table {
    /// 32-bit words of shared memory of a problem's table; 0 without a table.
    pub(super) fn words(problem: &Problem) -> u32 {
        numbers(&problem.plan.dequant)
            .map_or(0, |(words, _)| words.len().next_multiple_of(4) as u32)
    }

    /// Declares the table and writes it; it is readable after the next barrier.
    pub(super) fn declare(b: &mut Builder, plan: &DequantPlan) -> Option<Self> {
        let (mut words, word) = numbers(plan)?;
        words.resize(words.len().next_multiple_of(4), 0);
        let len = words.len() as u32 * 4 / word.bytes();
        let block =
            b.shared(LOOKUP_TABLE, word, len, "the numbers of all codes, one after another");
        b.comment("the table of all codes");
        let thread = b.special(Special::Thread);
        let first = b.equal(thread, 0u32);
        b.when(first, |b| {
            for (at, words) in (0..).zip(words.chunks(4)) {
                let words: Vec<Operand> = words.iter().map(|&word| word.into()).collect();
                let to = Address::new(block, at * 16 / word.bytes());
                b.store(to, &words, Width::B128, None);
            }
        });
        let width = if word == Word::U16 { Width::B16 } else { Width::B32 };
        Some(Self { block, width })
    }

    /// The entry of a code, as bits.
    pub(super) fn read(self, b: &mut Builder, index: Operand) -> Operand {
        b.load(Address::new(self.block, index), self.width)[0].into()
    }
}
