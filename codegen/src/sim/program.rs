//! The flat program that a warp runs: operations, and control flow whose jump targets are numbers of
//! steps.
//!
//! 32-bit registers are *slots* of one file, predicate registers *flags* of another.

use crate::ir::{InstructionClass, Op, Operand, Reg};

/// A register of 32 bits.
pub(super) type RegSlot = u32;

/// A program for one launch.
#[derive(Debug, Default)]
pub(super) struct Program<'k> {
    pub(super) steps: Vec<Step<'k>>,
    /// First slot or flag of each register of the kernel.
    pub(super) bases: Vec<u32>,
    /// Number of slots.
    pub(super) slots: u32,
    /// Number of flags.
    pub(super) flags: u32,
    /// Number of statements.
    pub(super) points: usize,
    /// Whether the kernel has warp-group matrix operations, which use registers in flight.
    pub(super) matrix_groups: bool,
}

/// A step, its program point and its class.
#[derive(Debug)]
pub(super) struct Step<'k> {
    pub(super) point: u32,
    pub(super) class: InstructionClass,
    pub(super) what: Instruction<'k>,
}

/// What a step does. Control flow uses a stack of masks: `If` and the loops push, `Pop` restores.
#[derive(Clone, Debug)]
pub(super) enum Instruction<'k> {
    Op(&'k Op),
    /// Continues with the lanes whose condition holds; jumps to `otherwise` if there are none.
    If {
        condition: Operand,
        otherwise: usize,
    },
    /// Continues with the other lanes of the innermost `If`; jumps to `end` if there are none.
    Else {
        end: usize,
    },
    /// Continues with all lanes of the innermost `If` or loop.
    Pop,
    /// Keeps the end and the step, the last two bounds, and copies the start to the counter.
    ForEnter {
        counter: Reg,
        bounds: [Operand; 3],
    },
    /// Continues with the lanes whose counter is below the end; jumps to `exit` if there are none.
    ForTest {
        counter: Reg,
        exit: usize,
    },
    /// Adds the step to the counter, and jumps to `test`.
    ForNext {
        counter: Reg,
        test: usize,
    },
    /// The end of a `For`: `Pop`, and the counter becomes poison.
    ForExit {
        counter: Reg,
    },
    WhileEnter,
    /// Continues with the lanes whose condition holds; jumps to `exit` if there are none.
    WhileTest {
        condition: Reg,
        exit: usize,
    },
    Jump(usize),
    /// Each warp jumps to the entry whose range contains its number.
    Roles(Box<[(std::ops::Range<u32>, usize)]>),
    End,
}
