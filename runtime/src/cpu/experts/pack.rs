//! Rows of x or of h to packed token blocks.
//!
//! In: rows by slot, token blocks. Out: for each block a line that says how its rows are packed, then
//! the rows in each way that its expert's matrices read. Blocks are packed in parallel.

use std::sync::{Mutex, PoisonError};

use quantloom_dsl::format::FloatFormat;

use super::super::activation::PackedTokens;
use super::super::native::NativeWeight;
use super::super::product::{CpuProduct, NextPanels};
use super::super::quantiser::ValueRange;
use super::super::queue::{self, Line};
use super::super::rows::{InputRows, RowIndex};
use super::blocks::{StoredBlock, TokenBlock};
use super::stack::Stack;
use crate::buffer::BumpAllocator;
use crate::element::Values;
use crate::op::ProductError;

/// What is packed.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// [rows, K].
    pub(super) x: Values<'a>,
    pub(super) k: usize,
    /// The row of each slot; without an index, slot s is row s.
    pub(super) index: Option<RowIndex<'a>>,
    /// The rows that share a dynamic scale over rows: the first so many tokens of an index.
    pub(super) all: (Option<RowIndex<'a>>, usize),
}

impl Rows<'_> {
    /// The range of all rows, multiplied by a prescale.
    fn range(&self, factors: &[f32]) -> ValueRange {
        let Self { x, k, all: (index, count), .. } = *self;
        InputRows { x, k, index, factors }.range(count)
    }
}

/// Fewer elements than this are packed by the caller's thread: waking another takes longer.
const FEW: usize = 1 << 15;

/// Packs all blocks; `bounds` gets the first line of each, and the last one's end. If all blocks are
/// the same row, read in the same way (the experts of one token), the first block alone is packed,
/// for all of them: the number of packed blocks is returned.
///
/// # Errors
/// [`ProductError::NotFinite`] with the row of the first value that cannot be quantised.
pub(super) fn pack(
    stack: &Stack,
    rows: Rows<'_>,
    blocks: &[StoredBlock],
    bounds: &mut [u32],
    packed: &mut [Line],
    (scratch, lines): (&mut [Line], usize),
) -> Result<usize, ProductError> {
    let mut end = 0;
    let mut elements = 0;
    let first = |block: &StoredBlock| TokenBlock::from(*block).first;
    let one_row = |index: RowIndex<'_>| {
        let row = |block: &StoredBlock| index.pairs[first(block)] as usize / index.choices;
        let same = |two: &[StoredBlock]| row(&two[0]) == row(&two[1]);
        // Blocks are in falling order of their rows.
        blocks.first().is_some_and(|largest| TokenBlock::from(*largest).rows == 1)
            && blocks.windows(2).all(same)
    };
    let once = stack.all_alike() && rows.index.is_some_and(one_row);
    let blocks = if once { &blocks[..1] } else { blocks };
    for (at, block) in blocks.iter().enumerate() {
        let block = TokenBlock::from(*block);
        bounds[at] = end as u32;
        end += stack.block_lines(block.expert, block.rows);
        elements += block.rows * rows.k;
    }
    bounds[blocks.len()] = end as u32;
    let bounds = &bounds[..=blocks.len()];
    // Without prescales the range is the same for every matrix.
    let spans = stack.spans_tokens(rows.x.format());
    let common = spans && stack.matrices().iter().all(|matrix| matrix.factors().is_empty());
    let common = common.then(|| rows.range(&[]));
    let refused: Mutex<Option<ProductError>> = Mutex::new(None);
    let scratch = if elements < FEW { &mut scratch[..lines] } else { scratch };
    queue::share_parts(packed, bounds, scratch, lines, |at, part, scratch| {
        let range = |factors: &[f32]| spans.then(|| common.unwrap_or_else(|| rows.range(factors)));
        if let Err(error) = block(stack, rows, blocks[at].into(), &range, part, scratch) {
            let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
            if refused.as_ref().is_none_or(|known| row_of(&error) < row_of(known)) {
                *refused = Some(error);
            }
        }
    });
    let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
    refused.map_or(Ok(blocks.len()), Err)
}

/// The row that an error names.
fn row_of(error: &ProductError) -> usize {
    match error {
        ProductError::NotFinite { token, .. } => *token,
        _ => 0,
    }
}

/// Packs one block into its part.
fn block(
    stack: &Stack,
    rows: Rows<'_>,
    block: TokenBlock,
    range: &dyn Fn(&[f32]) -> Option<ValueRange>,
    part: &mut [Line],
    scratch: &mut [Line],
) -> Result<(), ProductError> {
    let Some((header, part)) = part.split_first_mut() else { return Ok(()) };
    let each = stack.packed_lines(block.rows);
    let format = rows.x.format();
    let own = block.first..block.first + block.rows;
    let index = rows.index.map(|index| RowIndex { pairs: &index.pairs[own.clone()], ..index });
    // Without an index the rows of a block are next to one another.
    let x =
        if index.is_some() { rows.x } else { rows.x.part(own.start * rows.k..own.end * rows.k) };
    let matrices = &stack.shards(block.expert)[..stack.packings(block.expert)];
    for ((matrix, flag), part) in matrices.iter().zip(header).zip(part.chunks_mut(each.max(1))) {
        let input = matrix.activation(0, format, range(matrix.factors()));
        let x = InputRows { x, k: rows.k, index, factors: matrix.factors() };
        for (whole, parts) in [(0, Some(format)), (1, None)] {
            let blocking = matrix.of_tokens(block.rows, parts);
            let mut cut = BumpAllocator::new(part);
            let mut packed = PackedTokens::new(&mut cut, &blocking, matrix.native());
            *flag = whole;
            let done = packed.pack(&input, &blocking, x, scratch, 1).map_err(|error| {
                // The rows of a part of x begin at the first of the block.
                match error {
                    ProductError::NotFinite { token, k, value } if index.is_none() => {
                        ProductError::NotFinite { token: token + own.start, k, value }
                    }
                    error => error,
                }
            })?;
            if done {
                break;
            }
        }
    }
    Ok(())
}

/// Packed token blocks.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) stack: &'a Stack,
    pub(super) blocks: &'a [StoredBlock],
    pub(super) bounds: &'a [u32],
    /// How many blocks are packed: all of them, or one for all.
    pub(super) packed: usize,
    pub(super) lines: &'a [Line],
    /// The type of the rows.
    pub(super) format: FloatFormat,
}

impl<'a> Packed<'a> {
    pub(super) fn block(&self, at: usize) -> TokenBlock {
        self.blocks[at].into()
    }

    /// A shard of a block's expert.
    pub(super) fn weight(&self, at: usize, shard: usize) -> &'a NativeWeight {
        self.stack.shards(self.block(at).expert)[shard].native()
    }

    /// The panels of a shard of a block's expert, from one on.
    pub(super) fn panels_from(&self, at: usize, shard: usize, panel: usize) -> NextPanels<'a> {
        NextPanels { weight: self.weight(at, shard), expert: 0, panel }
    }

    /// The product of a block with a shard of its expert.
    pub(super) fn product(&self, at: usize, shard: usize) -> CpuProduct<'a> {
        let block = self.block(at);
        let place = at.min(self.packed - 1);
        let lines = &self.lines[self.bounds[place] as usize..self.bounds[place + 1] as usize];
        let matrix = &self.stack.shards(block.expert)[shard];
        let packing = shard.min(self.stack.packings(block.expert) - 1);
        let x = if lines[0][packing] == 0 { Some(self.format) } else { None };
        let blocking = matrix.of_tokens(block.rows, x);
        let each = self.stack.packed_lines(block.rows);
        let lines = &lines[1 + packing * each..][..each];
        matrix.product(blocking, PackedTokens::packed(lines, &blocking, matrix.native()))
    }
}
