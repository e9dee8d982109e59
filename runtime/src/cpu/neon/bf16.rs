//! Products of bf16 parts with `bfmmla`: see [`crate::cpu::split_bf16`].
//!
//! In: a block of weights in `f32`, tokens split into bf16 parts. Out: sums, added to those of
//! earlier blocks. Weights contain their scales and zero points, so that groups need no work.
//!
//! `bfmmla` adds to D [2 rows][2 tokens], `f32`, the products of A [2 rows][4 columns] with B [2
//! tokens][4 columns]: those of columns 0 and 1, then those of columns 2 and 3. A tile is four tokens
//! by a panel, 16 D, which stay in registers for a block.
//!
//! **Rounding** (Arm Architecture Reference Manual, `BFMMLA`, `BFDotAdd`, `BFRound`; a test
//! compares the instruction with this description). A product of two bf16 numbers is exact in
//! `f32`. The sum of two products is rounded to odd: an inexact result is truncated and its last
//! bit set. The addition of that sum to D is rounded to odd too. The error of rounding to odd is
//! less than the distance of two neighbours, two times u = 2^-24; the error of rounding to nearest
//! is at most u. A term passes through one sum of two products, and through as many additions as
//! there are pairs of columns and of parts in its chain: C columns and P pairs of parts make `2 u +
//! C / 2 * P * 2 u = (2 + C P) u`, as much as C P additions in `f32`. The block is as long as
//! [`MOST_CHAIN`] allows, the longest chain of the `f32` kernel; then its sums are added to those
//! in memory, rounded to nearest. Numbers below 2^-126 are flushed to 0: at most the two operands,
//! the product, the sum of two and the addition of a term. `conformance::bound` counts all these as
//! `Sums::SplitBf16OddRounding`. FPCR has no effect, apart from its bit EBF: on a CPU with FEAT_EBF16 that bit
//! requests fewer roundings, to nearest, whose error is no larger.

use core::arch::aarch64::*;

use super::instruction::bfmmla;
use super::tile::register;
use crate::accumulation::Sums;
use crate::cpu::isa::Isa;
use crate::cpu::kernels::CHUNK;
use crate::cpu::product::{Prefetcher, SplitBlock};
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

/// Whether a product of `tokens` tokens (more than are decoded on the fly) takes fewer instructions
/// here than in `f32`, for the given numbers of parts of a weight and of an x.
///
/// The time saved for each token must exceed the time to split the weights, once per block, and the
/// time for the tokens that pad a tile. The counts: docs/performance/cpu.md. Four pairs need as
/// many products as `f32`.
pub(in crate::cpu) fn pays(tokens: usize, of_weight: usize, of_x: usize) -> bool {
    match (of_weight, of_x) {
        (1, 1 | 2) => true,
        (1, 3) => tokens > 6,
        (2, 1) => tokens > 10,
        (3, 1) => tokens > 32,
        _ => false,
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
    type Tile = unsafe fn(&[[u8; 64]], &[u16], &mut [[f32; 16]; TOKENS]);
    let multiply: Tile = match parts {
        (1, 1) => tile::<1, 1>,
        (2, 1) => tile::<2, 1>,
        (3, 1) => tile::<3, 1>,
        (1, 2) => tile::<1, 2>,
        (1, 3) => tile::<1, 3>,
        parts => unreachable!("`pays` takes no {parts:?} parts"),
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
    let (weights, _) = weights.as_chunks::<2>();
    let (weights, _): (&[[WeightPart; W]], _) = weights.as_chunks();
    let (x, _) = x.as_chunks();
    let (x, _): (&[[TokenPart; X]], _) = x.as_chunks();
    // [token pair][row pair]: (row, token) = (0, 0), (0, 1), (1, 0), (1, 1).
    let mut pairs = [[neon!(vdupq_n_f32(0.0)); 8]; 2];
    for (weights, x) in weights.iter().zip(x) {
        for_each!(B in 0 1 2 => if B < X {
            let x = x[B].as_chunks::<8>().0;
            // SAFETY: eight bf16 numbers each.
            let x = unsafe { [vld1q_u16(x[0].as_ptr()), vld1q_u16(x[1].as_ptr())] };
            for_each!(A in 0 1 2 => if A < W {
                for_each!(I in 0 1 2 3 4 5 6 7 => {
                    let rows = neon!(vreinterpretq_u16_u8(register(&weights[A][I / 4], I % 4)));
                    pairs[0][I] = bfmmla(pairs[0][I], rows, x[0]);
                    pairs[1][I] = bfmmla(pairs[1][I], rows, x[1]);
                });
            });
        });
    }
    for_each!(T in 0 1 => for_each!(J in 0 1 2 3 => {
        let (above, below) = (pairs[T][2 * J], pairs[T][2 * J + 1]);
        add(&mut sums[2 * T].as_chunks_mut().0[J], neon!(vuzp1q_f32(above, below)));
        add(&mut sums[2 * T + 1].as_chunks_mut().0[J], neon!(vuzp2q_f32(above, below)));
    }));
}

/// `sums += parts`.
#[inline(always)]
fn add(sums: &mut [f32; 4], parts: float32x4_t) {
    // SAFETY: four `f32`.
    unsafe { vst1q_f32(sums.as_mut_ptr(), vaddq_f32(vld1q_f32(sums.as_ptr()), parts)) }
}
