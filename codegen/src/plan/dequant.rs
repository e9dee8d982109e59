//! The dequantisation plan: the sequences from packed codes to a product's operand.

use std::fmt;

use quantloom_dsl::format::{NUMBER_BF16, Number};
use quantloom_dsl::layout::Recode;
use quantloom_dsl::{Activation, Code, WeightCode};

use super::cost::costs;
use super::native::SHARED_BYTES;
use super::operand::OperandType;
use super::sequence::{OutputEncoding, OutputWord, Sequence};
use super::templates::{
    TEMPLATES, TemplateRequest, convert_rows, placed_half, planes, planes_to_bytes,
    planes_to_elements, planes_to_top_bits,
};
use crate::target::Class;

/// The dequantisation of packed codes to elements of an operand.
#[derive(Clone, Debug, PartialEq)]
pub struct DequantPlan {
    /// The codes in the native layout; their values are those of the scheme's codes.
    pub weight: WeightCode,
    /// The change of each code by the layout transform.
    pub recode: Recode,
    /// The bit planes: slices of the code that are stored separately, low bits first; the whole code if
    /// the sequence defines the positions of bits ([`Self::placed`]).
    pub planes: Vec<(u8, u8)>,
    /// The sequences: the output words of one are the input words of the next. Empty if the stored code
    /// is the operand's element.
    pub stages: Vec<Sequence>,
    /// Element type of the result.
    pub operand: OperandType,
    /// Instructions per 1,000 codes.
    pub cost: u32,
}

impl DequantPlan {
    /// The cheapest plan for a class of targets, exact if possible; of equal costs the one without a
    /// zero-point correction, then one whose last steps can multiply with a scale too, then the earlier template. `None` if no
    /// template converts these codes to this operand for the class.
    pub fn new(weight: &WeightCode, operand: OperandType, class: Class) -> Option<Self> {
        let as_stored = (weight.clone(), Recode::Keep);
        let signed = counted_from_the_middle(weight, operand);
        let ways = [Some(as_stored), counted_from_zero(weight), signed].into_iter().flatten();
        let plans = ways.flat_map(|(weight, recode)| candidates(weight, &recode, operand, class));
        // `min_by_key` returns the first of equal elements.
        plans.min_by_key(|plan| {
            (plan.rounds(), plan.cost, plan.encoding().0 != 0, !plan.scales_constants())
        })
    }

    /// The same with words of single rows, for codes that are the elements of x, with nothing else that changes within 128 bytes
    /// of a row: warp groups multiply these bytes as they are stored, other instructions what the sequence makes of them.
    pub(super) fn of_rows(
        self,
        activation: &Activation,
        segment: Option<u32>,
        class: Class,
    ) -> Self {
        let same = matches!(activation, Activation::Quantised(quantiser)
            if self.weight.code == Code::Number(quantiser.code));
        let served = class == Class::Hopper
            && self.operand == OperandType::F16
            && segment.is_none_or(|columns| columns.is_multiple_of(SHARED_BYTES));
        match convert_rows(&self.weight).filter(|_| same && served) {
            Some(rows) => Self { stages: vec![rows], ..self },
            None => self,
        }
    }

    /// Whether elements are rounded, since the operand does not represent all values of the codes.
    pub fn rounds(&self) -> bool {
        matches!(
            self.stages.last().map(|stage| stage.encoding),
            Some(OutputEncoding::Rounded { .. })
        )
    }

    /// The encoding of an element, `(value + add) * 2^exponent`: add and exponent. The element is
    /// rounded if [`Self::rounds`].
    pub fn encoding(&self) -> (i32, i32) {
        match self.stages.last().map(|stage| stage.encoding) {
            Some(OutputEncoding::Value { add, exponent }) => (add, exponent),
            Some(OutputEncoding::Rounded { exponent }) => (0, exponent),
            // The code itself, as an unsigned integer or in the element's format.
            _ => (self.weight.offset, 0),
        }
    }

    /// The largest relative error of an element: 0 unless it [`Self::rounds`], 1 if values become 0.
    pub fn error(&self) -> f64 {
        let Some(last) = self.stages.last().filter(|_| self.rounds()) else { return 0.0 };
        let unit = 2f64.powi(self.encoding().1);
        let codes = 0..1u32 << self.weight.code.bits();
        let errors = codes.map(|code| {
            let value = self.weight.decode(code) * unit;
            ((last.expected(code) - value) / value).abs()
        });
        // 0 is exact, and so is NaN: the quotient is NaN.
        errors.fold(0.0, f64::max)
    }

    /// The order in which products with operands of equal width are preferred: error, then cost, then one
    /// without a power of two that scales have to undo.
    pub(super) fn price(&self) -> (f64, u32, bool) {
        let (_, exponent) = self.encoding();
        (self.error(), self.cost, exponent != 0)
    }

    /// The largest magnitude of an element.
    pub fn largest(&self) -> f64 {
        let (low, high) = self.weight.range();
        low.abs().max(high.abs()) * 2f64.powi(self.encoding().1)
    }

    /// The sequence, if it defines the positions of bits in a unit of codes, or a unit has several words.
    pub fn placed(&self) -> Option<&Sequence> {
        let apart = |stage: &&Sequence| {
            let several = stage.inputs.len() > 1 || !self.has_whole_codes(stage);
            !stage.joins_planes() && several
        };
        self.stages.first().filter(apart)
    }

    /// Whether a unit has several words with whole codes: of single rows.
    pub fn has_words_of_rows(&self) -> bool {
        self.placed().is_some_and(|sequence| self.has_whole_codes(sequence))
    }

    fn has_whole_codes(&self, sequence: &Sequence) -> bool {
        let whole = (0, self.weight.code.bits() as u8);
        sequence.inputs.iter().flatten().all(|field| field.slice == whole)
    }

    /// The power of two that the last step of every output multiplies with, if the step does nothing
    /// else.
    pub fn factor(&self) -> Option<i32> {
        match self.factors()?[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The powers of two that last steps multiply with, the largest one first, if every last step does nothing else.
    pub fn factors(&self) -> Option<Vec<i32>> {
        let last = self.stages.last()?;
        let factor = |output: &OutputWord| last.steps.get(last.step_of(output)?)?.factor();
        let mut factors = last.outputs.iter().map(factor).collect::<Option<Vec<_>>>()?;
        factors.sort_unstable_by(|one, other| other.cmp(one));
        factors.dedup();
        Some(factors)
    }

    /// Whether the constants of the last steps can multiply with scales: in bf16, which has the range of all of them.
    fn scales_constants(&self) -> bool {
        let range = self.stages.last().and_then(Sequence::scale_range);
        range.is_some_and(|range| range.number == NUMBER_BF16)
    }

    /// The sequence that joins the planes of codes to bytes first, if there is one.
    pub fn joining(&self) -> Option<&Sequence> {
        self.stages.first().filter(|stage| stage.joins_planes())
    }

    /// The last sequence, unless it joins planes: it decodes codes, or bytes that hold them.
    pub fn decoding(&self) -> Option<&Sequence> {
        self.stages.last().filter(|stage| !stage.joins_planes())
    }
}

/// Names of the templates, in order.
impl fmt::Display for DequantPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stages.is_empty() {
            return f.write_str("as stored");
        }
        for (position, stage) in self.stages.iter().enumerate() {
            let arrow = if position > 0 { " -> " } else { "" };
            write!(f, "{arrow}{}", stage.template)?;
        }
        Ok(())
    }
}

/// A signed code with its top bit flipped is unsigned; the offset compensates.
fn counted_from_zero(weight: &WeightCode) -> Option<(WeightCode, Recode)> {
    let Code::Number(Number::Int(bits)) = weight.code else { return None };
    let top = 1u32 << (bits - 1);
    let code = Code::Number(Number::Uint(bits));
    Some((WeightCode { code, offset: weight.offset + top as i32 }, Recode::Xor(top)))
}

/// The other way round, for an operand of signed integers of as many bits.
fn counted_from_the_middle(
    weight: &WeightCode,
    operand: OperandType,
) -> Option<(WeightCode, Recode)> {
    let (Code::Number(Number::Uint(4)), OperandType::I4) = (&weight.code, operand) else {
        return None;
    };
    let code = Code::Number(operand.number());
    Some((WeightCode { code, offset: weight.offset - 8 }, Recode::Xor(8)))
}

fn candidates(
    weight: WeightCode,
    recode: &Recode,
    operand: OperandType,
    class: Class,
) -> Vec<DequantPlan> {
    let bits = weight.code.bits();
    let slices = planes(bits);
    let mut chains: Vec<Vec<Sequence>> = Vec::new();
    let row = costs(class);
    let decode = |field| {
        let request = TemplateRequest { weight: &weight, field, operand };
        let there = TEMPLATES.iter().filter(|template| !template.subnormals || row.subnormals);
        there.filter_map(move |template| (template.make)(&request)).collect::<Vec<_>>()
    };
    let to_bytes = || planes_to_bytes(&weight);
    if is_element(&weight, operand) {
        let elements = || match operand.first_bit() {
            0 => to_bytes(),
            _ => planes_to_elements(&weight, operand),
        };
        chains.push(if bits == operand.bits() { Vec::new() } else { vec![elements()] });
    }
    if slices.len() == 1 {
        chains.extend(decode(bits).into_iter().map(|last| vec![last]));
    }
    if operand == OperandType::I8 {
        chains.extend(planes_to_top_bits(&weight).map(|sequence| vec![sequence]));
    }
    if bits < 8 {
        chains.extend(decode(8).into_iter().map(|last| vec![to_bytes(), last]));
    }
    let plan = |planes: &[(u8, u8)], stages: Vec<Sequence>| {
        let cost = stages.iter().map(|stage| row.of(stage)).sum::<Option<u32>>()?;
        let (weight, recode, planes) = (weight.clone(), recode.clone(), planes.to_vec());
        Some(DequantPlan { weight, recode, planes, stages, operand, cost })
    };
    let placed = placed_half(&weight, operand);
    let placed = placed.and_then(|sequence| plan(&[(0, bits as u8)], vec![sequence]));
    let whole = [(0, bits as u8)];
    let planes = |chain: &Vec<Sequence>| if chain.is_empty() { &whole[..] } else { &slices };
    let chains = chains.into_iter().filter_map(|chain| plan(planes(&chain), chain));
    chains.chain(placed).collect()
}

/// Whether the code, or a byte that contains it, is an element of the operand, possibly of a value that
/// is larger by the offset.
fn is_element(weight: &WeightCode, operand: OperandType) -> bool {
    match (&weight.code, operand) {
        (Code::Number(Number::Uint(_)), OperandType::U8) => true,
        (Code::Number(Number::Uint(bits)), OperandType::I8) => *bits < 8,
        (Code::Number(number), _) => *number == operand.number(),
        (Code::Codebook(_), _) => false,
    }
}
