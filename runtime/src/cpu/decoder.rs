//! Decoders of code types: from a chunk of codes to operands.
//!
//! In: the bit planes of a chunk (16 rows n by 32 columns k, see [`super::native`]). Out: eight
//! vectors of 64 codes, and for each of them four vectors of 16 `f32` values. Everything else
//! (groups, scales, zero points, tiles, threads) is the same for all code types and is in other
//! files.
//!
//! A [`CodeDecoder`] is a page of safe Rust over [`Vector`]; `codegen::emit::rust` generates one for
//! each code type, modelled on [`U4`]. Code types without a generated decoder use [`LutDecoder`], a
//! lookup table. [`DynDecoder`] is the object-safe trait that the loops use.

use quantloom_dsl::Code;
use quantloom_dsl::format::Number;

use super::bf16_row::{self, Bf16Row, Bf16Table};
use super::dot_row::{self, DotRow};
use super::isa::Isa;
use super::kernels::{self, FmaRow, Segment};
use super::vector::Vector;

/// The decoder of a code type.
pub trait CodeDecoder: Send + Sync + 'static {
    /// Its name, which is that of the code type: `u4`, `e2m1`.
    const NAME: &'static str;
    /// Width of a stored code in bits: a chunk is this many vectors.
    const BITS: usize;
    /// Whether codes of a type that this decoder serves are integers, so that integer products
    /// multiply them.
    const INTEGERS: bool;
    /// Whether codes of a type that this decoder serves index a table of at most 16 integers in
    /// integer products.
    const TABLE: bool;

    /// Whether this decoder reads the codes of a scheme. A signed integer is stored with its sign
    /// bit flipped, so that `u4` reads `i4` too; see [`stored_code`].
    fn serves(&self, code: &Code) -> bool;

    /// Assembles the codes of a chunk from its bit planes, one code per byte: vector q holds
    /// columns `4q..4q+4` of the 16 rows; byte `4r + j` is row r, column `4q + j`.
    ///
    /// `planes` are the chunk's `BITS` vectors, plane after plane, the widest (8, 4, 2, 1) first
    /// and the low bits of the code in the first plane. A byte of a plane of width p holds 8/p
    /// codes, columns 4 apart: field i of byte b of the plane's vector v is byte b of vector
    /// `q = v * 8/p + i`.
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8];

    /// The values of one vector of codes as `f32`, column j of the four in vector j.
    ///
    /// For integers, the value of the unsigned code: the number that is subtracted from it (offset,
    /// sign bit, zero point) is part of the group's correction.
    fn values<V: Vector>(&self, codes: V) -> [V; 4];
}

/// The object-safe form of a decoder, compiled for every instruction set.
///
/// Implemented for every [`CodeDecoder`]; no other implementation is needed.
pub trait DynDecoder: Send + Sync {
    /// The name of the code type, or `table`.
    fn name(&self) -> &'static str;
    /// Bits of a stored code.
    fn bits(&self) -> usize;
    /// See [`CodeDecoder::serves`].
    fn serves(&self, code: &Code) -> bool;
    /// Decodes a segment of a panel to codes, or to the bytes of a table that codes index: [step of 4
    /// columns] vectors, `stride` apart in `out`.
    fn decode_codes(
        &self,
        isa: Isa,
        planes: &[[u8; 64]],
        table: Option<&[u8; 16]>,
        out: &mut [[u8; 64]],
        stride: usize,
    );
    /// Decodes a segment of a panel to weights: [column] vectors of 16 rows, `stride` apart.
    fn decode_values(&self, isa: Isa, segment: Segment<'_>, out: &mut [[f32; 16]], stride: usize);
    /// A panel times few tokens with integer dot products; decoded codes are not stored.
    fn dot_row(&self, isa: Isa, row: DotRow<'_>, sums: &mut [[f32; 16]]);
    /// A panel times few tokens in `f32`; decoded weights are not stored.
    fn fma_row(&self, isa: Isa, row: FmaRow<'_>, sums: &mut [[f32; 16]]);
    /// Decodes a segment of a panel to bf16 numbers, as every second step of `out`. Codes have at most
    /// [`MOST_BITS`](bf16_row::MOST_BITS), and the instruction set has dot products of bf16 numbers.
    fn decode_bf16(
        &self,
        isa: Isa,
        planes: &[[u8; 64]],
        table: &Bf16Table,
        out: &mut [[[u8; 64]; 16]],
    );
    /// Some panels times few tokens with dot products of bf16 numbers; as [`Self::decode_bf16`].
    fn bf16_row(&self, isa: Isa, row: Bf16Row<'_>, sums: &mut [[f32; 16]]);
}

impl<F: CodeDecoder> DynDecoder for F {
    fn name(&self) -> &'static str {
        F::NAME
    }
    fn bits(&self) -> usize {
        F::BITS
    }
    fn serves(&self, code: &Code) -> bool {
        CodeDecoder::serves(self, code)
    }
    fn decode_codes(
        &self,
        isa: Isa,
        planes: &[[u8; 64]],
        table: Option<&[u8; 16]>,
        out: &mut [[u8; 64]],
        stride: usize,
    ) {
        kernels::codes(self, isa, (planes, table), out, stride);
    }
    fn decode_values(&self, isa: Isa, segment: Segment<'_>, out: &mut [[f32; 16]], stride: usize) {
        kernels::values(self, isa, segment, out, stride);
    }
    fn dot_row(&self, isa: Isa, row: DotRow<'_>, sums: &mut [[f32; 16]]) {
        if const { F::INTEGERS || F::TABLE } {
            dot_row::dot_row(self, isa, row, sums);
        } else {
            debug_assert!(false, "{} has no integers", F::NAME);
        }
    }
    fn fma_row(&self, isa: Isa, row: FmaRow<'_>, sums: &mut [[f32; 16]]) {
        kernels::fma_row(self, isa, row, sums);
    }
    fn decode_bf16(
        &self,
        isa: Isa,
        planes: &[[u8; 64]],
        table: &Bf16Table,
        out: &mut [[[u8; 64]; 16]],
    ) {
        if const { F::BITS <= bf16_row::MOST_BITS } {
            bf16_row::steps(self, isa, (planes, table), out);
        } else {
            debug_assert!(false, "{} is too wide for a table of bf16 numbers", F::NAME);
        }
    }
    fn bf16_row(&self, isa: Isa, row: Bf16Row<'_>, sums: &mut [[f32; 16]]) {
        if const { F::BITS <= bf16_row::MOST_BITS } {
            bf16_row::bf16_row(self, isa, row, sums);
        } else {
            debug_assert!(false, "{} is too wide for a table of bf16 numbers", F::NAME);
        }
    }
}

/// The decoders of a program: a list in a `static`, such as the catalogue's.
pub type Decoders = &'static [&'static dyn DynDecoder];

/// The decoder of a weight.
#[derive(Clone)]
pub enum Decoder {
    /// One of the program's decoders.
    Known(&'static dyn DynDecoder),
    /// The lookup table of a code type without a decoder.
    Table(LutDecoder),
}

impl Decoder {
    /// The decoder itself.
    pub fn get(&self) -> &dyn DynDecoder {
        match self {
            Self::Known(decoder) => *decoder,
            Self::Table(table) => table,
        }
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decoder({})", self.get().name())
    }
}

/// Widths of the bit planes of a code of `bits` bits, low bits first.
pub fn planes(bits: usize) -> impl Iterator<Item = usize> {
    [8, 4, 2, 1].into_iter().filter(move |width| bits & width != 0)
}

/// The stored form of a scheme's codes: the sign bit of two's complement integers is flipped, so
/// that they count upwards from 0.
pub fn stored_code(code: &Code) -> StoredCode {
    match *code {
        Code::Number(Number::Int(bits)) => {
            let sign = 1 << (bits - 1);
            StoredCode { flip: sign as u8, offset: sign }
        }
        _ => StoredCode { flip: 0, offset: 0 },
    }
}

/// How a scheme's code is stored in native panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCode {
    /// XORed to the code.
    pub flip: u8,
    /// The integer of a code is the unsigned stored code minus this.
    pub offset: i32,
}

/// The decoders that every device has: the model of the generated ones.
pub const BUILT_IN: Decoders = &[&U4];

/// 4-bit integers.
#[derive(Clone, Copy, Debug)]
pub struct U4;

impl CodeDecoder for U4 {
    const NAME: &'static str = "u4";
    const BITS: usize = 4;
    const INTEGERS: bool = true;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        matches!(code, Code::Number(Number::Uint(4) | Number::Int(4)))
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        let low = V::splat(0x0f0f_0f0f);
        let (a, b) = (V::load(&planes[0]), V::load(&planes[1]));
        let (c, d) = (V::load(&planes[2]), V::load(&planes[3]));
        [
            a.and(low),
            a.shr::<4>().and(low),
            b.and(low),
            b.shr::<4>().and(low),
            c.and(low),
            c.shr::<4>().and(low),
            d.and(low),
            d.shr::<4>().and(low),
        ]
    }

    #[inline(always)]
    fn values<V: Vector>(&self, codes: V) -> [V; 4] {
        let byte = V::splat(0xff);
        [
            codes.and(byte).to_f32(),
            codes.shr::<8>().and(byte).to_f32(),
            codes.shr::<16>().and(byte).to_f32(),
            codes.shr::<24>().to_f32(),
        ]
    }
}

/// A lookup table: any code of at most 8 bits, one per byte.
#[derive(Clone, Debug)]
pub struct LutDecoder {
    table: Box<[f32; 256]>,
    number: Code,
}

impl LutDecoder {
    /// The table of a code type. Integers count from 0, as [`stored_code`] stores them.
    pub fn new(code: &Code) -> Self {
        let StoredCode { flip, offset } = stored_code(code);
        let mut table = Box::new([0.0; 256]);
        for (stored, value) in (0u32..1 << code.bits()).zip(table.iter_mut()) {
            *value = (code.decode(stored ^ u32::from(flip)) + f64::from(offset)) as f32;
        }
        Self { table, number: code.clone() }
    }
}

impl CodeDecoder for LutDecoder {
    const NAME: &'static str = "table";
    const BITS: usize = 8;
    const INTEGERS: bool = true;
    const TABLE: bool = true;

    fn serves(&self, code: &Code) -> bool {
        *code == self.number
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        let mut codes = [V::splat(0); 8];
        for (codes, bytes) in codes.iter_mut().zip(planes) {
            *codes = V::load(bytes);
        }
        codes
    }

    #[inline(always)]
    fn values<V: Vector>(&self, codes: V) -> [V; 4] {
        let byte = V::splat(0xff);
        [
            codes.and(byte).gather_f32(&self.table),
            codes.shr::<8>().and(byte).gather_f32(&self.table),
            codes.shr::<16>().and(byte).gather_f32(&self.table),
            codes.shr::<24>().gather_f32(&self.table),
        ]
    }
}
