//! A call: from x and the experts of each token to y.
//!
//! In: x, logits or choices. Out: y. Calls whose memory would be more than the options allow are
//! computed in chunks of some tokens.

use std::ops::Range;

use super::super::epilogue::OutputWriter;
use super::super::isa::enter;
use super::super::native::PANEL;
use super::super::queue::{self, Line};
use super::super::rows::RowIndex;
use super::blocks::{self, StoredBlock};
use super::combine::{Choices, ExpertSums, NONE};
use super::memory::{Memory, Sizes};
use super::op::CpuExperts;
use super::pack::{self, Packed, Rows};
use super::product::{self, FEW_SLOTS};
use crate::buffer::Workspace;
use crate::element::{Values, ValuesMut, bf16, f16, f32_to_bf16, f32_to_f16};
use crate::experts::{ExpertCall, ExpertError, Routed, order, route};
use crate::op::ProductError;

impl CpuExperts {
    /// y of a call, whose lengths are checked.
    ///
    /// # Errors
    /// [`ExpertError::Workspace`]; those of routing and of products.
    pub(super) fn in_chunks(
        &self,
        call: &ExpertCall<'_>,
        y: &mut ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ExpertError> {
        let hidden = self.description().hidden as usize;
        let tokens = call.x.len() / hidden;
        if tokens == 0 {
            return Ok(());
        }
        // Rows that a call is cut along: tokens, or the rows of each expert.
        let (rows, pairs) = match call.routed {
            Routed::Batched { counts, most } => {
                let longest = counts.iter().copied().max().unwrap_or(0) as usize;
                (longest.min(most), counts.len())
            }
            _ => (tokens, self.description().top_k as usize),
        };
        let sizes = |rows: usize| Sizes::of(self, rows, rows.saturating_mul(pairs));
        let most = usize::try_from(self.most_workspace()).unwrap_or(usize::MAX);
        let fits =
            |rows: usize| sizes(rows).bytes() <= most && rows.saturating_mul(pairs) < NONE as usize;
        let mut each = rows;
        while each > 1 && !fits(each) {
            each = each.div_ceil(2);
        }
        let spans = self.stacks().iter().any(|stack| stack.spans_tokens(call.x.format()));
        if !fits(each) || spans && each < rows {
            let needed = sizes(if spans { rows } else { each }).bytes() as u64;
            return Err(ExpertError::Workspace { needed, most: most as u64 });
        }
        let Some(output) = OutputWriter::new(y, hidden, tokens) else { return Ok(()) };
        for first in (0..rows).step_by(each.max(1)) {
            let chunk = first..(first + each).min(rows);
            let sizes = sizes(chunk.len());
            workspace.reserve(sizes.bytes());
            let memory = sizes.cut(&mut workspace.cut(), call.x.format());
            self.chunk(call, chunk, sizes.scratch(), memory, &output)?;
        }
        Ok(())
    }

    /// Some tokens, or some rows of each expert.
    fn chunk(
        &self,
        call: &ExpertCall<'_>,
        chunk: Range<usize>,
        lines: usize,
        memory: Memory<'_>,
        y: &OutputWriter<'_>,
    ) -> Result<(), ExpertError> {
        let layer = self.description();
        let (hidden, experts, k) =
            (layer.hidden as usize, layer.experts as usize, layer.top_k as usize);
        let Memory { ids, weights, starts, pairs, slots, mut scaled, .. } = memory;
        let steps = Steps {
            blocks: memory.blocks,
            bounds: memory.bounds,
            units: memory.units,
            packed: memory.packed,
            h: memory.h,
            parts: memory.parts,
            scratch: memory.scratch,
            lines,
        };
        let own = |count: usize| chunk.start * count..chunk.end * count;
        let (ids, weights): (&[i32], &[f32]) = match call.routed {
            Routed::Logits(logits) => {
                route(layer, &logits[own(experts)], self.score_bias(), ids, weights)
                    .map_err(|error| further(error, chunk.start))?;
                (ids, weights)
            }
            Routed::Chosen { ids, weights } => (&ids[own(k)], &weights[own(k)]),
            Routed::Batched { counts, most } => {
                let count = batch(counts, most, &chunk, starts, pairs);
                let pairs = &pairs[..count];
                let index = RowIndex { pairs, choices: 1 };
                let choices = Choices { count: 1, slots: &[], weights: &[], tokens: Some(pairs) };
                let all = (Some(index), count);
                let input = Input { x: call.x, index, all, starts, choices, first: 0 };
                return self.steps(&input, call.shared, y, steps);
            }
        };
        let map = self.map();
        let count = order(ids, k, layer.experts, map, starts, pairs)
            .map_err(|error| further(error, chunk.start))?;
        slots.fill(NONE);
        for (slot, pair) in (0u32..).zip(&pairs[..count]) {
            slots[*pair as usize] = slot;
        }
        let x = call.x.part(own(hidden));
        let (x, weights): (Values<'_>, &[f32]) = match layer.weight_on_input {
            false => (x, weights),
            true => {
                weigh(x, weights, hidden, &mut scaled);
                (scaled.values(), &[])
            }
        };
        let index = RowIndex { pairs: &pairs[..count], choices: k };
        let choices = Choices { count: k, slots, weights, tokens: None };
        let all = (None, chunk.len());
        let input = Input { x, index, all, starts, choices, first: chunk.start };
        let shared = call.shared.map(|shared| shared.part(own(hidden)));
        self.steps(&input, shared, &y.rows(chunk.start, chunk.len()), steps)
    }

    /// The four steps of slots that are sorted by expert.
    fn steps(
        &self,
        input: &Input<'_>,
        shared: Option<Values<'_>>,
        y: &OutputWriter<'_>,
        steps: Steps<'_>,
    ) -> Result<(), ExpertError> {
        let layer = self.description();
        let (hidden, intermediate) = (layer.hidden as usize, layer.intermediate as usize);
        let Steps { blocks, bounds, units, packed, mut h, parts, scratch, lines } = steps;
        let Input { x, index, all, choices, .. } = *input;
        let slots = index.pairs.len();
        let count = blocks::cut(input.starts, blocks);
        let (blocks, format) = (&blocks[..count], x.format());
        let [first, second] = self.stacks();

        let rows = Rows { x, k: hidden, index: Some(index), all };
        let done = pack::pack(first, rows, blocks, bounds, packed, (scratch, lines))
            .map_err(|error| input.refused_x(error))?;
        {
            let packed =
                Packed { stack: first, blocks, bounds, packed: done, lines: packed, format };
            if let Some(h) =
                OutputWriter::new(&mut h.first(slots * intermediate), intermediate, slots)
            {
                product::gate_up(packed, layer.gate, units, &h, (scratch, lines));
            }
        }
        let h = h.values().part(0..slots * intermediate);
        let rows = Rows { x: h, k: intermediate, index: None, all: (None, slots) };
        let done = pack::pack(second, rows, blocks, bounds, packed, (scratch, lines))
            .map_err(|error| input.refused_h(error))?;
        let packed = Packed { stack: second, blocks, bounds, packed: done, lines: packed, format };
        let tokens = choices.tokens.map_or(all.1, <[u32]>::len);
        let sums = ExpertSums { choices, shared, hidden, output: y };
        if slots <= FEW_SLOTS {
            let isa = self.isa();
            product::down_and_combine(packed, sums, tokens, slots, isa, (scratch, lines));
            return Ok(());
        }
        let parts = &mut parts[..slots * hidden];
        if let Some(parts) = OutputWriter::new(&mut ValuesMut::F32(parts), hidden, slots) {
            product::down(packed, units, &parts, (scratch, lines));
        }
        let each = (UNIT / (hidden * choices.count)).max(1);
        let panels = 0..hidden.div_ceil(PANEL);
        queue::share(tokens.div_ceil(each), scratch, 1, |unit, _| {
            let tokens = unit * each..(unit * each + each).min(tokens);
            enter(self.isa(), sums.of(tokens, panels.clone(), parts, hidden));
        });
        Ok(())
    }
}

/// Numbers of parts that a unit of the last step reads, about.
const UNIT: usize = 1 << 15;

/// The memory of the steps: see [`Memory`].
struct Steps<'a> {
    blocks: &'a mut [StoredBlock],
    bounds: &'a mut [u32],
    units: &'a mut [u32],
    packed: &'a mut [Line],
    h: ValuesMut<'a>,
    parts: &'a mut [f32],
    scratch: &'a mut [Line],
    /// Lines of scratch memory of a thread.
    lines: usize,
}

/// The slots of a chunk.
struct Input<'a> {
    x: Values<'a>,
    /// The row of x of each slot.
    index: RowIndex<'a>,
    /// The rows that share a dynamic scale over rows.
    all: (Option<RowIndex<'a>>, usize),
    /// `[L + 1]`: first slots of experts.
    starts: &'a [u32],
    choices: Choices<'a>,
    /// The token of row 0.
    first: usize,
}

impl Input<'_> {
    /// The error of a row of x, as one of a token of the call.
    fn refused_x(&self, error: ProductError) -> ExpertError {
        ExpertError::product(match error {
            ProductError::NotFinite { token, k, value } => {
                ProductError::NotFinite { token: token + self.first, k, value }
            }
            error => error,
        })
    }

    /// The error of a row of h.
    fn refused_h(&self, error: ProductError) -> ExpertError {
        match error {
            ProductError::NotFinite { token: slot, k: column, value } => {
                let token = self.index.pairs[slot] as usize / self.index.choices + self.first;
                let place = self.starts.partition_point(|start| *start as usize <= slot) - 1;
                ExpertError::Intermediate { token, place, column, value }
            }
            error => ExpertError::product(error),
        }
    }
}

/// The error of a token of a chunk, as one of the call.
fn further(error: ExpertError, first: usize) -> ExpertError {
    match error {
        ExpertError::NotFinite { what, token, expert, value } => {
            ExpertError::NotFinite { what, token: token + first, expert, value }
        }
        ExpertError::Expert { token, choice, id, experts } => {
            ExpertError::Expert { token: token + first, choice, id, experts }
        }
        error => error,
    }
}

/// The slots of rows that are sorted already, and their number: of each expert those of its rows that
/// are in the chunk. A slot's pair is its row of x.
fn batch(
    counts: &[u32],
    most: usize,
    chunk: &Range<usize>,
    starts: &mut [u32],
    pairs: &mut [u32],
) -> usize {
    let mut slots = 0;
    for (expert, count) in counts.iter().enumerate() {
        starts[expert] = slots as u32;
        for row in chunk.start..chunk.end.min(*count as usize) {
            pairs[slots] = (expert * most + row) as u32;
            slots += 1;
        }
    }
    starts[counts.len()] = slots as u32;
    slots
}

/// Each row of x [M, H] times the router weight of its token, rounded once to the type of x.
fn weigh(x: Values<'_>, weights: &[f32], hidden: usize, scaled: &mut ValuesMut<'_>) {
    let exact = |at: usize| f64::from(x.get(at)) * f64::from(weights[at / hidden]);
    match scaled {
        ValuesMut::F32(scaled) => {
            scaled.iter_mut().enumerate().for_each(|(at, value)| *value = exact(at) as f32);
        }
        ValuesMut::F16(scaled) => {
            let round = |at: usize| f16::from_bits(f32_to_f16(to_odd(exact(at))));
            scaled.iter_mut().enumerate().for_each(|(at, value)| *value = round(at));
        }
        ValuesMut::Bf16(scaled) => {
            let round = |at: usize| bf16::from_bits(f32_to_bf16(to_odd(exact(at))));
            scaled.iter_mut().enumerate().for_each(|(at, value)| *value = round(at));
        }
    }
}

/// Rounds to odd: rounding the result to a type of at most 22 bits is then rounding the value. Source:
/// Boldo, Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
/// to odd", 2008.
fn to_odd(exact: f64) -> f32 {
    let near = exact as f32;
    let back = f64::from(near);
    if back == exact || !near.is_finite() {
        return near;
    }
    let beyond = back.abs() > exact.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_rounded_once() {
        use quantloom_dsl::format::{BF16, F16};
        let mut state = 9u64;
        for _ in 0..300_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            // Products of 24 and 8 bits, many of them near a tie of bf16.
            let x = f64::from(((state >> 56) as u8 | 1) as f32 / 128.0);
            let weight = f64::from(f32::from_bits(0x3f00_0000 | (state >> 33) as u32 & 0x7f_ffff));
            let odd = to_odd(x * weight);
            let ours = f64::from(bf16::from_bits(f32_to_bf16(odd)).to_f32());
            assert_eq!(ours, BF16.round(x * weight), "{x} {weight}");
            let ours = f64::from(f16::from_bits(f32_to_f16(odd)).to_f32());
            assert_eq!(ours, F16.round(x * weight), "{x} {weight}");
        }
        // 257 / 256 * (1 + 2^-23) is above a tie of bf16 by less than a unit of f32.
        let close = (1.0 + 2f64.powi(-8)) * (1.0 + 2f64.powi(-23)) * (1.0 + 2f64.powi(-40));
        assert_eq!(bf16::from_bits(f32_to_bf16(to_odd(close))).to_f32(), 1.0 + 2f32.powi(-7));
    }
}
