//! The rows of x that a product reads: all of them in their order, or those that an index names.
//!
//! In: x in the input dtype, an index, a prescale. Out: rows in `f32`, multiplied by the prescale.

use super::quantiser::ValueRange;
use crate::element::{Values, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The rows of x that the tokens of a product are.
#[derive(Clone, Copy)]
pub(super) struct InputRows<'a> {
    /// x [rows, K].
    pub(super) x: Values<'a>,
    /// K.
    pub(super) k: usize,
    /// Which row each token is; without an index, token m is row m.
    pub(super) index: Option<RowIndex<'a>>,
    /// The prescale, a factor per column; empty if the scheme has none.
    pub(super) factors: &'a [f32],
}

/// Token m is row `pairs[m] / choices`: the row of the token that the pair belongs to.
#[derive(Clone, Copy)]
pub(super) struct RowIndex<'a> {
    pub(super) pairs: &'a [u32],
    pub(super) choices: usize,
}

impl InputRows<'_> {
    /// The row of a token.
    #[inline(always)]
    pub(super) fn row(&self, token: usize) -> usize {
        match self.index {
            None => token,
            Some(RowIndex { pairs, choices }) => pairs[token] as usize / choices,
        }
    }

    /// Widens columns `first..first + out.len()` of a token and multiplies them by the prescale: the
    /// product is rounded to `f32` and then to the type of x.
    #[inline(always)]
    pub(super) fn widen(&self, token: usize, first: usize, out: &mut [f32]) {
        self.x.widen(self.row(token) * self.k + first, out);
        if self.factors.is_empty() {
            return;
        }
        let products = out.iter_mut().zip(&self.factors[first..]);
        match self.x {
            Values::F32(_) => products.for_each(|(x, factor)| *x *= factor),
            Values::F16(_) => {
                products.for_each(|(x, factor)| *x = f16_to_f32(f32_to_f16(*x * factor)));
            }
            Values::Bf16(_) => {
                products.for_each(|(x, factor)| *x = bf16_to_f32(f32_to_bf16(*x * factor)));
            }
        }
    }

    /// The range of the first `tokens` tokens, all columns.
    pub(super) fn range(&self, tokens: usize) -> ValueRange {
        let mut all = ValueRange::default();
        let mut part = [0.0; 256];
        for token in 0..tokens {
            for first in (0..self.k).step_by(part.len()) {
                let part = &mut part[..256.min(self.k - first)];
                self.widen(token, first, part);
                all = all.with(ValueRange::of(part));
            }
        }
        all
    }
}
