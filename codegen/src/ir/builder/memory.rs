//! Loads, stores, copies, barriers.

use super::Builder;
use crate::ir::{
    Access, Address, AtomicOp, BufferId, Cache, Mask, MemoryOrder, Op, Operand, Reg, Scope,
    SharedId, Shuffle, Space, Special, Type, Uniformity, Width,
};
use crate::target::Feature;

impl From<BufferId> for Space {
    fn from(id: BufferId) -> Self {
        Self::Global(id)
    }
}

impl From<SharedId> for Space {
    fn from(id: SharedId) -> Self {
        Self::Shared(id)
    }
}

impl Address {
    /// Word `index` of an array.
    pub fn new(space: impl Into<Space>, index: impl Into<Operand>) -> Self {
        Self { space: space.into(), index: index.into(), offset: 0 }
    }

    /// The address `words` words after this one.
    #[must_use]
    pub const fn plus(self, words: u32) -> Self {
        Self { offset: self.offset + words, ..self }
    }
}

impl Mask {
    /// A mask with fill 0.
    pub fn or_zero(condition: impl Into<Operand>) -> Self {
        Self { condition: condition.into(), fill: Operand::U32(0) }
    }
}

impl Builder {
    /// Loads words.
    pub fn load(&mut self, from: Address, width: Width) -> Vec<Reg> {
        self.load_as(Type::U32, from, width, None, Cache::Default)
    }

    /// Loads registers of a type, with a mask and a cache hint.
    pub fn load_as(
        &mut self,
        ty: Type,
        from: Address,
        width: Width,
        mask: Option<Mask>,
        cache: Cache,
    ) -> Vec<Reg> {
        let mut uniformity = self.control.min(self.uniformity(from.index));
        if let Some(mask) = mask {
            uniformity = uniformity.min(self.uniformity(mask.condition));
            uniformity = uniformity.min(self.uniformity(mask.fill));
        }
        if let Space::Global(buffer) = from.space
            && self.kernel.buffers[buffer.0 as usize].access == Access::Workspace
        {
            uniformity = uniformity.min(Uniformity::Warp);
        }
        let dst = self.fresh_array(ty, width.registers() as u32, uniformity);
        self.push(Op::Load { dst: dst.clone(), from, width, mask, cache });
        dst
    }

    /// Guesses a word that earlier grids may be writing, the same for all lanes of a warp.
    pub fn guess(&mut self, from: Address) -> Operand {
        // One lane for all: of such a load each lane is a request of its own.
        let lane = self.special(Special::Lane);
        let first = self.equal(lane, 0u32);
        let dst = self.fresh_as(Type::U32, Uniformity::Varying);
        self.push(Op::Guess { dst, from, mask: Some(first) });
        self.shuffle(Shuffle::Index, dst, 0u32)
    }

    /// Loads into given registers, with a mask and a cache hint.
    pub fn load_into(
        &mut self,
        dst: &[Reg],
        from: Address,
        width: Width,
        mask: Option<Mask>,
        cache: Cache,
    ) {
        self.push(Op::Load { dst: dst.to_vec(), from, width, mask, cache });
    }

    /// Loads f32 from another block's shared memory.
    pub fn cluster_load(
        &mut self,
        from: Address,
        width: Width,
        block: impl Into<Operand>,
    ) -> Vec<Reg> {
        let dst = self.fresh_array(Type::F32, width.registers() as u32, Uniformity::Varying);
        self.push(Op::ClusterLoad { dst: dst.clone(), from, width, block: block.into() });
        dst
    }

    /// All threads of the cluster wait for each other.
    pub fn cluster_barrier(&mut self) {
        self.push(Op::ClusterBarrier);
    }

    /// Stores values where the mask is true.
    pub fn store(&mut self, to: Address, values: &[Operand], width: Width, mask: Option<Operand>) {
        self.push(Op::Store { to, values: values.to_vec(), width, mask });
    }

    /// Starts a copy from global to shared memory; writes zeros where the mask is false. On a
    /// target without asynchronous copies, a load and a store.
    pub fn copy_async(&mut self, to: Address, from: Address, width: Width, mask: Option<Operand>) {
        if self.target().has(Feature::CpAsync) {
            return self.push(Op::CopyAsync { to, from, width, mask });
        }
        let words = self.load_as(Type::U32, from, width, mask.map(Mask::or_zero), Cache::Default);
        let words: Vec<Operand> = words.into_iter().map(Operand::Reg).collect();
        self.store(to, &words, width, None);
    }

    /// Commits a group of started copies.
    pub fn copy_commit(&mut self) {
        if self.target().has(Feature::CpAsync) {
            self.push(Op::CopyCommit);
        }
    }

    /// Waits until at most `pending` of the thread's latest copy groups are in flight.
    pub fn copy_wait(&mut self, pending: u32) {
        if self.target().has(Feature::CpAsync) {
            self.push(Op::CopyWait { pending });
        }
    }

    /// Changes a word atomically, and returns its old value.
    pub fn atomic(
        &mut self,
        op: AtomicOp,
        at: Address,
        value: impl Into<Operand>,
        order: MemoryOrder,
        scope: Scope,
    ) -> Operand {
        let dst = self.fresh_as(Type::U32, Uniformity::Varying);
        self.push(Op::Atomic { dst: Some(dst), op, at, value: value.into(), order, scope });
        dst.into()
    }

    /// All threads of the block wait for each other.
    pub fn barrier(&mut self) {
        self.push(Op::Barrier);
    }
}
