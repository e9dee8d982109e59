//! Errors of the verifier.

use std::fmt;

use super::broken_rule::{DeclarationError, LaunchError, RoleError, TmemError, ValueError};
use crate::ir::{Access, Type, Uniformity};
use crate::target::Feature;

/// One error, and its statement.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyError {
    /// The statement's number, as the printer shows it; `None` for the kernel's declarations.
    pub at: Option<usize>,
    /// The error.
    pub kind: VerifyErrorKind,
}

/// All errors of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyErrors {
    /// The kernel's name.
    pub kernel: String,
    /// The errors, at least one.
    pub errors: Vec<VerifyError>,
}

/// The kinds of errors.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyErrorKind {
    /// The target has no instruction set of this IR.
    #[error("{0} is not a GPU target of this IR")]
    NotAGpu(&'static str),
    /// An invalid or duplicate name.
    #[error("invalid or duplicate name `{name}` among the {among}")]
    Name {
        /// The name.
        name: String,
        /// The kind of item: buffers, registers, ...
        among: &'static str,
    },
    /// A number of threads, blocks or registers that the target cannot launch.
    #[error("launch: {0}")]
    Launch(LaunchError),
    /// More shared memory than a block can have.
    #[error("{bytes} bytes of shared memory; a block of {target} has at most {limit}")]
    SharedSize {
        /// What the kernel declares.
        bytes: u32,
        /// The target's limit.
        limit: u32,
        /// The target.
        target: &'static str,
    },
    /// An inconsistent declaration.
    #[error("`{name}`: {what}")]
    Declaration {
        /// What is declared.
        name: String,
        /// What is wrong with it.
        what: DeclarationError,
    },
    /// An item that is used and not declared.
    #[error("there is no {what} number {number}")]
    Unknown {
        /// A register, buffer, parameter, ...
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// An element outside of a register array.
    #[error("`{name}` is out of bounds of an array of {len}")]
    ArrayBounds {
        /// The element.
        name: String,
        /// The array's length.
        len: u32,
    },
    /// A value of the wrong type.
    #[error("{role}: expected {expected}, found {found}")]
    WrongType {
        /// Which operand.
        role: &'static str,
        /// The type that the operation needs.
        expected: Type,
        /// The actual type.
        found: Type,
    },
    /// The wrong number of registers.
    #[error("{role}: expected {expected} registers, found {found}")]
    Count {
        /// Which operand.
        role: &'static str,
        /// What the operation needs.
        expected: usize,
        /// The actual type.
        found: usize,
    },
    /// An operation in control flow that may not include all threads it needs.
    #[error("needs control that is uniform over a {needs}; here it is {control}")]
    Divergent {
        /// The uniformity that the operation needs.
        needs: Uniformity,
        /// The uniformity of control.
        control: Uniformity,
    },
    /// A value that may differ between threads is assigned to a uniform register.
    #[error("`{name}` is uniform over a {promised}; the value or control here is {found}")]
    NotUniform {
        /// The register.
        name: String,
        /// The register's uniformity.
        promised: Uniformity,
        /// The uniformity of the value and of control.
        found: Uniformity,
    },
    /// A register that is not written on every path to this statement.
    #[error("`{0}` is read where it may not have been written")]
    Undefined(String),
    /// A register that a matrix operation in flight uses, or that a load from tensor memory writes.
    #[error("`{0}` is used by an operation in flight")]
    InFlight(String),
    /// An accumulator that is used while a group of matrix operations is in flight, in a loop where a
    /// group is in flight from one iteration to the next: the assembler waits for all of them.
    #[error("`{0}` is used while matrix operations are in flight from one iteration to the next")]
    AcrossIterations(String),
    /// A matrix operation on registers that were written since the last fence.
    #[error("`{0}` was written since the last matrix fence")]
    Unfenced(String),
    /// An access that the buffer's declaration does not allow.
    #[error("`{name}` is {access:?}: {what}")]
    BufferAccess {
        /// The buffer.
        name: String,
        /// The declared access.
        access: Access,
        /// The problem.
        what: &'static str,
    },
    /// An access to memory that an earlier grid may still write.
    #[error("`{0}` is accessed before the wait for earlier grids")]
    BeforeGridWait(String),
    /// An operand in the wrong kind of memory.
    #[error("{role} must be in {expected} memory")]
    WrongSpace {
        /// Which address.
        role: &'static str,
        /// The type that the operation needs.
        expected: &'static str,
    },
    /// A misaligned access.
    #[error("`{name}`: an access of {bytes} bytes at offset {offset} bytes is misaligned")]
    Misaligned {
        /// The array.
        name: String,
        /// Size of the access.
        bytes: u32,
        /// The constant part of its address in bytes.
        offset: u64,
    },
    /// An access that is out of bounds for every index.
    #[error("`{name}`: bytes {from} to {to} are out of bounds of its {len} bytes")]
    OutOfBounds {
        /// The array.
        name: String,
        /// First byte.
        from: u64,
        /// Last byte, exclusive.
        to: u64,
        /// Bytes of the array.
        len: u64,
    },
    /// An instruction that the target does not have.
    #[error("{target} has no {feature:?}")]
    Unavailable {
        /// The target.
        target: &'static str,
        /// The instruction.
        feature: Feature,
    },
    /// A shuffle among more lanes than the target's shuffle group, or in a block that is not a
    /// multiple of its size.
    #[error(
        "shuffles among {lanes} neighbouring lanes are not supported in a block of {threads} on {target}"
    )]
    ShuffleRange {
        /// The target.
        target: &'static str,
        /// Size of the aligned group of lanes that contains both lanes of the shuffle.
        lanes: u32,
        /// Threads of a block.
        threads: u32,
    },
    /// A number that the operation does not accept.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// Roles that are not the last statement of the kernel, or that do not cover its warps.
    #[error("roles: {0}")]
    Roles(RoleError),
    /// Roles that ask for more registers than the block was launched with.
    #[error(
        "roles need {asked} registers, in units of {per} x 32 threads; the launch allocates {given}: \
         the block would deadlock"
    )]
    RegisterSum {
        /// Sum over warps.
        asked: u32,
        /// Sum at launch.
        given: u32,
        /// Registers of a thread at launch.
        per: u32,
    },
    /// A rule of tensor memory.
    #[error("tensor memory: {0}")]
    Tmem(#[from] TmemError),
    /// A loop that writes its own counter.
    #[error("the loop's body writes its counter `{0}`")]
    CounterWritten(String),
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "statement {at}: {}", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}:", self.kernel)?;
        self.errors.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl std::error::Error for VerifyErrors {}
