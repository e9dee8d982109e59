//! The flat program that a warp runs: every operand a slot, every jump a number.
//!
//! Registers and constants of 32 bits share one file of *slots*; predicates, constants included,
//! lie in a file of their own. Launch parameters are constants here, since a program is decoded
//! for one launch.

use crate::ir::{
    Binary, Compare, Fetch, MatrixOp, Order, Scope, Shuffle, Special, Swizzle, TensorId, Ternary,
    Unary, Uniformity, Vote, Width,
};

/// A 32-bit slot.
pub(super) type Slot = u32;
/// A predicate slot.
pub(super) type Flag = u32;

/// A program for one launch.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// Registers of 32 bits; constants follow.
    pub(super) registers: usize,
    /// Registers of one bit; constants follow.
    pub(super) flags: usize,
    /// Values of the slots behind the registers.
    pub(super) constants: Vec<u32>,
    /// Values of the flags behind the registers.
    pub(super) constant_flags: Vec<bool>,
    /// Names of the slots that are registers.
    pub(super) slot_names: Vec<String>,
    /// Names of the flags that are registers.
    pub(super) flag_names: Vec<String>,
    /// Number of statements.
    pub(super) points: usize,
    /// Whether registers can be used by operations in flight.
    pub(super) matrix_groups: bool,
}

/// A step, its program point and its class.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) point: u32,
    pub(super) class: Class,
    pub(super) what: Instruction,
}

/// Classes of instructions, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Arithmetic and logic on integers.
    Integer,
    /// f32 arithmetic.
    Float,
    /// Arithmetic on pairs of 16-bit floats.
    Packed,
    /// Conversions.
    Convert,
    /// Comparisons, selections, predicates.
    Predicate,
    /// Copies of registers, special values.
    Move,
    /// Loads from global memory.
    GlobalLoad,
    /// Stores to global memory.
    GlobalStore,
    /// Loads from shared memory, matrix loads included.
    SharedLoad,
    /// Stores to shared memory, matrix stores included.
    SharedStore,
    /// Atomic operations and fences.
    Atomic,
    /// Starting, closing and awaiting asynchronous copies.
    AsyncCopy,
    /// Barriers of all kinds.
    Barrier,
    /// Shuffles, votes, transposes.
    Exchange,
    /// Matrix products.
    Matrix,
    /// Branches and loop ends.
    Control,
}

impl Class {
    /// All of them, in the order of a report.
    pub const ALL: [Self; 16] = [
        Self::Integer,
        Self::Float,
        Self::Packed,
        Self::Convert,
        Self::Predicate,
        Self::Move,
        Self::GlobalLoad,
        Self::GlobalStore,
        Self::SharedLoad,
        Self::SharedStore,
        Self::Atomic,
        Self::AsyncCopy,
        Self::Barrier,
        Self::Exchange,
        Self::Matrix,
        Self::Control,
    ];

    /// A word for a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Float => "f32",
            Self::Packed => "packed 16-bit",
            Self::Convert => "convert",
            Self::Predicate => "compare, select",
            Self::Move => "move",
            Self::GlobalLoad => "global load",
            Self::GlobalStore => "global store",
            Self::SharedLoad => "shared load",
            Self::SharedStore => "shared store",
            Self::Atomic => "atomic, fence",
            Self::AsyncCopy => "async copy",
            Self::Barrier => "barrier",
            Self::Exchange => "shuffle, vote",
            Self::Matrix => "matrix",
            Self::Control => "control",
        }
    }
}

/// An array and a place in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) array: Array,
    pub(super) index: Slot,
    pub(super) offset: u32,
    /// Bytes of a word.
    pub(super) word: u32,
}

/// A buffer or a shared block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Array {
    Global(u32),
    Shared(u32),
}

/// An mbarrier: `index` of an array.
#[derive(Clone, Copy, Debug)]
pub(super) struct BarrierAt {
    pub(super) array: u32,
    pub(super) index: Slot,
}

/// A scale of a matrix operation: where, and in which byte.
pub(super) type ScaleAt = (Slot, u8);

/// An operand of a warp-group matrix operation in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileAt {
    pub(super) at: At,
    pub(super) leading: u32,
    pub(super) stride: u32,
    pub(super) swizzle: Swizzle,
}

/// Where a matrix operand lies.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Slots(Box<[Slot]>),
    Tile(TileAt),
}

/// What a step does. Control keeps a stack of masks: `If` and the loops push, `Pop` restores.
#[derive(Clone, Debug)]
pub(super) enum Instruction {
    Comment,
    Copy {
        dst: Slot,
        a: Slot,
    },
    CopyFlag {
        dst: Flag,
        a: Flag,
    },
    Uniform {
        dst: Slot,
        a: Slot,
        scope: Uniformity,
    },
    UniformFlag {
        dst: Flag,
        a: Flag,
        scope: Uniformity,
    },
    Special {
        dst: Slot,
        value: Special,
    },
    Unary {
        op: Unary,
        dst: Slot,
        a: Slot,
    },
    Not {
        dst: Flag,
        a: Flag,
    },
    Binary {
        op: Binary,
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    BinaryFlag {
        and: bool,
        dst: Flag,
        a: Flag,
        b: Flag,
    },
    Ternary {
        op: Ternary,
        dst: Slot,
        abc: [Slot; 3],
    },
    Compare {
        op: Compare,
        dst: Flag,
        a: Slot,
        b: Slot,
    },
    Select {
        dst: Slot,
        condition: Flag,
        a: Slot,
        b: Slot,
    },
    SelectFlag {
        dst: Flag,
        condition: Flag,
        a: Flag,
        b: Flag,
    },

    Load {
        dst: Box<[Slot]>,
        from: At,
        width: Width,
        mask: Option<(Flag, Slot)>,
    },
    Store {
        to: At,
        values: Box<[Slot]>,
        width: Width,
        mask: Option<Flag>,
    },
    Prefetch {
        from: At,
        mask: Option<Flag>,
    },
    Atomic {
        dst: Option<Slot>,
        op: Fetch,
        at: At,
        value: Slot,
        order: Order,
        scope: Scope,
    },
    AtomicLoad {
        dst: Slot,
        from: At,
        order: Order,
        scope: Scope,
    },
    Fence {
        scope: Scope,
    },

    Barrier,
    WarpSync,
    NamedBarrier {
        id: u32,
        threads: u32,
        wait: bool,
    },
    ClusterBarrier,
    Shuffle {
        dst: Slot,
        op: Shuffle,
        a: Slot,
        by: Slot,
    },
    Vote {
        dst: Flag,
        op: Vote,
        a: Flag,
    },
    Ballot {
        dst: Box<[Slot]>,
        a: Flag,
    },

    CopyAsync {
        to: At,
        from: At,
        width: Width,
        mask: Option<Flag>,
    },
    CopyCommit,
    CopyWait {
        pending: u32,
    },
    CopyArrive {
        barrier: BarrierAt,
    },
    MbarrierInit {
        barrier: BarrierAt,
        arrivals: u32,
    },
    MbarrierFence,
    MbarrierArrive {
        barrier: BarrierAt,
        expect: Option<Slot>,
    },
    MbarrierWait {
        barrier: BarrierAt,
        parity: Slot,
    },
    FenceAsync,
    BulkLoad {
        to: At,
        from: At,
        bytes: Slot,
        barrier: BarrierAt,
    },
    BulkStore {
        to: At,
        from: At,
        bytes: Slot,
    },
    TensorLoad {
        to: At,
        map: TensorId,
        at: Box<[Slot]>,
        barrier: BarrierAt,
        multicast: Option<Slot>,
    },
    TensorStore {
        map: TensorId,
        at: Box<[Slot]>,
        from: At,
    },
    BulkCommit,
    BulkWait {
        pending: u32,
        reads_only: bool,
    },

    MatrixLoad {
        dst: Box<[Slot]>,
        from: At,
        transpose: bool,
    },
    MatrixStore {
        to: At,
        values: Box<[Slot]>,
        transpose: bool,
    },
    MatrixTranspose {
        dst: Slot,
        a: Slot,
    },
    Matrix {
        op: &'static MatrixOp,
        d: Box<[Slot]>,
        a: Source,
        b: Source,
        c: Option<Box<[Slot]>>,
        /// Of A and B.
        scales: Option<[ScaleAt; 2]>,
    },
    MatrixFence,
    MatrixCommit,
    MatrixWait {
        pending: u32,
    },
    GridWait,
    GridLaunch,

    /// Lanes where the condition holds go on; with none, to `otherwise`.
    If {
        condition: Flag,
        otherwise: usize,
    },
    /// The other lanes of the innermost `If` go on; with none, to `end`.
    Else {
        end: usize,
    },
    /// All lanes of the innermost `If` or loop go on.
    Pop,
    /// Reads the bounds; `last` is poison afterwards.
    ForEnter {
        counter: Slot,
        start: Slot,
        end: Slot,
        step: Slot,
        kept: [Slot; 2],
    },
    /// Lanes whose counter is below the end go on; with none, to `exit`.
    ForTest {
        counter: Slot,
        end: Slot,
        exit: usize,
    },
    /// Adds the step and goes back.
    ForNext {
        counter: Slot,
        step: Slot,
        test: usize,
    },
    /// The end of a `For`: as `Pop`, and the counter is poison.
    ForExit {
        counter: Slot,
    },
    WhileEnter,
    /// Lanes where the condition holds go on; with none, to `exit`.
    WhileTest {
        condition: Flag,
        exit: usize,
    },
    Jump(usize),
    /// Each warp goes to the entry whose range holds it.
    Roles(Box<[(std::ops::Range<u32>, usize)]>),
    End,
}
