//! Templates to 16-bit elements, two in a word. The constants and orders were derived from the
//! formats; the tricks are those of the fast int4 kernels (Kim et al., "Who Says Elephants Can't
//! Run", 2022, section 3.2) and of the float formats' shared field order.

use quantloom_dsl::format::{BF16, E4M3, F16, FloatFormat, Number, Overflow, Variant};
use quantloom_dsl::{Code, WeightCode};

use super::super::operand::Operand;
use super::super::sequence::{Draft, Field, Output, Sequence, Yield};
use super::super::step::{Arg, Half, Register, Step};
use super::{Ask, NOTHING, integer, twice};

/// `(a & b) | c`
pub(super) const AND_OR: u8 = 0xEA;
/// `(a & b) ^ c`
const AND_XOR: u8 = 0x6A;
/// `(~a & b) | c`
const NOT_AND_OR: u8 = 0xAE;

/// `a & ~b`
const AND_NOT: u8 = 0x30;
/// `a & (b | c)`
const AND_EITHER: u8 = 0xE0;

/// 128 in bf16: its seven mantissa bits count in ones.
const BF16_128: u32 = 0x4300;
const BF16_ONE: u32 = 0x3f80;
/// 1024 in f16: its ten mantissa bits count in ones.
const F16_1024: u32 = 0x6400;

/// A word full of fields of one width, code j in field j.
fn one_word(weight: &WeightCode, field: u32) -> Vec<Field> {
    let bits = weight.code.bits() as u8;
    let fields = 0..(32 / field) as u8;
    fields.map(|code| Field { at: code * field as u8, slice: (0, bits), code }).collect()
}

/// The code of a number in a format, if the format holds it exactly.
fn exact(format: FloatFormat, value: f64) -> Option<u32> {
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

fn sequence(
    template: &'static str,
    ask: &Ask<'_>,
    yields: Yield,
    draft: Draft,
    outputs: Vec<Output>,
) -> Sequence {
    let (steps, names) = draft.finish();
    Sequence {
        template,
        weight: ask.weight.clone(),
        operand: ask.operand,
        yields,
        inputs: vec![one_word(ask.weight, ask.field)],
        steps,
        names,
        outputs,
    }
}

/// Field j and the field at the same place of the upper half.
fn pair(register: Register, lower: u32, field: u32) -> Output {
    Output { register, codes: vec![lower as u8, (lower + 16 / field) as u8] }
}

const EXACT: Yield = Yield::Value { add: 0, exponent: 0 };

/// How an integer is decoded under some bases: the offset that its steps take off with them, and what is
/// left to a correction: the whole offset of the weight where the format does not hold all values less it,
/// or a base with it.
fn taken_off(
    weight: &WeightCode,
    offset: i32,
    format: FloatFormat,
    mut bases: impl Iterator<Item = f64>,
) -> (i32, Yield) {
    let holds = |base: f64| exact(format, base + f64::from(offset)).is_some();
    match every_value_fits(weight, format, 0, 0) && bases.all(holds) {
        true => (offset, EXACT),
        false => (offset - weight.offset, Yield::Value { add: weight.offset, exponent: 0 }),
    }
}

/// `((w >> j) & mask | 128) - (128 + offset)`.
pub(super) fn magic_bf16(ask: &Ask<'_>) -> Option<Sequence> {
    let (bits, flip, offset) = integer(ask.weight)?;
    if ask.operand != Operand::Bf16 || bits > 7 || bits > ask.field {
        return None;
    }
    let (offset, yields) = taken_off(ask.weight, offset, BF16, std::iter::once(128.0));
    let base = exact(BF16, -f64::from(128 + offset))?;
    let mask = (1u32 << bits) - 1;
    let table = if flip == 0 { AND_OR } else { AND_XOR };
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let outputs = (0..16 / ask.field).map(|j| {
        let shifted = draft.shr(word, j * ask.field);
        let (b, c) = (twice(mask).into(), twice(BF16_128 | flip).into());
        let under = draft.push(Step::Lop3 { a: shifted.into(), b, c, table });
        let (one, base) = (twice(BF16_ONE).into(), twice(base).into());
        let value = draft.push(Step::Fma16(Half::Bf16, under.into(), one, base));
        pair(value, j, ask.field)
    });
    let outputs = outputs.collect();
    Some(sequence("magic_bf16", ask, yields, draft, outputs))
}

/// As `magic_bf16`; ten mantissa bits take a code at several places before a shift is needed,
/// and the product of the fma moves it back.
pub(super) fn magic_f16(ask: &Ask<'_>) -> Option<Sequence> {
    if ask.operand == Operand::F16 && ask.field == 8 {
        return magic_f16_bytes(ask);
    }
    let (bits, flip, offset) = integer(ask.weight)?;
    if ask.operand != Operand::F16 || bits > ask.field || ask.field > 4 {
        return None;
    }
    let places = (0..8u32).step_by(ask.field as usize);
    let bases = places.map(|place| f64::from(1024 >> place));
    let (offset, yields) = taken_off(ask.weight, offset, F16, bases);
    let mask = (1u32 << bits) - 1;
    let table = if flip == 0 { AND_OR } else { AND_XOR };
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let mut shifted = word;
    let mut outputs = Vec::new();
    for j in 0..16 / ask.field {
        let place = j * ask.field % 8;
        if place == 0 {
            shifted = draft.shr(word, j * ask.field);
        }
        let (b, c) = (twice(mask << place).into(), twice(F16_1024 | flip << place).into());
        let under = draft.push(Step::Lop3 { a: shifted.into(), b, c, table });
        let step = if place == 0 {
            let base = exact(F16, f64::from(1024 + offset))?;
            Step::Sub16(Half::F16, under.into(), twice(base).into())
        } else {
            let unit = 2f64.powi(-(place as i32));
            let (unit, base) = (exact(F16, unit)?, -(1024.0 * unit + f64::from(offset)));
            let (unit, base) = (twice(unit).into(), twice(exact(F16, base)?).into());
            Step::Fma16(Half::F16, under.into(), unit, base)
        };
        outputs.push(pair(draft.push(step), j, ask.field));
    }
    Some(sequence("magic_f16", ask, yields, draft, outputs))
}

/// Byte 0x64 over each code byte makes 1024 + code.
fn magic_f16_bytes(ask: &Ask<'_>) -> Option<Sequence> {
    let (_, flip, offset) = integer(ask.weight)?;
    let (offset, yields) = taken_off(ask.weight, offset, F16, std::iter::once(1024.0));
    let base = exact(F16, f64::from(1024 + offset))?;
    let mut draft = Draft::new(1);
    let mut word = draft.input(0);
    if flip != 0 {
        word = draft.push(Step::Xor(word.into(), twice(flip | flip << 8).into()));
    }
    let mut outputs = Vec::new();
    for (lower, select) in [(0, 0x5250u32), (1, 0x5351)] {
        let (low, high) = (word.into(), 0x6464_6464.into());
        let under = draft.push(Step::Prmt { low, high, select: select.into() });
        let value = draft.push(Step::Sub16(Half::F16, under.into(), twice(base).into()));
        outputs.push(pair(value, lower, 8));
    }
    Some(sequence("magic_f16", ask, yields, draft, outputs))
}

/// The low seven bits under 128, the top bit as -128 or -256, and their sum: code - 128, which
/// is a signed code's own value.
pub(super) fn halves_bf16(ask: &Ask<'_>) -> Option<Sequence> {
    let (bits, flip, offset) = integer(ask.weight)?;
    let yields = Yield::Value { add: offset - 128, exponent: 0 };
    if ask.operand != Operand::Bf16 || bits != 8 || ask.field != 8 {
        return None;
    }
    // Top bit set: a signed code is 128 less than its low bits, an unsigned one 0 less.
    let table = if flip == 0 { NOT_AND_OR } else { AND_OR };
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let outputs = (0..2).map(|j| {
        let shifted = draft.shr(word, 8 * j);
        let (b, c) = (twice(0x7f).into(), twice(BF16_128).into());
        let low = draft.push(Step::Lop3 { a: shifted.into(), b, c, table: AND_OR });
        let (b, c) = (twice(0x80).into(), twice(0x8000 | BF16_128).into());
        let top = draft.push(Step::Lop3 { a: shifted.into(), b, c, table });
        let one = twice(BF16_ONE).into();
        pair(draft.push(Step::Fma16(Half::Bf16, low.into(), one, top.into())), j, 8)
    });
    let outputs = outputs.collect();
    Some(sequence("halves_bf16", ask, yields, draft, outputs))
}

/// Two codes an instruction, every special code kept.
pub(super) fn convert_f16(ask: &Ask<'_>) -> Option<Sequence> {
    if ask.weight.code != Code::Number(Number::Float(E4M3)) {
        return None;
    }
    if ask.operand != Operand::F16 || ask.field != 8 || ask.weight.offset != 0 {
        return None;
    }
    let mut draft = Draft::new(1);
    let word = draft.input(0).into();
    let outputs = [false, true].map(|high| {
        let register = draft.push(Step::CvtF16 { codes: word, high });
        let first = if high { 2 } else { 0 };
        Output { register, codes: vec![first, first + 1] }
    });
    Some(sequence("convert_f16", ask, EXACT, draft, outputs.to_vec()))
}

/// Sign to the sign, magnitude to the low end of the exponent and the high end of the mantissa:
/// a subnormal code becomes a subnormal, everything is too small by the difference of the biases.
///
/// In bf16 that is 2^-119 and less, where products with x leave the range of f32: a multiplication
/// brings the values back. So it does where codes are NaN or infinite, which it adds to them.
pub(super) fn rebias_half(ask: &Ask<'_>) -> Option<Sequence> {
    let (half, step) = match ask.operand {
        Operand::Bf16 => (BF16, Half::Bf16),
        Operand::F16 => (F16, Half::F16),
        _ => return None,
    };
    let Code::Number(Number::Float(format)) = ask.weight.code else { return None };
    // As wide an exponent is right only where its top codes mean the same.
    let exponents = format.exponent_bits < half.exponent_bits
        || format.exponent_bits == half.exponent_bits && format.variant == Variant::Ieee;
    let narrower =
        exponents && format.mantissa_bits <= half.mantissa_bits && format.bits() <= ask.field;
    if !narrower || ask.weight.offset != 0 || ask.field < 4 {
        return None;
    }
    let (bits, field) = (format.bits(), ask.field);
    let exponent = format.bias() - half.bias();
    let factor = exact(half, 2f64.powi(-exponent));
    // Where the exponents are equally wide the special codes fall on each other.
    let narrow = format.exponent_bits < half.exponent_bits;
    let special = if narrow { Special::of(format) } else { None };
    let multiplies = step == Half::Bf16 || special.is_some();
    let magnitude = (1u32 << (bits - 1)) - 1;
    let place = u32::from(half.mantissa_bits - format.mantissa_bits);
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let mut outputs = Vec::new();
    for j in 0..16 / field {
        // The pair's signs come to the top of each half, from the topmost field downwards.
        let topped = draft.shl(word, field - bits + j * field);
        let lowered = draft.shift(topped, place as i32 - (16 - bits as i32));
        let low = draft.push(Step::And(lowered.into(), twice(magnitude << place).into()));
        let (b, c) = (twice(0x8000).into(), low.into());
        let mut value = draft.push(Step::Lop3 { a: topped.into(), b, c, table: AND_OR });
        if multiplies {
            let added =
                special.map(|codes| codes.added(&mut draft, (topped, low, value), place, half));
            let addend = added.map_or(NOTHING.into(), Arg::from);
            let factor = twice(factor?).into();
            value = draft.push(Step::Fma16(step, value.into(), factor, addend));
        }
        outputs.push(pair(value, 16 / field - 1 - j, field));
    }
    let yields = Yield::Value { add: 0, exponent: if multiplies { 0 } else { exponent } };
    Some(sequence("rebias", ask, yields, draft, outputs))
}

/// The factor that brings values in bf16's or f16's low exponents back to their size, for a fused
/// step with [`NOTHING`]; or, in f16, the exponent that is left to a scale.
pub(super) fn to_size(format: FloatFormat, half: Half) -> Option<(Option<u32>, i32)> {
    match half {
        Half::Bf16 => {
            let factor = exact(BF16, 2f64.powi(BF16.bias() - format.bias()))?;
            Some((Some(twice(factor)), 0))
        }
        Half::F16 => Some((None, format.bias() - F16.bias())),
    }
}

/// Which codes of a float are no numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// NaN: those of the largest magnitude.
    Largest(u32),
    /// NaN: what would be the negative zero.
    NegativeZero,
    /// Infinity: those of this magnitude; NaN: those above.
    From(u32),
}

impl Special {
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

    /// What makes the halves whose codes are special so by addition, 0 in the others: a sum carries
    /// into the top bit where the magnitude, which lies at `place`, is large enough, and a permutation
    /// copies that bit. `topped` has the signs on top, `value` them and the magnitudes.
    fn added(
        self,
        draft: &mut Draft,
        (topped, low, value): (Register, Register, Register),
        place: u32,
        half: FloatFormat,
    ) -> Register {
        let least = match self {
            Self::Largest(from) | Self::From(from) => from,
            Self::NegativeZero => 1,
        };
        let carries = twice(0x8000 - (least << place));
        let mut top = draft.push(Step::Add(low.into(), carries.into()));
        if self == Self::NegativeZero {
            // A sign and no magnitude.
            let (a, b, c) = (topped.into(), top.into(), 0.into());
            top = draft.push(Step::Lop3 { a, b, c, table: AND_NOT });
        }
        let (low, high) = (top.into(), top.into());
        let all = draft.push(Step::Prmt { low, high, select: 0xbb99.into() });
        let Self::From(_) = self else { return all };
        // The largest exponent below the code's own mantissa and sign: infinity where that is 0.
        let infinity = twice(half.encode(f64::INFINITY, Overflow::Special));
        let (a, b, c) = (all.into(), value.into(), infinity.into());
        draft.push(Step::Lop3 { a, b, c, table: AND_EITHER })
    }
}
