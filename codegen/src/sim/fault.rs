//! Faults that the simulator reports, with all that is needed to find them in the schedule.

use std::fmt;

use super::misuse::{BarrierMisuse, LaunchMismatch, TmemMisuse};
use crate::ir::{Access, Address, Body, Kernel, Op, SharedBlock, Space, Statement, TmemOp};

/// The first error of a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub struct Fault {
    /// The kernel's name.
    pub kernel: String,
    /// The statement, if the fault belongs to one.
    pub point: Option<ProgramPoint>,
    /// The block, in x, y and z.
    pub block: Option<[u32; 3]>,
    /// The warp in its block.
    pub warp: Option<u32>,
    /// The lane in its warp.
    pub lane: Option<u32>,
    /// What happened.
    pub kind: FaultKind,
}

/// A program point, as [`crate::ir`] numbers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPoint {
    /// Its number.
    pub number: u32,
    /// The statement's name.
    pub op: String,
    /// The comment before it in the same body, if there is one.
    pub comment: Option<String>,
}

/// A location in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLocation {
    /// The buffer or shared block.
    pub array: String,
    /// The first word of the access, in words of the array.
    pub word: u64,
}

/// The earlier access of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictingAccess {
    /// Its program point.
    pub point: ProgramPoint,
    /// Whether it wrote.
    pub wrote: bool,
    /// Who made it: "block (0, 0, 0) warp 3 lane 5", "the asynchronous copy counted by full\[2\]".
    pub who: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch does not fit the kernel.
    #[error("the launch does not fit: {0}")]
    Launch(LaunchMismatch),
    /// A register that was never written is read.
    #[error("reads {0}, which holds no value")]
    PoisonRegister(String),
    /// Memory that was never written is read.
    #[error("reads {0}, which nothing has written")]
    PoisonMemory(MemoryLocation),
    /// A shared block is read after a write through another block that shares its memory.
    #[error("reads {0}, which a write to `{1}` has overwritten")]
    Overwritten(MemoryLocation, String),
    /// Memory or a register is accessed that an asynchronous operation is still writing.
    #[error("accesses {what}, which is still being written by {by}")]
    InFlight {
        /// The register or memory location.
        what: String,
        /// What writes it.
        by: ProgramPoint,
    },
    /// Memory or a register is written that an asynchronous operation is still reading.
    #[error("writes {what}, which is still being read by {by}")]
    BeingRead {
        /// The register or memory location.
        what: String,
        /// What reads it.
        by: ProgramPoint,
    },
    /// Two accesses without an order, of which at least one writes.
    #[error("{} {location}, unordered with {other}", if *writes { "writes" } else { "reads" })]
    Race {
        /// The location.
        location: MemoryLocation,
        /// Whether this access writes.
        writes: bool,
        /// The other access.
        other: ConflictingAccess,
    },
    /// An access outside of its array.
    #[error("{location} is out of bounds: the array has {words} words")]
    OutOfBounds {
        /// The location.
        location: MemoryLocation,
        /// The array's length in words.
        words: u64,
    },
    /// An access that does not start at a multiple of its width.
    #[error("{location} is at byte {byte}, not a multiple of {align}")]
    Misaligned {
        /// The location.
        location: MemoryLocation,
        /// Byte from the start of the buffer, or of shared memory.
        byte: u64,
        /// What it must be a multiple of.
        align: u32,
    },
    /// A tensor box that does not begin at a multiple of 16 bytes along the fastest dimension: an
    /// illegal instruction on an H200.
    #[error("the box begins {0} bytes into the fastest dimension, not a multiple of 16")]
    BoxStart(i64),
    /// An operation that all lanes, warps or threads must execute, and that some do not.
    #[error("not executed by all {0}")]
    Divergent(&'static str),
    /// Warps of a block or group that wait at different barrier statements.
    #[error("another warp waits at a different barrier, {0}")]
    DivergentPoints(ProgramPoint),
    /// No warp can run.
    #[error("deadlock; waiting: {}", .0.join("; "))]
    Deadlock(Vec<String>),
    /// The kernel ran longer than the limit.
    #[error("infinite loop: one warp ran more than {0} instructions")]
    InfiniteLoop(u64),
    /// A buffer that an earlier grid may write is accessed before [`Op::GridWait`].
    #[error("accesses `{0}` before the wait for earlier grids")]
    BeforeGridWait(String),
    /// A word of a write-once buffer is written twice.
    #[error("writes {location}, which {other} has written")]
    StoredTwice {
        /// The location.
        location: MemoryLocation,
        /// The earlier write.
        other: ConflictingAccess,
    },
    /// Words of a write-once buffer that nothing wrote.
    #[error("{missing} words of the array were never written; the first is {location}")]
    NeverWritten {
        /// The first unwritten word.
        location: MemoryLocation,
        /// Number of unwritten words.
        missing: u64,
    },
    /// An access that the buffer's declaration forbids.
    #[error("{what} `{buffer}`, which is declared {access:?}")]
    WrongAccess {
        /// The buffer.
        buffer: String,
        /// The access: "reads", "writes", ...
        what: &'static str,
        /// Its declaration.
        access: Access,
    },
    /// The async proxy reads shared memory after a write without a proxy fence.
    #[error(
        "the async proxy reads {location} without a FenceAsync by the writer and a barrier after {write}"
    )]
    MissingProxyFence {
        /// The location.
        location: MemoryLocation,
        /// The write.
        write: ProgramPoint,
    },
    /// A warp-group matrix operation uses a register that was written after the last fence.
    #[error("uses {0}, which was written after the last MatrixFence")]
    MissingMatrixFence(String),
    /// Lanes that hold the same element of a matrix operand have different values.
    #[error(
        "{register} of lane {lane} differs from that of the lane whose elements it has to copy"
    )]
    DifferentCopies {
        /// The register.
        register: String,
        /// The lane.
        lane: u32,
    },
    /// The block ends with an asynchronous operation that nothing waited for.
    #[error("the block ends without a wait for {0}")]
    Unfinished(ProgramPoint),
    /// Another block of the cluster reads the block's shared memory or arrives at its mbarrier, and nothing orders that
    /// before the block's end.
    #[error("the block may end before {0}")]
    EndsEarly(ConflictingAccess),
    /// A division by 0.
    #[error("divides by 0")]
    DividesByZero,
    /// A shift by 32 or more.
    #[error("shifts by {0}, 32 or more")]
    ShiftRange(u32),
    /// A shuffle from a lane that does not exist, or that is outside of the lane's shuffle group.
    #[error("shuffles from lane {0}, which is out of range")]
    LaneRange(u32),
    /// A loop whose step is 0 or whose counter passes 2^32.
    #[error("the loop's step is 0 or its counter passes 2^32")]
    LoopRange,
    /// A value that breaks a promise of uniformity.
    #[error("the value is not uniform over the {0}: {1:#x} and {2:#x}")]
    NotUniform(&'static str, u32, u32),
    /// A barrier is used against its rules.
    #[error("{barrier}: {misuse}")]
    Barrier {
        /// The barrier.
        barrier: String,
        /// What is wrong.
        misuse: BarrierMisuse,
    },
    /// Tensor memory is used against its rules.
    #[error("tensor memory {0}")]
    Tmem(TmemMisuse),
    /// An operation that the simulator does not model.
    #[error("not simulated: {0}")]
    Unsupported(&'static str),
}

impl FaultKind {
    /// The name of the detector, for tests and tables.
    pub fn detector(&self) -> &'static str {
        match self {
            Self::Launch(_) => "launch",
            Self::PoisonRegister(_) => "poison register",
            Self::PoisonMemory(_) => "poison memory",
            Self::Overwritten(..) => "overwritten",
            Self::InFlight { .. } => "in flight",
            Self::BeingRead { .. } => "being read",
            Self::Race { .. } => "race",
            Self::OutOfBounds { .. } => "out of bounds",
            Self::Misaligned { .. } | Self::BoxStart(_) => "misaligned",
            Self::Divergent(_) | Self::DivergentPoints(_) => "divergent",
            Self::Deadlock(_) => "deadlock",
            Self::InfiniteLoop(_) => "infinite loop",
            Self::BeforeGridWait(_) => "grid wait",
            Self::StoredTwice { .. } => "stored twice",
            Self::NeverWritten { .. } => "never written",
            Self::WrongAccess { .. } => "wrong access",
            Self::MissingProxyFence { .. } => "proxy fence",
            Self::MissingMatrixFence(_) => "matrix fence",
            Self::DifferentCopies { .. } => "different copies",
            Self::Unfinished(_) => "unfinished",
            Self::EndsEarly(_) => "ends early",
            Self::DividesByZero => "divides by zero",
            Self::ShiftRange(_) => "shift range",
            Self::LaneRange(_) => "lane range",
            Self::LoopRange => "loop range",
            Self::NotUniform(..) => "not uniform",
            Self::Barrier { .. } => "barrier",
            Self::Tmem(_) => "tensor memory",
            Self::Unsupported(_) => "unsupported",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}", self.kernel)?;
        if let Some([x, y, z]) = self.block {
            write!(f, ", block ({x}, {y}, {z})")?;
        }
        if let Some(warp) = self.warp {
            write!(f, ", warp {warp}")?;
        }
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        if let Some(point) = &self.point {
            write!(f, ", at {point}")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl fmt::Display for ProgramPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}", self.number, self.op)?;
        match &self.comment {
            Some(comment) => write!(f, " ({comment})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.array, self.word)
    }
}

impl fmt::Display for ConflictingAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.wrote { "the write" } else { "the read" };
        write!(f, "{kind} at {} by {}", self.point, self.who)
    }
}

/// The statement of a number, with its name and comment for messages.
pub(super) fn point(kernel: &Kernel, number: u32) -> ProgramPoint {
    match find(&kernel.body, number, &mut 0) {
        Some((statement, comment)) => {
            ProgramPoint { number, op: name(statement), comment: comment.map(str::to_owned) }
        }
        None => ProgramPoint { number, op: "end".to_owned(), comment: None },
    }
}

/// The shared block from which the statement of a number loads, if it loads from one.
pub(super) fn loaded(kernel: &Kernel, number: u32) -> Option<&SharedBlock> {
    match find(&kernel.body, number, &mut 0)? {
        (Statement::Op(Op::Load { from: Address { space: Space::Shared(id), .. }, .. }), _) => {
            kernel.shared.get(id.0 as usize)
        }
        _ => None,
    }
}

/// The statement of a number, and the comment before it in the same body.
fn find<'k>(
    body: &'k Body,
    number: u32,
    next: &mut u32,
) -> Option<(&'k Statement, Option<&'k str>)> {
    let mut comment = None;
    for statement in body {
        if *next == number {
            return Some((statement, comment));
        }
        *next += 1;
        if let Statement::Op(Op::Comment(text)) = statement {
            comment = Some(text.as_str());
        }
        let found = statement.bodies().find_map(|body| find(body, number, next));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The name of the statement's operation.
fn name(statement: &Statement) -> String {
    match statement {
        Statement::Op(Op::Unary { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Binary { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Ternary { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Compare { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Matrix { op, .. }) => op.name.to_owned(),
        Statement::Op(Op::Tmem(TmemOp::Product { op, .. })) => op.name.to_owned(),
        Statement::Op(Op::Tmem(op)) => format!("Tmem{}", variant(op)),
        Statement::Op(op) => variant(op),
        other => variant(other),
    }
}

/// The variant's name: the first word that `Debug` prints.
fn variant(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.chars().take_while(|c| c.is_alphanumeric()).collect()
}
