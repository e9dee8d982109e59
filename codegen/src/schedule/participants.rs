//! The warps of a block that take part in a step, and their barrier.

use crate::ir::{Builder, Op, Operand, Special};

/// Neighbouring warps of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Participants {
    /// The first warp.
    pub(super) first_warp: u32,
    /// How many warps.
    pub(super) warps: u32,
    /// The number of their named barrier, 1 to 15; `None` if all warps of the block take part.
    pub(super) named_barrier: Option<u32>,
}

impl Participants {
    /// All warps of a block.
    pub(super) const fn block(warps: u32) -> Self {
        Self { first_warp: 0, warps, named_barrier: None }
    }

    /// How many threads.
    pub(super) fn threads(self, b: &Builder) -> u32 {
        self.warps * b.warp_size()
    }

    /// The number of this thread among them.
    pub(super) fn thread(self, b: &mut Builder) -> Operand {
        let thread = b.special(Special::Thread);
        self.among(b, thread, b.warp_size())
    }

    /// [`Self::thread`], from the number of the warp in the block and of the lane in the warp.
    pub(super) fn thread_of(self, b: &mut Builder, warp: Operand, lane: Operand) -> Operand {
        let warp = self.among(b, warp, 1);
        b.mad(warp, b.warp_size(), lane)
    }

    /// A number relative to the first warp's, with `of_warp` numbers per warp.
    fn among(self, b: &mut Builder, number: Operand, of_warp: u32) -> Operand {
        if self.first_warp == 0 { number } else { b.sub(number, self.first_warp * of_warp) }
    }

    /// A barrier among these warps; each warp's writes to shared memory become visible to all.
    pub(super) fn wait(self, b: &mut Builder) {
        match self.named_barrier {
            None => b.barrier(),
            Some(id) => b.push(Op::NamedBarrier { id, threads: self.threads(b), wait: true }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Participants;
    use crate::ir::{Builder, Op, Operand, Special, Statement};
    use crate::target::target;

    fn builder() -> Builder {
        Builder::trial(target("sm_90a").unwrap())
    }

    /// What `write` writes.
    fn written(write: impl FnOnce(&mut Builder) -> Operand) -> String {
        let mut b = builder();
        write(&mut b);
        b.finish().to_string()
    }

    #[test]
    fn a_block_waits_at_its_barrier_and_a_part_at_a_named_one() {
        let mut b = builder();
        Participants::block(12).wait(&mut b);
        let consumers = Participants { first_warp: 4, warps: 8, named_barrier: Some(2) };
        consumers.wait(&mut b);
        let ops: Vec<Statement> = b.finish().body;
        let barrier = Op::NamedBarrier { id: 2, threads: 256, wait: true };
        assert_eq!(ops, [Statement::Op(Op::Barrier), Statement::Op(barrier)]);
    }

    #[test]
    fn threads_are_numbered_from_the_first_warp_on() {
        let plain = |b: &mut Builder| b.special(Special::Thread);
        assert_eq!(written(|b| Participants::block(12).thread(b)), written(plain));
        let consumers = Participants { first_warp: 4, warps: 8, named_barrier: Some(1) };
        let from_the_fourth = |b: &mut Builder| {
            let thread = b.special(Special::Thread);
            b.sub(thread, 128u32)
        };
        assert_eq!(written(|b| consumers.thread(b)), written(from_the_fourth));
    }
}
