//! Floats of 4 and 6 bits to 16-bit floats, with their bits stored where the 16-bit float has them:
//! as few bits as possible are moved.
//!
//! The native layout is ours, so it can follow from the fewest instructions. A code's sign belongs
//! in the top bit of a half, its magnitude in the low bits of the exponent and the high bits of the
//! mantissa. These positions of a word hold two codes; the same positions after a rotation hold two
//! more, if they do not overlap. The remaining bits of each word are merged into one more word,
//! which holds codes in the same way. A search over rotations has found the arrangements. The input
//! layout is computed from an arrangement by tracing each bit back, so that both always agree.

use quantloom_dsl::format::{FloatFormat, Number, Variant};
use quantloom_dsl::{Code, WeightCode};

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::{SequenceRegister, Step};
use super::to_16bit::{AND_OR, restoring_factor};
use super::{NEGATIVE_ZEROS, both_halves};
use crate::target::Half;

/// Some bits of a word: it is rotated left, and a mask selects bits of both halves.
struct RotatedBits {
    /// Number of the input word; the number after the last one means the merged word.
    word: usize,
    /// Rotation to the left, in bits.
    left: u32,
    /// Selected bits of a half.
    mask: u32,
}

const fn rotated(word: usize, left: u32, mask: u32) -> RotatedBits {
    RotatedBits { word, left, mask }
}

/// The positions of a format's codes in the input words, and the steps that decode them.
struct Arrangement {
    format: FloatFormat,
    half: Half,
    /// Input words.
    words: usize,
    /// The merged word: a later part overwrites earlier ones.
    merged: &'static [RotatedBits],
    /// The output registers in order, each the OR of its parts.
    registers: &'static [&'static [RotatedBits]],
}

const E2M1: u32 = 0x81c0;
const E2M1_F16: u32 = 0x8e00;
const E3M2: u32 = 0x83e0;
const E3M2_F16: u32 = 0x9f00;
const E2M3: u32 = 0x81f0;
/// The magnitudes of e2m3, and of e2m1 in f16.
const MAGNITUDE: u32 = 0x01f0;
const MAGNITUDE_F16: u32 = 0x0e00;
const SIGN: u32 = 0x8000;

const fn finite(exponent_bits: u8, mantissa_bits: u8) -> FloatFormat {
    FloatFormat::new(exponent_bits, mantissa_bits, Variant::Finite)
}

const ARRANGEMENTS: &[Arrangement] = &[
    Arrangement {
        format: finite(2, 1),
        half: Half::Bf16,
        words: 2,
        merged: &[rotated(0, 2, 0x3060), rotated(1, 4, 0xc180)],
        registers: &[
            &[rotated(0, 0, E2M1)],
            &[rotated(0, 6, E2M1)],
            &[rotated(0, 10, E2M1)],
            &[rotated(1, 0, E2M1)],
            &[rotated(1, 6, E2M1)],
            &[rotated(1, 10, E2M1)],
            &[rotated(2, 0, E2M1)],
            &[rotated(2, 10, E2M1)],
        ],
    },
    // No three rotations are without overlap: two signs are rotated separately.
    Arrangement {
        format: finite(2, 1),
        half: Half::F16,
        words: 1,
        merged: &[],
        registers: &[
            &[rotated(0, 0, E2M1_F16)],
            &[rotated(0, 3, E2M1_F16)],
            &[rotated(0, 6, MAGNITUDE_F16), rotated(0, 1, SIGN)],
            &[rotated(0, 9, MAGNITUDE_F16), rotated(0, 2, SIGN)],
        ],
    },
    Arrangement {
        format: finite(3, 2),
        half: Half::Bf16,
        words: 3,
        merged: &[rotated(0, 4, 0x8007), rotated(1, 8, 0x0078), rotated(2, 12, 0x0780)],
        registers: &[
            &[rotated(0, 0, E3M2)],
            &[rotated(0, 5, E3M2)],
            &[rotated(1, 0, E3M2)],
            &[rotated(1, 5, E3M2)],
            &[rotated(2, 0, E3M2)],
            &[rotated(2, 5, E3M2)],
            &[rotated(3, 0, E3M2)],
            &[rotated(3, 5, E3M2)],
        ],
    },
    Arrangement {
        format: finite(3, 2),
        half: Half::F16,
        words: 3,
        merged: &[rotated(0, 2, 0x8181), rotated(1, 4, 0x0606), rotated(2, 6, 0x1818)],
        registers: &[
            &[rotated(0, 0, E3M2_F16)],
            &[rotated(0, 8, E3M2_F16)],
            &[rotated(1, 0, E3M2_F16)],
            &[rotated(1, 8, E3M2_F16)],
            &[rotated(2, 0, E3M2_F16)],
            &[rotated(2, 8, E3M2_F16)],
            &[rotated(3, 0, E3M2_F16)],
            &[rotated(3, 8, E3M2_F16)],
        ],
    },
    // The positions overlap for any two rotations: signs and magnitudes are rotated separately.
    Arrangement {
        format: finite(2, 3),
        half: Half::Bf16,
        words: 3,
        merged: &[],
        registers: &[
            &[rotated(0, 0, E2M3)],
            &[rotated(0, 26, MAGNITUDE), rotated(0, 6, SIGN)],
            &[rotated(1, 0, E2M3)],
            &[rotated(1, 26, MAGNITUDE), rotated(1, 6, SIGN)],
            &[rotated(2, 0, E2M3)],
            &[rotated(2, 26, MAGNITUDE), rotated(2, 12, SIGN)],
            &[rotated(0, 4, 0x00f0), rotated(2, 6, 0x8100)],
            &[rotated(1, 4, 0x00f0), rotated(2, 14, SIGN), rotated(2, 8, 0x0100)],
        ],
    },
];

/// Name of the template.
pub const PLACED_HALF: &str = "placed_half";

/// The sequence that decodes codes at bit positions of its own choice (its `inputs`), if the format
/// has an arrangement.
pub fn placed_half(weight: &WeightCode, operand: OperandType) -> Option<Sequence> {
    let Code::Number(Number::Float(format)) = weight.code else { return None };
    let half = match operand {
        OperandType::Bf16 => Half::Bf16,
        OperandType::F16 => Half::F16,
        _ => return None,
    };
    let found = |row: &&Arrangement| row.format == format && row.half == half;
    let arrangement = ARRANGEMENTS.iter().find(found).filter(|_| weight.offset == 0)?;
    let mut draft = Draft::new(arrangement.words);
    let mut words: Vec<SequenceRegister> =
        (0..arrangement.words).map(|word| draft.input(word)).collect();
    if let [first, others @ ..] = arrangement.merged {
        let mut merged = first.rotate(&mut draft, &words);
        for part in others {
            let (a, b) = (part.rotate(&mut draft, &words).into(), both_halves(part.mask).into());
            merged = draft.push(Step::Lop3 { a, b, c: merged.into(), table: WHERE });
        }
        words.push(merged);
    }
    let (factor, exponent) = restoring_factor(format, half)?;
    let mut outputs = Vec::new();
    for (register, parts) in arrangement.registers.iter().enumerate() {
        let mut value: Option<SequenceRegister> = None;
        for part in *parts {
            let (a, b) = (part.rotate(&mut draft, &words).into(), both_halves(part.mask).into());
            value = Some(draft.push(match value {
                None => Step::And(a, b),
                Some(before) => Step::Lop3 { a, b, c: before.into(), table: AND_OR },
            }));
        }
        let mut value = value?;
        if let Some(factor) = factor {
            let (factor, zero) = (factor.into(), NEGATIVE_ZEROS.into());
            value = draft.push(Step::Fma16(half, value.into(), factor, zero));
        }
        let first = 2 * register as u8;
        outputs.push(OutputWord { register: value, codes: vec![first, first + 1] });
    }
    let (steps, names) = draft.finish();
    Some(Sequence {
        template: PLACED_HALF,
        weight: weight.clone(),
        operand,
        encoding: OutputEncoding::Value { add: 0, exponent },
        inputs: arrangement.places(),
        steps,
        names,
        outputs,
    })
}

/// `b ? a : c`
const WHERE: u8 = 0xe2;

impl RotatedBits {
    /// The word, rotated; by a shift if no selected bit wraps around.
    fn rotate(&self, draft: &mut Draft, words: &[SequenceRegister]) -> SequenceRegister {
        let (word, right) = (words[self.word], 32 - self.left);
        let mask = both_halves(self.mask);
        if self.left <= mask.trailing_zeros() {
            draft.shl(word, self.left)
        } else if right <= mask.leading_zeros() {
            draft.shr(word, right)
        } else {
            draft.push(Step::Rotl(word.into(), self.left as u8))
        }
    }

    /// The bit of the word that becomes `bit`, if the mask selects it.
    fn source(&self, bit: u32) -> Option<u32> {
        (both_halves(self.mask) >> bit & 1 == 1).then(|| (bit + 32 - self.left) % 32)
    }
}

impl Arrangement {
    /// The fields of each input word, by tracing back each bit of the registers.
    fn places(&self) -> Vec<Vec<Field>> {
        let mut words = vec![Vec::<Field>::new(); self.words];
        for (register, parts) in self.registers.iter().enumerate() {
            for half in 0..2 {
                let code = (2 * register + half) as u8;
                let bits = 16 * half as u32..16 * (half as u32 + 1);
                // The bits of a float that have a source are those of its code, from low to high.
                let sources = bits.filter_map(|bit| parts.iter().find_map(|p| self.trace(p, bit)));
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

    /// The input word and its bit that a part moves to `bit`.
    fn trace(&self, part: &RotatedBits, bit: u32) -> Option<(usize, u8)> {
        let at = part.source(bit)?;
        if part.word < self.words {
            return Some((part.word, at as u8));
        }
        self.merged.iter().rev().find_map(|part| self.trace(part, at))
    }
}

impl Field {
    /// Whether a bit is the next one above this field, in the code and in the word.
    fn continues(&self, code: u8, bit: u8, at: u8) -> bool {
        self.code == code && self.slice.1 == bit && self.at + (bit - self.slice.0) == at
    }
}
