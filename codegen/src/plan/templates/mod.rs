//! The sequence templates: functions from a request to a [`Sequence`], or to `None` if the template
//! does not apply. `tests/sequences.rs` proves every sequence of every template, over all codes.
//!
//! A request has the code type, the width of the field that holds each code (in its low bits), and
//! the operand type. There are three kinds of templates: `planes` joins bit planes to bytes, for
//! any code, or to the top bits of signed bytes, for signed integers; `bit_placement` chooses the position of each bit of its
//! codes in the input words; all others decode fields of a word to elements. [`signed_nibbles`] is for codes whose layout another sequence
//! has decided, [`convert_rows`] for codes that some instructions multiply as they are stored.

mod bit_placement;
mod codebook;
mod planes;
mod subnormal;
mod table;
mod to_16bit;
mod to_8bit;
mod to_f32;

use quantloom_dsl::format::Number;
use quantloom_dsl::{Code, WeightCode};

use super::operand::OperandType;
use super::sequence::Sequence;

pub use bit_placement::{PLACED_HALF, placed_half};
pub use planes::{planes, planes_to_bytes, planes_to_elements, planes_to_top_bits};
pub use subnormal::{SIGNED_NIBBLES, signed_nibbles};
pub use to_16bit::{CONVERT_ROWS, convert_rows};

/// The sequence that a template should make.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateRequest<'a> {
    /// Code type and offset.
    pub weight: &'a WeightCode,
    /// Width of a field: the bits from one code to the next in the input word: 1, 2, 4 or 8.
    pub field: u32,
    /// Element type of the output.
    pub operand: OperandType,
}

/// A template: its function, with name and summary for documentation.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Its name, as in the catalogue's MANIFEST.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Whether the template is for classes alone whose arithmetic takes subnormal numbers as they are.
    pub subnormals: bool,
    /// The sequence, if the template applies.
    pub make: fn(&TemplateRequest<'_>) -> Option<Sequence>,
}

/// Name of the template that joins bit planes.
pub const PLANES_TO_BYTES: &str = "planes_to_bytes";
/// Name of the template that joins bit planes of signed integers in the top bits of bytes.
pub const PLANES_TO_TOP_BITS: &str = "planes_to_top_bits";

/// The templates that decode fields. Of templates with equal cost, the first is used.
pub const TEMPLATES: &[Template] = &[
    Template {
        name: "magic_bf16",
        summary: "an integer code ORed under the exponent of 128, and 128 subtracted (`halves_bf16`: of 8 bits \
                  seven, and the top one added): bf16",
        subnormals: false,
        make: |request| to_16bit::magic_bf16(request).or_else(|| to_16bit::halves_bf16(request)),
    },
    Template {
        name: "magic_f16",
        summary: "an integer code inserted under the exponent of 1024, by OR or as a byte: f16",
        subnormals: false,
        make: to_16bit::magic_f16,
    },
    Template {
        name: "subnormal_half",
        summary: "an integer code as a subnormal float, times a power of two: bf16, f16; a codebook of integers as bytes \
                  from byte permutations, which are subnormal floats: bf16",
        subnormals: true,
        make: |request| {
            subnormal::subnormal_half(request).or_else(|| codebook::integers_bf16(request))
        },
    },
    Template {
        name: "convert_f16",
        summary: "floats of 4, 6 and 8 bits by the conversion instruction, two at a time: f16",
        subnormals: false,
        make: to_16bit::convert_f16,
    },
    Template {
        name: "rebias",
        summary: "a small float's bits with another exponent bias, a power of two left to the scale: bf16, \
                  f16, e4m3fnuz",
        subnormals: false,
        make: |request| to_16bit::rebias_half(request).or_else(|| to_8bit::rebias_fnuz(request)),
    },
    Template {
        name: "top_bits_s8",
        summary: "2- and 4-bit integers in the top bits of a byte, a power of two too large (`top_bits_s4`: 2 bits \
                  in those of 4): i8, i4",
        subnormals: false,
        make: to_8bit::top_bits,
    },
    Template {
        name: "byte_tables",
        summary: "few bits through byte permutations as tables: e2m1 to e4m3, a codebook to bf16, f16; \
                  floats and codebooks of small integers times a power of two to u8",
        subnormals: false,
        make: |request| {
            to_8bit::table_e4m3(request)
                .or_else(|| codebook::book_half(request))
                .or_else(|| to_8bit::table_u8(request))
        },
    },
    Template {
        name: "convert_f32",
        summary: "an integer byte by conversion: f32",
        subnormals: false,
        make: to_f32::convert_f32,
    },
    Template {
        name: "rebase_f32",
        summary: "a small float under f32's exponent, subnormal codes by a fused step: f32",
        subnormals: false,
        make: to_f32::rebase_f32,
    },
    Template {
        name: "table",
        summary: "a code through a table of its values (`table_f32` where they are f32); in bf16 and f16 \
                  times a power of two, rounded where that is not enough",
        subnormals: false,
        make: |request| to_f32::table_f32(request).or_else(|| table::table_half(request)),
    },
];

/// An integer code as an unsigned one: `(width, flip, offset)`, with value = `(code ^ flip) -
/// offset`.
pub(super) fn integer(weight: &WeightCode) -> Option<(u32, u32, i32)> {
    match weight.code {
        Code::Number(Number::Uint(bits)) => Some((bits.into(), 0, weight.offset)),
        Code::Number(Number::Int(bits)) => {
            let top = 1u32 << (bits - 1);
            Some((bits.into(), top, weight.offset + top as i32))
        }
        _ => None,
    }
}

/// -0 in both halves: the neutral element of addition, for numbers of either sign.
pub(crate) const NEGATIVE_ZEROS: u32 = 0x8000_8000;

/// A 16-bit constant in both halves of a word.
pub(super) const fn both_halves(half: u32) -> u32 {
    half | half << 16
}
