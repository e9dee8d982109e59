//! The arithmetic of a tensor library (each operation in f32, rounded to a type), and rounding to short
//! floats.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Variant};

use crate::ir::{Binary, Builder, Compare, Half, Operand, Side, Ternary, Unary};
use crate::target::Feature;

/// The type that results are rounded to; [`quantloom_dsl::reference::RoundedArithmetic`] as operations
/// of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounding {
    /// f32 if `None`.
    half: Option<Half>,
}

/// A 16-bit float type of the IR.
pub(super) fn half(format: FloatFormat) -> Option<Half> {
    match format {
        BF16 => Some(Half::Bf16),
        F16 => Some(Half::F16),
        _ => None,
    }
}

impl Rounding {
    /// Rounding to bf16 or f16; to f32 for any other type.
    pub(super) fn to(format: FloatFormat) -> Self {
        Self { half: half(format) }
    }

    /// The rounding of operations on values of this type and of `number`: the wider type, and f32 for
    /// bf16 with f16.
    pub(super) fn with(self, number: Number) -> Self {
        match number {
            Number::Float(F32) => Self { half: None },
            Number::Float(format) if half(format).is_some() && half(format) != self.half => {
                Self { half: None }
            }
            _ => self,
        }
    }

    /// Each value rounded.
    pub(super) fn round(self, b: &mut Builder, values: Vec<Operand>) -> Vec<Operand> {
        let Some(half) = self.half else { return values };
        let mut rounded = Vec::new();
        for pair in values.chunks(2) {
            let high = pair.get(1).copied().unwrap_or(Operand::F32(0.0));
            let word = b.binary(Binary::Pack(half), pair[0], high);
            let sides = [Side::Low, Side::High].into_iter().take(pair.len());
            rounded.extend(sides.map(|side| b.half_to_f32(half, side, word)));
        }
        rounded
    }

    /// `op(a, c)`.
    pub(super) fn binary(
        self,
        b: &mut Builder,
        op: Binary,
        a: impl Into<Operand>,
        c: impl Into<Operand>,
    ) -> Operand {
        let exact = b.binary(op, a, c);
        self.round(b, vec![exact])[0]
    }
}

/// `min(value, limit)`; NaN stays NaN.
pub(in crate::schedule) fn at_most(b: &mut Builder, value: Operand, limit: f64) -> Operand {
    let above = b.compare(Compare::LessF32, limit as f32, value);
    b.select(above, limit as f32, value)
}

/// `max(value, limit)`; NaN stays NaN.
pub(in crate::schedule) fn at_least(b: &mut Builder, value: Operand, limit: f64) -> Operand {
    let below = b.compare(Compare::LessF32, value, limit as f32);
    b.select(below, limit as f32, value)
}

/// The nearest value of a format, ties to even, saturated at its largest. NaN stays NaN, or becomes -0
/// if the format has no NaN.
///
/// Short floats: a magnitude in [2^e, 2^(e + 1)) is a multiple of 2^(e - m) in the format, with e at
/// least the exponent of its smallest normal number. The sum with 2^(e - m + 23) has no lower bits, and
/// is rounded; the difference is exact.
pub(super) fn round_to(b: &mut Builder, format: FloatFormat, value: Operand) -> Operand {
    if format == F32 {
        return at_most(b, value, format.max());
    }
    if half(format).is_some() {
        let rounded = Rounding::to(format).round(b, vec![value])[0];
        return at_most(b, rounded, format.max());
    }
    let magnitude = b.unary(Unary::Abs, value);
    let magnitude = at_most(b, magnitude, format.max());
    let bits = b.unary(Unary::AsU32, magnitude);
    let exponent = b.and(bits, 0x7f80_0000u32);
    let exponent = b.binary(Binary::Max, exponent, ((128 - format.bias()) as u32) << 23);
    let mantissa = u32::from(format.mantissa_bits) << 23;
    let rounded = if b.target().has(Feature::StrictF32) {
        let magic = b.add(exponent, (23 << 23) - mantissa);
        let magic = b.unary(Unary::AsF32, magic);
        let sum = b.add_f32(magnitude, magic);
        b.binary(Binary::SubF32, sum, magic)
    } else {
        // A compiler may simplify (a + b) - b to a: count in units of 2^(e - m) instead.
        let unit = b.sub(exponent, mantissa);
        let inverse = b.sub(254u32 << 23, unit);
        let [unit, inverse] = [unit, inverse].map(|power| b.unary(Unary::AsF32, power));
        let units = b.mul_f32(magnitude, inverse);
        let units = b.unary(Unary::RoundEven, units);
        b.mul_f32(units, unit)
    };
    let signed = with_sign(b, rounded, value);
    if format.variant != Variant::Finite {
        return signed;
    }
    let number = b.compare(Compare::EqualF32, value, value);
    b.select(number, signed, -0.0f32)
}

/// A magnitude with the sign of a value.
pub(super) fn with_sign(b: &mut Builder, magnitude: Operand, value: Operand) -> Operand {
    let (magnitude, value) = (b.unary(Unary::AsU32, magnitude), b.unary(Unary::AsU32, value));
    let signed = match b.target().has(Feature::Lop3) {
        // (a & c) | (b & !c)
        true => b.ternary(Ternary::Lop3(0xE4), value, magnitude, 0x8000_0000u32),
        false => {
            let (sign, digits) = (b.and(value, 0x8000_0000u32), b.and(magnitude, 0x7fff_ffffu32));
            b.binary(Binary::Or, sign, digits)
        }
    };
    b.unary(Unary::AsF32, signed)
}
