//! A sequence: straight-line steps from words of packed codes to words of an operand.
//!
//! A sequence is data: the position of each code's bits in the input words, the steps, and the code of each
//! element of an output word. So it can be interpreted, printed by any emitter, and proved:
//! [`Sequence::prove`] runs every code at every position against the number formats.

use quantloom_dsl::WeightCode;
use quantloom_dsl::format::Overflow;

use super::interpret::interpret;
use super::operand::OperandType;
use super::step::{Arg, SequenceRegister, Step};
use super::templates::{PLANES_TO_BYTES, PLANES_TO_TOP_BITS};

/// Some bits of a code in an input word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Lowest bit in the word.
    pub at: u8,
    /// Which bits of the code, half open.
    pub slice: (u8, u8),
    /// Which code of the unit.
    pub code: u8,
}

/// A word that the sequence produces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputWord {
    /// The register of the word.
    pub register: SequenceRegister,
    /// The code that each element stands for, lowest element first.
    pub codes: Vec<u8>,
}

/// What an output element represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputEncoding {
    /// The code itself: bytes for a later sequence or an integer product.
    Code,
    /// `(value + add) * 2^exponent`, exactly, where value is the code's value minus the offset.
    Value {
        /// Left to the zero-point correction: the sums must be corrected by `add * sum(x)`.
        add: i32,
        /// Left to a scale, which must be multiplied by `2^-exponent`.
        exponent: i32,
    },
    /// The operand type's number nearest to `value * 2^exponent`.
    Rounded {
        /// Left to a scale, which must be multiplied by `2^-exponent`.
        exponent: i32,
    },
}

/// Straight-line steps from packed codes to an operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sequence {
    /// The template's name.
    pub template: &'static str,
    /// The code type.
    pub weight: WeightCode,
    /// Type of the output's elements.
    pub operand: OperandType,
    /// What each output element represents.
    pub encoding: OutputEncoding,
    /// Per input word, its fields.
    pub inputs: Vec<Vec<Field>>,
    /// The steps; step i defines register `inputs.len() + i`.
    pub steps: Vec<Step>,
    /// The results.
    pub outputs: Vec<OutputWord>,
    /// Names of registers and constants in sources; without effect.
    pub names: Vec<(Arg, &'static str)>,
}

/// An error of a sequence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceFault {
    /// A step or an output reads a register that nothing has written.
    #[error("{template}: register {register} is read before it is written")]
    Unwritten {
        /// The template.
        template: &'static str,
        /// The register.
        register: u16,
    },
    /// A bit of a code is missing, stored twice or overlaps another; or an output is missing.
    #[error("{template}: code {code} of the unit is not placed exactly once on both sides")]
    Placement {
        /// The template.
        template: &'static str,
        /// The code's number in the unit.
        code: usize,
    },
    /// An element has a wrong value.
    #[error(
        "{template}: code {code:#x} at position {position} gives {found}, and should give {expected}"
    )]
    Value {
        /// The template.
        template: &'static str,
        /// The code.
        code: u32,
        /// The code's number in the unit.
        position: usize,
        /// The expected element.
        expected: f64,
        /// The element that the steps compute.
        found: f64,
    },
}

impl Sequence {
    /// The step that computes an output; `None` if the output is an input.
    pub fn step_of(&self, output: &OutputWord) -> Option<usize> {
        usize::from(output.register.0).checked_sub(self.inputs.len())
    }

    /// Whether the steps join bit planes to bytes.
    pub fn joins_planes(&self) -> bool {
        [PLANES_TO_BYTES, PLANES_TO_TOP_BITS].contains(&self.template)
    }

    /// Codes of one run of the steps.
    pub fn unit(&self) -> usize {
        self.outputs.iter().map(|output| output.codes.len()).sum()
    }

    /// The input words that hold the given codes.
    pub fn pack(&self, codes: &[u32]) -> Vec<u32> {
        let word = |fields: &Vec<Field>| {
            fields.iter().fold(0, |word, field| {
                let (low, high) = field.slice;
                let bits = codes[usize::from(field.code)] >> low & ((1u32 << (high - low)) - 1);
                word | bits << field.at
            })
        };
        self.inputs.iter().map(word).collect()
    }

    /// The elements of codes as bits, in the order of the codes.
    pub fn run(&self, codes: &[u32]) -> Vec<u32> {
        let words = interpret(self, &self.pack(codes));
        let (bits, first) = (self.operand.bits(), self.operand.first_bit());
        let mask = self.operand.number().mask();
        let mut elements = vec![0; self.unit()];
        for (output, word) in self.outputs.iter().zip(words) {
            for (element, code) in (0u32..).zip(&output.codes) {
                elements[usize::from(*code)] = word >> (bits * element + first) & mask;
            }
        }
        elements
    }

    /// The expected element of a code; NaN and infinity if the code is.
    pub fn expected(&self, code: u32) -> f64 {
        match self.encoding {
            OutputEncoding::Code => f64::from(code),
            OutputEncoding::Value { add, exponent } => {
                (self.weight.decode(code) + f64::from(add)) * 2f64.powi(exponent)
            }
            OutputEncoding::Rounded { exponent } => {
                let value = self.weight.decode(code) * 2f64.powi(exponent);
                self.operand.number().decode(self.operand.number().encode(value, Overflow::Special))
            }
        }
    }

    /// Whether steps read only defined registers, and each code's bits and element are placed once.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self) -> Result<(), SequenceFault> {
        let template = self.template;
        let mut written = self.inputs.len();
        let is_written = |arg: &Arg, written: usize| match arg {
            Arg::Register(SequenceRegister(register)) if usize::from(*register) >= written => {
                Err(SequenceFault::Unwritten { template, register: *register })
            }
            _ => Ok(()),
        };
        for step in &self.steps {
            for arg in step.args() {
                is_written(&arg, written)?;
            }
            written += 1;
        }
        for output in &self.outputs {
            is_written(&Arg::Register(output.register), written)?;
        }
        self.check_placement()
    }

    fn check_placement(&self) -> Result<(), SequenceFault> {
        let fault = |code| SequenceFault::Placement { template: self.template, code };
        let mut held = vec![0u32; self.unit()];
        for fields in &self.inputs {
            let mut taken = 0u32;
            for field in fields {
                let code = usize::from(field.code);
                let width = field.slice.1 - field.slice.0;
                let bits =
                    (1u32.checked_shl(width.into()).unwrap_or(0).wrapping_sub(1)) << field.at;
                let slice = ((1u32 << width) - 1) << field.slice.0;
                if code >= held.len() || taken & bits != 0 || held[code] & slice != 0 {
                    return Err(fault(code));
                }
                taken |= bits;
                held[code] |= slice;
            }
        }
        let whole = (1u32 << self.weight.code.bits()) - 1;
        let mut seen = vec![false; self.unit()];
        for code in self.outputs.iter().flat_map(|output| &output.codes) {
            let slot = seen.get_mut(usize::from(*code)).ok_or_else(|| fault((*code).into()))?;
            *slot = true;
        }
        let missing = (0..held.len()).find(|code| held[*code] != whole || !seen[*code]);
        missing.map_or(Ok(()), |code| Err(fault(code)))
    }

    /// Runs every code at every position, with several neighbouring codes, against the number formats.
    ///
    /// # Errors
    /// The first wrong element.
    pub fn prove(&self) -> Result<(), SequenceFault> {
        self.check()?;
        let mask = (1u32 << self.weight.code.bits()) - 1;
        // Neighbours equal, rising, falling, and complementary, to find bits that leak over a field's
        // edge.
        for step in [0, 1, mask, 0x5b] {
            for code in 0..=mask {
                let at = |position: u32| (code + position * step) & mask;
                let codes: Vec<u32> = (0..self.unit() as u32).map(at).collect();
                self.compare(&codes)?;
            }
        }
        // Each code alone, among zeros and among ones.
        for around in [0, mask] {
            for code in 0..=mask {
                for position in 0..self.unit() {
                    let mut codes = vec![around; self.unit()];
                    codes[position] = code;
                    self.compare(&codes)?;
                }
            }
        }
        Ok(())
    }

    fn compare(&self, codes: &[u32]) -> Result<(), SequenceFault> {
        for (position, (element, code)) in self.run(codes).into_iter().zip(codes).enumerate() {
            let expected = self.expected(*code);
            let found = match self.encoding {
                OutputEncoding::Code => f64::from(element),
                _ => self.operand.number().decode(element),
            };
            let same = expected == found || expected.is_nan() && found.is_nan();
            if !same {
                let (template, code) = (self.template, *code);
                return Err(SequenceFault::Value { template, code, position, expected, found });
            }
        }
        Ok(())
    }
}

/// Writes a sequence step by step.
pub(super) struct Draft {
    inputs: usize,
    steps: Vec<Step>,
    names: Vec<(Arg, &'static str)>,
}

impl Draft {
    pub(super) fn new(inputs: usize) -> Self {
        Self { inputs, steps: Vec::new(), names: Vec::new() }
    }

    pub(super) fn input(&self, number: usize) -> SequenceRegister {
        SequenceRegister(number as u16)
    }

    pub(super) fn push(&mut self, step: Step) -> SequenceRegister {
        self.steps.push(step);
        SequenceRegister((self.inputs + self.steps.len() - 1) as u16)
    }

    /// `w >> by`, or `w` itself.
    pub(super) fn shr(&mut self, word: SequenceRegister, by: u32) -> SequenceRegister {
        if by == 0 { word } else { self.push(Step::Shr(word.into(), by as u8)) }
    }

    /// `w << by`, or `w` itself.
    pub(super) fn shl(&mut self, word: SequenceRegister, by: u32) -> SequenceRegister {
        if by == 0 { word } else { self.push(Step::Shl(word.into(), by as u8)) }
    }

    /// Shifts bits up by a signed amount.
    pub(super) fn shift(&mut self, word: SequenceRegister, up: i32) -> SequenceRegister {
        if up >= 0 { self.shl(word, up as u32) } else { self.shr(word, up.unsigned_abs()) }
    }

    /// The names of registers and constants in sources.
    pub(super) fn name(&mut self, what: impl Into<Arg>, name: &'static str) {
        let what = what.into();
        if !self.names.iter().any(|(known, _)| *known == what) {
            self.names.push((what, name));
        }
    }

    /// The steps, and the names.
    pub(super) fn finish(self) -> (Vec<Step>, Vec<(Arg, &'static str)>) {
        (self.steps, self.names)
    }
}
