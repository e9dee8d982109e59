//! Templates to f32, one element per word, from codes in bytes.

use quantloom_dsl::format::{F32, Number, Variant};
use quantloom_dsl::{Code, WeightCode};

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::{SequenceRegister, Step};
use super::{TemplateRequest, integer};

const BYTES: u32 = 4;

/// The sequence that applies `decode` to each byte of one word.
fn each_byte(
    template: &'static str,
    weight: &WeightCode,
    encoding: OutputEncoding,
    mut decode: impl FnMut(&mut Draft, SequenceRegister, u32) -> SequenceRegister,
) -> Sequence {
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let outputs = (0..BYTES).map(|byte| {
        let register = decode(&mut draft, word, byte);
        OutputWord { register, codes: vec![byte as u8] }
    });
    let outputs = outputs.collect();
    let (steps, names) = draft.finish();
    let slice = (0, weight.code.bits() as u8);
    let field = |code: u8| Field { at: 8 * code, slice, code };
    Sequence {
        template,
        weight: weight.clone(),
        operand: OperandType::F32,
        encoding,
        inputs: vec![(0..BYTES as u8).map(field).collect()],
        steps,
        names,
        outputs,
    }
}

/// Byte `byte` of a word, zero-extended.
fn byte_of(draft: &mut Draft, word: SequenceRegister, byte: u32) -> SequenceRegister {
    let moved = draft.shr(word, 8 * byte);
    draft.name(0xff, "byte");
    if byte == 3 { moved } else { draft.push(Step::And(moved.into(), 0xff.into())) }
}

fn makes_f32(request: &TemplateRequest<'_>) -> bool {
    request.operand == OperandType::F32 && request.field == 8
}

/// The code, converted; the offset is left to the zero-point correction.
pub(super) fn convert_f32(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (_, flip, offset) = integer(request.weight)?;
    if !makes_f32(request) || flip != 0 {
        return None;
    }
    let encoding = OutputEncoding::Value { add: offset, exponent: 0 };
    Some(each_byte("convert_f32", request.weight, encoding, |draft, word, byte| {
        let code = byte_of(draft, word, byte);
        draft.push(Step::IntToF32(code.into()))
    }))
}

/// The magnitude in f32's exponent and mantissa fields, plus the difference of the biases: y. This
/// is the value if the code is normal. For a subnormal code, y has an implicit one and is half as
/// large as it should be: with the smallest normal value c, the value is `y + (y - c)`, and for all
/// codes `y + min(y - c, 0)`. No intermediate f32 is subnormal; subnormals cost some CPUs a hundred
/// cycles. Codes for NaN and infinity are recognised by their bits.
pub(super) fn rebase_f32(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let Code::Number(Number::Float(format)) = request.weight.code else { return None };
    if !makes_f32(request) || request.weight.offset != 0 {
        return None;
    }
    let bits = format.bits();
    let place = u32::from(F32.mantissa_bits - format.mantissa_bits);
    let ones = ((1u32 << (bits - 1)) - 1) << place;
    let exponents = ones & !((1 << F32.mantissa_bits) - 1);
    let bias = ((F32.bias() - format.bias()) as u32) << F32.mantissa_bits;
    let least = (-(2f64.powi(1 - format.bias())) as f32).to_bits();
    let top = 0x8000_0000u32;
    let encoding = OutputEncoding::Value { add: 0, exponent: 0 };
    Some(each_byte("rebase_f32", request.weight, encoding, |draft, word, byte| {
        // The code in the word's top bits; the bits below it belong to other codes.
        let code = draft.shl(word, 32 - 8 * byte - bits);
        let sign = draft.push(Step::And(code.into(), top.into()));
        let lowered = draft.shr(code, 32 - bits - place);
        let magnitude = draft.push(Step::And(lowered.into(), ones.into()));
        let special = match format.variant {
            Variant::Finite => None,
            Variant::Fn => Some(draft.push(Step::Equal(magnitude.into(), ones.into()))),
            Variant::Fnuz => {
                let whole = draft.push(Step::Or(magnitude.into(), sign.into()));
                Some(draft.push(Step::Equal(whole.into(), top.into())))
            }
            Variant::Ieee => {
                let exponent = draft.push(Step::And(magnitude.into(), exponents.into()));
                let largest = draft.push(Step::Equal(exponent.into(), exponents.into()));
                draft.name(0x7f80_0000, "infinity");
                // The exponent of infinity; NaN has a nonzero mantissa.
                Some(draft.push(Step::And(largest.into(), 0x7f80_0000.into())))
            }
        };
        let normal = draft.push(Step::Add(magnitude.into(), bias.into()));
        let over = draft.push(Step::AddF32(normal.into(), least.into()));
        let under = draft.push(Step::Sar(over.into(), 31));
        let lack = draft.push(Step::And(over.into(), under.into()));
        let value = draft.push(Step::AddF32(normal.into(), lack.into()));
        let mut value = draft.push(Step::Or(value.into(), sign.into()));
        if let Some(special) = special {
            value = draft.push(Step::Or(value.into(), special.into()));
        }
        for (register, name) in [
            (code, "code"),
            (sign, "sign"),
            (magnitude, "magnitude"),
            (normal, "normal"),
            (over, "over"),
        ] {
            draft.name(register, name);
        }
        for (constant, name) in [(top, "top"), (ones, "ones"), (bias, "bias"), (least, "least")] {
            draft.name(constant, name);
        }
        draft.name(exponents, "exponents");
        value
    }))
}

/// A table of the value of every code.
pub(super) fn table_f32(request: &TemplateRequest<'_>) -> Option<Sequence> {
    if !makes_f32(request) {
        return None;
    }
    // A table of 16 uses four bits of its index: the bits above a narrower code must be 0, which is
    // true of bytes.
    let bits = request.weight.code.bits();
    let entries = if bits <= 4 { 16u32 } else { 256 };
    let value = |code| if code >> bits == 0 { request.weight.decode(code) as f32 } else { 0.0 };
    let table: Vec<u32> = (0..entries).map(|code| value(code).to_bits()).collect();
    let encoding = OutputEncoding::Value { add: 0, exponent: 0 };
    Some(each_byte("table_f32", request.weight, encoding, |draft, word, byte| {
        let index =
            if entries == 16 { draft.shr(word, 8 * byte) } else { byte_of(draft, word, byte) };
        draft.push(Step::LookupF32 { table: table.clone(), index: index.into() })
    }))
}
