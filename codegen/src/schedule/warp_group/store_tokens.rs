//! From sums with tokens as rows to y: lines of 64 rows of w, one a token, through shared memory.
//!
//! `stmatrix` writes a warp's 16 tokens to lines ([`y_lines`]). A warp group uses one buffer for its tiles of tokens and halves of
//! the block's rows, one after another. With a gate these halves are of gate and of up, of which one line is made; rows of y
//! are those of slots, 0 without a pair.
//!
//! Rows of y in f32 are those of pairs, or of a shard and slot: lanes store two neighbouring numbers, four lanes 32 bytes of a
//! row. Rows of pairs in 16 bits go through the same lines, which lanes copy to y: eight of them 128 bytes of a row.

use super::pairs::Pairs;
use super::stage::{LINE, Stages};
use super::store::{gives_pairs, half_of};
use super::weights::WarpRows;
use super::y_lines::{self, LINE_ROWS, Stores, meet};
use super::{Block, gates};
use crate::ir::{
    Address, Binary, Builder, Cache, Extent, Half, Mask, Op, Operand, Reg, SharedId, Type, Width,
};
use crate::schedule::epilogue::{EpilogueOp, EpilogueOperand};
use crate::schedule::lanes::LaneMap;
use crate::schedule::order::OrderArray;
use crate::schedule::rows::Token;

/// Neighbouring rows of w of a core matrix of `stmatrix`.
const VECTOR_ROWS: u32 = 8;
/// Core matrices of a line.
const VECTORS: u32 = LINE_ROWS / VECTOR_ROWS;

/// Writes the sums of a warp group, one list a tile of 64 tokens.
pub(super) fn store(
    b: &mut Builder,
    (block, stages): (&Block<'_>, &Stages),
    ((rows, lanes, first_token), pairs): ((&WarpRows, &LaneMap, Operand), Option<&Pairs>),
    totals: &[Vec<Reg>],
) {
    let problem = block.main.problem;
    let finish = Finish::declare(b, block, (rows, lanes, first_token), pairs);
    let first_row = b.mul(block.row_block, block.rows_of_y());
    match (half_of(problem.output), pairs.filter(|_| gives_pairs(block))) {
        (None, _) => store_rows(b, &finish, first_row, totals),
        (Some(half), Some(pairs)) => {
            let buffer = y_lines::buffer(b, (block, stages), block.product.shape[0]);
            store_pairs(b, &finish, (buffer, half), (rows, pairs, first_row), totals);
        }
        (Some(half), None) => {
            store_lines(b, (&finish, stages), half, (rows, first_row), totals);
        }
    }
}

/// Stores lines by tensor stores.
fn store_lines(
    b: &mut Builder,
    (finish, stages): (&Finish<'_, '_>, &Stages),
    half: Half,
    (rows, first_row): (&WarpRows, Operand),
    totals: &[Vec<Reg>],
) {
    let block = finish.block;
    let tokens = block.product.shape[0];
    let buffer = y_lines::buffer(b, (block, stages), tokens);
    let rows_of_y = block.io.order.map_or(Extent::Parameter(block.io.m), OrderArray::all_slots);
    let map = y_lines::map(b, block, rows_of_y, tokens);
    if block.waits() {
        b.push(Op::GridWait);
    }
    let stores = Stores::declare(b, (buffer, tokens), map, rows);
    let from = b.mul(rows.group, tokens * LINE);
    let lines = Lines::declare(b, (rows, from));
    let of_block = b.mul(block.token_block, block.tile.tokens);
    let first_token = b.add(of_block, finish.first_token);
    let mut first = true;
    for (number, total) in (0..).zip(totals) {
        let of_tile = finish.tokens(b, number);
        for part in 0..block.rows_of_y() / LINE_ROWS {
            if !first || block.has_tiles() {
                stores.wait(b, block, rows);
            }
            first = false;
            let row = b.add(first_row, part * LINE_ROWS);
            finish.write_lines(b, (&lines, buffer, half), (total, &of_tile), (row, part));
            let token = b.add(first_token, number * tokens);
            stores.start(b, (block, rows), (from, [row, token]));
        }
    }
    stores.end(b, block);
}

/// Stores rows of pairs in 16 bits, by way of lines that lanes copy.
fn store_pairs(
    b: &mut Builder,
    finish: &Finish<'_, '_>,
    (buffer, half): (SharedId, Half),
    (rows, pairs, first_row): (&WarpRows, &Pairs, Operand),
    totals: &[Vec<Reg>],
) {
    let (block, n) = (finish.block, finish.block.main.problem.n);
    let tokens = block.product.shape[0];
    let of_group = b.mul(rows.group, tokens * LINE);
    let lines = Lines::declare(b, (rows, of_group));
    // A lane copies 16 bytes of a token's line; lines of tokens a multiple of 8 apart are swizzled alike.
    let thread = b.mad(rows.warp, b.warp_size(), rows.lane);
    let (own, vector) = (b.div(thread, VECTORS), b.rem(thread, VECTORS));
    let in_eight = b.rem(own, 8);
    let swizzled = b.xor(vector, in_eight);
    let line = b.mad(own, LINE, of_group);
    let from = Address::new(buffer, b.mad(swizzled, 4u32, line));
    let at_once = block.group_warps() * b.warp_size() / VECTORS;
    let in_line = b.mul(vector, VECTOR_ROWS);
    let ragged = !n.is_multiple_of(block.rows_of_y());
    // The exchange of pairs was after the copies of the tile before.
    let mut first = true;
    for (number, total) in (0..).zip(totals) {
        let of_tile = finish.tokens(b, number);
        let slot = b.add(finish.first_token, own);
        let slot = b.add(slot, number * tokens);
        for part in 0..block.rows_of_y() / LINE_ROWS {
            if !first {
                b.comment("the lines before have been copied");
                meet(b, block, rows);
            }
            first = false;
            let row = b.add(first_row, part * LINE_ROWS);
            finish.write_lines(b, (&lines, buffer, half), (total, &of_tile), (row, part));
            meet(b, block, rows);
            let row = b.add(row, in_line);
            let inside = if ragged { b.less(row, n) } else { true.into() };
            for further in (0..tokens).step_by(at_once as usize) {
                let slot = b.add(slot, further);
                let token = pairs.token(b, block, slot);
                let exists = block.rows.exists(b, token);
                let copied = b.both(inside, exists);
                let from = from.plus(further * LINE);
                let mask = Some(Mask::or_zero(copied));
                let words = b.load_as(Type::U32, from, Width::B128, mask, Cache::Default);
                let words: Vec<Operand> = words.into_iter().map(Operand::from).collect();
                let row_of_y = block.rows.y_row(b, token);
                let at = b.mad(row_of_y, n, row);
                b.store(Address::new(block.io.y, at), &words, Width::B128, Some(copied));
            }
        }
    }
}

/// Stores rows of y in f32, lane by lane.
fn store_rows(b: &mut Builder, finish: &Finish<'_, '_>, first_row: Operand, totals: &[Vec<Reg>]) {
    let (block, n) = (finish.block, finish.block.main.problem.n);
    let ragged = !n.is_multiple_of(block.rows_of_y());
    for (number, total) in (0..).zip(totals) {
        let of_tile = finish.tokens(b, number);
        let firsts = of_tile.each_ref().map(|token| {
            let row = block.rows.y_row(b, token.of);
            b.mul(row, n)
        });
        for part in 0..block.rows_of_y() / LINE_ROWS {
            for vector in 0..VECTORS {
                let row = b.add(first_row, part * LINE_ROWS + vector * VECTOR_ROWS);
                let values = finish.values(b, (total, &of_tile), (row, part * VECTORS + vector));
                let row = b.add(row, finish.in_vector);
                let inside = ragged.then(|| b.less(row, n));
                for ((values, token), first) in values.iter().zip(&of_tile).zip(firsts) {
                    let mask = inside.map_or(token.exists, |inside| b.both(token.exists, inside));
                    let to = Address::new(block.io.y, b.add(first, row));
                    b.store(to, values, Width::B64, Some(mask));
                }
            }
        }
    }
}

/// Where this lane's row of the four matrices of `stmatrix` is: two blocks of eight tokens of the warp by two blocks of eight rows
/// of w.
struct Lines {
    /// The first word of the token's line.
    line: Operand,
    /// The token's number among eight, and the number of its block of rows among two.
    in_eight: Operand,
    second: Operand,
}

impl Lines {
    fn declare(b: &mut Builder, (rows, from): (&WarpRows, Operand)) -> Self {
        let (in_eight, matrix) = (b.rem(rows.lane, 8), b.div(rows.lane, 8));
        let (tokens, second) = (b.rem(matrix, 2), b.div(matrix, 2));
        let token = b.mad(tokens, 8u32, in_eight);
        let token = b.mad(rows.warp, 16u32, token);
        Self { line: b.mad(token, LINE, from), in_eight, second }
    }

    /// The place of the vector of this number, or of the next one.
    fn vector(&self, b: &mut Builder, buffer: SharedId, number: u32) -> Address {
        let vector = b.add(self.second, number);
        let vector = b.xor(vector, self.in_eight);
        Address::new(buffer, b.mad(vector, 4u32, self.line))
    }
}

/// One of a lane's two tokens of a tile.
struct OfToken {
    of: Token,
    /// Its slot in the token block, if there are pairs.
    slot: Operand,
    /// Whether it has a pair; of a single matrix unknown, since stores leave out what is beyond M.
    exists: Operand,
}

/// The steps from sums to the numbers that are rounded, and what they read.
struct Finish<'p, 'b> {
    block: &'b Block<'p>,
    /// The pairs of slots, in an expert layer.
    pairs: Option<&'b Pairs>,
    ops: Vec<EpilogueOp>,
    lanes: &'b LaneMap,
    /// The first of the group's tokens in the block, and the lane's.
    first_token: Operand,
    token: Operand,
    /// The first of the lane's two rows of w among eight.
    in_vector: Operand,
}

impl<'p, 'b> Finish<'p, 'b> {
    fn declare(
        b: &mut Builder,
        block: &'b Block<'p>,
        (rows, lanes, first_token): (&WarpRows, &'b LaneMap, Operand),
        pairs: Option<&'b Pairs>,
    ) -> Self {
        let ops = block.tile.finish(block.main.problem);
        let in_vector = lanes.d.token.of(b, rows.lane);
        let token = match pairs {
            Some(_) => {
                let thread = b.mad(rows.warp, b.warp_size(), rows.lane);
                let token = lanes.d.rows.first.of(b, thread);
                b.add(first_token, token)
            }
            None => first_token,
        };
        Self { block, pairs, ops, lanes, first_token, token, in_vector }
    }

    /// The lane's two tokens of a tile.
    fn tokens(&self, b: &mut Builder, tile: u32) -> [OfToken; 2] {
        [0, self.lanes.d.rows.stride].map(|apart| {
            let slot = b.add(self.token, tile * self.block.product.shape[0] + apart);
            match self.pairs {
                Some(pairs) => {
                    let of = pairs.token(b, self.block, slot);
                    OfToken { of, slot, exists: self.block.rows.exists(b, of) }
                }
                None => OfToken { of: Token::of_pair(slot, slot), slot, exists: true.into() },
            }
        })
    }

    /// Writes 64 rows of w of the tokens of a tile, of which `part` is the number in the block and `row` the first, to lines.
    fn write_lines(
        &self,
        b: &mut Builder,
        (lines, buffer, half): (&Lines, SharedId, Half),
        (total, of_tile): (&[Reg], &[OfToken; 2]),
        (row, part): (Operand, u32),
    ) {
        for pair in (0..VECTORS).step_by(2) {
            let values = [pair, pair + 1].map(|vector| {
                let row = b.add(row, vector * VECTOR_ROWS);
                let values = self.values(b, (total, of_tile), (row, part * VECTORS + vector));
                values.map(|[even, odd]| b.binary(Binary::Pack(half), even, odd))
            });
            let to = lines.vector(b, buffer, pair);
            b.push(Op::MatrixStore { to, values: values.concat(), transpose: false });
        }
    }

    /// Of eight rows of y, which begin at a row and have this number, the finished numbers of the lane's two tokens and two
    /// neighbouring rows.
    fn values(
        &self,
        b: &mut Builder,
        (total, of_tile): (&[Reg], &[OfToken; 2]),
        (row, number): (Operand, u32),
    ) -> [[Operand; 2]; 2] {
        let (block, lanes) = (self.block, self.lanes);
        let sum = |token: usize, row: u32| -> Operand {
            let place = [token, row as usize];
            let at = lanes.d.registers.iter().position(|held| *held == place);
            at.map_or(0f32.into(), |at| total[at].into())
        };
        // Each matrix has as many rows of the product, one after another.
        let apart = block.rows_of_y() / VECTOR_ROWS;
        let of_matrices = (0..).zip(block.matrices(b)).map(|(shard, matrix)| {
            let constants = Constants::load(b, block, (row, self.in_vector), matrix);
            let first = 2 * (shard * apart + number);
            [0, 1].map(|token| {
                let sums = [first, first + 1].map(|row| sum(token, row)).to_vec();
                let mut read = |_: &mut Builder, operand| constants.of(operand);
                let ops = self.ops.iter();
                let values = ops.fold(sums, |values, op| op.apply(b, values, &mut read));
                match self.pairs {
                    Some(pairs) => pairs.weighted(b, of_tile[token].slot, values),
                    None => values,
                }
            })
        });
        let of_matrices: Vec<[Vec<Operand>; 2]> = of_matrices.collect();
        let [first, last] = [&of_matrices[0], &of_matrices[of_matrices.len() - 1]];
        let Some(of) = block.main.problem.stack.and_then(|stack| stack.gate) else {
            return [0, 1].map(|token| [0, 1].map(|row| first[token][row]));
        };
        let exists = of_tile.each_ref().map(|token| token.exists);
        let results = [0, 1].map(|token| [0, 1].map(|row| [first[token][row], last[token][row]]));
        gates::values(b, of, exists, results)
    }
}

/// What steps of the epilogue read of two neighbouring rows of w: scales of channels, sums and biases.
struct Constants([Vec<Operand>; 3]);

impl Constants {
    /// Of the lane's rows of eight that begin at a row, of a matrix of a stack or the only one.
    fn load(
        b: &mut Builder,
        block: &Block<'_>,
        (first, in_eight): (Operand, Operand),
        matrix: Option<Operand>,
    ) -> Self {
        let n = block.main.problem.n;
        Self([block.io.channel_scale, block.io.row_sum, block.io.bias].map(|buffer| {
            let Some(buffer) = buffer else { return Vec::new() };
            let row = b.add(first, in_eight);
            let there = b.less(row, n);
            let mask = Some(Mask { condition: there, fill: 0.0f32.into() });
            let row = matrix.map_or(row, |matrix| b.mad(matrix, n, row));
            let from = Address::new(buffer, row);
            let words = b.load_as(Type::F32, from, Width::B64, mask, Cache::Constant);
            words.into_iter().map(Operand::from).collect()
        }))
    }

    fn of(&self, operand: EpilogueOperand) -> Vec<Operand> {
        let Self([channel_scale, row_sum, bias]) = self;
        match operand {
            // Scales of x have multiplied the sums of each k-tile.
            EpilogueOperand::TokenScale | EpilogueOperand::TokenZero => Vec::new(),
            EpilogueOperand::RowSum => row_sum.clone(),
            EpilogueOperand::ChannelScale => channel_scale.clone(),
            EpilogueOperand::Bias => bias.clone(),
        }
    }
}
