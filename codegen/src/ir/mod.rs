//! The kernel IR: one GPU kernel as a typed, structured, SIMT program.
//!
//! In: a schedule's calls of the [`Builder`]. Out: a [`Kernel`], and from [`verify`] a [`Verified`]
//! kernel, which emitters and the simulator require. Start at [`Kernel`], then [`Statement`] and
//! [`Op`]; `table` has a row for each operation, `arithmetic` the value operations, `memory` the
//! addresses, `matrix` the operands of matrix instructions, whose table is [`MATRIX_OPS`].
//!
//! Rust is the macro language: a loop with bounds known at generation time (tile sizes, fragments,
//! unrolled steps) is a Rust loop in the schedule; a loop with bounds known only at launch is a
//! [`Statement::For`]. There is no optimiser: the vendor's compiler allocates registers.
//!
//! # The model
//! A *grid* of thread blocks runs the [`Kernel::body`]. A block has [`LaunchConfig::threads`] threads,
//! divided into *warps* of [`Gpu::warp`](crate::target::Gpu::warp) lanes; four warps that start at
//! a multiple of four are a *warp group* where the target has them; [`LaunchConfig::cluster`] blocks that
//! are adjacent in x are a cluster. Blocks run in any order, and no block may wait for a block
//! outside of its cluster.
//!
//! **Values.** Three types: [`Type::Pred`], [`Type::U32`] (32 bits: an unsigned or two's
//! complement integer, four bytes, or two 16-bit floats, low half first; the operation says which)
//! and [`Type::F32`] (IEEE binary32). [`Register`]s are mutable arrays of a fixed length, one copy
//! per thread, indexed by generation-time constants; a scalar is an array of length 1. A register
//! holds *poison* until it is written. Reading poison is an error, except by [`Op::Copy`], which
//! copies it, and by the operand that [`Op::Select`] does not select.
//!
//! **Order.** Statements of a thread run in order. The threads of a warp may diverge where control
//! is varying, and reconverge after the `if`, `for` or `while` at which they diverged. Warps run
//! independently between barriers.
//!
//! **Uniformity.** A register's [`Uniformity`] promises that all threads of a block, warp group or
//! warp hold the same value in it. An assignment to a register that promises scope S needs operands
//! that are uniform over S and control that is uniform over S. *Control* is uniform over the
//! smaller of what surrounds it and its condition: the body of the kernel is `Block`, a role is
//! `WarpGroup` if its warps start and end at multiples of four and `Warp` otherwise. Operations
//! need control of a minimal uniformity: [`Op::Barrier`]: `Block`; matrix
//! operations in warp-group scope: `WarpGroup`; for shuffles, votes, warp-scope matrix operations,
//! [`Op::MatrixLoad`], [`Op::WarpSync`], [`Op::NamedBarrier`], [`Op::ClusterBarrier`], bulk and tensor copies, see their
//! documentation. A ragged edge is a [`Mask`] with a fill, never a branch.
//!
//! **Memory.** A global [`Buffer`] and a [`SharedBlock`] are arrays of words; an [`Address`] is
//! `index + offset` words, added without wrapping, and an access of [`Width`] w bytes starts at a
//! multiple of w bytes (else: misaligned, an error) and is inside the array (else: out of bounds,
//! an error) unless its mask is false. Shared memory is poison when the kernel starts. Two
//! overlapping accesses by two threads are a race, an error, if one writes and no barrier, fence
//! with atomics, or mbarrier orders them. Little-endian.
//!
//! **Happens-before.** [`Op::Barrier`]: all accesses before it in all threads of the block happen
//! before all accesses after it. [`Op::WarpSync`]: the same within a warp; shuffles, votes and
//! matrix operations order no memory accesses. [`Op::NamedBarrier`]: accesses before it in threads
//! that arrive or wait happen before accesses after it in threads that wait. An mbarrier's phase:
//! accesses before the arrivals that complete it happen before accesses after an
//! [`Op::MbarrierWait`] that sees it complete. [`Op::Atomic`] and [`Op::AtomicLoad`]: if an acquire
//! (or a relaxed atomic followed by an [`Op::Fence`]) reads the value of a release (or of a relaxed
//! atomic after a fence), then the accesses before the release, and those that happen before them,
//! happen before the accesses after the acquire.
//!
//! **In flight.** Some operations are asynchronous:
//! - [`Op::CopyAsync`]: its shared words are in flight until the thread's [`Op::CopyWait`] covers
//!   its group; other threads may read them after a barrier that follows the wait.
//! - [`Op::BulkLoad`], [`Op::TensorLoad`]: the shared words are in flight until the mbarrier's
//!   phase that counts their bytes completes and the reader has waited for it.
//! - [`Op::BulkStore`], [`Op::TensorStore`]: the shared words are being read until
//!   [`Op::BulkWait`]; the global words are in flight until a wait that is not `reads_only`.
//! - operations on tensor memory: see [`TmemOp`].
//! - a [`Op::Matrix`] in warp-group scope: its accumulators are in flight until
//!   [`Op::MatrixWait`]; its A registers and shared operands are being read until then.
//!
//! It is an error to read what is in flight, and to write what is in flight or being read. An
//! asynchronous operation may complete at any moment up to its wait; a program must be correct for
//! all of them. The *async proxy* (bulk and tensor copies, warp-group matrix operations on shared
//! operands) sees a thread's ordinary shared-memory writes only after an [`Op::FenceAsync`] by the
//! writer and then a barrier.
//!
//! **Programmatic dependent launch.** With [`LaunchConfig::programmatic`] the grid may start while
//! earlier grids still run: before [`Op::GridWait`] it may access only buffers with
//! [`Access::Constant`], and guess words of others ([`Op::Guess`]).
//!
//! **Program points.** Statement number i is the i-th in depth-first order of the body, `then`
//! before `otherwise`, `test` before `body`, roles in order, counted from 0, comments included.
//! The printer prints these numbers; simulator and verifier report them.

mod arithmetic;
mod builder;
mod class;
mod kernel;
mod matrix;
mod memory;
mod op;
mod operation;
mod print;
mod register;
mod table;
mod tmem;
mod verify;
mod walk;

pub use crate::target::{Element, Half, MATRIX_OPS, MatrixOp, MatrixScope, Scaling, matrix_op};
pub use arithmetic::{Binary, Compare, Side, Ternary, Unary};
pub use builder::Builder;
pub use class::InstructionClass;
pub use kernel::{
    Access, BarrierArray, BarrierId, Buffer, BufferId, Extent, Kernel, LOOKUP_TABLE, LaunchConfig,
    Parameter, ParameterId, SharedBlock, SharedId, SharedMap, TensorId, TensorMap,
};
pub use matrix::{Accumulator, MatrixOperand, MatrixScale, SharedTile};
pub use memory::{Address, Cache, Mask, MemoryOrder, Scope, Space, Swizzle, Width, Word};
pub use op::{AtomicOp, BarrierRef, Body, Op, Role, Shuffle, Special, Statement, Vote};
pub use operation::{AccessKind, MemoryAccess};
pub(crate) use print::affine;
pub use register::{Operand, Reg, Register, RegisterId, Type, Uniformity};
pub use tmem::{TmemAddress, TmemOp, TmemOperand, TmemScale};
pub use verify::{
    DeclarationError, LaunchError, RoleError, TmemError, ValueError, Verified, VerifyError,
    VerifyErrorKind, VerifyErrors, verify,
};
pub(crate) use walk::each_op;
