//! Element types of activations and results: `f32`, and the two 16-bit floats as their bits.
//!
//! In: a slice of elements. Out: `f32` values, and back. [`Values`] and [`ValuesMut`] are how a
//! caller hands in x and takes y; conversions round to nearest even.

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::format::{BF16 as FORMAT_BF16, F16 as FORMAT_F16, F32 as FORMAT_F32};

/// The bits of an IEEE binary16 number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16 number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// Elements of an activation, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// `f32`.
    F32(&'a [f32]),
    /// f16.
    F16(&'a [F16]),
    /// bf16.
    Bf16(&'a [Bf16]),
}

impl<'a> Values<'a> {
    /// Number of elements.
    pub fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The element type: the `own` type of a quantiser.
    pub fn format(self) -> FloatFormat {
        match self {
            Self::F32(_) => FORMAT_F32,
            Self::F16(_) => FORMAT_F16,
            Self::Bf16(_) => FORMAT_BF16,
        }
    }

    /// Some of them.
    ///
    /// # Panics
    /// Beyond the end.
    #[must_use]
    pub fn part(self, range: std::ops::Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F16(values) => Self::F16(&values[range]),
            Self::Bf16(values) => Self::Bf16(&values[range]),
        }
    }

    /// Element `at` as `f32`.
    #[inline(always)]
    pub fn get(self, at: usize) -> f32 {
        match self {
            Self::F32(values) => values[at],
            Self::F16(values) => f16_to_f32(values[at].0),
            Self::Bf16(values) => bf16_to_f32(values[at].0),
        }
    }

    /// Widens elements `first..first + out.len()`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn widen(self, first: usize, out: &mut [f32]) {
        let range = first..first + out.len();
        match self {
            Self::F32(values) => out.copy_from_slice(&values[range]),
            Self::F16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = f16_to_f32(value.0);
                }
            }
            Self::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = bf16_to_f32(value.0);
                }
            }
        }
    }
}

impl<'a> From<&'a [f32]> for Values<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a Vec<f32>> for Values<'a> {
    fn from(values: &'a Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a [F16]> for Values<'a> {
    fn from(values: &'a [F16]) -> Self {
        Self::F16(values)
    }
}

impl<'a> From<&'a [Bf16]> for Values<'a> {
    fn from(values: &'a [Bf16]) -> Self {
        Self::Bf16(values)
    }
}

/// Where a result goes, row-major; its element type is the result's.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// `f32`.
    F32(&'a mut [f32]),
    /// f16.
    F16(&'a mut [F16]),
    /// bf16.
    Bf16(&'a mut [Bf16]),
}

impl ValuesMut<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub fn format(&self) -> FloatFormat {
        match self {
            Self::F32(_) => FORMAT_F32,
            Self::F16(_) => FORMAT_F16,
            Self::Bf16(_) => FORMAT_BF16,
        }
    }
}

impl<'a> From<&'a mut [f32]> for ValuesMut<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a mut Vec<f32>> for ValuesMut<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a mut [F16]> for ValuesMut<'a> {
    fn from(values: &'a mut [F16]) -> Self {
        Self::F16(values)
    }
}

impl<'a> From<&'a mut [Bf16]> for ValuesMut<'a> {
    fn from(values: &'a mut [Bf16]) -> Self {
        Self::Bf16(values)
    }
}

/// Exact.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to nearest even; a NaN stays one.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // Half a unit of the kept part, less one where the kept part is even.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Exact.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    // The bias of f32 is 112 larger; infinities and NaNs need the largest exponent, 112 more.
    let moved = (magnitude << 13) + (112 << 23);
    let special = if magnitude >= 0x7c00 { 112 << 23 } else { 0 };
    // A subnormal number is a multiple of 2^-24: units of 2^-14, where it lies in the mantissa, less
    // 2^-14. Nothing here is subnormal in f32.
    let one = f32::from_bits(113 << 23);
    let subnormal = f32::from_bits((magnitude << 13) + (113 << 23)) - one;
    let finite = if magnitude < 0x0400 { subnormal.to_bits() } else { moved + special };
    f32::from_bits(finite | sign)
}

/// Rounds to nearest even; beyond the largest value infinity, a NaN stays one.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00; // 65536 and more
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14 the result is subnormal: adding 1/2 leaves units of 2^-24 in the low bits,
        // rounded by the addition itself.
        let units = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits();
        return sign | units as u16;
    }
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    sign | ((rounded - 0x3800_0000) >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, Overflow};

    #[test]
    fn every_f16_and_bf16_code_is_widened_as_the_format_says() {
        for bits in 0..=u16::MAX {
            for (number, ours) in [(NUMBER_F16, f16_to_f32(bits)), (NUMBER_BF16, bf16_to_f32(bits))]
            {
                let value = number.decode(u32::from(bits)) as f32;
                assert!(
                    value.to_bits() == ours.to_bits() || value.is_nan() && ours.is_nan(),
                    "{number} {bits:#06x}: {ours}, expected {value}"
                );
            }
        }
    }

    #[test]
    fn narrowing_rounds_as_the_formats_do() {
        let mut state = 1u32;
        for step in 0..2_000_000u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Half of the cases near ties: few bits below the kept ones.
            let bits = if step % 2 == 0 { state } else { state & 0xffff_f000 };
            let value = f32::from_bits(bits);
            if value.is_nan() {
                continue;
            }
            for (number, ours) in
                [(NUMBER_F16, f32_to_f16(value)), (NUMBER_BF16, f32_to_bf16(value))]
            {
                let expected = number.encode(f64::from(value), Overflow::Special);
                assert_eq!(u32::from(ours), expected, "{number} of {value:e} ({bits:#010x})");
            }
        }
    }
}
