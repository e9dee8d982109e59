//! Split-K: each block stores its sums in a slot of the workspace, and the last block to arrive adds the
//! slots.

use quantloom_dsl::BufferRole;

use super::Epilogue;
use crate::ir::{
    Access, Address, AtomicOp, BufferId, Builder, Cache, Extent, MemoryOrder, Op, Operand, Scope,
    Special, Type, Width, Word,
};

/// Words of shared memory for the count of blocks that have arrived.
pub(in crate::schedule) const ORDER: u32 = 4;

/// The workspace of blocks that split K: their sums, and their count of arrivals.
pub(super) struct Workspace {
    sums: BufferId,
    /// One per range of rows and tokens; 0 before the first launch, and after each launch.
    arrivals: BufferId,
    /// The block's number, without its split.
    number: Operand,
    /// The number of blocks, without splits.
    blocks: Operand,
}

impl Workspace {
    pub(super) fn declare(b: &mut Builder, epilogue: &Epilogue<'_>) -> Self {
        let (row_block, row_blocks) = epilogue.row_block;
        let (token_block, token_blocks, extent) = epilogue.token_block;
        let rows = Extent::Constant(row_blocks);
        let each = Extent::Constant(epilogue.tokens * epilogue.rows);
        let shape = [Extent::Constant(epilogue.splits), extent, rows, each];
        let layout = "f32 [row, token, rows of blocks, tokens of blocks, split]";
        let sums =
            b.buffer_of(BufferRole::PartialSums, Word::U32, Access::Workspace, &shape, layout);
        let layout = "blocks that have arrived; 0 before the first launch, and after each";
        let arrivals = b.buffer_of(
            BufferRole::Arrivals,
            Word::U32,
            Access::Workspace,
            &[extent, rows],
            layout,
        );
        let number = b.mad(token_block, row_blocks, row_block);
        let blocks = b.mul(token_blocks, row_blocks);
        Self { sums, arrivals, number, blocks }
    }

    pub(super) fn slot(
        &self,
        b: &mut Builder,
        epilogue: &Epilogue<'_>,
        split: Operand,
        [token, row]: [Operand; 2],
    ) -> Address {
        let block = b.mad(split, self.blocks, self.number);
        let place = b.mad(token, epilogue.rows, row);
        let at = b.mad(block, epilogue.tokens * epilogue.rows, place);
        Address::new(self.sums, at)
    }

    /// Counts this block; true in all of its threads if it is the last.
    pub(super) fn arrive(&self, b: &mut Builder, epilogue: &Epilogue<'_>) -> Operand {
        let flag = b.shared("order", Word::U32, ORDER, "how many blocks came before this one");
        b.comment("the last block to arrive adds the slots up");
        epilogue.participants.wait(b);
        let thread = b.special(Special::Thread);
        let leads = b.equal(thread, 0u32);
        let counter = Address::new(self.arrivals, self.number);
        b.when(leads, |b| {
            let before =
                b.atomic(AtomicOp::Add, counter, 1u32, MemoryOrder::AcquireRelease, Scope::Device);
            b.store(Address::new(flag, 0u32), &[before], Width::B32, None);
            let last = b.equal(before, epilogue.splits - 1);
            b.when(last, |b| {
                let (value, order) = (0u32.into(), MemoryOrder::Relaxed);
                let scope = Scope::Device;
                b.push(Op::Atomic {
                    dst: None,
                    op: AtomicOp::Exchange,
                    at: counter,
                    value,
                    order,
                    scope,
                });
            });
        });
        epilogue.participants.wait(b);
        let uniformity = b.control();
        let before = b.variable("before", Type::U32, uniformity);
        let from = Address::new(flag, 0u32);
        b.load_into(&[before], from, Width::B32, None, Cache::Default);
        b.equal(before, epilogue.splits - 1)
    }
}
