//! Rounding of `f32` to other types, in plain loops and without branches, which compilers vectorise.

use quantloom_dsl::format::{BF16, F16, FloatFormat};

use crate::element::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The type that each operation on an element rounds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    F32,
    Bf16,
    F16,
}

impl Rounding {
    pub(super) fn of(format: FloatFormat) -> Self {
        match format {
            BF16 => Self::Bf16,
            F16 => Self::F16,
            _ => Self::F32,
        }
    }

    #[inline(always)]
    pub(super) fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::Bf16 => bf16_to_f32(f32_to_bf16(value)),
            Self::F16 => f16_to_f32(f32_to_f16(value)),
        }
    }
}

/// To the nearest integer, ties to even, for a magnitude below 2^22: adding 1.5 * 2^23 leaves no
/// bits below 1, and the addition rounds.
#[inline(always)]
pub(super) fn round_even(value: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (value + MAGIC) - MAGIC
}

/// To the nearest integer, ties away from zero; the difference to the even one is exact.
#[inline(always)]
pub(super) fn round_away(value: f32) -> f32 {
    let even = round_even(value);
    let rest = value - even;
    let up = if rest == 0.5 && value > 0.0 { 1.0 } else { 0.0 };
    let down = if rest == -0.5 && value < 0.0 { 1.0 } else { 0.0 };
    even + up - down
}

/// To the nearest value of a short float format, ties to even, for magnitudes up to its largest.
///
/// A value in [2^e, 2^(e+1)) is a multiple of 2^(e-m) in the format (e at least that of the
/// smallest normal number). Adding 2^(e-m+23) leaves no bits below that, and the addition rounds.
#[inline(always)]
pub(super) fn round_float(codes: &mut [f32], format: FloatFormat) {
    let smallest = ((127 + 1 - format.bias()) as u32) << 23;
    let steps = (23 - u32::from(format.mantissa_bits)) << 23;
    for code in codes {
        let bits = code.to_bits();
        let exponent = (bits & 0x7f80_0000).max(smallest);
        let magic = f32::from_bits(exponent + steps);
        let magnitude = (f32::from_bits(bits & 0x7fff_ffff) + magic) - magic;
        *code = f32::from_bits(magnitude.to_bits() | bits & 0x8000_0000);
    }
}
