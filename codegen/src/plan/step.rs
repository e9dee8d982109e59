//! The steps of sequences: operations on 32-bit words, without control flow.
//!
//! A register holds one 32-bit word and is written once: the inputs of a sequence are its first registers, and
//! each step defines the next one. On a GPU a register belongs to a thread; on a vector machine every 32-bit
//! lane runs the same steps. `interpret` defines each step bit by bit; emitters print steps.

use super::templates::NEGATIVE_ZEROS;
use crate::target::{ConvertedCode, Half};

/// A 32-bit register, by number: inputs first, then one per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceRegister(pub u16);

/// An argument of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// An earlier register.
    Register(SequenceRegister),
    /// A constant.
    Word(u32),
}

impl From<SequenceRegister> for Arg {
    fn from(register: SequenceRegister) -> Self {
        Self::Register(register)
    }
}

impl From<u32> for Arg {
    fn from(word: u32) -> Self {
        Self::Word(word)
    }
}

/// One operation. Floating-point steps round to nearest, ties to even, and keep subnormals.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Bitwise and.
    And(Arg, Arg),
    /// Bitwise or.
    Or(Arg, Arg),
    /// Bitwise exclusive or.
    Xor(Arg, Arg),
    /// Sum modulo 2^32.
    Add(Arg, Arg),
    /// Left shift, by less than 32; zeros follow.
    Shl(Arg, u8),
    /// Rotation to the left, by less than 32.
    Rotl(Arg, u8),
    /// Right shift, by less than 32; zeros follow.
    Shr(Arg, u8),
    /// Right shift, by less than 32; copies of the top bit follow.
    Sar(Arg, u8),
    /// Any function of three bits, in each bit: bit `a*4 + b*2 + c` of the table.
    Lop3 {
        /// Index bit 2.
        a: Arg,
        /// Index bit 1.
        b: Arg,
        /// Index bit 0.
        c: Arg,
        /// The function's table.
        table: u8,
    },
    /// Bytes of two words: nibble i of `select` (its low three bits) picks byte i of the result
    /// out of `low` (0..4) and `high` (4..8); where its bit 3 is set, eight copies of that byte's top
    /// bit.
    Prmt {
        /// Bytes 0 to 3.
        low: Arg,
        /// Bytes 4 to 7.
        high: Arg,
        /// Four selectors of four bits.
        select: Arg,
    },
    /// `a * b + c` in both halves, rounded once.
    Fma16(Half, Arg, Arg, Arg),
    /// `a - b` in both halves.
    Sub16(Half, Arg, Arg),
    /// Two adjacent codes of a word as two f16; NaN stays NaN.
    CvtF16 {
        /// The word: codes in the fields of their type, with zeros beside codes that fill no field.
        codes: Arg,
        /// Their type.
        of: ConvertedCode,
        /// Which two of them, from the lowest on.
        pair: u8,
    },
    /// The low bits of the word index a table of f32, given as bits: 16 entries (the low four bits are
    /// the index), or 256 (then the word must be below).
    LookupF32 {
        /// The table.
        table: Vec<u32>,
        /// The index.
        index: Arg,
    },
    /// The word, which must be below its length, indexes a table of 16-bit numbers: the number in the
    /// low half, 0 in the high one.
    LookupHalf {
        /// The table, 2 to 256 numbers.
        table: Vec<u32>,
        /// The index.
        index: Arg,
    },
    /// Each byte of the word, which must be below 16, indexes a table of bytes.
    LookupBytes {
        /// The table.
        table: [u8; 16],
        /// The four indices.
        indices: Arg,
    },
    /// The word, a signed integer, as f32.
    IntToF32(Arg),
    /// `a + b` in f32.
    AddF32(Arg, Arg),
    /// All ones if the words are equal, else 0.
    Equal(Arg, Arg),
}

impl Step {
    /// The power of two that the step multiplies halves with, if it does nothing else.
    pub fn factor(&self) -> Option<i32> {
        let Self::Fma16(half, _, Arg::Word(factor), Arg::Word(NEGATIVE_ZEROS)) = self else {
            return None;
        };
        let exponent = half.number().decode(factor & 0xffff).log2();
        (exponent.fract() == 0.0).then_some(exponent as i32)
    }

    /// The arguments of the step.
    pub fn args(&self) -> Vec<Arg> {
        match self {
            Self::And(a, b)
            | Self::Or(a, b)
            | Self::Xor(a, b)
            | Self::Add(a, b)
            | Self::Sub16(_, a, b)
            | Self::AddF32(a, b)
            | Self::Equal(a, b) => vec![*a, *b],
            Self::Shl(a, _)
            | Self::Shr(a, _)
            | Self::Sar(a, _)
            | Self::Rotl(a, _)
            | Self::IntToF32(a) => vec![*a],
            Self::Lop3 { a, b, c, .. } | Self::Fma16(_, a, b, c) => vec![*a, *b, *c],
            Self::Prmt { low, high, select } => vec![*low, *high, *select],
            Self::CvtF16 { codes, .. } => vec![*codes],
            Self::LookupF32 { index, .. } | Self::LookupHalf { index, .. } => vec![*index],
            Self::LookupBytes { indices, .. } => vec![*indices],
        }
    }

    /// The same step on other registers.
    #[must_use]
    pub fn with_registers(&self, to: &dyn Fn(SequenceRegister) -> SequenceRegister) -> Self {
        let at = |arg: &Arg| match arg {
            Arg::Register(register) => Arg::Register(to(*register)),
            Arg::Word(word) => Arg::Word(*word),
        };
        match self {
            Self::And(a, b) => Self::And(at(a), at(b)),
            Self::Or(a, b) => Self::Or(at(a), at(b)),
            Self::Xor(a, b) => Self::Xor(at(a), at(b)),
            Self::Add(a, b) => Self::Add(at(a), at(b)),
            Self::Rotl(a, by) => Self::Rotl(at(a), *by),
            Self::Shl(a, by) => Self::Shl(at(a), *by),
            Self::Shr(a, by) => Self::Shr(at(a), *by),
            Self::Sar(a, by) => Self::Sar(at(a), *by),
            Self::Lop3 { a, b, c, table } => {
                Self::Lop3 { a: at(a), b: at(b), c: at(c), table: *table }
            }
            Self::Prmt { low, high, select } => {
                Self::Prmt { low: at(low), high: at(high), select: at(select) }
            }
            Self::Fma16(half, a, b, c) => Self::Fma16(*half, at(a), at(b), at(c)),
            Self::Sub16(half, a, b) => Self::Sub16(*half, at(a), at(b)),
            Self::CvtF16 { codes, of, pair } => {
                Self::CvtF16 { codes: at(codes), of: *of, pair: *pair }
            }
            Self::LookupF32 { table, index } => {
                Self::LookupF32 { table: table.clone(), index: at(index) }
            }
            Self::LookupHalf { table, index } => {
                Self::LookupHalf { table: table.clone(), index: at(index) }
            }
            Self::LookupBytes { table, indices } => {
                Self::LookupBytes { table: *table, indices: at(indices) }
            }
            Self::IntToF32(a) => Self::IntToF32(at(a)),
            Self::AddF32(a, b) => Self::AddF32(at(a), at(b)),
            Self::Equal(a, b) => Self::Equal(at(a), at(b)),
        }
    }
}
