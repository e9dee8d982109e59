//! What finished sums are multiplied with and what is added to them: copied to shared memory while
//! the sums are made, so that nothing waits for memory at the end.

use super::io::Io;
use super::input::InputScale;
use super::problem::{Problem};
use crate::ir::{Address, BufferId, Builder, Cache, Operand, SharedId, Ternary, Type, Width, Word};

/// A block's constants in shared memory, f32.
#[derive(Clone, Copy)]
pub(super) struct Constants {
    /// Multiplies the sums besides: the power of two that decoding left.
    unit: f32,
    /// Per row.
    factor: Option<SharedId>,
    /// Per row.
    bias: Option<SharedId>,
    /// Per token.
    x_scale: Option<SharedId>,
}

/// Some elements of one axis: the first one in the whole, how many a block has, and how many there
/// are.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) first: Operand,
    pub(super) count: u32,
    pub(super) end: Operand,
}

impl Constants {
    /// Words of shared memory for a block of so many rows and tokens.
    pub(super) fn words(problem: &Problem, rows: u32, tokens: u32) -> u32 {
        let per_row = u32::from(problem.factor) + u32::from(problem.bias);
        per_row * rows.next_multiple_of(4)
            + if by_token(problem) { tokens.next_multiple_of(4) } else { 0 }
    }

    pub(super) fn declare(b: &mut Builder, problem: &Problem, rows: u32, tokens: u32) -> Self {
        let mut block = |name: &str, there: bool, count: u32| {
            let words = count.next_multiple_of(4);
            there.then(|| b.shared(name, Word::U32, words, "f32, one after another"))
        };
        let exponent = if problem.scales_runs() { 0 } else { problem.exponent() };
        Self {
            unit: 2f32.powi(exponent),
            factor: block("factors", problem.factor, rows),
            bias: block("biases", problem.bias, rows),
            x_scale: block("x_scales", by_token(problem), tokens),
        }
    }

    /// Starts the copies of what belongs to rows of w: constant, so before earlier kernels end.
    pub(super) fn copy_rows(&self, b: &mut Builder, io: &Io, rows: Stretch, threads: u32) {
        copy(b, self.factor, io.factor, rows, threads);
        copy(b, self.bias, io.bias, rows, threads);
    }

    /// Starts the copies of what belongs to rows of x.
    pub(super) fn copy_tokens(&self, b: &mut Builder, io: &Io, tokens: Stretch, threads: u32) {
        copy(b, self.x_scale, io.x_scale, tokens, threads);
    }

    /// Results of some rows that follow one another, of one token.
    pub(super) fn finish(
        &self,
        b: &mut Builder,
        [token, row]: [Operand; 2],
        width: Width,
        values: &[Operand],
    ) -> Vec<Operand> {
        let mut values = values.to_vec();
        if self.unit != 1.0 {
            values = values.into_iter().map(|value| b.mul_f32(value, self.unit)).collect();
        }
        if let Some(scales) = self.x_scale {
            let from = Address::new(scales, token);
            let scale = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
            values = values.into_iter().map(|value| b.mul_f32(value, scale)).collect();
        }
        let per_row = |b: &mut Builder, block: Option<SharedId>| {
            let from = Address::new(block?, row);
            Some(b.load_as(Type::F32, from, width, None, Cache::Default))
        };
        match (per_row(b, self.factor), per_row(b, self.bias)) {
            (Some(factor), Some(bias)) => {
                let fused = values.into_iter().zip(factor).zip(bias);
                fused.map(|((v, f), bias)| b.ternary(Ternary::Fma, v, f, bias)).collect()
            }
            (Some(factor), None) => {
                values.into_iter().zip(factor).map(|(v, f)| b.mul_f32(v, f)).collect()
            }
            (None, Some(bias)) => {
                values.into_iter().zip(bias).map(|(v, bias)| b.add_f32(v, bias)).collect()
            }
            (None, None) => values,
        }
    }
}

/// Whether one scale serves a row of x.
fn by_token(problem: &Problem) -> bool {
    problem.input.scale == Some(InputScale::Row)
}

fn copy(
    b: &mut Builder,
    to: Option<SharedId>,
    from: Option<BufferId>,
    stretch: Stretch,
    threads: u32,
) {
    let (Some(to), Some(from)) = (to, from) else { return };
    let thread = b.special(crate::ir::Special::Thread);
    for first in (0..stretch.count).step_by(threads as usize) {
        let at = b.add(thread, first);
        let number = b.add(stretch.first, at);
        let there = b.less(number, stretch.end);
        let inside =
            if first + threads > stretch.count { b.less(at, stretch.count) } else { true.into() };
        b.when(inside, |b| {
            b.copy_async(Address::new(to, at), Address::new(from, number), Width::B32, Some(there));
        });
    }
}
