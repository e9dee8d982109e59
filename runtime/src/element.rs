//! Element types of activations and results: `f32`, and [`struct@f16`] and [`struct@bf16`] of the crate `half`.
//!
//! In: a slice of elements. Out: `f32` values, and back. [`Values`] and [`ValuesMut`] are how a
//! caller hands in x and takes y; conversions round to nearest even. The conversions here have no
//! branches, so that loops over them become vector instructions; those of `half` ask the processor
//! for each number.

pub use half::{bf16, f16};

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::format::{BF16 as FORMAT_BF16, F16 as FORMAT_F16, F32 as FORMAT_F32};

/// Elements of an activation, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// `f32`.
    F32(&'a [f32]),
    /// f16.
    F16(&'a [f16]),
    /// bf16.
    Bf16(&'a [bf16]),
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

    /// The element type: the input dtype of a product whose x they are.
    pub fn format(self) -> FloatFormat {
        match self {
            Self::F32(_) => FORMAT_F32,
            Self::F16(_) => FORMAT_F16,
            Self::Bf16(_) => FORMAT_BF16,
        }
    }

    /// The first one that is NaN or infinite: where, and what.
    pub(crate) fn non_finite(self) -> Option<(usize, f64)> {
        match self {
            Self::F32(values) => {
                let at = values.iter().position(|value| !value.is_finite())?;
                Some((at, values[at].into()))
            }
            Self::F16(values) => {
                let at = values.iter().position(|value| !value.is_finite())?;
                Some((at, values[at].to_f64()))
            }
            Self::Bf16(values) => {
                let at = values.iter().position(|value| !value.is_finite())?;
                Some((at, values[at].to_f64()))
            }
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

    /// Rows of `columns` elements that begin `stride` elements apart, copied next to one another. The
    /// last row may end before the stride does. `None` if rows overlap or are not whole.
    pub fn dense_rows(self, columns: usize, stride: usize) -> Option<OwnedValues> {
        fn dense<T: Copy>(values: &[T], columns: usize, stride: usize) -> Vec<T> {
            values.chunks(stride).flat_map(|row| &row[..columns]).copied().collect()
        }
        let last = self.len().checked_rem(stride)?;
        if stride < columns || last > 0 && last < columns {
            return None;
        }
        Some(match self {
            Self::F32(values) => OwnedValues::F32(dense(values, columns, stride)),
            Self::F16(values) => OwnedValues::F16(dense(values, columns, stride)),
            Self::Bf16(values) => OwnedValues::Bf16(dense(values, columns, stride)),
        })
    }

    /// Element `at` as `f32`.
    #[inline(always)]
    pub fn get(self, at: usize) -> f32 {
        match self {
            Self::F32(values) => values[at],
            Self::F16(values) => f16_to_f32(values[at].to_bits()),
            Self::Bf16(values) => bf16_to_f32(values[at].to_bits()),
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
                    *out = f16_to_f32(value.to_bits());
                }
            }
            Self::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = bf16_to_f32(value.to_bits());
                }
            }
        }
    }
}

/// Elements of an activation in memory of their own.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnedValues {
    /// `f32`.
    F32(Vec<f32>),
    /// f16.
    F16(Vec<f16>),
    /// bf16.
    Bf16(Vec<bf16>),
}

impl OwnedValues {
    /// The elements, borrowed.
    pub fn values(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::F16(values) => Values::F16(values),
            Self::Bf16(values) => Values::Bf16(values),
        }
    }
}

/// Slices, vectors and arrays of an element type as x.
macro_rules! values_from {
    ($($element:ty => $case:ident;)*) => {$(
        impl<'a> From<&'a [$element]> for Values<'a> {
            fn from(values: &'a [$element]) -> Self {
                Self::$case(values)
            }
        }

        impl<'a> From<&'a Vec<$element>> for Values<'a> {
            fn from(values: &'a Vec<$element>) -> Self {
                Self::$case(values)
            }
        }

        impl<'a, const LENGTH: usize> From<&'a [$element; LENGTH]> for Values<'a> {
            fn from(values: &'a [$element; LENGTH]) -> Self {
                Self::$case(values)
            }
        }

        impl<'a> From<&'a mut [$element]> for ValuesMut<'a> {
            fn from(values: &'a mut [$element]) -> Self {
                Self::$case(values)
            }
        }

        impl<'a> From<&'a mut Vec<$element>> for ValuesMut<'a> {
            fn from(values: &'a mut Vec<$element>) -> Self {
                Self::$case(values)
            }
        }
    )*};
}

values_from! {
    f32 => F32;
    f16 => F16;
    bf16 => Bf16;
}

impl<'a> From<&'a OwnedValues> for Values<'a> {
    fn from(values: &'a OwnedValues) -> Self {
        values.values()
    }
}

/// Where a result goes, row-major; its element type is the result's.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// `f32`.
    F32(&'a mut [f32]),
    /// f16.
    F16(&'a mut [f16]),
    /// bf16.
    Bf16(&'a mut [bf16]),
}

impl ValuesMut<'_> {
    /// The elements, to read them.
    pub fn values(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::F16(values) => Values::F16(values),
            Self::Bf16(values) => Values::Bf16(values),
        }
    }

    /// The first elements.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn first(&mut self, count: usize) -> ValuesMut<'_> {
        match self {
            Self::F32(values) => ValuesMut::F32(&mut values[..count]),
            Self::F16(values) => ValuesMut::F16(&mut values[..count]),
            Self::Bf16(values) => ValuesMut::Bf16(&mut values[..count]),
        }
    }

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

    /// A part of them.
    ///
    /// # Panics
    /// If the range is not within the elements.
    pub fn part(&mut self, range: std::ops::Range<usize>) -> ValuesMut<'_> {
        match self {
            Self::F32(values) => ValuesMut::F32(&mut values[range]),
            Self::F16(values) => ValuesMut::F16(&mut values[range]),
            Self::Bf16(values) => ValuesMut::Bf16(&mut values[range]),
        }
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
    fn rows_of_a_stride_are_put_next_to_one_another() {
        let x: Vec<f32> = (0..11).map(|x| x as f32).collect();
        let rows = |columns, stride| Values::F32(&x).dense_rows(columns, stride);
        let expected = OwnedValues::F32(vec![0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0]);
        assert_eq!(rows(3, 4), Some(expected));
        assert_eq!(rows(11, 11), Some(OwnedValues::F32(x.clone())));
        // A row that is cut off, rows that overlap, rows that do not move on.
        assert_eq!([rows(4, 4), rows(3, 2), rows(0, 0)], [None, None, None]);
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
