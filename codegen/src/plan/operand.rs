//! Element types of operands: the words that a sequence produces and a product instruction reads.

use std::fmt;

use quantloom_dsl::format::{
    BF16, E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, F16, F32, FloatFormat, Number, Overflow, Variant,
};

/// The type of one element of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperandType {
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Signed integer of 4 bits.
    I4,
    /// OCP e2m1, 4 bits.
    E2m1,
    /// OCP e2m3, 6 bits.
    E2m3,
    /// OCP e3m2, 6 bits.
    E3m2,
    /// OCP e2m1 in bits 2 to 5 of a byte.
    PaddedE2m1,
    /// OCP e2m3 in the low 6 bits of a byte.
    PaddedE2m3,
    /// OCP e3m2 in the low 6 bits of a byte.
    PaddedE3m2,
    /// OCP e4m3.
    E4m3,
    /// e4m3 without negative zero and infinities, of half the value for the same bits.
    E4m3Fnuz,
    /// OCP e5m2.
    E5m2,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
}

impl OperandType {
    /// The number format of an element.
    pub const fn number(self) -> Number {
        match self {
            Self::U8 => Number::Uint(8),
            Self::I8 => Number::Int(8),
            Self::I4 => Number::Int(4),
            Self::E2m1 | Self::PaddedE2m1 => Number::Float(E2M1),
            Self::E2m3 | Self::PaddedE2m3 => Number::Float(E2M3),
            Self::E3m2 | Self::PaddedE3m2 => Number::Float(E3M2),
            Self::E4m3 => Number::Float(E4M3),
            Self::E4m3Fnuz => Number::Float(E4M3FNUZ),
            Self::E5m2 => Number::Float(FloatFormat::new(5, 2, Variant::Ieee)),
            Self::F16 => Number::Float(F16),
            Self::Bf16 => Number::Float(BF16),
            Self::F32 => Number::Float(F32),
        }
    }

    /// An element is `2^exponent` times the value of its code: OCP e4m3 in the e4m3fnuz that has its
    /// bits, which reaches half as far.
    pub fn exponent(self, code: Number) -> i32 {
        if self == Self::E4m3Fnuz && code == Number::Float(E4M3) { -1 } else { 0 }
    }

    /// Bits of an element, padding included.
    pub const fn bits(self) -> u32 {
        match self {
            Self::PaddedE2m1 | Self::PaddedE2m3 | Self::PaddedE3m2 => 8,
            _ => self.number().bits(),
        }
    }

    /// The lowest bit of an element's code.
    pub const fn first_bit(self) -> u32 {
        if matches!(self, Self::PaddedE2m1) { 2 } else { 0 }
    }

    /// Bits of an element in a row of x: 32 elements of 6 bits are stored in 32 bytes, of which the last
    /// eight are 0, so that each lane's elements are aligned to 16 bytes.
    pub const fn stored_bits(self) -> u32 {
        match self.bits() {
            6 => 8,
            bits => bits,
        }
    }

    /// A 32-bit word whose elements are all 1.
    pub fn ones(self) -> u32 {
        let one = self.number().encode(1.0, Overflow::Special) << self.first_bit();
        (0..self.per_word() as u32).fold(0, |word, element| word | one << (element * self.bits()))
    }

    /// Elements in a 32-bit word, the first in the lowest bits.
    pub const fn per_word(self) -> usize {
        (32 / self.bits()) as usize
    }
}

impl fmt::Display for OperandType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}
