//! Products of bf16 parts with AMX: see [`crate::cpu::split_bf16`].
//!
//! In: a block of weights in `f32`, tokens split into bf16 parts. Out: sums, added to those of
//! earlier blocks. Weights contain their scales and zero points, so that groups need no work and
//! may have any number of columns.
//!
//! `tdpbf16ps` adds to C [16 tokens][16 rows], `f32`, the products of A [16 tokens][32 columns]
//! with B [16 pairs of columns][16 rows][2]. It adds the even columns in one chain and the odd ones
//! in another, then both to C; each step is rounded to nearest even, and subnormal operands and
//! results are flushed to 0. The sums in memory have the layout of C. Two tiles of tokens and two
//! panels use all eight registers: four instructions for four loads, none of which depends on
//! another.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Configured, SIDE, prefetch};
use crate::accumulation::Sums;
use crate::cpu::blocking::Instruction;
use crate::cpu::isa::Isa;
use crate::cpu::native::Bf16Operand;
use crate::cpu::product::{Prefetcher, SplitBlock};
use crate::cpu::split_bf16::{MOST_PAIRS, lines};
use crate::cpu::tile::each;

/// The instruction set with the instruction.
pub(in crate::cpu) const ISA: Isa = Isa::Avx512Amx;

/// How the instruction adds.
pub(in crate::cpu) const SUMS: Sums = Sums::SplitBf16;

/// Tokens of a tile.
pub(in crate::cpu) const TOKENS: usize = SIDE;

/// Columns of a step: those of one instruction.
pub(in crate::cpu) const STEP: usize = 32;

/// Panels of a tile.
pub(in crate::cpu) const PANELS: usize = 2;

/// Lines of an A or a B.
const LINES: usize = SIDE;

/// Columns of a block: two parts of two panels are 16 KiB, which fit L1 together with a panel in
/// `f32` and the columns of 32 tokens.
pub(in crate::cpu) fn block(_of_weight: usize, _of_x: usize) -> usize {
    128
}

/// Of some ways to multiply `tokens` tokens (more than are decoded on the fly) by these instructions, the one that is faster than
/// `f32`, of weights with their scales, if there is one.
///
/// A tile takes the same time for one token as for 16. With x in one part (bf16) that is still less
/// than `f32` products of 9 tokens; with two parts (f16) there are twice as many products, which
/// take as long as `f32` products of 16 tokens (docs/performance/cpu.md).
pub(in crate::cpu) fn choose(
    mut ways: impl Iterator<Item = Instruction>,
    tokens: usize,
) -> Option<Instruction> {
    ways.find(|way| match *way {
        Instruction::SplitBf16 { operand: Bf16Operand::Weight, weight, x, .. } => {
            weight * x <= MOST_PAIRS && (x == 1 || tokens > SIDE)
        }
        _ => false,
    })
}

/// Splits the weights of a panel, `[column]`, into parts: `[step][part][panel]` of B. The weights
/// are finite or NaN.
///
/// # Panics
/// If AMX is not present.
pub(in crate::cpu) fn cut(weights: &[[f32; 16]], parts: usize, panel: usize, out: &mut [[u8; 64]]) {
    assert!(ISA.check().is_ok(), "AMX is chosen where it is not");
    // SAFETY: the instruction set is present, and includes AVX-512.
    unsafe {
        match parts {
            1 => cut_avx512::<1>(weights, panel, out),
            2 => cut_avx512::<2>(weights, panel, out),
            _ => cut_avx512::<3>(weights, panel, out),
        }
    }
}

#[target_feature(enable = "avx512f")]
fn cut_avx512<const PARTS: usize>(weights: &[[f32; 16]], panel: usize, out: &mut [[u8; 64]]) {
    let (columns, _) = weights.as_chunks::<STEP>();
    let (tiles, _) = out.as_chunks_mut::<LINES>();
    let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    for (columns, tiles) in columns.iter().zip(tiles.chunks_exact_mut(PARTS * PANELS)) {
        for at in 0..LINES {
            // SAFETY: the slice has 16 values.
            let mut even = unsafe { _mm512_loadu_si512(columns[2 * at].as_ptr().cast()) };
            // SAFETY: the slice has 16 values.
            let mut odd = unsafe { _mm512_loadu_si512(columns[2 * at + 1].as_ptr().cast()) };
            each!(part in [0 1 2] {
                if part < PARTS {
                    // Bits of the odd column where the mask is set, else of the shifted even
                    // column.
                    let shifted = _mm512_srli_epi32::<16>(even);
                    let pair = _mm512_ternarylogic_epi32::<0xca>(mask, odd, shifted);
                    let line = &mut tiles[part * PANELS + panel][at];
                    // SAFETY: the destination has 64 bytes, and the store allows any alignment.
                    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), pair) };
                }
                if part + 1 < PARTS {
                    (even, odd) = (rest(even, mask), rest(odd, mask));
                }
            });
        }
    }
}

/// The remainders of 16 `f32` after their first parts; `mask` selects the bits of a first part.
#[inline]
#[target_feature(enable = "avx512f")]
fn rest(values: __m512i, mask: __m512i) -> __m512i {
    let first = _mm512_castsi512_ps(_mm512_and_si512(values, mask));
    _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(values), first))
}

/// Adds a block's products to the sums.
///
/// # Panics
/// If AMX is not present.
pub(in crate::cpu) fn run(block: SplitBlock<'_>, prefetcher: Prefetcher<'_>) {
    assert!(ISA.check().is_ok(), "AMX is chosen where it is not");
    let (parts, weights) = (block.parts, block.weights);
    let steps = weights.len() / lines(STEP, parts.0, PANELS);
    if steps == 0 {
        return;
    }
    // SAFETY: asserted above.
    let _shaped = unsafe { Configured::new() };
    let operands = Operands { parts, steps, weights };
    let mut tiles = block.tiles(TOKENS);
    let mut at = 0;
    while let Some((first, c)) = tiles.next() {
        prefetch(prefetcher, at..at + 2);
        at += 2;
        match tiles.next() {
            Some((second, other)) => operands.add_two([first, second], [c, other]),
            None => operands.add_one(first, c),
        }
    }
}

/// A block, for one or two tiles of tokens.
struct Operands<'a> {
    /// Parts of a weight and of an x.
    parts: (usize, usize),
    /// At least 1.
    steps: usize,
    weights: &'a [[u8; 64]],
}

/// One block of assembly: loads the sums, multiplies all steps and parts, stores the sums. Within a
/// step it iterates over the parts of x, and for each over those of the weights. Registers 0 to 3
/// are C, 4 and 5 A, 6 and 7 B.
macro_rules! tiles {
    (
        [$($load_c:literal)*] [$($load_a:literal)*] [$($product:literal)*] [$($store_c:literal)*],
        $($operands:tt)*
    ) => {
        asm!(
            $($load_c,)*
            "2:",
            "mov {x_left:e}, dword ptr [{parts} + 4]",
            "3:",
            $($load_a,)*
            "mov {part}, {weights}",
            "mov {left:e}, dword ptr [{parts}]",
            "4:",
            $($product,)*
            "add {part}, {two_tiles}",
            "dec {left:e}",
            "jnz 4b",
            "dec {x_left:e}",
            "jnz 3b",
            "mov {weights}, {part}",
            "dec {steps}",
            "jnz 2b",
            $($store_c,)*
            x_left = out(reg) _,
            left = out(reg) _,
            part = out(reg) _,
            line = in(reg) 64usize,
            c_line = in(reg) 64 * PANELS,
            one_tile = const 64 * LINES,
            two_tiles = const 64 * LINES * PANELS,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
            $($operands)*
        )
    };
}

impl Operands<'_> {
    /// Checks the sizes of all that the assembly reads and writes: x of a tile, the weights, the
    /// sums.
    fn check(&self, x: &[u16], c: &[[f32; 16]]) -> [u32; 2] {
        let Self { parts: (of_weight, of_x), steps, weights } = *self;
        assert!(of_weight > 0 && of_x > 0 && steps > 0, "an empty product");
        assert_eq!(x.len(), steps * of_x * SIDE * STEP, "x of the block");
        assert_eq!(weights.len(), steps * lines(STEP, of_weight, PANELS), "weights of the block");
        assert_eq!(c.len(), SIDE * PANELS, "sums of a tile");
        [of_weight as u32, of_x as u32]
    }

    /// One tile of tokens; [`Configured`] is alive.
    fn add_one(&self, x: &[u16], c: &mut [[f32; 16]]) {
        let parts = self.check(x, c);
        // SAFETY: the registers have been shaped; the assembly reads the A of each step and part
        // of x, the two B of each step and part of the weights, the parts' numbers, and reads and
        // writes the two C, all of which are as long as `check` asserts.
        unsafe {
            tiles!(
                ["tileloadd tmm0, [{c} + {c_line}]" "tileloadd tmm1, [{c} + {c_line} + 64]"]
                ["tileloadd tmm4, [{x} + {line}]" "add {x}, {one_tile}"]
                [
                    "tileloadd tmm6, [{part} + {line}]"
                    "tileloadd tmm7, [{part} + {line} + {one_tile}]"
                    "tdpbf16ps tmm0, tmm4, tmm6"
                    "tdpbf16ps tmm1, tmm4, tmm7"
                ]
                ["tilestored [{c} + {c_line}], tmm0" "tilestored [{c} + {c_line} + 64], tmm1"],
                x = inout(reg) x.as_ptr() => _,
                weights = inout(reg) self.weights.as_ptr() => _,
                steps = inout(reg) self.steps => _,
                parts = in(reg) parts.as_ptr(),
                c = in(reg) c.as_mut_ptr(),
            );
        }
    }

    /// Two tiles of tokens; [`Configured`] is alive.
    fn add_two(&self, [x, y]: [&[u16]; 2], [c, d]: [&mut [[f32; 16]]; 2]) {
        let parts = self.check(x, c);
        self.check(y, d);
        // SAFETY: as in `add_one`, of two x and four C.
        unsafe {
            tiles!(
                [
                    "tileloadd tmm0, [{c} + {c_line}]" "tileloadd tmm1, [{c} + {c_line} + 64]"
                    "tileloadd tmm2, [{d} + {c_line}]" "tileloadd tmm3, [{d} + {c_line} + 64]"
                ]
                [
                    "tileloadd tmm4, [{x} + {line}]" "tileloadd tmm5, [{y} + {line}]"
                    "add {x}, {one_tile}" "add {y}, {one_tile}"
                ]
                [
                    "tileloadd tmm6, [{part} + {line}]"
                    "tdpbf16ps tmm0, tmm4, tmm6"
                    "tileloadd tmm7, [{part} + {line} + {one_tile}]"
                    "tdpbf16ps tmm2, tmm5, tmm6"
                    "tdpbf16ps tmm1, tmm4, tmm7"
                    "tdpbf16ps tmm3, tmm5, tmm7"
                ]
                [
                    "tilestored [{c} + {c_line}], tmm0" "tilestored [{c} + {c_line} + 64], tmm1"
                    "tilestored [{d} + {c_line}], tmm2" "tilestored [{d} + {c_line} + 64], tmm3"
                ],
                x = inout(reg) x.as_ptr() => _,
                y = inout(reg) y.as_ptr() => _,
                weights = inout(reg) self.weights.as_ptr() => _,
                steps = inout(reg) self.steps => _,
                parts = in(reg) parts.as_ptr(),
                c = in(reg) c.as_mut_ptr(),
                d = in(reg) d.as_mut_ptr(),
            );
        }
    }
}
