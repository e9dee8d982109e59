//! From codes to reals: the dequantised weight and the product.

use super::pack::position;
use super::{PlainCodes, ReferenceError};
use crate::Scheme;
use crate::format::Number;
use crate::layout::{Component, Granularity, GroupSize, Index};

/// Dequantises single weights; keeps the decoded scales, zero points and shifts of one layer.
pub struct Dequantiser<'a> {
    scheme: &'a Scheme,
    plain: &'a PlainCodes,
    codes: Granularity,
    /// Per level: its group, and its values as multipliers.
    scales: Vec<(Granularity, Vec<f64>)>,
    zero: Option<(Granularity, Vec<f64>)>,
    /// Per level, as factors.
    shifts: Vec<(Granularity, Vec<f64>)>,
}

impl<'a> Dequantiser<'a> {
    /// Decodes the scales, zero points and shifts.
    ///
    /// # Errors
    /// [`ReferenceError::Scale`] for a NaN scale or a zero divisor (an E8M0 byte of 0xFF is
    /// NaN); [`ReferenceError::Group`] for a group index beyond the groups.
    pub fn new(scheme: &'a Scheme, plain: &'a PlainCodes) -> Result<Self, ReferenceError> {
        let missing = |component: Component| ReferenceError::Missing(component.to_string());
        let part = |component: Component, decode: &dyn Fn(u32) -> f64| {
            let granularity = scheme.granularity(component).ok_or_else(|| missing(component))?;
            let values: Vec<f64> = plain.of(component).iter().map(|code| decode(*code)).collect();
            Ok::<_, ReferenceError>((granularity, values))
        };
        let codes = scheme.granularity(Component::Code).ok_or_else(|| missing(Component::Code))?;
        let mut scales = Vec::new();
        for (level, scale) in (0u8..).zip(&scheme.scales) {
            let component = Component::Scale(level);
            let number = scale.stored_number().ok_or_else(|| missing(component))?;
            let (granularity, values) = part(component, &|code| scale.decode(number, code))?;
            let wrong = |value: &f64| value.is_nan() || scale.divide && *value == 0.0;
            if let Some(element) = values.iter().position(wrong) {
                let value = values[element];
                return Err(ReferenceError::Scale { component, element: element as u64, value });
            }
            scales.push((granularity, values));
        }
        let zero = match scheme.zero {
            Some(zero) => Some(part(Component::Zero, &|code| zero.kind.decode(code))?),
            None => None,
        };
        let shifts = (0u8..).zip(&scheme.shifts);
        let shifts = shifts
            .map(|(level, shift)| part(Component::Shift(level), &|code| shift.decode(code)))
            .collect::<Result<_, _>>()?;
        let decoder = Self { scheme, plain, codes, scales, zero, shifts };
        decoder.check_index()?;
        Ok(decoder)
    }

    /// Checks that every group index names a group of every component that is grouped along k.
    fn check_index(&self) -> Result<(), ReferenceError> {
        let Some(number) = self.scheme.index else { return Ok(()) };
        let grouped = self.scales.iter().chain(&self.zero).chain(&self.shifts);
        let groups = grouped
            .filter(|(granularity, _)| matches!(granularity.cols, GroupSize::Each(_)))
            .map(|(granularity, _)| granularity.elements(self.plain.shape).1)
            .min();
        let Some(groups) = groups else { return Ok(()) };
        for (k, code) in (0..).zip(self.plain.of(Component::Index)) {
            let group = number.decode(*code);
            if !(0.0..groups as f64).contains(&group) {
                return Err(ReferenceError::Group { k, group: group as i64, groups });
            }
        }
        Ok(())
    }

    fn value(&self, part: &(Granularity, Vec<f64>), index: Index) -> f64 {
        let (granularity, values) = part;
        let mut index = index;
        if let (GroupSize::Each(cols), Some(number)) = (granularity.cols, self.scheme.index) {
            // Act-order: the group is looked up.
            let shape = self.plain.shape;
            let at = index.e * shape.k + index.k;
            let group = number.decode(self.plain.of(Component::Index)[at as usize]);
            index.k = group as u64 * u64::from(cols);
        }
        values[position(*granularity, self.plain.shape, index)]
    }

    /// `w[n,k]` of one expert, as an exact real (up to the rounding of `f64`).
    pub fn weight(&self, index: Index) -> f64 {
        let code = self.plain.of(Component::Code)[position(self.codes, self.plain.shape, index)];
        let mut value = self.scheme.weight.decode(code);
        if let Some(zero) = &self.zero {
            value -= self.value(zero, index);
        }
        for (part, level) in self.scales.iter().zip(&self.scheme.scales) {
            let scale = self.value(part, index);
            value = if level.divide { value / scale } else { value * scale };
        }
        let shift = self.shifts.iter().map(|part| self.value(part, index));
        value + shift.reduce(|product, factor| product * factor).unwrap_or(0.0)
    }
}

/// The real weight, [E, N, K].
///
/// # Errors
/// Those of [`Dequantiser::new`].
pub fn dequantise(scheme: &Scheme, plain: &PlainCodes) -> Result<Vec<f64>, ReferenceError> {
    let decoder = Dequantiser::new(scheme, plain)?;
    let shape = plain.shape;
    let rows = (0..shape.experts).flat_map(|e| (0..shape.n).map(move |n| (e, n)));
    let row = |(e, n)| (0..shape.k).map(move |k| Index { e, n, k });
    Ok(rows.flat_map(row).map(|index| decoder.weight(index)).collect())
}

/// `y[m,n] = sum_k x[m,k] w[n,k] + bias[n]` of one expert, summed in `f64`: y is [M, N].
///
/// `x` is [M, K]: the activation, after the scheme's quantiser if it has one.
///
/// # Errors
/// Those of [`Dequantiser::new`]; [`ReferenceError::Length`] if `x` is not whole rows.
pub fn matmul(
    scheme: &Scheme,
    plain: &PlainCodes,
    expert: u64,
    x: &[f64],
) -> Result<Vec<f64>, ReferenceError> {
    let decoder = Dequantiser::new(scheme, plain)?;
    let (n, k) = (plain.shape.n as usize, plain.shape.k as usize);
    let tokens = x.len() / k;
    if tokens * k != x.len() {
        let (expected, found) = (((tokens + 1) * k) as u64, x.len() as u64);
        return Err(ReferenceError::Length { what: "x", expected, found });
    }
    let bias = |row: usize| match scheme.bias {
        Some(number) => number.decode(plain.of(Component::Bias)[expert as usize * n + row]),
        None => 0.0,
    };
    let mut y = vec![0.0; tokens * n];
    for row in 0..n {
        let at = |k: usize| Index { e: expert, n: row as u64, k: k as u64 };
        let weights: Vec<f64> = (0..k).map(|k| decoder.weight(at(k))).collect();
        for token in 0..tokens {
            let inputs = &x[token * k..(token + 1) * k];
            let sum: f64 = inputs.iter().zip(&weights).map(|(x, w)| x * w).sum();
            y[token * n + row] = sum + bias(row);
        }
    }
    Ok(y)
}

/// `Number::decode` of a whole slice.
pub(super) fn decode_all(number: Number, codes: &[u32]) -> Vec<f64> {
    codes.iter().map(|code| number.decode(*code)).collect()
}
