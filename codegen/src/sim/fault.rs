//! What the simulator refuses, with everything that is needed to find it in the schedule.

use std::fmt;

use crate::ir::{Access, Address, Body, Kernel, Op, SharedBlock, Space, Statement};

/// The first error of a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Fault {
    /// The kernel's name.
    pub kernel: String,
    /// The statement, where one is to blame.
    pub point: Option<Point>,
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
pub struct Point {
    /// Its number.
    pub number: u32,
    /// The statement's name.
    pub op: String,
    /// The comment before it in the same body, if there is one.
    pub comment: Option<String>,
}

/// A place in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The buffer or shared block.
    pub array: String,
    /// The first word of the access, in words of the array.
    pub word: u64,
}

/// An access that another one clashes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Where in the program.
    pub point: Point,
    /// Whether it wrote.
    pub wrote: bool,
    /// Who: "warp 3 lane 5", "the engine of mbarrier `full[2]`".
    pub who: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultKind {
    /// The launch does not fit the kernel.
    #[error("the launch does not fit: {0}")]
    Launch(String),
    /// A register that was never written is read.
    #[error("reads {0}, which holds no value")]
    PoisonRegister(String),
    /// Memory that was never written is read.
    #[error("reads {0}, which nothing has written")]
    PoisonMemory(Place),
    /// A shared block is read whose memory another block has taken since.
    #[error("reads {0}, over which `{1}` was written since")]
    Overwritten(Place, String),
    /// Memory or a register is touched that an asynchronous operation is still writing.
    #[error("touches {what}, which is still being written by {by}")]
    InFlight {
        /// The register or the place.
        what: String,
        /// What writes it.
        by: Point,
    },
    /// Memory or a register is written that an asynchronous operation is still reading.
    #[error("writes {what}, which is still being read by {by}")]
    BeingRead {
        /// The register or the place.
        what: String,
        /// What reads it.
        by: Point,
    },
    /// Two accesses, of which one writes, that nothing orders.
    #[error("{} {place}, unordered with {other}", if *writes { "writes" } else { "reads" })]
    Race {
        /// Where.
        place: Place,
        /// Whether this access writes.
        writes: bool,
        /// The other access.
        other: Other,
    },
    /// An access outside of its array.
    #[error("{place} is outside: the array has {words} words")]
    OutOfBounds {
        /// Where.
        place: Place,
        /// The array's length in words.
        words: u64,
    },
    /// An access that does not start at a multiple of its width.
    #[error("{place} lies at byte {byte}, not a multiple of {align}")]
    Misaligned {
        /// Where.
        place: Place,
        /// Byte from the start of the buffer, or of shared memory.
        byte: u64,
        /// What it must be a multiple of.
        align: u32,
    },
    /// A box that does not begin at a multiple of 16 bytes of its tensor's fastest dimension: an
    /// illegal instruction on an H200.
    #[error("the box begins {0} bytes into the fastest dimension, not a multiple of 16")]
    BoxStart(i64),
    /// An operation of all lanes, warps or threads that not all take part in.
    #[error("not all {0} take part")]
    Divergent(&'static str),
    /// Warps of a block or group that wait for each other at different statements.
    #[error("while another warp is at {0}")]
    DivergentPoints(Point),
    /// Nothing can go on.
    #[error("waits forever; waiting: {}", .0.join("; "))]
    Deadlock(Vec<String>),
    /// The kernel ran longer than the limit.
    #[error("ran {0} instructions in one warp without an end")]
    Endless(u64),
    /// A buffer that an earlier grid may write is touched before [`Op::GridWait`].
    #[error("touches `{0}` before the wait for earlier grids")]
    BeforeGridWait(String),
    /// A word of a write-once buffer is written twice.
    #[error("writes {place}, which {other} has written")]
    StoredTwice {
        /// Where.
        place: Place,
        /// Who wrote it before.
        other: Other,
    },
    /// A word of a write-once buffer that nothing wrote.
    #[error("nothing wrote {place}, and {missing} words of the array in all")]
    NeverWritten {
        /// The first.
        place: Place,
        /// How many.
        missing: u64,
    },
    /// An access that the buffer's declaration forbids.
    #[error("{what} `{buffer}`, which is declared {access:?}")]
    WrongAccess {
        /// The buffer.
        buffer: String,
        /// What is tried.
        what: &'static str,
        /// Its declaration.
        access: Access,
    },
    /// The async proxy reads shared memory that was written without a fence since.
    #[error(
        "the async proxy reads {place}; no FenceAsync of its writer and a barrier follow {write}"
    )]
    MissingProxyFence {
        /// Where.
        place: Place,
        /// The write.
        write: Point,
    },
    /// A warp-group matrix operation uses a register that was written without a fence since.
    #[error("uses {0}, which was written after the last MatrixFence")]
    MissingMatrixFence(String),
    /// The block ends with work that nobody waited for.
    #[error("the block ends, and nothing has waited for {0}")]
    Unfinished(Point),
    /// A division by 0.
    #[error("divides by 0")]
    DividesByZero,
    /// A shift by 32 or more.
    #[error("shifts by {0}, 32 or more")]
    ShiftRange(u32),
    /// A shuffle from a lane that does not exist, or that does not exchange registers with this one.
    #[error("takes a value from lane {0}")]
    LaneRange(u32),
    /// A loop whose step is 0 or whose counter passes 2^32.
    #[error("the loop's step is 0 or its counter passes 2^32")]
    LoopRange,
    /// A value that was promised to be the same.
    #[error("not the same value in all threads of the {0}: {1:#x} and {2:#x}")]
    NotUniform(&'static str, u32, u32),
    /// A barrier is used against its rules.
    #[error("{barrier}: {problem}")]
    Barrier {
        /// Which.
        barrier: String,
        /// What is wrong.
        problem: String,
    },
    /// The simulator has no model of it.
    #[error("is not simulated: {0}")]
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
            Self::Endless(_) => "endless",
            Self::BeforeGridWait(_) => "grid wait",
            Self::StoredTwice { .. } => "stored twice",
            Self::NeverWritten { .. } => "never written",
            Self::WrongAccess { .. } => "wrong access",
            Self::MissingProxyFence { .. } => "proxy fence",
            Self::MissingMatrixFence(_) => "matrix fence",
            Self::Unfinished(_) => "unfinished",
            Self::DividesByZero => "divides by zero",
            Self::ShiftRange(_) => "shift range",
            Self::LaneRange(_) => "lane range",
            Self::LoopRange => "loop range",
            Self::NotUniform(..) => "not uniform",
            Self::Barrier { .. } => "barrier",
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

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}", self.number, self.op)?;
        match &self.comment {
            Some(comment) => write!(f, " ({comment})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.array, self.word)
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = if self.wrote { "the write" } else { "the read" };
        write!(f, "{does} at {} by {}", self.point, self.who)
    }
}

/// The statement of a number, named for a reader.
pub(super) fn point(kernel: &Kernel, number: u32) -> Point {
    match find(&kernel.body, number, &mut 0) {
        Some((statement, comment)) => {
            Point { number, op: name(statement), comment: comment.map(str::to_owned) }
        }
        None => Point { number, op: "end".to_owned(), comment: None },
    }
}

/// The shared block that the statement of a number loads from, if it does.
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
        let found = match statement {
            Statement::Op(Op::Comment(text)) => {
                comment = Some(text.as_str());
                None
            }
            Statement::Op(_) => None,
            Statement::If { then, otherwise, .. } => {
                find(then, number, next).or_else(|| find(otherwise, number, next))
            }
            Statement::For { body, .. } => find(body, number, next),
            Statement::While { test, body, .. } => {
                find(test, number, next).or_else(|| find(body, number, next))
            }
            Statement::Roles(roles) => roles.iter().find_map(|role| find(&role.body, number, next)),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The statement's variant, and the instruction where it is a family.
fn name(statement: &Statement) -> String {
    match statement {
        Statement::Op(Op::Unary { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Binary { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Ternary { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Compare { op, .. }) => format!("{op:?}"),
        Statement::Op(Op::Matrix { op, .. }) => op.name.to_owned(),
        Statement::Op(op) => variant(op),
        other => variant(other),
    }
}

/// The first word of what Debug prints.
fn variant(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.chars().take_while(|c| c.is_alphanumeric()).collect()
}
