//! The two products of the experts: panels of gate and up to h, panels of down to parts.
//!
//! In: packed token blocks. Out: rows by slot. A unit of work is some panels of one block; all units are
//! in one queue.

use std::ops::Range;

use quantloom_dsl::experts::Gate;

use super::super::epilogue::OutputWriter;
use super::super::isa::{Isa, enter};
use super::super::native::PANEL;
use super::super::product::CpuProduct;
use super::super::queue::{self, Line};
use super::combine::ExpertSums;
use super::gate;
use super::pack::Packed;
use super::stack::{MOST_PANELS, unit_panels};
use crate::buffer::{BumpAllocator, bytes_of};

/// Panels that a thread takes at once, at most, of those that are decoded on the fly.
const PANELS: usize = MOST_PANELS;
/// Panels of gate and of up of so few blocks that threads would wait for the last one.
const FEW_PANELS: usize = 8;
const FEW_BLOCKS: usize = 16;

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
    let few = packed.blocks.len() < FEW_BLOCKS;
    let queue = Units::new(packed, if few { FEW_PANELS } else { PANELS }, units);
    queue::share(queue.count(), scratch, lines, |unit, scratch| {
        let (at, panels) = queue.unit(packed, unit);
        let block = packed.block(at);
        let columns = panels.len() * PANEL;
        let mut cut = BumpAllocator::new(scratch);
        let g: &mut [f32] = cut.take(block.rows * columns);
        let u: &mut [f32] = cut.take(if gate.shards() == 2 { g.len() } else { 0 });
        let scratch = cut.rest();
        for (shard, sums) in [&mut *g, &mut *u].into_iter().enumerate().take(gate.shards()) {
            let product = packed.product(at, shard);
            let sums = OutputWriter::of_panels(sums, panels.start, columns, block.rows);
            if let Some(sums) = sums {
                product.panels(panels.clone(), &sums, scratch);
            }
        }
        let isa = packed.product(at, 0).isa;
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
    let queue = Units::new(packed, PANELS, units);
    queue::share(queue.count(), scratch, lines, |unit, scratch| {
        let (at, panels) = queue.unit(packed, unit);
        let block = packed.block(at);
        packed.product(at, 0).panels(panels, &parts.rows(block.first, block.rows), scratch);
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
    queue::share(all.div_ceil(PANELS), scratch, lines, |unit, scratch| {
        let panels = unit * PANELS..(unit * PANELS + PANELS).min(all);
        let columns = panels.len() * PANEL;
        let mut cut = BumpAllocator::new(scratch);
        let parts: &mut [f32] = cut.take(slots * columns);
        let scratch = cut.rest();
        if let Some(parts) = OutputWriter::of_panels(parts, panels.start, columns, slots) {
            for at in 0..packed.blocks.len() {
                let block = packed.block(at);
                let parts = parts.rows(block.first, block.rows);
                packed.product(at, 0).panels(panels.clone(), &parts, scratch);
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
    /// `[blocks + 1]`: first units of blocks.
    firsts: &'a [u32],
    batch: usize,
}

impl<'a> Units<'a> {
    fn new(packed: Packed<'_>, batch: usize, firsts: &'a mut [u32]) -> Self {
        let mut units = 0;
        for (at, first) in firsts[..packed.blocks.len()].iter_mut().enumerate() {
            *first = units;
            let product = packed.product(at, 0);
            units += product.weight.panels().div_ceil(panels(&product, batch)) as u32;
        }
        firsts[packed.blocks.len()] = units;
        Self { firsts: &firsts[..=packed.blocks.len()], batch }
    }

    fn count(&self) -> usize {
        self.firsts.last().map_or(0, |units| *units as usize)
    }

    /// The block of a unit, and its panels.
    fn unit(&self, packed: Packed<'_>, unit: usize) -> (usize, Range<usize>) {
        let at = self.firsts.partition_point(|first| *first as usize <= unit) - 1;
        let product = packed.product(at, 0);
        let each = panels(&product, self.batch);
        let first = (unit - self.firsts[at] as usize) * each;
        (at, first..(first + each).min(product.weight.panels()))
    }
}

/// Panels of a unit of a product.
fn panels(product: &CpuProduct<'_>, batch: usize) -> usize {
    unit_panels(&product.blocking, product.batch().min(batch))
}
