//! The 16-bit float types of registers.

use quantloom_dsl::format::{BF16, F16, FloatFormat, Number};

/// A 16-bit float type, two of which fill a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Half {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Half {
    /// The format of its numbers.
    pub const fn format(self) -> FloatFormat {
        match self {
            Self::F16 => F16,
            Self::Bf16 => BF16,
        }
    }

    /// The same as a type of numbers.
    pub const fn number(self) -> Number {
        Number::Float(self.format())
    }
}
