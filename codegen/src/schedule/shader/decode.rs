//! A plan's sequences as operations of a lane, one code after another.

use crate::ir::{Binary, Builder, Compare, Operand, Reg, Unary};
use crate::plan::DequantPlan;
use crate::plan::sequence::{OutputEncoding, Sequence};
use crate::plan::step::{Arg, Register, Step};
use crate::schedule::table::Table;

/// Whether every step of a plan has operations that every target has.
pub(in crate::schedule) fn writable(plan: &DequantPlan) -> bool {
    let step = |step: &Step| {
        matches!(
            step,
            Step::And(..)
                | Step::Or(..)
                | Step::Xor(..)
                | Step::Add(..)
                | Step::Shl(..)
                | Step::Shr(..)
                | Step::Sar(..)
                | Step::IntToF32(_)
                | Step::AddF32(..)
                | Step::Equal(..)
                | Step::LookupF32 { .. }
        )
    };
    plan.stages.iter().flat_map(|stage| &stage.steps).all(step)
}

/// The elements of a chunk of a row, in the order of its columns: one f32 each, or four bytes.
pub(super) fn decode(
    b: &mut Builder,
    (plan, table): (&DequantPlan, Option<Table>),
    words: &[Reg],
) -> Vec<Operand> {
    let words: Vec<Operand> = words.iter().map(|word| (*word).into()).collect();
    let joined = match &plan.stages[..] {
        [planes, ..] if plan.joins_planes() => run(b, (planes, None), &words),
        _ => words,
    };
    match plan.stages.last().filter(|last| last.encoding != OutputEncoding::Code) {
        // One word of codes after another.
        Some(last) => joined.iter().flat_map(|word| run(b, (last, table), &[*word])).collect(),
        None => joined,
    }
}

/// Runs a sequence: its outputs, in the order of their codes.
fn run(
    b: &mut Builder,
    (sequence, lookup): (&Sequence, Option<Table>),
    words: &[Operand],
) -> Vec<Operand> {
    let mut values = words.to_vec();
    // Steps that work in f32 read and leave bits.
    for step in &sequence.steps {
        let arg = |arg: &Arg| match arg {
            Arg::Register(Register(at)) => values[usize::from(*at)],
            Arg::Word(word) => Operand::U32(*word),
        };
        let float = |b: &mut Builder, value: Operand| match value {
            Operand::U32(bits) => Operand::F32(f32::from_bits(bits)),
            value => b.unary(Unary::AsF32, value),
        };
        let value = match step {
            Step::And(x, y) => b.and(arg(x), arg(y)),
            Step::Or(x, y) => b.binary(Binary::Or, arg(x), arg(y)),
            Step::Xor(x, y) => b.xor(arg(x), arg(y)),
            Step::Add(x, y) => b.add(arg(x), arg(y)),
            Step::Shl(x, by) => b.shl(arg(x), u32::from(*by)),
            Step::Shr(x, by) => b.shr(arg(x), u32::from(*by)),
            Step::Sar(x, by) => b.binary(Binary::ShrSigned, arg(x), u32::from(*by)),
            Step::IntToF32(x) => {
                let value = b.unary(Unary::F32FromS32, arg(x));
                b.unary(Unary::AsU32, value)
            }
            Step::AddF32(x, y) => {
                let (x, y) = (float(b, arg(x)), float(b, arg(y)));
                let sum = b.add_f32(x, y);
                b.unary(Unary::AsU32, sum)
            }
            Step::Equal(x, y) => {
                let equal = b.compare(Compare::Equal, arg(x), arg(y));
                b.select(equal, u32::MAX, 0u32)
            }
            Step::LookupF32 { table, index } => {
                // Of a table of 16 the low four bits choose.
                let index = match table.len() {
                    16 => b.and(arg(index), 15u32),
                    _ => arg(index),
                };
                lookup.map_or(Operand::U32(0), |lookup| lookup.read(b, index))
            }
            // `writable` has refused the others.
            _ => Operand::U32(0),
        };
        values.push(value);
    }
    let mut outputs: Vec<_> = sequence.outputs.iter().collect();
    outputs.sort_by_key(|output| output.codes.first().copied());
    let floats = sequence.operand == crate::plan::Operand::F32;
    let value = |b: &mut Builder, at: Register| match floats {
        true => b.unary(Unary::AsF32, values[usize::from(at.0)]),
        false => values[usize::from(at.0)],
    };
    outputs.into_iter().map(|output| value(b, output.register)).collect()
}
