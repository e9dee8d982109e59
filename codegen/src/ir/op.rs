//! Statements and operations. Each variant's documentation is its definition; the documentation of
//! [`crate::ir`] has the rules common to all.

use std::ops::Range;

use super::{
    Accumulator, Address, BarrierId, Binary, Cache, Compare, Mask, MatrixOp, MatrixOperand,
    MatrixScale, MemoryOrder, Operand, ParameterId, Reg, Scope, TensorId, Ternary, TmemOp, Unary,
    Width,
};

/// A sequence of statements.
pub type Body = Vec<Statement>;

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// An operation.
    Op(Op),
    /// Runs one of two bodies, per thread.
    If {
        /// A predicate.
        condition: Operand,
        /// Where it is true.
        then: Body,
        /// Where it is false.
        otherwise: Body,
    },
    /// `for counter in (start..end).step_by(step)`, unsigned: the bounds and the step are read
    /// once, before the loop. The counter is written before each iteration; the body must not write
    /// it; it is poison after the loop. A step of 0, or a counter of 2^32 or more, is an error.
    For {
        /// A u32 register.
        counter: Reg,
        /// First value.
        start: Operand,
        /// End, exclusive.
        end: Operand,
        /// Step.
        step: Operand,
        /// The loop's body.
        body: Body,
    },
    /// Runs `test`, then the body where the condition is true, and repeats both until it is false.
    While {
        /// Computes the condition.
        test: Body,
        /// A pred register that `test` writes.
        condition: Reg,
        /// The loop's body.
        body: Body,
    },
    /// Warp specialisation: each warp runs the role whose range contains its number. The ranges are
    /// adjacent and cover all warps. Allowed once, as the last statement of the kernel's body.
    Roles(Vec<Role>),
}

/// The program of some warps of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Its name, as a comment.
    pub name: String,
    /// The warps.
    pub warps: Range<u32>,
    /// Registers per thread from the start of the role (`setmaxnreg`); needs whole warp groups.
    pub registers: Option<u32>,
    /// Its statements.
    pub body: Body,
}

/// A special value: the position of a thread in the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// Number of the thread in its block; varying.
    Thread,
    /// Number of the thread in its warp; varying.
    Lane,
    /// Number of the warp in its block; uniform over the warp.
    Warp,
    /// Number of the block along x, y or z (0, 1, 2); uniform over the block.
    Block(u8),
    /// Number of blocks along x, y or z; uniform over the block.
    Blocks(u8),
    /// Number of the block in its cluster; uniform over the block.
    ClusterBlock,
}

/// An mbarrier: number `index` of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BarrierRef {
    /// The array.
    pub array: BarrierId,
    /// Number of the mbarrier in the array.
    pub index: Operand,
}

/// The source lane of a shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// Lane `own ^ by`.
    Xor,
    /// Lane `by`. If `by` is uniform over the warp, so is the result.
    Index,
    /// Lane `own - by`; the lane itself if there is no such lane.
    Up,
    /// Lane `own + by`; the lane itself if there is no such lane.
    Down,
}

/// A vote of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// True if the predicate is true in all lanes.
    All,
    /// True if the predicate is true in any lane.
    Any,
}

/// The value that an atomic operation stores, given the old value o and the operand v.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// o + v modulo 2^32.
    Add,
    /// v.
    Exchange,
    /// The unsigned maximum of o and v.
    Max,
}

/// An operation. `dst` is written; operands are read before anything is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Does nothing; a comment line of the emitted source.
    Comment(String),
    /// The target's compiler moves nothing but loads from shared memory across this point, so that the
    /// values of only one side need registers at once. Neither threads nor memory wait. Compilers that do
    /// not offer this (of PTX and WGSL) see nothing.
    SchedulingBarrier,
    /// dst = a, of the same type.
    Copy {
        /// Result.
        dst: Reg,
        /// Value.
        a: Operand,
    },
    /// dst = a, of the same type, with the promise that a is the same in all threads of dst's
    /// uniformity; a broken promise is an error. Control must be uniform over these threads.
    Uniform {
        /// Result.
        dst: Reg,
        /// Value.
        a: Operand,
    },
    /// dst = a special value.
    Special {
        /// Result, u32.
        dst: Reg,
        /// The special value.
        value: Special,
    },
    /// dst = a launch parameter; uniform over the block.
    Parameter {
        /// Result, u32.
        dst: Reg,
        /// The parameter.
        parameter: ParameterId,
    },
    /// dst = op(a).
    Unary {
        /// Result.
        dst: Reg,
        /// Operation.
        op: Unary,
        /// Value.
        a: Operand,
    },
    /// dst = op(a, b).
    Binary {
        /// Result.
        dst: Reg,
        /// Operation.
        op: Binary,
        /// First value.
        a: Operand,
        /// Second value.
        b: Operand,
    },
    /// dst = op(a, b, c).
    Ternary {
        /// Result.
        dst: Reg,
        /// Operation.
        op: Ternary,
        /// First value.
        a: Operand,
        /// Second value.
        b: Operand,
        /// Third value.
        c: Operand,
    },
    /// dst = the comparison of a and b.
    Compare {
        /// Result, pred.
        dst: Reg,
        /// Comparison.
        op: Compare,
        /// First value.
        a: Operand,
        /// Second value.
        b: Operand,
    },
    /// dst = condition ? a : b.
    Select {
        /// Result.
        dst: Reg,
        /// Pred.
        condition: Operand,
        /// Value where true.
        a: Operand,
        /// Value where false.
        b: Operand,
    },

    /// Reads memory into registers (u32; or f32 for whole registers).
    Load {
        /// Results, [`Width::registers`] of them.
        dst: Vec<Reg>,
        /// First word.
        from: Address,
        /// Width of the access.
        width: Width,
        /// Threads that access memory; all if `None`.
        mask: Option<Mask>,
        /// Cache hint for global memory; [`Cache::Default`] for shared.
        cache: Cache,
    },
    /// Reads shared memory of a block of the cluster, from the same place as in this block; that block must
    /// not have ended.
    ClusterLoad {
        /// Results, [`Width::registers`] of them.
        dst: Vec<Reg>,
        /// First word, shared.
        from: Address,
        /// Width of the access.
        width: Width,
        /// Number of the block in its cluster, u32.
        block: Operand,
    },
    /// Writes registers to memory.
    Store {
        /// First word.
        to: Address,
        /// Values, [`Width::registers`] of them; the low bits where the width is less than 32 bits.
        values: Vec<Operand>,
        /// Width of the access.
        width: Width,
        /// Threads that access memory; all if `None`.
        mask: Option<Operand>,
    },
    /// Prefetches the 128 bytes around a global word into L2. No effect on values; the buffer is
    /// [`Access::Constant`](super::Access::Constant).
    Prefetch {
        /// The word, inside its buffer where the mask is true.
        from: Address,
        /// Threads that access memory; all if `None`.
        mask: Option<Operand>,
    },
    /// dst = what a 32-bit global word is, or was, or anything: earlier grids may be writing the word, and nothing orders the
    /// read after them. Allowed before [`Op::GridWait`]. For work that may begin early if the guess proves right; the program has to
    /// be correct whatever each lane gets. Result: varying.
    Guess {
        /// Result, u32; 0 in threads that do not guess.
        dst: Reg,
        /// The word, inside its buffer where the mask is true.
        from: Address,
        /// Threads that guess; all if `None`.
        mask: Option<Operand>,
    },
    /// Reads, changes and writes a 32-bit word atomically; dst = the old value.
    Atomic {
        /// Result; `None` if it is not used.
        dst: Option<Reg>,
        /// The change.
        op: AtomicOp,
        /// A word of a workspace or of shared memory, of 32 bits.
        at: Address,
        /// The operand.
        value: Operand,
        /// Its memory order.
        order: MemoryOrder,
        /// Its scope.
        scope: Scope,
    },
    /// Reads a 32-bit word of a workspace or of shared memory atomically, relaxed or acquire.
    AtomicLoad {
        /// Result.
        dst: Reg,
        /// The word.
        from: Address,
        /// Its memory order.
        order: MemoryOrder,
        /// Its scope.
        scope: Scope,
    },
    /// Orders the thread's memory accesses before it before those after it, for the scope.
    Fence {
        /// Its scope.
        scope: Scope,
    },

    /// All threads of the block wait for each other. Control: block.
    Barrier,
    /// All lanes of the warp wait for each other. Control: warp.
    WarpSync,
    /// Barrier number `id` (1 to 15; 0 is [`Op::Barrier`]'s) of `threads` threads, a multiple of
    /// the warp. Whole warps take part: some only arrive, the others wait until all `threads` have
    /// arrived. Control: warp.
    NamedBarrier {
        /// Its number.
        id: u32,
        /// Threads that arrive or wait.
        threads: u32,
        /// Whether this warp waits.
        wait: bool,
    },
    /// All threads of the cluster wait for each other; orders shared and global memory among them. Each
    /// warp of each block executes one, at whatever statement. Control: warp.
    ClusterBarrier,

    /// dst = another lane's a. All lanes of the warp take part. Control: warp. Result: varying,
    /// except of [`Shuffle::Index`]. If the target's shuffle group
    /// ([`Gpu::shuffle_group`](crate::target::Gpu::shuffle_group)) is smaller than a warp, only
    /// [`Shuffle::Xor`] with a constant below the group's size is allowed.
    Shuffle {
        /// Result, u32 or f32.
        dst: Reg,
        /// The source lane.
        op: Shuffle,
        /// Value, of the same type.
        a: Operand,
        /// u32. A lane outside of the warp is an error for xor and index.
        by: Operand,
    },
    /// dst = the vote of all lanes of the warp. Control: warp. Result: uniform over the warp.
    Vote {
        /// Result, pred.
        dst: Reg,
        /// The kind of vote.
        op: Vote,
        /// Pred.
        a: Operand,
    },
    /// Bit i of the results, 32 to a register, is lane i's a. Control: warp. Result: uniform over
    /// the warp.
    Ballot {
        /// Results, u32, one per 32 lanes.
        dst: Vec<Reg>,
        /// Pred.
        a: Operand,
    },

    /// Starts a copy of 4, 8 or 16 bytes per thread from global to shared memory; where the mask is
    /// false, writes zeros and reads nothing. The copy belongs to the thread's open group.
    CopyAsync {
        /// Shared.
        to: Address,
        /// Global.
        from: Address,
        /// [`Width::B32`], [`Width::B64`] or [`Width::B128`].
        width: Width,
        /// Threads that read global memory; all if `None`.
        mask: Option<Operand>,
    },
    /// Closes the thread's open group of [`Op::CopyAsync`], empty or not.
    CopyCommit,
    /// Waits until at most `pending` of the thread's latest closed groups are unfinished; 0 also
    /// waits for copies in no closed group.
    CopyWait {
        /// Groups that may remain.
        pending: u32,
    },
    /// Arrives once at the mbarrier when all [`Op::CopyAsync`] of the thread so far are complete;
    /// [`Op::MbarrierInit`] counts this arrival.
    CopyArrive {
        /// The mbarrier.
        barrier: BarrierRef,
    },

    /// Initialises an mbarrier: phase 0 is current. A phase completes after `arrivals` arrivals,
    /// when all expected bytes have been counted; then the next phase starts with the same number.
    /// One thread executes this; other threads use the mbarrier after a barrier.
    MbarrierInit {
        /// The mbarrier.
        barrier: BarrierRef,
        /// Arrivals of each phase.
        arrivals: u32,
    },
    /// Makes the thread's [`Op::MbarrierInit`]s visible to the cluster and to the async proxy.
    MbarrierFence,
    /// One arrival at the current phase; the phase first expects `expect` more bytes.
    MbarrierArrive {
        /// The mbarrier.
        barrier: BarrierRef,
        /// Bytes, u32.
        expect: Option<Operand>,
    },
    /// One arrival at the current phase of the mbarrier of the same number in a block of the cluster; that block must not
    /// have ended. It orders reads by matrix products and copies that the phase waits for, no other accesses of two blocks.
    ClusterArrive {
        /// The mbarrier.
        barrier: BarrierRef,
        /// Number of the block in its cluster, u32.
        block: Operand,
    },
    /// Waits until the phase of this parity (0 for phases 0, 2, ..., 1 for 1, 3, ...) has
    /// completed: that is, while the current phase has this parity.
    MbarrierWait {
        /// The mbarrier.
        barrier: BarrierRef,
        /// 0 or 1, u32.
        parity: Operand,
    },

    /// Makes the thread's writes to shared memory visible to the async proxy.
    FenceAsync,
    /// Starts a copy of a multiple of 16 bytes from global to shared memory, both 16-byte aligned.
    /// When it completes, its bytes are subtracted from the bytes that the mbarrier's current phase
    /// expects (this may happen before they are expected). Each thread that executes it starts one.
    BulkLoad {
        /// Shared.
        to: Address,
        /// Global.
        from: Address,
        /// Bytes, u32.
        bytes: Operand,
        /// The mbarrier.
        barrier: BarrierRef,
    },
    /// Starts a copy of bytes from shared to global memory, aligned like [`Op::BulkLoad`], in the
    /// thread's open bulk group.
    BulkStore {
        /// Global.
        to: Address,
        /// Shared.
        from: Address,
        /// Bytes, u32.
        bytes: Operand,
    },
    /// Starts a copy of a box of a tensor map to shared memory. With `multicast`, each block i of
    /// the cluster whose bit i of the mask is set receives the box, at the same address, and counts
    /// its bytes on its own mbarrier of the same number. Bytes are counted as by [`Op::BulkLoad`].
    TensorLoad {
        /// Shared; aligned to 128 bytes, with a swizzle to 8 times its bytes.
        to: Address,
        /// The map.
        map: TensorId,
        /// First element along each dimension, fastest first; u32 read as two's complement.
        at: Vec<Operand>,
        /// The mbarrier.
        barrier: BarrierRef,
        /// Blocks of the cluster, u32.
        multicast: Option<Operand>,
    },
    /// Starts a copy of a box from shared memory to a tensor map's buffer, in the thread's open
    /// bulk group.
    TensorStore {
        /// The map.
        map: TensorId,
        /// First element along each dimension, fastest first; u32 read as two's complement.
        at: Vec<Operand>,
        /// Shared, aligned like [`Op::TensorLoad`].
        from: Address,
    },
    /// Closes the thread's open group of bulk and tensor stores.
    BulkCommit,
    /// Waits until at most `pending` of the thread's latest closed bulk groups are unfinished.
    BulkWait {
        /// Groups that may remain.
        pending: u32,
        /// Waits only until they have read shared memory.
        reads_only: bool,
    },

    /// Loads 1, 2 or 4 matrices of 8 rows of 16 bytes: lane 8i + r gives the address of row r of
    /// matrix i (other lanes' addresses are ignored); register i of lane l is 4-byte word l % 4 of
    /// row l / 4. `transpose`, on 16-bit elements: element (l % 4 * 2 + h, l / 4) in half h
    /// instead. All lanes read; the addresses used are 16-byte aligned. Control: warp.
    MatrixLoad {
        /// Results, u32.
        dst: Vec<Reg>,
        /// Shared, per lane.
        from: Address,
        /// Whether rows become columns.
        transpose: bool,
    },
    /// The inverse of [`Op::MatrixLoad`]. Control: warp.
    MatrixStore {
        /// Shared, per lane.
        to: Address,
        /// 1, 2 or 4 values, u32.
        values: Vec<Operand>,
        /// Whether columns become rows.
        transpose: bool,
    },
    /// Transposes an 8 x 8 matrix of 16-bit elements in the lane map of [`Op::MatrixLoad`].
    /// Control: warp.
    MatrixTranspose {
        /// Result, u32.
        dst: Reg,
        /// Value, u32.
        a: Operand,
    },
    /// d = a b + c, by a row of [`MATRIX_OPS`](super::MATRIX_OPS). Control: the row's scope. In
    /// warp scope all operands are in registers. In warp-group scope b is in shared memory, a in
    /// registers or shared memory, c is d or zero, and the operation is in flight until
    /// [`Op::MatrixWait`]; an [`Op::MatrixFence`] must precede the first operation, and any
    /// operation on registers that other operations have written since. A scaling instruction has
    /// scales of A and B.
    Matrix {
        /// The instruction.
        op: &'static MatrixOp,
        /// Result: f32, or u32 for integers.
        d: Vec<Reg>,
        /// A; u32.
        a: MatrixOperand,
        /// B; u32.
        b: MatrixOperand,
        /// C.
        c: Accumulator,
        /// Scales of A and of B, of a scaling instruction.
        scales: Option<[MatrixScale; 2]>,
    },
    /// Orders register writes before warp-group matrix operations that follow. Control: warp group.
    MatrixFence,
    /// Closes a group of the warp group's matrix operations. Control: warp group.
    MatrixCommit,
    /// Waits until at most `pending` of the latest closed groups are in flight. Control: warp
    /// group.
    MatrixWait {
        /// Groups that may remain.
        pending: u32,
    },

    /// An operation on tensor memory.
    Tmem(TmemOp),

    /// Waits until all earlier grids that this one depends on are complete, and their writes
    /// visible. Without [`LaunchConfig::programmatic`](super::LaunchConfig::programmatic): no effect.
    GridWait,
    /// Allows the dependent grid to start, once every block has executed this or ended.
    GridLaunch,
}
