//! 64 bytes in the registers of an instruction set: the type that kernels and generated decoders
//! use.
//!
//! In: bytes. Out: bytes. A [`Vector`] is 64 bytes, used as 64 codes, as 16 integers of 32 bits or
//! as 16 `f32`; lane r is row r of a panel. It is one zmm register, two ymm, four NEON registers,
//! or (in this file) an array that any compiler can vectorise.
//!
//! The operations are safe to call and their bodies `#[inline(always)]`, but those of an
//! instruction set are sound only if the CPU has it. So the types that implement this trait stay
//! private to [`crate::cpu`]: code elsewhere is generic over `V: Vector` and gets a vector type
//! from `super::isa::enter`, which checks the CPU first.

use super::tile::{self, DotBlock, DotTokens, TileSums};

/// 64 bytes: 64 codes, 16 integers of 32 bits, or 16 `f32`.
///
/// Lanes are numbered from the lowest address; byte j of a lane is bits `8j..8j+8`.
pub trait Vector: Copy {
    /// The sizes of the instruction set's register tiles.
    const TILING: Tiling;

    /// 64 bytes from memory, of any alignment.
    fn load(bytes: &[u8; 64]) -> Self;
    /// 64 bytes to memory.
    fn store(self, bytes: &mut [u8; 64]);
    /// The same 32 bits in every lane.
    fn splat(word: u32) -> Self;
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(self, other: Self) -> Self;
    /// Each lane shifted left by `BITS` < 32, filled with zeros.
    fn shl<const BITS: u32>(self) -> Self;
    /// Each lane shifted right by `BITS` < 32, filled with zeros.
    fn shr<const BITS: u32>(self) -> Self;
    /// Each lane shifted right by `BITS` < 32, filled with its sign.
    fn sar<const BITS: u32>(self) -> Self;
    /// Sum of each lane, modulo 2^32.
    fn add(self, other: Self) -> Self;
    /// All ones in lanes that are equal, 0 in the others.
    fn equal(self, other: Self) -> Self;
    /// Each byte, which must be below 16, replaced by `table[byte]`.
    fn lookup(self, table: &[u8; 16]) -> Self;

    /// Each lane, a signed integer, as an `f32` (rounded to nearest even).
    fn to_f32(self) -> Self;
    /// `table[lane % 16]`: only the low four bits of a lane count.
    fn table_f32(self, table: &[f32; 16]) -> Self;
    /// `table[lane]`; every lane must be below 256.
    fn gather_f32(self, table: &[f32; 256]) -> Self;
    /// 16 `f32` from memory.
    fn load_f32(values: &[f32; 16]) -> Self;
    /// 16 `f32` to memory.
    fn store_f32(self, values: &mut [f32; 16]);
    /// 16 bf16 numbers, widened.
    fn load_bf16(bits: &[u16; 16]) -> Self;
    /// 16 f16 numbers, widened.
    fn load_f16(bits: &[u16; 16]) -> Self;
    /// Sums of `f32` lanes.
    fn add_f32(self, other: Self) -> Self;
    /// Products of `f32` lanes.
    fn mul_f32(self, other: Self) -> Self;
    /// `self * factor + term` in `f32` lanes: rounded once if the instruction set has a fused
    /// multiply-add, twice if not (`conformance::bound` counts two).
    fn fma_f32(self, factor: Self, term: Self) -> Self;

    /// `self + codes . x`: to each lane, a signed sum, adds the four products of an unsigned byte
    /// of `codes` and a signed byte of `x`. Exact as long as the sum fits 32 bits.
    fn dot(self, codes: Self, x: Self) -> Self;
    /// [`Vector::dot`] for codes below 128, for which some instruction sets need fewer
    /// instructions.
    #[inline(always)]
    fn dot_narrow(self, codes: Self, x: Self) -> Self {
        self.dot(codes, x)
    }

    /// The order of the eight vectors of codes of a chunk that [`Vector::dot_tile`] reads; an
    /// instruction set that overrides that function may use another order.
    #[inline(always)]
    fn arrange(codes: [Self; 8]) -> [Self; 8] {
        codes
    }

    /// Prefetches the cache line of an address; invalid addresses are allowed.
    #[inline(always)]
    fn prefetch(_address: *const u8) {}

    /// [`tile::dot_tile`], or the instruction set's own form: M is 1, 2, 4, 6, 8 or 12 and at most
    /// `TILING.dot_tokens`, P is at most `TILING.dot_panels`; `NARROW` means that all codes are
    /// below 128.
    #[inline(always)]
    fn dot_tile<const M: usize, const P: usize, const NARROW: bool>(
        block: DotBlock<'_, P>,
        tokens: DotTokens<'_, M>,
        sums: &mut TileSums<M, P>,
    ) {
        tile::dot_tile::<Self, M, P, NARROW>(block, tokens, sums);
    }

    /// [`tile::fma_tile`], or the instruction set's own form; M and P as above, with the limits
    /// `fma_`.
    #[inline(always)]
    fn fma_tile<const M: usize, const P: usize>(
        weights: &[[[f32; 16]; P]],
        x: &[[f32; M]],
        sums: &mut TileSums<M, P>,
    ) {
        tile::fma_tile::<Self, M, P>(weights, x, sums);
    }
}

/// The registers of an instruction set with dot products of bf16 numbers.
pub trait Bf16Vector: Vector {
    /// Up to 64 bf16 numbers in registers.
    type Table: Copy;

    /// The numbers of a table.
    fn table(numbers: &[u16; 64]) -> Self::Table;

    /// Each byte, which must be below 64, replaced by `table[byte]`: bytes 0 and 1 of each lane in the first
    /// result, 2 and 3 in the second.
    fn pairs(self, table: Self::Table) -> [Self; 2];

    /// `self + numbers . x`: to each `f32` lane, adds the two products of bf16 numbers, rounding twice to
    /// nearest even. Numbers below 2^-126 are taken for 0.
    fn dot_bf16(self, numbers: Self, x: Self) -> Self;
}

/// The sizes of an instruction set's register tiles: tokens by panels of 16 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Most tokens of a tile that decodes on the fly: 1, 2, 4 or 8.
    pub fused_tokens: usize,
    /// Most tiles of an integer product that decodes on the fly, anew for each tile.
    pub fused_tiles: usize,
    /// Tokens of the largest tile of integer dot products: 1, 2, 4, 6, 8 or 12.
    pub dot_tokens: usize,
    /// Panels of that tile: 1 or 2.
    pub dot_panels: usize,
    /// Whether registers hold the `f32` sums of such a tile in addition to its integer sums.
    pub dot_held: bool,
    /// Contiguous columns of a token in such a tile: 4, or 8 if the instruction set multiplies 8 at
    /// once. The tokens of [`DotTokens`] are then `[step of 8 columns][token][2 words]`.
    pub dot_columns: usize,
    /// Tokens of the largest tile of `f32` products: 1, 2, 4, 8 or 12.
    pub fma_tokens: usize,
    /// Panels of that tile: 1 or 2.
    pub fma_panels: usize,
}

/// Plain Rust: sixteen words.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Portable([u32; 16]);

impl Portable {
    /// Each word as a function of its place. A loop without iterators: those over arrays take six times
    /// as long in the builds with little optimisation in which tests run. Products of floats are a third
    /// slower with such loops in release builds, and have [`Self::zip`].
    #[inline(always)]
    fn each(mut self, f: impl Fn(u32, usize) -> u32) -> Self {
        let mut at = 0;
        while at < 16 {
            self.0[at] = f(self.0[at], at);
            at += 1;
        }
        self
    }

    #[inline(always)]
    fn map(self, f: impl Fn(u32) -> u32) -> Self {
        let mut out = self.0;
        for word in &mut out {
            *word = f(*word);
        }
        Self(out)
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        let mut out = self.0;
        for (word, other) in out.iter_mut().zip(other.0) {
            *word = f(*word, other);
        }
        Self(out)
    }

    #[inline(always)]
    fn zip_f32(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        self.zip(other, |a, b| f(f32::from_bits(a), f32::from_bits(b)).to_bits())
    }
}

impl Vector for Portable {
    const TILING: Tiling = Tiling {
        fused_tokens: 1,
        fused_tiles: 1,
        dot_tokens: 4,
        dot_panels: 1,
        dot_held: false,
        dot_columns: 4,
        fma_tokens: 4,
        fma_panels: 1,
    };

    #[inline]
    fn load(bytes: &[u8; 64]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        Self::splat(0).each(|_, at| u32::from_le_bytes(words[at]))
    }
    #[inline]
    fn store(self, bytes: &mut [u8; 64]) {
        let (words, _) = bytes.as_chunks_mut::<4>();
        for (at, bytes) in words.iter_mut().enumerate() {
            *bytes = self.0[at].to_le_bytes();
        }
    }
    #[inline]
    fn splat(word: u32) -> Self {
        Self([word; 16])
    }
    #[inline]
    fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
    #[inline]
    fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
    #[inline]
    fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
    #[inline]
    fn shl<const BITS: u32>(self) -> Self {
        self.map(|word| word << BITS)
    }
    #[inline]
    fn shr<const BITS: u32>(self) -> Self {
        self.map(|word| word >> BITS)
    }
    #[inline]
    fn sar<const BITS: u32>(self) -> Self {
        self.map(|word| ((word as i32) >> BITS) as u32)
    }
    #[inline]
    fn add(self, other: Self) -> Self {
        self.zip(other, u32::wrapping_add)
    }
    #[inline]
    fn equal(self, other: Self) -> Self {
        self.zip(other, |a, b| if a == b { u32::MAX } else { 0 })
    }
    #[inline]
    fn lookup(self, table: &[u8; 16]) -> Self {
        self.map(|word| {
            let [a, b, c, d] = word.to_le_bytes();
            let of = |byte: u8| table[usize::from(byte & 15)];
            u32::from_le_bytes([of(a), of(b), of(c), of(d)])
        })
    }
    #[inline]
    fn to_f32(self) -> Self {
        self.map(|word| (word as i32 as f32).to_bits())
    }
    #[inline]
    fn table_f32(self, table: &[f32; 16]) -> Self {
        self.map(|word| table[(word & 15) as usize].to_bits())
    }
    #[inline]
    fn gather_f32(self, table: &[f32; 256]) -> Self {
        self.map(|word| table[(word & 255) as usize].to_bits())
    }
    #[inline]
    fn load_f32(values: &[f32; 16]) -> Self {
        Self(values.map(f32::to_bits))
    }
    #[inline]
    fn store_f32(self, values: &mut [f32; 16]) {
        *values = self.0.map(f32::from_bits);
    }
    #[inline]
    fn load_bf16(bits: &[u16; 16]) -> Self {
        Self(bits.map(|bits| u32::from(bits) << 16))
    }
    #[inline]
    fn load_f16(bits: &[u16; 16]) -> Self {
        Self(bits.map(|bits| crate::element::f16_to_f32(bits).to_bits()))
    }
    #[inline]
    fn add_f32(self, other: Self) -> Self {
        self.zip_f32(other, |a, b| a + b)
    }
    #[inline]
    fn mul_f32(self, other: Self) -> Self {
        self.zip_f32(other, |a, b| a * b)
    }
    #[inline]
    fn fma_f32(self, factor: Self, term: Self) -> Self {
        // `f32::mul_add` without the instruction is a slow library call.
        self.mul_f32(factor).add_f32(term)
    }
    #[inline]
    fn dot(self, codes: Self, x: Self) -> Self {
        self.each(|sum, at| {
            let product = |byte: u32| {
                let code = (codes.0[at] >> (8 * byte)) & 255;
                let x = i32::from((x.0[at] >> (8 * byte)) as u8 as i8);
                code as i32 * x
            };
            let pairs = [product(0) + product(1), product(2) + product(3)];
            (sum as i32).wrapping_add(pairs[0] + pairs[1]) as u32
        })
    }
}
