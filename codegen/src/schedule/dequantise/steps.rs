//! Which registers of the operand are decoded when: step by step of the product, so that few of them wait.
//!
//! A step takes registers of one unit of codes, of several, or of parts of several
//! ([`NativeLayout::in_order_of_columns`](crate::plan::NativeLayout::in_order_of_columns)). In the last case the
//! units are decoded as far as the next step needs them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{ByRow, Registers, in_register, run, written};
use crate::ir::{Builder, Operand, Reg, Type, Uniformity};
use crate::plan::sequence::{OutputWord, Sequence};
use crate::schedule::mapping::MainLoop;
use crate::schedule::table::Table;

/// A step of the product whose registers of A are complete.
pub(in crate::schedule) struct StepOfA {
    /// Its number in the k-tile, in the order of columns: the step takes the registers of x of that number.
    pub(in crate::schedule) step: usize,
    /// How many steps of the k-tile were passed on before. The steps of a segment follow each other.
    pub(in crate::schedule) before: usize,
    /// A.
    pub(in crate::schedule) a: Vec<Reg>,
}

/// Dequantises one lane's codes of a k-tile, chunk by chunk, and passes the registers of A to `each`, step by
/// step of the product: each A is used as soon as it is complete.
pub(in crate::schedule) fn steps(
    b: &mut Builder,
    (main, table): (&MainLoop<'_>, Option<Table>),
    chunks: &[Vec<Reg>],
    by_row: &mut ByRow,
    mut each: impl FnMut(&mut Builder, StepOfA),
) {
    let plan = &main.problem.plan.dequant;
    let of_step = main.lanes().a.registers;
    // Registers and steps of the k-tile so far.
    let (mut before, mut passed) = (0, 0);
    // Steps, by number, of which some registers are missing.
    let mut waiting: BTreeMap<usize, Vec<Option<Reg>>> = BTreeMap::new();
    for chunk in chunks {
        let joined = match plan.joining() {
            Some(planes) => {
                let joined = run(b, (planes, None), chunk, (&mut ByRow::default(), 0));
                written(b, planes, joined)
            }
            None => chunk.clone(),
        };
        let decode = plan.decoding();
        let mut units = Unit::all(decode, &joined, before);
        let of_unit = units.first().map_or(1, Unit::registers);
        let order = Order::new(main, before..before + of_unit * units.len());
        for register in order.registers {
            let (unit, in_unit) = ((register - before) / of_unit, (register - before) % of_unit);
            let last = if order.whole_units { of_unit - 1 } else { in_unit };
            units[unit].decode(b, table, by_row, last);
            let [step, at] = place_of(main, register);
            let a = waiting.entry(step).or_insert_with(|| vec![None; of_step]);
            a[at] = Some(units[unit].register(b, in_unit));
            if let Some(a) = a.iter().copied().collect() {
                waiting.remove(&step);
                each(b, StepOfA { step, before: passed, a });
                passed += 1;
            }
        }
        before += of_unit * units.len();
    }
}

/// The order in which the registers of the operand in a chunk are used.
struct Order {
    /// Their numbers, from the k-tile's first register on in the order of codes: step after step, a step when
    /// the codes of all of its registers were reached.
    registers: Vec<usize>,
    /// Whether no step takes parts of several units.
    whole_units: bool,
}

impl Order {
    fn new(main: &MainLoop<'_>, numbers: Range<usize>) -> Self {
        let step = |register| place_of(main, register)[0];
        let mut last = BTreeMap::new();
        numbers.clone().for_each(|register| {
            last.insert(step(register), register);
        });
        let mut registers: Vec<usize> = numbers.clone().collect();
        registers.sort_by_key(|&register| (last[&step(register)], register));
        let whole_units = registers.iter().copied().eq(numbers);
        Self { registers, whole_units }
    }
}

/// The step, in the order of columns, that takes a register of the operand; the register is numbered in the order
/// of codes from the k-tile's first on.
pub(in crate::schedule) fn step_of_register(main: &MainLoop<'_>, register: usize) -> usize {
    place_of(main, register)[0]
}

/// The step and the register of A that a register of the operand becomes, which is numbered in the order of
/// codes from the k-tile's first on.
fn place_of(main: &MainLoop<'_>, register: usize) -> [usize; 2] {
    let (rows, of_step) = (main.lanes().a.rows.len as usize, main.lanes().a.registers);
    let of_chunk = main.problem.plan.native.columns as usize * of_step / main.step() as usize;
    let (chunk, in_chunk) = (register / of_chunk, register % of_chunk);
    let column = main.problem.plan.native.in_order_of_columns(in_chunk / rows);
    let place = chunk * of_chunk + column * rows + in_chunk % rows;
    [place / of_step, place % of_step]
}

/// A unit of codes, of which registers of the operand are decoded one after another.
pub(super) struct Unit<'s> {
    /// `None` if words are registers of the operand as they are.
    sequence: Option<&'s Sequence>,
    /// The words, and the results of the first steps of the sequence.
    values: Vec<Operand>,
    /// How many registers of the operand precede those of the unit in the k-tile.
    before: usize,
}

impl<'s> Unit<'s> {
    /// The units of a chunk: the same word of all units is adjacent.
    pub(super) fn all(sequence: Option<&'s Sequence>, words: &[Reg], before: usize) -> Vec<Self> {
        let units = words.len() / sequence.map_or(1, |sequence| sequence.inputs.len());
        let of_unit = sequence.map_or(1, |sequence| sequence.outputs.len());
        let unit = |unit| {
            let values = words.iter().skip(unit).step_by(units);
            let values = values.map(|&word| word.into()).collect();
            Self { sequence, values, before: before + unit * of_unit }
        };
        (0..units).map(unit).collect()
    }

    /// Registers of the operand.
    pub(super) fn registers(&self) -> usize {
        self.sequence.map_or(1, |sequence| sequence.outputs.len())
    }

    /// The outputs of the sequence in the order of their first codes, which number the registers of the operand.
    fn outputs(sequence: &Sequence) -> Vec<&OutputWord> {
        let mut outputs: Vec<&OutputWord> = sequence.outputs.iter().collect();
        outputs.sort_by_key(|output| output.codes.first().copied());
        outputs
    }

    /// Runs the sequence up to the step of the register of this number. A step without an operation, which
    /// [`writable`](super::writable) refuses, leaves registers unwritten, which the verifier refuses.
    pub(super) fn decode(
        &mut self,
        b: &mut Builder,
        table: Option<Table>,
        by_row: &mut ByRow,
        register: usize,
    ) {
        let Some(sequence) = self.sequence else { return };
        let step = |output: &&OutputWord| sequence.step_of(output).map_or(0, |step| step + 1);
        let outputs = Self::outputs(sequence);
        let most = outputs.iter().take(register + 1).map(step).max().unwrap_or(0);
        let values = std::mem::take(&mut self.values);
        let mut registers = Registers { b, values, table };
        while registers.values.len() < sequence.inputs.len() + most
            && registers.step(sequence, (by_row, self.before)).is_some()
        {}
        self.values = registers.values;
    }

    /// The register of this number, which was decoded.
    pub(super) fn register(&self, b: &mut Builder, register: usize) -> Reg {
        let at = self.sequence.map_or(Some(register), |sequence| {
            Self::outputs(sequence).get(register).map(|output| usize::from(output.register.0))
        });
        match at.and_then(|at| self.values.get(at)) {
            Some(&value) => in_register(b, value),
            None => b.variable("missing", Type::U32, Uniformity::Varying),
        }
    }
}
