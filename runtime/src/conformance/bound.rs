//! How far a product in `f32` may be from the exact one.
//!
//! In: the weights and tokens of a case, each taken apart. Out: one bound an element of y.
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
//! `X_k = (|x code| + |x zero|) * |x scales|` (for a float activation |x|) and
//! `W_k = (|v| + |zero| + 2 o') * |scales| + |shift|`, o' = |o| where the kernel sums stored
//! codes in floating point, 0 where it sums integers, which is exact.
//!
//! r counts, for one term: at most [`FIXED`] operations outside of sums (the table beside it), one
//! addition a column of a piece (a piece of [`PIECE`] columns at most) and two a piece; integers
//! need none inside a piece. Pieces are at most one a group and one a chunk of 32 columns.
//!
//! Matrix instructions take products exactly but may cut what lies below the last place of the
//! largest term, where a rounding would be half of that: two roundings a column and two an
//! instruction for what was summed before. Then two a group (its scale, its addition), one a warp
//! and one a block that share K; weights carry no offset. Those that scale their operands, exactly, take
//! [`SCALED_COLUMNS`] at a time, of several groups: as many columns instead of a group's, and the same two
//! a group are more than the instructions and turns of warps that follow, two each.
//!
//! Lanes that multiply by themselves: two roundings a column of a piece (a multiply-add may be two
//! operations), of a chunk where groups have scales of their own and of the whole row else, two a piece
//! and one for each group of lanes that shares K; each twice as far as to nearest, since only one of
//! the two neighbours is promised.
//!
//! bf16 parts: weights are put together first (three operations of [`FIXED`]) and parts are exact, of
//! one sign and so of no more magnitude than the whole. An instruction adds 32 columns of a pair
//! of parts: a chain of [`PAIR_CHAIN`] products, an addition of even and odd ones, one to what was
//! summed before; there are at most [`MOST_PAIRS`] pairs. The chain of one term is once what an
//! instruction rounds, and each later instruction once.
//!
//! The same by `bfmmla`, which rounds to odd, twice as far as to nearest: two for the sum of two
//! products, and two for each two columns of each pair of parts that follow in the chain, one a
//! column; a chain has [`MOST_CHAIN`] of those at most. Chains, of at least a chunk, add up as pieces
//! do.
//!
//! Whatever a kernel says that decoding leaves on codes ([`Decoded::add`]) is an offset like o: its share
//! of a sum is computed and taken off again.
//!
//! Rounded weights ([`Decoded::rounded`]): a value v becomes v', which is known for each code. With the
//! largest relative error d of those that are rounded as numbers of full precision, and the largest error t
//! of the others (smaller than the format's numbers times the power of two), |v' - v| <= d |v| + t, and so
//! y is off by `d sum_k X_k W_k + t sum_k X_k |scales|` at most; roundings come on top of that.
//!
//! Underflow: each of at most [`FIXED`] products of a term may lose 2^-150, times all factors
//! that are multiplied later, each of which is at most the larger of itself and 1. Instructions that
//! take subnormal numbers for 0 lose up to 2^-126 of each operand and each result: [`FLUSHED`] a
//! term and pair of parts.

use quantloom_dsl::Weight;
use quantloom_dsl::format::FloatFormat;

use crate::cpu::parts::{MOST_CHAIN, MOST_PAIRS};
use crate::op::{Decoded, Sums};

/// Half the distance of 1 and the next `f32`.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
/// Half the smallest `f32`, 2^-150.
const TINY: f64 = f64::from_bits((1023 - 150) << 52);

/// Operations that a term passes through outside of sums, at most: x to `f32` 1, scale to `f32`
/// 1, the group's addend 1, an integer sum to `f32` 1, value times scale plus addend 2, product
/// with x 1, sum of x times addend 2, the factor to `f32` 1, x's scale to `f32` 1, scale times
/// factor 1, the sum times that 1, x's zero point times the row sum 3, bias to `f32` and its
/// addition 2.
const FIXED: usize = 18;
/// Columns that are added in one chain before a group's scale is applied, at most.
const PIECE: usize = 256;

/// Columns that one matrix instruction adds up, at least.
const MATRIX_COLUMNS: usize = 8;
/// Columns that one instruction which scales its operands adds up.
const SCALED_COLUMNS: usize = 128;
/// Warps and blocks that share a row's K without a group each, at most: each group is counted besides.
const MOST_PARTS: usize = 64;

/// Columns of a piece of lanes that multiply by themselves: a chunk of codes.
const LANES_PIECE: usize = 32;
/// Groups of lanes of a block that share a row's K.
const MOST_LANES: usize = 16;
/// Numbers below 2^-126 that a term of theirs loses, at most: each operation's operands and result.
const LANES_FLUSHED: usize = 3 * FIXED;

/// Columns that an instruction of bf16 parts takes.
const PAIR_COLUMNS: usize = 32;
/// Products that it adds in one chain, and the addition of its two chains.
const PAIR_CHAIN: usize = PAIR_COLUMNS / 2 + 1;
/// Numbers below 2^-126 that are lost in a term of a pair, at most: its two operands, the product
/// with what was summed before, the sum of the chains and that of the instructions.
const FLUSHED: usize = 5;
/// The smallest normal `f32`, 2^-126.
const NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// How many roundings a term of a product meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chain {
    roundings: usize,
    /// Whether stored codes are summed in floating point, their offset taken off afterwards.
    pub(super) offset: bool,
    /// What a term may lose by underflow, before later factors.
    underflow: f64,
}

impl Chain {
    /// The chain of a kernel's sums for K columns in so many groups.
    pub(super) fn of(sums: Sums, k: usize, groups: usize) -> Self {
        let pieces = 2 * (k.div_ceil(32) + groups);
        let float = k.min(PIECE) + pieces + FIXED;
        let underflow = FIXED as f64 * TINY;
        let flushed = (MOST_PAIRS * FLUSHED) as f64 * NORMAL;
        match sums {
            Sums::Integer => Self { roundings: pieces + FIXED, offset: false, underflow },
            Sums::Float => Self { roundings: float, offset: true, underflow },
            Sums::Parts => {
                let parts = PAIR_CHAIN + MOST_PAIRS * k.div_ceil(PAIR_COLUMNS) + FIXED;
                Self { roundings: parts.max(float), offset: true, underflow: underflow + flushed }
            }
            Sums::Lanes => {
                let piece = if groups > 1 { LANES_PIECE.min(k) } else { k };
                let steps = 2 * piece + pieces + MOST_LANES + FIXED;
                let underflow = underflow + LANES_FLUSHED as f64 * NORMAL;
                Self { roundings: 2 * steps, offset: true, underflow }
            }
            Sums::OddParts => {
                let parts = 2 + (MOST_PAIRS * k).min(MOST_CHAIN) + pieces + FIXED;
                Self { roundings: parts.max(float), offset: true, underflow: underflow + flushed }
            }
            Sums::Matrix | Sums::Scaled => {
                let group = k.div_ceil(groups.max(1));
                let group = if sums == Sums::Scaled { SCALED_COLUMNS.max(group) } else { group };
                let instructions = group + group.div_ceil(MATRIX_COLUMNS);
                let roundings = 2 * instructions + 2 * groups + MOST_PARTS + FIXED;
                Self { roundings, offset: false, underflow }
            }
        }
    }
}

/// The parts of one element of y that its bound is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    /// The exact y.
    pub(super) y: f64,
    /// `sum_k X_k W_k`, without offsets.
    pub(super) terms: f64,
    /// `sum_k X_k * scales`: times twice the offset what the offset adds to `terms`.
    pub(super) offsets: f64,
    /// `sum_k` of the product of max(1, factor).
    pub(super) factors: f64,
    /// |bias|.
    pub(super) bias: f64,
}

/// How far the numbers that a kernel multiplies are from the values of codes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Inexact {
    /// Of a value, at most.
    relative: f64,
    /// And besides, at most.
    absolute: f64,
}

impl Inexact {
    /// Of all codes of a weight.
    pub(super) fn of(weight: &Weight, decoded: Decoded) -> Self {
        let mut this = Self::default();
        let Some((format, exponent)) = decoded.rounded else { return this };
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

/// The largest error of y in a result type.
pub(super) fn bound(
    sizes: Sizes,
    chain: Chain,
    (offset, inexact): (f64, Inexact),
    output: FloatFormat,
) -> f64 {
    let roundings = chain.roundings as f64 * UNIT;
    let offsets = if chain.offset { 2.0 * offset * sizes.offsets } else { 0.0 };
    let rounded = inexact.relative * sizes.terms + inexact.absolute * sizes.offsets;
    let terms = sizes.terms + offsets + sizes.bias + rounded;
    let sums = roundings / (1.0 - roundings) * terms + rounded;
    let underflow = chain.underflow * (sizes.factors + 1.0);
    let computed = sums + underflow;
    // The result's own rounding: half a unit in the last place of the type, of its largest
    // possible magnitude; a subnormal one has the unit of the smallest normal number.
    let magnitude = sizes.y.abs() + computed;
    let smallest = output.decode(1) / 2.0;
    computed + (magnitude * output.epsilon() / 2.0).max(smallest)
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::Code;
    use quantloom_dsl::format::F16;

    use super::*;

    /// Each value's own error: of numbers of full precision in proportion, of smaller ones as it is.
    #[test]
    fn rounded_values_are_as_far_off_as_they_are() {
        let book = |values: &[f32]| Weight {
            code: Code::Codebook(values.iter().map(|value| value.to_bits()).collect()),
            offset: 0,
        };
        let rounded = Decoded { add: 0, rounded: Some((F16, 0)) };
        let third = f64::from(1.0f32 / 3.0);
        let relative = (F16.round(third) - third).abs() / third;
        let of = Inexact::of(&book(&[0.5, 1.0 / 3.0]), rounded);
        assert_eq!(of, Inexact { relative, absolute: 0.0 });
        assert!(relative > 0.0 && relative < 2f64.powi(-11));
        // Twice the value is rounded as the value is; what is lost altogether is the value itself.
        let twice = Decoded { add: 0, rounded: Some((F16, 1)) };
        let of = Inexact::of(&book(&[1.0 / 3.0, 1e-9]), twice);
        assert_eq!(of, Inexact { relative, absolute: f64::from(1e-9f32) });
        assert_eq!(Inexact::of(&book(&[1.0 / 3.0, 1.0]), Decoded::default()), Inexact::default());
        let sizes = Sizes { y: 1.0, terms: 100.0, offsets: 10.0, factors: 1.0, bias: 0.0 };
        let chain = Chain::of(Sums::Matrix, 64, 1);
        let with = |inexact| bound(sizes, chain, (0.0, inexact), quantloom_dsl::format::F32);
        let more = with(Inexact { relative: 1e-3, absolute: 1e-2 }) - with(Inexact::default());
        assert!((more - 0.2).abs() < 1e-3, "{more}");
    }
}
