//! Statements and operations. Each variant's documentation is its definition; the module's
//! documentation says what they have in common.

use std::ops::Range;

use super::{
    Addend, Address, BarrierId, Binary, Cache, Compare, Mask, MatrixOp, MatrixOperand, MatrixScale,
    Operand, Order, ParameterId, Reg, Scope, TensorId, Ternary, Unary, Width,
};

/// A sequence of statements.
pub type Body = Vec<Statement>;

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// An operation.
    Op(Op),
    /// Runs one side, per thread.
    If {
        /// A predicate.
        condition: Operand,
        /// Where it is true.
        then: Body,
        /// Where it is false.
        otherwise: Body,
    },
    /// `for counter in (start..end).step_by(step)`, unsigned: the bounds and the step are read once,
    /// before; the counter is written before each run of the body, which must not write it, and is
    /// poison afterwards. A step of 0, or a counter that would pass 2^32, is an error.
    For {
        /// A u32 register.
        counter: Reg,
        /// First value.
        start: Operand,
        /// End, exclusive.
        end: Operand,
        /// Step.
        step: Operand,
        /// What is repeated.
        body: Body,
    },
    /// Runs `test`, then, where the condition is true, the body, and again.
    While {
        /// Computes the condition.
        test: Body,
        /// A pred register that `test` writes.
        condition: Reg,
        /// What is repeated.
        body: Body,
    },
    /// The warps of the block part ways; allowed once, at the top of the body, as its last
    /// statement. Each warp runs the role whose range holds its number; the ranges follow one
    /// another and cover all warps.
    Roles(Vec<Role>),
}

/// What some warps of a block do.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Its name, for the reader.
    pub name: String,
    /// The warps.
    pub warps: Range<u32>,
    /// Registers a thread that the warps change to when the role starts; needs whole warp groups.
    pub registers: Option<u32>,
    /// What they do.
    pub body: Body,
}

/// Something that a thread knows of itself.
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
    /// Which one.
    pub index: Operand,
}

/// Where a lane takes a shuffled value from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// Lane `own ^ by`.
    Xor,
    /// Lane `by`. If `by` is uniform over the warp, so is the result.
    Index,
    /// Lane `own - by`; its own value where there is none.
    Up,
    /// Lane `own + by`; its own value where there is none.
    Down,
}

/// A vote of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// True if all lanes say true.
    All,
    /// True if any lane says true.
    Any,
}

/// What an atomic operation stores, given the old value o and the operand v.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fetch {
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
    /// Does nothing; a line of the emitted text.
    Comment(String),
    /// dst = a, of the same type.
    Copy {
        /// Result.
        dst: Reg,
        /// Value.
        a: Operand,
    },
    /// dst = a, of the same type, where the program's author promises that a is the same in all
    /// threads of dst's uniformity (that they are not is an error). Control must be uniform over it.
    Uniform {
        /// Result.
        dst: Reg,
        /// Value.
        a: Operand,
    },
    /// dst = something the thread knows of itself.
    Special {
        /// Result, u32.
        dst: Reg,
        /// What.
        value: Special,
    },
    /// dst = a launch parameter; uniform over the block.
    Parameter {
        /// Result, u32.
        dst: Reg,
        /// Which.
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
    /// dst = whether a and b compare so.
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
        /// How much.
        width: Width,
        /// Where it happens; everywhere if `None`.
        mask: Option<Mask>,
        /// For global memory; [`Cache::Default`] for shared.
        cache: Cache,
    },
    /// Writes registers to memory.
    Store {
        /// First word.
        to: Address,
        /// Values, [`Width::registers`] of them; the low bits where the width is less than 32 bits.
        values: Vec<Operand>,
        /// How much.
        width: Width,
        /// Where it happens; everywhere if `None`.
        mask: Option<Operand>,
    },
    /// Asks that the 128 bytes around a global word be brought nearer. No effect on values; the
    /// buffer is [`Access::Constant`](super::Access::Constant).
    Prefetch {
        /// The word, inside its buffer where the mask is true.
        from: Address,
        /// Where it happens; everywhere if `None`.
        mask: Option<Operand>,
    },
    /// Reads, changes and writes a 32-bit word at once; dst = the old value.
    Atomic {
        /// Result, if it is wanted.
        dst: Option<Reg>,
        /// The change.
        op: Fetch,
        /// A word of a workspace or of shared memory, of 32 bits.
        at: Address,
        /// The operand.
        value: Operand,
        /// What it orders.
        order: Order,
        /// For whom.
        scope: Scope,
    },
    /// Reads a 32-bit word of a workspace or of shared memory at once, relaxed or acquire.
    AtomicLoad {
        /// Result.
        dst: Reg,
        /// The word.
        from: Address,
        /// What it orders.
        order: Order,
        /// For whom.
        scope: Scope,
    },
    /// Orders the thread's memory accesses before it before those after it, for the scope.
    Fence {
        /// For whom.
        scope: Scope,
    },

    /// All threads of the block wait for each other. Control: block.
    Barrier,
    /// All lanes of the warp wait for each other. Control: warp.
    WarpSync,
    /// Barrier number `id` (1 to 15; 0 is [`Op::Barrier`]'s) of `threads` threads, a multiple of the
    /// warp. Whole warps come; those that arrive go on at once, the others wait until as many
    /// threads as said have come. Control: warp.
    NamedBarrier {
        /// Its number.
        id: u32,
        /// Threads that come, both kinds.
        threads: u32,
        /// Whether to wait.
        wait: bool,
    },
    /// All threads of the cluster wait for each other; orders shared and global memory among them.
    /// Control: block.
    ClusterBarrier,

    /// dst = another lane's a. All lanes of the warp take part. Control: warp. Result: varying,
    /// [`Shuffle::Index`] excepted. Where fewer lanes than a warp's exchange registers
    /// ([`Gpu::exchange`](crate::target::Gpu::exchange)), the other lane is one of these neighbours:
    /// xor with a constant.
    Shuffle {
        /// Result, u32 or f32.
        dst: Reg,
        /// Which lane.
        op: Shuffle,
        /// Value, of the same type.
        a: Operand,
        /// u32. A lane outside of the warp is an error for xor and index.
        by: Operand,
    },
    /// dst = what the lanes of the warp say. Control: warp. Result: uniform over the warp.
    Vote {
        /// Result, pred.
        dst: Reg,
        /// How votes are counted.
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

    /// Starts to copy 4, 8 or 16 bytes of a thread from global to shared memory; where the mask is
    /// false, zeros are written and nothing is read. Joins the thread's open group.
    CopyAsync {
        /// Shared.
        to: Address,
        /// Global.
        from: Address,
        /// [`Width::B32`], [`Width::B64`] or [`Width::B128`].
        width: Width,
        /// Where it reads; everywhere if `None`.
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
    /// The mbarrier gets one arrival, which was counted in [`Op::MbarrierInit`], when all
    /// [`Op::CopyAsync`] of the thread so far are done.
    CopyArrive {
        /// The mbarrier.
        barrier: BarrierRef,
    },

    /// Prepares an mbarrier: phase 0 is current and completes after `arrivals` arrivals and when no
    /// bytes are expected; then the next phase starts with the same number. One thread does it, and
    /// others use it after a barrier that follows.
    MbarrierInit {
        /// The mbarrier.
        barrier: BarrierRef,
        /// Arrivals of each phase.
        arrivals: u32,
    },
    /// Makes the thread's [`Op::MbarrierInit`]s visible to the cluster and to the async proxy.
    MbarrierFence,
    /// One arrival at the current phase; `expect` bytes more are expected in it first.
    MbarrierArrive {
        /// The mbarrier.
        barrier: BarrierRef,
        /// Bytes, u32.
        expect: Option<Operand>,
    },
    /// Waits until the phase of this parity (0 for phases 0, 2, ..., 1 for 1, 3, ...) has completed:
    /// that is, while the current phase has this parity.
    MbarrierWait {
        /// The mbarrier.
        barrier: BarrierRef,
        /// 0 or 1, u32.
        parity: Operand,
    },

    /// Makes the thread's writes to shared memory visible to the async proxy.
    FenceAsync,
    /// Starts to copy bytes from global to shared memory, both 16-byte aligned, a multiple of 16
    /// bytes; when they are there, they are counted off the bytes that the mbarrier's current phase
    /// expects (the counting may come before the expecting). Each thread that runs it starts one.
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
    /// Starts to copy bytes from shared to global memory, aligned like [`Op::BulkLoad`]; joins the
    /// thread's open bulk group.
    BulkStore {
        /// Global.
        to: Address,
        /// Shared.
        from: Address,
        /// Bytes, u32.
        bytes: Operand,
    },
    /// Starts to copy a box of a tensor map to shared memory. With `multicast`, bit i of the mask
    /// says that block i of the cluster gets it too, at the same place, and counts its bytes on its
    /// own mbarrier of that number. Bytes are counted as by [`Op::BulkLoad`].
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
    /// Starts to copy a box from shared memory to a tensor map's buffer; joins the thread's open
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
    /// matrix i (lanes beyond are ignored); register i of lane l gets the 4 bytes l % 4 of row l / 4.
    /// `transpose`, on 16-bit elements: element (l % 4 * 2 + h, l / 4) in half h instead. All lanes
    /// read; addresses that count are 16-byte aligned. Control: warp.
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
    /// Transposes an 8 x 8 matrix of 16-bit elements that lies as [`Op::MatrixLoad`] leaves it.
    /// Control: warp.
    MatrixTranspose {
        /// Result, u32.
        dst: Reg,
        /// Value, u32.
        a: Operand,
    },
    /// d = a b + c, by a row of [`MATRIX_OPS`](super::MATRIX_OPS). Control: the row's scope. In warp
    /// scope all operands are registers and d is there afterwards. In warp-group scope b, and a if
    /// said so, lie in shared memory, c is d or zero, and the operation is in flight until
    /// [`Op::MatrixWait`]: before the first, and whenever registers it uses were written otherwise,
    /// comes [`Op::MatrixFence`]. A row that scales has scales of A and B, in warp scope.
    Matrix {
        /// The instruction.
        op: &'static MatrixOp,
        /// Result: f32, or u32 for integers.
        d: Vec<Reg>,
        /// A; u32.
        a: MatrixOperand,
        /// B; u32.
        b: MatrixOperand,
        /// What is added.
        c: Addend,
        /// Scales of A and of B, if the row scales.
        scales: Option<[MatrixScale; 2]>,
    },
    /// Orders register writes before warp-group matrix operations that follow. Control: warp group.
    MatrixFence,
    /// Closes a group of the warp group's matrix operations. Control: warp group.
    MatrixCommit,
    /// Waits until at most `pending` of the latest closed groups are in flight. Control: warp group.
    MatrixWait {
        /// Groups that may remain.
        pending: u32,
    },

    /// Waits until all earlier grids that this one depends on are complete, and their writes
    /// visible. Without [`Launch::programmatic`](super::Launch::programmatic): no effect.
    GridWait,
    /// Says that the grid after this one may start, once every block said so or ended.
    GridLaunch,
}
