//! AVX2 with FMA and F16C: a vector is two ymm registers.

use std::arch::x86_64::*;

use super::vector::{Tiling, Vector};

/// Two ymm registers, lanes 0..8 and 8..16.
///
/// Every operation needs the CPU features that [`super::isa::enter`] checks before it passes this
/// type on; that is the SAFETY of each operation.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256i, __m256i);

/// Applies an intrinsic to both halves; the SAFETY is that of [`Avx2`].
macro_rules! both {
    (|$a:ident| $body:expr, $x:expr) => {{
        let x = $x;
        let $a = x.0;
        // SAFETY: see `Avx2`.
        let low = unsafe { $body };
        let $a = x.1;
        // SAFETY: see `Avx2`.
        let high = unsafe { $body };
        Avx2(low, high)
    }};
    (|$a:ident, $b:ident| $body:expr, $x:expr, $y:expr) => {{
        let (x, y) = ($x, $y);
        let ($a, $b) = (x.0, y.0);
        // SAFETY: see `Avx2`.
        let low = unsafe { $body };
        let ($a, $b) = (x.1, y.1);
        // SAFETY: see `Avx2`.
        let high = unsafe { $body };
        Avx2(low, high)
    }};
}

macro_rules! f32s {
    ($x:expr) => {
        _mm256_castsi256_ps($x)
    };
}

macro_rules! bits {
    ($x:expr) => {
        _mm256_castps_si256($x)
    };
}

impl Vector for Avx2 {
    // Eight sums in two halves, a two-part operand and a token leave registers for temporaries.
    const TILING: Tiling = Tiling {
        fused_tokens: 4,
        fused_tiles: 1,
        dot_tokens: 4,
        dot_panels: 1,
        dot_held: false,
        dot_columns: 4,
        fma_tokens: 4,
        fma_panels: 1,
    };

    #[inline(always)]
    fn load(bytes: &[u8; 64]) -> Self {
        let (low, high) = bytes.split_at(32);
        // SAFETY: see the type; both halves are 32 bytes, and the load allows any alignment.
        unsafe {
            Self(_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast()))
        }
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8; 64]) {
        let (low, high) = bytes.split_at_mut(32);
        // SAFETY: see the type; both halves are 32 bytes, and the store allows any alignment.
        unsafe {
            _mm256_storeu_si256(low.as_mut_ptr().cast(), self.0);
            _mm256_storeu_si256(high.as_mut_ptr().cast(), self.1);
        }
    }
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: see the type.
        let half = unsafe { _mm256_set1_epi32(word as i32) };
        Self(half, half)
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        both!(|a, b| _mm256_and_si256(a, b), self, other)
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        both!(|a, b| _mm256_or_si256(a, b), self, other)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        both!(|a, b| _mm256_xor_si256(a, b), self, other)
    }
    // The immediate forms of AVX2 take an `i32`, which cannot be computed from a `u32` parameter;
    // the variable forms with a constant count compile to the same instructions.
    #[inline(always)]
    fn shl<const BITS: u32>(self) -> Self {
        both!(|a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(BITS as i32)), self)
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self) -> Self {
        both!(|a| _mm256_srl_epi32(a, _mm_cvtsi32_si128(BITS as i32)), self)
    }
    #[inline(always)]
    fn sar<const BITS: u32>(self) -> Self {
        both!(|a| _mm256_sra_epi32(a, _mm_cvtsi32_si128(BITS as i32)), self)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        both!(|a, b| _mm256_add_epi32(a, b), self, other)
    }
    #[inline(always)]
    fn equal(self, other: Self) -> Self {
        both!(|a, b| _mm256_cmpeq_epi32(a, b), self, other)
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        // SAFETY: see the type; the table has 16 bytes.
        let table = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) };
        both!(|a| _mm256_shuffle_epi8(table, a), self)
    }
    #[inline(always)]
    fn to_f32(self) -> Self {
        both!(|a| bits!(_mm256_cvtepi32_ps(a)), self)
    }
    #[inline(always)]
    fn table_f32(self, table: &[f32; 16]) -> Self {
        // SAFETY: see the type; the table's two halves have 32 bytes each.
        let (low, high) =
            unsafe { (_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table[8..].as_ptr())) };
        // A permutation of eight reads three bits of an index; the fourth bit selects the half.
        both!(
            |a| bits!(_mm256_blendv_ps(
                _mm256_permutevar8x32_ps(low, a),
                _mm256_permutevar8x32_ps(high, a),
                f32s!(_mm256_slli_epi32::<28>(a)),
            )),
            self
        )
    }
    #[inline(always)]
    fn gather_f32(self, table: &[f32; 256]) -> Self {
        // The mask keeps every index inside the table.
        both!(
            |a| {
                let index = _mm256_and_si256(a, _mm256_set1_epi32(255));
                bits!(_mm256_i32gather_ps::<4>(table.as_ptr(), index))
            },
            self
        )
    }
    #[inline(always)]
    fn load_f32(values: &[f32; 16]) -> Self {
        let (low, high) = values.split_at(8);
        // SAFETY: see the type; both halves are eight values.
        unsafe { Self(bits!(_mm256_loadu_ps(low.as_ptr())), bits!(_mm256_loadu_ps(high.as_ptr()))) }
    }
    #[inline(always)]
    fn store_f32(self, values: &mut [f32; 16]) {
        let (low, high) = values.split_at_mut(8);
        // SAFETY: see the type; each half has room for eight values.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), f32s!(self.0));
            _mm256_storeu_ps(high.as_mut_ptr(), f32s!(self.1));
        }
    }
    #[inline(always)]
    fn load_bf16(bits: &[u16; 16]) -> Self {
        let (low, high) = bits.split_at(8);
        // SAFETY: see the type; both halves are 16 bytes.
        let halves = unsafe {
            Self(
                _mm256_cvtepu16_epi32(_mm_loadu_si128(low.as_ptr().cast())),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(high.as_ptr().cast())),
            )
        };
        halves.shl::<16>()
    }
    #[inline(always)]
    fn load_f16(bits: &[u16; 16]) -> Self {
        let (low, high) = bits.split_at(8);
        // SAFETY: see the type; both halves are 16 bytes.
        unsafe {
            Self(
                bits!(_mm256_cvtph_ps(_mm_loadu_si128(low.as_ptr().cast()))),
                bits!(_mm256_cvtph_ps(_mm_loadu_si128(high.as_ptr().cast()))),
            )
        }
    }
    #[inline(always)]
    fn add_f32(self, other: Self) -> Self {
        both!(|a, b| bits!(_mm256_add_ps(f32s!(a), f32s!(b))), self, other)
    }
    #[inline(always)]
    fn mul_f32(self, other: Self) -> Self {
        both!(|a, b| bits!(_mm256_mul_ps(f32s!(a), f32s!(b))), self, other)
    }
    #[inline(always)]
    fn fma_f32(self, factor: Self, term: Self) -> Self {
        let (a, b, c) = (self, factor, term);
        // SAFETY: see the type.
        unsafe {
            Self(
                bits!(_mm256_fmadd_ps(f32s!(a.0), f32s!(b.0), f32s!(c.0))),
                bits!(_mm256_fmadd_ps(f32s!(a.1), f32s!(b.1), f32s!(c.1))),
            )
        }
    }
    /// Splits even and odd bytes and widens them: `vpmaddubsw` would saturate for codes of 8 bits.
    #[inline(always)]
    fn dot(self, codes: Self, x: Self) -> Self {
        let products = both!(
            |c, x| {
                let even = _mm256_madd_epi16(
                    _mm256_and_si256(c, _mm256_set1_epi16(0xff)),
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)),
                );
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(c), _mm256_srai_epi16::<8>(x));
                _mm256_add_epi32(even, odd)
            },
            codes,
            x
        );
        self.add(products)
    }
    /// Two products of a code below 128 and a signed byte fit 16 bits: 2 * 127 * 128 < 2^15.
    #[inline(always)]
    fn dot_narrow(self, codes: Self, x: Self) -> Self {
        let products = both!(
            |c, x| _mm256_madd_epi16(_mm256_maddubs_epi16(c, x), _mm256_set1_epi16(1)),
            codes,
            x
        );
        self.add(products)
    }
    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: see the type; a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}
