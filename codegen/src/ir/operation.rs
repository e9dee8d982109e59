//! What the IR knows of an operation: a row of the table in `table`.

use std::fmt::Debug;

use super::{
    Address, BarrierRef, InstructionClass, Operand, ParameterId, Reg, TensorId, Type, Uniformity,
};
use crate::target::Feature;

/// A row of the table.
pub(crate) struct Operation<'o> {
    /// What the operation reads and writes, in the order of the printed IR.
    pub(crate) parts: Vec<OperationPart<'o>>,
    /// The class under which the simulator counts the operation.
    pub(crate) class: InstructionClass,
    /// The feature that the target must have.
    pub(crate) feature: Feature,
    /// The uniformity that control must have.
    pub(crate) control: Uniformity,
    /// The uniformity of the results.
    pub(crate) result: ResultUniformity,
    /// The effect on other things than registers and memory.
    pub(crate) effect: Effect,
}

/// A part of an operation. The string of an operand is its role, for messages.
#[derive(Clone, Copy)]
pub(crate) enum OperationPart<'o> {
    /// How the IR prints the parts that follow: one for each `{}`.
    Form(&'o str),
    /// A constant of the operation.
    Attribute(&'o dyn Debug),
    /// Registers that it writes.
    Writes(&'static str, Expected<'o>, &'o [Reg]),
    /// Values that it reads.
    Reads(&'static str, Expected<'o>, &'o [Operand]),
    /// Registers that it reads.
    Registers(&'static str, Expected<'o>, &'o [Reg]),
    /// The predicate of the threads that access memory.
    Mask(Operand),
    /// An access to memory.
    Memory(MemoryAccess),
    /// An mbarrier that it uses.
    Mbarrier(BarrierRef),
    /// A launch parameter that it reads.
    Parameter(ParameterId),
    /// A box of a tensor map, by its first element.
    Tensor(TensorId, &'o [Operand]),
}

/// The type that an operand must have.
#[derive(Clone, Copy)]
pub(crate) enum Expected<'o> {
    /// Any type.
    Any,
    /// This type.
    Is(Type),
    /// u32 or f32.
    Word,
    /// The type of each of these registers.
    Like(&'o [Reg]),
}

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// An atomic read and write.
    Atomic,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryAccess {
    /// The first word.
    pub address: Address,
    /// The kind of the access.
    pub kind: AccessKind,
    /// Bytes of one access; 0 if they are a run-time value or a tensor box.
    pub bytes: u32,
    pub(crate) allowed: AllowedArrays,
}

/// The arrays that an access may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AllowedArrays {
    /// Every array whose declaration allows the access.
    Anywhere,
    /// Shared memory; the role of the address.
    Shared(&'static str),
    /// Global memory; the role of the address.
    Global(&'static str),
    /// A constant buffer; the reason.
    Constant(&'static str),
}

/// The uniformity of an operation's results.
#[derive(Clone, Copy)]
pub(crate) enum ResultUniformity {
    /// The least of the operands', of control's and of this one.
    Least(Uniformity),
    /// That of control: the schedule promises this; the simulator checks it.
    Control,
    /// That of one operand, at most a warp's.
    Of(Operand),
    /// This one.
    Fixed(Uniformity),
}

/// What an operation does besides reading and writing registers and memory.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    /// Nothing, or nothing that the dataflow analysis follows.
    None,
    /// The kernel has waited for earlier grids.
    GridWait,
    /// A matrix operation is in flight, which uses registers.
    MatrixStart,
    /// Registers may be used by matrix operations.
    MatrixFence,
    /// A group of matrix operations is closed.
    MatrixCommit,
    /// At most so many closed groups remain in flight.
    MatrixWait(u32),
    /// Loads from tensor memory are in flight, which write registers.
    TmemLoad,
    /// No load from tensor memory is in flight.
    TmemWaitLoads,
}

impl<'o> Operation<'o> {
    /// The values that the operation reads, addresses' indices included.
    pub(crate) fn reads(&self) -> Vec<Operand> {
        let mut all = Vec::new();
        for part in &self.parts {
            match *part {
                OperationPart::Reads(.., values) | OperationPart::Tensor(_, values) => {
                    all.extend(values)
                }
                OperationPart::Registers(.., regs) => {
                    all.extend(regs.iter().map(|reg| Operand::Reg(*reg)))
                }
                OperationPart::Mask(mask) => all.push(mask),
                OperationPart::Memory(access) => all.push(access.address.index),
                OperationPart::Mbarrier(barrier) => all.push(barrier.index),
                OperationPart::Form(_)
                | OperationPart::Attribute(_)
                | OperationPart::Writes(..)
                | OperationPart::Parameter(_) => {}
            }
        }
        all
    }

    /// The registers that the operation writes.
    pub(crate) fn writes(&self) -> impl Iterator<Item = Reg> {
        self.parts.iter().flat_map(|part| match *part {
            OperationPart::Writes(.., regs) => regs.iter().copied(),
            _ => [].iter().copied(),
        })
    }

    /// The operation's accesses to memory.
    pub(crate) fn memory_accesses(&self) -> impl Iterator<Item = MemoryAccess> {
        self.parts.iter().filter_map(|part| match *part {
            OperationPart::Memory(access) => Some(access),
            _ => None,
        })
    }
}
