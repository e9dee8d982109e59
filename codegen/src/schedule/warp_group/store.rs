//! From sums to y: the epilogue's steps in registers, then 64 rows of every token through shared memory.
//!
//! A warp group has y^T, tokens as columns. `stmatrix` writes it transposed to lines of 128 bytes, one a token,
//! swizzled; one tensor store copies these to y, where it leaves out what is beyond M and N. A warp group uses
//! one buffer for its tiles of rows, one after another.

use super::Block;
use super::stage::{LINE, Stages};
use super::weights::WarpRows;
use crate::ir::{
    Address, Binary, Builder, Cache, Extent, Half, Mask, Op, Operand, SharedId, Swizzle, TensorMap,
    Type, Width, Word,
};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::epilogue::{EpilogueOp, EpilogueOperand};
use crate::schedule::lanes::LaneMap;
use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, Number};

/// The 16-bit type of y, if y has one.
pub(super) fn half_of(output: Number) -> Option<Half> {
    match output {
        NUMBER_F16 => Some(Half::F16),
        NUMBER_BF16 => Some(Half::Bf16),
        _ => None,
    }
}

/// 32-bit words of the buffers of all warp groups.
pub(super) const fn words(groups: u32, tokens: u32) -> u32 {
    groups * tokens * LINE
}

/// Writes the sums of a warp group, one list a tile of rows: those of the block's share of the tokens. All consumers
/// have read the stages, whose x the buffers take the place of.
pub(super) fn store(
    b: &mut Builder,
    (block, stages): (&Block<'_>, &Stages),
    rows: &WarpRows,
    sums: &[Vec<Operand>],
) {
    let (problem, tile, io) = (block.main.problem, block.tile, block.io);
    let Some(half) = half_of(problem.output) else { return };
    let Some(lanes) = LaneMap::new(block.product) else { return };
    // Blocks that split K store a part of the tokens each: the first registers of D hold as many.
    let (m_rows, tokens) = (block.product.shape[0], tile.tokens / tile.splits);
    let count = words(tile.groups, tokens);
    let buffer = b.shared_block(
        "y_lines",
        Word::U32,
        count,
        "y [row, token, warp group], swizzled",
        8 * SHARED_BYTES,
        stages.x.for_words(tile.stages, count),
    );
    let map = b.tensor(TensorMap {
        name: "y_map".to_owned(),
        buffer: io.y,
        extents: vec![Extent::Constant(problem.n), Extent::Parameter(io.m)],
        strides: vec![Extent::Constant(1), Extent::Constant(problem.n)],
        tile: vec![m_rows, tokens],
        swizzle: Swizzle::B128,
    });
    if tile.programmatic {
        b.push(Op::GridWait);
    }
    let to = lines(b, tokens, rows, buffer);
    let leads = {
        let (lane, warp) = (b.equal(rows.lane, 0u32), b.equal(rows.warp, 0u32));
        b.both(lane, warp)
    };
    let share = b.mad(block.token_block, tile.splits, block.part);
    let first_token = b.mul(share, tokens);
    let first_group = b.mul(rows.group, tile.row_tiles * m_rows);
    let first_row = b.mad(block.row_block, tile.rows(), first_group);
    let from = b.mul(rows.group, tokens * LINE);
    let epilogue = Finish::declare(b, block, rows, (&lanes, first_token));
    for (number, sums) in (0..).zip(sums) {
        let first = b.add(first_row, number * m_rows);
        if number > 0 {
            b.comment("the tile before has left the buffer");
            b.when(leads, |b| b.push(Op::BulkWait { pending: 0, reads_only: true }));
            meet(b, block, rows);
        }
        let values = epilogue.values(b, (sums, &lanes), first);
        write_lines(b, (values, half), to);
        b.push(Op::FenceAsync);
        meet(b, block, rows);
        b.when(leads, |b| {
            let at = vec![first, first_token];
            b.push(Op::TensorStore { map, at, from: Address::new(buffer, from) });
            b.push(Op::BulkCommit);
        });
    }
    b.when(leads, |b| b.push(Op::BulkWait { pending: 0, reads_only: true }));
}

/// The warps of a group wait for each other.
fn meet(b: &mut Builder, block: &Block<'_>, rows: &WarpRows) {
    let threads = block.group_warps() * b.warp_size();
    for group in 0..block.tile.groups {
        let own = b.equal(rows.group, group);
        // Barrier 0 is the block's.
        let barrier = Op::NamedBarrier { id: group + 1, threads, wait: true };
        match block.tile.groups {
            1 => b.push(barrier),
            _ => b.when(own, |b| b.push(barrier)),
        }
    }
}

/// Where this lane's row of the first four matrices of `stmatrix` is: two blocks of eight tokens by the two
/// blocks of eight rows of the warp.
fn lines(b: &mut Builder, of_group: u32, rows: &WarpRows, buffer: SharedId) -> Address {
    let (row, matrix) = (b.rem(rows.lane, 8), b.div(rows.lane, 8));
    let (tokens, half) = (b.div(matrix, 2), b.rem(matrix, 2));
    let token = b.mad(tokens, 8u32, row);
    let vector = b.mad(rows.warp, 2u32, half);
    let vector = b.xor(vector, row);
    let first = b.mad(rows.group, of_group, token);
    let first = b.mul(first, LINE);
    let word = b.mad(vector, 4u32, first);
    Address::new(buffer, word)
}

/// Writes rounded values, by blocks of eight tokens: of each the pairs of tokens of the lane's two rows.
fn write_lines(b: &mut Builder, (values, half): (Vec<[[Operand; 2]; 2]>, Half), to: Address) {
    let words = values
        .into_iter()
        .map(|of_rows| of_rows.map(|[even, odd]| b.binary(Binary::Pack(half), even, odd)));
    let words: Vec<[Operand; 2]> = words.collect();
    for (at, words) in (0..).step_by(2).zip(words.chunks(2)) {
        let to = to.plus(8 * LINE * at);
        b.push(Op::MatrixStore { to, values: words.concat(), transpose: true });
    }
}

/// The steps from sums to the numbers that are rounded, and what they read.
struct Finish<'p, 'b> {
    block: &'b Block<'p>,
    ops: Vec<EpilogueOp>,
    /// The first of this lane's rows in its tile, and their distance.
    row: Operand,
    apart: u32,
    /// This lane's first token.
    token: Operand,
    m: Operand,
}

impl<'p, 'b> Finish<'p, 'b> {
    fn declare(
        b: &mut Builder,
        block: &'b Block<'p>,
        rows: &WarpRows,
        (lanes, first_token): (&LaneMap, Operand),
    ) -> Self {
        let thread = b.mad(rows.warp, b.warp_size(), rows.lane);
        let token = lanes.d.token.of(b, thread);
        let token = b.add(first_token, token);
        let row = lanes.d.rows.first.of(b, thread);
        let m = b.argument(block.io.m);
        let ops = block.tile.finish(block.main.problem);
        Self { block, ops, row, apart: lanes.d.rows.stride, token, m }
    }

    /// For each block of eight tokens and each of the lane's two rows, the numbers of its two tokens.
    fn values(
        &self,
        b: &mut Builder,
        (sums, lanes): (&[Operand], &LaneMap),
        first_row: Operand,
    ) -> Vec<[[Operand; 2]; 2]> {
        let row = b.add(first_row, self.row);
        let io = self.block.io;
        let of_rows = [io.channel_scale, io.bias].map(|buffer| {
            let buffer = buffer?;
            let number = [0, 1].map(|at| {
                let row = b.add(row, at * self.apart);
                let there = b.less(row, self.block.main.problem.n);
                let mask = Some(Mask { condition: there, fill: 0.0f32.into() });
                let from = Address::new(buffer, row);
                b.load_as(Type::F32, from, Width::B32, mask, Cache::Constant)[0].into()
            });
            Some(number.to_vec())
        });
        let held = &lanes.d.registers;
        let sum = |row: usize, token: usize| -> Operand {
            let at = held.iter().position(|place| *place == [row, token]);
            at.and_then(|at| sums.get(at).copied()).unwrap_or(0.0f32.into())
        };
        let tokens: Vec<usize> =
            (0..lanes.d.tokens.len() / self.block.tile.splits as usize).collect();
        let blocks = tokens.chunks(2).map(|pair| {
            let of_token = |b: &mut Builder, token: usize| -> [Operand; 2] {
                let values = vec![sum(0, token), sum(1, token)];
                let number = b.add(self.token, lanes.d.tokens[token]);
                let mut read = |b: &mut Builder, operand| self.read(b, operand, number, &of_rows);
                let ops = self.ops.iter();
                let values = ops.fold(values, |values, op| op.apply(b, values, &mut read));
                [values[0], values[1]]
            };
            let [even, odd] = [pair[0], pair[pair.len() - 1]].map(|token| of_token(b, token));
            [[even[0], odd[0]], [even[1], odd[1]]]
        });
        blocks.collect()
    }

    /// The numbers of a step's operand: one of the token, or one a row.
    fn read(
        &self,
        b: &mut Builder,
        operand: EpilogueOperand,
        token: Operand,
        [channel_scale, bias]: &[Option<Vec<Operand>>; 2],
    ) -> Vec<Operand> {
        let of_token = |b: &mut Builder| {
            let there = b.less(token, self.m);
            let mask = Some(Mask { condition: there, fill: 0.0f32.into() });
            let from = self.block.io.x_scale.map(|buffer| Address::new(buffer, token));
            let load = |from| b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0];
            from.map(load).map(Operand::from).into_iter().collect()
        };
        match operand {
            EpilogueOperand::TokenScale => of_token(b),
            EpilogueOperand::ChannelScale => channel_scale.clone().unwrap_or_default(),
            EpilogueOperand::Bias => bias.clone().unwrap_or_default(),
        }
    }
}
