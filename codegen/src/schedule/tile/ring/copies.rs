//! Copies into a stage, distributed over lanes or threads: one vector per copier in each round.

use crate::ir::{Address, BufferId, Builder, Operand};
use crate::schedule::chunk::width;

/// The copies of one thread or lane (the copier) into each stage.
pub(super) struct Copies {
    buffer: BufferId,
    /// Words of a vector.
    vector: u32,
    /// Words in a stage between a copier's vectors of consecutive rounds.
    apart: u32,
    rounds: Vec<Round>,
}

/// A copier's vector of one round.
struct Round {
    /// Its first word at k-tile 0.
    from: Operand,
    /// Whether the buffer has the vector; otherwise a stage gets zeros.
    mask: Option<Operand>,
    /// Whether this copier has a vector in this round.
    any: Operand,
}

impl Copies {
    /// Distributes `vectors` over the copiers; a copier's vectors are `apart` words apart in a stage.
    /// `from` gives the source of a vector at k-tile 0 by its number, and whether the vector exists, if
    /// that is not certain.
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

    /// Starts the copies of a k-tile, whose words are `later` words after those of k-tile 0, to this
    /// copier's first vector `to`.
    pub(super) fn start(&self, b: &mut Builder, to: Address, later: Operand) {
        for (round, &Round { from, mask, any }) in (0..).zip(&self.rounds) {
            let from = Address::new(self.buffer, b.add(from, later));
            let to = to.plus(round * self.apart);
            let copy = |b: &mut Builder| b.copy_async(to, from, width(self.vector), mask);
            if any == Operand::Pred(true) { copy(b) } else { b.when(any, copy) }
        }
    }
}
