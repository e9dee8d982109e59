//! The kernel IR: one GPU kernel as a typed, structured, SIMT program.
//!
//! In: what a schedule writes through the [`Builder`]. Out: a [`Kernel`], which [`verify`] turns
//! into the [`Verified`] one that every emitter and the simulator take. Start at [`Kernel`], then [`Statement`] and
//! [`Op`]; `arithmetic` has the value operations, `memory` the addresses, `matrix` the table of
//! matrix instructions.
//!
//! Rust is the macro language: what is known at generation time (tile sizes, fragments, unrolled
//! steps) is a loop in the schedule and leaves no trace here; what is known only at launch is a
//! [`Statement::For`]. There is no optimiser: the vendor's compiler allocates registers.
//!
//! # The model
//! A *grid* of thread blocks runs the [`Kernel::body`]. A block has [`Launch::threads`] threads,
//! cut into *warps* of [`Gpu::warp`](crate::target::Gpu::warp) lanes; four warps that start at a
//! multiple of four are a *warp group* where the target has them; [`Launch::cluster`] blocks that
//! follow one another in x are a cluster. Blocks run in any order, and nothing may wait for another
//! block that is not in its cluster.
//!
//! **Values.** Three types: [`Type::Pred`], [`Type::U32`] (32 bits: an unsigned or two's
//! complement integer, four bytes, or two 16-bit floats, low half first; the operation says which)
//! and [`Type::F32`] (IEEE binary32). [`Register`]s are mutable arrays of a fixed length, one copy
//! per thread, indexed by generation-time constants; a scalar is an array of length 1. A register
//! holds *poison* until it is written. Reading poison is an error wherever it is read, except by
//! [`Op::Copy`] and [`Op::Select`]'s side that is not taken, which pass it on or drop it.
//!
//! **Order.** Statements of a thread run in order. The threads of a warp may run apart wherever
//! control is varying and are together again after the `if`, `for` or `while` that divided them.
//! Warps run independently between barriers.
//!
//! **Uniformity.** A register's [`Uniformity`] promises that all threads of a block, warp group or
//! warp hold the same value in it. An assignment to a register that promises scope S needs operands
//! that are uniform over S and control that is uniform over S. *Control* is uniform over the
//! smaller of what surrounds it and its condition: the body of the kernel is `Block`, a role is
//! `WarpGroup` if its warps start and end at multiples of four and `Warp` otherwise. What an
//! operation demands: [`Op::Barrier`], [`Op::ClusterBarrier`]: `Block`; matrix operations in
//! warp-group scope: `WarpGroup`; shuffles, votes, warp-scope matrix operations,
//! [`Op::MatrixLoad`], [`Op::WarpSync`], [`Op::NamedBarrier`], bulk and tensor copies' issue: see
//! each. A ragged edge is a [`Mask`] with a fill, never a branch.
//!
//! **Memory.** A global [`Buffer`] and a [`SharedBlock`] are arrays of words; an [`Address`] is
//! `index + offset` words, added without wrapping, and an access of [`Width`] w bytes starts at a
//! multiple of w bytes (else: misaligned, an error) and lies inside the array (else: out of bounds,
//! an error) unless its mask is false. Shared memory is poison when the kernel starts. Accesses of
//! two threads that overlap, of which one writes, and that no barrier, fence with atomics, or
//! mbarrier orders, are a race, an error. Little-endian.
//!
//! **What orders what.** [`Op::Barrier`]: everything before it in all threads of the block comes
//! before everything after it. [`Op::WarpSync`]: the same within a warp; shuffles, votes and matrix
//! operations order nothing in memory. [`Op::NamedBarrier`]: everything before it in threads that
//! arrive or wait comes before everything after it in threads that wait. An mbarrier's phase:
//! what came before the arrivals that completed it comes before what follows a
//! [`Op::MbarrierWait`] that saw it complete. [`Op::Atomic`] and [`Op::AtomicLoad`]: a release (or
//! an [`Op::Fence`] followed by a relaxed atomic) whose value an acquire (or a relaxed atomic
//! followed by a fence) reads, orders what came before it, in its own thread and what that thread
//! has seen by barriers, before what follows the acquire.
//!
//! **In flight.** Some operations only start work:
//! - [`Op::CopyAsync`]: its shared words are in flight until the thread's [`Op::CopyWait`] covers
//!   its group; other threads may read them after a barrier that follows the wait.
//! - [`Op::BulkLoad`], [`Op::TensorLoad`]: the shared words are in flight until the mbarrier's
//!   phase that counts their bytes completes and the reader waited on it.
//! - [`Op::BulkStore`], [`Op::TensorStore`]: the shared words are being read until
//!   [`Op::BulkWait`]; the global words are in flight until a wait that is not `reads_only`.
//! - a [`Op::Matrix`] in warp-group scope: its accumulators are in flight until
//!   [`Op::MatrixWait`]; its A registers and shared operands are being read until then.
//!
//! Reading what is in flight, or writing what is in flight or being read, is an error. Effects may
//! land at any moment up to their wait; a program must be right for all of them. The *async proxy*
//! (bulk and tensor copies, warp-group matrix operations on shared operands) sees a thread's plain
//! shared-memory writes only after [`Op::FenceAsync`] by the writer and then a barrier.
//!
//! **Programmatic launch.** With [`Launch::programmatic`] the grid may start while earlier grids
//! still run: until [`Op::GridWait`] only buffers with [`Access::Constant`] may be touched.
//!
//! **Program points.** Statement number i is the i-th in depth-first order of the body, `then`
//! before `otherwise`, `test` before `body`, roles in order, counted from 0, comments included.
//! The printer prints these numbers; simulator and verifier report them.

mod arithmetic;
mod builder;
mod hash;
mod kernel;
mod matrix;
mod memory;
mod op;
mod print;
mod register;
mod verify;
mod walk;

pub use arithmetic::{Binary, Compare, Half, Side, Ternary, Unary};
pub use builder::Builder;
pub use hash::ContentHash;
pub use kernel::{
    Access, BarrierArray, BarrierId, Buffer, BufferId, Extent, Kernel, Launch, Parameter,
    ParameterId, SharedBlock, SharedId, SharedMap, TensorId, TensorMap,
};
pub use matrix::{
    Addend, Element, MATRIX_OPS, MatrixOp, MatrixOperand, MatrixScale, MatrixScope, Scaling,
    SharedTile, matrix_op,
};
pub use memory::{Address, Cache, Mask, Order, Scope, Space, Swizzle, Width, Word};
pub use op::{BarrierRef, Body, Fetch, Op, Role, Shuffle, Special, Statement, Vote};
pub use register::{Operand, Reg, Register, RegisterId, Type, Uniformity};
pub use verify::{Fault, Refusal, Refusals, Verified, verify};
pub use walk::Touch;
pub(crate) use walk::each_op;
