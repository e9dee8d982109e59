//! Operations on tensor memory. Each variant's documentation is its definition; [`crate::target::tmem`] says where the
//! operands of products are.
//!
//! A kernel has one allocation, of [`Kernel::tmem_columns`](super::Kernel::tmem_columns) columns. An address is a word:
//! the column in the low 16 bits, the lane above. Addresses are added like numbers.
//!
//! **In flight.** [`TmemOp::Load`] writes its registers, [`TmemOp::Store`] tensor memory, until the warp's wait for them. A
//! [`TmemOp::Copy`] and a [`TmemOp::Product`] read and write until an mbarrier's phase completes by the
//! [`TmemOp::Commit`] of the thread that started them. Of one thread, products of the same instruction and D run in their order,
//! and a product after copies that it reads; the IR promises no other order of what is in flight. (PTX also orders a copy before the
//! product of another thread that has waited for the first.) Products and copies read shared memory through the async proxy.
//!
//! **Between threads.** A barrier or mbarrier orders operations on tensor memory if the thread before it has executed
//! [`TmemOp::FenceBefore`] after its operations (a commit does that), and the thread after it executes
//! [`TmemOp::FenceAfter`] before its own. Source: PTX ISA 9.1, "Memory Consistency Model for 5th generation of TensorCore
//! operations".

use super::{Address, BarrierRef, MatrixOp, Operand, Reg, SharedTile};

/// A place in tensor memory: `column` columns after an address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TmemAddress {
    /// The address that [`TmemOp::Allocate`] has written, plus columns and lanes; u32.
    pub base: Operand,
    /// Columns after it.
    pub column: u32,
}

/// A of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TmemOperand {
    /// A tile of shared memory.
    Shared(SharedTile),
    /// Tensor memory.
    Tmem(TmemAddress),
}

/// The scales of an operand of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TmemScale {
    /// The first column of its words, in lane 0.
    pub at: TmemAddress,
    /// The first byte of a row's scales in its word, a multiple of their number.
    pub byte: u8,
}

/// An operation on tensor memory.
#[derive(Clone, Debug, PartialEq)]
pub enum TmemOp {
    /// Allocates the block's columns and writes their address to a word of shared memory, as a store by the warp's lanes
    /// does. Waits until other blocks have freed enough of them. Once in a kernel, before any other of these operations.
    /// Control: warp.
    Allocate {
        /// A 32-bit word of shared memory.
        to: Address,
    },
    /// Frees the block's columns, which nothing uses any more. Once in a kernel, by the warp that allocated them. Control: warp.
    Free {
        /// The address that [`TmemOp::Allocate`] has written.
        base: Operand,
    },
    /// Register i of lane l is column i of lane `l` of the warp's lanes, which start at 32 times its number in its warp
    /// group. Control: warp.
    Load {
        /// 1, 2, 4, ... 128 results.
        dst: Vec<Reg>,
        /// The first column of the warp's first lane; uniform over the warp.
        from: TmemAddress,
    },
    /// The inverse of [`TmemOp::Load`]. Control: warp.
    Store {
        /// The first column of the warp's first lane; uniform over the warp.
        to: TmemAddress,
        /// 1, 2, 4, ... 128 values.
        values: Vec<Operand>,
    },
    /// Waits for the warp's [`TmemOp::Load`]s. Control: warp.
    WaitLoads,
    /// Waits for the warp's [`TmemOp::Store`]s. Control: warp.
    WaitStores,
    /// Starts a copy of 512 bytes of shared memory to four columns of every quarter of the lanes: word c of the 16 bytes
    /// of row r goes to column c of lanes r, r + 32, r + 64 and r + 96. By one thread.
    Copy {
        /// The first column of lane 0.
        to: TmemAddress,
        /// 32 rows of 16 bytes.
        from: Address,
    },
    /// Starts D = A B + D, or A B. By one thread.
    Product {
        /// The instruction, whose scope is [`MatrixScope::TensorMemory`](super::MatrixScope::TensorMemory).
        op: &'static MatrixOp,
        /// N.
        n: u32,
        /// The first column of D, in lane 0.
        d: TmemAddress,
        /// A.
        a: TmemOperand,
        /// B, column by column.
        b: SharedTile,
        /// Whether D is added; pred.
        adds: Operand,
        /// Scales of A and of B, of a product that scales.
        scales: Option<[TmemScale; 2]>,
    },
    /// One arrival at the current phase of the mbarrier when the thread's copies and products so far are complete;
    /// [`Op::MbarrierInit`](super::Op::MbarrierInit) counts this arrival. It is a [`TmemOp::FenceBefore`] too. By one thread.
    Commit {
        /// The mbarrier.
        barrier: BarrierRef,
    },
    /// Orders the thread's operations on tensor memory before a barrier or an arrival that follows. A load or store of the warp is
    /// an operation of each of its threads.
    FenceBefore,
    /// Orders the thread's operations on tensor memory after a barrier or a wait before it.
    FenceAfter,
}
