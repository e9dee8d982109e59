//! Fragments of A in the order of codes: of words that `ldmatrix` has distributed, these are whole fragments of x in
//! its own order (`plan::native`).

use super::steps::Unit;
use super::{ByRow, run, written};
use crate::ir::{Builder, Reg};
use crate::schedule::mapping::MainLoop;
use crate::schedule::table::Table;

/// Dequantises the words of a chunk, and passes one fragment after another to `each` as soon as it is complete.
/// `before` fragments of the k-tile precede these.
pub(in crate::schedule) fn fragments(
    b: &mut Builder,
    (main, table): (&MainLoop<'_>, Option<Table>),
    chunk: &[Reg],
    (by_row, before): (&mut ByRow, usize),
    mut each: impl FnMut(&mut Builder, Vec<Reg>),
) {
    let (plan, of_step) = (&main.problem.plan.dequant, main.lanes().a.registers);
    let (words, sequence) = match (plan.joining(), plan.decoding()) {
        (Some(planes), Some(decode)) => {
            let joined = run(b, (planes, None), chunk, (&mut ByRow::default(), 0));
            (written(b, planes, joined), Some(decode))
        }
        (planes, decode) => (chunk.to_vec(), decode.or(planes)),
    };
    let mut registers = Vec::new();
    for mut unit in Unit::all(sequence, &words, before * of_step) {
        let of_unit = unit.registers();
        unit.decode(b, table, by_row, of_unit - 1);
        for register in 0..of_unit {
            registers.push(unit.register(b, register));
            if registers.len() == of_step {
                each(b, std::mem::take(&mut registers));
            }
        }
    }
}
