//! The order of writes and reads of the stages of shared memory, through which k-tiles are pipelined.
//!
//! A [`Pipeline`] only orders; what is copied is up to its user. Writers call [`acquire`], [`fill`] and
//! [`commit`], readers [`wait`], [`start`] and [`release`], once per iteration each. In [`AsyncCopies`]
//! every thread both copies and multiplies.
//!
//! [`acquire`]: Pipeline::acquire
//! [`fill`]: Pipeline::fill
//! [`commit`]: Pipeline::commit
//! [`wait`]: Pipeline::wait
//! [`start`]: Pipeline::start
//! [`release`]: Pipeline::release

use crate::ir::{Builder, Operand, Reg, Type, Uniformity};
use crate::schedule::participants::Participants;

/// A ring of stages, each the size of a k-tile.
pub(super) trait Pipeline {
    /// K-tiles between the one that is read and the one whose copies are started meanwhile.
    fn ahead(&self) -> u32;

    /// The first word of a stage before the main loop: stage `number` of the ring.
    fn first(&self, number: u32) -> Operand;

    /// Waits until the stage of the k-tile that is [`Self::ahead`] may be written: its first word.
    fn acquire(&self, b: &mut Builder) -> Operand;

    /// Starts `copies` into an acquired stage, if its k-tile is `there`.
    fn fill(&self, b: &mut Builder, there: Operand, copies: &mut dyn FnMut(&mut Builder));

    /// Ends the copies of a k-tile, also of a missing one.
    fn commit(&self, b: &mut Builder);

    /// Waits until the copies of the next k-tile have arrived, those of all writers.
    fn wait(&self, b: &mut Builder);

    /// The first word of the stage that has arrived.
    fn start(&self, b: &mut Builder) -> Operand;

    /// Advances to the next stage. The released stage may be written again after all readers have called
    /// this and have read it.
    fn release(&self, b: &mut Builder);

    /// Waits until all copies have arrived and no stage is read any more.
    fn finish(&self, b: &mut Builder);
}

/// Asynchronous copies by the threads that multiply (`cp.async`, one group of copies per thread and
/// k-tile). The barrier of [`Pipeline::wait`] guarantees that everybody's copies have arrived and that
/// everybody has read the previous stage, which is filled next.
pub(super) struct AsyncCopies {
    stages: u32,
    /// Words of a stage.
    words: u32,
    participants: Participants,
    /// The first word of the stage that is read.
    read: Reg,
}

impl AsyncCopies {
    /// Declares the ring's state, for a number of stages and their words.
    pub(super) fn declare(
        b: &mut Builder,
        (stages, words): (u32, u32),
        participants: Participants,
    ) -> Self {
        let read = b.variable("read", Type::U32, Uniformity::Block);
        b.set(read, 0u32);
        Self { stages, words, participants, read }
    }
}

impl Pipeline for AsyncCopies {
    fn ahead(&self) -> u32 {
        self.stages - 1
    }

    fn first(&self, number: u32) -> Operand {
        (number * self.words).into()
    }

    fn acquire(&self, b: &mut Builder) -> Operand {
        let first = b.equal(self.read, 0u32);
        let before = b.sub(self.read, self.words);
        b.select(first, (self.stages - 1) * self.words, before)
    }

    fn fill(&self, b: &mut Builder, there: Operand, copies: &mut dyn FnMut(&mut Builder)) {
        b.when(there, copies);
    }

    fn commit(&self, b: &mut Builder) {
        b.copy_commit();
    }

    fn wait(&self, b: &mut Builder) {
        b.copy_wait(self.stages - 2);
        self.participants.wait(b);
    }

    fn start(&self, b: &mut Builder) -> Operand {
        b.named("stage", self.read)
    }

    fn release(&self, b: &mut Builder) {
        let next = b.add(self.read, self.words);
        let last = b.equal(next, self.stages * self.words);
        let next = b.select(last, 0u32, next);
        b.set(self.read, next);
    }

    fn finish(&self, b: &mut Builder) {
        b.copy_wait(0);
        self.participants.wait(b);
    }
}
