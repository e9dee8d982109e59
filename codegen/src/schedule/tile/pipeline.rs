//! The order of writes and reads of the stages of shared memory, through which k-tiles are pipelined.
//!
//! A [`Pipeline`] only orders; what is copied is up to its user. Every thread both copies and multiplies: once per
//! iteration it waits, acquires a stage and copies a later k-tile into it, commits, and releases the stage that it
//! reads. The ring of warp groups is no `Pipeline`: its producer and its consumers are different warps, each with
//! a cursor of its own.

use crate::ir::{Builder, Operand, Reg, Type, Uniformity};
use crate::schedule::participants::Participants;

/// A ring of stages, each the size of a k-tile, filled by asynchronous copies of the threads that multiply (`cp.async`, one
/// group of copies per thread and k-tile). The barrier of [`Pipeline::wait`] guarantees that everybody's copies have
/// arrived and that everybody has read the previous stage, which is filled next.
pub(super) struct Pipeline {
    stages: u32,
    /// Words of a stage.
    words: u32,
    participants: Participants,
    /// The first word of the stage that is read.
    read: Reg,
}

impl Pipeline {
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

    /// K-tiles between the one that is read and the one whose copies are started meanwhile.
    pub(super) fn ahead(&self) -> u32 {
        self.stages - 1
    }

    /// The first word of a stage before the main loop: stage `number` of the ring.
    pub(super) fn first(&self, number: u32) -> Operand {
        (number * self.words).into()
    }

    /// The first word of the stage of the k-tile that is [`Self::ahead`], which may be written after [`Self::wait`].
    /// The copies of that k-tile are committed also where it is missing.
    pub(super) fn acquire(&self, b: &mut Builder) -> Operand {
        let first = b.equal(self.read, 0u32);
        let before = b.sub(self.read, self.words);
        b.select(first, (self.stages - 1) * self.words, before)
    }

    /// Waits until the copies of the next k-tile have arrived, those of all threads.
    pub(super) fn wait(&self, b: &mut Builder) {
        b.copy_wait(self.stages - 2);
        self.participants.wait(b);
    }

    /// The first word of the stage that has arrived.
    pub(super) fn start(&self, b: &mut Builder) -> Operand {
        b.named("stage", self.read)
    }

    /// Advances to the next stage. The released stage may be written again after all threads have called this and
    /// have read it.
    pub(super) fn release(&self, b: &mut Builder) {
        let next = b.add(self.read, self.words);
        let last = b.equal(next, self.stages * self.words);
        let next = b.select(last, 0u32, next);
        b.set(self.read, next);
    }

    /// Waits until all copies have arrived and no stage is read any more.
    pub(super) fn finish(&self, b: &mut Builder) {
        b.copy_wait(0);
        self.participants.wait(b);
    }
}
