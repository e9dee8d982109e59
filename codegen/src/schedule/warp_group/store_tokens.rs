//! From sums with tokens as rows to y: lines of 64 rows of w, one a token, through shared memory.
//!
//! `stmatrix` writes a warp's 16 tokens to lines ([`y_lines`]). A warp group uses one buffer for its tiles of tokens and halves of
//! the block's rows, one after another.

use super::Block;
use super::stage::{LINE, Stages};
use super::store::half_of;
use super::weights::WarpRows;
use super::y_lines::{self, LINE_ROWS, Stores};
use crate::ir::{
    Address, Binary, Builder, Cache, Extent, Mask, Op, Operand, Reg, SharedId, Type, Width,
};
use crate::schedule::epilogue::EpilogueOperand;
use crate::schedule::lanes::LaneMap;

/// Neighbouring rows of w of a core matrix of `stmatrix`.
const VECTOR_ROWS: u32 = 8;

/// Writes the sums of a warp group, one list a tile of 64 tokens.
pub(super) fn store(
    b: &mut Builder,
    (block, stages): (&Block<'_>, &Stages),
    (rows, lanes, first_token): (&WarpRows, &LaneMap, Operand),
    totals: &[Vec<Reg>],
) {
    let (problem, tile) = (block.main.problem, block.tile);
    let Some(half) = half_of(problem.output) else { return };
    let tokens = block.product.shape[0];
    let buffer = y_lines::buffer(b, (block, stages), tokens);
    let map = y_lines::map(b, block, Extent::Parameter(block.io.m), tokens);
    if block.waits() {
        b.push(Op::GridWait);
    }
    let stores = Stores::declare(b, (buffer, map), rows);
    let from = b.mul(rows.group, tokens * LINE);
    let lines = Lines::declare(b, (rows, from));
    let of_block = b.mul(block.token_block, tile.tokens);
    let first_token = b.add(of_block, first_token);
    let first_row = b.mul(block.row_block, tile.rows());
    let ops = tile.finish(problem);
    let in_vector = lanes.d.token.of(b, rows.lane);
    // A block of eight rows of w: of each of the lane's two tokens two neighbouring sums.
    let vectors = LINE_ROWS / VECTOR_ROWS;
    let sum = |total: &[Reg], token: usize, row: u32| -> Operand {
        let place = [token, row as usize];
        let at = lanes.d.registers.iter().position(|held| *held == place);
        at.map_or(0f32.into(), |at| total[at].into())
    };
    let mut first = true;
    for (number, total) in (0..).zip(totals) {
        for part in 0..tile.rows() / LINE_ROWS {
            if !first || block.has_tiles() {
                stores.wait(b, block, rows);
            }
            first = false;
            let row = b.add(first_row, part * LINE_ROWS);
            for pair in (0..vectors).step_by(2) {
                let values = [pair, pair + 1].map(|vector| {
                    let row = b.add(row, vector * VECTOR_ROWS);
                    let constants = Constants::load(b, block, row, in_vector);
                    let first = 2 * (part * vectors + vector);
                    [0, 1].map(|token| {
                        let sums = [first, first + 1].map(|row| sum(total, token, row)).to_vec();
                        let mut read = |_: &mut Builder, operand| constants.of(operand);
                        let values =
                            ops.iter().fold(sums, |values, op| op.apply(b, values, &mut read));
                        b.binary(Binary::Pack(half), values[0], values[1])
                    })
                });
                let to = lines.vector(b, buffer, pair);
                b.push(Op::MatrixStore { to, values: values.concat(), transpose: false });
            }
            let token = b.add(first_token, number * tokens);
            stores.start(b, (block, rows), (from, [row, token]));
        }
    }
    stores.end(b, block);
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

/// What steps of the epilogue read of two neighbouring rows of w: scales of channels, and biases.
struct Constants([Vec<Operand>; 2]);

impl Constants {
    /// Of the lane's rows of eight that begin at a row.
    fn load(b: &mut Builder, block: &Block<'_>, first: Operand, in_eight: Operand) -> Self {
        Self([block.io.channel_scale, block.io.bias].map(|buffer| {
            let Some(buffer) = buffer else { return Vec::new() };
            let row = b.add(first, in_eight);
            let there = b.less(row, block.main.problem.n);
            let mask = Some(Mask { condition: there, fill: 0.0f32.into() });
            let from = Address::new(buffer, row);
            let words = b.load_as(Type::F32, from, Width::B64, mask, Cache::Constant);
            words.into_iter().map(Operand::from).collect()
        }))
    }

    fn of(&self, operand: EpilogueOperand) -> Vec<Operand> {
        let Self([channel_scale, bias]) = self;
        match operand {
            // Scales of x have multiplied the sums of each k-tile.
            EpilogueOperand::TokenScale => Vec::new(),
            EpilogueOperand::ChannelScale => channel_scale.clone(),
            EpilogueOperand::Bias => bias.clone(),
        }
    }
}
