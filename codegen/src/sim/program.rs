//! The flat program that a warp runs: every operand is a slot, every jump target a step's number.
//!
//! 32-bit registers and constants share one file of *slots*; predicate registers and constants
//! have a file of *flags*. Launch parameters are constants, since a program is lowered for one
//! launch.

use crate::ir::{
    AtomicOp, Binary, Compare, MatrixOp, MemoryOrder, Scope, Shuffle, Special, Swizzle, TensorId,
    Ternary, Unary, Uniformity, Vote, Width,
};

/// A 32-bit slot.
pub(super) type RegSlot = u32;
/// A predicate slot.
pub(super) type PredSlot = u32;

/// A program for one launch.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// Registers of 32 bits; constants follow.
    pub(super) registers: usize,
    /// Registers of one bit; constants follow.
    pub(super) flags: usize,
    /// Values of the slots after the registers.
    pub(super) constants: Vec<u32>,
    /// Values of the flags after the registers.
    pub(super) constant_flags: Vec<bool>,
    /// Names of the slots that are registers.
    pub(super) slot_names: Vec<String>,
    /// Names of the flags that are registers.
    pub(super) flag_names: Vec<String>,
    /// Number of statements.
    pub(super) points: usize,
    /// Whether the kernel has warp-group matrix operations, which use registers in flight.
    pub(super) matrix_groups: bool,
}

/// A step, its program point and its class.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) point: u32,
    pub(super) class: InstructionClass,
    pub(super) what: Instruction,
}

/// Classes of instructions, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstructionClass {
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
    /// Asynchronous copies, their commits and waits.
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

impl InstructionClass {
    /// All classes, in the order of a report.
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

    /// The name in a report.
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

/// An address in an array: word `index + offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayAddress {
    pub(super) array: ArrayId,
    pub(super) index: RegSlot,
    pub(super) offset: u32,
    /// Bytes of a word.
    pub(super) word: u32,
}

/// A buffer or a shared block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrayId {
    Global(u32),
    Shared(u32),
}

/// An mbarrier: `index` of an array.
#[derive(Clone, Copy, Debug)]
pub(super) struct MbarrierAddress {
    pub(super) array: u32,
    pub(super) index: RegSlot,
}

/// A scale of a matrix operation: its slot, and its byte in the slot.
pub(super) type ScaleSlot = (RegSlot, u8);

/// An operand of a warp-group matrix operation in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperandTile {
    pub(super) at: ArrayAddress,
    pub(super) leading: u32,
    pub(super) stride: u32,
    pub(super) swizzle: Swizzle,
}

/// Where a matrix operand is stored.
#[derive(Clone, Debug)]
pub(super) enum OperandSource {
    Slots(Box<[RegSlot]>),
    Tile(OperandTile),
}

/// What a step does. Control flow uses a stack of masks: `If` and the loops push, `Pop` restores.
#[derive(Clone, Debug)]
pub(super) enum Instruction {
    Comment,
    Copy {
        dst: RegSlot,
        a: RegSlot,
    },
    CopyFlag {
        dst: PredSlot,
        a: PredSlot,
    },
    Uniform {
        dst: RegSlot,
        a: RegSlot,
        scope: Uniformity,
    },
    UniformFlag {
        dst: PredSlot,
        a: PredSlot,
        scope: Uniformity,
    },
    Special {
        dst: RegSlot,
        value: Special,
    },
    Unary {
        op: Unary,
        dst: RegSlot,
        a: RegSlot,
    },
    Not {
        dst: PredSlot,
        a: PredSlot,
    },
    Binary {
        op: Binary,
        dst: RegSlot,
        a: RegSlot,
        b: RegSlot,
    },
    BinaryFlag {
        and: bool,
        dst: PredSlot,
        a: PredSlot,
        b: PredSlot,
    },
    Ternary {
        op: Ternary,
        dst: RegSlot,
        abc: [RegSlot; 3],
    },
    Compare {
        op: Compare,
        dst: PredSlot,
        a: RegSlot,
        b: RegSlot,
    },
    Select {
        dst: RegSlot,
        condition: PredSlot,
        a: RegSlot,
        b: RegSlot,
    },
    SelectFlag {
        dst: PredSlot,
        condition: PredSlot,
        a: PredSlot,
        b: PredSlot,
    },

    Load {
        dst: Box<[RegSlot]>,
        from: ArrayAddress,
        width: Width,
        mask: Option<(PredSlot, RegSlot)>,
    },
    Store {
        to: ArrayAddress,
        values: Box<[RegSlot]>,
        width: Width,
        mask: Option<PredSlot>,
    },
    Prefetch {
        from: ArrayAddress,
        mask: Option<PredSlot>,
    },
    Atomic {
        dst: Option<RegSlot>,
        op: AtomicOp,
        at: ArrayAddress,
        value: RegSlot,
        order: MemoryOrder,
        scope: Scope,
    },
    AtomicLoad {
        dst: RegSlot,
        from: ArrayAddress,
        order: MemoryOrder,
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
        dst: RegSlot,
        op: Shuffle,
        a: RegSlot,
        by: RegSlot,
    },
    Vote {
        dst: PredSlot,
        op: Vote,
        a: PredSlot,
    },
    Ballot {
        dst: Box<[RegSlot]>,
        a: PredSlot,
    },

    CopyAsync {
        to: ArrayAddress,
        from: ArrayAddress,
        width: Width,
        mask: Option<PredSlot>,
    },
    CopyCommit,
    CopyWait {
        pending: u32,
    },
    CopyArrive {
        barrier: MbarrierAddress,
    },
    MbarrierInit {
        barrier: MbarrierAddress,
        arrivals: u32,
    },
    MbarrierFence,
    MbarrierArrive {
        barrier: MbarrierAddress,
        expect: Option<RegSlot>,
    },
    MbarrierWait {
        barrier: MbarrierAddress,
        parity: RegSlot,
    },
    FenceAsync,
    BulkLoad {
        to: ArrayAddress,
        from: ArrayAddress,
        bytes: RegSlot,
        barrier: MbarrierAddress,
    },
    BulkStore {
        to: ArrayAddress,
        from: ArrayAddress,
        bytes: RegSlot,
    },
    TensorLoad {
        to: ArrayAddress,
        map: TensorId,
        at: Box<[RegSlot]>,
        barrier: MbarrierAddress,
        multicast: Option<RegSlot>,
    },
    TensorStore {
        map: TensorId,
        at: Box<[RegSlot]>,
        from: ArrayAddress,
    },
    BulkCommit,
    BulkWait {
        pending: u32,
        reads_only: bool,
    },

    MatrixLoad {
        dst: Box<[RegSlot]>,
        from: ArrayAddress,
        transpose: bool,
    },
    MatrixStore {
        to: ArrayAddress,
        values: Box<[RegSlot]>,
        transpose: bool,
    },
    MatrixTranspose {
        dst: RegSlot,
        a: RegSlot,
    },
    Matrix {
        op: &'static MatrixOp,
        d: Box<[RegSlot]>,
        a: OperandSource,
        b: OperandSource,
        c: Option<Box<[RegSlot]>>,
        /// Scales of A and B.
        scales: Option<[ScaleSlot; 2]>,
    },
    MatrixFence,
    MatrixCommit,
    MatrixWait {
        pending: u32,
    },
    GridWait,
    GridLaunch,

    /// Continues with the lanes whose condition holds; jumps to `otherwise` if there are none.
    If {
        condition: PredSlot,
        otherwise: usize,
    },
    /// Continues with the other lanes of the innermost `If`; jumps to `end` if there are none.
    Else {
        end: usize,
    },
    /// Continues with all lanes of the innermost `If` or loop.
    Pop,
    /// Copies the end and the step to `kept`, and the start to the counter.
    ForEnter {
        counter: RegSlot,
        start: RegSlot,
        end: RegSlot,
        step: RegSlot,
        kept: [RegSlot; 2],
    },
    /// Continues with the lanes whose counter is below the end; jumps to `exit` if there are none.
    ForTest {
        counter: RegSlot,
        end: RegSlot,
        exit: usize,
    },
    /// Adds the step to the counter, and jumps to `test`.
    ForNext {
        counter: RegSlot,
        step: RegSlot,
        test: usize,
    },
    /// The end of a `For`: `Pop`, and the counter becomes poison.
    ForExit {
        counter: RegSlot,
    },
    WhileEnter,
    /// Continues with the lanes whose condition holds; jumps to `exit` if there are none.
    WhileTest {
        condition: PredSlot,
        exit: usize,
    },
    Jump(usize),
    /// Each warp jumps to the entry whose range contains its number.
    Roles(Box<[(std::ops::Range<u32>, usize)]>),
    End,
}
