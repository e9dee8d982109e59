//! Products of bf16 parts with `bfmmla`: see [`crate::cpu::split_bf16`].
//!
//! In: a block of weights or codes in `f32`, tokens split into bf16 parts. Out: sums, added to those of
//! earlier blocks. Weights contain their scales and zero points, so that groups need no work, but are two or three parts where
//! scales have more digits than a power of two; codes are one part, and scales multiply the sums of segments. A product takes
//! what needs fewer instructions ([`choose`]).
//!
//! `bfmmla` adds to D [2 rows][2 tokens], `f32`, the products of A [2 rows][4 columns] with B [2
//! tokens][4 columns]: those of columns 0 and 1, then those of columns 2 and 3. A tile is four tokens
//! by a panel, 16 D, which stay in registers for a block, or of codes for a segment.
//!
//! **Rounding** (Arm Architecture Reference Manual, `BFMMLA`, `BFDotAdd`, `BFRound`; a test
//! compares the instruction with this description). A product of two bf16 numbers is exact in
//! `f32`. The sum of two products is rounded to odd: an inexact result is truncated and its last
//! bit set. The addition of that sum to D is rounded to odd too. The error of rounding to odd is
//! less than the distance of two neighbours, two times u = 2^-24; the error of rounding to nearest
//! is at most u. A term passes through one sum of two products, and through as many additions as
//! there are pairs of columns and of parts in its chain: C columns and P pairs of parts make `2 u +
//! C / 2 * P * 2 u = (2 + C P) u`, as much as C P additions in `f32`. A block and a segment are at most as long as
//! [`MOST_CHAIN`] allows, the longest chain of the `f32` kernel; then their sums, times the scale of a segment, are added to those
//! in memory, rounded to nearest. Numbers below 2^-126 are flushed to 0: at most the two operands,
//! the product, the sum of two and the addition of a term. `conformance::bound` counts all these as
//! `Sums::SplitBf16OddRounding`. FPCR has no effect, apart from its bit EBF: on a CPU with FEAT_EBF16 that bit
//! requests fewer roundings, to nearest, whose error is no larger.

use core::arch::aarch64::*;

use super::instruction::bfmmla;
use super::tile::{register, rows};
use crate::accumulation::Sums;
use crate::cpu::blocking::Instruction;
use crate::cpu::isa::Isa;
use crate::cpu::kernels::CHUNK;
use crate::cpu::native::{Bf16Code, Bf16Operand};
use crate::cpu::product::{Prefetcher, SegmentScales, SplitBlock};
use crate::cpu::split_bf16::MOST_CHAIN;

/// The instruction set with the instruction.
pub(in crate::cpu) const ISA: Isa = Isa::NeonBf16;

/// How the instruction adds.
pub(in crate::cpu) const SUMS: Sums = Sums::SplitBf16OddRounding;

/// Tokens of a tile.
pub(in crate::cpu) const TOKENS: usize = super::tile::TOKENS;

/// Columns of a step: those of one instruction.
pub(in crate::cpu) const STEP: usize = 4;

/// Panels of a tile.
pub(in crate::cpu) const PANELS: usize = 1;

/// Of some ways to multiply `tokens` tokens (more than are decoded on the fly) by these instructions, the one that takes the
/// fewest instructions; `None` if `f32` takes fewer for their whole tiles. With more tokens the answer stays one of these instructions.
pub(in crate::cpu) fn choose(
    ways: impl Iterator<Item = Instruction>,
    tokens: usize,
) -> Option<Instruction> {
    let counted = ways.filter_map(|way| Some((Instructions::of(way)?, way)));
    let (count, way) = counted.min_by_key(|(count, _)| count.for_tiles(tokens.div_ceil(TOKENS)))?;
    let saved = F32_TILE.saturating_sub(count.tile).saturating_mul(tokens / TOKENS);
    (saved > count.cut).then_some(way)
}

/// Instructions for 1024 weights by a tile of tokens, in `f32`.
const F32_TILE: usize = 336 * TOKENS;

/// Instructions for 1024 weights, whose decoding is not counted, as docs/performance/cpu.md counts them.
struct Instructions {
    /// Once for all tokens.
    cut: usize,
    /// For each tile of them.
    tile: usize,
}

impl Instructions {
    /// `None` for parts that no loop multiplies: four pairs need as many products as `f32`.
    fn of(way: Instruction) -> Option<Self> {
        let Instruction::SplitBf16 { operand, segment, weight, x } = way else { return None };
        let multiply = match (weight, x) {
            (1, 1) => 90,
            (1, 2) => 160,
            (1, 3) => 228,
            (2, 1) => 170,
            (3, 1) => 250,
            _ => return None,
        };
        let cut = [640, 1536, 2432][weight - 1];
        // Once a segment, of which a tile multiplies and adds 16 rows by its tokens.
        let scale = match operand {
            Bf16Operand::Weight => 0,
            Bf16Operand::Code(Bf16Code { corrected: false, .. }) => 103,
            Bf16Operand::Code(Bf16Code { corrected: true, .. }) => 124,
        };
        Some(Self { cut, tile: TOKENS * multiply + scale * (1024 / 16) / segment })
    }

    /// Of so many tiles of tokens.
    fn for_tiles(&self, tiles: usize) -> usize {
        tiles.saturating_mul(self.tile).saturating_add(self.cut)
    }
}

/// Columns of a block: 128, which in `f32` and in parts fit L1 together with a tile of tokens, or
/// as many as a chain may have.
pub(in crate::cpu) fn block(of_weight: usize, of_x: usize) -> usize {
    let chain = MOST_CHAIN / (of_weight * of_x);
    (chain / CHUNK * CHUNK).min(128)
}

/// One part of the weights of a step: row pair i in register i, `[row][column]`.
type WeightPart = [[u8; 64]; 2];

/// One part of the tokens of a step, `[token][column]`.
type TokenPart = [u16; TOKENS * STEP];

/// Splits the weights of a panel, `[column]`, into parts: `[step][part]`. The weights are finite or
/// NaN.
pub(in crate::cpu) fn cut(weights: &[[f32; 16]], parts: usize, panel: usize, out: &mut [[u8; 64]]) {
    debug_assert_eq!(panel, 0, "a tile has one panel");
    match parts {
        1 => cut_into::<1>(weights, out),
        2 => cut_into::<2>(weights, out),
        _ => cut_into::<3>(weights, out),
    }
}

/// [`cut`] for a constant number of parts.
#[inline(always)]
pub(super) fn cut_into<const PARTS: usize>(weights: &[[f32; 16]], out: &mut [[u8; 64]]) {
    let (steps, _) = weights.as_chunks::<STEP>();
    let (parts, _) = out.as_chunks_mut::<2>();
    let (parts, _) = parts.as_chunks_mut::<PARTS>();
    for (columns, parts) in steps.iter().zip(parts) {
        for_each!(J in 0 1 2 3 => {
            // Rows 4 J to 4 J + 4 of each column.
            let mut values = [neon!(vdupq_n_f32(0.0)); STEP];
            for_each!(C in 0 1 2 3 => {
                // SAFETY: four `f32` from 4 J of 16.
                values[C] = unsafe { vld1q_f32(columns[C].as_ptr().add(4 * J)) };
            });
            for_each!(P in 0 1 2 => if P < PARTS {
                if P != 0 {
                    values = [rest(values[0]), rest(values[1]), rest(values[2]), rest(values[3])];
                }
                // The upper halves of two columns, adjacent in each row.
                let low = upper(values[0], values[1]);
                let high = upper(values[2], values[3]);
                let registers = parts[P][J / 2].as_chunks_mut::<16>().0;
                // SAFETY: 16 bytes each.
                unsafe {
                    vst1q_u32(registers[2 * J % 4].as_mut_ptr().cast(), vzip1q_u32(low, high));
                    vst1q_u32(registers[2 * J % 4 + 1].as_mut_ptr().cast(), vzip2q_u32(low, high));
                }
            });
        });
    }
}

/// The first parts of two times four numbers, alternating.
#[inline(always)]
fn upper(even: float32x4_t, odd: float32x4_t) -> uint32x4_t {
    neon!(vreinterpretq_u32_u16(vtrn2q_u16(
        vreinterpretq_u16_f32(even),
        vreinterpretq_u16_f32(odd)
    )))
}

/// The remainders of four `f32` after their first parts.
#[inline(always)]
fn rest(values: float32x4_t) -> float32x4_t {
    neon!({
        let first = vandq_u32(vreinterpretq_u32_f32(values), vdupq_n_u32(0xffff_0000));
        vsubq_f32(values, vreinterpretq_f32_u32(first))
    })
}

/// Adds a block's products to the sums. (NEON does not prefetch.)
///
/// # Panics
/// If the CPU has no bf16 products.
pub(in crate::cpu) fn run(block: SplitBlock<'_>, _: Prefetcher<'_>) {
    assert!(ISA.check().is_ok(), "bf16 products are chosen where there are none");
    let (weights, parts) = (block.weights, block.parts);
    if let Some(scales) = block.scaled {
        type Tile = unsafe fn(&[[u8; 64]], &[u16], TileScales<'_>, &mut [[f32; 16]; TOKENS]);
        let multiply: Tile = match (parts, scales.add.is_empty()) {
            ((1, 1), true) => scaled_tile::<1, false>,
            ((1, 2), true) => scaled_tile::<2, false>,
            ((1, 3), true) => scaled_tile::<3, false>,
            ((1, 1), false) => scaled_tile::<1, true>,
            ((1, 2), false) => scaled_tile::<2, true>,
            ((1, 3), false) => scaled_tile::<3, true>,
            (parts, _) => unreachable!("`instructions` counts none for codes in {parts:?} parts"),
        };
        let SegmentScales { columns, of_row, scales, add, x_sums } = scales;
        let first = block.columns.start / columns;
        for (at, (x, sums)) in block.tiles(TOKENS).enumerate() {
            let Some(sums) = sums.first_chunk_mut() else { continue };
            let x_sums = x_sums.get((at * of_row + first) * TOKENS..).unwrap_or(&[]);
            let scales = TileScales { columns, scales, add, x_sums: x_sums.as_chunks().0 };
            // SAFETY: the CPU has bf16 products, asserted above.
            unsafe { multiply(weights, x, scales, sums) }
        }
        return;
    }
    type Tile = unsafe fn(&[[u8; 64]], &[u16], &mut [[f32; 16]; TOKENS]);
    let multiply: Tile = match parts {
        (1, 1) => tile::<1, 1>,
        (2, 1) => tile::<2, 1>,
        (3, 1) => tile::<3, 1>,
        (1, 2) => tile::<1, 2>,
        (1, 3) => tile::<1, 3>,
        parts => unreachable!("`instructions` counts none for {parts:?} parts"),
    };
    for (x, sums) in block.tiles(TOKENS) {
        let Some(sums) = sums.first_chunk_mut() else { continue };
        // SAFETY: the CPU has bf16 products, asserted above.
        unsafe { multiply(weights, x, sums) }
    }
}

/// Four tokens in X parts by a panel in W parts.
///
/// # Safety
/// The CPU has bf16 products.
#[inline(always)]
pub(super) unsafe fn tile<const W: usize, const X: usize>(
    weights: &[[u8; 64]],
    x: &[u16],
    sums: &mut [[f32; 16]; TOKENS],
) {
    let (weights, x) = steps::<W, X>(weights, x);
    // SAFETY: the caller's contract is the same.
    let parts = unsafe { multiply(weights, x) };
    for_each!(T in 0 1 2 3 => for_each!(J in 0 1 2 3 => {
        let sums = &mut sums[T].as_chunks_mut::<4>().0[J];
        // SAFETY: four `f32`.
        unsafe { vst1q_f32(sums.as_mut_ptr(), vaddq_f32(vld1q_f32(sums.as_ptr()), parts[T][J])) }
    }));
}

/// The factors of the sums of a tile's segments, from the first one of a block on.
#[derive(Clone, Copy)]
pub(super) struct TileScales<'a> {
    /// Columns of a segment.
    pub(super) columns: usize,
    /// `[segment]`.
    pub(super) scales: &'a [[f32; 16]],
    /// `[segment]`: multiplies the sum of x; empty if groups have no correction.
    pub(super) add: &'a [[f32; 16]],
    /// `[segment][token]`: sums of x.
    pub(super) x_sums: &'a [[f32; TOKENS]],
}

/// Four tokens in X parts by a panel of codes in one part; scales multiply the sums of segments, and corrections, if there are any,
/// those of x.
///
/// # Safety
/// The CPU has bf16 products.
#[inline(always)]
pub(super) unsafe fn scaled_tile<const X: usize, const CORRECTED: bool>(
    codes: &[[u8; 64]],
    x: &[u16],
    of: TileScales<'_>,
    sums: &mut [[f32; 16]; TOKENS],
) {
    let (codes, x) = steps::<1, X>(codes, x);
    let steps = of.columns / STEP;
    let segments = codes.chunks(steps).zip(x.chunks(steps)).zip(of.scales);
    for (at, ((codes, x), scales)) in segments.enumerate() {
        // SAFETY: the caller's contract is the same.
        let parts = unsafe { multiply::<1, X>(codes, x) };
        let scales = rows(scales);
        let corrections = match of.add.get(at).zip(of.x_sums.get(at)) {
            Some((add, x_sums)) if CORRECTED => Some((rows(add), *x_sums)),
            _ => None,
        };
        for_each!(T in 0 1 2 3 => {
            let sums = sums[T].as_chunks_mut::<4>().0;
            for_each!(J in 0 1 2 3 => {
                // SAFETY: four `f32` each.
                unsafe {
                    let mut sum = vld1q_f32(sums[J].as_ptr());
                    if let Some((add, x_sums)) = corrections {
                        sum = vfmaq_n_f32(sum, add[J], x_sums[T]);
                    }
                    vst1q_f32(sums[J].as_mut_ptr(), vfmaq_f32(sum, parts[T][J], scales[J]));
                }
            });
        });
    }
}

/// The steps of weights in W parts, and of x in X.
#[inline(always)]
fn steps<'a, const W: usize, const X: usize>(
    weights: &'a [[u8; 64]],
    x: &'a [u16],
) -> (&'a [[WeightPart; W]], &'a [[TokenPart; X]]) {
    (weights.as_chunks::<2>().0.as_chunks().0, x.as_chunks().0.as_chunks().0)
}

/// The sums of some steps, `[token][four rows]`.
///
/// # Safety
/// The CPU has bf16 products.
#[inline(always)]
unsafe fn multiply<const W: usize, const X: usize>(
    weights: &[[WeightPart; W]],
    x: &[[TokenPart; X]],
) -> [[float32x4_t; 4]; TOKENS] {
    // [token pair][row pair]: (row, token) = (0, 0), (0, 1), (1, 0), (1, 1).
    let mut pairs = [[neon!(vdupq_n_f32(0.0)); 8]; 2];
    // Two steps, of the eight or more that a chunk has.
    for (weights, x) in weights.as_chunks::<2>().0.iter().zip(x.as_chunks::<2>().0) {
        for_each!(S in 0 1 => for_each!(B in 0 1 2 => if B < X {
            let x = x[S][B].as_chunks::<8>().0;
            // SAFETY: eight bf16 numbers each.
            let x = unsafe { [vld1q_u16(x[0].as_ptr()), vld1q_u16(x[1].as_ptr())] };
            for_each!(A in 0 1 2 => if A < W {
                for_each!(I in 0 1 2 3 4 5 6 7 => {
                    let rows = register(&weights[S][A][I / 4], I % 4);
                    let rows = neon!(vreinterpretq_u16_u8(rows));
                    pairs[0][I] = bfmmla(pairs[0][I], rows, x[0]);
                    pairs[1][I] = bfmmla(pairs[1][I], rows, x[1]);
                });
            });
        }));
    }
    let mut parts = [[neon!(vdupq_n_f32(0.0)); 4]; TOKENS];
    for_each!(T in 0 1 => for_each!(J in 0 1 2 3 => {
        let (above, below) = (pairs[T][2 * J], pairs[T][2 * J + 1]);
        parts[2 * T][J] = neon!(vuzp1q_f32(above, below));
        parts[2 * T + 1][J] = neon!(vuzp2q_f32(above, below));
    }));
    parts
}
