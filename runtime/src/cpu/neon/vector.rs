//! 64 bytes as four NEON registers, for the three instruction sets that differ in their dot
//! products.
//!
//! In and out: [`Vector`]. Register j holds lanes `4j..4j+4`: rows of a panel.

use core::arch::aarch64::*;
use core::marker::PhantomData;

use super::instruction::{fcvtl, sdot, usdot};
use super::tile;
use crate::cpu::tile::{DotBlock, DotTokens, TileSums};
use crate::cpu::vector::{Tiling, Vector};

/// How an instruction set multiplies bytes: four products added to each 32-bit lane.
pub(crate) trait Products: Copy {
    /// Codes of 0 to 255 by signed x.
    fn dot(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t;
    /// Codes of 0 to 127 by signed x.
    fn dot_narrow(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t;

    /// Contiguous columns of a token in x: [`Tiling::dot_columns`].
    const COLUMNS: usize = 4;
    /// The order of a chunk's registers that [`Products::dot_tile`] reads.
    #[inline(always)]
    fn arrange(codes: [[uint8x16_t; 4]; 8]) -> [[uint8x16_t; 4]; 8] {
        codes
    }
    /// The instruction set's form of [`crate::cpu::tile::dot_tile`]; `GROUPED` if x has a scale for each segment.
    fn dot_tile<const M: usize, const P: usize, const NARROW: bool, const GROUPED: bool>(
        block: DotBlock<'_, P>,
        tokens: DotTokens<'_, M>,
        sums: &mut TileSums<M, P>,
    );
}

/// Base NEON: every aarch64 CPU.
#[derive(Clone, Copy)]
pub(crate) struct Base;

/// With `sdot` (FEAT_DotProd).
#[derive(Clone, Copy)]
pub(crate) struct Dot;

/// With `usdot` and `usmmla` (FEAT_I8MM).
#[derive(Clone, Copy)]
pub(crate) struct I8mm;

impl Products for Base {
    #[inline(always)]
    fn dot(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        let codes = tile::signed(codes);
        // One product is at most 2^14, but two overflow 16 bits where all four factors are -128.
        let (low, high) = neon!((
            vpaddlq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(x))),
            vpaddlq_s16(vmull_high_s8(codes, x))
        ));
        // `signed` subtracted 128 from each code: add 128 times the sum of x.
        let taken = neon!(vshlq_n_s32::<7>(vpaddlq_s16(vpaddlq_s8(x))));
        neon!(vaddq_s32(vaddq_s32(sum, taken), vpaddq_s32(low, high)))
    }

    #[inline(always)]
    fn dot_narrow(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        let codes = neon!(vreinterpretq_s8_u8(codes));
        // Two products of a code up to 127 and x >= -128 are at most 32512: they fit 16 bits.
        neon!(vpadalq_s16(
            sum,
            vpaddq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(x)), vmull_high_s8(codes, x))
        ))
    }

    #[inline(always)]
    fn dot_tile<const M: usize, const P: usize, const NARROW: bool, const GROUPED: bool>(
        block: DotBlock<'_, P>,
        tokens: DotTokens<'_, M>,
        sums: &mut TileSums<M, P>,
    ) {
        tile::smull_tile::<M, P, NARROW, GROUPED>(block, tokens, sums);
    }
}

impl Products for Dot {
    #[inline(always)]
    fn dot(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        let minus_128 = neon!(vdupq_n_s8(i8::MIN));
        let taken = sdot(neon!(vdupq_n_s32(0)), minus_128, x);
        sdot(neon!(vsubq_s32(sum, taken)), tile::signed(codes), x)
    }

    #[inline(always)]
    fn dot_narrow(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        sdot(sum, neon!(vreinterpretq_s8_u8(codes)), x)
    }

    #[inline(always)]
    fn dot_tile<const M: usize, const P: usize, const NARROW: bool, const GROUPED: bool>(
        block: DotBlock<'_, P>,
        tokens: DotTokens<'_, M>,
        sums: &mut TileSums<M, P>,
    ) {
        tile::sdot_tile::<M, P, NARROW, GROUPED>(block, tokens, sums);
    }
}

impl Products for I8mm {
    const COLUMNS: usize = 8;

    #[inline(always)]
    fn dot(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        usdot(sum, codes, x)
    }

    #[inline(always)]
    fn dot_narrow(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        usdot(sum, codes, x)
    }

    #[inline(always)]
    fn arrange(codes: [[uint8x16_t; 4]; 8]) -> [[uint8x16_t; 4]; 8] {
        tile::arrange(codes)
    }

    #[inline(always)]
    fn dot_tile<const M: usize, const P: usize, const NARROW: bool, const GROUPED: bool>(
        block: DotBlock<'_, P>,
        tokens: DotTokens<'_, M>,
        sums: &mut TileSums<M, P>,
    ) {
        tile::usmmla_tile::<M, P, GROUPED>(block, tokens, sums);
    }
}

/// Four registers of an instruction set.
pub(crate) struct Neon<P>([uint8x16_t; 4], PhantomData<P>);

impl<P> Clone for Neon<P> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Neon<P> {}

/// Conversions of a register of bytes from and to other types: the same bits.
trait Bits: Copy {
    fn of(bytes: uint8x16_t) -> Self;
    fn bytes(self) -> uint8x16_t;
}

macro_rules! bits {
    ($($register:ty: $of:ident, $bytes:ident;)*) => { $(
        impl Bits for $register {
            #[inline(always)]
            fn of(bytes: uint8x16_t) -> Self {
                neon!($of(bytes))
            }
            #[inline(always)]
            fn bytes(self) -> uint8x16_t {
                neon!($bytes(self))
            }
        }
    )* };
}

bits! {
    uint32x4_t: vreinterpretq_u32_u8, vreinterpretq_u8_u32;
    int32x4_t: vreinterpretq_s32_u8, vreinterpretq_u8_s32;
    float32x4_t: vreinterpretq_f32_u8, vreinterpretq_u8_f32;
}

impl<P> Neon<P> {
    #[inline(always)]
    fn each(register: impl Fn(usize) -> uint8x16_t) -> Self {
        Self([register(0), register(1), register(2), register(3)], PhantomData)
    }

    #[inline(always)]
    fn map<A: Bits, B: Bits>(self, f: impl Fn(A) -> B) -> Self {
        Self::each(|j| f(A::of(self.0[j])).bytes())
    }

    #[inline(always)]
    fn zip<A: Bits, B: Bits>(self, other: Self, f: impl Fn(A, A) -> B) -> Self {
        Self::each(|j| f(A::of(self.0[j]), A::of(other.0[j])).bytes())
    }
}

impl<P: Products> Vector for Neon<P> {
    // 16 accumulators of 32 registers; 8 tokens by a whole panel would not fit.
    const TILING: Tiling = Tiling {
        fused_tokens: 4,
        fused_tiles: 1,
        dot_tokens: 4,
        dot_panels: 1,
        dot_held: false,
        dot_columns: P::COLUMNS,
        fma_tokens: 4,
        fma_panels: 1,
    };

    #[inline(always)]
    fn load(bytes: &[u8; 64]) -> Self {
        let bytes = bytes.as_chunks::<16>().0;
        Self::each(|j| {
            // SAFETY: 16 bytes, of any alignment.
            unsafe { vld1q_u8(bytes[j].as_ptr()) }
        })
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8; 64]) {
        for (bytes, register) in bytes.as_chunks_mut::<16>().0.iter_mut().zip(self.0) {
            // SAFETY: 16 bytes, of any alignment.
            unsafe { vst1q_u8(bytes.as_mut_ptr(), register) }
        }
    }
    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self::each(|_| neon!(vdupq_n_u32(word)).bytes())
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self::each(|j| neon!(vandq_u8(self.0[j], other.0[j])))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self::each(|j| neon!(vorrq_u8(self.0[j], other.0[j])))
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self::each(|j| neon!(veorq_u8(self.0[j], other.0[j])))
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self) -> Self {
        // Only the shift by a register can take its amount from a const parameter; the compiler
        // folds it to the shift by a constant.
        self.map(|lanes: uint32x4_t| neon!(vshlq_u32(lanes, vdupq_n_s32(BITS as i32))))
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self) -> Self {
        self.map(|lanes: uint32x4_t| neon!(vshlq_u32(lanes, vdupq_n_s32(-(BITS as i32)))))
    }
    #[inline(always)]
    fn sar<const BITS: u32>(self) -> Self {
        self.map(|lanes: int32x4_t| neon!(vshlq_s32(lanes, vdupq_n_s32(-(BITS as i32)))))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a: uint32x4_t, b| neon!(vaddq_u32(a, b)))
    }
    #[inline(always)]
    fn equal(self, other: Self) -> Self {
        self.zip(other, |a: uint32x4_t, b| neon!(vceqq_u32(a, b)))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        // SAFETY: 16 bytes, of any alignment.
        let table = unsafe { vld1q_u8(table.as_ptr()) };
        Self::each(|j| neon!(vqtbl1q_u8(table, self.0[j])))
    }

    #[inline(always)]
    fn to_f32(self) -> Self {
        self.map(|lanes: int32x4_t| neon!(vcvtq_f32_s32(lanes)))
    }
    #[inline(always)]
    fn table_f32(self, table: &[f32; 16]) -> Self {
        let Self(table, _) = Self::load_f32(table);
        let table = uint8x16x4_t(table[0], table[1], table[2], table[3]);
        self.map(|lanes: uint32x4_t| {
            // Lane v becomes the byte addresses 4v..4v+4 of its entry.
            let entry = neon!(vandq_u32(lanes, vdupq_n_u32(15)));
            let bytes = neon!(vmlaq_u32(vdupq_n_u32(0x0302_0100), entry, vdupq_n_u32(0x0404_0404)));
            uint32x4_t::of(neon!(vqtbl4q_u8(table, bytes.bytes())))
        })
    }
    #[inline(always)]
    fn gather_f32(self, table: &[f32; 256]) -> Self {
        let mut words = [0; 64];
        self.store(&mut words);
        let mut values = [0.0; 16];
        for (value, word) in values.iter_mut().zip(words.as_chunks::<4>().0) {
            *value = table[usize::from(word[0])];
        }
        Self::load_f32(&values)
    }
    #[inline(always)]
    fn load_f32(values: &[f32; 16]) -> Self {
        let values = values.as_chunks::<4>().0;
        Self::each(|j| {
            // SAFETY: four `f32`.
            unsafe { vld1q_f32(values[j].as_ptr()) }.bytes()
        })
    }
    #[inline(always)]
    fn store_f32(self, values: &mut [f32; 16]) {
        for (values, register) in values.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            // SAFETY: four `f32`.
            unsafe { vst1q_f32(values.as_mut_ptr(), float32x4_t::of(register)) }
        }
    }
    #[inline(always)]
    fn load_bf16(bits: &[u16; 16]) -> Self {
        let bits = bits.as_chunks::<4>().0;
        Self::each(|j| {
            // SAFETY: four `u16`.
            let bits = unsafe { vld1_u16(bits[j].as_ptr()) };
            neon!(vshll_n_u16::<16>(bits)).bytes()
        })
    }
    #[inline(always)]
    fn load_f16(bits: &[u16; 16]) -> Self {
        let bits = bits.as_chunks::<4>().0;
        Self::each(|j| {
            // SAFETY: four `u16`.
            fcvtl(unsafe { vld1_u16(bits[j].as_ptr()) }).bytes()
        })
    }
    #[inline(always)]
    fn add_f32(self, other: Self) -> Self {
        self.zip(other, |a: float32x4_t, b| neon!(vaddq_f32(a, b)))
    }
    #[inline(always)]
    fn mul_f32(self, other: Self) -> Self {
        self.zip(other, |a: float32x4_t, b| neon!(vmulq_f32(a, b)))
    }
    #[inline(always)]
    fn fma_f32(self, factor: Self, term: Self) -> Self {
        Self::each(|j| {
            let of = |vector: Self| float32x4_t::of(vector.0[j]);
            neon!(vfmaq_f32(of(term), of(self), of(factor))).bytes()
        })
    }

    #[inline(always)]
    fn dot(self, codes: Self, x: Self) -> Self {
        Self::each(|j| {
            let x = neon!(vreinterpretq_s8_u8(x.0[j]));
            P::dot(int32x4_t::of(self.0[j]), codes.0[j], x).bytes()
        })
    }
    #[inline(always)]
    fn dot_narrow(self, codes: Self, x: Self) -> Self {
        Self::each(|j| {
            let x = neon!(vreinterpretq_s8_u8(x.0[j]));
            P::dot_narrow(int32x4_t::of(self.0[j]), codes.0[j], x).bytes()
        })
    }

    #[inline(always)]
    fn arrange(codes: [Self; 8]) -> [Self; 8] {
        P::arrange(codes.map(|vector| vector.0)).map(|registers| Self(registers, PhantomData))
    }
    #[inline(always)]
    fn dot_tile<const M: usize, const PANELS: usize, const NARROW: bool>(
        block: DotBlock<'_, PANELS>,
        tokens: DotTokens<'_, M>,
        sums: &mut TileSums<M, PANELS>,
    ) {
        match tokens.scales {
            None => P::dot_tile::<M, PANELS, NARROW, false>(block, tokens, sums),
            Some(_) => P::dot_tile::<M, PANELS, NARROW, true>(block, tokens, sums),
        }
    }
    #[inline(always)]
    fn fma_tile<const M: usize, const PANELS: usize>(
        weights: &[[[f32; 16]; PANELS]],
        x: &[[f32; M]],
        sums: &mut TileSums<M, PANELS>,
    ) {
        tile::fma_tile(weights, x, sums);
    }
}
