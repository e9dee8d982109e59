//! A codebook of 16 numbers to 16-bit floats: byte permutations are tables of eight bytes.
//!
//! A code's low three bits select a byte of the lower and of the upper half of the book, for the low
//! and for the high bytes of the numbers; its top bit, copied over a byte, chooses between the halves.

use quantloom_dsl::Code;

use super::super::operand::Operand;
use super::super::sequence::{Draft, Field, Output, Sequence, Yield};
use super::super::step::{Register, Step};
use super::Ask;

/// Codes of a word.
const CODES: u8 = 8;
/// `a ? b : c`
const CHOOSE: u8 = 0xca;

/// The low (0) or high (1) bytes of four numbers of the book from the given one on.
fn bytes(book: &[u32], first: usize, which: u32) -> u32 {
    let byte = |at: usize| book[first + at] >> (8 * which) & 0xff;
    (0..4).fold(0, |word, at| word | byte(at) << (8 * at))
}

/// Codes of four bits whose every number is one of the operand's.
pub(super) fn book_half(ask: &Ask<'_>) -> Option<Sequence> {
    let Code::Codebook(_) = ask.weight.code else { return None };
    let half = matches!(ask.operand, Operand::Bf16 | Operand::F16);
    if !half || ask.field != 4 || ask.weight.code.bits() != 4 {
        return None;
    }
    let number = ask.operand.number();
    let exact = |code| {
        let value = ask.weight.decode(code);
        let element = number.encode(value, quantloom_dsl::format::Overflow::Special);
        (number.decode(element) == value).then_some(element)
    };
    let book: Vec<u32> = (0..16).map(exact).collect::<Option<_>>()?;
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let select = draft.push(Step::And(word.into(), 0x7777_7777.into()));
    // The top bits of codes 1, 3, 5 and 7 are those of bytes; those of the others are four lower.
    let even = draft.shl(word, 4);
    let mut outputs = Vec::new();
    for part in 0..2u8 {
        let select = draft.shr(select, 16 * u32::from(part));
        // Copies of the top bits of bytes 2p and 2p + 1 of both.
        let tops: u32 = if part == 0 { 0xd9c8 } else { 0xfbea };
        let (low, high) = (even.into(), word.into());
        let upper = draft.push(Step::Prmt { low, high, select: tops.into() });
        let mut of_bytes = |which| -> Register {
            let [below, above] = [0, 8].map(|first| {
                let (low, high) = (bytes(&book, first, which), bytes(&book, first + 4, which));
                let (low, high) = (low.into(), high.into());
                draft.push(Step::Prmt { low, high, select: select.into() })
            });
            let (a, b, c) = (upper.into(), above.into(), below.into());
            draft.push(Step::Lop3 { a, b, c, table: CHOOSE })
        };
        let (low, high) = (of_bytes(0), of_bytes(1));
        for (pair, select) in [(0, 0x5140u32), (1, 0x7362)] {
            let (low, high) = (low.into(), high.into());
            let register = draft.push(Step::Prmt { low, high, select: select.into() });
            let first = 4 * part + 2 * pair;
            outputs.push(Output { register, codes: vec![first, first + 1] });
        }
    }
    let (steps, names) = draft.finish();
    let field = |code: u8| Field { at: 4 * code, slice: (0, 4), code };
    Some(Sequence {
        template: "byte_tables",
        weight: ask.weight.clone(),
        operand: ask.operand,
        yields: Yield::Value { add: 0, exponent: 0 },
        inputs: vec![(0..CODES).map(field).collect()],
        steps,
        names,
        outputs,
    })
}
