//! Integer codes as subnormal floats: the fewest steps, and of 16 bits a scale costs none.
//!
//! A 16-bit float whose exponent field is 0 or 1 is linear in its bits: bits * 2^e, with e the exponent of the
//! smallest subnormal number, -133 in bf16 and -24 in f16. In bf16 these are all bits below 0x0100, in f16 below
//! 0x0800. So a code that a mask leaves in the low byte of a half is a number, wherever the byte has it, and one
//! multiplication with a power of two and an addition make its value. The largest power of two leaves values
//! 2^-6 of their size in bf16 (2^(127 - 133)) and 2^-9 in f16 (2^(15 - 24)): a scale has the rest.
//!
//! Of a word of eight 4-bit codes: one shift, four masks, four fused multiplications.
//!
//! In e4m3 the bits below 0x10 are linear, in units of 2^-9: a magnitude up to 15 is its own number, beside a sign.

use quantloom_dsl::WeightCode;
use quantloom_dsl::format::{BF16, F16, FloatFormat};

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::Step;
use super::to_16bit::{AND_XOR, exact, pair, sequence};
use super::{TemplateRequest, both_halves, integer};
use crate::target::Half;

/// Name of the sequence from 4-bit integers to e4m3.
pub const SIGNED_NIBBLES: &str = "signed_nibbles";

/// Bits of a half that are linear in both formats.
const LINEAR: u32 = 8;

/// `(w >> j & mask) * factor - offset`, in units of the factor times the smallest subnormal number.
pub(super) fn subnormal_half(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (bits, flip, offset) = integer(request.weight)?;
    let (format, half) = match request.operand {
        OperandType::Bf16 => (BF16, Half::Bf16),
        OperandType::F16 => (F16, Half::F16),
        _ => return None,
    };
    if bits > request.field || request.field > LINEAR {
        return None;
    }
    let most = format.max().log2().floor() as i32;
    let exponent = most + 1 - format.bias() - i32::from(format.mantissa_bits);
    let (offset, add) = split_offset(request.weight, offset, (format, exponent))?;
    let base = exact(format, -f64::from(offset) * 2f64.powi(exponent))?;
    let mask = (1u32 << bits) - 1;
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let mut shifted = word;
    let mut outputs = Vec::new();
    for j in 0..16 / request.field {
        let place = j * request.field % LINEAR;
        if place == 0 {
            shifted = draft.shr(word, j * request.field);
        }
        let (a, b) = (shifted.into(), both_halves(mask << place).into());
        let under = draft.push(match flip {
            0 => Step::And(a, b),
            _ => Step::Lop3 { a, b, c: both_halves(flip << place).into(), table: AND_XOR },
        });
        let factor = both_halves(exact(format, 2f64.powi(most - place as i32))?).into();
        let value = Step::Fma16(half, under.into(), factor, both_halves(base).into());
        outputs.push(pair(draft.push(value), j, request.field));
    }
    let encoding = OutputEncoding::Value { add, exponent };
    Some(sequence("subnormal_half", request, encoding, draft, outputs))
}

/// The offset that decoding subtracts, and what is left to the zero-point correction: nothing if the format has
/// the offset and all values times 2^exponent, else the weight's own offset.
fn split_offset(
    weight: &WeightCode,
    offset: i32,
    (format, exponent): (FloatFormat, i32),
) -> Option<(i32, i32)> {
    let unit = 2f64.powi(exponent);
    let fits = |value: f64| exact(format, value * unit).is_some();
    let codes = 0..1u32 << weight.code.bits();
    let mut values = codes.map(|code| weight.decode(code));
    let rest = offset - weight.offset;
    if fits(f64::from(offset)) && values.clone().all(fits) {
        return Some((offset, 0));
    }
    let own = f64::from(weight.offset);
    values.all(|value| fits(value + own)).then_some((rest, weight.offset))
}

/// 4-bit codes of the values -8 to 7 as e4m3, times 2^-9: the lower codes of all bytes are an output, and the upper
/// ones.
///
/// A code's top bit, as a mask of its byte, inverts the lower three bits where the value is negative: 7 less these.
/// The sum with 0x81 then is the sign, and the magnitude 8 less these.
pub fn signed_nibbles(weight: &WeightCode) -> Option<Sequence> {
    let (4, flip, 8) = integer(weight)? else { return None };
    // The top bit is set where the value is negative in signed codes, and where it is not in others.
    let (inverted, signs) = if flip == 0 { (EQUAL_AND, NOT_AND) } else { (UNEQUAL_AND, AND) };
    let bytes = |byte: u32| (byte * 0x0101_0101).into();
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let topped = draft.shl(word, 4);
    let lowered = draft.shr(word, 4);
    let outputs = [(topped, word, 0), (word, lowered, 4)].map(|(tops, codes, first)| {
        let tops = tops.into();
        let mask = draft.push(Step::Prmt { low: tops, high: tops, select: 0xba98.into() });
        let (a, b, c) = (codes.into(), mask.into(), bytes(0x07));
        let lower = draft.push(Step::Lop3 { a, b, c, table: inverted });
        let (a, b) = (mask.into(), bytes(0x81));
        let signed = draft.push(Step::Lop3 { a, b, c: codes.into(), table: signs });
        let register = draft.push(Step::Add(lower.into(), signed.into()));
        OutputWord { register, codes: (first..first + 4).collect() }
    });
    let field = |code: u8| Field { at: 8 * (code % 4) + code / 4 * 4, slice: (0, 4), code };
    let (steps, names) = draft.finish();
    Some(Sequence {
        template: SIGNED_NIBBLES,
        weight: weight.clone(),
        operand: OperandType::E4m3,
        encoding: OutputEncoding::Value { add: 0, exponent: -9 },
        inputs: vec![(0..8).map(field).collect()],
        steps,
        names,
        outputs: outputs.to_vec(),
    })
}

/// The table of `!(a ^ b) & c`.
const EQUAL_AND: u8 = 0x82;
/// The table of `(a ^ b) & c`.
const UNEQUAL_AND: u8 = 0x28;
/// The table of `!a & b`, whatever c is.
const NOT_AND: u8 = 0x0c;
/// The table of `a & b`, whatever c is.
const AND: u8 = 0xc0;
