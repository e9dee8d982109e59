//! The sums of the rows of w, of codes that are small integers: a warp adds those of a row.
//!
//! Sums of codes alone are exact integers, rounded to f32 once. Where scales change along K, a lane adds the products of its
//! columns in f32, with a rounding each, and five or six more add the lanes' sums.

use super::affine::Affine;
use super::conversion::Conversion;
use super::formula::Formula;
use super::gather::{Gather, Moves};
use crate::ir::{
    Address, Builder, Operand, Reg, Shuffle, Special, Ternary, Type, Unary, Uniformity, Width,
};
use crate::schedule::unscheduled::TransformLimit;

/// Adjacent columns of a lane.
const COLUMNS: u64 = 8;

/// What is added: the codes as integers, times the scales that change along K, if there are any.
#[derive(Clone, Copy)]
pub(super) struct Summed<'a> {
    pub(super) codes: &'a Conversion,
    pub(super) scale: Option<&'a Formula>,
}

impl Gather<'_> {
    /// Writes the sum of row n of the stored weight to word n of the destination; blocks are warps. The first input are the codes,
    /// the others those of the scales.
    ///
    /// # Errors
    /// Places of codes beyond indices of 32 bits.
    pub(super) fn sum_rows(
        &self,
        b: &mut Builder,
        summed: Summed<'_>,
    ) -> Result<(), TransformLimit> {
        let (row, lane) = (b.special(Special::Block(0)), b.special(Special::Lane));
        let ty = if summed.scale.is_some() { Type::F32 } else { Type::U32 };
        let sum = b.variable("sum", ty, Uniformity::Varying);
        match summed.scale {
            None => b.set(sum, 0u32),
            Some(_) => b.set(sum, 0.0f32),
        }
        let vectors = self.stored.k.div_ceil(COLUMNS);
        let (warp, mut outcome) = (b.warp_size(), Ok(()));
        b.for_each(lane, vectors as u32, warp, "vector", |b, vector| {
            let mut moves = Moves::new(self.arrays);
            let first = moves.values.value(vector, vectors - 1);
            let row = moves.values.value(row, self.stored.n - 1);
            for column in 0..COLUMNS {
                let mut k = Affine::constant(column);
                k.add(&first, COLUMNS);
                let element = [Affine::default(), row.clone(), k];
                let Some(there) = self.conditions(&moves.values, &element) else { continue };
                let mut codes = Vec::new();
                for input in self.inputs {
                    let slices = self.slices(b, &mut moves.values, &element, input, &there);
                    codes.push(moves.code(b, &slices));
                }
                let there = moves.all(b, &there);
                add(b, (sum, there), summed, &codes);
            }
            if moves.values.exceeded() {
                outcome = Err(TransformLimit::Indices);
            }
        });
        let plus = |b: &mut Builder, one: Operand, other: Operand| match summed.scale {
            None => b.add(one, other),
            Some(_) => b.add_f32(one, other),
        };
        let mut total: Operand = sum.into();
        let mut by = 1;
        while by < warp {
            let other = b.shuffle(Shuffle::Xor, total, by);
            total = plus(b, total, other);
            by *= 2;
        }
        if summed.scale.is_none() {
            total = b.unary(Unary::F32FromS32, total);
        }
        let writes = b.equal(lane, 0u32);
        b.store(Address::new(self.destination, row), &[total], Width::B32, Some(writes));
        outcome
    }
}

/// Adds an element, if it is there, of the codes of its inputs.
fn add(b: &mut Builder, (sum, there): (Reg, Operand), summed: Summed<'_>, codes: &[Operand]) {
    let [code, scales @ ..] = codes else { return };
    let value = summed.codes.element(b, &[*code]);
    let value = b.select(there, value, 0u32);
    let total = match summed.scale {
        None => b.add(sum, value),
        Some(formula) => {
            let scale = formula.value(b, scales);
            let scale = b.select(there, scale, 0.0f32);
            let value = b.unary(Unary::F32FromS32, value);
            b.ternary(Ternary::Fma, value, scale, sum)
        }
    };
    b.set(sum, total);
}
