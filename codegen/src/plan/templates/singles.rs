//! Templates to f32, one element a word, from codes that lie one a byte.

use quantloom_dsl::format::{F32, Number, Variant};
use quantloom_dsl::{Code, Weight};

use super::super::operand::Operand;
use super::super::sequence::{Draft, Field, Output, Sequence, Yield};
use super::super::step::{Register, Step};
use super::{Ask, integer};

const BYTES: u32 = 4;

/// The sequence that does the same to each byte of one word.
fn each_byte(
    template: &'static str,
    weight: &Weight,
    yields: Yield,
    mut decode: impl FnMut(&mut Draft, Register, u32) -> Register,
) -> Sequence {
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let outputs = (0..BYTES).map(|byte| {
        let register = decode(&mut draft, word, byte);
        Output { register, codes: vec![byte as u8] }
    });
    let outputs = outputs.collect();
    let slice = (0, weight.code.bits() as u8);
    let field = |code: u8| Field { at: 8 * code, slice, code };
    Sequence {
        template,
        weight: weight.clone(),
        operand: Operand::F32,
        yields,
        inputs: vec![(0..BYTES as u8).map(field).collect()],
        steps: draft.steps(),
        outputs,
        lost: Vec::new(),
    }
}

/// Byte `byte` of a word, zeros above.
fn byte_of(draft: &mut Draft, word: Register, byte: u32) -> Register {
    let moved = draft.shr(word, 8 * byte);
    if byte == 3 { moved } else { draft.push(Step::And(moved.into(), 0xff.into())) }
}

fn wants_f32(ask: &Ask<'_>) -> bool {
    ask.operand == Operand::F32 && ask.field == 8
}

/// The code as it is; the offset is left to the zero point's place.
pub(super) fn convert_f32(ask: &Ask<'_>) -> Option<Sequence> {
    let (_, flip, offset) = integer(ask.weight)?;
    if !wants_f32(ask) || flip != 0 {
        return None;
    }
    let yields = Yield::Value { add: offset, exponent: 0 };
    Some(each_byte("convert_f32", ask.weight, yields, |draft, word, byte| {
        let code = byte_of(draft, word, byte);
        draft.push(Step::IntToF32(code.into()))
    }))
}

/// The magnitude under f32's exponent field, the biases' difference added: y. That is right
/// where the code is normal; a subnormal code has gained an implicit one, the smallest normal
/// value's half, and lacks a factor of two: `2 y - c` is right there, c the smallest normal value.
/// It is the smaller of the two exactly where `y < c`. No f32 on the way is subnormal: where
/// subnormals cost a processor a hundred cycles, this does not.
pub(super) fn rebase_f32(ask: &Ask<'_>) -> Option<Sequence> {
    let Code::Number(Number::Float(format)) = ask.weight.code else { return None };
    if !wants_f32(ask) || ask.weight.offset != 0 {
        return None;
    }
    let bits = format.bits();
    let place = u32::from(F32.mantissa_bits - format.mantissa_bits);
    let magnitude = ((1u32 << (bits - 1)) - 1) << place;
    let rebias = ((F32.bias() - format.bias()) as u32) << F32.mantissa_bits;
    let least = -(2f64.powi(1 - format.bias()) as f32);
    let two = 2f32.to_bits();
    let yields = Yield::Value { add: 0, exponent: 0 };
    let special = match format.variant {
        Variant::Finite => None,
        // The one magnitude that is NaN.
        Variant::Fn => Some(magnitude),
        Variant::Ieee | Variant::Fnuz => return None,
    };
    Some(each_byte("rebase_f32", ask.weight, yields, |draft, word, byte| {
        let sign = draft.shl(word, 32 - 8 * byte - bits);
        let mut sign = draft.push(Step::And(sign.into(), 0x8000_0000.into()));
        let code = draft.shift(word, place as i32 - 8 * byte as i32);
        let code = draft.push(Step::And(code.into(), magnitude.into()));
        if let Some(special) = special {
            // All ones is a NaN, whatever it is ORed to.
            let nan = draft.push(Step::Equal(code.into(), special.into()));
            sign = draft.push(Step::Or(sign.into(), nan.into()));
        }
        let normal = draft.push(Step::Add(code.into(), rebias.into()));
        let twice = Step::FmaF32(normal.into(), two.into(), least.to_bits().into());
        let subnormal = draft.push(twice);
        let value = draft.push(Step::MinF32(normal.into(), subnormal.into()));
        draft.push(Step::Or(value.into(), sign.into()))
    }))
}

/// The value of every code, looked up.
pub(super) fn table_f32(ask: &Ask<'_>) -> Option<Sequence> {
    if !wants_f32(ask) {
        return None;
    }
    // A table of 16 reads four bits of its index, so a narrower code's rest must be seen to be 0,
    // which a byte's is.
    let bits = ask.weight.code.bits();
    let entries = if bits <= 4 { 16u32 } else { 256 };
    let value = |code| if code >> bits == 0 { ask.weight.decode(code) as f32 } else { 0.0 };
    let table: Vec<u32> = (0..entries).map(|code| value(code).to_bits()).collect();
    let yields = Yield::Value { add: 0, exponent: 0 };
    Some(each_byte("table_f32", ask.weight, yields, |draft, word, byte| {
        let index =
            if entries == 16 { draft.shr(word, 8 * byte) } else { byte_of(draft, word, byte) };
        draft.push(Step::LookupF32 { table: table.clone(), index: index.into() })
    }))
}
