//! A plan's sequences as operations of one lane, code by code.

use crate::ir::{Binary, Builder, Compare, Operand, Reg, Type, Unary, Uniformity};
use crate::plan::DequantPlan;
use crate::plan::sequence::Sequence;
use crate::plan::sink::{ShiftOp, StepSink, WordOp};
use crate::plan::step::{Arg, SequenceRegister};
use crate::schedule::table::Table;
use crate::target::Target;

/// Whether every target has an operation for each step of a plan, so that [`decode`] can write the plan;
/// tried on a kernel that is dropped.
pub(in crate::schedule) fn writable(plan: &DequantPlan, target: &'static Target) -> bool {
    let mut b = Builder::trial(target);
    let table = Table::declare(&mut b, plan);
    plan.stages.iter().all(|sequence| {
        let words = sequence.inputs.len() as u32;
        let words = b.array("codes", Type::U32, words, Uniformity::Varying);
        let words: Vec<Operand> = words.into_iter().map(Operand::from).collect();
        run(&mut b, (sequence, table), &words).is_some()
    })
}

/// The elements of a chunk of a row, in the order of its columns: one f32 each, or four bytes.
pub(super) fn decode(
    b: &mut Builder,
    (plan, table): (&DequantPlan, Option<Table>),
    words: &[Reg],
) -> Vec<Operand> {
    let words: Vec<Operand> = words.iter().map(|word| (*word).into()).collect();
    let joined = match plan.joining() {
        Some(planes) => written(b, (planes, None), &words),
        None => words,
    };
    match plan.decoding() {
        // Word by word.
        Some(last) => joined.iter().flat_map(|word| written(b, (last, table), &[*word])).collect(),
        None => joined,
    }
}

/// The outputs of a sequence that [`writable`] has accepted. If there were none, their registers would
/// stay unwritten, which the verifier refuses.
fn written(
    b: &mut Builder,
    (sequence, table): (&Sequence, Option<Table>),
    words: &[Operand],
) -> Vec<Operand> {
    let none = |b: &mut Builder| {
        let registers = sequence.outputs.len() as u32;
        let registers = b.array("missing", Type::U32, registers, Uniformity::Varying);
        registers.into_iter().map(Operand::from).collect()
    };
    run(b, (sequence, table), words).unwrap_or_else(|| none(b))
}

/// Runs a sequence: its outputs in the order of their codes; `None` if a step has no operation here.
fn run(
    b: &mut Builder,
    (sequence, table): (&Sequence, Option<Table>),
    words: &[Operand],
) -> Option<Vec<Operand>> {
    let mut lane = Lane { b, values: words.to_vec(), table };
    for step in &sequence.steps {
        let value = step.lower(&mut lane)?;
        lane.values.push(value);
    }
    let Lane { b, values, .. } = lane;
    let mut outputs: Vec<_> = sequence.outputs.iter().collect();
    outputs.sort_by_key(|output| output.codes.first().copied());
    let floats = sequence.operand == crate::plan::OperandType::F32;
    let value = |b: &mut Builder, at: SequenceRegister| match floats {
        true => b.unary(Unary::AsF32, values[usize::from(at.0)]),
        false => values[usize::from(at.0)],
    };
    Some(outputs.into_iter().map(|output| value(b, output.register)).collect())
}

/// The registers of a sequence as values of a lane. Steps that work in f32 read and leave bits.
struct Lane<'b> {
    b: &'b mut Builder,
    values: Vec<Operand>,
    table: Option<Table>,
}

impl Lane<'_> {
    fn float(&mut self, value: Operand) -> Operand {
        match value {
            Operand::U32(bits) => Operand::F32(f32::from_bits(bits)),
            value => self.b.unary(Unary::AsF32, value),
        }
    }
}

impl StepSink for Lane<'_> {
    type Value = Operand;

    fn arg(&mut self, arg: Arg) -> Operand {
        match arg {
            Arg::Register(SequenceRegister(at)) => self.values[usize::from(at)],
            Arg::Word(word) => Operand::U32(word),
        }
    }

    fn word(&mut self, op: WordOp, x: Operand, y: Operand) -> Option<Operand> {
        Some(match op {
            WordOp::And => self.b.and(x, y),
            WordOp::Or => self.b.binary(Binary::Or, x, y),
            WordOp::Xor => self.b.xor(x, y),
            WordOp::Add => self.b.add(x, y),
        })
    }

    fn shift(&mut self, op: ShiftOp, x: Operand, by: u8) -> Option<Operand> {
        let by = u32::from(by);
        match op {
            ShiftOp::Left => Some(self.b.shl(x, by)),
            ShiftOp::Right => Some(self.b.shr(x, by)),
            ShiftOp::RightSigned => Some(self.b.binary(Binary::ShrSigned, x, by)),
            ShiftOp::RotateLeft => None,
        }
    }

    fn lookup_f32(&mut self, table: &[u32], index: Operand) -> Option<Operand> {
        // The low four bits index a table of 16.
        let index = match table.len() {
            16 => self.b.and(index, 15u32),
            _ => index,
        };
        Some(self.table?.read(self.b, index))
    }

    fn int_to_f32(&mut self, x: Operand) -> Option<Operand> {
        let value = self.b.unary(Unary::F32FromS32, x);
        Some(self.b.unary(Unary::AsU32, value))
    }

    fn add_f32(&mut self, x: Operand, y: Operand) -> Option<Operand> {
        let (x, y) = (self.float(x), self.float(y));
        let sum = self.b.add_f32(x, y);
        Some(self.b.unary(Unary::AsU32, sum))
    }

    fn equal(&mut self, x: Operand, y: Operand) -> Option<Operand> {
        let equal = self.b.compare(Compare::Equal, x, y);
        Some(self.b.select(equal, u32::MAX, 0u32))
    }
}
