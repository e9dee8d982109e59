//! The epilogue of a shader kernel: the parts of K are added in shared memory, and neighbouring rows of a
//! token are stored together. On targets with shuffles, threads without results of their own help their
//! neighbours.

use crate::ir::{
    Address, Binary, Builder, Cache, Half, Mask, Operand, Reg, Shuffle, Special, Type, Width, Word,
};
use crate::schedule::epilogue::{EpilogueOp, EpilogueOperand, gated};
use crate::schedule::experts::function::gate;
use crate::schedule::shader::Shader;
use quantloom_dsl::experts::Gate;
use quantloom_dsl::format::{BF16, F16, Number};

impl Shader<'_> {
    pub(super) fn results(&self, b: &mut Builder, sums: &[Vec<Reg>]) {
        let (main, tile) = (self.main, self.tile);
        let rows = tile.rows(main);
        let words = tile.shared_words(main);
        let shared = b.shared("sums", Word::U32, words, "f32 [rows, tokens, parts]");
        b.comment("the sums of this lane's rows");
        let first = b.mul(self.part, tile.tokens * rows);
        let row = b.mul(self.group, tile.row_tiles * main.problem.plan.native.rows);
        let first = b.add(first, row);
        let first = b.add(first, self.lane);
        for (at, sums) in (0..).zip(sums) {
            for (token, sum) in (0..).zip(sums) {
                let to = Address::new(shared, first);
                let to = to.plus(token * rows + at * main.problem.plan.native.rows);
                b.store(to, &[(*sum).into()], Width::B32, None);
            }
        }
        b.barrier();
        let thread = b.special(Special::Thread);
        let (row_0, token_0) = self.first_result(b);
        // Words of y hold whole pairs if rows of y do.
        let together = if main.problem.n.is_multiple_of(2) { 2 } else { 1 };
        let rows_of_y = rows / main.problem.together();
        let all = rows_of_y * tile.tokens / together;
        let threads = tile.threads(main);
        let helpers = self.helpers(b, threads / all);
        let (helper, thread) = (b.rem(thread, helpers), b.div(thread, helpers));
        let at_once = threads / helpers;
        for round in (0..all).step_by(at_once as usize) {
            let number = b.add(thread, round);
            let token = b.div(number, rows_of_y / together);
            let row = b.rem(number, rows_of_y / together);
            let row = b.mul(row, together);
            let (n, of_block) = (b.add(row_0, row), b.add(token_0, token));
            let is_row = b.less(n, main.problem.n);
            let of_token = self.rows.token_of(b, (of_block, token), round + at_once <= all);
            let is_token = self.rows.exists(b, of_token);
            let mut there = b.both(is_row, is_token);
            let mut stored = is_row;
            if round + at_once > all {
                let inside = b.less(number, all);
                there = b.both(there, inside);
                if self.gate().is_some() {
                    stored = b.both(stored, inside);
                }
            }
            let row = gated::row_of_sum(b, main, row);
            let at = b.mad(token, rows, row);
            let at = b.mad(helper, rows * tile.tokens, at);
            let shards = 0..main.problem.together();
            let sums = shards.map(|shard| {
                let at = Address::new(shared, at).plus(shard * main.problem.plan.native.rows);
                (0..together).map(|next| self.sum(b, at.plus(next), helpers, there)).collect()
            });
            let sums: Vec<Vec<Operand>> = sums.collect();
            let first = b.equal(helper, 0u32);
            let there = b.both(there, first);
            let x_row = self.rows.x_row(b, of_token, is_token);
            let finished = (0..).zip(sums).map(|(shard, sums)| {
                let finish = |(next, sum)| self.finished(b, sum, [x_row, n], (next, shard), there);
                (0..).zip(sums).map(finish).collect()
            });
            let finished: Vec<Vec<Operand>> = finished.collect();
            let y_row = self.rows.y_row(b, of_token);
            let Some(of) = self.gate() else {
                let values = finished.into_iter().next().unwrap_or_default();
                let values = self.rows.weighted(b, (of_token, there), values);
                self.store(b, &values, [y_row, n], there);
                continue;
            };
            // Every slot has a row.
            let right = &finished[finished.len() - 1];
            let values = finished[0].iter().zip(right).map(|(g, u)| {
                let value = gate(b, of, *g, *u);
                b.select(is_token, value, 0.0f32)
            });
            let values: Vec<Operand> = values.collect();
            let is_slot = self.rows.is_slot(b, token, is_token);
            let stored = b.both(stored, is_slot);
            let stored = b.both(stored, first);
            self.store(b, &values, [y_row, n], stored);
        }
    }

    /// What makes one result of the sums of several matrices, if a block multiplies several.
    fn gate(&self) -> Option<Gate> {
        self.main.problem.stack?.gate
    }

    /// The sum of the parts of K that begin at an address, part by part and across helpers.
    fn sum(&self, b: &mut Builder, first: Address, helpers: u32, there: Operand) -> Operand {
        let words = self.tile.rows(self.main) * self.tile.tokens;
        let part = |b: &mut Builder, part: u32| {
            let from = first.plus(part * words);
            let mask = Some(Mask { condition: there, fill: 0.0f32.into() });
            b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0]
        };
        let mut sum: Operand = part(b, 0).into();
        for number in (helpers..self.tile.parts).step_by(helpers as usize) {
            let more = part(b, number);
            sum = b.add_f32(sum, more);
        }
        let mut by = 1;
        while by < helpers {
            let other = b.shuffle(Shuffle::Xor, sum, by);
            sum = b.add_f32(sum, other);
            by *= 2;
        }
        sum
    }

    /// The block's first row of w, and the number of its first token.
    fn first_result(&self, b: &mut Builder) -> (Operand, Operand) {
        let rows = self.tile.rows(self.main) / self.main.problem.together();
        match self.row_block_known {
            Some(of_rows) => (b.mul(of_rows, rows), self.rows.number(b, 0u32.into())),
            None => {
                let (of_rows, of_tokens) =
                    (b.special(Special::Block(0)), b.special(Special::Block(1)));
                (b.mul(of_rows, rows), b.mul(of_tokens, self.tile.tokens))
            }
        }
    }

    /// Neighbouring threads that add the parts of one row's sum, if `threads` are available for each.
    fn helpers(&self, b: &Builder, threads: u32) -> u32 {
        let most = self.tile.parts.min(threads.max(1));
        let mut counts = (0..=most.ilog2()).rev().map(|log| 1 << log);
        counts.find(|lanes| b.can_shuffle(*lanes)).unwrap_or(1)
    }

    /// A sum after the epilogue's steps.
    fn finished(
        &self,
        b: &mut Builder,
        sum: Operand,
        [m, n]: [Operand; 2],
        (next, shard): (u32, u32),
        there: Operand,
    ) -> Operand {
        let (io, input) = (&self.io, self.main.problem.input);
        let matrix = self.matrix.first_word(b, self.main.problem.n);
        let of_row = b.add(n, matrix);
        let next_of_row = next + shard * self.main.problem.n;
        let mut read = |b: &mut Builder, operand: EpilogueOperand| {
            let (buffer, at, plus) = match operand {
                EpilogueOperand::TokenScale => (io.x_scale, input.scale_of_row(b, m), 0),
                EpilogueOperand::TokenZero => (io.x_scale, input.zero_of_row(b, m), 0),
                EpilogueOperand::RowSum => (io.row_sum, of_row, next_of_row),
                EpilogueOperand::ChannelScale => (io.channel_scale, of_row, next_of_row),
                EpilogueOperand::Bias => (io.bias, of_row, next_of_row),
            };
            // The list has a step only if its operand has a buffer.
            let from = buffer.map(|buffer| Address::new(buffer, at).plus(plus));
            let mask = Some(Mask { condition: there, fill: 0.0f32.into() });
            let load = |from| b.load_as(Type::F32, from, Width::B32, mask, Cache::Default);
            from.map(load).into_iter().flatten().map(Operand::from).collect()
        };
        let ops = EpilogueOp::list(self.main.problem, false).into_iter();
        ops.fold(vec![sum], |values, op| op.apply(b, values, &mut read))[0]
    }

    fn store(&self, b: &mut Builder, values: &[Operand], [m, n]: [Operand; 2], there: Operand) {
        let at = b.mad(m, self.main.problem.n, n);
        let to = Address::new(self.io.y, at);
        let half = match self.main.problem.output {
            Number::Float(BF16) => Some(Half::Bf16),
            Number::Float(F16) => Some(Half::F16),
            _ => None,
        };
        let Some(half) = half else {
            let width = if values.len() == 2 { Width::B64 } else { Width::B32 };
            return b.store(to, values, width, Some(there));
        };
        let high = values.get(1).copied().unwrap_or(Operand::F32(0.0));
        let word = b.binary(Binary::Pack(half), values[0], high);
        let width = if values.len() == 2 { Width::B32 } else { Width::B16 };
        b.store(to, &[word], width, Some(there));
    }
}
