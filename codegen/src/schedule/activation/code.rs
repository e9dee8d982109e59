//! Codes and words of the operand, from scaled values.

use quantloom_dsl::format::{E4M3, FloatFormat, Number, Variant};
use quantloom_dsl::{Quantiser, Ties};

use super::rounding::{at_least, at_most, round_to};
use crate::ir::{Binary, Builder, Compare, Half, Operand, Ternary, Unary};
use crate::plan;
use crate::target::Feature;

/// The representation of a quantiser's codes as elements of an operand.
pub(super) struct Codes<'q> {
    pub(super) quantiser: &'q Quantiser,
    pub(super) operand: plan::OperandType,
}

/// What makes elements of the values of codes, in operands of 16 bits or f32.
#[derive(Clone, Copy)]
pub(super) struct OfElements<'a> {
    /// Subtracted zero points, one a code.
    pub(super) zeros: Option<&'a [Operand]>,
    /// The scale that multiplies all of them, exactly.
    pub(super) scale: Option<Operand>,
}

impl Codes<'_> {
    /// The words of a vector of scaled values, which include their zero points. If there are pads,
    /// `there` tells which elements are not.
    pub(super) fn words(
        &self,
        b: &mut Builder,
        scaled: &[Operand],
        OfElements { zeros, scale }: OfElements<'_>,
        there: Option<&[Operand]>,
    ) -> Vec<Operand> {
        let padded = |b: &mut Builder, elements: Vec<Operand>, pad: Operand| match there {
            None => elements,
            Some(there) => {
                let both = elements.into_iter().zip(there);
                both.map(|(element, there)| b.select(*there, element, pad)).collect()
            }
        };
        match self.operand {
            plan::OperandType::I8 => {
                let codes = scaled.iter().map(|value| self.integer(b, *value)).collect();
                let codes = padded(b, codes, 0u32.into());
                codes.chunks_exact(4).map(|four| bytes(b, four)).collect()
            }
            plan::OperandType::I4 => {
                let codes: Vec<_> = scaled.iter().map(|value| self.integer(b, *value)).collect();
                let codes = padded(b, codes, 0u32.into()).into_iter();
                let codes: Vec<_> = codes.map(|code| b.and(code, 0xfu32)).collect();
                side_by_side(b, &codes, self.operand.bits())
            }
            plan::OperandType::E4m3 => {
                // The instruction rounds and saturates to e4m3.
                let values = match self.quantiser.code == Number::Float(E4M3) {
                    true => scaled.to_vec(),
                    false => scaled.iter().map(|value| self.value(b, *value)).collect(),
                };
                let values = padded(b, values, 0.0f32.into());
                values.chunks_exact(4).map(|four| float_bytes(b, four)).collect()
            }
            plan::OperandType::E2m1
            | plan::OperandType::E2m3
            | plan::OperandType::E3m2
            | plan::OperandType::PaddedE2m1
            | plan::OperandType::PaddedE2m3
            | plan::OperandType::PaddedE3m2
            | plan::OperandType::E4m3Fnuz
            | plan::OperandType::E5m2 => {
                let Number::Float(format) = self.operand.number() else { return Vec::new() };
                let mut values: Vec<_> = scaled.iter().map(|value| self.value(b, *value)).collect();
                let exponent = self.operand.exponent(self.quantiser.code);
                if exponent != 0 {
                    let moved = values.into_iter().map(|v| b.mul_f32(v, 2f32.powi(exponent)));
                    values = moved.collect();
                }
                let values = padded(b, values, 0.0f32.into());
                let first = self.operand.first_bit();
                let code = |v| {
                    let code = small(b, format, v);
                    b.shl(code, first)
                };
                let codes: Vec<_> = values.into_iter().map(code).collect();
                side_by_side(b, &codes, self.operand.bits())
            }
            operand => {
                let mut values: Vec<Operand> =
                    scaled.iter().map(|value| self.value(b, *value)).collect();
                if let Some(zeros) = zeros {
                    let both = values.iter().zip(zeros);
                    let less = both.map(|(value, zero)| b.binary(Binary::SubF32, *value, *zero));
                    values = less.collect();
                }
                if let Some(scale) = scale {
                    values = values.into_iter().map(|value| b.mul_f32(value, scale)).collect();
                }
                let values = padded(b, values, 0.0f32.into());
                if operand == plan::OperandType::F32 {
                    return values;
                }
                let half = if operand == plan::OperandType::F16 { Half::F16 } else { Half::Bf16 };
                let pair = |two: &[Operand]| b.binary(Binary::Pack(half), two[0], two[1]);
                values.chunks_exact(2).map(pair).collect()
            }
        }
    }

    /// The value of the nearest code, f32; NaN stays NaN if the code type has NaN or is an integer.
    fn value(&self, b: &mut Builder, scaled: Operand) -> Operand {
        if let Number::Float(format) = self.quantiser.code {
            return round_to(b, format, scaled);
        }
        let rounded = match self.quantiser.ties {
            Ties::Even => b.unary(Unary::RoundEven, scaled),
            Ties::Away => away(b, scaled),
        };
        let code = self.quantiser.code;
        let rounded = at_least(b, rounded, code.min());
        at_most(b, rounded, code.max())
    }

    /// The nearest code, an integer; 0 for a NaN.
    fn integer(&self, b: &mut Builder, scaled: Operand) -> Operand {
        let scaled = match self.quantiser.ties {
            // As the conversion instruction does.
            Ties::Even => scaled,
            Ties::Away => away(b, scaled),
        };
        let integer = b.unary(Unary::S32FromF32, scaled);
        let [least, most] =
            [self.quantiser.code.min(), self.quantiser.code.max()].map(|end| end as i32 as u32);
        let integer = b.binary(Binary::MaxSigned, integer, least);
        b.binary(Binary::MinSigned, integer, most)
    }
}

/// The nearest integer, ties away from zero; the even one differs from a tie by a half.
fn away(b: &mut Builder, value: Operand) -> Operand {
    let magnitude = b.unary(Unary::Abs, value);
    let even = b.unary(Unary::RoundEven, magnitude);
    let rest = b.binary(Binary::SubF32, magnitude, even);
    let down = b.compare(Compare::EqualF32, rest, 0.5f32);
    let up = b.select(down, 1.0f32, 0.0f32);
    let rounded = b.add_f32(even, up);
    super::rounding::with_sign(b, rounded, value)
}

/// The code of a finite number of a format, or of a NaN if the format has any: with the bias of f32 its bits are those of f32,
/// also for subnormal numbers. Of an f32 NaN the upper mantissa bits, which an arithmetic operation sets, stay.
fn small(b: &mut Builder, format: FloatFormat, value: Operand) -> Operand {
    let moved = b.mul_f32(value, 2f32.powi(format.bias() - 127));
    let bits = b.unary(Unary::AsU32, moved);
    let top = 1u32 << (format.bits() - 1);
    let sign = b.shr(bits, 32 - format.bits());
    let sign = b.and(sign, top);
    let magnitude = b.shr(bits, 23 - u32::from(format.mantissa_bits));
    let magnitude = b.and(magnitude, top - 1);
    let code = b.binary(Binary::Or, sign, magnitude);
    if format.variant != Variant::Fnuz {
        return code;
    }
    // The bits of negative zero are NaN.
    let zero = b.compare(Compare::EqualF32, value, 0.0f32);
    let code = b.select(zero, 0u32, code);
    let number = b.compare(Compare::EqualF32, value, value);
    b.select(number, code, top)
}

/// Packs codes into words without gaps; zeros after the last.
fn side_by_side(b: &mut Builder, codes: &[Operand], bits: u32) -> Vec<Operand> {
    let mut words: Vec<Operand> = Vec::new();
    let mut put = |b: &mut Builder, word: usize, part: Operand| match words.get_mut(word) {
        Some(known) => *known = b.binary(Binary::Or, *known, part),
        None => words.push(part),
    };
    for (&code, first) in codes.iter().zip((0..).step_by(bits as usize)) {
        let (word, at) = (first as usize / 32, first % 32);
        let low = b.shl(code, at);
        put(b, word, low);
        if at + bits > 32 {
            let high = b.shr(code, 32 - at);
            put(b, word + 1, high);
        }
    }
    words
}

/// The low bytes of four words.
fn bytes(b: &mut Builder, four: &[Operand]) -> Operand {
    if !b.target().has(Feature::Permute) {
        let byte = |b: &mut Builder, at: usize| {
            let byte = b.and(four[at], 0xffu32);
            b.shl(byte, 8 * at as u32)
        };
        let first = byte(b, 0);
        return (1..four.len()).fold(first, |word, at| {
            let byte = byte(b, at);
            b.binary(Binary::Or, word, byte)
        });
    }
    let [low, high] =
        [0, 2].map(|at| b.ternary(Ternary::Permute, four[at], four[at + 1], 0x0040u32));
    halves(b, low, high)
}

/// Four values as e4m3.
fn float_bytes(b: &mut Builder, four: &[Operand]) -> Operand {
    let [low, high] = [0, 2].map(|at| b.binary(Binary::PackE4m3, four[at], four[at + 1]));
    halves(b, low, high)
}

/// The low halves of two words.
fn halves(b: &mut Builder, low: Operand, high: Operand) -> Operand {
    b.ternary(Ternary::Permute, low, high, 0x5410u32)
}
