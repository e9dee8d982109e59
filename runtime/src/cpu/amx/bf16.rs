//! Products of bf16 parts by matrix registers: see [`crate::cpu::parts`].
//!
//! In: a block of weights in `f32`, tokens in parts. Out: sums, added to those of the blocks before.
//! Scale and zero point are in the weights, so that nothing is done a group, and groups may have
//! any number of columns.
//!
//! `tdpbf16ps` adds to C [16 tokens][16 rows], `f32`, the products of A [16 tokens][32 columns] with
//! B [16 pairs of columns][16 rows][2]. It adds the even columns in one chain and the odd ones in
//! another, both to C then, each step rounded to nearest even; subnormal operands and results
//! are taken for 0. The sums lie in memory as C does. Two tiles of tokens by two panels take turns,
//! as many as there are registers for: four instructions for four loads, and each waits for
//! none of the three before it.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Configured, SIDE, prefetch};
use crate::cpu::isa::Isa;
use crate::cpu::parts::{MOST_PAIRS, lines};
use crate::cpu::product::{Ahead, PartsBlock};
use crate::cpu::tile::each;
use crate::op::Sums;

/// The set that has the instruction.
pub(in crate::cpu) const ISA: Isa = Isa::Avx512Amx;

/// How it adds up.
pub(in crate::cpu) const SUMS: Sums = Sums::Parts;

/// Tokens of a tile.
pub(in crate::cpu) const TOKENS: usize = SIDE;

/// Columns of a step, what a tile takes at once.
pub(in crate::cpu) const STEP: usize = 32;

/// Panels of a tile.
pub(in crate::cpu) const PANELS: usize = 2;

/// Lines of an A or a B.
const LINES: usize = SIDE;

/// Columns of a block: two parts of two panels are 16 KiB, which share a first-level cache with a
/// panel in `f32` and the columns of 32 tokens.
pub(in crate::cpu) fn block(_of_weight: usize, _of_x: usize) -> usize {
    128
}

/// Whether a product of so many tokens, more than are decoded on the fly, is faster here than in
/// `f32`: by the number of parts of a weight and of an x.
///
/// A tile takes as long for one token as for 16. With x in one part (bf16) that is still less than
/// `f32` products of 9 tokens; in two (f16) it is twice the products, as long as those of 16
/// (docs/performance/cpu.md).
pub(in crate::cpu) fn pays(tokens: usize, of_weight: usize, of_x: usize) -> bool {
    of_weight * of_x <= MOST_PAIRS && (of_x == 1 || tokens > SIDE)
}

/// Cuts the weights of a panel, `[column]`, into parts: `[step][part][panel]` of B. They are finite
/// or NaN.
///
/// # Panics
/// Where AMX is not present.
pub(in crate::cpu) fn cut(weights: &[[f32; 16]], parts: usize, panel: usize, out: &mut [[u8; 64]]) {
    assert!(ISA.check().is_ok(), "AMX is chosen where it is not");
    // SAFETY: the set is there, and AVX-512 is part of it.
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
            // SAFETY: 16 values are there.
            let mut even = unsafe { _mm512_loadu_si512(columns[2 * at].as_ptr().cast()) };
            // SAFETY: 16 values are there.
            let mut odd = unsafe { _mm512_loadu_si512(columns[2 * at + 1].as_ptr().cast()) };
            each!(part in [0 1 2] {
                if part < PARTS {
                    // Bits of the odd column where the mask is, else of the shifted even one.
                    let shifted = _mm512_srli_epi32::<16>(even);
                    let pair = _mm512_ternarylogic_epi32::<0xca>(mask, odd, shifted);
                    let line = &mut tiles[part * PANELS + panel][at];
                    // SAFETY: there is room for 64 bytes, and the store takes any alignment.
                    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), pair) };
                }
                if part + 1 < PARTS {
                    (even, odd) = (rest(even, mask), rest(odd, mask));
                }
            });
        }
    }
}

/// What the first parts of 16 `f32` leave; `mask` is that of a first part.
#[inline]
#[target_feature(enable = "avx512f")]
fn rest(values: __m512i, mask: __m512i) -> __m512i {
    let first = _mm512_castsi512_ps(_mm512_and_si512(values, mask));
    _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(values), first))
}

/// Adds a block's products to the sums.
///
/// # Panics
/// Where AMX is not present.
pub(in crate::cpu) fn run(block: PartsBlock<'_>, ahead: Ahead<'_>) {
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
        prefetch(ahead, at..at + 2);
        at += 2;
        match tiles.next() {
            Some((second, other)) => operands.add_two([first, second], [c, other]),
            None => operands.add_one(first, c),
        }
    }
}

/// A block, for one tile of tokens or two.
struct Operands<'a> {
    /// Parts of a weight and of an x.
    parts: (usize, usize),
    /// At least 1.
    steps: usize,
    weights: &'a [[u8; 64]],
}

/// One piece of assembly: the sums into registers, all steps and parts, the sums back. Within a
/// step the parts of x take turns, and for each of them those of the weights. Registers 0 to 3 are
/// C, 4 and 5 A, 6 and 7 B.
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
    /// What the assembly reads and writes is there: x of a tile, the weights, the sums.
    fn check(&self, x: &[u16], c: &[[f32; 16]]) -> [u32; 2] {
        let Self { parts: (of_weight, of_x), steps, weights } = *self;
        assert!(of_weight > 0 && of_x > 0 && steps > 0, "something to multiply");
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
