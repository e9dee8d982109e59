//! From a layer's float weight to plain codes, some rows at a time on all cores, so that only these
//! rows are in memory as floats.
//!
//! The scale of a group that spans all rows depends only on the smallest and the largest value of
//! each of its columns. Each block of rows is preceded by rows with these values, which are
//! quantised with the block and dropped: the scales of such groups are then those of the whole
//! layer.

use std::ops::Range;

use quantloom_dsl::Scheme;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::{Component, GroupSize, Shape};
use quantloom_dsl::reference::{PlainCodes, ReferenceError, quantise};
use rayon::prelude::*;

use crate::float_mode::standard;
use crate::pack::Slots;

/// A float weight, stacked [E * N, K], read by ranges of its rows.
pub(crate) struct Rows<'a> {
    /// Shape.
    pub(crate) shape: Shape,
    /// The type of the values.
    pub(crate) own: FloatFormat,
    /// Reads the values of some rows, all finite.
    pub(crate) values: &'a (dyn Fn(Range<u64>) -> Vec<f64> + Sync),
    /// Bias [E * N], if there is one.
    pub(crate) bias: Option<&'a [f64]>,
}

/// The codes that the reference's `quantise` returns; calls `progress` with the number of further
/// weights that are done.
///
/// # Errors
/// [`ReferenceError::Length`].
pub(crate) fn quantise_rows(
    scheme: &Scheme,
    weight: &Rows<'_>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Slots, ReferenceError> {
    let shape = weight.shape;
    let mut slots = Slots::new(shape);
    let Some(cut) = RowBlocks::of(scheme, shape) else {
        let values = (weight.values)(0..shape.experts * shape.n);
        let plain = standard(|| quantise(scheme, shape, &values, weight.own, weight.bias))?;
        for (component, codes) in &plain.components {
            slots.extend(scheme, *component, codes);
        }
        progress(values.len() as u64);
        return Ok(slots);
    };
    // Floats in work take 24 bytes per weight: for a sixteenth of the weights, less than half of
    // their f32 size.
    let at_once = (shape.experts * shape.n / 16 / cut.rows).max(1) as usize;
    let at_once = at_once.min(rayon::current_num_threads().max(1));
    for expert in 0..shape.experts {
        let first = expert * shape.n;
        let front = cut.front(weight, first..first + shape.n);
        let starts: Vec<u64> = (0..shape.n).step_by(cut.rows as usize).collect();
        for starts in starts.chunks(at_once) {
            let block = |start: &u64| {
                let rows = first + start..first + (start + cut.rows).min(shape.n);
                let count = (rows.end - rows.start) * shape.k;
                let plain = standard(|| cut.block(scheme, weight, &front, rows));
                progress(count);
                plain
            };
            let blocks: Vec<PlainCodes> = starts.par_iter().map(block).collect::<Result<_, _>>()?;
            for (start, plain) in starts.iter().zip(blocks) {
                for (component, codes) in &plain.components {
                    slots.extend(
                        scheme,
                        *component,
                        cut.own(scheme, *component, codes, *start, shape),
                    );
                }
            }
        }
    }
    Ok(slots)
}

/// How the rows of an expert are divided into blocks that are quantised separately.
struct RowBlocks {
    /// Rows of a block: whole groups of every component that is grouped along n.
    rows: u64,
    /// Rows before each block that represent all rows; 0 if no group spans all rows.
    front: u64,
}

/// The least rows of a block, which bounds the cost of the rows before it.
const LEAST: u64 = 16;

impl RowBlocks {
    /// `None` if the weight cannot be divided.
    fn of(scheme: &Scheme, shape: Shape) -> Option<Self> {
        let scales = || scheme.scales.iter().map(|scale| scale.group.rows);
        let zero = scheme.zero.map(|zero| zero.group.rows);
        let shifts = || scheme.shifts.iter().map(|shift| shift.group.rows);
        let mut step = 1u64;
        for group_size in scales().chain(zero).chain(shifts()) {
            if let GroupSize::Each(count) = group_size {
                let count = u64::from(count);
                step = if step.is_multiple_of(count) { step } else { step.checked_mul(count)? };
            }
        }
        // A group of as many rows as an expert has or more: an expert is one block, its own rows alone.
        if step >= shape.n {
            return Some(Self { rows: shape.n, front: 0 });
        }
        let all = |group_size: GroupSize| group_size == GroupSize::All;
        let spans = scales().chain(zero).chain(shifts()).any(all);
        // A component that spans all rows must depend only on values and on other components that
        // span all rows: levels are chosen from the last to the first, zero points after them, all
        // after the shift, whose levels are chosen from the smallest values of each other's groups.
        let coarse = scales().skip_while(|group_size| !all(*group_size)).all(all);
        let zero_last = zero.is_none_or(|zero| !all(zero) || scales().all(all));
        if spans && !(coarse && zero_last && shifts().all(all)) {
            return None;
        }
        let front = if spans { step.checked_mul(2u64.div_ceil(step))? } else { 0 };
        let least = if spans { 4 * LEAST } else { LEAST };
        let rows = step.checked_mul(least.div_ceil(step))?.min(shape.n.next_multiple_of(step));
        Some(Self { rows, front })
    }

    /// The rows before each block of an expert: the largest and the smallest value of each column.
    fn front(&self, weight: &Rows<'_>, rows: Range<u64>) -> Vec<f64> {
        if self.front == 0 {
            return Vec::new();
        }
        let k = weight.shape.k as usize;
        let none = || (vec![f64::NEG_INFINITY; k], vec![f64::INFINITY; k]);
        let wider = |high: f64, low: f64, (most, least): (&mut f64, &mut f64)| {
            (*most, *least) = (most.max(high), least.min(low));
        };
        let starts: Vec<u64> = rows.clone().step_by(self.rows as usize).collect();
        let block = |start: u64| {
            let (mut most, mut least) = none();
            for row in (weight.values)(start..(start + self.rows).min(rows.end)).chunks(k) {
                for (value, sides) in row.iter().zip(most.iter_mut().zip(&mut least)) {
                    wider(*value, *value, sides);
                }
            }
            (most, least)
        };
        let join = |(mut most, mut least): (Vec<f64>, Vec<f64>), other: (Vec<f64>, Vec<f64>)| {
            let sides = most.iter_mut().zip(&mut least);
            for ((high, low), sides) in other.0.iter().zip(&other.1).zip(sides) {
                wider(*high, *low, sides);
            }
            (most, least)
        };
        let (most, least) = starts.into_par_iter().map(block).reduce(none, join);
        [most, least].into_iter().cycle().take(self.front as usize).flatten().collect()
    }

    /// The codes of some rows, including the rows before the block.
    fn block(
        &self,
        scheme: &Scheme,
        weight: &Rows<'_>,
        front: &[f64],
        rows: Range<u64>,
    ) -> Result<PlainCodes, ReferenceError> {
        let shape = Shape::matrix(self.front + rows.end - rows.start, weight.shape.k);
        let mut values = (weight.values)(rows.clone());
        values.splice(0..0, front.iter().copied());
        let bias = weight.bias.map(|bias| {
            let mut all = vec![0.0; self.front as usize];
            all.extend_from_slice(&bias[rows.start as usize..rows.end as usize]);
            all
        });
        quantise(scheme, shape, &values, weight.own, bias.as_deref())
    }

    /// The codes of a block without those of the rows before it and those that all blocks share.
    fn own<'c>(
        &self,
        scheme: &Scheme,
        component: Component,
        codes: &'c [u32],
        start: u64,
        shape: Shape,
    ) -> &'c [u32] {
        let Some(granularity) = scheme.granularity(component) else { return &[] };
        let columns = granularity.elements(shape).1;
        match granularity.rows {
            GroupSize::All if start > 0 => &[],
            GroupSize::All => codes,
            GroupSize::Each(rows) => &codes[(self.front / u64::from(rows) * columns) as usize..],
        }
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::format::F32;
    use quantloom_dsl::parse;

    use super::*;

    /// A group of more rows than there are is no reason for a block of as many.
    #[test]
    fn a_block_has_no_more_rows_than_an_expert() {
        for levels in ["scale: f32 per 16777216x24", "scale: f32 per 4096x8, scale: f32 per 4093x8"]
        {
            let text =
                format!("Blocks {{ weight: u4 - 8, {levels}, pack: [k, n], activation: bf16 }}");
            let shape = Shape { experts: 2, n: 20, k: 48 };
            let blocks = RowBlocks::of(&parse(&text).unwrap(), shape).unwrap();
            assert_eq!((blocks.rows, blocks.front), (20, 0), "{levels}");
        }
    }

    /// Quantising by blocks gives the reference's codes of the whole.
    #[test]
    fn blocks_are_the_whole() {
        let schemes = [
            "scale: bf16 per 1x32",
            "scale: bf16 per channel",
            "scale: f32 per tensor",
            "scale: f32 per 5x24",
            "scale: e4m3 per 1x16, scale: f32 per tensor",
            "scale: e4m3 per 3x16, scale: f32 per 4x32",
            "scale: f16 per 1x32, zero: u4 per 1x32",
            "scale: f16 per tensor, zero: f16 per tensor",
            "scale: f16 per 1x32, zero: u4 per tensor",
            "scale: f16 per 1x32, shift: f16 per 1x32",
            "scale: f16 per tensor, shift: f16 per tensor",
            "scale: f16 per tensor, shift: f16 per channel",
            "scale: f16 per 1x32, shift: -u6 per 1x32, shift: f16 per tensor",
            "scale: f16 per tensor, shift: i4 per tensor, shift: f16 per tensor",
            "scale: u6 - 32 per 1x16, scale: f16 per 2x32, shift: -u6, shift: f16 per 3x32",
            "scale: f16 per 1x32, index: i32",
            "scale: f16 per 1x32, bias: f16",
            "scale: f32 per 16777216x24",
            "scale: e4m3 per 16777216x16, scale: f32 per tensor",
        ];
        for clauses in schemes {
            let offset =
                if clauses.contains("zero") || clauses.contains("shift") { "" } else { "- 8" };
            let text = format!(
                "s {{ weight: u4 {offset}, {clauses}, pack: u8 [k:2 | k, n], activation: bf16 }}"
            );
            let mut scheme = match parse(&text) {
                Ok(scheme) => scheme,
                Err(faults) => panic!("{text}\n{faults}"),
            };
            for (experts, n, k) in [(1, 3, 48), (1, 150, 96), (2, 77, 64)] {
                scheme.experts = (experts > 1).then_some(quantloom_dsl::Experts::Single);
                let shape = Shape { experts, n, k };
                // Groups may have more rows than there are; memory is that of those there are.
                if let Some(cut) = RowBlocks::of(&scheme, shape) {
                    assert!(cut.front + cut.rows <= 3 * n, "{} in front, {}", cut.front, cut.rows);
                }
                let value = |at: u64| {
                    let random = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                    (random as f64 / f64::from(1 << 23) - 1.0) * (1.0 + (at / k % 13) as f64)
                };
                let w: Vec<f64> = (0..experts * n * k).map(|at| F32.round(value(at))).collect();
                let bias: Vec<f64> = (0..experts * n).map(|at| at as f64).collect();
                let bias = scheme.bias.map(|_| bias.as_slice());
                let values = |rows: Range<u64>| {
                    w[(rows.start * k) as usize..(rows.end * k) as usize].to_vec()
                };
                let rows = Rows { shape, own: F32, values: &values, bias };
                let ours = quantise_rows(&scheme, &rows, &|_| {}).unwrap();
                let plain = quantise(&scheme, shape, &w, F32, bias).unwrap();
                let mut whole = Slots::new(shape);
                for (component, codes) in &plain.components {
                    whole.extend(&scheme, *component, codes);
                }
                assert!(ours == whole, "{text}, {experts} x {n} x {k}");
            }
        }
    }
}
