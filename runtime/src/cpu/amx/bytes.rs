//! Integer products with AMX.
//!
//! In: a block of codes from [`crate::cpu::kernels`], and tokens with the columns of a step
//! contiguous. Out: the same sums as [`crate::cpu::tile::dot_tile`], bit for bit: integer sums are
//! exact, and the scaled sums of segments are added in the same order.
//!
//! `tdpbssd` adds to C [16 tokens][16 rows] the products of A [16 tokens][64 columns] with B [16
//! steps of 4 columns][16 rows][4 columns]: the decoded codes of a panel are a B already, since a
//! step of 4 columns is 64 bytes. An instruction with half as many columns takes as long.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{Configured, SIDE, prefetch};
use crate::cpu::blocking::Blocking;
use crate::cpu::isa::Isa;
use crate::cpu::native::NativeWeight;
use crate::cpu::product::Prefetcher;

/// Columns of a step: those of one instruction.
pub(in crate::cpu) const STEP: usize = 64;

/// Whether products of a weight in segments of `segment` columns run here: its integers are signed
/// bytes, or its codes are the integers; and segments are whole steps. (Half a step takes as long
/// as a whole step, and each segment is stored and loaded: with segments of 32 columns AMX was no
/// faster than `vpdpbusd`, docs/performance/cpu.md.)
pub(in crate::cpu) fn takes(weight: &NativeWeight, segment: usize) -> bool {
    let (offset, codes) = (weight.offset(), weight.most() + 1);
    let bytes = offset == 0 || (0..=128).contains(&offset) && codes - offset <= 128;
    bytes && segment.is_multiple_of(STEP) && weight.columns().is_multiple_of(STEP)
}

/// Segments between a product and its scaling: the store of a tile register cannot be forwarded to
/// a load, which waits until the store has reached the cache. (Of 0 to 15, 2 was fastest.)
const LAG: usize = 2;
/// Buffers of segments in flight: a power of two above [`LAG`].
const PARTS: usize = 4;

/// A C in memory.
#[repr(align(64))]
struct SumTile([[i32; SIDE]; SIDE]);

/// All tiles of tokens times a block of decoded codes.
pub(in crate::cpu) struct Tiles<'a> {
    pub(in crate::cpu) blocking: &'a Blocking,
    /// Native columns of the weight, and the first column of the block.
    pub(in crate::cpu) columns: usize,
    pub(in crate::cpu) start: usize,
    /// `[step of 4 columns][panel]`; the offset is subtracted here.
    pub(in crate::cpu) codes: &'a mut [[u8; 64]],
    /// `[segment][panel]`.
    pub(in crate::cpu) scales: &'a [[f32; 16]],
    /// The integer of a weight is its unsigned code minus this.
    pub(in crate::cpu) offset: i32,
    /// `[tile][step][token]`.
    pub(in crate::cpu) x: &'a [u32],
    /// `[tile][segment][token]`: scales of x, if it has one for each segment.
    pub(in crate::cpu) x_scales: Option<&'a [f32]>,
    /// `[tile][token][panel]`.
    pub(in crate::cpu) sums: &'a mut [[f32; 16]],
    pub(in crate::cpu) prefetcher: Prefetcher<'a>,
}

impl Tiles<'_> {
    /// Adds the block's products to the sums.
    pub(in crate::cpu) fn run(self) {
        assert!(Isa::Avx512Amx.check().is_ok(), "AMX is chosen where it is not");
        // SAFETY: the instruction set is present, and includes AVX-512.
        unsafe { self.tiles() }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn tiles(self) {
        let Self { blocking, columns, start, codes, scales, offset, x, sums, prefetcher, .. } =
            self;
        let Blocking { panels, segment, segments, .. } = *blocking;
        if offset != 0 {
            let less = _mm512_set1_epi8(offset as u8 as i8);
            for line in codes.iter_mut() {
                // SAFETY: the slice has 64 bytes, and both accesses allow any alignment.
                unsafe {
                    let codes = _mm512_loadu_si512(line.as_ptr().cast());
                    _mm512_storeu_si512(line.as_mut_ptr().cast(), _mm512_sub_epi8(codes, less));
                }
            }
        }
        // SAFETY: the caller has checked the instruction set.
        let _shaped = unsafe { Configured::new() };
        let words = codes.len() / panels * SIDE;
        for (at, tile) in blocking.tiles().enumerate() {
            prefetch(prefetcher, at..at + 1);
            let x = &x[(tile.first * columns + SIDE * start) / 4..][..words];
            let x_scales = match self.x_scales {
                Some(scales) => {
                    let (scales, _) = scales[tile.first * segments..].as_chunks();
                    Some(&scales[start / segment..])
                }
                None => None,
            };
            let sums = &mut sums[tile.first * panels..][..SIDE * panels];
            for panel in 0..panels {
                let operands = Operands { x, x_scales, codes, scales, panel, panels, segment };
                if offset == 0 {
                    operands.add::<true>(sums);
                } else {
                    operands.add::<false>(sums);
                }
            }
        }
    }
}

/// A tile of tokens and a panel of a block.
struct Operands<'a> {
    /// `[step][token]`, a step's columns four to a word.
    x: &'a [u32],
    /// `[segment][token]`, if x has scales of segments.
    x_scales: Option<&'a [[f32; SIDE]]>,
    codes: &'a [[u8; 64]],
    scales: &'a [[f32; 16]],
    panel: usize,
    panels: usize,
    segment: usize,
}

impl Operands<'_> {
    /// `sums += scale * (codes . x)`, times the scale of x if each segment has one, segment by segment, each scaled [`LAG`] segments after its
    /// product; two sets of registers alternate. `UNSIGNED` codes, or signed ones.
    #[target_feature(enable = "avx512f")]
    fn add<const UNSIGNED: bool>(&self, sums: &mut [[f32; 16]]) {
        let Self { x, x_scales, codes, scales, panel, panels, segment } = *self;
        assert_eq!(
            scales.len() / panels,
            x.len().div_ceil(segment * SIDE / 4),
            "one scale per segment"
        );
        let mut totals = [_mm512_setzero_ps(); SIDE];
        for (total, sum) in totals.iter_mut().zip(sums[panel..].iter().step_by(panels)) {
            // SAFETY: the slice has 16 values.
            *total = unsafe { _mm512_loadu_ps(sum.as_ptr()) };
        }
        let mut parts = [const { MaybeUninit::<SumTile>::uninit() }; PARTS];
        let mut segments = x.chunks(segment * SIDE / 4).zip(codes.chunks(segment / 4 * panels));
        let mut scales = scales[panel..].iter().step_by(panels);
        for turn in 0.. {
            if let Some((x, codes)) = segments.next() {
                let (part, codes) = (&mut parts[turn % PARTS], &codes[panel..]);
                if turn % 2 == 0 {
                    product::<UNSIGNED, true>(x, codes, panels, part);
                } else {
                    product::<UNSIGNED, false>(x, codes, panels, part);
                }
            }
            if turn < LAG {
                continue;
            }
            let Some(scale) = scales.next() else { break };
            // SAFETY: the slice has 16 values.
            let scale = unsafe { _mm512_loadu_ps(scale.as_ptr()) };
            // SAFETY: written LAG iterations ago: there are as many scales as segments.
            let part = unsafe { parts[(turn - LAG) % PARTS].assume_init_ref() };
            let of_x = x_scales.map(|scales| &scales[turn - LAG]);
            for (token, (total, part)) in totals.iter_mut().zip(&part.0).enumerate() {
                // SAFETY: the slice has 16 values.
                let part = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
                let mut part = _mm512_cvtepi32_ps(part);
                if let Some(of_x) = of_x {
                    part = _mm512_mul_ps(part, _mm512_set1_ps(of_x[token]));
                }
                *total = _mm512_fmadd_ps(part, scale, *total);
            }
        }
        for (total, sum) in totals.iter().zip(sums[panel..].iter_mut().step_by(panels)) {
            // SAFETY: the destination has room for 16 values.
            unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), *total) };
        }
    }
}

/// `part = codes . x` of a segment; lines of codes are `panels` apart. C, A and B are registers 0,
/// 1 and 2 (`FIRST`) or 3, 4 and 5.
#[inline(always)]
fn product<const UNSIGNED: bool, const FIRST: bool>(
    x: &[u32],
    codes: &[[u8; 64]],
    panels: usize,
    part: &mut MaybeUninit<SumTile>,
) {
    let steps = x.len() / (SIDE * STEP / 4);
    // The loads read [16][STEP] bytes of x per step, and [STEP / 4] lines of codes.
    assert!(steps > 0 && codes.len() > (steps * STEP / 4 - 1) * panels);
    /// One block of assembly: no tile register is live between two blocks.
    macro_rules! tiles {
        ($product:literal, $c:tt, $a:tt, $b:tt) => {
            asm!(
                concat!("tilezero ", $c),
                "2:",
                concat!("tileloadd ", $a, ", [{x} + {line}]"),
                concat!("tileloadd ", $b, ", [{codes} + {stride}]"),
                concat!($product, " ", $c, ", ", $a, ", ", $b),
                "add {x}, {x_step}",
                "add {codes}, {codes_step}",
                "dec {steps}",
                "jnz 2b",
                concat!("tilestored [{part} + {line}], ", $c),
                x = inout(reg) x.as_ptr() => _,
                codes = inout(reg) codes.as_ptr() => _,
                steps = inout(reg) steps => _,
                part = in(reg) part.as_mut_ptr(),
                line = in(reg) 4 * SIDE,
                stride = in(reg) 64 * panels,
                x_step = const SIDE * STEP,
                codes_step = in(reg) 64 * panels * (STEP / 4),
                out($c) _,
                out($a) _,
                out($b) _,
                options(nostack),
            )
        };
    }
    // SAFETY: the registers are configured; every row that is read is inside of x and of the codes,
    // as asserted, and the result is a whole C.
    unsafe {
        match (UNSIGNED, FIRST) {
            (true, true) => tiles!("tdpbsud", "tmm0", "tmm1", "tmm2"),
            (true, false) => tiles!("tdpbsud", "tmm3", "tmm4", "tmm5"),
            (false, true) => tiles!("tdpbssd", "tmm0", "tmm1", "tmm2"),
            (false, false) => tiles!("tdpbssd", "tmm3", "tmm4", "tmm5"),
        }
    }
}
