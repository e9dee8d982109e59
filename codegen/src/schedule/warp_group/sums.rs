//! Where a consumer's products add up: in the sums of the tile, or first in those of a segment.
//!
//! Scales that multiply weights leave nothing else to do. Scales of sums, which are exact, need the sum of each
//! segment alone: it starts from zero, and is complete before its scale multiplies it. The first batch
//! of the next segment is dequantised before that wait.

use super::Block;
use crate::ir::{Accumulator, Builder, Op, Operand, Reg, Type, Uniformity};
use crate::schedule::lanes::LaneMap;

/// The sums of a warp group.
pub(super) struct Sums {
    /// Per tile of rows.
    total: Vec<Vec<Reg>>,
    segment: Option<Segment>,
}

/// The sums of a segment of the only tile of rows.
struct Segment {
    registers: Vec<Reg>,
    /// The scales of the lane's rows.
    scales: Vec<Reg>,
    /// For each register the number of its row among the lane's.
    rows: Vec<usize>,
    /// Steps of the product.
    steps: u32,
}

impl Sums {
    pub(super) fn declare(b: &mut Builder, block: &Block<'_>) -> Self {
        let count = block.product.registers(b.warp_size())[2];
        let total = (0..block.tile.row_tiles).map(|_| b.zeros("sum", count)).collect();
        let segment = LaneMap::new(block.product).filter(|_| block.tile.exact).map(|lanes| {
            let registers = b.zeros("of_segment", count);
            let len = lanes.d.rows.len;
            let scales = b.array("scale", Type::F32, len, Uniformity::Varying);
            // The first of all segments comes after one of zeros.
            scales.iter().for_each(|&scale| b.set(scale, 0.0f32));
            let rows = lanes.d.registers.iter().map(|&[row, _]| row).collect();
            Segment { registers, scales, rows, steps: block.main.segment_steps() }
        });
        Self { total, segment }
    }

    /// The segment of a k-tile that begins with fragment `number`, if one does.
    pub(super) fn begins(&self, number: u32) -> Option<u32> {
        let steps = self.segment.as_ref()?.steps;
        number.is_multiple_of(steps).then_some(number / steps)
    }

    /// Adds the segment before, and begins one with these scales of the lane's rows.
    pub(super) fn begin(&self, b: &mut Builder, scales: &[Operand]) {
        let Some(segment) = &self.segment else { return };
        self.add(b, segment);
        for (&own, &scale) in segment.scales.iter().zip(scales) {
            b.set(own, scale);
        }
    }

    /// Accumulator and C of the products of fragment `number` of a k-tile.
    pub(super) fn of_fragment(&self, tile: u32, number: u32) -> (Vec<Reg>, Accumulator) {
        let d = match &self.segment {
            Some(segment) => segment.registers.clone(),
            None => self.total[tile as usize].clone(),
        };
        match self.begins(number) {
            Some(_) => (d, Accumulator::Zero),
            None => (d.clone(), Accumulator::Registers(d)),
        }
    }

    /// Waits for all products: the sums per tile of rows.
    pub(super) fn finish(self, b: &mut Builder) -> Vec<Vec<Reg>> {
        match &self.segment {
            Some(segment) => self.add(b, segment),
            None => b.push(Op::MatrixWait { pending: 0 }),
        }
        self.total
    }

    /// sums += scale * segment, once its products are complete.
    fn add(&self, b: &mut Builder, segment: &Segment) {
        b.push(Op::MatrixWait { pending: 0 });
        let total = self.total.iter().flatten();
        for ((&sum, &part), &row) in total.zip(&segment.registers).zip(&segment.rows) {
            b.accumulate(sum, segment.scales[row], part);
        }
    }
}
