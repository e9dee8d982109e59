//! Floats of 4 and 6 bits that lie where a 16-bit float has their bits, as far as they go: nothing
//! is shifted that could have been stored in place.
//!
//! The native layout is ours, so the order is turned round: first the fewest instructions, then the
//! places of the codes. A code's sign belongs on the top bit of a half, its magnitude on the low end
//! of the exponent and the high end of the mantissa. Those places of a word hold two codes; others,
//! rotated by some bits, two more, as long as they do not overlap; what remains of each word is put
//! together in a word of its own, where it makes codes again. The arrangements were found by a search
//! over rotations. Where a bit of the input ends up is read off the moves, so that an arrangement
//! cannot say one thing and do another.

use quantloom_dsl::format::{FloatFormat, Number, Variant};
use quantloom_dsl::{Code, WeightCode};

use super::super::operand::Operand;
use super::super::sequence::{Draft, Field, Output, Sequence, Yield};
use super::super::step::{Half, Register, Step};
use super::halves::{AND_OR, to_size};
use super::{NOTHING, twice};

/// Bits of a word that keep their order: it is rotated to the left, and those of a mask are taken,
/// in both halves.
struct Piece {
    /// Which word; the one behind the last input is the joined one.
    word: usize,
    left: u32,
    mask: u32,
}

const fn piece(word: usize, left: u32, mask: u32) -> Piece {
    Piece { word, left, mask }
}

/// Where the pairs of a format's codes come from.
struct Arrangement {
    format: FloatFormat,
    half: Half,
    /// Input words.
    words: usize,
    /// A further word out of them; a piece covers those before it.
    joined: &'static [Piece],
    /// The operand's registers, in order.
    registers: &'static [&'static [Piece]],
}

const E2M1: u32 = 0x81c0;
const E3M2: u32 = 0x83e0;
const E3M2_F16: u32 = 0x9f00;
const E2M3: u32 = 0x81f0;
/// Of e2m3, without the sign.
const MAGNITUDE: u32 = 0x01f0;
const SIGN: u32 = 0x8000;

const fn finite(exponent_bits: u8, mantissa_bits: u8) -> FloatFormat {
    FloatFormat::new(exponent_bits, mantissa_bits, Variant::Finite)
}

const ARRANGEMENTS: &[Arrangement] = &[
    Arrangement {
        format: finite(2, 1),
        half: Half::Bf16,
        words: 2,
        joined: &[piece(0, 2, 0x3060), piece(1, 4, 0xc180)],
        registers: &[
            &[piece(0, 0, E2M1)],
            &[piece(0, 6, E2M1)],
            &[piece(0, 10, E2M1)],
            &[piece(1, 0, E2M1)],
            &[piece(1, 6, E2M1)],
            &[piece(1, 10, E2M1)],
            &[piece(2, 0, E2M1)],
            &[piece(2, 10, E2M1)],
        ],
    },
    Arrangement {
        format: finite(3, 2),
        half: Half::Bf16,
        words: 3,
        joined: &[piece(0, 4, 0x8007), piece(1, 8, 0x0078), piece(2, 12, 0x0780)],
        registers: &[
            &[piece(0, 0, E3M2)],
            &[piece(0, 5, E3M2)],
            &[piece(1, 0, E3M2)],
            &[piece(1, 5, E3M2)],
            &[piece(2, 0, E3M2)],
            &[piece(2, 5, E3M2)],
            &[piece(3, 0, E3M2)],
            &[piece(3, 5, E3M2)],
        ],
    },
    Arrangement {
        format: finite(3, 2),
        half: Half::F16,
        words: 3,
        joined: &[piece(0, 2, 0x8181), piece(1, 4, 0x0606), piece(2, 6, 0x1818)],
        registers: &[
            &[piece(0, 0, E3M2_F16)],
            &[piece(0, 8, E3M2_F16)],
            &[piece(1, 0, E3M2_F16)],
            &[piece(1, 8, E3M2_F16)],
            &[piece(2, 0, E3M2_F16)],
            &[piece(2, 8, E3M2_F16)],
            &[piece(3, 0, E3M2_F16)],
            &[piece(3, 8, E3M2_F16)],
        ],
    },
    // The places overlap in any two rotations: signs come apart from magnitudes.
    Arrangement {
        format: finite(2, 3),
        half: Half::Bf16,
        words: 3,
        joined: &[],
        registers: &[
            &[piece(0, 0, E2M3)],
            &[piece(0, 26, MAGNITUDE), piece(0, 6, SIGN)],
            &[piece(1, 0, E2M3)],
            &[piece(1, 26, MAGNITUDE), piece(1, 6, SIGN)],
            &[piece(2, 0, E2M3)],
            &[piece(2, 26, MAGNITUDE), piece(2, 12, SIGN)],
            &[piece(0, 4, 0x00f0), piece(2, 6, 0x8100)],
            &[piece(1, 4, 0x00f0), piece(2, 14, SIGN), piece(2, 8, 0x0100)],
        ],
    },
];

/// Name of the template.
pub const PLACED_HALF: &str = "placed_half";

/// The sequence for codes that may lie anywhere in the words of a unit, if there is an arrangement.
pub fn placed_half(weight: &WeightCode, operand: Operand) -> Option<Sequence> {
    let Code::Number(Number::Float(format)) = weight.code else { return None };
    let half = match operand {
        Operand::Bf16 => Half::Bf16,
        Operand::F16 => Half::F16,
        _ => return None,
    };
    let found = |row: &&Arrangement| row.format == format && row.half == half;
    let arrangement = ARRANGEMENTS.iter().find(found).filter(|_| weight.offset == 0)?;
    let mut draft = Draft::new(arrangement.words);
    let mut words: Vec<Register> = (0..arrangement.words).map(|word| draft.input(word)).collect();
    if let [first, others @ ..] = arrangement.joined {
        let mut joined = first.moved(&mut draft, &words);
        for piece in others {
            let (a, b) = (piece.moved(&mut draft, &words).into(), twice(piece.mask).into());
            joined = draft.push(Step::Lop3 { a, b, c: joined.into(), table: WHERE });
        }
        words.push(joined);
    }
    let (factor, exponent) = to_size(format, half)?;
    let mut outputs = Vec::new();
    for (register, pieces) in arrangement.registers.iter().enumerate() {
        let mut value: Option<Register> = None;
        for piece in *pieces {
            let (a, b) = (piece.moved(&mut draft, &words).into(), twice(piece.mask).into());
            value = Some(draft.push(match value {
                None => Step::And(a, b),
                Some(before) => Step::Lop3 { a, b, c: before.into(), table: AND_OR },
            }));
        }
        let mut value = value?;
        if let Some(factor) = factor {
            let (factor, zero) = (factor.into(), NOTHING.into());
            value = draft.push(Step::Fma16(half, value.into(), factor, zero));
        }
        let first = 2 * register as u8;
        outputs.push(Output { register: value, codes: vec![first, first + 1] });
    }
    let (steps, names) = draft.finish();
    Some(Sequence {
        template: PLACED_HALF,
        weight: weight.clone(),
        operand,
        yields: Yield::Value { add: 0, exponent },
        inputs: arrangement.places(),
        steps,
        names,
        outputs,
    })
}

/// `b ? a : c`
const WHERE: u8 = 0xe2;

impl Piece {
    /// The word, rotated: by a shift where no bit of the mask comes round.
    fn moved(&self, draft: &mut Draft, words: &[Register]) -> Register {
        let (word, right) = (words[self.word], 32 - self.left);
        let mask = twice(self.mask);
        if self.left <= mask.trailing_zeros() {
            draft.shl(word, self.left)
        } else if right <= mask.leading_zeros() {
            draft.shr(word, right)
        } else {
            draft.push(Step::Rotl(word.into(), self.left as u8))
        }
    }

    /// The bit of the word that becomes this one, if it is of the mask.
    fn source(&self, bit: u32) -> Option<u32> {
        (twice(self.mask) >> bit & 1 == 1).then(|| (bit + 32 - self.left) % 32)
    }
}

impl Arrangement {
    /// What lies in each input word: each bit of a register, traced back.
    fn places(&self) -> Vec<Vec<Field>> {
        let mut words = vec![Vec::<Field>::new(); self.words];
        for (register, pieces) in self.registers.iter().enumerate() {
            for half in 0..2 {
                let code = (2 * register + half) as u8;
                let bits = 16 * half as u32..16 * (half as u32 + 1);
                // From below, the bits that belong to a float are those of its code.
                let sources = bits.filter_map(|bit| pieces.iter().find_map(|p| self.trace(p, bit)));
                for (bit, (word, at)) in (0u8..).zip(sources) {
                    match words[word].last_mut() {
                        Some(last) if last.continues(code, bit, at) => last.slice.1 += 1,
                        _ => words[word].push(Field { at, slice: (bit, bit + 1), code }),
                    }
                }
            }
        }
        words
    }

    /// The input word and its bit that a piece moves to this bit.
    fn trace(&self, piece: &Piece, bit: u32) -> Option<(usize, u8)> {
        let at = piece.source(bit)?;
        if piece.word < self.words {
            return Some((piece.word, at as u8));
        }
        self.joined.iter().rev().find_map(|piece| self.trace(piece, at))
    }
}

impl Field {
    /// Whether a bit of a code is the one above this field's, in the code and in the word.
    fn continues(&self, code: u8, bit: u8, at: u8) -> bool {
        self.code == code && self.slice.1 == bit && self.at + (bit - self.slice.0) == at
    }
}
