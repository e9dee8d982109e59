//! Operations on values: their operand types, result types and exact results.
//!
//! Floats: every operation rounds once, to nearest even, keeps subnormals, and follows IEEE 754
//! for infinities; a NaN result may be any quiet NaN.

use super::InstructionClass as Class;
use super::Type::{self, F32, Pred, U32};
use crate::target::Feature::{self, Base};
use crate::target::{ConvertedCode, Half};

/// Types of the operands and of the result, the feature that the target must have, the class.
type Row<const N: usize> = ([Type; N], Type, Feature, Class);

/// Which half of a 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Bits 0 to 15.
    Low,
    /// Bits 16 to 31.
    High,
}

/// Operations on one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// u32: each bit inverted.
    Not,
    /// pred: negation.
    NotPred,
    /// f32: the sign bit inverted.
    Negate,
    /// f32: the sign bit cleared.
    Abs,
    /// f32: square root.
    Sqrt,
    /// f32: the nearest integer, ties to even, as f32.
    RoundEven,
    /// f32: 2^a, at most 2 units in the last place from the correctly rounded result (PTX ISA, `ex2.approx.f32`); 2^-149 is the
    /// smallest unit. The simulator is off by 2 units either way, and by less, as the bits of a decide.
    Exp2Near,
    /// f32: 1 / a, at most one unit in the last place from the correctly rounded result (PTX ISA, `rcp.approx.ftz.f32`). Subnormal
    /// numbers, and results that would be, count as 0 of their sign. The simulator is off likewise.
    ReciprocalNear,
    /// u32: number of bits that are 1.
    PopCount,
    /// u32 -> f32: the same bits.
    AsF32,
    /// f32 -> u32: the same bits.
    AsU32,
    /// u32 -> f32: the value of the unsigned integer, rounded.
    F32FromU32,
    /// u32 -> f32: the value of the two's complement integer, rounded.
    F32FromS32,
    /// f32 -> u32: the nearest integer, ties to even, saturated to -2^31 ..= 2^31 - 1, as two's
    /// complement; NaN gives 0.
    S32FromF32,
    /// u32 -> f32: the value of a 16-bit float in one half; exact.
    F32FromHalf(Half, Side),
    /// u32 -> u32: two adjacent codes as two f16, the lower code in the low half; exact. The number is that of the pair in the
    /// word, the lowest codes first. Bits of the pair that belong to no code have to be 0.
    F16x2From(ConvertedCode, u8),
}

/// Operations on two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// u32: the sum modulo 2^32.
    Add,
    /// u32: the difference modulo 2^32.
    Sub,
    /// u32: the product modulo 2^32.
    Mul,
    /// u32: the upper 32 bits of the unsigned 64-bit product.
    MulHigh,
    /// u32: the unsigned quotient, rounded down. Dividing by 0 is an error.
    Div,
    /// u32: the unsigned remainder. Dividing by 0 is an error.
    Rem,
    /// u32: the unsigned minimum.
    Min,
    /// u32: the unsigned maximum.
    Max,
    /// u32: the minimum of two's complement integers.
    MinSigned,
    /// u32: the maximum of two's complement integers.
    MaxSigned,
    /// u32: bitwise and.
    And,
    /// u32: bitwise or.
    Or,
    /// u32: bitwise exclusive or.
    Xor,
    /// u32: a << b. b >= 32 is an error.
    Shl,
    /// u32: a >> b, zeros shifted in. b >= 32 is an error.
    Shr,
    /// u32: a >> b, copies of bit 31 shifted in. b >= 32 is an error.
    ShrSigned,
    /// pred.
    AndPred,
    /// pred.
    OrPred,
    /// f32.
    AddF32,
    /// f32.
    SubF32,
    /// f32.
    MulF32,
    /// f32, correctly rounded.
    DivF32,
    /// f32: the smaller; if one is NaN, the other; -0 < +0.
    MinF32,
    /// f32: the larger; if one is NaN, the other; -0 < +0.
    MaxF32,
    /// Two 16-bit floats in a u32, each: a + b.
    AddPacked(Half),
    /// Each: a - b.
    SubPacked(Half),
    /// Each: a * b.
    MulPacked(Half),
    /// Each: the larger; if one is NaN, the other; -0 < +0.
    MaxPacked(Half),
    /// Two f32 -> u32: a rounded to the low half, b to the high half; overflow gives infinity.
    Pack(Half),
    /// Two f32 -> u32: a rounded to e4m3 in bits 0 to 7, b in bits 8 to 15; beyond +-448:
    /// +-448; NaN: 0x7f; bits 16 to 31 are 0.
    PackE4m3,
}

/// Operations on three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ternary {
    /// u32: a * b + c modulo 2^32.
    Mad,
    /// f32: a * b + c, rounded once.
    Fma,
    /// Two 16-bit floats in a u32, each: a * b + c, rounded once.
    FmaPacked(Half),
    /// u32: bit i of the result is bit `4 a_i + 2 b_i + c_i` of the table (so a = 0xF0, b = 0xCC,
    /// c = 0xAA, and `(a & b) | c` = 0xEA).
    Lop3(u8),
    /// u32: byte i of the result is byte `s = (c >> 4i) & 7` of the eight bytes (a low, b high);
    /// if bit 3 of that nibble is set, eight copies of that byte's top bit instead.
    Permute,
    /// u32: the upper 32 bits of `(b:a) << c`, b the upper word. c >= 32 is an error.
    FunnelLeft,
    /// u32: the lower 32 bits of `(b:a) >> c`, b the upper word. c >= 32 is an error.
    FunnelRight,
    /// u32: c plus the sum of four products of bytes, modulo 2^32; a's bytes signed or not, b's
    /// bytes signed or not.
    Dot4 {
        /// a's bytes are two's complement.
        a_signed: bool,
        /// b's bytes are two's complement.
        b_signed: bool,
    },
}

/// Comparisons. Both operands have the type that the comparison is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// u32: a = b.
    Equal,
    /// u32: a != b.
    NotEqual,
    /// u32, unsigned: a < b.
    Less,
    /// u32, unsigned: a <= b.
    LessEqual,
    /// u32, two's complement: a < b.
    LessSigned,
    /// f32: a = b, false with a NaN.
    EqualF32,
    /// f32: a < b, false with a NaN.
    LessF32,
}

impl Unary {
    /// Types of the operand and of the result.
    pub const fn signature(self) -> ([Type; 1], Type) {
        let (operands, result, ..) = self.row();
        (operands, result)
    }

    pub(super) const fn row(self) -> Row<1> {
        match self {
            Self::Not | Self::PopCount => ([U32], U32, Base, Class::Integer),
            Self::NotPred => ([Pred], Pred, Base, Class::Predicate),
            Self::Negate | Self::Abs | Self::Sqrt | Self::RoundEven => {
                ([F32], F32, Base, Class::Float)
            }
            Self::Exp2Near | Self::ReciprocalNear => {
                ([F32], F32, Feature::NearFunctions, Class::Float)
            }
            Self::AsF32 => ([U32], F32, Base, Class::Move),
            Self::AsU32 => ([F32], U32, Base, Class::Move),
            Self::F32FromU32 | Self::F32FromS32 | Self::F32FromHalf(..) => {
                ([U32], F32, Base, Class::Convert)
            }
            Self::S32FromF32 => ([F32], U32, Base, Class::Convert),
            Self::F16x2From(code, _) => ([U32], U32, code.needs(), Class::Convert),
        }
    }
}

impl Binary {
    /// Types of the operands and of the result.
    pub const fn signature(self) -> ([Type; 2], Type) {
        let (operands, result, ..) = self.row();
        (operands, result)
    }

    pub(super) const fn row(self) -> Row<2> {
        match self {
            Self::Add
            | Self::Sub
            | Self::Mul
            | Self::MulHigh
            | Self::Div
            | Self::Rem
            | Self::Min
            | Self::Max
            | Self::MinSigned
            | Self::MaxSigned
            | Self::And
            | Self::Or
            | Self::Xor
            | Self::Shl
            | Self::Shr
            | Self::ShrSigned => ([U32; 2], U32, Base, Class::Integer),
            Self::AndPred | Self::OrPred => ([Pred; 2], Pred, Base, Class::Predicate),
            Self::AddF32
            | Self::SubF32
            | Self::MulF32
            | Self::DivF32
            | Self::MinF32
            | Self::MaxF32 => ([F32; 2], F32, Base, Class::Float),
            Self::AddPacked(half) | Self::SubPacked(half) | Self::MulPacked(half) => {
                let feature = match half {
                    Half::F16 => Feature::PackedF16,
                    Half::Bf16 => Feature::PackedBf16,
                };
                ([U32; 2], U32, feature, Class::Packed)
            }
            Self::MaxPacked(half) => ([U32; 2], U32, half.packed_fma(), Class::Packed),
            Self::Pack(_) => ([F32; 2], U32, Feature::PackHalf, Class::Convert),
            Self::PackE4m3 => ([F32; 2], U32, Feature::PackE4m3, Class::Convert),
        }
    }
}

impl Ternary {
    /// Types of the operands and of the result.
    pub const fn signature(self) -> ([Type; 3], Type) {
        let (operands, result, ..) = self.row();
        (operands, result)
    }

    pub(super) const fn row(self) -> Row<3> {
        match self {
            Self::Fma => ([F32; 3], F32, Base, Class::Float),
            Self::FmaPacked(half) => ([U32; 3], U32, half.packed_fma(), Class::Packed),
            Self::Mad | Self::FunnelLeft | Self::FunnelRight => {
                ([U32; 3], U32, Base, Class::Integer)
            }
            Self::Lop3(_) => ([U32; 3], U32, Feature::Lop3, Class::Integer),
            Self::Permute => ([U32; 3], U32, Feature::Permute, Class::Integer),
            Self::Dot4 { .. } => ([U32; 3], U32, Feature::Dot4, Class::Integer),
        }
    }
}

impl Half {
    const fn packed_fma(self) -> Feature {
        match self {
            Self::F16 => Feature::PackedF16,
            Self::Bf16 => Feature::PackedBf16Fma,
        }
    }
}

impl Compare {
    /// The type of both operands.
    pub const fn operands(self) -> Type {
        match self {
            Self::Equal | Self::NotEqual | Self::Less | Self::LessEqual | Self::LessSigned => U32,
            Self::EqualF32 | Self::LessF32 => F32,
        }
    }
}
