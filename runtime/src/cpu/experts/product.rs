//! The two products of the experts: panels of gate and up to h, panels of down to parts.
//!
//! In: packed token blocks. Out: rows by slot. A unit of work is some panels of one block; all units are
//! in one queue.

use std::ops::Range;

use quantloom_dsl::experts::Gate;

use super::super::epilogue::OutputWriter;
use super::super::isa::{Isa, enter};
use super::super::native::PANEL;
use super::super::product::NextPanels;
use super::super::queue::{self, Line};
use super::combine::ExpertSums;
use super::gate;
use super::pack::Packed;
use super::stack::{MOST_PANELS, unit_panels};
use crate::buffer::{BumpAllocator, bytes_of};

/// Panels that a thread takes at once, at most, of those that are decoded on the fly.
const PANELS: usize = MOST_PANELS;

/// So few slots that a thread computes some panels of all parts and adds them up: nothing waits between
/// the products and the sums.
pub(super) const FEW_SLOTS: usize = 64;

/// h [R', I] of all blocks: the sums of gate and up of the same rows are computed by one thread, which
/// combines them.
pub(super) fn gate_up(
    packed: Packed<'_>,
    gate: Gate,
    units: &mut [u32],
    h: &OutputWriter<'_>,
    (scratch, lines): (&mut [Line], usize),
) {
    let queue = Units::new(packed, units);
    queue::share(queue.count(), scratch, lines, |unit, scratch| {
        let (at, panels) = queue.unit(unit);
        let next = queue.next(unit);
        let block = packed.block(at);
        let columns = panels.len() * PANEL;
        let mut cut = BumpAllocator::new(scratch);
        let g: &mut [f32] = cut.take(block.rows * columns);
        let u: &mut [f32] = cut.take(if gate.shards() == 2 { g.len() } else { 0 });
        let scratch = cut.rest();
        let isa = packed.product(at, 0).isa;
        for (shard, sums) in [&mut *g, &mut *u].into_iter().enumerate().take(gate.shards()) {
            let product = packed.product(at, shard);
            let next = match shard + 1 < gate.shards() {
                true => Some(packed.panels_from(at, shard + 1, panels.start)),
                false => next,
            };
            if let Some(sums) = OutputWriter::of_panels(sums, panels.start, columns, block.rows) {
                product.panels(panels.clone(), next, &sums, scratch);
            }
        }
        gate::apply(isa, gate, g, u);
        for (row, values) in g.chunks_exact(columns).enumerate() {
            for (panel, values) in panels.clone().zip(values.as_chunks::<PANEL>().0) {
                h.store(block.first + row, panel, values);
            }
        }
    });
}

/// Parts [R', H] of all blocks.
pub(super) fn down(
    packed: Packed<'_>,
    units: &mut [u32],
    parts: &OutputWriter<'_>,
    (scratch, lines): (&mut [Line], usize),
) {
    let queue = Units::new(packed, units);
    queue::share(queue.count(), scratch, lines, |unit, scratch| {
        let (at, panels) = queue.unit(unit);
        let block = packed.block(at);
        let (next, parts) = (queue.next(unit), parts.rows(block.first, block.rows));
        packed.product(at, 0).panels(panels, next, &parts, scratch);
    });
}

/// y of the parts of at most [`FEW_SLOTS`] slots: a unit of work is some panels of all blocks.
pub(super) fn down_and_combine(
    packed: Packed<'_>,
    sums: ExpertSums<'_>,
    tokens: usize,
    slots: usize,
    isa: Isa,
    (scratch, lines): (&mut [Line], usize),
) {
    let all = sums.hidden.div_ceil(PANEL);
    let units = all.div_ceil(PANELS);
    let count = packed.blocks.len();
    let of_next = |at: usize, panel| (at < count).then(|| packed.panels_from(at, 0, panel));
    queue::share(units, scratch, lines, |unit, scratch| {
        let next = queue::likely_next(unit, units);
        let panels = unit * PANELS..(unit * PANELS + PANELS).min(all);
        let columns = panels.len() * PANEL;
        let mut cut = BumpAllocator::new(scratch);
        let parts: &mut [f32] = cut.take(slots * columns);
        let scratch = cut.rest();
        if let Some(parts) = OutputWriter::of_panels(parts, panels.start, columns, slots) {
            for at in 0..count {
                let block = packed.block(at);
                let parts = parts.rows(block.first, block.rows);
                let next = of_next(at + 1, panels.start).or_else(|| of_next(0, next? * PANELS));
                packed.product(at, 0).panels(panels.clone(), next, &parts, scratch);
            }
        }
        enter(isa, sums.of(0..tokens, panels, parts, columns));
    });
}

/// Bytes of memory of a thread for parts of few slots.
pub(super) fn few_parts() -> usize {
    bytes_of::<f32>(FEW_SLOTS * PANELS * PANEL)
}

/// The units of a queue.
struct Units<'a> {
    packed: Packed<'a>,
    /// `[blocks + 1]`: first units of blocks.
    firsts: &'a [u32],
}

impl<'a> Units<'a> {
    fn new(packed: Packed<'a>, firsts: &'a mut [u32]) -> Self {
        let panels = |at: usize| packed.weight(at, 0).panels();
        let all = (0..packed.blocks.len()).map(panels).sum();
        let mut units = 0;
        for (at, first) in firsts[..packed.blocks.len()].iter_mut().enumerate() {
            *first = units;
            let product = packed.product(at, 0);
            let each = unit_panels(&product.blocking, product.batch(all).min(PANELS));
            units += product.weight.panels().div_ceil(each) as u32;
        }
        firsts[packed.blocks.len()] = units;
        Self { packed, firsts: &firsts[..=packed.blocks.len()] }
    }

    fn count(&self) -> usize {
        self.firsts.last().map_or(0, |units| *units as usize)
    }

    /// The block of a unit, and its panels: a block's units have the same number of them, but for the last.
    fn unit(&self, unit: usize) -> (usize, Range<usize>) {
        let at = self.firsts.partition_point(|first| *first as usize <= unit) - 1;
        let [first, end] = [self.firsts[at], self.firsts[at + 1]].map(|unit| unit as usize);
        let panels = self.packed.weight(at, 0).panels();
        let each = panels.div_ceil(end - first);
        let start = (unit - first) * each;
        (at, start..(start + each).min(panels))
    }

    /// The first panels of the unit that a thread is likely to take after this one.
    fn next(&self, unit: usize) -> Option<NextPanels<'a>> {
        let (at, panels) = self.unit(queue::likely_next(unit, self.count())?);
        Some(self.packed.panels_from(at, 0, panels.start))
    }
}
