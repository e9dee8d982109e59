//! The gate of an expert layer in the epilogue: two sums of a block become one result.
//!
//! A block multiplies tiles of gate and of up in turn (`stack`), so that the sums of a result are a tile of
//! rows apart. Both are finished, scales and biases included, before the gate.

use quantloom_dsl::experts::Gate;
use quantloom_dsl::format::NUMBER_F32;

use super::Epilogue;
use crate::ir::{Address, Builder, Operand, Special, Width};
use crate::schedule::buffers::ProductBuffers;
use crate::schedule::experts::function::gate;
use crate::schedule::mapping::MainLoop;
use crate::schedule::participants::Participants;
use crate::schedule::routed_block::RoutedBlock;

/// The row in the block of a result's first sum; the second one, if there is one, is a tile further.
pub(in crate::schedule) fn row_of_sum(
    b: &mut Builder,
    main: &MainLoop<'_>,
    row: Operand,
) -> Operand {
    let (of_tile, together) = (main.problem.plan.native.rows, main.problem.together());
    if together == 1 {
        return row;
    }
    let (tile, in_tile) = (b.div(row, of_tile), b.rem(row, of_tile));
    b.mad(tile, together * of_tile, in_tile)
}

impl Epilogue<'_> {
    /// The results of some rows of a token; `sums` gives the sums of rows of the block.
    pub(super) fn gated(
        &self,
        b: &mut Builder,
        of: Gate,
        [token, row]: [Operand; 2],
        sums: &mut dyn FnMut(&mut Builder, [Operand; 2]) -> Vec<Operand>,
    ) -> Vec<Operand> {
        let first = row_of_sum(b, self.main, row);
        let mut finished = |b: &mut Builder, row: Operand| {
            let values = sums(b, [token, row]);
            self.constants.finish(b, [token, row], self.width(), &values)
        };
        if of.shards() == 1 {
            let values = finished(b, first);
            return values.into_iter().map(|g| gate(b, of, g, g)).collect();
        }
        // A tile of results has its sums in half of the banks: of two tiles that are read together one reads
        // gate first and the other one up.
        let of_tile = self.main.problem.plan.native.rows;
        let result = b.mad(token, self.rows_of_y(), row);
        let turned = b.div(result, of_tile);
        let turned = b.rem(turned, 2);
        let one = b.mad(turned, of_tile, first);
        let other = b.xor(one, of_tile);
        let (one, other) = (finished(b, one), finished(b, other));
        let turned = b.equal(turned, 1u32);
        let pairs = one.into_iter().zip(other).map(|(one, other)| {
            let (g, u) = (b.select(turned, other, one), b.select(turned, one, other));
            gate(b, of, g, u)
        });
        pairs.collect()
    }
}

/// Writes the zeros of a token block that is not in use: rows of slots without a pair. `rows` are those of
/// w of a block.
pub(in crate::schedule) fn zeros(
    b: &mut Builder,
    (main, io): (&MainLoop<'_>, &ProductBuffers),
    block: &RoutedBlock,
    (rows, by): (u32, Participants),
) {
    let (n, rows) = (main.problem.n, rows / main.problem.together());
    let slots = block.slots();
    let tokens = block.rows_of_slots(b, slots);
    let at_once = if n.is_multiple_of(4) { 4 } else { 1 };
    let (width, words) = match (main.problem.output == NUMBER_F32, at_once) {
        (true, 4) => (Width::B128, 4),
        (true, _) => (Width::B32, 1),
        (false, 4) => (Width::B64, 2),
        (false, _) => (Width::B16, 1),
    };
    // Of blocks that split K one.
    let first = b.equal(block.split, 0u32);
    b.when(first, |b| {
        let (thread, threads) = (b.special(Special::Thread), by.threads(b));
        b.for_each(thread, slots * rows / at_once, threads, "result", |b, result| {
            let first = b.mul(result, at_once);
            let (token, row) = (b.div(first, rows), b.rem(first, rows));
            let number = tokens.number(b, token);
            let n_first = b.mad(block.row_block, rows, row);
            let there = b.less(n_first, n);
            let at = b.mad(number, n, n_first);
            b.store(Address::new(io.y, at), &vec![Operand::U32(0); words], width, Some(there));
        });
    });
}
