//! Integer codes as subnormal 16-bit floats: the fewest steps, and a scale costs none.
//!
//! A 16-bit float whose exponent field is 0 or 1 is linear in its bits: bits * 2^e, with e the exponent of the
//! smallest subnormal number, -133 in bf16 and -24 in f16. In bf16 these are all bits below 0x0100, in f16 below
//! 0x0800. So a code that a mask leaves in the low byte of a half is a number, wherever the byte has it, and one
//! multiplication with a power of two and an addition make its value. The largest power of two leaves values
//! 2^-6 of their size in bf16 (2^(127 - 133)) and 2^-9 in f16 (2^(15 - 24)): a scale has the rest.
//!
//! Of a word of eight 4-bit codes: one shift, four masks, four fused multiplications.

use quantloom_dsl::WeightCode;
use quantloom_dsl::format::{BF16, F16, FloatFormat};

use super::super::operand::Operand;
use super::super::sequence::{Draft, OutputEncoding, Sequence};
use super::super::step::{Half, Step};
use super::to_16bit::{AND_XOR, exact, pair, sequence};
use super::{TemplateRequest, both_halves, integer};

/// Bits of a half that are linear in both formats.
const LINEAR: u32 = 8;

/// `(w >> j & mask) * factor - offset`, in units of the factor times the smallest subnormal number.
pub(super) fn subnormal_half(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (bits, flip, offset) = integer(request.weight)?;
    let (format, half) = match request.operand {
        Operand::Bf16 => (BF16, Half::Bf16),
        Operand::F16 => (F16, Half::F16),
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
