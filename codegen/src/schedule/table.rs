//! The table in which decoding looks codes up, where it does: in shared memory.
//!
//! Lanes read the places that their codes say, so that some of them meet in a bank: no order of the table
//! helps against that.

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

/// The numbers of a plan's table as 32-bit words, and the word of one of them.
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
    /// 32-bit words of shared memory that a problem's table takes, if it has one.
    pub(super) fn words(problem: &Problem) -> u32 {
        numbers(&problem.plan.dequant)
            .map_or(0, |(words, _)| words.len().next_multiple_of(4) as u32)
    }

    /// Declares the table and has it written; it is there after the next barrier.
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

    /// The number of a code: its bits.
    pub(super) fn read(self, b: &mut Builder, index: Operand) -> Operand {
        b.load(Address::new(self.block, index), self.width)[0].into()
    }
}
