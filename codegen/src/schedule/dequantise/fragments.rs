//! Fragments of A in the order of codes: of words that `ldmatrix` has distributed, these are whole fragments of x in
//! its own order (`plan::native`).

use super::{ByRow, run, written};
use crate::ir::{Builder, Reg};
use crate::plan::sequence::OutputEncoding;
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
    let mut before = before * of_step;
    let joined = match &plan.stages[..] {
        [planes, ..] if plan.joins_planes() => {
            let joined = run(b, (planes, None), chunk, (&mut ByRow::default(), 0));
            written(b, planes, joined)
        }
        _ => chunk.to_vec(),
    };
    let decode = plan.stages.last().filter(|last| last.encoding != OutputEncoding::Code);
    // The same word of all units is adjacent.
    let units = joined.len() / decode.map_or(1, |sequence| sequence.inputs.len());
    let mut registers = Vec::new();
    for unit in 0..units {
        let words: Vec<Reg> = joined.iter().skip(unit).step_by(units).copied().collect();
        let decoded = match decode {
            Some(sequence) => {
                let decoded = run(b, (sequence, table), &words, (by_row, before));
                written(b, sequence, decoded)
            }
            None => words,
        };
        before += decoded.len();
        registers.extend(decoded);
        while registers.len() >= of_step {
            each(b, registers.drain(..of_step).collect());
        }
    }
}
