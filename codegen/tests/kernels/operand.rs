//! The operand of x: the arguments of the kernels that make it, and what they must leave, by the
//! reference.

use std::collections::BTreeMap;

use quantloom_codegen::ir::{Kernel, Verified};
use quantloom_codegen::plan::OperandType;
use quantloom_codegen::schedule::activation::ActivationProblem;
use quantloom_codegen::sim::{Arguments, Contents, Report, SimulationOptions, run};
use quantloom_dsl::format::{F32, FloatFormat, Number, Overflow};
use quantloom_dsl::reference::{QuantisedActivation, StaticInput, quantise_activation};
use quantloom_dsl::{Quantiser, ScaleType, Scheme};

use super::product::Random;

/// Rows of x, of many kinds, and what is given of its quantiser.
pub struct Rows {
    own: FloatFormat,
    m: usize,
    k: usize,
    x: Vec<f64>,
    given: StaticInput,
    order: Vec<u32>,
}

/// What a row of x is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowValues {
    /// In -3..3.
    Plain,
    /// Halfway between neighbouring codes, where the scale is 1.
    Ties,
    /// Of many sizes, eighths of a power of two among them.
    Wide,
    /// Zeros of both signs.
    Zeros,
    /// Around the smallest normal number of the type.
    Tiny,
    /// Up to the largest number of the type.
    Huge,
    /// Mostly small, some large; all positive.
    Outliers,
    /// NaN and infinities among others.
    NotFinite,
    /// Nothing but NaN.
    NaN,
}

impl RowValues {
    pub const ALL: [Self; 9] = [
        Self::Plain,
        Self::Ties,
        Self::Wide,
        Self::Zeros,
        Self::Tiny,
        Self::Huge,
        Self::Outliers,
        Self::NotFinite,
        Self::NaN,
    ];

    fn value(self, own: FloatFormat, ties: &[f64], column: usize, random: &mut Random) -> f64 {
        let unit = (random.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        let number = random.next();
        match self {
            Self::Plain => 3.0 * unit,
            Self::Ties => ties[if column < 2 { column } else { number as usize % ties.len() }],
            Self::Wide => {
                let size = f64::from(1 << (number % 13)) / 64.0;
                if number.is_multiple_of(3) {
                    (8.0 * unit).trunc() / 8.0 * size
                } else {
                    unit * size
                }
            }
            Self::Zeros => 0.0f64.copysign(unit),
            Self::Tiny => unit * own.decode(1) * f64::from(1 << (number % 14)),
            Self::Huge => unit * own.max(),
            Self::Outliers if number.is_multiple_of(50) => 100.0 * unit.abs(),
            Self::Outliers => 0.01 * unit.abs(),
            Self::NotFinite => match number % 60 {
                0 => f64::INFINITY,
                1 => f64::NEG_INFINITY,
                2..10 => f64::NAN,
                _ => unit,
            },
            Self::NaN => f64::NAN,
        }
    }
}

/// The ends of a code's range, then points halfway between neighbours.
fn ties(code: Number) -> Vec<f64> {
    let mut values: Vec<f64> = (0..1u32 << code.bits())
        .map(|stored| code.decode(stored))
        .filter(|value| value.is_finite())
        .collect();
    values.sort_by(f64::total_cmp);
    let between = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    [code.max(), code.min()].into_iter().chain(between).collect()
}

impl Rows {
    /// A row of each kind.
    pub fn draw(
        quantiser: Option<&Quantiser>,
        own: FloatFormat,
        k: usize,
        kinds: &[RowValues],
        seed: u64,
    ) -> Self {
        let mut random = Random(seed);
        let code = quantiser.map_or(Number::Int(8), |quantiser| quantiser.code);
        let levels = quantiser.map_or(&[][..], |quantiser| &quantiser.scales);
        // Their reciprocals alone round some ties the other way.
        let mut number = |size: f64, number: Number| {
            number.round(size * [1.625, 1.75, 1.875][random.next() as usize % 3])
        };
        let mut given = StaticInput::default();
        for level in levels {
            let stored = match level.number {
                ScaleType::InputDtype => Number::Float(own),
                ScaleType::Number(number) => number,
            };
            let size = if level.divide { 512.0 } else { 0.015625 };
            let count = if level.stored { 1 } else { 0 };
            given.scales.push((0..count).map(|_| number(size, stored)).collect());
        }
        if let (Some(zero), Some(level)) = (quantiser.and_then(|q| q.zero), levels.first()) {
            let count = if level.stored { 1 } else { 0 };
            given.zeros = (0..count).map(|_| number(5.0, zero)).collect();
        }
        // Ties of a static scale of few bits.
        let step = match levels {
            [level] if level.stored && !level.divide => given.scales[0][0],
            _ => 1.0,
        };
        let ties: Vec<f64> = ties(code).into_iter().map(|tie| tie * step).collect();
        let mut x = Vec::new();
        for kind in kinds {
            x.extend((0..k).map(|at| own.round(kind.value(own, &ties, at, &mut random))));
        }
        Self { own, m: kinds.len(), k, x, given, order: Vec::new() }
    }

    /// Columns with factors of a type, of both signs, 1 and 0 among them.
    pub fn with_factors(mut self, number: Number) -> Self {
        let mut random = Random(6);
        let factor = |at: usize| match at % 16 {
            0 => 1.0,
            1 => 0.0,
            _ => (random.next() >> 11) as f64 / (1u64 << 51) as f64 - 2.0,
        };
        self.given.prescale = (0..self.k).map(factor).map(|factor| number.round(factor)).collect();
        self
    }

    /// Columns in another order, with zeros among them.
    pub fn shuffled(mut self, padded: usize) -> Self {
        let mut random = Random(5);
        self.order = (0..self.k as u32).collect();
        self.order.resize(padded, u32::MAX);
        for at in (1..padded).rev() {
            self.order.swap(at, random.next() as usize % (at + 1));
        }
        self
    }

    /// Columns in this order, [`u32::MAX`] for a zero.
    pub fn in_order(self, order: Vec<u32>) -> Self {
        Self { order, ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let width = self.own.bits() as usize / 8;
        let encode = |x: &f64| self.own.encode(*x, Overflow::Special).to_le_bytes();
        self.x.iter().flat_map(|x| encode(x).into_iter().take(width)).collect()
    }

    fn contents(&self, name: &str, bytes: usize) -> Contents {
        let floats = |values: &[f64]| {
            Contents::from_bytes(values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect())
        };
        let contents = match name {
            "x" => Contents::from_bytes(self.bytes()),
            "order" => Contents::from_words(&self.order),
            "input_zero" => floats(&self.given.zeros),
            "prescale" => floats(&self.given.prescale),
            _ => match name.strip_prefix("input_scale_") {
                Some(level) => floats(&self.given.scales[level.parse::<usize>().unwrap()]),
                None => Contents::poison(bytes),
            },
        };
        assert_eq!(contents.bytes.len(), bytes, "{name}");
        contents
    }

    /// Runs the kernels one after the other.
    ///
    /// # Errors
    /// The simulator's fault.
    pub fn simulate(
        &self,
        kernels: &[Verified<Kernel>],
        seed: u64,
    ) -> Result<(BTreeMap<String, Contents>, Vec<Report>), String> {
        let mut memory: BTreeMap<String, Contents> = BTreeMap::new();
        let mut reports = Vec::new();
        for kernel in kernels {
            let parameters = vec![self.m as u32];
            let buffers = kernel.buffers.iter().map(|buffer| {
                let extents = buffer.shape.iter().map(|extent| extent.value(&parameters).unwrap());
                let bytes = extents.product::<u32>() * buffer.word.bytes();
                let kept = memory.get(&buffer.name).cloned();
                kept.unwrap_or_else(|| self.contents(&buffer.name, bytes as usize))
            });
            let mut arguments = Arguments { buffers: buffers.collect(), parameters };
            let options =
                SimulationOptions { seed, limit: 1 << 24, ..SimulationOptions::default() };
            let report = run(kernel, &mut arguments, &options);
            reports.push(report.map_err(|fault| fault.to_string())?);
            let names = kernel.buffers.iter().map(|buffer| buffer.name.clone());
            memory.extend(names.zip(arguments.buffers));
        }
        Ok((memory, reports))
    }

    /// Compares what the kernels left with the reference.
    ///
    /// # Errors
    /// The first element that differs, or the simulator's fault.
    pub fn check(
        &self,
        scheme: &Scheme,
        problem: &ActivationProblem,
        kernels: &[Verified<Kernel>],
    ) -> Result<(), String> {
        let (memory, _) = self.simulate(kernels, 3)?;
        let padded = problem.padded as usize;
        let expected = match problem.quantiser() {
            None => QuantisedActivation {
                codes: self
                    .given
                    .prescaled(scheme, &self.x, self.k, self.own)
                    .unwrap()
                    .into_owned(),
                zeros: vec![0.0; self.x.len()],
                scales: vec![1.0; self.x.len()],
            },
            Some(quantiser) => {
                let (own, given) = (self.own, &self.given);
                quantise_activation(scheme, quantiser, &self.x, self.k, own, given).unwrap()
            }
        };
        let levels = problem.quantiser().map_or(&[][..], |quantiser| &quantiser.scales);
        let (finest, others) = match (levels, problem.codes || problem.folds) {
            ([finest, others @ ..], true) => (finest.stored_number(), others),
            _ => (None, &[][..]),
        };
        // The product multiplies with the other levels, the coarsest first; they are given.
        let outer = others.iter().zip(self.given.scales.iter().skip(1)).rev();
        let outer = outer.fold(1f32, |product, (level, given)| match level.divide {
            true => product / given[0] as f32,
            false => product * given[0] as f32,
        });
        // Of an element that has its finest scale: what the coarser levels leave of the product of all.
        let of_element = |at: usize| match finest {
            Some(number) if problem.folds => number.round(expected.scales[at] / f64::from(outer)),
            _ => 1.0,
        };
        let operand = &memory["operand"].bytes;
        let unit = problem.quantiser().map_or(0, |given| problem.operand.exponent(given.code));
        let unit = 2f64.powi(unit);
        let wide = problem.operand.bits() as usize;
        // Of 6 bits there are 32 in 24 bytes, and zeros up to 32.
        if wide == 6 && operand.chunks(32).any(|bytes| bytes[24..].iter().any(|&byte| byte > 0)) {
            return Err("what follows 32 codes of 6 bits is not 0".to_owned());
        }
        for row in 0..self.m {
            for column in 0..padded {
                let number = row * padded + column;
                let first = match wide {
                    6 => number / 32 * 256 + number % 32 * 6,
                    _ => number * wide,
                };
                let mut bytes = [0; 8];
                let from = &operand[first / 8..operand.len().min(first / 8 + 8)];
                bytes[..from.len()].copy_from_slice(from);
                let bits =
                    u64::from_le_bytes(bytes) >> (first % 8 + problem.operand.first_bit() as usize);
                let bits = bits as u32 & problem.operand.number().mask();
                let from = self.order.get(column).map_or(column, |from| *from as usize);
                let (wanted, value) = match (from < self.k).then_some(row * self.k + from) {
                    None => (0, 0.0),
                    Some(at) => {
                        let number = problem.operand.number();
                        let zero = if problem.leaves_zero() { 0.0 } else { expected.zeros[at] };
                        let value = (expected.codes[at] - zero) * unit;
                        let value = value * of_element(at);
                        let bits = number.encode(value, Overflow::Special);
                        // What is beyond the operand is infinite; below its least number is x in f32 alone.
                        let rounded = number.decode(bits);
                        let exact = rounded == value || !value.is_finite() || rounded.is_infinite();
                        if problem.folds && !exact && self.own != F32 {
                            return Err(format!("the operand has no {value}"));
                        }
                        (bits, if problem.folds { rounded } else { value })
                    }
                };
                // The sign of a zero does not count, and a NaN is a NaN.
                let found = problem.operand.number().decode(bits);
                let same = match problem.operand {
                    OperandType::Bf16 | OperandType::F16 | OperandType::F32
                        if problem.quantiser().is_some() =>
                    {
                        found == value || found.is_nan() && value.is_nan()
                    }
                    _ => {
                        bits == wanted
                            || found == 0.0 && value == 0.0
                            || found.is_nan() && value.is_nan()
                    }
                };
                if !same {
                    let x = (from < self.k).then(|| self.x[row * self.k + from]);
                    return Err(format!(
                        "operand[{row}, {column}] = {found}, expected {value}, of x = {x:?}"
                    ));
                }
            }
        }
        let Some(found) = memory.get("x_scale") else { return Ok(()) };
        let groups = problem.groups() as usize;
        let product = |code: f64| f64::from(code as f32 * outer);
        let numbers: Vec<f64> = match finest {
            Some(number) if problem.codes => {
                found.bytes.iter().map(|&code| product(number.decode(code.into()))).collect()
            }
            _ => found.words().iter().map(|&word| f32::from_bits(word).into()).collect(),
        };
        if problem.folds {
            let other = numbers.iter().position(|&found| found != f64::from(outer));
            return match other {
                Some(row) => Err(format!("x_scale[{row}] = {}, expected {outer}", numbers[row])),
                None => Ok(()),
            };
        }
        let columns = problem.segment.map_or(padded, |columns| columns as usize);
        // A row's scale is followed by its zero point.
        let zeros = usize::from(problem.leaves_zero());
        for row in (0..self.m).filter(|_| zeros > 0) {
            let (found, wanted) = (numbers[2 * row + 1], expected.zeros[row * self.k]);
            if found != wanted && !(found.is_nan() && wanted.is_nan()) {
                return Err(format!("the zero point of row {row} is {found}, expected {wanted}"));
            }
        }
        for row in 0..self.m {
            for group in 0..padded.div_ceil(columns) {
                let mut places = group * columns..padded.min((group + 1) * columns);
                let from = |place| self.order.get(place).map_or(place, |from| *from as usize);
                let found = numbers[row * (groups + zeros) + group];
                // What has pads alone may have any; an instruction that scales multiplies it, with a number.
                let Some(from) = places.find_map(|at| Some(from(at)).filter(|from| *from < self.k))
                else {
                    if problem.codes && !found.is_finite() {
                        return Err(format!("x_scale[{row}, {group}] of pads is {found}"));
                    }
                    continue;
                };
                let wanted = expected.scales[row * self.k + from];
                // A NaN has many codes, and all of them are the same scale.
                if found != wanted && !(found.is_nan() && wanted.is_nan()) {
                    return Err(format!("x_scale[{row}, {group}] = {found}, expected {wanted}"));
                }
            }
        }
        Ok(())
    }
}
