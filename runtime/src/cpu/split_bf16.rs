//! Split-bf16: numbers as sums of bf16 parts, for instructions that multiply bf16 and add in `f32`.
//!
//! In: an `f32` v. Out: up to [`MOST`] bf16 numbers whose sum is v: the first is v with the low 16
//! bits cleared, the second is the remainder, truncated in the same way, and so on. A part has 8
//! significant bits, and the remainder has 8 fewer than before: two parts hold 16 significant bits,
//! three the 24 of any `f32`. All parts have the sign of v, so that the magnitudes of the partial
//! products of x and w add up to that of x w: there is no additional cancellation, and each partial
//! product of 8 by 8 bits is exact in `f32`.
//!
//! The only loss is in subnormal numbers, below 2^-126, which these instructions flush to 0,
//! operands and results alike; the bound (`conformance::bound`) counts this loss. Weights whose
//! scales are outside of `RANGE`, for which the loss could be significant, are not split.
//!
//! The parts of an infinity are infinity and 0, and 0 times infinity is NaN. So a weight that can
//! be infinite is not split, and tokens with an element that is not finite are multiplied in `f32`.

use std::ops::RangeInclusive;

use half::slice::HalfFloatSliceExt;
use quantloom_dsl::format::{FloatFormat, Number};
use quantloom_dsl::{Code, Quantiser};

use crate::element::bf16;
use crate::unpacked::FoldedParameters;

/// The most parts: those of any `f32`.
pub const MOST: usize = 3;

/// The most pairs of a weight's part and an x's part, on any instruction set: with more pairs,
/// `f32` products are as fast (docs/performance/cpu.md).
pub const MOST_PAIRS: usize = 4;

/// The most columns, times pairs of parts, whose products are added in one chain that is rounded to
/// odd (`bfmmla`): the length of a chain of `f32` products.
pub const MOST_CHAIN: usize = 256;

/// Significant bits of a part.
const BITS: u32 = 8;

/// Magnitudes of the scales, apart from 0, of a weight that is split.
const RANGE: RangeInclusive<f64> = power(-100)..=power(100);
/// The largest magnitude of a code's value in such a weight.
const LARGEST_CODE: f64 = power(20);

/// 2^e of a normal number.
const fn power(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The remainder of `v` after its first part; 0 for an infinity.
#[inline(always)]
pub fn rest(v: f32) -> f32 {
    let first = f32::from_bits(v.to_bits() & 0xffff_0000);
    if v.is_infinite() { 0.0 } else { v - first }
}

/// Lines of 64 bytes of some panels' weights, 16 rows of bf16 parts in each panel.
pub const fn lines(columns: usize, parts: usize, panels: usize) -> usize {
    columns / 2 * parts * panels
}

/// Stores one token's values, in native order, in a tile of `size` tokens, for steps of `together`
/// columns: `[step][part][token][column]`. Overwrites `row`.
#[inline(always)]
pub fn place(
    row: &mut [f32],
    token: usize,
    size: usize,
    together: usize,
    parts: usize,
    out: &mut [u16],
) {
    let steps = out.chunks_exact_mut(parts * size * together);
    for (out, row) in steps.zip(row.chunks_exact_mut(together)) {
        for (part, out) in out.chunks_exact_mut(size * together).enumerate() {
            let out = &mut out[token * together..(token + 1) * together];
            for (out, value) in out.iter_mut().zip(row.iter()) {
                *out = (value.to_bits() >> 16) as u16;
            }
            if part + 1 < parts {
                for value in row.iter_mut() {
                    *value = rest(*value);
                }
            }
        }
    }
}

/// Whether no number of a row is infinite or NaN.
#[inline(always)]
pub fn finite(row: &[bf16]) -> bool {
    // The exponent bits of infinities and NaNs are all ones.
    let largest = row.iter().fold(0, |most: u16, value| most.max(value.to_bits() & 0x7f80));
    largest < 0x7f80
}

/// [`place`] of a row of bf16 numbers, which are their own only parts. Native columns beyond those of the
/// row are 0.
#[inline(always)]
pub fn place_bf16(row: &[bf16], token: usize, size: usize, together: usize, out: &mut [u16]) {
    // Lengths that the compiler knows.
    match together {
        2 => place_steps::<2>(row, token, size, out),
        4 => place_steps::<4>(row, token, size, out),
        32 => place_steps::<32>(row, token, size, out),
        columns => unreachable!("no instruction takes {columns} columns"),
    }
}

#[inline(always)]
fn place_steps<const W: usize>(row: &[bf16], token: usize, size: usize, out: &mut [u16]) {
    let mut places = out.as_chunks_mut::<W>().0.iter_mut().skip(token).step_by(size);
    let (steps, rest) = row.reinterpret_cast().as_chunks::<W>();
    for (step, place) in steps.iter().zip(places.by_ref()) {
        *place = *step;
    }
    for (at, place) in places.enumerate() {
        *place = [0; W];
        if at == 0 {
            place[..rest.len()].copy_from_slice(rest);
        }
    }
}

/// Number of parts of x of type `own`; if there is a quantiser, of codes minus their zero points,
/// times their scales.
pub fn of_input(quantiser: Option<&Quantiser>, own: FloatFormat) -> usize {
    let bits = match quantiser {
        None => of_type(Number::Float(own)),
        Some(Quantiser { code, zero: None, scales, .. }) => match scales.as_slice() {
            [level] if !level.divide => {
                let scale = level.stored_number().unwrap_or(Number::Float(own));
                of_type(*code) + of_type(scale)
            }
            _ => return MOST,
        },
        Some(_) => return MOST,
    };
    (bits.div_ceil(BITS) as usize).min(MOST)
}

/// Significant bits of any number of a type.
fn of_type(number: Number) -> u32 {
    match number {
        Number::Float(format) => u32::from(format.mantissa_bits) + 1,
        // Powers of two.
        Number::E8m0 => 1,
        integer => integer.bits(),
    }
}

/// Significant bits of a number, from its first set bit to its last.
fn significant(value: f64) -> u32 {
    const MANTISSA: u32 = 52;
    if value == 0.0 || value.is_nan() {
        return 0;
    }
    let bits = value.to_bits();
    if bits >> MANTISSA & 0x7ff == 0 {
        // Subnormal in f64: scales and codes never are.
        return MANTISSA;
    }
    MANTISSA + 1 - (bits | 1 << MANTISSA).trailing_zeros()
}

/// Counts the parts of weights of a code type, group by group.
#[derive(Clone, Copy, Debug)]
pub struct PartCounter {
    /// Least and largest value, and the most significant bits of any.
    least: f64,
    largest: f64,
    significant: u32,
    integers: bool,
    /// Whether some value cannot be split.
    refused: bool,
    /// Whether some value is so small that products with it could be flushed.
    tiny: bool,
}

impl PartCounter {
    /// For the values of the codes, minus `offset`.
    pub fn new(code: &Code, offset: i32) -> Self {
        let mut counter = Self {
            least: 0.0,
            largest: 0.0,
            significant: 0,
            integers: true,
            refused: false,
            tiny: false,
        };
        for code_at in 0..1u32 << code.bits() {
            let value = code.decode(code_at) - f64::from(offset);
            counter.refused |= value.abs() > LARGEST_CODE;
            if value.is_nan() {
                continue;
            }
            counter.tiny |= value != 0.0 && value.abs() < *RANGE.start();
            counter.least = counter.least.min(value);
            counter.largest = counter.largest.max(value);
            counter.significant = counter.significant.max(significant(value));
            counter.integers &= value.fract() == 0.0;
        }
        counter
    }

    /// Whether each value, without its scale, is one bf16 number, and large enough for products that flush
    /// subnormal numbers.
    pub(crate) fn one_part(&self) -> bool {
        !self.refused && !self.tiny && self.significant <= BITS
    }

    /// Number of parts of `(value - zero) * scale + shift`, 1 to [`MOST`]; `None` if the scale is
    /// outside of [`RANGE`] or a value is too large.
    pub(crate) fn parts(&self, group: &FoldedParameters) -> Option<usize> {
        let FoldedParameters { scale, zero, shift, .. } = *group;
        let usable = |value: f64| value == 0.0 || RANGE.contains(&value.abs());
        if self.refused || !usable(scale) || !usable(shift) || !zero.is_finite() {
            return None;
        }
        let values = if zero == 0.0 {
            self.significant
        } else if self.integers && zero.fract() == 0.0 {
            let largest = (self.least - zero).abs().max((self.largest - zero).abs());
            u64::BITS - (largest as u64).leading_zeros()
        } else {
            return Some(MOST);
        };
        if shift != 0.0 {
            return Some(MOST);
        }
        // Scales are stored as f32. A power of two adds no bits.
        let bits = match significant(f64::from(scale as f32)) {
            0 | 1 => values,
            scale => values + scale,
        };
        Some((bits.div_ceil(BITS) as usize).clamp(1, MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::bf16_to_f32;
    use quantloom_dsl::format::Number;

    /// The parts of `values`, from [`place`] for one token.
    fn parts_of(values: &[f32], parts: usize) -> Vec<Vec<f32>> {
        let mut out = vec![0; values.len() * parts];
        place(&mut values.to_vec(), 0, 1, values.len(), parts, &mut out);
        let part = |part: &[u16]| part.iter().map(|bits| bf16_to_f32(*bits)).collect();
        out.chunks(values.len()).map(part).collect()
    }

    #[test]
    fn parts_add_up_to_the_number_and_have_its_sign() {
        let mut state = 1u64;
        let mut values = vec![0.0, 1.0, -3.25, f32::MAX, f32::MIN_POSITIVE, 1e-40, 0.1, -1.0 / 3.0];
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            let value = f32::from_bits((state >> 32) as u32);
            if value.is_finite() {
                values.push(value);
            }
        }
        let parts = parts_of(&values, MOST);
        for (at, value) in values.iter().enumerate() {
            let sum: f64 = parts.iter().map(|part| f64::from(part[at])).sum();
            // Smaller parts have fewer than 8 bits; the instructions flush them to 0 anyway.
            let lost = (sum - f64::from(*value)).abs();
            assert!(lost < power(-126) && (lost == 0.0 || value.abs() < 1e-30), "{value:e}");
            assert!(parts.iter().all(|part| part[at] * value >= 0.0), "{value:e}");
        }
    }

    #[test]
    fn an_infinity_is_its_first_part() {
        assert_eq!(parts_of(&[f32::NEG_INFINITY], 3), [[f32::NEG_INFINITY], [0.0], [0.0]]);
    }

    #[test]
    fn each_token_lies_in_its_rows() {
        // Two steps of two columns, two parts, three tokens: token 1.
        let mut out = vec![0; 2 * 2 * 3 * 2];
        place(&mut [1.0, 2.0, 3.0, 257.0], 1, 3, 2, 2, &mut out);
        let bf16 = |value: f32| (value.to_bits() >> 16) as u16;
        let mut expected = vec![0; 24];
        (expected[2], expected[3]) = (bf16(1.0), bf16(2.0));
        (expected[14], expected[15], expected[21]) = (bf16(3.0), bf16(256.0), bf16(1.0));
        assert_eq!(out, expected);
    }

    /// Rows of bf16 numbers are placed as their only parts are, whatever was there before.
    #[test]
    fn bf16_numbers_are_their_own_parts() {
        let (columns, native, size) = (71, 96, 3);
        let row: Vec<bf16> = (0..columns).map(|at| bf16::from_f32(at as f32 - 35.5)).collect();
        let mut values: Vec<f32> = row.iter().map(|value| value.to_f32()).collect();
        values.resize(native, 0.0);
        for together in [2, 4, 32] {
            let mut out = vec![0xffff; native * size];
            let mut expected = out.clone();
            place_bf16(&row, 1, size, together, &mut out);
            place(&mut values.clone(), 1, size, together, 1, &mut expected);
            assert_eq!(out, expected, "{together} columns");
        }
        assert!(finite(&row));
        for value in [bf16::INFINITY, bf16::NEG_INFINITY, bf16::NAN] {
            assert!(!finite(&[&row[..], &[value]].concat()), "{value}");
        }
    }

    /// The number of parts of a code type is enough for each of its weights, and one fewer is not.
    #[test]
    fn as_many_parts_as_the_weights_need() {
        let group =
            |scale, zero, shift| FoldedParameters { scale, channel_scale: 1.0, zero, shift };
        let int4 = PartCounter::new(&Code::Number(Number::Int(4)), 0);
        let uint8 = PartCounter::new(&Code::Number(Number::Uint(8)), 0);
        let bf16 = 1.0 + 1.0 / 128.0; // 8 significant bits
        let f16 = 1.0 + 1.0 / 1024.0; // 11
        let f32 = 1.0 + 1.0 / 8_388_608.0; // 24
        assert_eq!(int4.parts(&group(0.125, 0.0, 0.0)), Some(1));
        assert_eq!(int4.parts(&group(bf16, 0.0, 0.0)), Some(2));
        assert_eq!(int4.parts(&group(f16, 0.0, 0.0)), Some(2));
        assert_eq!(int4.parts(&group(f32, 0.0, 0.0)), Some(3));
        assert_eq!(int4.parts(&group(bf16, 0.5, 0.0)), Some(3));
        assert_eq!(int4.parts(&group(bf16, 0.0, 1.0)), Some(3));
        assert_eq!(int4.parts(&group(bf16, 300.0, 0.0)), Some(3));
        assert_eq!(uint8.parts(&group(1.0, 0.0, 0.0)), Some(1));
        assert_eq!(uint8.parts(&group(bf16, 128.0, 0.0)), Some(2));
        assert_eq!(uint8.parts(&group(f16, 128.0, 0.0)), Some(3));
        assert_eq!(int4.parts(&group(0.0, 0.0, 0.0)), Some(1));
        for outside in [power(-101), power(101), f64::INFINITY, f64::NAN] {
            assert_eq!(int4.parts(&group(outside, 0.0, 0.0)), None);
            assert_eq!(int4.parts(&group(1.0, 0.0, outside)), None);
        }
        let of_two = |value: f64| Code::Codebook(vec![0, (value as f32).to_bits()]);
        assert!(PartCounter::new(&of_two(255.0), 0).one_part());
        assert!(!PartCounter::new(&of_two(257.0), 0).one_part());
        assert!(PartCounter::new(&of_two(257.0), 1).one_part());
        assert!(!PartCounter::new(&of_two(power(-101)), 0).one_part());
        let infinite = Code::Codebook(vec![0, f32::INFINITY.to_bits()]);
        assert_eq!(PartCounter::new(&infinite, 0).parts(&group(1.0, 0.0, 0.0)), None);
    }
}
