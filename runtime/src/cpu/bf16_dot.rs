//! Products of bf16 numbers by an instruction that adds two products to each sum (`vdpbf16ps`).
//!
//! In: weights or codes as bf16 numbers, tokens in bf16. Out: sums of two panels per token. A weight is
//! one bf16 number with its scale, or its code is one and scales multiply the sums of segments
//! ([`Bf16Operand`](super::native::Bf16Operand)). This file has the tile of many tokens; [`super::bf16_row`] has few tokens.
//!
//! The instruction multiplies twice as much as an `f32` multiply-add on some processors, and half as
//! much on others ([`pays`]). Of x in two or three parts (f16, `f32`) nothing is left of a factor of
//! two, so that only x in one part comes here.
//!
//! **Rounding** (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, `VDPBF16PS`):
//! a product of two bf16 numbers is exact in `f32`; each of the two additions is rounded to nearest
//! even, so that a chain has a rounding a column, as one of `f32` products has. Numbers below 2^-126,
//! operands and results, are taken for 0. `conformance::bound` counts both
//! ([`Sums::SplitBf16`](crate::accumulation::Sums)): chains end with a block.

use std::ops::Range;

use super::blocking::Blocking;
use super::isa::{Bf16Vectorised, Isa, Vectorised, enter, enter_bf16};
use super::kernels::CHUNK;
use super::product::{Prefetcher, SegmentScales};
use super::split_bf16::MOST_CHAIN;
use super::tile::each;
use super::tokens::Tile;
use super::vector::{Bf16Vector, Vector};

/// Tokens of the largest tile. Sixteen sums of eight tokens by two panels are chains enough for the
/// instruction's latency. The `f32` sums of a tile stay in the first level of cache: of six tokens,
/// whose sums fit the registers too, a tile reaches 86% of the peak in groups of 32, of eight 92%
/// (docs/performance/cpu.md).
pub(super) const TOKENS: usize = 8;

/// Panels of a tile.
pub(super) const PANELS: usize = 2;

/// Columns of a step, which are contiguous in a token.
pub(super) const STEP: usize = CHUNK;

/// Columns of a block: 16 KiB of two panels, and the longest chain that the bound allows.
pub(super) const BLOCK: usize = MOST_CHAIN;

/// A step of a panel: a line has a pair of columns of each row.
pub(super) type Step = [[u8; 64]; STEP / 2];

/// Whether this processor's `vdpbf16ps` multiplies more than its `f32` multiply-add.
///
/// AMD family 1Ah (Zen 5): 1062 and 546 GOP/s on two cores of a server. Intel's Sapphire Rapids: 157 and 275
/// (docs/performance/cpu.md). Others were not measured, and multiply in `f32`.
pub(super) fn pays() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        // Leaf 0: the vendor in EBX, EDX, ECX. Leaf 1: the base family in bits 8 to 11 of EAX, the
        // extended family, which is added to a base family of 15, in bits 20 to 27.
        let vendor = __cpuid(0);
        let vendor = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
        let signature = __cpuid(1).eax;
        let (base, extended) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
        vendor == b"AuthenticAMD" && base == 0xf && base + extended == 0x1a
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Stores the values of a panel, `[column]`, which are bf16 numbers, as every second step of `out`.
pub(super) fn cut(isa: Isa, values: &[[f32; 16]], out: &mut [Step]) {
    enter(isa, Cut { values, out });
}

struct Cut<'a> {
    values: &'a [[f32; 16]],
    out: &'a mut [Step],
}

impl Vectorised for Cut<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let upper = V::splat(0xffff_0000);
        let (pairs, _) = self.values.as_chunks::<2>();
        for (pairs, lines) in pairs.chunks(STEP / 2).zip(self.out.iter_mut().step_by(PANELS)) {
            for ([even, odd], line) in pairs.iter().zip(lines) {
                let even = V::load_f32(even).shr::<16>();
                V::load_f32(odd).and(upper).or(even).store(line);
            }
        }
    }
}

/// A block of two panels, for all tiles of tokens.
pub(super) struct Bf16Block<'a> {
    pub(super) blocking: &'a Blocking,
    /// Native columns of the weight, and those of the block.
    pub(super) native: usize,
    pub(super) columns: Range<usize>,
    /// `[step][panel]`.
    pub(super) weights: &'a [[Step; PANELS]],
    /// Where scales multiply the sums of segments.
    pub(super) scaled: Option<SegmentScales<'a>>,
    /// `[tile][step][token][column]`: bf16.
    pub(super) x: &'a [u16],
    /// `[tile][token][panel]`.
    pub(super) sums: &'a mut [[f32; 16]],
    pub(super) prefetcher: Prefetcher<'a>,
}

impl Bf16Block<'_> {
    /// Adds the block's products to the sums.
    pub(super) fn run(self, isa: Isa) {
        enter_bf16(isa, self);
    }
}

impl Bf16Vectorised for Bf16Block<'_> {
    #[inline(always)]
    fn run<V: Bf16Vector>(mut self) {
        for (at, tile) in self.blocking.tiles().enumerate() {
            for line in self.prefetcher.lines(at) {
                V::prefetch(line.as_ptr());
            }
            match tile.size {
                TOKENS => self.tile::<V, TOKENS>(tile),
                4 => self.tile::<V, 4>(tile),
                2 => self.tile::<V, 2>(tile),
                _ => self.tile::<V, 1>(tile),
            }
        }
    }
}

impl Bf16Block<'_> {
    /// A tile of M tokens.
    #[inline(always)]
    fn tile<V: Bf16Vector, const M: usize>(&mut self, tile: Tile) {
        let Self { native, weights, scaled, x, .. } = *self;
        let Range { start, end } = self.columns;
        let x = &x[tile.first * native..][start * M..end * M];
        let (x, _) = x.as_chunks::<STEP>();
        let (x, _): (&[[[u16; STEP]; M]], _) = x.as_chunks();
        let (sums, _) = self.sums[tile.first * PANELS..].as_chunks_mut::<PANELS>();
        let Some(sums) = sums.first_chunk_mut::<M>() else { return };
        let Some(scaled) = scaled else {
            let parts = multiply::<V, M>(weights, x);
            each!(m in M {
                each!(p in [0 1] {
                    V::load_f32(&sums[m][p]).add_f32(parts[m][p]).store_f32(&mut sums[m][p]);
                });
            });
            return;
        };
        let SegmentScales { columns: segment, of_row, scales, add, x_sums } = scaled;
        let (scales, add) = (scales.as_chunks::<PANELS>().0, add.as_chunks::<PANELS>().0);
        let x_sums = x_sums.get(tile.first * of_row..).unwrap_or(&[]);
        let (x_sums, _) = x_sums.as_chunks::<M>();
        let steps = segment / STEP;
        let of_segments = weights.chunks(steps).zip(x.chunks(steps)).zip(scales);
        for (at, ((weights, x), scales)) in of_segments.enumerate() {
            let parts = multiply::<V, M>(weights, x);
            // Hidden from the optimiser, which would keep the sums of a tile in registers, which are too
            // few, and so copy each sum to the stack and back.
            let sums = std::hint::black_box(&mut *sums);
            let scales = [V::load_f32(&scales[0]), V::load_f32(&scales[1])];
            match add.get(at).zip(x_sums.get(start / segment + at)) {
                None => {
                    each!(m in M {
                        each!(p in [0 1] {
                            let sum = V::load_f32(&sums[m][p]);
                            parts[m][p].fma_f32(scales[p], sum).store_f32(&mut sums[m][p]);
                        });
                    });
                }
                Some((add, x_sums)) => {
                    let add = [V::load_f32(&add[0]), V::load_f32(&add[1])];
                    each!(m in M {
                        let x_sum = V::splat(x_sums[m].to_bits());
                        each!(p in [0 1] {
                            let sum = add[p].fma_f32(x_sum, V::load_f32(&sums[m][p]));
                            parts[m][p].fma_f32(scales[p], sum).store_f32(&mut sums[m][p]);
                        });
                    });
                }
            }
        }
    }
}

/// The sums of some steps, M tokens by two panels.
#[inline(always)]
fn multiply<V: Bf16Vector, const M: usize>(
    weights: &[[Step; PANELS]],
    x: &[[[u16; STEP]; M]],
) -> [[V; PANELS]; M] {
    let mut parts = [[V::splat(0); PANELS]; M];
    for ([first, second], x) in weights.iter().zip(x) {
        for (pair, (first, second)) in first.iter().zip(second).enumerate() {
            let rows = [V::load(first), V::load(second)];
            each!(m in M {
                let token = V::splat(word(x[m].as_chunks().0[pair]));
                each!(p in [0 1] {
                    parts[m][p] = parts[m][p].dot_bf16(rows[p], token);
                });
            });
        }
    }
    parts
}

/// Two numbers in one word.
#[inline(always)]
pub(super) fn word([even, odd]: [u16; 2]) -> u32 {
    u32::from(even) | u32::from(odd) << 16
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::element::bf16_to_f32;

    /// Sums, numbers and tokens of 16 lanes, and where their result goes.
    struct Lanes<'a> {
        sums: &'a [f32; 16],
        numbers: &'a [[u16; 2]; 16],
        x: [u16; 2],
        out: &'a mut [f32; 16],
    }

    impl Bf16Vectorised for Lanes<'_> {
        #[inline(always)]
        fn run<V: Bf16Vector>(self) {
            let Self { sums, numbers, x, out } = self;
            let mut bytes = [0; 64];
            for (bytes, pair) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
                *bytes = word(*pair).to_le_bytes();
            }
            let sums = V::load_f32(sums);
            sums.dot_bf16(V::load(&bytes), V::splat(word(x))).store_f32(out);
        }
    }

    /// The description in the file's head: the products of the odd column, then of the even one, each
    /// addition rounded to nearest even; subnormal numbers are 0.
    #[test]
    fn the_instruction_rounds_as_described() {
        let isa = Isa::Avx512Bf16;
        if let Err(absent) = isa.check() {
            // Not `eprintln!`, whose output is hidden for a test that passes.
            writeln!(std::io::stderr(), "skipped: {absent}").unwrap();
            return;
        }
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (state >> 33) as u32
        };
        // Either sign, exponents about that of 1, one number of eight subnormal.
        let number = |random: &mut dyn FnMut() -> u32| match random() % 8 {
            0 => (random() & 0x807f) as u16,
            _ => (random() & 0x807f | (122 + random() % 8) << 7) as u16,
        };
        let flushed = |value: f32| if value.is_subnormal() { 0.0 * value } else { value };
        let value = |bits: u16| flushed(bf16_to_f32(bits));
        for case in 0..4000 {
            // Of every second case the sums are about the smallest normal number, and so are products.
            let small = case % 2 == 1;
            let sums = std::array::from_fn(|_| {
                let exponent = if small { random() % 6 } else { 120 + random() % 14 };
                f32::from_bits(random() & 0x807f_ffff | exponent << 23)
            });
            let mut pair = || [number(&mut random), number(&mut random)];
            let numbers: [[u16; 2]; 16] = std::array::from_fn(|_| pair());
            let x = match small {
                // Exponents from 1 on.
                true => pair().map(|bits| bits & 0x807f | (1 + (bits >> 7) % 6) << 7),
                false => pair(),
            };
            let mut out = [0.0; 16];
            enter_bf16(isa, Lanes { sums: &sums, numbers: &numbers, x, out: &mut out });
            for ((sum, [even, odd]), out) in sums.iter().zip(numbers).zip(out) {
                let first = flushed(value(odd).mul_add(value(x[1]), flushed(*sum)));
                let second = flushed(value(even).mul_add(value(x[0]), first));
                assert_eq!(out, second, "{sum:e} {even:x} {odd:x} {x:x?}");
            }
        }
    }
}
