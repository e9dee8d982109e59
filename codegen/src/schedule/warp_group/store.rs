//! From sums to y: the epilogue's steps in registers, then 64 rows of every token through shared memory.
//!
//! A warp group has y^T, tokens as columns. `stmatrix` writes it transposed to lines ([`y_lines`]). A warp group uses
//! one buffer for its tiles of rows, one after another; if blocks persist, for the halves of many tokens too. With a gate these tiles are of gate and of up, and a lane has both
//! sums of a result; rows of y are those of slots, 0 without a pair.
//!
//! Rows of y in f32 are those of tokens, of pairs, or of a shard and slot: lanes store them, eight neighbours 32 bytes of a row.
//! Rows of pairs in 16 bits, which are not neighbours either, go through the same lines, which lanes copy to y:
//! eight of them 128 bytes of a row.

use super::hidden_operand::HiddenOperand;
use super::pairs::Pairs;
use super::stage::{LINE, Stages};
use super::weights::WarpRows;
use super::y_lines::{self, Stores, meet};
use super::{Block, gates};
use crate::ir::{
    Address, Binary, Builder, Cache, Extent, Half, Mask, Op, Operand, SharedId, Special, Type,
    Width,
};
use crate::schedule::activation::ActivationProblem;
use crate::schedule::epilogue::{EpilogueOp, EpilogueOperand};
use crate::schedule::input::Input;
use crate::schedule::lanes::LaneMap;
use crate::schedule::order::OrderArray;
use crate::schedule::rows::{Token, TokenRows};
use crate::schedule::stack::Stack;
use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, Number};

/// The 16-bit type of y, if y has one.
pub(super) fn half_of(output: Number) -> Option<Half> {
    match output {
        NUMBER_F16 => Some(Half::F16),
        NUMBER_BF16 => Some(Half::Bf16),
        _ => None,
    }
}

/// Writes the sums of a warp group, one list a tile of rows: those of the block's share of the tokens. All consumers
/// have read the stages, whose x the buffers take the place of.
pub(super) fn store(
    b: &mut Builder,
    (block, stages): (&Block<'_>, &Stages),
    (rows, pairs): (&WarpRows, Option<&Pairs>),
    sums: &[Vec<Operand>],
) {
    let (problem, tile, io) = (block.main.problem, block.tile, block.io);
    let Some(lanes) = LaneMap::new(block.product) else { return };
    let Some(half) = half_of(problem.output) else {
        return store_rows(b, block, (rows, pairs, &lanes), sums);
    };
    // Blocks that split K store a part of the tokens each: the first registers of D hold as many.
    let (m_rows, of_block) = (block.product.shape[0], tile.tokens / tile.splits);
    let tokens = tile.tokens_of_lines(problem);
    let buffer = y_lines::buffer(b, (block, stages), tokens);
    if let Some(pairs) = pairs.filter(|_| gives_pairs(block)) {
        return store_pairs(b, (block, buffer, half), (rows, pairs, &lanes), sums);
    }
    let rows_of_y = io.order.map_or(Extent::Parameter(io.m), OrderArray::all_slots);
    if let Some(operand) = problem.operand_of_y.as_deref() {
        let of = (operand, rows_of_y);
        return store_operand(b, (block, buffer, half), (rows, pairs, &lanes), sums, of);
    }
    let map = y_lines::map(b, block, rows_of_y, tokens);
    if block.waits() {
        b.push(Op::GridWait);
    }
    let to = lines(b, tokens, rows, buffer);
    let stores = Stores::declare(b, (buffer, tokens), map, rows);
    let share = b.mad(block.token_block, tile.splits, block.part);
    let first_token = b.mul(share, of_block);
    let first_row = first_row(b, block, rows);
    let from = b.mul(rows.group, tokens * LINE);
    let epilogue = Finish::declare(b, block, (rows, pairs), (&lanes, first_token));
    let of_lane = epilogue.tokens(&lanes);
    let parts = of_lane.chunks(of_lane.len() / (of_block / tokens) as usize);
    for (number, sums) in (0..).zip(sums.chunks(block.together() as usize)) {
        let first = b.add(first_row, number * m_rows);
        let mut constants = None;
        for (part, of_lane) in (0..).zip(parts.clone()) {
            let wait = number + part > 0 || block.has_tiles();
            if wait {
                stores.wait(b, block, rows);
            }
            let constants = constants
                .get_or_insert_with(|| epilogue.constants_of_shards(b, (sums.len(), first)));
            let values = epilogue.values(b, (sums, &lanes, constants), of_lane);
            write_lines(b, (values, half), to);
            let token = b.add(first_token, part * tokens);
            stores.start(b, (block, rows), (from, [first, token]));
        }
    }
    stores.end(b, block);
}

/// Whether rows of y are those of pairs.
pub(super) fn gives_pairs(block: &Block<'_>) -> bool {
    block.main.problem.stack.is_some_and(Stack::gives_pairs)
}

/// The last tile of a block with several tiles has left the buffer.
pub(super) fn finish(b: &mut Builder, block: &Block<'_>) {
    let problem = block.main.problem;
    let lines = half_of(problem.output).is_some() && !gives_pairs(block);
    if lines && problem.operand_of_y.is_none() && y_lines::whole_vectors(problem.n) {
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let warp = b.rem(warp, block.group_warps());
        y_lines::end_of_tiles(b, lane, warp);
    }
}

/// The first row of y of a warp group.
fn first_row(b: &mut Builder, block: &Block<'_>, rows: &WarpRows) -> Operand {
    let of_group = b.mul(rows.group, block.own_tiles() * block.product.shape[0]);
    b.mad(block.row_block, block.rows_of_y(), of_group)
}

/// Stores what the second product of a layer reads of rows of h, by way of the lines of all warp groups.
fn store_operand(
    b: &mut Builder,
    (block, buffer, half): (&Block<'_>, SharedId, Half),
    (rows, pairs, lanes): (&WarpRows, Option<&Pairs>, &LaneMap),
    sums: &[Vec<Operand>],
    (operand, slots): (&ActivationProblem, Extent),
) {
    let to = lines(b, block.tile.tokens, rows, buffer);
    let mut hidden = HiddenOperand::declare(b, (block, operand), (buffer, slots), rows);
    let epilogue = Finish::declare(b, block, (rows, pairs), (lanes, 0u32.into()));
    let first_row = first_row(b, block, rows);
    let constants = epilogue.constants_of_shards(b, (sums.len(), first_row));
    hidden.wait(b, block);
    let of_lane = epilogue.tokens(lanes);
    let values = epilogue.values(b, (sums, lanes, &constants), &of_lane);
    write_lines(b, (values, half), to);
    hidden.write(b, block);
}

/// Stores sums as rows of y in f32, lane by lane.
fn store_rows(
    b: &mut Builder,
    block: &Block<'_>,
    (rows, pairs, lanes): (&WarpRows, Option<&Pairs>, &LaneMap),
    sums: &[Vec<Operand>],
) {
    let (problem, io) = (block.main.problem, block.io);
    if block.waits() {
        b.push(Op::GridWait);
    }
    let tokens = block.tile.tokens / block.tile.splits;
    let share = b.mad(block.token_block, block.tile.splits, block.part);
    let first_token = b.mul(share, tokens);
    let first_row = first_row(b, block, rows);
    let epilogue = Finish::declare(b, block, (rows, pairs), (lanes, first_token));
    // A cluster that shares copies of x may have a block without rows.
    let ragged = !problem.n.is_multiple_of(block.rows_of_y() * block.tile.multicast);
    let tiles = (0..).zip(sums).map(|(number, sums)| {
        let first = b.add(first_row, number * block.product.shape[0]);
        let constants = epilogue.constants(b, (first, 0));
        let row = b.add(first, epilogue.row);
        let places = [0, 1].map(|at| {
            let row = b.add(row, at * epilogue.apart);
            (row, ragged.then(|| b.less(row, problem.n)))
        });
        (sums, constants, places)
    });
    let tiles: Vec<_> = tiles.collect();
    for at in 0..lanes.d.tokens.len() / block.tile.splits as usize {
        let token = epilogue.token(b, lanes.d.tokens[at]);
        let exists = epilogue.exists(b, token);
        let row_of_y = block.rows.y_row(b, token.of);
        let first = b.mul(row_of_y, problem.n);
        for (sums, constants, places) in &tiles {
            let values = epilogue.finished(b, (sums, lanes, at), token, constants);
            for (value, &(row, inside)) in values.into_iter().zip(places) {
                let mask = inside.map_or(exists, |inside| b.both(exists, inside));
                let to = Address::new(io.y, b.add(first, row));
                b.store(to, &[value], Width::B32, Some(mask));
            }
        }
    }
}

/// Stores sums as rows of pairs in 16 bits, by way of a buffer of lines.
fn store_pairs(
    b: &mut Builder,
    (block, buffer, half): (&Block<'_>, SharedId, Half),
    (rows, pairs, lanes): (&WarpRows, &Pairs, &LaneMap),
    sums: &[Vec<Operand>],
) {
    const VECTORS: u32 = LINE / 4;
    let (problem, io) = (block.main.problem, block.io);
    let (m_rows, tokens) = (block.product.shape[0], block.tile.tokens);
    let to = lines(b, tokens, rows, buffer);
    let first_row = first_row(b, block, rows);
    let epilogue = Finish::declare(b, block, (rows, Some(pairs)), (lanes, 0u32.into()));
    // A lane copies 16 bytes of a token's line; lines of tokens a multiple of 8 apart are swizzled alike.
    let thread = b.mad(rows.warp, b.warp_size(), rows.lane);
    let (own, vector) = (b.div(thread, VECTORS), b.rem(thread, VECTORS));
    let in_eight = b.rem(own, 8);
    let swizzled = b.xor(vector, in_eight);
    let line = b.mad(rows.group, tokens, own);
    let line = b.mul(line, LINE);
    let from = Address::new(buffer, b.mad(swizzled, 4u32, line));
    let at_once = block.group_warps() * b.warp_size() / VECTORS;
    let in_row = b.mul(vector, 8u32);
    for (number, sums) in (0..).zip(sums.chunks(1)) {
        let first = b.add(first_row, number * m_rows);
        // The exchange of pairs was after the copies of the tile before.
        if number > 0 {
            b.comment("the lines before have been copied");
            meet(b, block, rows);
        }
        let constants = epilogue.constants_of_shards(b, (sums.len(), first));
        // As few finished numbers at once as a store of lines takes: registers hold the sums of other tiles.
        for (at, tokens) in (0..).step_by(2).zip(epilogue.tokens(lanes).chunks(4)) {
            let values = epilogue.values(b, (sums, lanes, &constants), tokens);
            write_lines(b, (values, half), to.plus(8 * LINE * at));
        }
        meet(b, block, rows);
        let row = b.add(first, in_row);
        let ragged = !problem.n.is_multiple_of(block.rows_of_y());
        let inside = if ragged { b.less(row, problem.n) } else { true.into() };
        for further in (0..tokens).step_by(at_once as usize) {
            let slot = b.add(own, further);
            let is_slot = match further + at_once <= tokens {
                true => Operand::Pred(true),
                false => b.less(slot, tokens),
            };
            let copied = b.both(is_slot, inside);
            let token = pairs.token_where(b, block, (slot, is_slot));
            let exists = block.rows.exists(b, token);
            let copied = b.both(copied, exists);
            let words = b.load_as(
                Type::U32,
                from.plus(further * LINE),
                Width::B128,
                Some(Mask::or_zero(copied)),
                Cache::Default,
            );
            let words: Vec<Operand> = words.into_iter().map(Operand::from).collect();
            let row_of_y = block.rows.y_row(b, token);
            let at = b.mad(row_of_y, problem.n, row);
            b.store(Address::new(io.y, at), &words, Width::B128, Some(copied));
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
    /// The pairs of slots, in an expert layer.
    pairs: Option<&'b Pairs>,
    ops: Vec<EpilogueOp>,
    /// The first of this lane's rows in its tile, and their distance.
    row: Operand,
    apart: u32,
    /// This lane's first token: its number over all blocks; in an expert layer its slot in the token block.
    token: Operand,
    /// M, of a single matrix.
    m: Operand,
}

/// A token of the block, and whether it exists, if that is known already.
#[derive(Clone, Copy)]
struct OfToken {
    of: Token,
    exists: Option<Operand>,
    /// Its slot in the token block, if there are pairs.
    slot: Operand,
}

/// Where a number of a row of x is.
type OfRow = fn(&Input, &mut Builder, Operand) -> Operand;

/// Of a lane's two rows each, the row's scale, its sum and its bias, if there are any.
type Constants = [Option<Vec<Operand>>; 3];

impl<'p, 'b> Finish<'p, 'b> {
    fn declare(
        b: &mut Builder,
        block: &'b Block<'p>,
        (rows, pairs): (&WarpRows, Option<&'b Pairs>),
        (lanes, first_token): (&LaneMap, Operand),
    ) -> Self {
        let thread = b.mad(rows.warp, b.warp_size(), rows.lane);
        let token = lanes.d.token.of(b, thread);
        let token = if pairs.is_some() { token } else { b.add(first_token, token) };
        let row = lanes.d.rows.first.of(b, thread);
        let m = match block.main.problem.stack {
            None => b.argument(block.io.m),
            Some(_) => 0u32.into(),
        };
        let ops = block.tile.finish(block.main.problem);
        Self { block, pairs, ops, row, apart: lanes.d.rows.stride, token, m }
    }

    /// The rows of the block's tokens.
    fn rows(&self) -> TokenRows {
        match self.block.main.problem.stack {
            None => TokenRows::single(self.block.token_block, self.block.tile.tokens, self.m),
            Some(_) => self.block.rows,
        }
    }

    /// The lane's token so far after its first one.
    fn token(&self, b: &mut Builder, further: u32) -> OfToken {
        let number = b.add(self.token, further);
        match self.pairs {
            Some(pairs) => {
                let of = pairs.token(b, self.block, number);
                OfToken { of, exists: Some(self.rows().exists(b, of)), slot: number }
            }
            None => {
                let of = self.rows().token(b, number, true.into());
                OfToken { of, exists: None, slot: number }
            }
        }
    }

    /// Whether a token exists.
    fn exists(&self, b: &mut Builder, token: OfToken) -> Operand {
        token.exists.unwrap_or_else(|| self.rows().exists(b, token.of))
    }

    /// The constants of the lane's rows of a tile, whose first row is a row of the block's matrix of this number.
    fn constants(&self, b: &mut Builder, (first_row, shard): (Operand, usize)) -> Constants {
        let row = b.add(first_row, self.row);
        let (io, n) = (self.block.io, self.block.main.problem.n);
        [io.channel_scale, io.row_sum, io.bias].map(|buffer| {
            let buffer = buffer?;
            let first = self.block.matrices(b)[shard].map(|matrix| b.mul(matrix, n));
            let number = [0, 1].map(|at| {
                let row = b.add(row, at * self.apart);
                let there = b.less(row, n);
                let mask = Some(Mask { condition: there, fill: 0.0f32.into() });
                let row = first.map_or(row, |first| b.add(first, row));
                let from = Address::new(buffer, row);
                b.load_as(Type::F32, from, Width::B32, mask, Cache::Constant)[0].into()
            });
            Some(number.to_vec())
        })
    }

    /// The finished numbers of the lane's two rows of a tile and its token of this number, times its router weight if
    /// rows are weighted.
    fn finished(
        &self,
        b: &mut Builder,
        (sums, lanes, token): (&[Operand], &LaneMap, usize),
        of: OfToken,
        constants: &Constants,
    ) -> Vec<Operand> {
        let held = &lanes.d.registers;
        let sum = |row: usize| -> Operand {
            let at = held.iter().position(|place| *place == [row, token]);
            at.and_then(|at| sums.get(at).copied()).unwrap_or(0.0f32.into())
        };
        let values = vec![sum(0), sum(1)];
        let mut read = |b: &mut Builder, operand| self.read(b, operand, of, constants);
        let values = self.ops.iter().fold(values, |values, op| op.apply(b, values, &mut read));
        match self.pairs {
            Some(pairs) => pairs.weighted(b, of.slot, values),
            None => values,
        }
    }

    /// The constants of the lane's rows of the tiles of so many shards.
    fn constants_of_shards(
        &self,
        b: &mut Builder,
        (shards, first_row): (usize, Operand),
    ) -> Vec<Constants> {
        (0..shards).map(|shard| self.constants(b, (first_row, shard))).collect()
    }

    /// The numbers of the lane's tokens that the block stores.
    fn tokens(&self, lanes: &LaneMap) -> Vec<usize> {
        (0..lanes.d.tokens.len() / self.block.tile.splits as usize).collect()
    }

    /// For each block of eight of these tokens and each of the lane's two rows, the numbers of its two tokens: of one
    /// tile of rows, or of those of gate and up.
    fn values(
        &self,
        b: &mut Builder,
        (sums, lanes, constants): (&[Vec<Operand>], &LaneMap, &[Constants]),
        tokens: &[usize],
    ) -> Vec<[[Operand; 2]; 2]> {
        let of = self.block.main.problem.stack.and_then(|stack| stack.gate);
        let blocks = tokens.chunks(2).map(|pair| {
            let pair = [pair[0], pair[pair.len() - 1]].map(|at| {
                let token = self.token(b, lanes.d.tokens[at]);
                let finished = sums
                    .iter()
                    .zip(constants)
                    .map(|(sums, constants)| self.finished(b, (sums, lanes, at), token, constants));
                (token, finished.collect::<Vec<_>>())
            });
            let Some(of) = of else {
                return [0, 1].map(|row| [0, 1].map(|token| pair[token].1[0][row]));
            };
            let exists = [0, 1].map(|token| self.exists(b, pair[token].0));
            let [first, last] = pair.each_ref().map(|(_, of_shards)| {
                let [g, u] = [&of_shards[0], &of_shards[of_shards.len() - 1]];
                [0, 1].map(|row| [g[row], u[row]])
            });
            let h = gates::values(b, of, exists, [first, last]);
            [0, 1].map(|row| [h[0][row], h[1][row]])
        });
        blocks.collect()
    }

    /// The numbers of a step's operand: one of the token, or one a row.
    fn read(
        &self,
        b: &mut Builder,
        operand: EpilogueOperand,
        token: OfToken,
        [channel_scale, row_sum, bias]: &Constants,
    ) -> Vec<Operand> {
        let input = self.block.main.problem.input;
        let of_token = |b: &mut Builder, place: OfRow| {
            let exists = self.exists(b, token);
            let mask = Some(Mask { condition: exists, fill: 0.0f32.into() });
            let row = self.block.rows.x_row(b, token.of, exists);
            let at = place(&input, b, row);
            let from = self.block.io.x_scale.map(|buffer| Address::new(buffer, at));
            let load = |from| b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0];
            from.map(load).map(Operand::from).into_iter().collect()
        };
        match operand {
            EpilogueOperand::TokenScale => of_token(b, Input::scale_of_row),
            EpilogueOperand::TokenZero => of_token(b, Input::zero_of_row),
            EpilogueOperand::RowSum => row_sum.clone().unwrap_or_default(),
            EpilogueOperand::ChannelScale => channel_scale.clone().unwrap_or_default(),
            EpilogueOperand::Bias => bias.clone().unwrap_or_default(),
        }
    }
}
