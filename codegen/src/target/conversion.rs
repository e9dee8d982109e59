//! The conversions of two adjacent small floats to two f16, by code type. Sources: PTX ISA, `cvt` and "Alternate
//! Floating-Point Data Formats"; ptxas makes one instruction of each, which names the byte or half of its word itself.

use quantloom_dsl::Code;
use quantloom_dsl::format::{E2M1, E2M3, E3M2, E4M3, FloatFormat, Number};

use super::Feature;

/// A type of codes that an instruction converts to f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConvertedCode {
    /// e4m3, a byte each.
    E4m3,
    /// e2m1, 4 bits each.
    E2m1,
    /// e2m3 in the low 6 bits of a byte each; the others have to be 0.
    E2m3,
    /// e3m2 in the low 6 bits of a byte each; the others have to be 0.
    E3m2,
}

impl ConvertedCode {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::E4m3, Self::E2m1, Self::E2m3, Self::E3m2];

    /// The type of these codes, if an instruction converts them.
    pub fn of(code: &Code) -> Option<Self> {
        Self::ALL.into_iter().find(|of| *code == Code::Number(Number::Float(of.format())))
    }

    /// The format of a code.
    pub const fn format(self) -> FloatFormat {
        match self {
            Self::E4m3 => E4M3,
            Self::E2m1 => E2M1,
            Self::E2m3 => E2M3,
            Self::E3m2 => E3M2,
        }
    }

    /// Bits from one code to the next.
    pub const fn field(self) -> u32 {
        match self {
            Self::E2m1 => 4,
            Self::E4m3 | Self::E2m3 | Self::E3m2 => 8,
        }
    }

    /// Pairs of codes in a word.
    pub const fn pairs(self) -> u32 {
        16 / self.field()
    }

    /// Bits of a word that belong to no code, and have to be 0.
    pub const fn padding(self) -> u32 {
        match self {
            Self::E2m3 | Self::E3m2 => 0xc0c0_c0c0,
            Self::E4m3 | Self::E2m1 => 0,
        }
    }

    /// The feature that a chip must have.
    pub const fn needs(self) -> Feature {
        match self {
            Self::E4m3 => Feature::ConvertE4m3,
            Self::E2m1 | Self::E2m3 | Self::E3m2 => Feature::ConvertSmall,
        }
    }
}
