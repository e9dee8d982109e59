//! Types, registers and operands.

use std::fmt;

/// The type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// True or false.
    Pred,
    /// 32 bits: an integer, four bytes, or two 16-bit floats with the first in the low half.
    U32,
    /// IEEE binary32.
    F32,
}

/// The threads in which a register has the same value. Ordered: a larger scope is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uniformity {
    /// No promise.
    Varying,
    /// The lanes of a warp.
    Warp,
    /// The threads of a warp group.
    WarpGroup,
    /// The threads of a block.
    Block,
}

/// Number of a register in [`Kernel::registers`](super::Kernel::registers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegisterId(pub u32);

/// A mutable register array, one copy per thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its name in the source: unique; letters, digits and `_`, and no number after the last `_`.
    pub name: String,
    /// The type of its elements.
    pub ty: Type,
    /// Number of elements; 1 for a scalar.
    pub len: u32,
    /// The threads in which it has the same value.
    pub uniformity: Uniformity,
}

/// One element of a register array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg {
    /// The register.
    pub id: RegisterId,
    /// The element.
    pub at: u32,
}

/// An operand of an operation: a register's element or a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// A register's element.
    Reg(Reg),
    /// A constant of [`Type::U32`].
    U32(u32),
    /// A constant of [`Type::F32`].
    F32(f32),
    /// A constant of [`Type::Pred`].
    Pred(bool),
}

impl Operand {
    /// Its register element, if it is not a constant.
    pub const fn reg(self) -> Option<Reg> {
        match self {
            Self::Reg(reg) => Some(reg),
            _ => None,
        }
    }
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<u32> for Operand {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for Operand {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<bool> for Operand {
    fn from(value: bool) -> Self {
        Self::Pred(value)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pred => "pred",
            Self::U32 => "u32",
            Self::F32 => "f32",
        })
    }
}

impl fmt::Display for Uniformity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Varying => "varying",
            Self::Warp => "warp",
            Self::WarpGroup => "warp group",
            Self::Block => "block",
        })
    }
}
