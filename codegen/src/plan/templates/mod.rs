//! The named sequence templates, each a function from what is wanted to a [`Sequence`], or
//! nothing where the template does not apply. `tests/sequences.rs` proves every sequence that any
//! of them makes, over all codes.
//!
//! A template is given the codes' type, the width of the field in which each lies (the code in
//! the field's low bits), and the operand wanted. Three kinds: `bytes` joins bit planes to bytes,
//! whatever the code is; `placed` says itself where the bits of its codes are to lie; all others
//! decode fields of a word to elements.

mod book;
mod bytes;
mod eights;
mod halves;
mod placed;
mod singles;
mod table;

use quantloom_dsl::format::Number;
use quantloom_dsl::{Code, WeightCode};

use super::operand::Operand;
use super::sequence::Sequence;

pub use bytes::{planes, planes_to_bytes};
pub use placed::{PLACED_HALF, placed_half};

/// What a template is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask<'a> {
    /// What the codes are.
    pub weight: &'a WeightCode,
    /// Bits from one code to the next in the input word: 1, 2, 4 or 8.
    pub field: u32,
    /// Element type of the output.
    pub operand: Operand,
}

/// A template: a row for documents, and the function.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Its name, as in a manifest.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// The sequence, if the template applies.
    pub make: fn(&Ask<'_>) -> Option<Sequence>,
}

/// Name of the template that joins bit planes.
pub const PLANES_TO_BYTES: &str = "planes_to_bytes";

/// The templates that decode fields, in the order in which ties of cost are decided.
pub const TEMPLATES: &[Template] = &[
    Template {
        name: "magic_bf16",
        summary: "an integer code ORed under the exponent of 128, and 128 subtracted: bf16",
        make: halves::magic_bf16,
    },
    Template {
        name: "magic_f16",
        summary: "an integer code put under the exponent of 1024, by OR or as a byte: f16",
        make: halves::magic_f16,
    },
    Template {
        name: "halves_bf16",
        summary: "an 8-bit integer as the sum of its low seven bits and its top bit: bf16",
        make: halves::halves_bf16,
    },
    Template {
        name: "convert_f16",
        summary: "e4m3 by the conversion instruction, two at a time: f16",
        make: halves::convert_f16,
    },
    Template {
        name: "rebias",
        summary: "a small float's bits under another bias, a power of two left to the scale: bf16, \
                  f16, e4m3fnuz",
        make: |ask| halves::rebias_half(ask).or_else(|| eights::rebias_fnuz(ask)),
    },
    Template {
        name: "top_bits_s8",
        summary: "2- and 4-bit integers in the top bits of a byte, a power of two too large: i8",
        make: eights::top_bits_s8,
    },
    Template {
        name: "byte_tables",
        summary: "few bits through byte permutations as tables: e2m1 to e4m3, a codebook to bf16, f16",
        make: |ask| eights::table_e4m3(ask).or_else(|| book::book_half(ask)),
    },
    Template {
        name: "convert_f32",
        summary: "an integer byte by conversion: f32",
        make: singles::convert_f32,
    },
    Template {
        name: "rebase_f32",
        summary: "a small float under f32's exponent, subnormal codes by a fused step: f32",
        make: singles::rebase_f32,
    },
    Template {
        name: "table",
        summary: "a code through a table of its values (`table_f32` where they are f32); in bf16 and f16 \
                  times a power of two, rounded where that is not enough",
        make: |ask| singles::table_f32(ask).or_else(|| table::table_half(ask)),
    },
];

/// An integer code as an unsigned one: `(width, flip, offset)` with value = `(code ^ flip) - offset`.
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

/// -0 in both halves: added to numbers of either sign it leaves them as they are.
pub(crate) const NOTHING: u32 = 0x8000_8000;

/// The same word twice over: a constant for both halves.
pub(super) const fn twice(half: u32) -> u32 {
    half | half << 16
}
