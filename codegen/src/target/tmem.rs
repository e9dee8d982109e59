//! Products of tensor memory (`tcgen05.mma`), one row each: D = A B + D with A `[128, k]`, B `[k, n]` and D
//! `[128, n]`.
//!
//! Tensor memory is a memory of a multiprocessor: [`TMEM_LANES`] lanes of [`TMEM_COLUMNS`] columns of 32 bits. Lane i of
//! column j of D is the sum of row i and column j. A is in shared memory, or in tensor memory with its row i in lane i,
//! elements along k packed in the words of successive columns, the first in the low bits. B is in shared memory.
//!
//! Scales are words in tensor memory: those of row r of A (column r of B) are adjacent bytes of the word in lane `r % 32`
//! of column `r / 32`. All four quarters of the lanes hold the same words.

use super::{Element, Feature, ScaleCode, Target};

/// Lanes of tensor memory: rows of A and of D.
pub const TMEM_LANES: u32 = 128;

/// Columns of tensor memory.
pub const TMEM_COLUMNS: u32 = 512;

/// Lanes that a warp loads and stores: those of its number in its warp group. Rows that one column of scales has.
pub const TMEM_WARP_LANES: u32 = 32;

/// A product of tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmemProduct {
    /// The name in this project.
    pub name: &'static str,
    /// The qualifiers of the instruction.
    pub kind: &'static str,
    /// K.
    pub k: u32,
    /// Elements of A.
    pub a: Element,
    /// Elements of B.
    pub b: Element,
    /// Elements of D.
    pub d: Element,
    /// The numbers of the types of D, A and B in the instruction descriptor.
    pub types: [u32; 3],
    /// Its scales of A and B, if it scales its operands.
    pub scaling: Option<TmemScaling>,
    /// The feature that a chip must have.
    pub needs: Feature,
}

/// The scales of a product: A `[128, k]` has scales `[128, k / columns]`, B likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmemScaling {
    /// Columns that share a scale.
    pub columns: u32,
    /// The type of scales.
    pub code: ScaleCode,
}

const fn plain(
    name: &'static str,
    kind: &'static str,
    (element, d): (Element, Element),
    types: [u32; 3],
    needs: Feature,
) -> TmemProduct {
    let k = 256 / element.bits();
    TmemProduct { name, kind, k, a: element, b: element, d, types, scaling: None, needs }
}

const fn scaled(
    name: &'static str,
    kind: &'static str,
    element: Element,
    number: u32,
    scaling: (u32, ScaleCode),
    needs: Feature,
) -> TmemProduct {
    let types = [0, number, number];
    let row = plain(name, kind, (element, Element::F32), types, needs);
    TmemProduct { scaling: Some(TmemScaling { columns: scaling.0, code: scaling.1 }), ..row }
}

/// Every product of tensor memory that a kernel can use.
///
/// Source: PTX ISA 9.1, "Instruction descriptor", "Matrix Shape", "Valid combinations of scale_vectorsize with types and
/// MMA-Kind". Not here: `tf32`, sums in f16, pairs of blocks (`cta_group::2`), `.ws`, sparse A, and operands of 4 and 6 bits
/// beside others, which take 16 bytes of shared memory for each 16 elements.
#[rustfmt::skip]
pub const TMEM_PRODUCTS: &[TmemProduct] = &[
    plain("tcgen05.bf16", "kind::f16", (Element::Bf16, Element::F32), [1, 1, 1], Feature::TensorMemory),
    plain("tcgen05.f16", "kind::f16", (Element::F16, Element::F32), [1, 0, 0], Feature::TensorMemory),
    plain("tcgen05.e4m3", "kind::f8f6f4", (Element::E4m3, Element::F32), [1, 0, 0], Feature::TensorMemory),
    plain("tcgen05.s8", "kind::i8", (Element::S8, Element::S32), [2, 1, 1], Feature::TensorMemoryS8),
    scaled("tcgen05.scale.e4m3", "kind::mxf8f6f4.block_scale.scale_vec::1X", Element::E4m3, 0, (32, ScaleCode::E8m0), Feature::TensorMemory),
    scaled("tcgen05.scale.e2m1", "kind::mxf4.block_scale.scale_vec::2X", Element::E2m1, 1, (32, ScaleCode::E8m0), Feature::TensorMemory),
    scaled("tcgen05.scale.e2m1.e4m3", "kind::mxf4nvf4.block_scale.scale_vec::4X", Element::E2m1, 1, (16, ScaleCode::UnsignedE4m3), Feature::TensorMemoryE4m3Scales),
];

/// The product of a name, if the target has it.
pub fn tmem_product(name: &str, target: &Target) -> Option<&'static TmemProduct> {
    TMEM_PRODUCTS.iter().find(|row| row.name == name && target.has(row.needs))
}

impl TmemProduct {
    /// Whether the product has this N. Source: PTX ISA 9.1, "Matrix Shape", of M = 128.
    pub const fn has_columns(&self, n: u32) -> bool {
        let step = if matches!(self.a, Element::S8) && n > 32 { 16 } else { 8 };
        n >= 8 && n <= 256 && n.is_multiple_of(step)
    }

    /// Columns of tensor memory that A takes, if A is there.
    pub const fn a_columns(&self) -> u32 {
        self.k * self.a.bits() / 32
    }

    /// Scales of a row of A or a column of B; 0 if the product does not scale.
    pub fn row_scales(&self) -> u32 {
        self.scaling.map_or(0, |of| self.k / of.columns)
    }

    /// The instruction descriptor of a product with N, and with the first byte of its scales of A and of B in their
    /// words. Source: PTX ISA 9.1, "Instruction descriptor".
    pub fn descriptor(&self, n: u32, [a, b]: [u8; 2]) -> u32 {
        let [of_d, of_a, of_b] = self.types;
        let of_operands = of_a << 7 | of_b << 10 | (n >> 3) << 17;
        match self.scaling {
            None => of_operands | of_d << 4 | (TMEM_LANES >> 4) << 24,
            Some(scaling) => {
                let e8m0 = u32::from(scaling.code == ScaleCode::E8m0);
                let bytes = u32::from(a) << 29 | u32::from(b) << 4;
                of_operands | e8m0 << 23 | (TMEM_LANES >> 7) << 27 | bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Descriptors field by field, as CUTLASS's `UMMA::InstrDescriptor` and `InstrDescriptorBlockScaled` have them.
    #[test]
    fn descriptors_have_their_fields() {
        let row = |name: &str| {
            *TMEM_PRODUCTS.iter().find(|row| row.name == name).expect("a row of the table")
        };
        let bits = |word: u32, first: u32, len: u32| word >> first & ((1 << len) - 1);
        let bf16 = row("tcgen05.bf16").descriptor(96, [0, 0]);
        // c_format, a_format, b_format, n_dim, m_dim.
        let fields =
            [(4, 2), (7, 3), (10, 3), (17, 6), (24, 5)].map(|(at, len)| bits(bf16, at, len));
        assert_eq!(fields, [1, 1, 1, 12, 8]);
        let s8 = row("tcgen05.s8").descriptor(32, [0, 0]);
        assert_eq!([bits(s8, 4, 2), bits(s8, 7, 3), bits(s8, 10, 3)], [2, 1, 1]);
        let nvfp4 = row("tcgen05.scale.e2m1.e4m3").descriptor(256, [0, 0]);
        // b_sf_id, a_format, b_format, n_dim, scale_format, m_dim in units of 128 lanes, a_sf_id.
        let scaled = [(4, 2), (7, 3), (10, 3), (17, 6), (23, 1), (27, 2), (29, 2)];
        assert_eq!(scaled.map(|(at, len)| bits(nvfp4, at, len)), [0, 1, 1, 32, 0, 1, 0]);
        let mxfp4 = row("tcgen05.scale.e2m1").descriptor(8, [2, 0]);
        assert_eq!(scaled.map(|(at, len)| bits(mxfp4, at, len)), [0, 1, 1, 1, 1, 1, 2]);
        let mxfp8 = row("tcgen05.scale.e4m3").descriptor(128, [1, 3]);
        assert_eq!(scaled.map(|(at, len)| bits(mxfp8, at, len)), [3, 0, 0, 16, 1, 1, 1]);
    }

    #[test]
    fn columns_of_a_product() {
        let s8 = TMEM_PRODUCTS.iter().find(|row| row.a == Element::S8).expect("a row of int8");
        let bf16 = &TMEM_PRODUCTS[0];
        assert_eq!(
            [8, 24, 40, 48, 256, 264].map(|n| s8.has_columns(n)),
            [true, true, false, true, true, false]
        );
        assert_eq!([0, 4, 40, 256].map(|n| bf16.has_columns(n)), [false, false, true, true]);
        assert_eq!((bf16.k, bf16.a_columns(), s8.k), (16, 8, 32));
    }
}
