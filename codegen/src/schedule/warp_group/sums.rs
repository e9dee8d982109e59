//! Where a consumer's products add up: in the sums of the tile, or first in those of a segment.
//!
//! Scales that multiply weights leave nothing else to do. Scales of sums, which are exact, need the sum of each
//! segment alone: it starts from zero, and is complete before its scale multiplies it. The first batch
//! of the next segment is dequantised before that wait. Scales of x that change along K are read from the segment's
//! stage while its products are under way.
//!
//! Integer products have integer sums: of all columns, converted at the end; or of a segment, which starts at the bits
//! of a float whose spacing is 1, so that its bits are a float (`schedule::sums`).

use std::collections::BTreeMap;

use super::Block;
use super::stage::Stages;
use super::token_scales::TokenScales;
use super::weights::WarpRows;
use crate::ir::{Accumulator, Builder, Op, Operand, Reg, Ternary, Type, Unary, Uniformity};
use crate::schedule::lanes::LaneMap;
use crate::schedule::sums::MAGIC;

/// The sums of a warp group.
pub(super) struct Sums<'s> {
    /// Per tile of rows.
    total: Vec<Vec<Reg>>,
    segment: Option<Segment<'s>>,
    /// If sums are integers, what a unit of them is worth.
    unit: Option<f32>,
}

/// The sums of a segment of a tile of rows; tiles of rows take turns.
struct Segment<'s> {
    registers: Vec<Reg>,
    /// The scales of the lane's rows; one if all rows share it, none if there are none.
    scales: Vec<Reg>,
    /// The scales of the lane's tokens.
    tokens: Option<TokenScales<'s>>,
    /// For each register the numbers of its row and its token among the lane's.
    places: Vec<[usize; 2]>,
    /// Steps of the product.
    steps: u32,
    /// Segments of a stage, of all tiles of rows.
    of_stage: u32,
}

impl<'s> Sums<'s> {
    pub(super) fn declare(
        b: &mut Builder,
        (block, stages): (&Block<'_>, &'s Stages),
        rows: &WarpRows,
    ) -> Self {
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
            let len = match problem.scale.filter(|_| problem.scales_sums()) {
                None => 0,
                Some(of) if of.rows > 1 => 1,
                Some(_) => lanes.d.rows.len,
            };
            let scales = match len {
                0 => Vec::new(),
                _ => b.array("scale", Type::F32, len, Uniformity::Varying),
            };
            // The first of all segments comes after one of zeros.
            scales.iter().for_each(|&scale| b.set(scale, 0.0f32));
            let tokens = TokenScales::declare(b, stages, &lanes, rows.lane);
            let places = lanes.d.registers;
            let steps = block.main.segment_steps();
            let of_tile = block.main.k_tile() / block.main.segment();
            let of_stage = block.tile.row_tiles * of_tile;
            Segment { registers, scales, tokens, places, steps, of_stage }
        });
        Self { total, segment, unit }
    }

    /// The segment of a k-tile that begins with fragment `number`, if one does.
    pub(super) fn begins(&self, number: u32) -> Option<u32> {
        let steps = self.segment.as_ref()?.steps;
        number.is_multiple_of(steps).then_some(number / steps)
    }

    /// Adds the segment before, and begins the one of this number with these scales of the lane's rows.
    pub(super) fn begin(&self, b: &mut Builder, (number, scales): (u32, Option<&Vec<Operand>>)) {
        let Some(segment) = &self.segment else { return };
        self.add(b, segment, self.tile_before(segment, number));
        for (&own, &scale) in segment.scales.iter().zip(scales.into_iter().flatten()) {
            b.set(own, scale);
        }
    }

    /// Loads the scales of the lane's tokens in the segment of this stage, whose products are under way.
    pub(super) fn load(&self, b: &mut Builder, stage: Operand) {
        if let Some(tokens) = self.segment.as_ref().and_then(|segment| segment.tokens.as_ref()) {
            tokens.load(b, stage);
        }
    }

    /// The end of a stage, whose products are under way: where all rows share a scale, the scales of tokens are
    /// multiplied by it. (Tiles of rows have scales of their own.)
    pub(super) fn end(&self, b: &mut Builder) {
        let Some(segment) = &self.segment else { return };
        if let Some((tokens, of_rows)) = self.multiplied(segment) {
            for &scale in &tokens.scales {
                let both = b.mul_f32(scale, of_rows);
                b.set(scale, both);
            }
        }
    }

    /// The scales of tokens that [`Self::end`] multiplies by a scale of all rows, and that scale.
    fn multiplied<'a>(&self, segment: &'a Segment<'s>) -> Option<(&'a TokenScales<'s>, Reg)> {
        match (&segment.tokens, &segment.scales[..], &self.total[..]) {
            (Some(tokens), &[of_rows], [_]) => Some((tokens, of_rows)),
            _ => None,
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
            Some(segment) => self.add(b, segment, self.tile_before(segment, 0)),
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

    /// The tile of rows of the segment before the one of this number; before the first one of a stage comes the last one of
    /// the stage before.
    fn tile_before(&self, segment: &Segment<'_>, number: u32) -> usize {
        let before = (number + segment.of_stage - 1) % segment.of_stage;
        before as usize % self.total.len()
    }

    /// sums += scale * segment of a tile of rows, once its products are complete.
    fn add(&self, b: &mut Builder, segment: &Segment<'_>, tile: usize) {
        let tokens = segment.tokens.as_ref().map(|tokens| &tokens.scales[..]);
        let multiplied = self.multiplied(segment).is_some();
        let of_rows = if multiplied { &[] } else { &segment.scales[..] };
        b.push(Op::MatrixWait { pending: 0 });
        let total = self.total[tile].iter();
        let mut scales: BTreeMap<[usize; 2], Operand> = BTreeMap::new();
        for ((&sum, &part), &[row, token]) in total.zip(&segment.registers).zip(&segment.places) {
            let row = row.min(of_rows.len().saturating_sub(1));
            let scale =
                *scales.entry([row, token]).or_insert_with(|| match (of_rows.get(row), tokens) {
                    (Some(&of_row), Some(tokens)) => b.mul_f32(of_row, tokens[token]),
                    (Some(&of_row), None) => of_row.into(),
                    (None, Some(tokens)) => tokens[token].into(),
                    (None, None) => 1f32.into(),
                });
            let value = match self.unit {
                Some(unit) => {
                    let bits = b.unary(Unary::AsF32, part);
                    b.ternary(Ternary::Fma, bits, unit, -MAGIC * unit)
                }
                None => part.into(),
            };
            b.accumulate(sum, scale, value);
            if self.unit.is_some() {
                b.set(part, MAGIC.to_bits());
            }
        }
    }
}
