//! What can be wrong with a kernel, by name.

use std::fmt;

use crate::ir::{Access, Type, Uniformity};
use crate::target::Feature;

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The statement's number, as the printer shows it; `None` for the kernel's declarations.
    pub at: Option<usize>,
    /// What is wrong.
    pub fault: Fault,
}

/// Everything that is wrong with a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusals {
    /// The kernel's name.
    pub kernel: String,
    /// At least one.
    pub refusals: Vec<Refusal>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The target has no instructions of its own.
    #[error("{0} is no GPU target of this IR")]
    NotAGpu(&'static str),
    /// A name that cannot stand in a program, or stands twice.
    #[error("`{name}` is not a name, or not the only one, among the {among}")]
    Name {
        /// The name.
        name: String,
        /// What is so named.
        among: &'static str,
    },
    /// A number of threads, blocks or registers that the target cannot launch.
    #[error("launch: {0}")]
    Launch(String),
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
    /// A declaration that does not hang together.
    #[error("`{name}`: {what}")]
    Declaration {
        /// What is declared.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// Something is used that is not declared.
    #[error("there is no {what} number {number}")]
    Unknown {
        /// A register, buffer, parameter, ...
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// An element beyond a register array.
    #[error("`{name}` is beyond an array of {len}")]
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
        /// What the operation is of.
        expected: Type,
        /// What stands there.
        found: Type,
    },
    /// The wrong number of registers.
    #[error("{role}: expected {expected} registers, found {found}")]
    Count {
        /// Which operand.
        role: &'static str,
        /// What the operation needs.
        expected: usize,
        /// What stands there.
        found: usize,
    },
    /// An operation where the threads that it needs may not all come.
    #[error("needs control that is uniform over a {needs}; here it is {control}")]
    Divergent {
        /// What the operation demands.
        needs: Uniformity,
        /// What control is.
        control: Uniformity,
    },
    /// A value that may differ between threads goes where it must not.
    #[error("`{name}` is uniform over a {promised}; the value or control here is {found}")]
    NotUniform {
        /// The register.
        name: String,
        /// What it promises.
        promised: Uniformity,
        /// What is given.
        found: Uniformity,
    },
    /// A register that nothing has written on some way here.
    #[error("`{0}` is read where it may not have been written")]
    Undefined(String),
    /// A register that a matrix operation still uses.
    #[error("`{0}` is used by a matrix operation in flight")]
    InFlight(String),
    /// A matrix operation on registers that were written since the last fence.
    #[error("`{0}` was written since the last matrix fence")]
    Unfenced(String),
    /// An access that the buffer does not allow.
    #[error("`{name}` is {access:?}: {what}")]
    BufferAccess {
        /// The buffer.
        name: String,
        /// What is allowed.
        access: Access,
        /// What was tried.
        what: &'static str,
    },
    /// Memory that an earlier grid may still write.
    #[error("`{0}` is touched before the wait for earlier grids")]
    BeforeGridWait(String),
    /// The wrong kind of memory.
    #[error("{role} must be {expected} memory")]
    WrongSpace {
        /// Which address.
        role: &'static str,
        /// What the operation is of.
        expected: &'static str,
    },
    /// An access that cannot be aligned.
    #[error("`{name}`: an access of {bytes} bytes at offset {offset} bytes is misaligned")]
    Misaligned {
        /// The array.
        name: String,
        /// Size of the access.
        bytes: u32,
        /// Its known part of the address.
        offset: u64,
    },
    /// An access that is beyond the array wherever its index is.
    #[error("`{name}`: bytes {from} to {to} are beyond its {len}")]
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
    /// A shuffle between lanes of which the target does not say that they exchange registers.
    #[error(
        "{lanes} neighbouring lanes do not exchange registers in a block of {threads} on {target}"
    )]
    Exchange {
        /// The target.
        target: &'static str,
        /// Lanes among which the other one is.
        lanes: u32,
        /// Threads of a block.
        threads: u32,
    },
    /// A number that the operation does not take.
    #[error("{0}")]
    Value(String),
    /// Roles somewhere else than at the end of the body, or not covering the warps.
    #[error("roles: {0}")]
    Roles(String),
    /// Roles that ask for more registers than the block was launched with.
    #[error(
        "roles ask for {asked} registers, {per} x 32 threads a unit; the launch gives {given}: \
         the block would wait for ever"
    )]
    RegisterSum {
        /// Sum over warps.
        asked: u32,
        /// Sum at launch.
        given: u32,
        /// Registers of a thread at launch.
        per: u32,
    },
    /// A loop that writes its own counter.
    #[error("the loop's body writes its counter `{0}`")]
    CounterWritten(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "statement {at}: {}", self.fault),
            None => self.fault.fmt(f),
        }
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}:", self.kernel)?;
        self.refusals.iter().try_for_each(|refusal| write!(f, "\n  {refusal}"))
    }
}

impl std::error::Error for Refusals {}
