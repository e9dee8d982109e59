//! AVX-512 with VNNI, and with AVX512_BF16: a vector is one zmm register.

use std::arch::x86_64::*;

use super::vector::{Bf16Vector, Tiling, Vector};

/// One zmm register; `BF16` where the CPU has AVX512_BF16, too.
///
/// Every operation needs the CPU features that [`super::isa::enter`] checks before it passes this
/// type on; that is the SAFETY of each operation.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Avx512<const BF16: bool>(__m512i);

impl<const BF16: bool> Avx512<BF16> {
    #[inline(always)]
    fn f32(self) -> __m512 {
        // SAFETY: see the type.
        unsafe { _mm512_castsi512_ps(self.0) }
    }

    #[inline(always)]
    fn of(floats: __m512) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_castps_si512(floats) })
    }
}

/// Applies one intrinsic; the SAFETY is that of [`Avx512`].
macro_rules! op {
    ($call:expr) => {
        // SAFETY: see `Avx512`; the intrinsic accesses no memory.
        Self(unsafe { $call })
    };
}

impl<const BF16: bool> Vector for Avx512<BF16> {
    // Integers: 12 sums, their 12 in f32, two operands, a token: 27 of 32 registers; 12 chains with
    // a latency of 5 keep both ports busy. f32: 24 sums, two operands, a token.
    const TILING: Tiling = Tiling {
        fused_tokens: 8,
        fused_tiles: 2,
        dot_tokens: 6,
        dot_panels: 2,
        dot_held: true,
        dot_columns: 4,
        fma_tokens: 12,
        fma_panels: 2,
    };

    #[inline(always)]
    fn load(bytes: &[u8; 64]) -> Self {
        // SAFETY: see the type; the slice has 64 bytes, and the load allows any alignment.
        Self(unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) })
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8; 64]) {
        // SAFETY: see the type; the slice has 64 bytes, and the store allows any alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), self.0) }
    }
    #[inline(always)]
    fn splat(word: u32) -> Self {
        op!(_mm512_set1_epi32(word as i32))
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        op!(_mm512_and_si512(self.0, other.0))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        op!(_mm512_or_si512(self.0, other.0))
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        op!(_mm512_xor_si512(self.0, other.0))
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self) -> Self {
        op!(_mm512_slli_epi32::<BITS>(self.0))
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self) -> Self {
        op!(_mm512_srli_epi32::<BITS>(self.0))
    }
    #[inline(always)]
    fn sar<const BITS: u32>(self) -> Self {
        op!(_mm512_srai_epi32::<BITS>(self.0))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        op!(_mm512_add_epi32(self.0, other.0))
    }
    #[inline(always)]
    fn equal(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_movm_epi32(_mm512_cmpeq_epi32_mask(self.0, other.0)) })
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        // SAFETY: see the type; the table has 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            Self(_mm512_shuffle_epi8(table, self.0))
        }
    }
    #[inline(always)]
    fn to_f32(self) -> Self {
        // SAFETY: see the type.
        Self::of(unsafe { _mm512_cvtepi32_ps(self.0) })
    }
    #[inline(always)]
    fn table_f32(self, table: &[f32; 16]) -> Self {
        // SAFETY: see the type; the table has 64 bytes. The permutation reads the low four bits of
        // a lane.
        unsafe { Self::of(_mm512_permutexvar_ps(self.0, _mm512_loadu_ps(table.as_ptr()))) }
    }
    #[inline(always)]
    fn gather_f32(self, table: &[f32; 256]) -> Self {
        // SAFETY: see the type; the mask keeps every index inside the table.
        unsafe {
            let index = _mm512_and_si512(self.0, _mm512_set1_epi32(255));
            Self::of(_mm512_i32gather_ps::<4>(index, table.as_ptr()))
        }
    }
    #[inline(always)]
    fn load_f32(values: &[f32; 16]) -> Self {
        // SAFETY: see the type; the slice has 16 values.
        Self::of(unsafe { _mm512_loadu_ps(values.as_ptr()) })
    }
    #[inline(always)]
    fn store_f32(self, values: &mut [f32; 16]) {
        // SAFETY: see the type; the slice has room for 16 values.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self.f32()) }
    }
    #[inline(always)]
    fn load_bf16(bits: &[u16; 16]) -> Self {
        // SAFETY: see the type; the slice has 32 bytes.
        unsafe {
            let bits = _mm256_loadu_si256(bits.as_ptr().cast());
            Self(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
        }
    }
    #[inline(always)]
    fn load_f16(bits: &[u16; 16]) -> Self {
        // SAFETY: see the type; the slice has 32 bytes.
        unsafe { Self::of(_mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn add_f32(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self::of(unsafe { _mm512_add_ps(self.f32(), other.f32()) })
    }
    #[inline(always)]
    fn mul_f32(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self::of(unsafe { _mm512_mul_ps(self.f32(), other.f32()) })
    }
    #[inline(always)]
    fn fma_f32(self, factor: Self, term: Self) -> Self {
        // SAFETY: see the type.
        Self::of(unsafe { _mm512_fmadd_ps(self.f32(), factor.f32(), term.f32()) })
    }
    #[inline(always)]
    fn dot(self, codes: Self, x: Self) -> Self {
        op!(_mm512_dpbusd_epi32(self.0, codes.0, x.0))
    }
    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: see the type; a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}

impl Avx512<true> {
    #[inline(always)]
    fn bf16(self) -> __m512bh {
        // SAFETY: both are 64 bytes, and all bits are numbers.
        unsafe { std::mem::transmute(self.0) }
    }
}

impl Bf16Vector for Avx512<true> {
    type Table = [Self; 2];

    #[inline(always)]
    fn table(numbers: &[u16; 64]) -> [Self; 2] {
        let (halves, _) = numbers.as_chunks::<32>();
        // SAFETY: see the type; each half has 64 bytes.
        unsafe {
            [
                Self(_mm512_loadu_si512(halves[0].as_ptr().cast())),
                Self(_mm512_loadu_si512(halves[1].as_ptr().cast())),
            ]
        }
    }
    #[inline(always)]
    fn pairs(self, [low, high]: [Self; 2]) -> [Self; 2] {
        // Two bytes of each lane as two words; a byte of -1 selects 0.
        // SAFETY: see the type.
        let words = |order: i32| unsafe {
            let order = _mm512_add_epi32(
                _mm512_set1_epi32(order),
                _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0004_0004, 0x0008_0008, 0x000c_000c)),
            );
            let words = _mm512_shuffle_epi8(self.0, order);
            Self(_mm512_permutex2var_epi16(low.0, words, high.0))
        };
        // Bit 7 of an order's byte survives additions of up to 12.
        [words(0x8001_8000_u32 as i32), words(0x8003_8002_u32 as i32)]
    }
    #[inline(always)]
    fn dot_bf16(self, numbers: Self, x: Self) -> Self {
        // SAFETY: see the type.
        unsafe { Self::of(_mm512_dpbf16_ps(self.f32(), numbers.bf16(), x.bf16())) }
    }
}
