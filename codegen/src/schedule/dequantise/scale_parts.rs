//! Scales and terms with more digits than the operand has: in bf16 as sums of two numbers, in f16 rounded.
//!
//! **bf16.** A number n of f32 is high + low: high has the leading 8 digits of n, which are a bf16, and low is the rest, rounded to
//! bf16. A decoded value v is a number of bf16 as well. The weight v s is `fma(v, high, v low)`: one rounding of the
//! weight, and errors of v low, which is less than 2^-7 of the weight. With a term m, v s + m is
//! `fma(v, s high, m high) + fma(v, s low, m low)`: two roundings of that kind. The bound of products
//! (`Decoded::scaled` of the runtime) counts both.
//!
//! A number of two levels is an integer of a byte times a number of 16 bits, which is a sum of two as well: of both rows of a lane at once,
//! the high part is the product with the leading digits, rounded, and the low part what that lacks, which is a number of bf16, plus the
//! product with the rest.
//!
//! **f16** has 11 digits, so that a rounded scale s and a rounded term m lose less than bf16 loses of a weight: the weight is
//! `fma(v, s, m)`, which rounds once more. An integer of a byte is the f16 whose last digits are its bits, less that f16 without
//! them; the product with a number of 16 bits rounds once, for both rows of a lane.
//!
//! The numbers of a group are computed where its first weight is, so that few registers hold them at once.

use std::collections::BTreeMap;

use super::scales::LaneGroups;
use super::{NOTHING, ONES, difference, fused, in_both_halves};
use crate::ir::{Binary, Builder, Half, Operand, Ternary, Unary};
use crate::plan::step::Step;
use crate::schedule::group_params::{LaneLevels, LaneNumbers};
use crate::schedule::mapping::MainLoop;
use quantloom_dsl::format::NUMBER_BF16;

/// The largest power of two of bf16, and that of an integer whose bits are a bf16, times it: 2^-133 a unit before.
const LARGEST: i32 = 127;
const BYTES: i32 = LARGEST - 133;

/// The upper byte of the f16 whose last digits are units: 1024.
const UNITS: (u32, f64) = (0x64, 1024.0);

/// The scales of a lane's rows in parts, and the terms that are added to weights.
pub(in crate::schedule) struct ScaleParts {
    half: Half,
    /// Numbers that a scale, or a term, is the sum of.
    parts: u32,
    /// Rows of a lane.
    rows: u32,
    scale: Levels,
    term: Option<Levels>,
    groups: LaneGroups,
    /// By group and power of two, per row: each is computed once.
    made: BTreeMap<(usize, i32), Vec<OfRow>>,
    /// The largest power of two of last steps, if scales stand for these too.
    largest_power: Option<i32>,
    /// Registers of the operand in a step.
    registers: usize,
}

/// Numbers of groups, times a power of two.
struct Levels {
    of: LaneLevels,
    exponent: i32,
    /// What the larger group multiplies, which has all groups of the k-tile.
    coarse: Option<RowFactors>,
}

/// Numbers of a lane's two rows, the rows' side by side, as sums of two numbers or as they are.
#[derive(Clone, Copy)]
struct RowFactors {
    high: Operand,
    low: Option<Operand>,
}

/// What a row multiplies and adds in a group.
#[derive(Clone, Copy)]
struct OfRow {
    scale: Parts,
    term: Option<Parts>,
}

/// A number as the sum of two, each in both halves of a register.
#[derive(Clone, Copy)]
struct Parts {
    high: Operand,
    /// `None` if the number is the high part.
    low: Option<Operand>,
}

impl ScaleParts {
    pub(super) fn new(
        main: &MainLoop<'_>,
        (half, parts): (Half, u32),
        (scale, term): (LaneLevels, Option<LaneLevels>),
        groups: LaneGroups,
    ) -> Self {
        let (rows, registers) = (main.rows(&scale.finest.of).len, main.lanes().a.registers);
        let folded = main.problem.plan.scale.folded.and_then(|folded| folded.exponent);
        let powers = folded.and_then(|_| main.problem.plan.dequant.factors());
        let levels = |of: LaneLevels, folded: Option<i32>| {
            let exponent = folded.unwrap_or(of.finest.of.exponent_of_unit(main.problem));
            Levels { of, exponent, coarse: None }
        };
        let largest_power = powers.map(|powers| powers[0]);
        let (scale, term) = (levels(scale, folded), term.map(|term| levels(term, None)));
        let made = BTreeMap::new();
        Self { half, parts, rows, scale, term, groups, made, largest_power, registers }
    }

    /// If scales stand for the power of two of last steps: that of this one over the largest.
    pub(super) fn power_of(&self, step: &Step) -> Option<i32> {
        Some(step.factor()? - self.largest_power?)
    }

    /// A value times its scale, plus its term; the value is of a register of the operand, numbered from the first step on:
    /// decoded, or, times a power of two, what its last step multiplies with that power over the largest one.
    pub(super) fn applied(
        &mut self,
        b: &mut Builder,
        (value, power): (Operand, i32),
        register: usize,
    ) -> Option<Operand> {
        let group = *self.groups.of_step.get(register / self.registers)?;
        let place = *self.groups.places.get(group)?;
        let (half, rows, in_two) = (self.half, self.rows, self.parts > 1);
        let (scale, term) = (&mut self.scale, &mut self.term);
        let made = self.made.entry((group, 0)).or_insert_with(|| {
            let mut parts = |levels: &mut Levels| match in_two {
                true => levels.parts(b, half, rows, place),
                false => levels.rounded(b, half, rows, place),
            };
            let scales = parts(scale);
            let terms = term.as_mut().map(parts);
            let term = |row: usize| terms.as_ref().map(|terms| terms[row]);
            (0..).zip(scales).map(|(row, scale)| OfRow { scale, term: term(row) }).collect()
        });
        let mut of_row = made[register % made.len()];
        if power != 0 {
            let whole = made.clone();
            let made = self.made.entry((group, power)).or_insert_with(|| {
                let factor = in_both_halves(half, 2f64.powi(power));
                let times = |row: OfRow| OfRow { scale: row.scale.times(b, half, factor), ..row };
                whole.into_iter().map(times).collect()
            });
            of_row = made[register % made.len()];
        }
        let OfRow { scale, term } = of_row;
        let [high, low] = [term.map(|term| term.high), term.and_then(|term| term.low)];
        let low = match scale.low {
            Some(scale) => Some(fused(b, half, [value, scale, low.unwrap_or(NOTHING)])),
            None => low,
        };
        Some(match (high, low) {
            (Some(term), Some(low)) => {
                let high = fused(b, half, [value, scale.high, term]);
                fused(b, half, [high, ONES, low])
            }
            (term, low) => fused(b, half, [value, scale.high, term.or(low).unwrap_or(NOTHING)]),
        })
    }
}

impl Levels {
    /// The numbers of a lane's rows in a group, rounded.
    fn rounded(&mut self, b: &mut Builder, half: Half, rows: u32, place: u32) -> Vec<Parts> {
        let power = in_both_halves(half, 2f64.powi(self.exponent));
        let stored = |b: &mut Builder, of: &LaneNumbers, place| {
            let stored = of.halves(b, rows, (place, half, None));
            if self.exponent == 0 { stored } else { fused(b, half, [stored, power, NOTHING]) }
        };
        let finest = &self.of.finest;
        let both = match &self.of.coarse {
            None => stored(b, finest, place),
            Some(coarse) => {
                let of_rows = || RowFactors { high: stored(b, coarse, 0), low: None };
                let factors = *self.coarse.get_or_insert_with(of_rows);
                let (upper, units) = UNITS;
                let (bytes, more) = finest.bytes_of_rows(b, rows, (place, upper));
                let less = in_both_halves(half, units + f64::from(more));
                let integers = difference(b, half, [bytes, less]);
                fused(b, half, [integers, factors.high, NOTHING])
            }
        };
        Parts::of_rows(b, rows, (both, None))
    }

    /// The parts of a lane's rows in a group.
    fn parts(&mut self, b: &mut Builder, half: Half, rows: u32, place: u32) -> Vec<Parts> {
        let (finest, exponent) = (&self.of.finest, self.exponent);
        let Some(coarse) = &self.of.coarse else {
            let whole = exponent == 0 && finest.of.number == NUMBER_BF16;
            let values = finest.values(b, rows, (place, exponent));
            return values.into_iter().map(|value| Parts::of(b, half, value, whole)).collect();
        };
        let factors = *self.coarse.get_or_insert_with(|| {
            let values = coarse.values(b, rows, (0, exponent - BYTES));
            RowFactors::of(b, half, [values[0], values[values.len() - 1]])
        });
        let (bytes, more) = finest.bytes_of_rows(b, rows, (place, 0));
        let [unit, less] = [2f64.powi(LARGEST), -f64::from(more) * 2f64.powi(BYTES)]
            .map(|value| in_both_halves(half, value));
        let less = if more == 0 { NOTHING } else { less };
        let integers = fused(b, half, [bytes, unit, less]);
        // The product of the leading digits has 16, of which the first eight are the high part, and the others a number.
        let high = fused(b, half, [integers, factors.high, NOTHING]);
        let minus = b.xor(high, 0x8000_8000u32);
        let rest = fused(b, half, [integers, factors.high, minus]);
        let low = factors.low.map(|of| fused(b, half, [integers, of, rest]));
        Parts::of_rows(b, rows, (high, low))
    }
}

impl RowFactors {
    /// Of numbers of f32 with up to 16 digits.
    fn of(b: &mut Builder, half: Half, values: [Operand; 2]) -> Self {
        let bits = values.map(|value| b.unary(Unary::AsU32, value));
        let high = b.ternary(Ternary::Permute, bits[0], bits[1], 0x7632u32);
        let mut row = 0;
        let rests = values.map(|value| {
            let leading = b.and(bits[row], 0xffff_0000u32);
            row += 1;
            let leading = b.unary(Unary::AsF32, leading);
            b.binary(Binary::SubF32, value, leading)
        });
        Self { high, low: Some(b.binary(Binary::Pack(half), rests[0], rests[1])) }
    }
}

impl Parts {
    /// Of a lane's rows, from numbers of both side by side.
    fn of_rows(b: &mut Builder, rows: u32, (high, low): (Operand, Option<Operand>)) -> Vec<Self> {
        let mut row = |select: u32| {
            let mut twice = |of| b.ternary(Ternary::Permute, of, of, select);
            Self { high: twice(high), low: low.map(twice) }
        };
        [0x1010, 0x3232].into_iter().take(rows as usize).map(&mut row).collect()
    }

    /// Times a power of two, which both parts hold exactly.
    fn times(self, b: &mut Builder, half: Half, factor: Operand) -> Self {
        let mut times = |part| fused(b, half, [part, factor, NOTHING]);
        Self { high: times(self.high), low: self.low.map(times) }
    }

    /// A number of f32, or of bf16 if it is `whole`.
    fn of(b: &mut Builder, half: Half, value: Operand, whole: bool) -> Self {
        let bits = b.unary(Unary::AsU32, value);
        let high = b.ternary(Ternary::Permute, bits, bits, 0x3232u32);
        if whole {
            return Self { high, low: None };
        }
        let leading = b.and(bits, 0xffff_0000u32);
        let leading = b.unary(Unary::AsF32, leading);
        let rest = b.binary(Binary::SubF32, value, leading);
        Self { high, low: Some(b.binary(Binary::Pack(half), rest, rest)) }
    }
}
