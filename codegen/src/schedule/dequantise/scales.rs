//! Scales that dequantisation multiplies with.

use std::collections::BTreeMap;

use super::scale_parts::ScaleParts;
use super::{NOTHING, fused, in_both_halves};
use crate::ir::{Builder, Half, Operand, Ternary};
use crate::schedule::group_params::{LaneLevels, Power};
use crate::schedule::mapping::MainLoop;

/// Scales that dequantisation multiplies with.
pub(in crate::schedule) enum Scales {
    /// Numbers of the operand's type.
    Whole(WholeScales),
    /// Made of parameters with more digits, and terms.
    Made(Box<ScaleParts>),
}

/// The groups of a k-tile that a lane dequantises.
pub(in crate::schedule) struct LaneGroups {
    /// The place of each group among the lane's numbers.
    pub(in crate::schedule) places: Vec<u32>,
    /// The group of each step's number of registers, in the order of codes.
    pub(in crate::schedule) of_step: Vec<usize>,
}

/// Scales of the operand's type.
pub(in crate::schedule) struct WholeScales {
    pub(super) half: Half,
    /// Whether the scale replaces the power of two of the last step.
    pub(super) instead: bool,
    /// Whether the constants of last steps are multiplied by the scale, and not their results.
    pub(super) in_constants: bool,
    /// Per group, the scales of the lane's rows, each in both halves.
    groups: Vec<Vec<Operand>>,
    /// Constants of last steps times scales, by group, row and constant: each is computed once.
    made: BTreeMap<(usize, usize, u32), Operand>,
    of_step: Vec<usize>,
    /// Registers of the operand in a step.
    registers: usize,
}

impl Scales {
    /// The scales of a lane's rows, and the terms that are added to weights, if there are any. `None` if the operand has not 16
    /// bits.
    pub(in crate::schedule) fn new(
        b: &mut Builder,
        main: &MainLoop<'_>,
        (scale, term): (LaneLevels, Option<LaneLevels>),
        groups: LaneGroups,
    ) -> Option<Self> {
        let (half, plan) = (main.problem.half()?, &main.problem.plan.scale);
        if let Some(parts) = plan.parts() {
            let made = ScaleParts::new(main, (half, parts), (scale, term), groups);
            return Some(Self::Made(Box::new(made)));
        }
        let scale = scale.finest;
        let rows = main.rows(&scale.of).len;
        let LaneGroups { places, of_step } = groups;
        let of_range = main.problem.scales_in_range().then(|| main.problem.power_of_range());
        let of_range = of_range.flatten();
        let exponent = plan.folded.and_then(|folded| folded.exponent).or(of_range);
        // Of values that decoding leaves a power of two too small.
        let too_small = scale.of.exponent_of_unit(main.problem);
        let power = exponent.or((too_small != 0).then_some(too_small));
        // The weights of scales that are 0 then are rounded to 0: they are no more than half of f16's smallest number.
        let flushes = main.problem.plan.dequant.largest() * 2f64.powi(-15) <= 2f64.powi(-25);
        let before = scale.of.takes_power(half) || of_range.is_some();
        let of_halves = before.then(|| Power { exponent: power.unwrap_or(0), flushes });
        let after = power.filter(|_| !before);
        let place = |&place: &u32| scale.halves(b, rows, (place, half, of_halves));
        let halves: Vec<Operand> = places.iter().map(place).collect();
        let instead = exponent.is_some();
        let whole =
            WholeScales::of_halves(b, half, (&halves, rows, after), (instead, of_step), main);
        Some(Self::Whole(whole))
    }
}

impl WholeScales {
    /// Scales from one register per group, which holds those of a lane's two rows, or that of its one
    /// row twice, and which are multiplied with 2^power; `instead` if they replace the last step's power of two. `of_step` is the group
    /// of each step's number of registers, in the order of codes.
    fn of_halves(
        b: &mut Builder,
        half: Half,
        (groups, rows, power): (&[Operand], u32, Option<i32>),
        (instead, of_step): (bool, Vec<usize>),
        main: &MainLoop<'_>,
    ) -> Self {
        let of_rows = |&group: &Operand| {
            let mut both = group;
            if let Some(power) = power {
                both = fused(b, half, [both, in_both_halves(half, 2f64.powi(power)), NOTHING]);
            }
            match rows {
                1 => vec![both],
                _ => [0x1010u32, 0x3232]
                    .map(|select| b.ternary(Ternary::Permute, both, both, select))
                    .to_vec(),
            }
        };
        let groups = groups.iter().map(of_rows).collect();
        let registers = main.lanes().a.registers;
        let in_constants = main.problem.scales_in_range() && half == Half::Bf16;
        let made = BTreeMap::new();
        Self { half, instead, in_constants, groups, made, of_step, registers }
    }

    /// Constants times the scale of a register of the operand, numbered from the first step on.
    pub(super) fn constants(
        &mut self,
        b: &mut Builder,
        constants: [u32; 2],
        register: usize,
    ) -> Option<[Operand; 2]> {
        let group = *self.of_step.get(register / self.registers)?;
        let rows = self.groups.get(group)?;
        let row = register % rows.len();
        let (half, scale) = (self.half, rows[row]);
        Some(constants.map(|constant| {
            let made = self.made.entry((group, row, constant));
            *made.or_insert_with(|| fused(b, half, [scale, constant.into(), NOTHING]))
        }))
    }

    /// The scale of a register of the operand, numbered from the first step on.
    pub(super) fn of(&self, register: usize) -> Option<Operand> {
        let group = self.of_step.get(register / self.registers)?;
        let rows = self.groups.get(*group)?;
        Some(rows[register % rows.len()])
    }
}
