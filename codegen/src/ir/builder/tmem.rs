//! Tensor memory.

use super::Builder;
use crate::ir::{
    Address, BarrierRef, MatrixOp, Op, Operand, Reg, SharedTile, TmemAddress, TmemOp, TmemOperand,
    TmemScale, Type, Uniformity,
};

impl TmemAddress {
    /// The place at an address.
    pub fn new(base: impl Into<Operand>) -> Self {
        Self { base: base.into(), column: 0 }
    }

    /// The place `columns` columns after this one.
    #[must_use]
    pub const fn plus(self, columns: u32) -> Self {
        Self { column: self.column + columns, ..self }
    }
}

impl Builder {
    /// Declares the columns of tensor memory that the kernel allocates.
    pub fn tmem_columns(&mut self, columns: u32) {
        self.kernel.tmem_columns = columns;
    }

    /// Adds an operation on tensor memory.
    pub fn tmem(&mut self, op: TmemOp) {
        self.push(Op::Tmem(op));
    }

    /// Allocates the kernel's columns; their address is in a word of shared memory after a barrier.
    pub fn tmem_allocate(&mut self, to: Address) {
        self.tmem(TmemOp::Allocate { to });
    }

    /// Loads `columns` columns of the warp's lanes, and waits for them.
    pub fn tmem_load(&mut self, ty: Type, from: TmemAddress, columns: u32) -> Vec<Reg> {
        let dst = self.fresh_array(ty, columns, Uniformity::Varying);
        self.tmem(TmemOp::Load { dst: dst.clone(), from });
        self.tmem(TmemOp::WaitLoads);
        dst
    }

    /// Starts D = A B, plus D where `adds`.
    pub fn tmem_product(
        &mut self,
        (op, n): (&'static MatrixOp, u32),
        (d, adds): (TmemAddress, Operand),
        (a, b): (TmemOperand, SharedTile),
        scales: Option<[TmemScale; 2]>,
    ) {
        self.tmem(TmemOp::Product { op, n, d, a, b, adds, scales });
    }

    /// One arrival at an mbarrier when the thread's products and copies are complete.
    pub fn tmem_commit(&mut self, barrier: BarrierRef) {
        self.tmem(TmemOp::Commit { barrier });
    }
}
