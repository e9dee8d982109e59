//! What becomes of an element on its way.

use quantloom_dsl::ZeroKind;
use quantloom_dsl::format::Number;

use crate::ir::{Binary, Builder, Half, Operand, Side, Unary};

/// What becomes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Its bits, or any of them, stay as they are.
    Keep,
    /// Its bits are XORed with these.
    Xor(u32),
    /// A stored zero point becomes a number of a 16-bit type.
    Number(Integer, Half),
    /// And such a number a stored zero point.
    Stored(Integer, Half),
    /// A 16-bit float becomes f32.
    Widen(Half),
    /// And f32 a 16-bit float, rounded.
    Narrow(Half),
}

/// How small integers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Integer {
    bits: u32,
    signed: bool,
    /// Added to what is stored.
    plus: i32,
    /// The sum is modulo `2^bits`.
    wraps: bool,
}

impl Integer {
    /// `None` if a zero point is stored as a float.
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
}

impl Form {
    /// Bits that an element of so many bits has when it is written.
    pub(super) const fn written(self, bits: u64) -> u64 {
        match self {
            Self::Keep | Self::Xor(_) => bits,
            Self::Number(..) | Self::Narrow(_) => 16,
            Self::Widen(_) => 32,
            Self::Stored(integer, _) => integer.bits as u64,
        }
    }

    /// An element alone in a register.
    pub(super) fn element(self, b: &mut Builder, element: Operand) -> Operand {
        match self {
            Self::Keep => element,
            Self::Xor(mask) => b.xor(element, mask),
            Self::Number(integer, half) => {
                let mut value = element;
                if integer.signed {
                    let above = 32 - integer.bits;
                    value = b.shl(value, above);
                    value = b.binary(Binary::ShrSigned, value, above);
                }
                value = b.add(value, integer.plus as u32);
                if integer.wraps {
                    value = b.and(value, integer.mask());
                }
                let value = b.unary(Unary::F32FromS32, value);
                b.binary(Binary::Pack(half), value, 0.0f32)
            }
            Self::Stored(integer, half) => {
                let value = b.half_to_f32(half, Side::Low, element);
                let value = b.unary(Unary::S32FromF32, value);
                let value = b.sub(value, integer.plus as u32);
                b.and(value, integer.mask())
            }
            Self::Widen(half) => {
                let value = b.half_to_f32(half, Side::Low, element);
                b.unary(Unary::AsU32, value)
            }
            Self::Narrow(half) => {
                let value = b.unary(Unary::AsF32, element);
                b.binary(Binary::Pack(half), value, 0.0f32)
            }
        }
    }
}
