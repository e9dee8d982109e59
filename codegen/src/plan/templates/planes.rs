//! Bit planes to one code per byte.
//!
//! A code of b bits is split into bit planes of 8, 4, 2 and 1 bits, low bits first, so that every
//! plane fills words without gaps. In a word of a plane of p bits, each byte holds `8 / p` codes
//! that are four apart: a shift by a multiple of p and one mask give four codes, one per byte, in
//! order. A unit is 32 codes: 8 words of bytes.
//!
//! An operand of signed bytes takes signed integers in its top bits, where no offset is left to a correction of sums.

use quantloom_dsl::WeightCode;

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::{Arg, SequenceRegister, Step};
use super::{PLANES_TO_BYTES, PLANES_TO_TOP_BITS, integer};

/// Codes of a unit.
const UNIT: u32 = 32;

/// Names of the planes and of their masks, by the number of planes.
const NAMES: [&[[&str; 2]]; 3] = [
    &[["plane", "mask"]],
    &[["low", "low_mask"], ["high", "high_mask"]],
    &[["low", "low_mask"], ["middle", "middle_mask"], ["high", "high_mask"]],
];

/// The bit planes of a code of `bits` bits: half-open ranges of its bits, low bits first.
pub fn planes(bits: u32) -> Vec<(u8, u8)> {
    let mut low = 0;
    let mut planes = Vec::new();
    for width in [8, 4, 2, 1] {
        if bits & width != 0 {
            planes.push((low as u8, (low + width) as u8));
            low += width;
        }
    }
    planes
}

/// The sequence that joins the bit planes of 32 codes to bytes.
pub fn planes_to_bytes(weight: &WeightCode) -> Sequence {
    planes_to_elements(weight, OperandType::U8)
}

/// The same to elements of an operand that are bytes with a code from the operand's first bit on.
pub fn planes_to_elements(weight: &WeightCode, operand: OperandType) -> Sequence {
    let encoding = OutputEncoding::Code;
    joined(weight, (PLANES_TO_BYTES, operand, encoding), operand.first_bit(), merged)
}

/// The same to signed bytes with an integer in their top bits, the bits below cleared: its signed value times a power of two.
/// `None` for codes of other types, of 8 bits, and of which the offset does not make signed ones: half of the range would be left to a
/// correction of sums.
pub fn planes_to_top_bits(weight: &WeightCode) -> Option<Sequence> {
    let (bits, flip, offset) = integer(weight)?;
    if bits >= 8 || offset != 1 << (bits - 1) {
        return None;
    }
    // The top bit's weight is negative: flipping it in an unsigned code subtracts half of the range.
    let sign_flip = Arg::Word(if flip == 0 { 0x8080_8080 } else { 0 });
    let exponent = 8 - bits;
    let encoding = OutputEncoding::Value { add: 0, exponent: exponent as i32 };
    let merge = |draft: &mut Draft, [moved, mask]: [Arg; 2], below: Option<SequenceRegister>| {
        let c = below.map_or(sign_flip, Arg::from);
        draft.push(Step::Lop3 { a: moved, b: mask, c, table: 0x6A })
    };
    Some(joined(weight, (PLANES_TO_TOP_BITS, OperandType::I8, encoding), exponent, merge))
}

/// The bits of a word under a mask, beside those of planes below.
fn merged(
    draft: &mut Draft,
    [moved, mask]: [Arg; 2],
    below: Option<SequenceRegister>,
) -> SequenceRegister {
    let part = draft.push(Step::And(moved, mask));
    below.map_or(part, |below| draft.push(Step::Or(below.into(), part.into())))
}

/// Bytes with a code from bit `bit` on; `merge` adds a plane's bits, which are under a mask, to those of the planes below.
fn joined(
    weight: &WeightCode,
    (template, operand, encoding): (&'static str, OperandType, OutputEncoding),
    bit: u32,
    merge: impl Fn(&mut Draft, [Arg; 2], Option<SequenceRegister>) -> SequenceRegister,
) -> Sequence {
    let planes = planes(weight.code.bits());
    let mut inputs = Vec::new();
    let mut first_word = Vec::new();
    for &(low, high) in &planes {
        first_word.push(inputs.len() as u32);
        let width = u32::from(high - low);
        let per_byte = 8 / width;
        for word in 0..UNIT / 4 / per_byte {
            let field = |byte: u32, place: u32| Field {
                at: (8 * byte + width * place) as u8,
                slice: (low, high),
                code: (4 * (per_byte * word + place) + byte) as u8,
            };
            let places = (0..4).flat_map(|byte| (0..per_byte).map(move |place| (byte, place)));
            inputs.push(places.map(|(byte, place)| field(byte, place)).collect::<Vec<_>>());
        }
    }
    let mut draft = Draft::new(inputs.len());
    let outputs = (0..UNIT / 4).map(|q| {
        let mut joined: Option<SequenceRegister> = None;
        for (&(low, high), first) in planes.iter().zip(&first_word) {
            let width = u32::from(high - low);
            let per_byte = 8 / width;
            let word = draft.input((first + q / per_byte) as usize);
            // A shift within the byte: the mask removes bits of the next byte.
            let low = u32::from(low) + bit;
            let moved = draft.shift(word, low as i32 - (width * (q % per_byte)) as i32);
            let mask = ((1u32 << width) - 1) << low;
            joined = Some(match mask {
                0xff => moved,
                _ => merge(&mut draft, [moved.into(), (mask * 0x0101_0101).into()], joined),
            });
        }
        let register = joined.unwrap_or(SequenceRegister(0));
        OutputWord { register, codes: (0..4).map(|byte| (4 * q + byte) as u8).collect() }
    });
    let outputs = outputs.collect();
    for (at, (first, &(low, high))) in first_word.iter().zip(&planes).enumerate() {
        let [plane, mask] = NAMES[planes.len() - 1][at];
        let (first, input) = (*first as usize, &draft);
        let registers: Vec<SequenceRegister> = (first..inputs.len())
            .map(|word| input.input(word))
            .take_while(|word| inputs[usize::from(word.0)][0].slice == (low, high))
            .collect();
        for register in registers {
            draft.name(register, plane);
        }
        let ones = (1u32 << (high - low)) - 1;
        draft.name((ones << (u32::from(low) + bit)) * 0x0101_0101, mask);
    }
    let (steps, names) = draft.finish();
    Sequence { template, weight: weight.clone(), operand, encoding, inputs, steps, names, outputs }
}
