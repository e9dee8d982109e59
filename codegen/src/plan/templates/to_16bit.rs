//! Templates to 16-bit elements, two per word. Constants and orders are derived from the formats.
//! Integers use the magic-number method (Kim et al., "Who Says Elephants Can't Run", 2022, section
//! 3.2); floats use that all formats have their fields in the same order.

use quantloom_dsl::format::{BF16, F16, FloatFormat, Number, Overflow, Variant};
use quantloom_dsl::{Code, WeightCode};

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::{Arg, SequenceRegister, Step};
use super::{NEGATIVE_ZEROS, TemplateRequest, both_halves, integer};
use crate::target::{ConvertedCode, Half};

/// `(a & b) | c`
pub(super) const AND_OR: u8 = 0xEA;
/// `(a & b) ^ c`
pub(super) const AND_XOR: u8 = 0x6A;
/// `(~a & b) | c`
const NOT_AND_OR: u8 = 0xAE;

/// `a & ~b`
const AND_NOT: u8 = 0x30;
/// `a & (b | c)`
const AND_EITHER: u8 = 0xE0;

/// 128 in bf16: the unit of its seven mantissa bits is 1.
const BF16_128: u32 = 0x4300;
const BF16_ONE: u32 = 0x3f80;
/// 1024 in f16: the unit of its ten mantissa bits is 1.
const F16_1024: u32 = 0x6400;

/// The fields of a word of one field width, code j in field j.
fn one_word(weight: &WeightCode, field: u32) -> Vec<Field> {
    let bits = weight.code.bits() as u8;
    let fields = 0..(32 / field) as u8;
    fields.map(|code| Field { at: code * field as u8, slice: (0, bits), code }).collect()
}

/// The code of a number in a format, if the format holds it exactly.
pub(super) fn exact(format: FloatFormat, value: f64) -> Option<u32> {
    let code = format.encode(value, Overflow::Special);
    (format.decode(code) == value).then_some(code)
}

fn every_value_fits(weight: &WeightCode, format: FloatFormat, add: i32, exponent: i32) -> bool {
    let fits = |code| {
        let value = (weight.decode(code) + f64::from(add)) * 2f64.powi(exponent);
        !value.is_finite() || exact(format, value).is_some()
    };
    (0..1u32 << weight.code.bits()).all(fits)
}

pub(super) fn sequence(
    template: &'static str,
    request: &TemplateRequest<'_>,
    encoding: OutputEncoding,
    draft: Draft,
    outputs: Vec<OutputWord>,
) -> Sequence {
    let (steps, names) = draft.finish();
    Sequence {
        template,
        weight: request.weight.clone(),
        operand: request.operand,
        encoding,
        inputs: vec![one_word(request.weight, request.field)],
        steps,
        names,
        outputs,
    }
}

/// Field j and the field at the same position of the upper half.
pub(super) fn pair(register: SequenceRegister, lower: u32, field: u32) -> OutputWord {
    OutputWord { register, codes: vec![lower as u8, (lower + 16 / field) as u8] }
}

const EXACT: OutputEncoding = OutputEncoding::Value { add: 0, exponent: 0 };

/// The part of an integer's offset that decoding subtracts together with its bases, and the
/// encoding of the result. If the format cannot represent all values minus the offset, or a base
/// plus the offset, the weight's offset is left to the zero-point correction.
fn split_offset(
    weight: &WeightCode,
    offset: i32,
    format: FloatFormat,
    mut bases: impl Iterator<Item = f64>,
) -> (i32, OutputEncoding) {
    let holds = |base: f64| exact(format, base + f64::from(offset)).is_some();
    match every_value_fits(weight, format, 0, 0) && bases.all(holds) {
        true => (offset, EXACT),
        false => {
            (offset - weight.offset, OutputEncoding::Value { add: weight.offset, exponent: 0 })
        }
    }
}

/// `((w >> j) & mask | 128) - (128 + offset)`.
pub(super) fn magic_bf16(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (bits, flip, offset) = integer(request.weight)?;
    if request.operand != OperandType::Bf16 || bits > 7 || bits > request.field {
        return None;
    }
    let (offset, encoding) = split_offset(request.weight, offset, BF16, std::iter::once(128.0));
    let base = exact(BF16, -f64::from(128 + offset))?;
    let mask = (1u32 << bits) - 1;
    let table = if flip == 0 { AND_OR } else { AND_XOR };
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let outputs = (0..16 / request.field).map(|j| {
        let shifted = draft.shr(word, j * request.field);
        let (b, c) = (both_halves(mask).into(), both_halves(BF16_128 | flip).into());
        let under = draft.push(Step::Lop3 { a: shifted.into(), b, c, table });
        let (one, base) = (both_halves(BF16_ONE).into(), both_halves(base).into());
        let value = draft.push(Step::Fma16(Half::Bf16, under.into(), one, base));
        pair(value, j, request.field)
    });
    let outputs = outputs.collect();
    Some(sequence("magic_bf16", request, encoding, draft, outputs))
}

/// As `magic_bf16`, but the ten mantissa bits can hold a code at several bit positions before a
/// shift is needed; the multiplication of the fma scales it back.
pub(super) fn magic_f16(request: &TemplateRequest<'_>) -> Option<Sequence> {
    if request.operand == OperandType::F16 && request.field == 8 {
        return magic_f16_bytes(request);
    }
    let (bits, flip, offset) = integer(request.weight)?;
    if request.operand != OperandType::F16 || bits > request.field || request.field > 4 {
        return None;
    }
    let places = (0..8u32).step_by(request.field as usize);
    let bases = places.map(|place| f64::from(1024 >> place));
    let (offset, encoding) = split_offset(request.weight, offset, F16, bases);
    let mask = (1u32 << bits) - 1;
    let table = if flip == 0 { AND_OR } else { AND_XOR };
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let mut shifted = word;
    let mut outputs = Vec::new();
    for j in 0..16 / request.field {
        let place = j * request.field % 8;
        if place == 0 {
            shifted = draft.shr(word, j * request.field);
        }
        let (b, c) =
            (both_halves(mask << place).into(), both_halves(F16_1024 | flip << place).into());
        let under = draft.push(Step::Lop3 { a: shifted.into(), b, c, table });
        let step = if place == 0 {
            let base = exact(F16, f64::from(1024 + offset))?;
            Step::Sub16(Half::F16, under.into(), both_halves(base).into())
        } else {
            let unit = 2f64.powi(-(place as i32));
            let (unit, base) = (exact(F16, unit)?, -(1024.0 * unit + f64::from(offset)));
            let (unit, base) = (both_halves(unit).into(), both_halves(exact(F16, base)?).into());
            Step::Fma16(Half::F16, under.into(), unit, base)
        };
        outputs.push(pair(draft.push(step), j, request.field));
    }
    Some(sequence("magic_f16", request, encoding, draft, outputs))
}

/// Byte 0x64 over each code byte makes 1024 + code.
fn magic_f16_bytes(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (_, flip, offset) = integer(request.weight)?;
    let (offset, encoding) = split_offset(request.weight, offset, F16, std::iter::once(1024.0));
    let base = exact(F16, f64::from(1024 + offset))?;
    let mut draft = Draft::new(1);
    let mut word = draft.input(0);
    if flip != 0 {
        word = draft.push(Step::Xor(word.into(), both_halves(flip | flip << 8).into()));
    }
    let mut outputs = Vec::new();
    for (lower, select) in [(0, 0x5250u32), (1, 0x5351)] {
        let (low, high) = (word.into(), 0x6464_6464.into());
        let under = draft.push(Step::Prmt { low, high, select: select.into() });
        let value = draft.push(Step::Sub16(Half::F16, under.into(), both_halves(base).into()));
        outputs.push(pair(value, lower, 8));
    }
    Some(sequence("magic_f16", request, encoding, draft, outputs))
}

/// The low seven bits as the mantissa of 128, the top bit as -128 or -256, and the sum of both:
/// code
/// - 128, which is the value of a signed code.
pub(super) fn halves_bf16(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (bits, flip, offset) = integer(request.weight)?;
    let encoding = OutputEncoding::Value { add: offset - 128, exponent: 0 };
    if request.operand != OperandType::Bf16 || bits != 8 || request.field != 8 {
        return None;
    }
    // If the top bit is set, a signed code is its low bits minus 128, an unsigned one minus 0.
    let table = if flip == 0 { NOT_AND_OR } else { AND_OR };
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let outputs = (0..2).map(|j| {
        let shifted = draft.shr(word, 8 * j);
        let (b, c) = (both_halves(0x7f).into(), both_halves(BF16_128).into());
        let low = draft.push(Step::Lop3 { a: shifted.into(), b, c, table: AND_OR });
        let (b, c) = (both_halves(0x80).into(), both_halves(0x8000 | BF16_128).into());
        let top = draft.push(Step::Lop3 { a: shifted.into(), b, c, table });
        let one = both_halves(BF16_ONE).into();
        pair(draft.push(Step::Fma16(Half::Bf16, low.into(), one, top.into())), j, 8)
    });
    let outputs = outputs.collect();
    Some(sequence("halves_bf16", request, encoding, draft, outputs))
}

/// The conversion instruction: two codes per instruction, NaN included.
pub(super) fn convert_f16(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let of = ConvertedCode::of(&request.weight.code)?;
    let fits = request.operand == OperandType::F16 && request.field == of.field();
    if !fits || request.weight.offset != 0 {
        return None;
    }
    let mut draft = Draft::new(1);
    let codes = draft.input(0).into();
    let outputs = (0..of.pairs() as u8).map(|pair| {
        let register = draft.push(Step::CvtF16 { codes, of, pair });
        OutputWord { register, codes: vec![2 * pair, 2 * pair + 1] }
    });
    let outputs = outputs.collect();
    Some(sequence("convert_f16", request, EXACT, draft, outputs))
}

/// Name of the sequence from e4m3 in words of single rows.
pub const CONVERT_ROWS: &str = "convert_rows_f16";

/// As `convert_f16`, but of a word of each of two rows: four neighbouring columns a word, which instructions that multiply
/// bytes read as they are. The first outputs are the first two columns of both rows.
pub fn convert_rows(weight: &WeightCode) -> Option<Sequence> {
    let of = ConvertedCode::of(&weight.code).filter(|of| of.format().bits() == of.field())?;
    if of.field() != 8 || weight.offset != 0 {
        return None;
    }
    let mut draft = Draft::new(2);
    let words = [draft.input(0), draft.input(1)];
    let outputs = [(0, 0), (1, 4)].into_iter().flat_map(|(pair, first)| {
        words.iter().zip([first, first + 2]).map(move |(&word, code)| (word, pair, code))
    });
    let outputs = outputs.map(|(word, pair, code)| {
        let register = draft.push(Step::CvtF16 { codes: word.into(), of, pair });
        OutputWord { register, codes: vec![code, code + 1] }
    });
    let outputs = outputs.collect();
    let field = |(at, code): (u8, u8)| Field { at: 8 * at, slice: (0, 8), code };
    let inputs = [[0, 1, 4, 5], [2, 3, 6, 7]].map(|codes| (0..).zip(codes).map(field).collect());
    let (steps, names) = draft.finish();
    Some(Sequence {
        template: CONVERT_ROWS,
        weight: weight.clone(),
        operand: OperandType::F16,
        encoding: EXACT,
        inputs: inputs.to_vec(),
        steps,
        names,
        outputs,
    })
}

/// Moves the sign to the sign bit, and the magnitude to the low bits of the exponent and the high
/// bits of the mantissa. A subnormal code becomes a subnormal number; every value is too small by
/// two to the difference of the biases.
///
/// In bf16 the results are at most 2^-119, and products with x would underflow in f32: a
/// multiplication restores the values. It is also used for formats with NaN or infinity, where the
/// same instruction adds them.
pub(super) fn rebias_half(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let (half, step) = match request.operand {
        OperandType::Bf16 => (BF16, Half::Bf16),
        OperandType::F16 => (F16, Half::F16),
        _ => return None,
    };
    let Code::Number(Number::Float(format)) = request.weight.code else { return None };
    // An exponent of equal width is allowed only if its top codes have the same meaning.
    let exponents = format.exponent_bits < half.exponent_bits
        || format.exponent_bits == half.exponent_bits && format.variant == Variant::Ieee;
    let narrower =
        exponents && format.mantissa_bits <= half.mantissa_bits && format.bits() <= request.field;
    if !narrower || request.weight.offset != 0 || request.field < 4 {
        return None;
    }
    let (bits, field) = (format.bits(), request.field);
    let exponent = format.bias() - half.bias();
    let factor = exact(half, 2f64.powi(-exponent));
    // With exponents of equal width, special codes become special codes.
    let narrow = format.exponent_bits < half.exponent_bits;
    let special = if narrow { SpecialCodes::of(format) } else { None };
    let multiplies = step == Half::Bf16 || special.is_some();
    let magnitude = (1u32 << (bits - 1)) - 1;
    let place = u32::from(half.mantissa_bits - format.mantissa_bits);
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let mut outputs = Vec::new();
    for j in 0..16 / field {
        // Moves the pair's signs to the top of each half, starting with the topmost field.
        let topped = draft.shl(word, field - bits + j * field);
        let lowered = draft.shift(topped, place as i32 - (16 - bits as i32));
        let low = draft.push(Step::And(lowered.into(), both_halves(magnitude << place).into()));
        let (b, c) = (both_halves(0x8000).into(), low.into());
        let mut value = draft.push(Step::Lop3 { a: topped.into(), b, c, table: AND_OR });
        if multiplies {
            let added =
                special.map(|codes| codes.added(&mut draft, (topped, low, value), place, half));
            let addend = added.map_or(NEGATIVE_ZEROS.into(), Arg::from);
            let factor = both_halves(factor?).into();
            value = draft.push(Step::Fma16(step, value.into(), factor, addend));
        }
        outputs.push(pair(value, 16 / field - 1 - j, field));
    }
    let encoding =
        OutputEncoding::Value { add: 0, exponent: if multiplies { 0 } else { exponent } };
    Some(sequence("rebias", request, encoding, draft, outputs))
}

/// How to restore values whose bits were moved into a format with a larger bias. In bf16: the
/// factor, for an fma with [`NEGATIVE_ZEROS`]. In f16: the exponent that is left to a scale.
pub(super) fn restoring_factor(format: FloatFormat, half: Half) -> Option<(Option<u32>, i32)> {
    match half {
        Half::Bf16 => {
            let factor = exact(BF16, 2f64.powi(BF16.bias() - format.bias()))?;
            Some((Some(both_halves(factor)), 0))
        }
        Half::F16 => Some((None, format.bias() - F16.bias())),
    }
}

/// The codes of a float that are NaN or infinity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpecialCodes {
    /// NaN: the codes of the largest magnitude.
    Largest(u32),
    /// NaN: the code of the negative zero.
    NegativeZero,
    /// Infinity: the codes of this magnitude; NaN: those above.
    From(u32),
}

impl SpecialCodes {
    fn of(format: FloatFormat) -> Option<Self> {
        let magnitude = (1u32 << (format.bits() - 1)) - 1;
        match format.variant {
            Variant::Fn => Some(Self::Largest(magnitude)),
            Variant::Fnuz => Some(Self::NegativeZero),
            Variant::Ieee => {
                Some(Self::From(magnitude >> format.mantissa_bits << format.mantissa_bits))
            }
            Variant::Finite => None,
        }
    }

    /// An addend that is NaN or infinity in the halves with special codes, and 0 in the others. An
    /// addition carries into the top bit if the magnitude, which starts at bit `place`, is large
    /// enough, and a permutation copies that bit. `topped` has the signs in the top bits, `low` the
    /// magnitudes, `value` both.
    fn added(
        self,
        draft: &mut Draft,
        (topped, low, value): (SequenceRegister, SequenceRegister, SequenceRegister),
        place: u32,
        half: FloatFormat,
    ) -> SequenceRegister {
        let least = match self {
            Self::Largest(from) | Self::From(from) => from,
            Self::NegativeZero => 1,
        };
        let carries = both_halves(0x8000 - (least << place));
        let mut top = draft.push(Step::Add(low.into(), carries.into()));
        if self == Self::NegativeZero {
            // NaN: the sign is set and the magnitude is 0.
            let (a, b, c) = (topped.into(), top.into(), 0.into());
            top = draft.push(Step::Lop3 { a, b, c, table: AND_NOT });
        }
        let (low, high) = (top.into(), top.into());
        let all = draft.push(Step::Prmt { low, high, select: 0xbb99.into() });
        let Self::From(_) = self else { return all };
        // The largest exponent with the code's mantissa and sign: infinity if the mantissa is 0.
        let infinity = both_halves(half.encode(f64::INFINITY, Overflow::Special));
        let (a, b, c) = (all.into(), value.into(), infinity.into());
        draft.push(Step::Lop3 { a, b, c, table: AND_EITHER })
    }
}
