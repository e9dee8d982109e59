//! The order of writes and reads of the stages, by two arrays of mbarriers.
//!
//! `full[stage]` completes a phase when the bytes of a k-tile have arrived, and all warps that copy rows by
//! themselves have; `empty[stage]` when every warp that multiplies it has read it, in each block that shares the copies
//! of x. Phase p of both is the p-th use of the stage, so a wait needs the parity of p; a [`StagePhase`] counts it.

use crate::ir::{BarrierId, BarrierRef, Builder, Op, Operand, Reg, Special, Type, Uniformity};

/// A ring of stages.
pub(in crate::schedule) struct Ring {
    full: BarrierId,
    empty: BarrierId,
    pub(in crate::schedule) stages: u32,
    writers: u32,
    /// Warps of a block that read a stage.
    readers: u32,
    /// Blocks of the cluster whose copies fill a stage: each waits for the warps of all.
    blocks: u32,
}

/// A k-tile's stage, and the parity of that use of the stage.
#[derive(Clone, Copy)]
pub(in crate::schedule) struct StagePhase {
    pub(in crate::schedule) stage: Operand,
    parity: Operand,
}

/// The phase of the k-tile of an iteration, as variables of a loop.
#[derive(Clone, Copy)]
pub(in crate::schedule) struct Cursor {
    stage: Reg,
    parity: Reg,
}

impl Ring {
    /// Declares the mbarriers of so many stages, at which so many writers arrive and which so many warps read.
    /// Copies of so many blocks fill a stage.
    pub(in crate::schedule) fn declare(
        b: &mut Builder,
        (stages, writers, (readers, blocks)): (u32, u32, (u32, u32)),
    ) -> Self {
        let (full, empty) = (b.barriers("full", stages), b.barriers("empty", stages));
        Self { full, empty, stages, writers, readers, blocks }
    }

    /// One thread initialises the mbarriers; other threads use them after a barrier.
    pub(in crate::schedule) fn initialise(&self, b: &mut Builder) {
        b.comment("full: the copies of a stage have arrived; empty: every warp has read it");
        let thread = b.special(Special::Thread);
        let first = b.equal(thread, 0u32);
        b.when(first, |b| {
            for stage in 0..self.stages {
                for (array, arrivals) in
                    [(self.full, self.writers), (self.empty, self.readers * self.blocks)]
                {
                    let barrier = BarrierRef { array, index: stage.into() };
                    b.push(Op::MbarrierInit { barrier, arrivals });
                }
            }
            b.push(Op::MbarrierFence);
        });
    }

    /// A cursor at the first k-tile.
    pub(in crate::schedule) fn cursor(&self, b: &mut Builder) -> Cursor {
        let variable = |b: &mut Builder, name: &str| {
            let reg = b.variable(name, Type::U32, b.control().min(Uniformity::WarpGroup));
            b.set(reg, 0u32);
            reg
        };
        Cursor { stage: variable(b, "stage"), parity: variable(b, "parity") }
    }

    /// The phase of k-tile `number`, which is below the number of stages.
    pub(in crate::schedule) fn first(&self, number: u32) -> StagePhase {
        StagePhase { stage: number.into(), parity: 0u32.into() }
    }

    /// The phase after this one.
    pub(in crate::schedule) fn after(&self, b: &mut Builder, phase: StagePhase) -> StagePhase {
        let stage = b.add(phase.stage, 1u32);
        let last = b.equal(stage, self.stages);
        let flipped = b.xor(phase.parity, 1u32);
        StagePhase {
            stage: b.select(last, 0u32, stage),
            parity: b.select(last, flipped, phase.parity),
        }
    }

    /// The phase so many k-tiles after this one.
    pub(in crate::schedule) fn later(
        &self,
        b: &mut Builder,
        phase: StagePhase,
        k_tiles: u32,
    ) -> StagePhase {
        let (rounds, rest) = (k_tiles / self.stages, k_tiles % self.stages);
        let stage = b.add(phase.stage, rest);
        let same = b.less(stage, self.stages);
        let in_ring = b.sub(stage, self.stages);
        let flips = [rounds % 2, (rounds + 1) % 2].map(|by| b.xor(phase.parity, by));
        StagePhase {
            stage: b.select(same, stage, in_ring),
            parity: b.select(same, flips[0], flips[1]),
        }
    }

    /// A producer waits until a stage has been read.
    pub(in crate::schedule) fn acquire(&self, b: &mut Builder, phase: StagePhase) {
        // The first use waits for the phase before phase 0, which counts as complete.
        let parity = b.xor(phase.parity, 1u32);
        b.push(Op::MbarrierWait { barrier: self.of(self.empty, phase), parity });
    }

    /// A producer announces the bytes of a stage; its copies arrive at the mbarrier that this returns.
    pub(in crate::schedule) fn expect(
        &self,
        b: &mut Builder,
        phase: StagePhase,
        bytes: u32,
    ) -> BarrierRef {
        let barrier = self.of(self.full, phase);
        b.push(Op::MbarrierArrive { barrier, expect: Some(bytes.into()) });
        barrier
    }

    /// The mbarrier at which the copies of a stage arrive.
    pub(in crate::schedule) fn arrival(&self, phase: StagePhase) -> BarrierRef {
        self.of(self.full, phase)
    }

    /// A warp has written its part of a stage, where the condition, of its first lane, is true. Each lane's writes are
    /// complete.
    pub(in crate::schedule) fn written(
        &self,
        b: &mut Builder,
        phase: StagePhase,
        first_lane: Operand,
    ) {
        let barrier = self.of(self.full, phase);
        b.push(Op::FenceAsync);
        b.push(Op::WarpSync);
        b.when(first_lane, |b| b.push(Op::MbarrierArrive { barrier, expect: None }));
    }

    /// A consumer waits until a stage is there.
    pub(in crate::schedule) fn wait(&self, b: &mut Builder, phase: StagePhase) {
        b.push(Op::MbarrierWait { barrier: self.of(self.full, phase), parity: phase.parity });
    }

    /// A warp has read a stage, where the condition, of its first lane, is true.
    pub(in crate::schedule) fn release(
        &self,
        b: &mut Builder,
        stage: Operand,
        first_lane: Operand,
    ) {
        let barrier = BarrierRef { array: self.empty, index: stage };
        b.push(Op::WarpSync);
        let others = (1..self.blocks).map(|apart| {
            let rank = b.special(Special::ClusterBlock);
            let other = b.add(rank, apart);
            b.rem(other, self.blocks)
        });
        let others: Vec<Operand> = others.collect();
        b.when(first_lane, |b| {
            b.push(Op::MbarrierArrive { barrier, expect: None });
            for block in others {
                b.push(Op::ClusterArrive { barrier, block });
            }
        });
    }

    /// The mbarrier at which the end of a stage's reads arrives.
    pub(in crate::schedule) fn end_of_reads(&self, phase: StagePhase) -> BarrierRef {
        self.of(self.empty, phase)
    }

    fn of(&self, array: BarrierId, phase: StagePhase) -> BarrierRef {
        BarrierRef { array, index: phase.stage }
    }
}

impl Cursor {
    /// The phase of this iteration's k-tile.
    pub(in crate::schedule) fn phase(&self) -> StagePhase {
        StagePhase { stage: self.stage.into(), parity: self.parity.into() }
    }

    /// Moves to the phase of the next iteration's.
    pub(in crate::schedule) fn move_to(&self, b: &mut Builder, phase: StagePhase) {
        b.set(self.stage, phase.stage);
        b.set(self.parity, phase.parity);
    }
}
