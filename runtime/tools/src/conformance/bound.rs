//! The largest difference of a product in `f32` from the exact product.
//!
//! In: the magnitudes of the weights and tokens of a case. Out: one bound per element of y.
//!
//! **Derivation.** With u = 2^-24, every `f32` operation gives its exact result times (1 + d),
//! |d| <= u, plus an e, |e| <= 2^-150, that is not 0 only where the result is subnormal. A kernel
//! computes `y[m,n] = f * (sum_g s_g * sum_k c_k x_k + a_g * sum_k x_k) - z_x * (row sum) + bias`
//! in some order, where c is the code as the kernel stores it (unsigned integers: the value plus
//! an offset o), s the scale levels that vary along k, f those that do not, and
//! `a = shift - s * (zero + o)`. By the triangle inequality the error is at most, with r the most
//! roundings that any one term passes through,
//!
//! `r u / (1 - r u) * sum_k X_k W_k + u' |y| + bias terms + underflow`, where
//! `X_k = (|x code| + |x zero| + 2 c) * |x scales|` (for a float activation |x|), c = 128 where x has codes of u8, from
//! which CPUs subtract that to multiply signed bytes, as from their zero points, else 0 (codes that are integers times a
//! power of two are multiplied as these, and the scale is less by the power, exactly where it is normal), and
//! `W_k = (|v| + |zero| + 2 o') * |scales| + |shift|`, o' = |o| where the kernel sums stored
//! codes in floating point, 0 where it sums integers, which is exact.
//!
//! r counts, for one term: at most [`FIXED`] operations outside of sums (see the constant), one
//! addition per column of a segment (at most [`SEGMENT`] columns) and two per segment; integers need
//! none inside of a segment. There is at most one segment per group and one per chunk of 32
//! columns; if groups of w and x end at different columns, or are divided into affine runs, there
//! is one segment for each of those (`expected::segments`).
//!
//! Integer segments on CPUs where x has scales by groups: the exact sum becomes an `f32` (1), is multiplied
//! by the scale of x (1), then by that of w, and added (2); the scale of x is then no part of the row's
//! factor, so that one operation of [`FIXED`] is left over. The sum of x for the correction is exact, times its
//! scale 1, which is the rounding of the sum times the product of both factors elsewhere. A zero point of a group of
//! x is multiplied by the scale (1), and with the group's sum of w, which is rounded once (1), and subtracted (2): the
//! three of the zero point in [`FIXED`], the scale in place of that of the row. A segment may
//! be half a chunk where groups end there: of K columns there are then K / 16 segments. So a term passes through at most
//! three additions a segment, its own, those of corrections and those of zero points, of which two are counted for a segment
//! and the third for a chunk: a segment that is shorter than a chunk is half of one.
//!
//! The row sum of integer products of GPUs, which zero points of x multiply, is rounded once where the host adds it or where it is a sum
//! of codes alone. Elsewhere a kernel adds products of codes and scales: a lane of 32 takes 8 columns of each 256, with one rounding a
//! column, and at most six additions follow. That is K / 32 + 8 + 6 roundings of a term at most, fewer than [`Sums::Matrix`] counts for
//! K columns ([`MATRIX_COLUMNS`] of an instruction, [`MOST_PARTS`]).
//!
//! Levels: `s` and `shift` are products of levels, and W_k has the magnitudes of these products. A sign is exact,
//! and so is an offset: integers, which have at most 32 bits, are decoded in f64 and no kernel reads them. Where
//! the host packs, it rounds the product of L levels in f64 (each time 2^-29 of a rounding counted here) and once
//! to f32; where a kernel does, it rounds L - 1 times. [`FIXED`] counts one for the scale of a term. The shift's
//! term passes through no scale and has that one for the product of its own levels. So L levels of either need
//! L - 2 more, from three on, and as many more products that may underflow; the factors of the shift's levels
//! that are larger than 1 multiply what an earlier product lost, as those of a scale do.
//!
//! Matrix instructions compute exact products but may truncate below the last place of the largest
//! term, where a rounding would lose half as much: two roundings per column, and two per
//! instruction for the previous sum. Where scales of groups are in the operands, a chain is a row and not a group: a term
//! then passes through two roundings per column of its own instruction (at most [`SCALED_COLUMNS`]), and two per
//! instruction of the row. Then two per segment (its scale, its addition), one per warp
//! and one per block that share K; weights carry no offset. Instructions that scale their operands,
//! exactly, take [`SCALED_COLUMNS`] at a time, of several groups: count that many columns instead
//! of a group's, also where they take fewer; the two per group are as many as the instructions and the iterations of
//! warps that follow, two each, or more. Where scales of x have a level that the instruction does not read, that level is part of w's
//! per-channel scale: the scale of x is then no product that was rounded, which the operations of [`FIXED`]
//! without a counterpart there (zero point and row sum of x, integer sums) count.
//!
//! FP8 products of Hopper's warp groups ([`Sums::Cut`]): an instruction adds [`CUT_COLUMNS`] products and the sum
//! before, each cut by less than [`CUT`] times the largest of them (14 bits of a number are kept: DeepSeek-V3
//! Technical Report, 3.3.2), and cuts the new sum likewise. None of these numbers is more than what the terms so far
//! add up to, errors included. So an instruction multiplies the terms with their errors by
//! `1 + (CUT_COLUMNS + 2) CUT` at most, and the n instructions of the longest group of w by the n-th power: scales of
//! groups multiply sums, so that each group begins anew. Roundings in `f32` follow as above.
//!
//! Lanes without matrix instructions: two roundings per column of a segment (a multiply-add may be
//! two operations); the segment is a chunk if groups have their own scales, else the whole row. Two
//! per segment and one for each group of lanes that shares K. Each rounding counts twice, since
//! only one of the two neighbours is guaranteed.
//!
//! bf16 parts: weights are dequantised first (three operations of [`FIXED`]); parts are exact, have
//! one sign and so no more magnitude than the whole. An instruction adds 32 columns of a pair of
//! parts: a chain of [`PAIR_CHAIN`] products, one addition of even and odd columns, one to the
//! previous sum; there are at most [`MOST_PAIRS`] pairs. The chain of one term is one instruction's
//! roundings, plus one for each later instruction.
//!
//! Dot products of pairs of bf16 numbers (`vdpbf16ps`) multiply exact numbers too, weights with their scales or codes, and
//! add the two products of a pair one after the other: one rounding a column, in chains of at most [`MOST_CHAIN`]
//! columns, which is no more than [`SEGMENT`]. A chain ends with a segment where scales multiply sums (its scale, its
//! addition: two per segment, as above), else with a block (its addition). A term loses three numbers below 2^-126 at
//! most, its operands and a result of its own, and later results are among the [`FLUSHED`] of the pairs that are counted.
//!
//! The same with `bfmmla`, which rounds to odd, with twice the error of rounding to nearest: two
//! for the sum of two products, and two for each two columns of each pair of parts that follow in
//! the chain, that is, one per column; a chain has at most [`MOST_CHAIN`] of those. Chains, of at
//! least a chunk, add up as segments do. Of codes a chain ends with a segment, whose scale and addition are the two that are counted
//! for each.
//!
//! A constant that decoding adds to codes ([`Decoded::add`]) counts as an offset like o: its share
//! of a sum is computed and subtracted.
//!
//! Rounded weights ([`Decoded::rounded`]): a value v becomes v', which is known for each code. Let
//! d be the largest relative error of values that are rounded as normal numbers, and t the largest
//! error of the others (below the format's normal numbers times the power of two). Then |v' - v| <=
//! d |v| + t, and so y differs by at most `d sum_k X_k W_k + t sum_k X_k |scales|`, in addition to
//! the roundings.
//!
//! Scaled weights ([`Decoded::scaled`]): a value times its scale is rounded once to the format, by half of its
//! epsilon of the product at most, or below the format's normal numbers by half of its smallest number.
//! The first adds to d; the second is a term `half the smallest number * sum_k X_k`, where X_k is at most the
//! product of the term's factors that are larger than 1.
//!
//! In parts ([`ScaleDigits::InParts`]), with e half the format's epsilon, 2^-8 of bf16: a scale s is h + l, h its first
//! 8 digits, or an integer times the first 8 digits of a coarser level, rounded, |h| <= (1 + e) |s|, and l the rest, |l| <= 3 e |s|, which is
//! rounded, by e |l|. The weight is R(v h + R(v l)) with R
//! rounding to the format: l and the inner R lose 3 e e (2 + e) of |v s| at most, the outer R e of the sum: together less than
//! e (1 + 8 e) of |v s|. With a term m = h' + l' the weight is R(R(v h + h') + R(v l + l')): the first R loses e (1 + e) of
//! |v s| + |m| at most, the second one and the parts 3 e e (2 + e) of that, the outer one e of the sum: together less than
//! 2 e (1 + 8 e) of |v s| + |m|, which is at most W_k. Below the format's normal numbers each of l, l' and the three R may
//! lose half of the smallest number, l times the value, which is a factor of X_k.
//!
//! Rounded ([`ScaleDigits::Rounded`]), the weight is R(v R(s)), or R(v R(s) + R(m)): the inner ones lose e of |v s| and |m|, the
//! outer one e (1 + e) of |v s| + |m| at most, which is at most W_k: together e (2 + e). Below the format's normal numbers each R
//! may lose half of the smallest number, that of s times the value.
//!
//! Underflow: each of at most [`FIXED`] products of a term may lose 2^-150 (over the unit of sums, if that is small), times all factors that
//! are multiplied later, each of which is at most the larger of itself and 1. Where stored codes are
//! summed, the factor of a code is at most `max(1, |v| + |zero|) + 2 o' <= max(1, |v| + |zero|) (1 + 2 o')`:
//! a code of value 0 has one, too. Instructions that
//! flush subnormal numbers to 0 lose up to 2^-126 of each operand and each result: [`FLUSHED`] per
//! term and pair of parts. An element that has its scale of e8m0 may lose half of the smallest bf16, 2^-134: of w, and
//! of x in f32 (x in 16 bits has no smaller steps than bf16).
//!
//! Overflow: kernels multiply the factors of a term in different orders. Every partial product and every sum of
//! partial products is at most the sum over the terms of the product of all factors above 1. Where that exceeds
//! the largest `f32`, some order overflows (0 times an infinite product of scales is NaN), and there is no
//! bound.

use quantloom_dsl::WeightCode;
use quantloom_dsl::format::FloatFormat;
use quantloom_runtime::accumulation::{Decoded, ScaleDigits, ScaledWeights, Sums};
use quantloom_runtime::cpu::split_bf16::{MOST_CHAIN, MOST_PAIRS};

/// Half the distance between 1 and the next `f32`.
pub(super) const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
/// Half the smallest `f32`, 2^-150.
const TINY: f64 = f64::from_bits((1023 - 150) << 52);

/// Operations that a term passes through outside of sums, at most: x to `f32` 1, scale to `f32` 1,
/// the group's correction 1, an integer sum to `f32` 1, value times scale plus correction 2,
/// product with x 1, sum of x times correction 2, the per-channel scale to `f32` 1, x's scale to
/// `f32` 1, the product of the two 1, the sum times that 1, x's zero point times the row sum 3,
/// bias to `f32` and its addition 2.
const FIXED: usize = 18;
/// Columns that are added in one chain before a group's scale is applied, at most.
const SEGMENT: usize = 256;

// Chains of pairs of bf16 numbers are counted as those of `f32` products.
const _: () = assert!(MOST_CHAIN <= SEGMENT);

/// Columns that one matrix instruction adds up, at least.
const MATRIX_COLUMNS: usize = 8;
/// Columns that one instruction with scaled operands adds up.
const SCALED_COLUMNS: usize = 128;
/// Half the smallest bf16, 2^-134.
const TINY_BF16: f64 = f64::from_bits((1023 - 134) << 52);
/// Columns that one FP8 instruction of a warp group adds up.
const CUT_COLUMNS: usize = 32;
/// What such an instruction cuts of each number, relative to the largest.
const CUT: f64 = 1.0 / (1u64 << 13) as f64;
/// Warps and blocks that share a row's K, at most; groups are counted separately.
const MOST_PARTS: usize = 64;

/// Columns of a segment for lanes without matrix instructions: a chunk of codes.
const LANES_SEGMENT: usize = 32;
/// Groups of lanes of a block that share a row's K.
const MOST_LANES: usize = 16;
/// Numbers below 2^-126 that an operation of lanes loses, at most: its operands and its result.
const LANES_FLUSHED: usize = 3;

/// Columns of an instruction on bf16 parts.
const PAIR_COLUMNS: usize = 32;
/// Products that such an instruction adds in one chain, plus the addition of its two chains.
const PAIR_CHAIN: usize = PAIR_COLUMNS / 2 + 1;
/// Numbers below 2^-126 that a term of a pair loses, at most: its two operands, the product with
/// the previous sum, the sum of the chains and that of the instructions.
const FLUSHED: usize = 5;
/// The smallest normal `f32`, 2^-126.
const NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// The number of roundings of a term of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundingCount {
    roundings: usize,
    /// Whether stored codes are summed in floating point, and their offset subtracted afterwards.
    pub(super) offset: bool,
    /// What a term may lose by underflow, before later factors.
    underflow: f64,
    /// What instructions cut of sums, relative to the terms.
    cut: f64,
}

impl RoundingCount {
    /// The roundings of a kernel for K columns in `groups` groups; the kernel sums `segments`
    /// segments separately, at least one per group. At most `levels` levels make a scale or a shift.
    pub(super) fn of(sums: Sums, k: usize, (groups, apart): (usize, usize), levels: usize) -> Self {
        let fixed = FIXED + levels.saturating_sub(2);
        let segments = 2 * (k.div_ceil(32) + apart);
        let float = k.min(SEGMENT) + segments + fixed;
        let underflow = fixed as f64 * TINY;
        let flushed = (MOST_PAIRS * FLUSHED) as f64 * NORMAL;
        let group = k.div_ceil(groups.max(1));
        let cut = match sums {
            Sums::Cut => {
                // All groups but the last are equally long, and no longer than this.
                let group = match groups {
                    0 | 1 => k,
                    _ => (k.saturating_sub(1) / (groups - 1)).min(k),
                };
                let each = (CUT_COLUMNS + 2) as f64 * CUT;
                (group.div_ceil(CUT_COLUMNS) as f64 * each.ln_1p()).exp_m1()
            }
            _ => 0.0,
        };
        match sums {
            Sums::Integer => Self { roundings: segments + fixed, offset: false, underflow, cut },
            Sums::Float => Self { roundings: float, offset: true, underflow, cut },
            Sums::SplitBf16 => {
                let parts = PAIR_CHAIN + MOST_PAIRS * k.div_ceil(PAIR_COLUMNS) + fixed;
                Self {
                    roundings: parts.max(float),
                    offset: true,
                    underflow: underflow + flushed,
                    cut,
                }
            }
            Sums::Lanes => {
                let segment = if apart > 1 { LANES_SEGMENT.min(k) } else { k };
                let steps = 2 * segment + segments + MOST_LANES + fixed;
                let underflow = underflow + (LANES_FLUSHED * fixed) as f64 * NORMAL;
                Self { roundings: 2 * steps, offset: true, underflow, cut }
            }
            Sums::SplitBf16OddRounding => {
                let parts = 2 + (MOST_PAIRS * k).min(MOST_CHAIN) + segments + fixed;
                Self {
                    roundings: parts.max(float),
                    offset: true,
                    underflow: underflow + flushed,
                    cut,
                }
            }
            Sums::Matrix | Sums::Scaled | Sums::Cut => {
                let group = if sums == Sums::Scaled { SCALED_COLUMNS.max(group) } else { group };
                let chain = group + group.div_ceil(MATRIX_COLUMNS);
                let row = SCALED_COLUMNS.min(k) + k.div_ceil(MATRIX_COLUMNS);
                let roundings = 2 * chain.max(row) + 2 * apart + MOST_PARTS + fixed;
                Self { roundings, offset: false, underflow: underflow + 2.0 * TINY_BF16, cut }
            }
        }
    }
}

/// The magnitudes of one element of y that determine its bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Magnitudes {
    /// The exact y.
    pub(super) y: f64,
    /// `sum_k X_k W_k`, without offsets.
    pub(super) terms: f64,
    /// `sum_k X_k * scales`: the offset adds twice itself times this to `terms`.
    pub(super) offsets: f64,
    /// `sum_k` of the product of max(1, factor).
    pub(super) factors: f64,
    /// |bias|.
    pub(super) bias: f64,
}

/// The errors of the numbers that a kernel multiplies, relative to the values of codes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Inexact {
    /// Relative to the value, at most.
    relative: f64,
    /// In addition, at most.
    absolute: f64,
    /// In addition, at most, and not times the scale.
    unscaled: f64,
}

impl Inexact {
    /// The errors of all codes of a weight.
    pub(super) fn of(weight: &WeightCode, decoded: Decoded) -> Self {
        let (scaling, unscaled) = decoded.scaled.map_or((0.0, 0.0), |weights| {
            let ScaledWeights { format, exponent, scales, adds_term } = weights;
            let rounding = format.epsilon() / 2.0;
            let lost = format.decode(1) / 2.0 / 2f64.powi(exponent);
            match (scales, adds_term) {
                (ScaleDigits::Whole, _) => (rounding, lost),
                (ScaleDigits::InParts, false) => (rounding * (1.0 + 8.0 * rounding), 3.0 * lost),
                (ScaleDigits::InParts, true) => {
                    (2.0 * rounding * (1.0 + 8.0 * rounding), 5.0 * lost)
                }
                (ScaleDigits::Rounded, false) => (rounding * (2.0 + rounding), 2.0 * lost),
                (ScaleDigits::Rounded, true) => (rounding * (2.0 + rounding), 3.0 * lost),
            }
        });
        // Sums in a small unit lose more below the smallest f32.
        let small = 2f64.powi(-decoded.exponent.min(0)) - 1.0;
        let unscaled = unscaled + FIXED as f64 * TINY * small;
        let of_codes = Self::of_codes(weight, decoded.rounded);
        // One rounding after another.
        let relative = of_codes.relative + scaling + of_codes.relative * scaling;
        let absolute = of_codes.absolute * (1.0 + scaling);
        Self { relative, absolute, unscaled }
    }

    /// The errors of the values of codes.
    fn of_codes(weight: &WeightCode, rounded: Option<(FloatFormat, i32)>) -> Self {
        let mut this = Self::default();
        let Some((format, exponent)) = rounded else { return this };
        let unit = 2f64.powi(exponent);
        for code in 0..1u32 << weight.code.bits() {
            let value = weight.decode(code);
            let error = (format.round(value * unit) / unit - value).abs();
            if !value.is_finite() || error == 0.0 {
                continue;
            }
            if error <= value.abs() * format.epsilon() / 2.0 {
                this.relative = this.relative.max(error / value.abs());
            } else {
                this.absolute = this.absolute.max(error);
            }
        }
        this
    }
}

/// The largest error of y in a result type; infinity if an intermediate result may overflow.
pub(super) fn bound(
    sizes: Magnitudes,
    chain: RoundingCount,
    (offset, inexact): (f64, Inexact),
    output: FloatFormat,
) -> f64 {
    if sizes.factors > f64::from(f32::MAX) {
        return f64::INFINITY;
    }
    let roundings = chain.roundings as f64 * UNIT;
    let offset = if chain.offset { 2.0 * offset } else { 0.0 };
    let offsets = offset * sizes.offsets;
    let rounded = inexact.relative * sizes.terms
        + inexact.absolute * sizes.offsets
        + inexact.unscaled * sizes.factors;
    let cut = chain.cut * (sizes.terms + offsets + rounded);
    let terms = sizes.terms + offsets + sizes.bias + rounded + cut;
    let sums = roundings / (1.0 - roundings) * terms + rounded + cut;
    let underflow = chain.underflow * (sizes.factors * (1.0 + offset) + 1.0);
    let computed = sums + underflow;
    // The result's own rounding: half a unit in the last place of the type, at its largest possible
    // magnitude; a subnormal result has the unit of the smallest normal number.
    let magnitude = sizes.y.abs() + computed;
    let smallest = output.decode(1) / 2.0;
    computed + (magnitude * output.epsilon() / 2.0).max(smallest)
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::Code;
    use quantloom_dsl::format::F16;

    use super::*;

    /// The error of each value: relative for normal numbers, absolute for smaller ones.
    #[test]
    fn rounded_values_are_as_far_off_as_they_are() {
        let book = |values: &[f32]| WeightCode {
            code: Code::Codebook(values.iter().map(|value| value.to_bits()).collect()),
            offset: 0,
        };
        let rounded = Decoded { rounded: Some((F16, 0)), ..Decoded::default() };
        let third = f64::from(1.0f32 / 3.0);
        let relative = (F16.round(third) - third).abs() / third;
        let of = Inexact::of(&book(&[0.5, 1.0 / 3.0]), rounded);
        assert_eq!(of, Inexact { relative, ..Inexact::default() });
        assert!(relative > 0.0 && relative < 2f64.powi(-11));
        // Twice the value is rounded as the value is; the error of a value that is flushed is the
        // value.
        let twice = Decoded { rounded: Some((F16, 1)), ..Decoded::default() };
        let of = Inexact::of(&book(&[1.0 / 3.0, 1e-9]), twice);
        assert_eq!(of, Inexact { relative, absolute: f64::from(1e-9f32), unscaled: 0.0 });
        assert_eq!(Inexact::of(&book(&[1.0 / 3.0, 1.0]), Decoded::default()), Inexact::default());
        // Weights that are rounded after their scale: once, in parts, and with a term once more.
        let (format, exponent) = (quantloom_dsl::format::BF16, 6);
        let of = |scales, adds_term| {
            let scaled = ScaledWeights { format, exponent, scales, adds_term };
            let decoded = Decoded { scaled: Some(scaled), ..Decoded::default() };
            Inexact::of(&book(&[1.0, 2.0]), decoded)
        };
        let (half, lost) = (2f64.powi(-8), 2f64.powi(-134 - 6));
        let [whole, parts] = [ScaleDigits::Whole, ScaleDigits::InParts];
        assert_eq!((of(whole, false).relative, of(whole, false).unscaled), (half, lost));
        let once = half * (1.0 + 2f64.powi(-5));
        assert_eq!((of(parts, false).relative, of(parts, false).unscaled), (once, 3.0 * lost));
        assert_eq!((of(parts, true).relative, of(parts, true).unscaled), (2.0 * once, 5.0 * lost));
        // Both the scale and the weight.
        let twice = half * (2.0 + half);
        let [alone, term] = [false, true].map(|adds| of(ScaleDigits::Rounded, adds));
        assert_eq!((alone.relative, alone.unscaled), (twice, 2.0 * lost));
        assert_eq!((term.relative, term.unscaled), (twice, 3.0 * lost));
        // Sums in units of 2^-36 lose 2^36 times as much.
        let in_units = Decoded { exponent: -36, ..Decoded::default() };
        let of = Inexact::of(&book(&[1.0, 2.0]), in_units);
        assert!(of.unscaled > 2f64.powi(-150 + 36) && of.unscaled < 2f64.powi(-140 + 36));
        let sizes = Magnitudes { y: 1.0, terms: 100.0, offsets: 10.0, factors: 1.0, bias: 0.0 };
        let chain = RoundingCount::of(Sums::Matrix, 64, (1, 1), 1);
        let with = |inexact| bound(sizes, chain, (0.0, inexact), quantloom_dsl::format::F32);
        let more = with(Inexact { relative: 1e-3, absolute: 1e-2, unscaled: 0.0 })
            - with(Inexact::default());
        assert!((more - 0.2).abs() < 1e-3, "{more}");
    }

    /// Two levels have one product, which a term of one level has a rounding for; each further level rounds
    /// once more, twice that where only a neighbour is promised.
    #[test]
    fn each_level_from_the_third_on_rounds_once_more() {
        let of = |sums, levels| RoundingCount::of(sums, 64, (2, 2), levels);
        for (sums, each) in
            [(Sums::Float, 1), (Sums::Integer, 1), (Sums::Matrix, 1), (Sums::Lanes, 2)]
        {
            assert_eq!((of(sums, 0), of(sums, 1)), (of(sums, 2), of(sums, 2)));
            assert_eq!(of(sums, 5).roundings, of(sums, 2).roundings + 3 * each);
            assert!(of(sums, 5).underflow > of(sums, 2).underflow);
        }
    }

    /// Where scales of groups are in operands, a term passes through the instructions of a whole row, and an element may
    /// be below the numbers of bf16.
    #[test]
    fn chains_of_matrix_products_are_rows() {
        let of = |groups| RoundingCount::of(Sums::Matrix, 8192, (groups, groups), 1);
        assert!(of(256).roundings >= 2 * (128 + 8192 / 8), "{:?}", of(256));
        assert!(of(1).roundings >= 2 * (8192 + 8192 / 8), "{:?}", of(1));
        assert!(of(256).underflow >= (-133f64).exp2());
    }

    /// A weight scale of 2^98 times a scale of x of 2^40 is infinite, whatever the sum of the codes.
    #[test]
    fn products_of_scales_that_may_overflow_have_no_bound() {
        let chain = RoundingCount::of(Sums::Matrix, 64, (1, 1), 1);
        let of = |factors| {
            let sizes = Magnitudes { y: 1.0, terms: 1.0, offsets: 1.0, factors, bias: 0.0 };
            bound(sizes, chain, (0.0, Inexact::default()), quantloom_dsl::format::F32)
        };
        assert!(of(127f64.exp2()).is_finite());
        assert_eq!(of(128f64.exp2()), f64::INFINITY);
    }

    /// A code of value 0 is stored as its offset: what its scale loses is multiplied with that.
    #[test]
    fn the_offset_of_a_code_is_a_factor_of_what_underflows() {
        let sizes = Magnitudes { y: 0.0, terms: 0.0, offsets: 0.0, factors: 1e6, bias: 0.0 };
        let mut chain = RoundingCount::of(Sums::Matrix, 64, (1, 1), 1);
        let of =
            |chain| bound(sizes, chain, (128.0, Inexact::default()), quantloom_dsl::format::F32);
        let without = of(chain);
        chain.offset = true;
        assert!(of(chain) > 200.0 * without, "{} {without}", of(chain));
    }
}
