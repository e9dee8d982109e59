//! From lines of h in shared memory ([`super::y_lines`]) to what the second product of an expert layer reads of h.
//!
//! The lines of all warp groups of a block are whole groups of columns. Eight neighbouring lanes read a slot's line of a warp group, the
//! eight after them that of the next warp group, so that lanes have the vectors of a group of columns side by side, and write 8 codes each.

use super::Block;
use super::shape::SWIZZLED_LINES;
use super::stage::LINE;
use super::weights::WarpRows;
use super::y_lines::LINE_ROWS;
use crate::ir::{Address, Builder, Cache, Extent, Mask, Operand, SharedId, Type, Width};
use crate::schedule::activation::{ActivationProblem, OperandOfResults, RESULTS};

/// Vectors of a line.
const VECTORS: u32 = LINE_ROWS / RESULTS;

/// The operand of the rows of a tile.
pub(super) struct HiddenOperand<'p> {
    rows: OperandOfResults<'p>,
    lines: SharedId,
    /// The number of the thread among those of all consumers.
    thread: Operand,
}

impl<'p> HiddenOperand<'p> {
    /// Declares the operand's scales, in a buffer with so many rows.
    pub(super) fn declare(
        b: &mut Builder,
        (block, operand): (&Block<'_>, &'p ActivationProblem),
        (lines, slots): (SharedId, Extent),
        rows: &WarpRows,
    ) -> Self {
        let warp = b.mad(rows.group, block.group_warps(), rows.warp);
        let thread = b.mad(warp, b.warp_size(), rows.lane);
        let (to, m) = (block.io.y, block.io.m);
        let rows = OperandOfResults::declare(b, operand, (lines, to), (slots, m));
        Self { rows, lines, thread }
    }

    /// Waits until the lines of the tile before have been read, by all consumers.
    pub(super) fn wait(&self, b: &mut Builder, block: &Block<'_>) {
        b.comment("the lines before have been read");
        block.consumers().wait(b);
    }

    /// Writes the rows of the block's slots, once all consumers have written their lines.
    pub(super) fn write(&mut self, b: &mut Builder, block: &Block<'_>) {
        let (columns, tokens) = (block.rows_of_y(), block.tile.tokens);
        let (of_row, n) = (columns / RESULTS, block.main.problem.n);
        let threads = block.consumer_warps() * b.warp_size();
        b.comment("lines of all columns of the tile");
        block.consumers().wait(b);
        for further in (0..tokens * of_row).step_by(threads as usize) {
            let number = b.add(self.thread, further);
            let (token, vector) = (b.div(number, of_row), b.rem(number, of_row));
            let mut inside = Operand::Pred(true);
            if further + threads > tokens * of_row {
                inside = b.less(token, tokens);
            }
            let (group, in_line) = (b.div(vector, VECTORS), b.rem(vector, VECTORS));
            let in_eight = b.rem(token, SWIZZLED_LINES);
            let swizzled = b.xor(in_line, in_eight);
            let line = b.mad(group, tokens, token);
            let line = b.mul(line, LINE);
            let from = Address::new(self.lines, b.mad(swizzled, 4u32, line));
            let mask = (inside != Operand::Pred(true)).then(|| Mask::or_zero(inside));
            let words = b.load_as(Type::U32, from, Width::B128, mask, Cache::Default);
            let words: Vec<Operand> = words.into_iter().map(Operand::from).collect();
            let row = b.mad(block.token_block, tokens, token);
            let first = b.mul(block.row_block, columns);
            let column = b.mad(vector, RESULTS, first);
            if !n.is_multiple_of(columns) {
                let exists = b.less(column, n);
                inside = b.both(inside, exists);
            }
            self.rows.write(b, [row, column], inside, &words);
        }
    }
}
