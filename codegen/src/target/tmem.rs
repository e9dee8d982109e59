//! Products of tensor memory (`tcgen05.mma`): what the rows of the table do not say.
//!
//! Tensor memory is a memory of a multiprocessor: [`TMEM_LANES`] lanes of [`TMEM_COLUMNS`] columns of 32 bits. A row of the
//! table has M = 128 and the smallest N; the instruction takes more ([`MatrixOp::has_columns`]). Lane i of column j of D is
//! the sum of row i and column j. A is in shared memory, or in tensor memory with its row i in lane i, elements along k
//! packed in the words of successive columns, the first in the low bits. B is in shared memory.
//!
//! Scales are words in tensor memory: those of row r of A (column r of B) are adjacent bytes of the word in lane `r % 32`
//! of column `r / 32`. All four quarters of the lanes hold the same words.

use super::{Element, MatrixOp, ScaleCode};

/// Lanes of tensor memory: rows of A and of D.
pub const TMEM_LANES: u32 = 128;

/// Columns of tensor memory.
pub const TMEM_COLUMNS: u32 = 512;

/// Lanes that a warp loads and stores: those of its number in its warp group. Rows that one column of scales has.
pub const TMEM_WARP_LANES: u32 = 32;

impl MatrixOp {
    /// Whether a product of tensor memory has this N: a multiple of the row's, 256 at most. Source: PTX ISA 9.1, "Matrix
    /// Shape", of M = 128; CUTLASS's assertions of SM100 products, which want a multiple of 16 where nothing scales.
    pub const fn has_columns(&self, n: u32) -> bool {
        n > 0 && n <= 256 && n.is_multiple_of(self.shape[1])
    }

    /// Columns of tensor memory that A takes, if A is there.
    pub const fn a_columns(&self) -> u32 {
        self.shape[2] * self.a.bits() / 32
    }

    /// Scales of a row of A or a column of B; 0 if the instruction does not scale.
    pub fn row_scales(&self) -> u32 {
        self.scaling.map_or(0, |of| self.shape[2] / of.columns)
    }

    /// The instruction descriptor of a product of tensor memory with N, and with the first byte of its scales of A and of
    /// B in their words. Source: PTX ISA 9.1, "Instruction descriptor".
    pub fn tmem_descriptor(&self, n: u32, [a, b]: [u8; 2]) -> u32 {
        let of_operands = number(self.a) << 7 | number(self.b) << 10 | (n >> 3) << 17;
        match self.scaling {
            None => of_operands | number(self.d) << 4 | (TMEM_LANES >> 4) << 24,
            Some(scaling) => {
                let e8m0 = u32::from(scaling.code == ScaleCode::E8m0);
                let bytes = u32::from(a) << 29 | u32::from(b) << 4;
                of_operands | e8m0 << 23 | (TMEM_LANES >> 7) << 27 | bytes
            }
        }
    }
}

/// The number of a type in the instruction descriptor, beside types that the same instruction takes.
const fn number(element: Element) -> u32 {
    match element {
        Element::F16 | Element::E4m3 => 0,
        Element::Bf16 | Element::S8 | Element::E2m1 | Element::F32 => 1,
        Element::S32 => 2,
        _ => unreachable!(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{MATRIX_OPS, MatrixScope};

    fn row(name: &str) -> &'static MatrixOp {
        MATRIX_OPS.iter().find(|row| row.name == name).expect("a row of the table")
    }

    /// Descriptors field by field, as CUTLASS's `UMMA::InstrDescriptor` and `InstrDescriptorBlockScaled` have them.
    #[test]
    fn descriptors_have_their_fields() {
        let bits = |word: u32, (first, len): (u32, u32)| word >> first & ((1 << len) - 1);
        // c_format, a_format, b_format, n_dim, m_dim.
        let plain = [(4, 2), (7, 3), (10, 3), (17, 6), (24, 5)];
        let of = |name, n| plain.map(|field| bits(row(name).tmem_descriptor(n, [0, 0]), field));
        assert_eq!(of("tcgen05.bf16", 96), [1, 1, 1, 12, 8]);
        assert_eq!(of("tcgen05.f16", 16), [1, 0, 0, 2, 8]);
        assert_eq!(of("tcgen05.e4m3", 256), [1, 0, 0, 32, 8]);
        assert_eq!(of("tcgen05.s8", 32), [2, 1, 1, 4, 8]);
        // b_sf_id, a_format, b_format, n_dim, scale_format, m_dim in units of 128 lanes, a_sf_id.
        let scaled = [(4, 2), (7, 3), (10, 3), (17, 6), (23, 1), (27, 2), (29, 2)];
        let of =
            |name, n, bytes| scaled.map(|field| bits(row(name).tmem_descriptor(n, bytes), field));
        assert_eq!(of("tcgen05.scale.e2m1.e4m3", 256, [0, 0]), [0, 1, 1, 32, 0, 1, 0]);
        assert_eq!(of("tcgen05.scale.e2m1", 8, [2, 0]), [0, 1, 1, 1, 1, 1, 2]);
        assert_eq!(of("tcgen05.scale.e4m3", 128, [1, 3]), [3, 0, 0, 16, 1, 1, 1]);
    }

    #[test]
    fn columns_of_a_product() {
        let of = |name: &str| [0, 8, 16, 40, 48, 256, 272].map(|n| row(name).has_columns(n));
        assert_eq!(of("tcgen05.s8"), [false, false, true, false, true, true, false]);
        assert_eq!(of("tcgen05.scale.e2m1"), [false, true, true, true, true, true, false]);
        for row in MATRIX_OPS.iter().filter(|row| row.scope == MatrixScope::TensorMemory) {
            assert_eq!((row.a_columns(), row.shape[0]), (8, TMEM_LANES), "{}", row.name);
        }
    }
}
