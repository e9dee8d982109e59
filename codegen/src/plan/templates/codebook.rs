//! Codebooks of at most 16 numbers to 16-bit floats: a byte permutation is a table of eight bytes.
//!
//! Three bits of a code select a byte of eight numbers: one permutation for the numbers' low bytes,
//! one for their high bytes. A codebook of 16 has two such halves; the code's top bit, copied to
//! all bits of a byte, selects one of them.
//!
//! Integers that fit a byte, times a power of two, have one table, of bytes: a permutation puts two of them under the exponent of 1024 in
//! f16, or leaves them as they are in bf16, where a byte is a subnormal number or one of the next exponent
//! ([`super::subnormal`]).

use quantloom_dsl::format::{BF16, F16};
use quantloom_dsl::{Code, WeightCode};

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::{SequenceRegister, Step};
use super::table::{elements, ends};
use super::to_16bit::exact;
use super::{TemplateRequest, both_halves};
use crate::target::Half;

/// `a ? b : c`
const CHOOSE: u8 = 0xca;

/// The low (`which` = 0) or high (1) bytes of four numbers of the codebook, starting at `first`; 0
/// after the last number.
fn bytes(book: &[u32], first: usize, which: u32) -> u32 {
    let byte = |at: usize| book.get(first + at).map_or(0, |number| number >> (8 * which) & 0xff);
    (0..4).fold(0, |word, at| word | byte(at) << (8 * at))
}

/// Codes of at most four bits.
pub(super) fn book_half(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let Code::Codebook(_) = request.weight.code else { return None };
    let half = matches!(request.operand, OperandType::Bf16 | OperandType::F16);
    let bits = request.weight.code.bits();
    if request.operand == OperandType::F16
        && let Some(sequence) = integers(request)
    {
        return Some(sequence);
    }
    let (book, encoding) =
        if half { elements(request.weight, request.operand)? } else { return None };
    let (draft, outputs) = match (bits, request.field) {
        (4, 4) => sixteen(&book),
        (1 | 2, field) if field == bits => eight(&book, field),
        (..=3, 8) => eight(&book, 8),
        _ => return None,
    };
    Some(sequence("byte_tables", request, encoding, (draft, outputs)))
}

/// Codes of four bits that stand for integers of a byte, times a power of two, as subnormal numbers.
pub(super) fn integers_bf16(request: &TemplateRequest<'_>) -> Option<Sequence> {
    integers(request).filter(|sequence| sequence.operand == OperandType::Bf16)
}

/// Codes of four bits that stand for integers of a byte, times a power of two.
fn integers(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let Code::Codebook(_) = request.weight.code else { return None };
    let (format, half) = match request.operand {
        OperandType::Bf16 => (BF16, Half::Bf16),
        OperandType::F16 => (F16, Half::F16),
        _ => return None,
    };
    if request.weight.code.bits() != 4 || request.field != 4 {
        return None;
    }
    let Bytes { book, offset, unit } = Bytes::of(request.weight)?;
    // What a half is whose low byte is 0, a byte's exponent, and the upper byte.
    let (zero, least, upper) = match half {
        Half::Bf16 => (0.0, -133, 0u32),
        Half::F16 => (1024.0, 0, 0x64),
    };
    let most = format.max().log2().floor() as i32;
    let factor = (unit - least).min(most);
    let exponent = factor + least - unit;
    let of_bytes = 2f64.powi(factor + least);
    let base = exact(format, -(zero + f64::from(offset)) * of_bytes)?;
    let factor = exact(format, 2f64.powi(factor))?;
    let [factor, base] = [factor, base].map(|number| both_halves(number).into());
    let mut draft = Draft::new(1);
    let mut outputs = Vec::new();
    for part in Part::all(&mut draft) {
        let bytes = part.bytes(&mut draft, &book, 0);
        for (pair, select) in [(0, 0x4140u32), (1, 0x4342)] {
            let (low, high) = (bytes.into(), upper.into());
            let under = draft.push(Step::Prmt { low, high, select: select.into() });
            let register = draft.push(Step::Fma16(half, under.into(), factor, base));
            outputs.push(part.output(register, pair));
        }
    }
    let encoding = OutputEncoding::Value { add: 0, exponent };
    let template = if half == Half::F16 { "byte_tables" } else { "subnormal_half" };
    Some(sequence(template, request, encoding, (draft, outputs)))
}

/// The values of a codebook as bytes less an offset, times `2^unit`.
struct Bytes {
    book: Vec<u32>,
    offset: i32,
    unit: i32,
}

impl Bytes {
    fn of(weight: &WeightCode) -> Option<Self> {
        let values = (0..1u32 << weight.code.bits()).map(|code| weight.decode(code));
        let values: Vec<f64> = values.collect();
        let sizes = values.iter().map(|value| value.abs()).filter(|&size| size > 0.0);
        let unit = sizes.map(|size| ends(size).1).min()?;
        let integers = values.iter().map(|value| value * 2f64.powi(-unit));
        let integers = integers.map(|value| (value.abs() < 256.0).then_some(value as i32));
        let integers: Vec<i32> = integers.collect::<Option<_>>()?;
        let (least, most) = (*integers.iter().min()?, *integers.iter().max()?);
        // Every multiple of 128 in bf16 is exact.
        let offset = if least >= -128 && most < 128 { 128 } else { -least };
        let byte = |value: i32| u8::try_from(value + offset).ok().map(u32::from);
        let book = integers.into_iter().map(byte).collect::<Option<_>>()?;
        Some(Self { book, offset, unit })
    }
}

fn sequence(
    template: &'static str,
    request: &TemplateRequest<'_>,
    encoding: OutputEncoding,
    (draft, outputs): (Draft, Vec<OutputWord>),
) -> Sequence {
    let (field, bits) = (request.field as u8, request.weight.code.bits() as u8);
    let fields = (0..32 / field).map(|code| Field { at: field * code, slice: (0, bits), code });
    let (steps, names) = draft.finish();
    Sequence {
        template,
        weight: request.weight.clone(),
        operand: request.operand,
        encoding,
        inputs: vec![fields.collect()],
        steps,
        names,
        outputs,
    }
}

/// Four codes of four bits, half a word of them.
struct Part {
    /// Their low three bits.
    select: SequenceRegister,
    /// All bits of a byte for each code: its top bit.
    upper: SequenceRegister,
    number: u8,
}

impl Part {
    /// Both halves of a word.
    fn all(draft: &mut Draft) -> [Self; 2] {
        let word = draft.input(0);
        let select = draft.push(Step::And(word.into(), 0x7777_7777.into()));
        // The top bits of codes 1, 3, 5 and 7 are top bits of bytes; a shift by 4 does it for the
        // others.
        let even = draft.shl(word, 4);
        [(0, 0xd9c8u32), (1, 0xfbea)].map(|(number, tops)| {
            let select = draft.shr(select, 16 * u32::from(number));
            // Copies of the top bits of two bytes of both words.
            let (low, high) = (even.into(), word.into());
            let upper = draft.push(Step::Prmt { low, high, select: tops.into() });
            Self { select, upper, number }
        })
    }

    /// The low (`which` = 0) or high (1) bytes of the four numbers.
    fn bytes(&self, draft: &mut Draft, book: &[u32], which: u32) -> SequenceRegister {
        let [below, above] =
            [0, 8].map(|first| looked_up(draft, book, (first, which), self.select));
        let (a, b, c) = (self.upper.into(), above.into(), below.into());
        draft.push(Step::Lop3 { a, b, c, table: CHOOSE })
    }

    /// The register of its first or second pair.
    fn output(&self, register: SequenceRegister, pair: u8) -> OutputWord {
        let first = 4 * self.number + 2 * pair;
        OutputWord { register, codes: vec![first, first + 1] }
    }
}

/// A word of eight codes of four bits.
fn sixteen(book: &[u32]) -> (Draft, Vec<OutputWord>) {
    let mut draft = Draft::new(1);
    let mut outputs = Vec::new();
    for part in Part::all(&mut draft) {
        let [low, high] = [0, 1].map(|which| part.bytes(&mut draft, book, which).into());
        for (pair, select) in [(0, 0x5140u32), (1, 0x7362)] {
            let register = draft.push(Step::Prmt { low, high, select: select.into() });
            outputs.push(part.output(register, pair));
        }
    }
    (draft, outputs)
}

/// The low or high bytes of four numbers, selected by four selectors from eight numbers from
/// `first`.
fn looked_up(
    draft: &mut Draft,
    book: &[u32],
    (first, which): (usize, u32),
    select: SequenceRegister,
) -> SequenceRegister {
    let (low, high) = (bytes(book, first, which).into(), bytes(book, first + 4, which).into());
    draft.push(Step::Prmt { low, high, select: select.into() })
}

/// A word of codes of at most three bits, in fields of 1, 2 or 8 bits.
fn eight(book: &[u32], field: u32) -> (Draft, Vec<OutputWord>) {
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let mut outputs = Vec::new();
    if field == 8 {
        // Bytes 0 and 2 of the word ORed with itself shifted by 4 hold all codes as nibbles.
        let lower = draft.shr(word, 4);
        let nibbles = draft.push(Step::Or(word.into(), lower.into()));
        let select = byte_pair(&mut draft, nibbles, 0x20);
        let pairs = [(0x5140, [0, 1]), (0x7362, [2, 3])];
        numbers(&mut draft, book, select, pairs, &mut outputs);
        return (draft, outputs);
    }
    // A nibble holds several codes; each round decodes one code of each nibble. The two codes of an
    // output are half a word apart.
    let of_nibble = 4 / field;
    let mask = ((1u32 << field) - 1) * 0x1111_1111;
    for place in 0..of_nibble {
        let moved = draft.shr(word, field * place);
        let nibbles = draft.push(Step::And(moved.into(), mask.into()));
        for (byte, select) in [(0, 0x20), (1, 0x31)] {
            let select = byte_pair(&mut draft, nibbles, select);
            let code = |nibble: u32| (nibble * of_nibble + place) as u8;
            let first = 2 * byte;
            let pairs = [
                (0x6240, [code(first), code(first + 4)]),
                (0x7351, [code(first + 1), code(first + 5)]),
            ];
            numbers(&mut draft, book, select, pairs, &mut outputs);
        }
    }
    (draft, outputs)
}

/// Two bytes of a word, made adjacent.
fn byte_pair(draft: &mut Draft, word: SequenceRegister, select: u32) -> SequenceRegister {
    let (low, high) = (word.into(), word.into());
    draft.push(Step::Prmt { low, high, select: select.into() })
}

/// The numbers of four selectors, two in each register: one permutation for the low bytes, one for
/// the high bytes, one to interleave both for each pair of codes.
fn numbers(
    draft: &mut Draft,
    book: &[u32],
    select: SequenceRegister,
    pairs: [(u32, [u8; 2]); 2],
    outputs: &mut Vec<OutputWord>,
) {
    let [low, high] = [0, 1].map(|which| looked_up(draft, book, (0, which), select));
    for (select, codes) in pairs {
        let (low, high) = (low.into(), high.into());
        let register = draft.push(Step::Prmt { low, high, select: select.into() });
        outputs.push(OutputWord { register, codes: codes.to_vec() });
    }
}
