//! Numbers that products read and no component stores, computed in f32 from the codes of several components.
//!
//! The host computes in f64 and rounds once. Here each operation rounds: one scale, its reciprocal, or one
//! scale times `zero + add` (an integer of at most 9 bits) have the host's bits; each further level adds a
//! rounding, so that a product of L levels, of scales or of shifts, is within L - 1 units in the last place.
//! Integers are not read here, with an offset or without one: the host packs what is computed from them.

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::{Scheme, ZeroKind, ZeroPointCorrection};

use super::conversion::Integer;
use crate::ir::{Binary, Builder, Operand, Ternary, Unary};
use crate::schedule::group_params::{is_read, number};

/// A number computed from a group's scales, zero point and shift.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Formula {
    /// The type of each level, and whether it divides.
    scales: Vec<(Number, bool)>,
    /// [`ZeroPointCorrection::value`] times a power of two; `None` for the product of the scales.
    correction: Option<CorrectionTerms>,
}

#[derive(Clone, Debug, PartialEq)]
struct CorrectionTerms {
    zero: Option<Zero>,
    /// The type of each level of the shift.
    shifts: Vec<Number>,
    /// Whether the product of these levels is subtracted.
    subtracts: bool,
    add: i32,
    exponent: i32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Zero {
    Integer(Integer),
    Float(Number),
}

/// The number to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The product of the scales that change along K.
    Scale,
    /// The product of the scales that are constant along a row.
    ChannelScale,
    /// The same, times the static scales of all of x.
    ChannelScaleOfInput,
    /// The zero-point correction; [`ZeroPointCorrection::value`] defines its signs.
    Correction {
        /// Its terms.
        terms: ZeroPointCorrection,
        /// The power of two of the sums' unit.
        exponent: i32,
    },
}

impl Formula {
    /// The formula, and the components of its codes, in order; `None` if one of them has no conversion
    /// to f32.
    pub(super) fn new(scheme: &Scheme, wanted: Wanted) -> Option<(Self, Vec<Component>)> {
        let (mut scales, mut components) = (Vec::new(), Vec::new());
        for (at, level) in (0u8..).zip(&scheme.scales) {
            // A shift is added after all levels.
            let of_row = level.group.cols == GroupSize::All && scheme.shifts.is_empty();
            let wants_rows = matches!(wanted, Wanted::ChannelScale | Wanted::ChannelScaleOfInput);
            if of_row == wants_rows {
                let kind = level.stored_number().filter(|kind| is_read(*kind))?;
                scales.push((kind, level.divide));
                components.push(Component::Scale(at));
            }
        }
        if wanted == Wanted::ChannelScaleOfInput {
            let levels = scheme.quantiser().map_or(&[][..], |quantiser| &quantiser.scales);
            for (at, level) in (0u8..).zip(levels).filter(|(_, level)| level.stored) {
                let kind = level.stored_number().filter(|kind| is_read(*kind))?;
                scales.push((kind, level.divide));
                components.push(Component::InputScale(at));
            }
        }
        let Wanted::Correction { terms: ZeroPointCorrection { zero, add }, exponent } = wanted
        else {
            return Some((Self { scales, correction: None }, components));
        };
        let zero = match scheme.zero.filter(|_| zero).map(|zero| zero.kind) {
            None => None,
            Some(ZeroKind::Float(kind)) => Some(Zero::Float(is_read(kind).then_some(kind)?)),
            Some(codes) => Some(Zero::Integer(Integer::new(codes)?)),
        };
        components.extend(zero.map(|_| Component::Zero));
        let shifts =
            scheme.shifts.iter().map(|shift| Some(shift.number).filter(|kind| is_read(*kind)));
        let shifts = shifts.collect::<Option<Vec<_>>>()?;
        components.extend((0u8..).take(shifts.len()).map(Component::Shift));
        let subtracts = scheme.shifts.iter().filter(|shift| shift.negative).count() % 2 == 1;
        let normal = (-126..=127).contains(&exponent);
        let correction =
            normal.then_some(CorrectionTerms { zero, shifts, subtracts, add, exponent })?;
        Some((Self { scales, correction: Some(correction) }, components))
    }

    /// The number, f32.
    pub(super) fn value(&self, b: &mut Builder, codes: &[Operand]) -> Operand {
        let mut codes = codes.iter().copied();
        let mut next = || codes.next().unwrap_or(Operand::U32(0));
        let mut product = None;
        for (kind, divide) in &self.scales {
            let scale = number(b, *kind, next(), 0);
            product = Some(match (product, divide) {
                (None, false) => scale,
                (None, true) => b.binary(Binary::DivF32, 1.0f32, scale),
                (Some(product), false) => b.mul_f32(product, scale),
                (Some(product), true) => b.binary(Binary::DivF32, product, scale),
            });
        }
        let scale = product.unwrap_or(Operand::F32(1.0));
        let Some(CorrectionTerms { zero, shifts, subtracts, add, exponent }) = &self.correction
        else {
            return scale;
        };
        let zero = match zero {
            None => Operand::F32(*add as f32),
            Some(Zero::Integer(integer)) => {
                let zero = integer.value(b, next());
                let zero = b.add(zero, *add as u32);
                b.unary(Unary::F32FromS32, zero)
            }
            Some(Zero::Float(kind)) => {
                let zero = number(b, *kind, next(), 0);
                b.add_f32(zero, *add as f32)
            }
        };
        let mut shift = None;
        for kind in shifts {
            let factor = number(b, *kind, next(), 0);
            shift = Some(match shift {
                None => factor,
                Some(product) => b.mul_f32(product, factor),
            });
        }
        let shift = shift.unwrap_or(Operand::F32(0.0));
        let shift = if *subtracts { b.unary(Unary::Negate, shift) } else { shift };
        let zero = b.unary(Unary::Negate, zero);
        let value = b.ternary(Ternary::Fma, zero, scale, shift);
        if *exponent == 0 { value } else { b.mul_f32(value, 2f32.powi(*exponent)) }
    }
}
