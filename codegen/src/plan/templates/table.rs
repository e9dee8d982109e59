//! Any code of at most eight bits to 16-bit floats through a table of its values.
//!
//! A table holds numbers of the operand's type. If these can represent all values, possibly times
//! one power of two that a scale compensates, the table is exact; else each entry is the nearest
//! number, and the sequence's encoding is [`OutputEncoding::Rounded`].

use quantloom_dsl::WeightCode;
use quantloom_dsl::format::{FloatFormat, Number, Overflow};

use super::super::operand::OperandType;
use super::super::sequence::{Draft, Field, OutputEncoding, OutputWord, Sequence};
use super::super::step::Step;
use super::TemplateRequest;

/// The largest exponent that a scale can compensate: its factor must be a normal f32.
const MAX_EXPONENT: i32 = 126;

/// The operand's element for every code of a weight, and the elements' encoding.
pub(super) fn elements(
    weight: &WeightCode,
    operand: OperandType,
) -> Option<(Vec<u32>, OutputEncoding)> {
    let Number::Float(format) = operand.number() else { return None };
    let values: Vec<f64> =
        (0..1u32 << weight.code.bits()).map(|code| weight.decode(code)).collect();
    let sizes = values.iter().map(|value| value.abs()).filter(|v| v.is_finite() && *v > 0.0);
    let powers = Powers::of(sizes, format);
    let highest = powers.highest.min(MAX_EXPONENT);
    // The exponent nearest to 0 from `least` to `highest`.
    let from = |least: i32| (least <= highest).then(|| 0_i32.clamp(least, highest));
    let exact = if powers.holds { from(powers.exact) } else { None };
    let encoding = match exact {
        Some(exponent) => OutputEncoding::Value { add: 0, exponent },
        None => OutputEncoding::Rounded { exponent: from(powers.normal).unwrap_or(highest) },
    };
    let (OutputEncoding::Value { exponent, .. } | OutputEncoding::Rounded { exponent }) = encoding
    else {
        return None;
    };
    let unit = 2f64.powi(exponent);
    let element = |value: &f64| format.encode(value * unit, Overflow::Special);
    Some((values.iter().map(element).collect(), encoding))
}

/// Exponents of powers of two by which values may be multiplied, so that a format represents them.
struct Powers {
    /// Whether the format has enough mantissa bits for all values.
    holds: bool,
    /// The lowest exponent for which no value loses its last mantissa bit.
    exact: i32,
    /// The lowest exponent for which all values are normal numbers.
    normal: i32,
    /// The highest exponent for which the largest value does not overflow.
    highest: i32,
}

impl Powers {
    fn of(values: impl Iterator<Item = f64>, format: FloatFormat) -> Self {
        let mantissa = i32::from(format.mantissa_bits);
        let least = 1 - format.bias();
        let mut this = Self { holds: true, exact: i32::MIN, normal: i32::MIN, highest: i32::MAX };
        for value in values {
            let (first, last) = ends(value);
            let fits = |power: &i32| value * 2f64.powi(*power) <= format.max();
            let under = format.max().log2().floor() as i32 - first;
            let highest = [under, under - 1].into_iter().find(fits).unwrap_or(under - 2);
            this.holds &= first - last <= mantissa;
            this.exact = this.exact.max(least - mantissa - last);
            this.normal = this.normal.max(least - first);
            this.highest = this.highest.min(highest);
        }
        this
    }
}

/// The exponents of the first and the last significant bit of a positive number.
pub(super) fn ends(value: f64) -> (i32, i32) {
    let first = value.log2().floor() as i32;
    (first, first - 52 + ((value / 2f64.powi(first - 52)) as u64).trailing_zeros() as i32)
}

/// Codes in bytes, each an index into the table.
pub(super) fn table_half(request: &TemplateRequest<'_>) -> Option<Sequence> {
    let half = matches!(request.operand, OperandType::Bf16 | OperandType::F16);
    if !half || request.field != 8 {
        return None;
    }
    let (table, encoding) = elements(request.weight, request.operand)?;
    let mut draft = Draft::new(1);
    let word = draft.input(0);
    let values = [0u32, 1, 2, 3].map(|byte| {
        let moved = draft.shr(word, 8 * byte);
        let index = match byte {
            3 => moved,
            _ => draft.push(Step::And(moved.into(), 0xff.into())),
        };
        draft.push(Step::LookupHalf { table: table.clone(), index: index.into() })
    });
    let outputs = [0u8, 2].map(|first| {
        let [low, high] = [0, 1].map(|next| values[usize::from(first) + next].into());
        let register = draft.push(Step::Prmt { low, high, select: 0x5410.into() });
        OutputWord { register, codes: vec![first, first + 1] }
    });
    let slice = (0, request.weight.code.bits() as u8);
    let field = |code: u8| Field { at: 8 * code, slice, code };
    let (steps, names) = draft.finish();
    Some(Sequence {
        template: "table",
        weight: request.weight.clone(),
        operand: request.operand,
        encoding,
        inputs: vec![(0..4).map(field).collect()],
        steps,
        names,
        outputs: outputs.to_vec(),
    })
}
