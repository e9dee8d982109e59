//! Register tiles of NEON: up to four tokens by one panel of 16 rows, 16 accumulators.
//!
//! In: decoded blocks and packed tokens as [`crate::cpu::tile`] defines them. Out: products added
//! to the sums. One register holds four words of x, one per token, so that `sdot` and `fmla` select
//! a token by its lane; `usmmla` takes tokens and rows in pairs of eight columns, and decoding and
//! packing store codes and x in that order. `docs/performance/cpu.md` counts the instructions of
//! each loop.

use core::arch::aarch64::*;

use super::instruction::{sdot, sdot_lane, smlal2, smull2, usmmla};
use crate::cpu::tile::{DotBlock, DotTokens, TileSums};

/// Tokens of a tile.
pub(super) const TOKENS: usize = 4;

/// The codes of a panel at one step of four columns: 16 rows.
type Step = [u8; 64];

/// Register `j` of 64 bytes.
#[inline(always)]
pub(super) fn register(step: &Step, j: usize) -> uint8x16_t {
    let bytes = &step.as_chunks::<16>().0[j];
    // SAFETY: 16 bytes, of any alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Four words from `first`, zeros beyond the end.
#[inline(always)]
fn words(x: &[u32], first: usize) -> uint32x4_t {
    let mut words = [0; 4];
    if first + 4 <= x.len() {
        words.copy_from_slice(&x[first..first + 4]);
    } else if first < x.len() {
        for_each!(I in 0 1 2 => if first + I < x.len() {
            words[I] = x[first + I];
        });
    }
    // SAFETY: four words.
    unsafe { vld1q_u32(words.as_ptr()) }
}

/// Codes less 128: unsigned becomes signed.
#[inline(always)]
pub(super) fn signed(codes: uint8x16_t) -> int8x16_t {
    neon!(vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128))))
}

/// The numbers of a panel's rows, four in a register.
#[inline(always)]
pub(super) fn rows(numbers: &[f32; 16]) -> [float32x4_t; 4] {
    let numbers = numbers.as_chunks::<4>().0;
    // SAFETY: four `f32` each.
    [0, 1, 2, 3].map(|j| unsafe { vld1q_f32(numbers[j].as_ptr()) })
}

/// `sums += scales * (x_scale * parts)`; lane r of register j is row 4j + r.
#[inline(always)]
fn add_scaled(
    parts: [int32x4_t; 4],
    x_scale: Option<f32>,
    scales: [float32x4_t; 4],
    sums: &mut [f32; 16],
) {
    let sums = sums.as_chunks_mut::<4>().0;
    for_each!(J in 0 1 2 3 => {
        let mut part = neon!(vcvtq_f32_s32(parts[J]));
        if let Some(scale) = x_scale {
            part = neon!(vmulq_n_f32(part, scale));
        }
        // SAFETY: four `f32` each.
        unsafe {
            let total = vfmaq_f32(vld1q_f32(sums[J].as_ptr()), part, scales[J]);
            vst1q_f32(sums[J].as_mut_ptr(), total);
        }
    });
}

/// The operands of a segment, and their scales.
struct Segment<'a, const M: usize, const P: usize> {
    codes: &'a [[Step; P]],
    x: &'a [[u32; M]],
    starts: &'a [i32; M],
    scales: &'a [f32; 16],
    x_scales: Option<&'a [f32; M]>,
}

impl<const M: usize, const P: usize> Segment<'_, M, P> {
    /// The scale of x of a token, if each segment has one (`GROUPED`).
    #[inline(always)]
    fn x_scale<const GROUPED: bool>(&self, token: usize) -> Option<f32> {
        self.x_scales.filter(|_| GROUPED).map(|scales| scales[token])
    }
}

#[inline(always)]
fn segments<'a, const M: usize, const P: usize>(
    block: DotBlock<'a, P>,
    tokens: DotTokens<'a, M>,
) -> impl Iterator<Item = Segment<'a, M, P>> {
    let steps = block.codes.chunks(block.segment).zip(tokens.x.chunks(block.segment));
    let segments = steps.zip(tokens.starts).zip(block.scales).enumerate();
    segments.map(move |(at, (((codes, x), starts), scales))| Segment {
        codes,
        x,
        starts,
        scales: &scales[0],
        x_scales: tokens.scales.map(|scales| &scales[at]),
    })
}

/// [`crate::cpu::tile::dot_tile`] with `sdot`.
#[inline(always)]
pub(super) fn sdot_tile<const M: usize, const P: usize, const NARROW: bool, const GROUPED: bool>(
    block: DotBlock<'_, P>,
    tokens: DotTokens<'_, M>,
    sums: &mut TileSums<M, P>,
) {
    for segment in segments(block, tokens) {
        let parts = sdot_segment::<M, P, NARROW>(&segment);
        let scales = rows(segment.scales);
        for_each!(T in 0 1 2 3 => if T < M {
            add_scaled(parts[T], segment.x_scale::<GROUPED>(T), scales, &mut sums[T][0]);
        });
    }
}

#[inline(always)]
fn sdot_segment<const M: usize, const P: usize, const NARROW: bool>(
    segment: &Segment<'_, M, P>,
) -> [[int32x4_t; 4]; TOKENS] {
    let mut parts = [[neon!(vdupq_n_s32(0)); 4]; TOKENS];
    for_each!(T in 0 1 2 3 => if T < M {
        parts[T] = [neon!(vdupq_n_s32(segment.starts[T])); 4];
    });
    let mut x_sums = neon!(vdupq_n_s32(0));
    for (codes, x) in segment.codes.as_chunks::<4>().0.iter().zip(segment.x.as_chunks::<4>().0) {
        for_each!(S in 0 1 2 3 => {
            let x = neon!(vreinterpretq_s8_u32(words(&x[S], 0)));
            let mut operand = [neon!(vdupq_n_s8(0)); 4];
            for_each!(J in 0 1 2 3 => {
                let codes = register(&codes[S][0], J);
                operand[J] =
                    if NARROW { neon!(vreinterpretq_s8_u8(codes)) } else { signed(codes) };
            });
            if !NARROW {
                x_sums = sdot(x_sums, x, neon!(vdupq_n_s8(1)));
            }
            for_each!(T in 0 1 2 3 => {
                if T < M {
                    for_each!(J in 0 1 2 3 => {
                        parts[T][J] = sdot_lane::<{ T as i32 }>(parts[T][J], operand[J], x);
                    });
                }
            });
        });
    }
    if !NARROW {
        // `signed` subtracted 128 from each code: add 128 times the sum of x.
        let taken = neon!(vshlq_n_s32::<7>(x_sums));
        for_each!(T in 0 1 2 3 => {
            let taken = neon!(vdupq_laneq_s32::<{ T as i32 }>(taken));
            for_each!(J in 0 1 2 3 => {
                parts[T][J] = neon!(vaddq_s32(parts[T][J], taken));
            });
        });
    }
    parts
}

/// The order in which [`usmmla_tile`] reads a chunk: two steps (q, q + 1) become registers of
/// two rows and eight columns, row pair i in register i of the two.
#[inline(always)]
pub(super) fn arrange(codes: [[uint8x16_t; 4]; 8]) -> [[uint8x16_t; 4]; 8] {
    let mut out = codes;
    for (out, codes) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<2>().0) {
        for j in 0..4 {
            let (low, high) =
                neon!((vreinterpretq_u32_u8(codes[0][j]), vreinterpretq_u32_u8(codes[1][j])));
            out[j / 2][2 * (j % 2)] = neon!(vreinterpretq_u8_u32(vzip1q_u32(low, high)));
            out[j / 2][2 * (j % 2) + 1] = neon!(vreinterpretq_u8_u32(vzip2q_u32(low, high)));
        }
    }
    out
}

/// [`crate::cpu::tile::dot_tile`] with `usmmla`, on codes in the order of [`arrange`].
///
/// The instruction takes unsigned codes, so all widths are handled alike.
#[inline(always)]
pub(super) fn usmmla_tile<const M: usize, const P: usize, const GROUPED: bool>(
    block: DotBlock<'_, P>,
    tokens: DotTokens<'_, M>,
    sums: &mut TileSums<M, P>,
) {
    for segment in segments(block, tokens) {
        let parts = usmmla_segment(&segment);
        let scales = rows(segment.scales);
        for_each!(T in 0 1 2 3 => if T < M {
            add_scaled(parts[T], segment.x_scale::<GROUPED>(T), scales, &mut sums[T][0]);
        });
    }
}

#[inline(always)]
fn usmmla_segment<const M: usize, const P: usize>(
    segment: &Segment<'_, M, P>,
) -> [[int32x4_t; 4]; TOKENS] {
    // [token pair][row pair]: (row, token) = (0, 0), (0, 1), (1, 0), (1, 1).
    let starts = neon!(vreinterpretq_s64_u32(words(&segment.starts.map(|start| start as u32), 0)));
    let mut pairs = [
        [neon!(vreinterpretq_s32_s64(vdupq_laneq_s64::<0>(starts))); 8],
        [neon!(vreinterpretq_s32_s64(vdupq_laneq_s64::<1>(starts))); 8],
    ];
    for (codes, x) in segment.codes.as_chunks::<4>().0.iter().zip(segment.x.as_chunks::<4>().0) {
        for_each!(HALF in 0 1 => {
            // [token][two words of four columns]
            let x = x[2 * HALF..2 * HALF + 2].as_flattened();
            let x = [0, 2].map(|token| words(x, 2 * token));
            let x = x.map(|words| neon!(vreinterpretq_s8_u32(words)));
            for_each!(I in 0 1 2 3 4 5 6 7 => {
                let rows = register(&codes[2 * HALF + I / 4][0], I % 4);
                pairs[0][I] = usmmla(pairs[0][I], rows, x[0]);
                if M > 2 {
                    pairs[1][I] = usmmla(pairs[1][I], rows, x[1]);
                }
            });
        });
    }
    let mut parts = [[neon!(vdupq_n_s32(0)); 4]; TOKENS];
    for_each!(T in 0 1 => for_each!(J in 0 1 2 3 => {
        let (above, below) = (pairs[T][2 * J], pairs[T][2 * J + 1]);
        parts[2 * T][J] = neon!(vuzp1q_s32(above, below));
        parts[2 * T + 1][J] = neon!(vuzp2q_s32(above, below));
    }));
    parts
}

/// [`crate::cpu::tile::dot_tile`] with base NEON's products of 8 bits to 16.
#[inline(always)]
pub(super) fn smull_tile<
    const M: usize,
    const P: usize,
    const NARROW: bool,
    const GROUPED: bool,
>(
    block: DotBlock<'_, P>,
    tokens: DotTokens<'_, M>,
    sums: &mut TileSums<M, P>,
) {
    for_each!(FIRST in 0 2 => if FIRST < M {
        for segment in segments(block, tokens) {
            let parts = smull_segment::<M, P, NARROW>(FIRST, &segment);
            let scales = rows(segment.scales);
            for_each!(T in 0 1 => if FIRST + T < M {
                let x_scale = segment.x_scale::<GROUPED>(FIRST + T);
                add_scaled(parts[T], x_scale, scales, &mut sums[FIRST + T][0]);
            });
        }
    });
}

/// Two tokens: each row has two lanes of 32 bits until the end of the segment, one for columns 0
/// and 1 of a step, one for 2 and 3.
#[inline(always)]
fn smull_segment<const M: usize, const P: usize, const NARROW: bool>(
    first: usize,
    segment: &Segment<'_, M, P>,
) -> [[int32x4_t; 4]; 2] {
    let zero = neon!(vdupq_n_s32(0));
    let mut lanes = [[zero; 8]; 2];
    let mut x_sums = [zero; 2];
    let token = |x: &[u32; M], t: usize| {
        neon!(vreinterpretq_s8_u32(vdupq_n_u32(x[(first + t).min(M - 1)])))
    };
    for (codes, x) in segment.codes.as_chunks::<2>().0.iter().zip(segment.x.as_chunks::<2>().0) {
        let x = [[token(&x[0], 0), token(&x[0], 1)], [token(&x[1], 0), token(&x[1], 1)]];
        for_each!(J in 0 1 2 3 => {
            let codes = [register(&codes[0][0], J), register(&codes[1][0], J)];
            for_each!(T in 0 1 => if first + T < M {
                if NARROW {
                    let codes = codes.map(|codes| neon!(vreinterpretq_s8_u8(codes)));
                    // Two products of a code up to 127 and x >= -128 are at least -32512: they fit
                    // 16 bits.
                    let low = neon!(vmlal_s8(
                        vmull_s8(vget_low_s8(codes[0]), vget_low_s8(x[0][T])),
                        vget_low_s8(codes[1]),
                        vget_low_s8(x[1][T])
                    ));
                    let high = smlal2(smull2(codes[0], x[0][T]), codes[1], x[1][T]);
                    lanes[T][2 * J] = neon!(vpadalq_s16(lanes[T][2 * J], low));
                    lanes[T][2 * J + 1] = neon!(vpadalq_s16(lanes[T][2 * J + 1], high));
                } else {
                    for_each!(S in 0 1 => {
                        let codes = signed(codes[S]);
                        // One product is at most 2^14; the sum of two could be 2^15, which does not
                        // fit.
                        let low = neon!(vmull_s8(vget_low_s8(codes), vget_low_s8(x[S][T])));
                        let high = smull2(codes, x[S][T]);
                        lanes[T][2 * J] = neon!(vpadalq_s16(lanes[T][2 * J], low));
                        lanes[T][2 * J + 1] = neon!(vpadalq_s16(lanes[T][2 * J + 1], high));
                    });
                }
            });
        });
        if !NARROW {
            for_each!(T in 0 1 => for_each!(S in 0 1 => {
                x_sums[T] = neon!(vpadalq_s16(x_sums[T], vpaddlq_s8(x[S][T])));
            }));
        }
    }
    let mut parts = [[zero; 4]; 2];
    for_each!(T in 0 1 => if first + T < M {
        let start = neon!(vdupq_n_s32(segment.starts[first + T]));
        // `signed` subtracted 128 from each code: add 128 times the sum of x.
        let start = neon!(vaddq_s32(start, vshlq_n_s32::<7>(x_sums[T])));
        for_each!(J in 0 1 2 3 => {
            let rows = neon!(vpaddq_s32(lanes[T][2 * J], lanes[T][2 * J + 1]));
            parts[T][J] = neon!(vaddq_s32(rows, start));
        });
    });
    parts
}

/// [`crate::cpu::tile::fma_tile`], which selects a token by its lane.
#[inline(always)]
pub(super) fn fma_tile<const M: usize, const P: usize>(
    weights: &[[[f32; 16]; P]],
    x: &[[f32; M]],
    sums: &mut TileSums<M, P>,
) {
    let mut parts = [[neon!(vdupq_n_f32(0.0)); 4]; TOKENS];
    for (weights, x) in weights.iter().zip(x) {
        let x = if M >= TOKENS {
            // SAFETY: at least four `f32`.
            unsafe { vld1q_f32(x.as_ptr()) }
        } else {
            neon!(vreinterpretq_f32_u32(words(&x.map(f32::to_bits), 0)))
        };
        let weights = weights[0].as_chunks::<4>().0;
        for_each!(J in 0 1 2 3 => {
            // SAFETY: four `f32`.
            let weights = unsafe { vld1q_f32(weights[J].as_ptr()) };
            for_each!(T in 0 1 2 3 => if T < M {
                parts[T][J] = neon!(vfmaq_laneq_f32::<{ T as i32 }>(parts[T][J], weights, x));
            });
        });
    }
    for_each!(T in 0 1 2 3 => if T < M {
        let sums = sums[T][0].as_chunks_mut::<4>().0;
        for_each!(J in 0 1 2 3 => {
            // SAFETY: four `f32`.
            unsafe {
                let sum = vld1q_f32(sums[J].as_ptr());
                vst1q_f32(sums[J].as_mut_ptr(), vaddq_f32(sum, parts[T][J]));
            }
        });
    });
}
