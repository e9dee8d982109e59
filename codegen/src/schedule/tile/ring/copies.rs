//! Copies into a stage that lanes or threads share out: vector after vector, a round of all of them at a
//! time.

use crate::ir::{Address, BufferId, Builder, Operand};
use crate::schedule::chunk::width;

/// What this copier brings into each stage.
pub(super) struct Copies {
    buffer: BufferId,
    /// Words of a vector.
    vector: u32,
    /// Words in a stage from a copier's vector of a round to that of the next.
    apart: u32,
    rounds: Vec<Round>,
}

/// This copier's vector of a round.
struct Round {
    /// Its first word at k-tile 0.
    from: Operand,
    /// Whether the buffer has it; a stage gets zeros else.
    mask: Option<Operand>,
    /// Whether there is one left for this copier.
    any: Operand,
}

impl Copies {
    /// Deals `vectors` out to the copiers; those of a copier are `apart` in a stage. `from` says of a
    /// vector by its number where it lies at k-tile 0, and whether it is there, if that is in doubt.
    pub(super) fn deal(
        b: &mut Builder,
        (buffer, vector): (BufferId, u32),
        (vectors, apart): (u32, u32),
        (copier, copiers): (Operand, u32),
        mut from: impl FnMut(&mut Builder, Operand) -> (Operand, Option<Operand>),
    ) -> Self {
        let rounds = (0..vectors).step_by(copiers as usize).map(|first| {
            let number = b.add(copier, first);
            let whole = first + copiers <= vectors;
            let any = if whole { true.into() } else { b.less(number, vectors) };
            let (from, mask) = from(b, number);
            Round { from, mask, any }
        });
        let rounds = rounds.collect();
        Self { buffer, vector, apart, rounds }
    }

    /// Starts the copies of a k-tile, whose words lie `later` than those of k-tile 0, to where this
    /// copier's first vector belongs.
    pub(super) fn start(&self, b: &mut Builder, to: Address, later: Operand) {
        for (round, &Round { from, mask, any }) in (0..).zip(&self.rounds) {
            let from = Address::new(self.buffer, b.add(from, later));
            let to = to.plus(round * self.apart);
            let copy = |b: &mut Builder| b.copy_async(to, from, width(self.vector), mask);
            if any == Operand::Pred(true) { copy(b) } else { b.when(any, copy) }
        }
    }
}
