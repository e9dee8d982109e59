//! y of parts: a token's parts, each times its router weight, in the order of choice, and the result of
//! shared experts.
//!
//! In: parts [R', H] by slot in `f32`. Out: rows of y in its type. Sums are in `f32`.

use std::ops::Range;

use quantloom_dsl::experts::MOST_TOP_K;

use super::super::epilogue::OutputWriter;
use super::super::isa::Vectorised;
use super::super::native::PANEL;
use super::super::vector::Vector;
use crate::element::Values;

/// A pair without a slot.
pub(super) const NONE: u32 = u32::MAX;

/// The tokens of a call and what they chose.
#[derive(Clone, Copy)]
pub(super) struct Choices<'a> {
    /// k: choices of a token.
    pub(super) count: usize,
    /// The slot of each pair, or [`NONE`].
    pub(super) slots: &'a [u32],
    /// The router weight of each pair; empty if all are 1.
    pub(super) weights: &'a [f32],
    /// Of rows that were sorted already, the row of y of each slot.
    pub(super) tokens: Option<&'a [u32]>,
}

/// The sums of a call.
#[derive(Clone, Copy)]
pub(super) struct ExpertSums<'a> {
    pub(super) choices: Choices<'a>,
    /// [M, H], and H.
    pub(super) shared: Option<Values<'a>>,
    pub(super) hidden: usize,
    pub(super) output: &'a OutputWriter<'a>,
}

impl<'a> ExpertSums<'a> {
    /// Some panels of some tokens' y, of parts by slot, `stride` apart, whose first column is that of
    /// the first panel.
    pub(super) fn of(
        self,
        tokens: Range<usize>,
        panels: Range<usize>,
        parts: &'a [f32],
        stride: usize,
    ) -> Combine<'a> {
        Combine { sums: self, tokens, panels, parts, stride }
    }
}

/// See [`ExpertSums::of`].
pub(super) struct Combine<'a> {
    sums: ExpertSums<'a>,
    tokens: Range<usize>,
    panels: Range<usize>,
    parts: &'a [f32],
    stride: usize,
}

impl Vectorised for Combine<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { parts, stride, .. } = self;
        let ExpertSums { choices, shared, hidden, output } = self.sums;
        for at in self.tokens.clone() {
            let mut chosen = [(0usize, 0.0f32); MOST_TOP_K as usize];
            let (mut token, mut count) = (at, 0);
            match choices.tokens {
                Some(tokens) => {
                    token = tokens[at] as usize;
                    chosen[0] = (at * stride, 1.0);
                    count = 1;
                }
                None => {
                    for pair in token * choices.count..(token + 1) * choices.count {
                        if choices.slots[pair] != NONE {
                            let weight = choices.weights.get(pair).copied().unwrap_or(1.0);
                            chosen[count] = (choices.slots[pair] as usize * stride, weight);
                            count += 1;
                        }
                    }
                }
            }
            for panel in self.panels.clone() {
                let first = (panel - self.panels.start) * PANEL;
                let columns = PANEL.min(hidden - panel * PANEL);
                let mut sums = V::splat(0);
                let mut values = [0.0; PANEL];
                for (row, weight) in &chosen[..count] {
                    let part = &parts[row + first..][..columns];
                    let part = match <&[f32; PANEL]>::try_from(part) {
                        Ok(part) => V::load_f32(part),
                        Err(_) => {
                            values[..columns].copy_from_slice(part);
                            V::load_f32(&values)
                        }
                    };
                    sums = sums.add_f32(part.mul_f32(V::splat(weight.to_bits())));
                }
                if let Some(shared) = shared {
                    shared.widen(token * hidden + panel * PANEL, &mut values[..columns]);
                    sums = sums.add_f32(V::load_f32(&values));
                }
                sums.store_f32(&mut values);
                output.store(token, panel, &values);
            }
        }
    }
}
