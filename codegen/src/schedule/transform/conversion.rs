//! The conversion of an element between a checkpoint's form and the native form.

use quantloom_dsl::ZeroKind;
use quantloom_dsl::format::Number;

use super::formula::Formula;
use crate::ir::{Binary, Builder, Half, Operand, Side, Unary};
use crate::schedule::group_params::number;

/// The conversion of an element.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Conversion {
    /// The bits stay as they are.
    Keep,
    /// The bits are XORed with a mask.
    Xor(u32),
    /// A code of e2m1 takes the sign of a number of e4m3.
    Signed,
    /// A number of e4m3 without its sign.
    Magnitude,
    /// The `bits` bits are XORed with a mask, and the top one is repeated up to `width` bits.
    Extended { mask: u32, bits: u32, width: u32 },
    /// A stored zero point becomes a 16-bit float.
    Number(Integer, Half),
    /// A 16-bit float becomes a stored zero point.
    Stored(Integer, Half),
    /// A stored integer becomes one of 32 bits.
    Integer(Integer),
    /// A number becomes f32.
    Widen(Number),
    /// f32 becomes a 16-bit float, rounded.
    Narrow(Half),
    /// Numbers of several components become one f32.
    Computed(Formula),
}

/// The stored form of small integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Integer {
    bits: u32,
    signed: bool,
    /// Added to the stored integer.
    plus: i32,
    /// The sum is modulo `2^bits`.
    wraps: bool,
}

impl Integer {
    /// `None` for zero points that are stored as floats.
    pub(super) fn new(kind: ZeroKind) -> Option<Self> {
        let ZeroKind::Codes { number, plus, wraps } = kind else { return None };
        match number {
            Number::Uint(bits) => Some(Self { bits: bits.into(), signed: false, plus, wraps }),
            Number::Int(bits) => Some(Self { bits: bits.into(), signed: true, plus, wraps }),
            Number::Float(_) | Number::E8m0 => None,
        }
    }

    const fn mask(self) -> u32 {
        ((1u64 << self.bits) - 1) as u32
    }

    /// The integer that a code stands for, in two's complement.
    pub(super) fn value(self, b: &mut Builder, code: Operand) -> Operand {
        let mut value = code;
        if self.signed {
            value = extended(b, value, self.bits);
        }
        value = b.add(value, self.plus as u32);
        if self.wraps { b.and(value, self.mask()) } else { value }
    }
}

/// A two's complement integer of `bits` bits, extended to 32.
fn extended(b: &mut Builder, code: Operand, bits: u32) -> Operand {
    let above = 32 - bits;
    let code = b.shl(code, above);
    if above == 0 { code } else { b.binary(Binary::ShrSigned, code, above) }
}

impl Conversion {
    /// The bits of an element that are inverted, if it is moved bit by bit; `None` if it is computed as
    /// a whole.
    pub(super) const fn inverted(&self) -> Option<u32> {
        match self {
            Self::Keep => Some(0),
            Self::Xor(mask) => Some(*mask),
            _ => None,
        }
    }

    /// Bits of a computed element.
    pub(super) fn bits(&self) -> u64 {
        match self {
            Self::Number(..) | Self::Narrow(_) => 16,
            Self::Keep | Self::Xor(_) | Self::Integer(_) | Self::Widen(_) | Self::Computed(_) => 32,
            Self::Signed => 4,
            Self::Magnitude => 8,
            Self::Extended { width, .. } => (*width).into(),
            Self::Stored(integer, _) => integer.bits.into(),
        }
    }

    /// An element in the low bits of a register, computed from its codes.
    pub(super) fn element(&self, b: &mut Builder, codes: &[Operand]) -> Operand {
        let code = codes.first().copied().unwrap_or(Operand::U32(0));
        match self {
            Self::Keep => code,
            Self::Xor(mask) => b.xor(code, *mask),
            Self::Signed => {
                let number = codes.get(1).copied().unwrap_or(Operand::U32(0));
                let sign = b.shr(number, 4u32);
                let sign = b.and(sign, 0x8u32);
                b.xor(code, sign)
            }
            Self::Magnitude => b.and(code, 0x7fu32),
            Self::Extended { mask, bits, width } => {
                let code = b.xor(code, *mask);
                let code = extended(b, code, *bits);
                b.and(code, ((1u64 << width) - 1) as u32)
            }
            Self::Number(integer, half) => {
                let value = integer.value(b, code);
                let value = b.unary(Unary::F32FromS32, value);
                b.binary(Binary::Pack(*half), value, 0.0f32)
            }
            Self::Stored(integer, half) => {
                let value = b.half_to_f32(*half, Side::Low, code);
                let value = b.unary(Unary::S32FromF32, value);
                let value = b.sub(value, integer.plus as u32);
                b.and(value, integer.mask())
            }
            Self::Integer(integer) => integer.value(b, code),
            Self::Widen(kind) => {
                let value = number(b, *kind, code, 0);
                b.unary(Unary::AsU32, value)
            }
            Self::Narrow(half) => {
                let value = b.unary(Unary::AsF32, code);
                b.binary(Binary::Pack(*half), value, 0.0f32)
            }
            Self::Computed(formula) => {
                let value = formula.value(b, codes);
                b.unary(Unary::AsU32, value)
            }
        }
    }
}
