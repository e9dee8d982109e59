//! Element types of the words that a sequence produces: what a product instruction reads.

use std::fmt;

use quantloom_dsl::format::{BF16, E4M3, F16, F32, Number};

/// The type of one element of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// OCP e4m3.
    E4m3,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
}

impl Operand {
    /// The number format of an element.
    pub const fn number(self) -> Number {
        match self {
            Self::U8 => Number::Uint(8),
            Self::I8 => Number::Int(8),
            Self::E4m3 => Number::Float(E4M3),
            Self::F16 => Number::Float(F16),
            Self::Bf16 => Number::Float(BF16),
            Self::F32 => Number::Float(F32),
        }
    }

    /// Bits of an element.
    pub const fn bits(self) -> u32 {
        self.number().bits()
    }

    /// Elements in a 32-bit word, the first in the lowest bits.
    pub const fn per_word(self) -> usize {
        (32 / self.bits()) as usize
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}
