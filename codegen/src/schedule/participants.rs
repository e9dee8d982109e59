//! The warps of a block that take part in a step, and their barrier.

use crate::ir::{Builder, Op};

/// The first warps of a block, or for a barrier alone any of its warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Participants {
    /// How many warps.
    pub(super) warps: u32,
    /// The number of their named barrier, 1 to 15; `None` if all warps of the block take part.
    pub(super) named_barrier: Option<u32>,
}

impl Participants {
    /// All warps of a block.
    pub(super) const fn block(warps: u32) -> Self {
        Self { warps, named_barrier: None }
    }

    /// How many threads.
    pub(super) fn threads(self, b: &Builder) -> u32 {
        self.warps * b.warp_size()
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
    use crate::ir::{Builder, Op, Statement};
    use crate::target::target;

    #[test]
    fn a_block_waits_at_its_barrier_and_a_part_at_a_named_one() {
        let mut b = Builder::trial(target("sm_90a").unwrap());
        Participants::block(12).wait(&mut b);
        Participants { warps: 8, named_barrier: Some(2) }.wait(&mut b);
        let ops: Vec<Statement> = b.finish().body;
        let barrier = Op::NamedBarrier { id: 2, threads: 256, wait: true };
        assert_eq!(ops, [Statement::Op(Op::Barrier), Statement::Op(barrier)]);
    }
}
