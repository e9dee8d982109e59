//! The activation quantiser: x to codes, and the numbers that the codes stand for.

use std::borrow::Cow;

use super::quantise::{
    Codes, RoundedArithmetic, ValueRange, choose_scale, choose_zero, round_code,
};
use super::value::decode_all;
use super::{PlainCodes, ReferenceError};
use crate::format::{F32, FloatFormat, Number};
use crate::layout::{Component, GroupSize};
use crate::scheme::{Code, Group, Quantiser, ScaleType, Scheme, WeightCode};

/// A quantised activation [M, K].
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedActivation {
    /// Values of the codes, [M, K].
    pub codes: Vec<f64>,
    /// Zero point of each element (0 where there is none), [M, K].
    pub zeros: Vec<f64>,
    /// Product of the scale levels of each element, [M, K].
    pub scales: Vec<f64>,
}

impl QuantisedActivation {
    /// `x~ = (code - zero) * scale`, [M, K].
    pub fn values(&self) -> Vec<f64> {
        let parts = self.codes.iter().zip(&self.zeros).zip(&self.scales);
        parts.map(|((code, zero), scale)| (code - zero) * scale).collect()
    }
}

/// Stored scales and zero points of an activation, decoded: by level, one value per column group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StaticInput {
    /// By level; empty where the level is dynamic.
    pub scales: Vec<Vec<f64>>,
    /// Zero points.
    pub zeros: Vec<f64>,
    /// The prescale: one factor per column of x; empty if the scheme has none.
    pub prescale: Vec<f64>,
}

impl StaticInput {
    /// The static parameters of an expert; those of expert 0 in a layer without experts.
    pub fn of(scheme: &Scheme, plain: &PlainCodes, expert: u64) -> Self {
        Self::of_all(scheme, plain).of_expert(expert, plain.shape.experts)
    }

    /// The parameters of one of `experts` experts, if these are the parameters of all, expert after
    /// expert. The prescale is the same for all.
    #[must_use]
    pub fn of_expert(&self, expert: u64, experts: u64) -> Self {
        let own = |values: &Vec<f64>| {
            let each = values.len() / experts.max(1) as usize;
            values.iter().skip(each * expert as usize).take(each).copied().collect()
        };
        let scales = self.scales.iter().map(own).collect();
        Self { scales, zeros: own(&self.zeros), prescale: self.prescale.clone() }
    }

    fn of_all(scheme: &Scheme, plain: &PlainCodes) -> Self {
        let prescale = scheme
            .prescale
            .map_or_else(Vec::new, |number| decode_all(number, plain.of(Component::Prescale)));
        let Some(quantiser) = scheme.quantiser() else {
            return Self { prescale, ..Self::default() };
        };
        let scales = (0u8..).zip(&quantiser.scales).map(|(level, scale)| {
            let number = scale.stored_number().filter(|_| scale.stored);
            number.map_or_else(Vec::new, |number| {
                decode_all(number, plain.of(Component::InputScale(level)))
            })
        });
        let zeros = quantiser
            .zero
            .map_or_else(Vec::new, |number| decode_all(number, plain.of(Component::InputZero)));
        Self { scales: scales.collect(), zeros, prescale }
    }

    /// x [M, K], each column multiplied by its prescale: the product is rounded to f32 and then to
    /// the input dtype `own`. Without a prescale, x itself.
    ///
    /// # Errors
    /// [`ReferenceError::StaticInput`] if there is a prescale whose length is not K.
    pub fn prescaled<'x>(
        &self,
        scheme: &Scheme,
        x: &'x [f64],
        k: usize,
        own: FloatFormat,
    ) -> Result<Cow<'x, [f64]>, ReferenceError> {
        if scheme.prescale.is_none() {
            return Ok(Cow::Borrowed(x));
        }
        if self.prescale.len() != k {
            return Err(ReferenceError::StaticInput(Component::Prescale));
        }
        let factors = self.prescale.iter().cycle();
        let product = |(x, factor): (&f64, &f64)| own.round(F32.round(x * factor));
        Ok(Cow::Owned(x.iter().zip(factors).map(product).collect()))
    }
}

/// Quantises `x` [M, K], whose elements are values of `own`, after the prescale.
///
/// # Errors
/// [`ReferenceError::StaticInput`] if a static scale is missing, [`ReferenceError::Length`]
/// if `x` is not whole rows of K.
pub fn quantise_activation(
    scheme: &Scheme,
    quantiser: &Quantiser,
    x: &[f64],
    k: usize,
    own: FloatFormat,
    given: &StaticInput,
) -> Result<QuantisedActivation, ReferenceError> {
    let tokens = x.len() / k.max(1);
    if tokens * k != x.len() {
        let (expected, found) = (((tokens + 1) * k) as u64, x.len() as u64);
        return Err(ReferenceError::Length { what: "x", expected, found });
    }
    let x = &*given.prescaled(scheme, x, k, own)?;
    let codes = Codes::of(&WeightCode { code: Code::Number(quantiser.code), offset: 0 });
    let base = RoundedArithmetic::new(scheme.arithmetic, own);
    let grid = Grid { tokens, k };
    // Coarsest level first: the finer levels compensate for its rounding.
    let mut factors: Option<Vec<f64>> = None;
    let mut arith = base;
    for (level, scale) in quantiser.scales.iter().enumerate().rev() {
        let number = match scale.number {
            ScaleType::InputDtype => Number::Float(own),
            ScaleType::Number(number) => number,
        };
        let groups = grid.groups(scale.group);
        let mut stored = vec![f64::NAN; groups.len()];
        if scale.stored {
            let missing = || ReferenceError::StaticInput(Component::InputScale(level as u8));
            let values = given.scales.get(level).ok_or_else(missing)?;
            for (slot, group) in stored.iter_mut().zip(&groups) {
                *slot = *values.get(group.column).ok_or_else(missing)?;
            }
        } else {
            for (slot, group) in stored.iter_mut().zip(&groups) {
                let extent = ValueRange::of(group.indices(k).map(|at| x[at]));
                let outer = factors.as_ref().map(|factors| factors[group.first(k)]);
                let code = choose_scale(scale, number, extent, &codes, base, outer);
                *slot = number.decode(code);
            }
        }
        arith = arith.with(scale.stored_number());
        let outer = factors.take();
        let mut product = vec![0.0; x.len()];
        for (value, group) in stored.iter().zip(&groups) {
            for at in group.indices(k) {
                product[at] = match (&outer, scale.divide) {
                    (None, false) => *value,
                    (None, true) => arith.div(1.0, *value),
                    (Some(outer), false) => arith.mul(outer[at], *value),
                    (Some(outer), true) => arith.div(outer[at], *value),
                };
            }
        }
        factors = Some(product);
    }
    let scales = factors.unwrap_or_else(|| vec![1.0; x.len()]);
    let zeros = zero_points(quantiser, &grid, x, &scales, &codes, arith, given)?;
    let float = match quantiser.code {
        Number::Float(format) => Some(format),
        _ => None,
    };
    let rounded = x.iter().zip(&scales).zip(&zeros).map(|((x, scale), zero)| {
        let mut scaled = arith.over(*x, *scale);
        if quantiser.zero.is_some() {
            scaled = arith.add(scaled, *zero);
        }
        round_code(scaled, &codes, float, quantiser.ties)
    });
    Ok(QuantisedActivation { codes: rounded.collect(), zeros, scales })
}

fn zero_points(
    quantiser: &Quantiser,
    grid: &Grid,
    x: &[f64],
    scales: &[f64],
    codes: &Codes,
    arith: RoundedArithmetic,
    given: &StaticInput,
) -> Result<Vec<f64>, ReferenceError> {
    let mut zeros = vec![0.0; x.len()];
    let (Some(number), Some(level)) = (quantiser.zero, quantiser.scales.first()) else {
        return Ok(zeros);
    };
    for group in grid.groups(level.group) {
        let zero = if level.stored {
            let missing = || ReferenceError::StaticInput(Component::InputZero);
            *given.zeros.get(group.column).ok_or_else(missing)?
        } else {
            let extent = ValueRange::of(group.indices(grid.k).map(|at| x[at]));
            let zero = choose_zero(extent, scales[group.first(grid.k)], codes, arith);
            number.round(zero)
        };
        for at in group.indices(grid.k) {
            zeros[at] = zero;
        }
    }
    Ok(zeros)
}

struct Grid {
    tokens: usize,
    k: usize,
}

struct Cell {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    /// Index of the column group.
    column: usize,
}

impl Grid {
    fn groups(&self, group: Group) -> Vec<Cell> {
        let step = |group_size: GroupSize, extent: usize| match group_size {
            GroupSize::Each(count) => count as usize,
            GroupSize::All => extent.max(1),
        };
        let (by_row, by_column) = (step(group.rows, self.tokens), step(group.cols, self.k));
        let mut cells = Vec::new();
        for row in (0..self.tokens).step_by(by_row) {
            for (column, first) in (0..self.k).step_by(by_column).enumerate() {
                let rows = row..(row + by_row).min(self.tokens);
                cells.push(Cell { rows, columns: first..(first + by_column).min(self.k), column });
            }
        }
        cells
    }
}

impl Cell {
    fn indices(&self, k: usize) -> impl Iterator<Item = usize> {
        let columns = self.columns.clone();
        self.rows.clone().flat_map(move |row| columns.clone().map(move |column| row * k + column))
    }

    fn first(&self, k: usize) -> usize {
        self.rows.start * k + self.columns.start
    }
}
