//! The types of tensors that ggml numbers, and how each is read.
//!
//! A row that is read has two parts of a scheme's text: the clauses of its numbers, and the record
//! that a block of columns is. Sources: ggml, `ggml.h` (numbers), `ggml-common.h` (blocks),
//! `ggml-quants.c` (values).

use safetensors::Dtype;

/// A type of tensors.
#[derive(Debug)]
pub(super) struct GgmlType {
    /// The number in files.
    pub(super) number: u32,
    /// The name in ggml, without its prefix.
    pub(super) name: &'static str,
    /// Elements of a block; 1 for elements.
    pub(super) block: u64,
    /// Bytes of a block.
    pub(super) bytes: u64,
    /// How it is read.
    pub(super) content: Content,
}

/// How a type is read.
#[derive(Debug)]
pub(super) enum Content {
    /// Elements of a type that safetensors files have too.
    Elements(Dtype),
    /// Blocks of quantised weights.
    Blocks {
        /// The clauses of codes, shifts and scales.
        numbers: &'static str,
        /// The parts of the record that a block is.
        record: &'static str,
    },
    /// There is no scheme for it, and why.
    Refused(&'static str),
}

impl GgmlType {
    /// The type of a number.
    pub(super) fn of(number: u32) -> Option<&'static Self> {
        TYPES.iter().find(|row| row.number == number)
    }
}

const VECTORS: &str =
    "its codes stand for several weights each, with signs in tables, which no scheme says";
const TRITS: &str = "its bytes are five digits of base 3, and a layout places bits";
const PRODUCTS: &str = "it is a type of activations within products, and no type of weights";

const fn elements(number: u32, name: &'static str, bytes: u64, dtype: Dtype) -> GgmlType {
    GgmlType { number, name, block: 1, bytes, content: Content::Elements(dtype) }
}

const fn blocks(
    number: u32,
    name: &'static str,
    (block, bytes): (u64, u64),
    numbers: &'static str,
    record: &'static str,
) -> GgmlType {
    GgmlType { number, name, block, bytes, content: Content::Blocks { numbers, record } }
}

const fn refused(
    number: u32,
    name: &'static str,
    (block, bytes): (u64, u64),
    why: &'static str,
) -> GgmlType {
    GgmlType { number, name, block, bytes, content: Content::Refused(why) }
}

/// The scales and minima of eight groups of 32, 6 bits each, in twelve bytes: byte j of the first four has the
/// scale of group j and the top two bits of that of group j + 4, byte j of the next four the minima alike, and
/// byte j of the last four the low halves of the scale and of the minimum of group j + 4.
macro_rules! scales_and_minima {
    () => {
        "u8 [scale @0, scale[4..6] @1, k/128:2 | k/32:4],
         u8 [shift @0, shift[4..6] @1, k/128:2 | k/32:4],
         u8 [scale[0..4] @1, shift[0..4] @1, k/128:2 | k/32:4], "
    };
}

/// The values of types that look their codes up.
macro_rules! four_bit_table {
    () => {
        "codebook(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), "
    };
}

/// Byte j of 16 has the columns j and j + 16.
const HALVES: &str = "scale, u8 [k/16:2 | k:16]";

/// The types that files have today. Numbers between them were given up.
pub(super) const TYPES: &[GgmlType] = &[
    elements(0, "F32", 4, Dtype::F32),
    elements(1, "F16", 2, Dtype::F16),
    blocks(2, "Q4_0", (32, 18), "weight: u4 - 8, scale: f16 per 1x32 from amax / 8", HALVES),
    blocks(
        3,
        "Q4_1",
        (32, 20),
        "weight: u4, shift: f16, scale: f16 per 1x32",
        "scale, shift, u8 [k/16:2 | k:16]",
    ),
    blocks(
        6,
        "Q5_0",
        (32, 22),
        "weight: u5 - 16, scale: f16 per 1x32 from amax / 16",
        "scale, u32 [code[4..5], k:32], u8 [code[0..4], k/16:2 | k:16]",
    ),
    blocks(
        7,
        "Q5_1",
        (32, 24),
        "weight: u5, shift: f16, scale: f16 per 1x32",
        "scale, shift, u32 [code[4..5], k:32], u8 [code[0..4], k/16:2 | k:16]",
    ),
    blocks(8, "Q8_0", (32, 34), "weight: i8, scale: f16 per 1x32 from amax / 127", "scale, [k:32]"),
    refused(9, "Q8_1", (32, 36), PRODUCTS),
    // The low half of a byte is a scale, the high half a minimum.
    blocks(
        10,
        "Q2_K",
        (256, 84),
        "weight: u2, shift: -u4, shift: f16 per 1x256, scale: u4 per 1x16, scale: f16 per 1x256",
        "u8 [scale, shift | k/16:16], u8 [code, k/32:4 | k:32, k/128:2], scale2, shift2",
    ),
    // The top bits of codes, their low bits, the low bits of scales, their top bits.
    blocks(
        11,
        "Q3_K",
        (256, 110),
        "weight: u3 - 4, scale: u6 - 32 per 1x16, scale: f16 per 1x256",
        "u8 [code[2..3], k/32:8 | k:32], u8 [code[0..2], k/32:4 | k:32, k/128:2],
         u8 [scale[0..4], k/128:2 | k/16:8], u8 [scale[4..6], k/64:4 | k/16:4], scale2",
    ),
    blocks(
        12,
        "Q4_K",
        (256, 144),
        "weight: u4, shift: -u6, shift: f16 per 1x256, scale: u6 per 1x32, scale: f16 per 1x256",
        concat!("scale2, shift2, ", scales_and_minima!(), "u8 [code, k/32:2 | k:32, k/64:4]"),
    ),
    blocks(
        13,
        "Q5_K",
        (256, 176),
        "weight: u5, shift: -u6, shift: f16 per 1x256, scale: u6 per 1x32, scale: f16 per 1x256",
        concat!(
            "scale2, shift2, ",
            scales_and_minima!(),
            "u8 [code[4..5], k/32:8 | k:32], u8 [code[0..4], k/32:2 | k:32, k/64:4]"
        ),
    ),
    blocks(
        14,
        "Q6_K",
        (256, 210),
        "weight: u6 - 32, scale: i8 per 1x16 from amax / 32, scale: f16 per 1x256 from amax / 4064",
        "u8 [code[0..4], k/64:2 | k:64, k/128:2], u8 [code[4..6], k/32:4 | k:32, k/128:2],
         for [k/16:16] scale, scale2",
    ),
    refused(15, "Q8_K", (256, 292), PRODUCTS),
    refused(16, "IQ2_XXS", (256, 66), VECTORS),
    refused(17, "IQ2_XS", (256, 74), VECTORS),
    refused(18, "IQ3_XXS", (256, 98), VECTORS),
    refused(19, "IQ1_S", (256, 50), VECTORS),
    blocks(
        20,
        "IQ4_NL",
        (32, 18),
        concat!("weight: ", four_bit_table!(), "scale: f16 per 1x32 from amax / 127"),
        HALVES,
    ),
    refused(21, "IQ3_S", (256, 110), VECTORS),
    refused(22, "IQ2_S", (256, 82), VECTORS),
    // The top bits of scales, and their low bits.
    blocks(
        23,
        "IQ4_XS",
        (256, 136),
        concat!(
            "weight: ",
            four_bit_table!(),
            "scale: u6 - 32 per 1x32 from amax / 127, scale: f16 per 1x256 from amax / 3937"
        ),
        "scale2, u16 [scale[4..6], k/32:8], u8 [scale[0..4], k/32:2 | k/64:4],
         u8 [k/16:2 | k:16, k/32:8]",
    ),
    elements(24, "I8", 1, Dtype::I8),
    elements(25, "I16", 2, Dtype::I16),
    elements(26, "I32", 4, Dtype::I32),
    elements(27, "I64", 8, Dtype::I64),
    elements(28, "F64", 8, Dtype::F64),
    refused(29, "IQ1_M", (256, 56), VECTORS),
    elements(30, "BF16", 2, Dtype::BF16),
    refused(34, "TQ1_0", (256, 54), TRITS),
    blocks(
        35,
        "TQ2_0",
        (256, 66),
        "weight: u2 - 1, scale: f16 per 1x256 from amax / 1",
        "u8 [k/32:4 | k:32, k/128:2], scale",
    ),
    // ggml reads the exponent 255 as 2^127; here it is NaN, as the format of OCP says.
    blocks(39, "MXFP4", (32, 17), "weight: e2m1, scale: e8m0 per 1x32", HALVES),
    // ggml reads a scale of 0x7f as 0, and none of its files has one; here it is NaN.
    blocks(
        40,
        "NVFP4",
        (64, 36),
        "weight: e2m1, scale: e4m3 per 1x16",
        "for [k/16:4] scale, u8 [k/8:2 | k:8, k/16:4]",
    ),
    blocks(
        41,
        "Q1_0",
        (128, 18),
        "weight: codebook(-1, 1), scale: f16 per 1x128 from amax / 1",
        "scale, u8 [k:8 | k/8:16]",
    ),
];
