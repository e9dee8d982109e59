//! Codebooks of at most 16 numbers to 16-bit floats: a byte permutation is a table of eight bytes.
//!
//! Three bits of a code select a byte of eight numbers: one permutation for the numbers' low bytes,
//! one for their high bytes. A codebook of 16 has two such halves; the code's top bit, copied to
//! all bits of a byte, selects one of them.

use quantloom_dsl::Code;

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::{SequenceRegister, Step};
use super::TemplateRequest;
use super::table::elements;

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
    let (book, encoding) =
        if half { elements(request.weight, request.operand)? } else { return None };
    let (draft, outputs) = match (bits, request.field) {
        (4, 4) => sixteen(&book),
        (1 | 2, field) if field == bits => eight(&book, field),
        (..=3, 8) => eight(&book, 8),
        _ => return None,
    };
    let (steps, names) = draft.finish();
    let field = |code: u8| Field { at: request.field as u8 * code, slice: (0, bits as u8), code };
    Some(sequence(
        request,
        encoding,
        (steps, names),
        outputs,
        (0..(32 / request.field) as u8).map(field),
    ))
}

fn sequence(
    request: &TemplateRequest<'_>,
    encoding: OutputEncoding,
    (steps, names): (Vec<Step>, Vec<(super::super::step::Arg, &'static str)>),
    outputs: Vec<OutputWord>,
    fields: impl Iterator<Item = Field>,
) -> Sequence {
    Sequence {
        template: "byte_tables",
        weight: request.weight.clone(),
        operand: request.operand,
        encoding,
        inputs: vec![fields.collect()],
        steps,
        names,
        outputs,
    }
}

/// A word of eight codes of four bits.
fn sixteen(book: &[u32]) -> (Draft, Vec<OutputWord>) {
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let select = draft.push(Step::And(word.into(), 0x7777_7777.into()));
    // The top bits of codes 1, 3, 5 and 7 are top bits of bytes; a shift by 4 does it for the
    // others.
    let even = draft.shl(word, 4);
    let mut outputs = Vec::new();
    for part in 0..2u8 {
        let select = draft.shr(select, 16 * u32::from(part));
        // Copies of the top bits of bytes 2p and 2p + 1 of both words.
        let tops: u32 = if part == 0 { 0xd9c8 } else { 0xfbea };
        let (low, high) = (even.into(), word.into());
        let upper = draft.push(Step::Prmt { low, high, select: tops.into() });
        let mut of_bytes = |which| -> SequenceRegister {
            let [below, above] =
                [0, 8].map(|first| looked_up(&mut draft, book, (first, which), select));
            let (a, b, c) = (upper.into(), above.into(), below.into());
            draft.push(Step::Lop3 { a, b, c, table: CHOOSE })
        };
        let (low, high) = (of_bytes(0), of_bytes(1));
        for (pair, select) in [(0, 0x5140u32), (1, 0x7362)] {
            let (low, high) = (low.into(), high.into());
            let register = draft.push(Step::Prmt { low, high, select: select.into() });
            let first = 4 * part + 2 * pair;
            outputs.push(OutputWord { register, codes: vec![first, first + 1] });
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
