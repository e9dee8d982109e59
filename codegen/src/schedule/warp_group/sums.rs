//! Where a consumer's products add up: in the sums of the tile, or first in those of a segment.
//!
//! Scales that multiply weights leave nothing else to do. Scales of sums, which are exact, need the sum of each
//! segment alone: it starts from zero, and is complete before its scale multiplies it. The first batch
//! of the next segment is dequantised before that wait.
//!
//! Integer products have integer sums: of all columns, converted at the end; or of a segment, which starts at the bits
//! of a float whose spacing is 1, so that its bits are a float (`schedule::sums`).

use super::Block;
use crate::ir::{Accumulator, Builder, Op, Operand, Reg, Ternary, Type, Unary, Uniformity};
use crate::schedule::lanes::LaneMap;
use crate::schedule::sums::MAGIC;

/// The sums of a warp group.
pub(super) struct Sums {
    /// Per tile of rows.
    total: Vec<Vec<Reg>>,
    segment: Option<Segment>,
    /// If sums are integers, what a unit of them is worth.
    unit: Option<f32>,
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
        let problem = block.main.problem;
        let unit = problem.sums_integers().then(|| 2f32.powi(-problem.plan.dequant.encoding().1));
        let integers = |b: &mut Builder, name: &str, word: u32| {
            let registers = b.array(name, Type::U32, count, Uniformity::Varying);
            registers.iter().for_each(|&register| b.set(register, word));
            registers
        };
        let total = |_| match unit {
            Some(_) if !block.tile.exact => integers(b, "sum", 0),
            _ => b.zeros("sum", count),
        };
        let total = (0..block.tile.row_tiles).map(total).collect();
        let segment = LaneMap::new(block.product).filter(|_| block.tile.exact).map(|lanes| {
            let registers = match unit {
                Some(_) => integers(b, "of_segment", MAGIC.to_bits()),
                None => b.zeros("of_segment", count),
            };
            let len = lanes.d.rows.len;
            let scales = b.array("scale", Type::F32, len, Uniformity::Varying);
            // The first of all segments comes after one of zeros.
            scales.iter().for_each(|&scale| b.set(scale, 0.0f32));
            let rows = lanes.d.registers.iter().map(|&[row, _]| row).collect();
            Segment { registers, scales, rows, steps: block.main.segment_steps() }
        });
        Self { total, segment, unit }
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
            // Integers have a value to start from.
            Some(_) if self.unit.is_none() => (d, Accumulator::Zero),
            _ => (d.clone(), Accumulator::Registers(d)),
        }
    }

    /// Waits for all products: the sums per tile of rows.
    pub(super) fn finish(self, b: &mut Builder) -> Vec<Vec<Operand>> {
        match &self.segment {
            Some(segment) => self.add(b, segment),
            None => b.push(Op::MatrixWait { pending: 0 }),
        }
        let mut value = |sum: Reg| match (self.unit, &self.segment) {
            (Some(unit), None) => {
                let sum = b.unary(Unary::F32FromS32, sum);
                b.mul_f32(sum, unit)
            }
            _ => sum.into(),
        };
        self.total.iter().map(|tile| tile.iter().map(|&sum| value(sum)).collect()).collect()
    }

    /// sums += scale * segment, once its products are complete.
    fn add(&self, b: &mut Builder, segment: &Segment) {
        b.push(Op::MatrixWait { pending: 0 });
        let total = self.total.iter().flatten();
        for ((&sum, &part), &row) in total.zip(&segment.registers).zip(&segment.rows) {
            let value = match self.unit {
                Some(unit) => {
                    let bits = b.unary(Unary::AsF32, part);
                    b.ternary(Ternary::Fma, bits, unit, -MAGIC * unit)
                }
                None => part.into(),
            };
            b.accumulate(sum, segment.scales[row], value);
            if self.unit.is_some() {
                b.set(part, MAGIC.to_bits());
            }
        }
    }
}
