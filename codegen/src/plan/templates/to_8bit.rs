//! Templates to 8-bit elements, four per word, and to integers of 4 bits.

use quantloom_dsl::format::{E2M1, E4M3, Number};
use quantloom_dsl::{Code, TableIntegers, WeightCode};

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::Step;
use super::{TemplateRequest, integer};

/// A code in the top bits of a signed byte, or of a signed integer of 4 bits, is its signed value times a power of two: no
/// shift to the low bits is needed, and the bits below the code are cleared.
pub(super) fn top_bits(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (bits, flip, offset) = integer(request.weight)?;
    let (field, element) = (request.field, request.operand.bits());
    let template = match request.operand {
        OperandType::I8 => "top_bits_s8",
        OperandType::I4 => "top_bits_s4",
        _ => return None,
    };
    if bits != field || !(2..=element / 2).contains(&field) {
        return None;
    }
    let each = |code: u32| (0..32 / element).fold(0, |word, at| word | code << (at * element));
    // The top bit's weight is negative: flipping it in an unsigned code subtracts half of the
    // range.
    let sign_flip = if flip == 0 { each(1 << (element - 1)) } else { 0 };
    let mask = each(((1 << bits) - 1) << (element - bits));
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let per_element = element / field;
    let outputs = (0..per_element).map(|place| {
        let topped = draft.shl(word, element - field - place * field);
        let (a, b, c) = (topped.into(), mask.into(), sign_flip.into());
        let register = draft.push(Step::Lop3 { a, b, c, table: 0x6A });
        let code = |at: u32| (at * per_element + place) as u8;
        OutputWord { register, codes: (0..32 / element).map(code).collect() }
    });
    let outputs = outputs.collect();
    let fields = (0..(32 / field) as u8)
        .map(|code| Field { at: code * field as u8, slice: (0, bits as u8), code })
        .collect();
    let (steps, names) = draft.finish();
    Some(Sequence {
        template,
        weight: request.weight.clone(),
        operand: request.operand,
        encoding: OutputEncoding::Value {
            add: offset - (1 << (bits - 1)),
            exponent: element as i32 - bits as i32,
        },
        inputs: vec![fields],
        steps,
        names,
        outputs,
    })
}

/// Magnitudes select from eight bytes; the signs have fields of their own, which a shift by four
/// moves to the top of each byte.
pub(super) fn table_e4m3(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let is_e2m1 =
        *request.weight == WeightCode { code: Code::Number(Number::Float(E2M1)), offset: 0 };
    if !is_e2m1 || request.operand != OperandType::E4m3 || request.field != 4 {
        return None;
    }
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    // e4m3 of 0, 0.5, 1, 1.5, then 2, 3, 4, 6.
    let (low, high) = (0x3C38_3000.into(), 0x4C48_4440.into());
    let signs = 0x8080_8080.into();
    let select = draft.push(Step::And(word.into(), 0x7777_7777.into()));
    let first = draft.push(Step::Prmt { low, high, select: select.into() });
    let select = draft.shr(select, 16);
    let second = draft.push(Step::Prmt { low, high, select: select.into() });
    let topped = draft.shl(word, 4);
    let signed = [(topped, first), (word, second)].map(|(signed, magnitude)| {
        draft.push(Step::Lop3 { a: signed.into(), b: signs, c: magnitude.into(), table: 0xEA })
    });
    let magnitudes = (0..8u8).map(|code| Field { at: 4 * code, slice: (0, 3), code });
    let sign = |code: u8| Field { at: 8 * (code % 4) + 3 + code / 4 * 4, slice: (3, 4), code };
    let (steps, names) = draft.finish();
    Some(Sequence {
        template: "byte_tables",
        weight: request.weight.clone(),
        operand: request.operand,
        encoding: OutputEncoding::Value { add: 0, exponent: 0 },
        inputs: vec![magnitudes.chain((0..8).map(sign)).collect()],
        steps,
        names,
        outputs: vec![
            OutputWord { register: signed[0], codes: vec![0, 1, 2, 3] },
            OutputWord { register: signed[1], codes: vec![4, 5, 6, 7] },
        ],
    })
}

/// The bits of an OCP e4m3 are those of an e4m3fnuz of half the value, except for NaN: the largest
/// magnitude in e4m3, the negative zero in e4m3fnuz.
pub(super) fn rebias_fnuz(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let is_e4m3 =
        *request.weight == WeightCode { code: Code::Number(Number::Float(E4M3)), offset: 0 };
    if !is_e4m3 || request.operand != OperandType::E4m3Fnuz || request.field != 8 {
        return None;
    }
    let (magnitudes, ones, tops) = (0x7f7f_7f7f.into(), 0x0101_0101.into(), 0x8080_8080.into());
    let mut draft = Draft::new(1);
    let word = draft.input(0).into();
    let magnitude = draft.push(Step::And(word, magnitudes)).into();
    // Sums of seven-bit numbers, which never overflow their byte: adding 1 carries a NaN's
    // magnitude into the top bit, adding 0x7f carries any magnitude but 0.
    let over = draft.push(Step::Add(magnitude, ones));
    let over = draft.shr(over, 7);
    let nan = draft.push(Step::And(over.into(), ones));
    let there = draft.push(Step::Add(magnitude, magnitudes));
    let digits = draft.push(Step::Add(magnitude, nan.into()));
    let signed = draft.push(Step::And(word, there.into()));
    let (a, b, c) = (signed.into(), tops, digits.into());
    let register = draft.push(Step::Lop3 { a, b, c, table: 0xEA });
    let fields = (0..4u8).map(|code| Field { at: 8 * code, slice: (0, 8), code }).collect();
    let (steps, names) = draft.finish();
    Some(Sequence {
        template: "rebias",
        weight: request.weight.clone(),
        operand: request.operand,
        encoding: OutputEncoding::Value {
            add: 0,
            exponent: request.operand.exponent(Number::Float(E4M3)),
        },
        inputs: vec![fields],
        steps,
        names,
        outputs: vec![OutputWord { register, codes: vec![0, 1, 2, 3] }],
    })
}

/// Small integers times a power of two, of codes of at most 4 bits in bytes: a table of bytes.
pub(super) fn table_u8(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let TemplateRequest { weight, field, operand } = *request;
    if operand != OperandType::U8 || field != 8 || weight.offset != 0 {
        return None;
    }
    let TableIntegers { table, offset, exponent } = TableIntegers::of(&weight.code)?;
    let mut draft = Draft::new(1);
    let indices = draft.input(0).into();
    let register = draft.push(Step::LookupBytes { table, indices });
    let (steps, names) = draft.finish();
    let slice = (0, weight.code.bits() as u8);
    let field = |code: u8| Field { at: 8 * code, slice, code };
    Some(Sequence {
        template: "byte_tables",
        weight: weight.clone(),
        operand,
        encoding: OutputEncoding::Value { add: i32::from(offset) >> exponent, exponent },
        inputs: vec![(0..4).map(field).collect()],
        steps,
        names,
        outputs: vec![OutputWord { register, codes: (0..4).collect() }],
    })
}
