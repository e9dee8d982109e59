//! What a product of an expert reads: its input as the scheme's activation makes it.

use super::super::{ReferenceError, StaticInput, quantise_activation};
use crate::format::FloatFormat;
use crate::layout::GroupSize;
use crate::scheme::{Quantiser, Scheme};

/// How a product reads its input.
#[derive(Clone, Copy, Debug)]
pub enum ProductInput<'a> {
    /// As it is.
    Exact,
    /// As the scheme's activation for the input dtype: prescaled, then quantised or converted.
    Activation {
        /// The scheme of the product's matrices.
        scheme: &'a Scheme,
        /// `[L]`: the static parameters of each expert.
        given: &'a [StaticInput],
    },
}

/// A row of an input that an expert reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The row of the input.
    pub row: usize,
    /// The expert, 0 to L - 1.
    pub expert: usize,
}

impl ProductInput<'_> {
    /// The rows [R, K] of an input whose values are of `dtype`, as each expert reads them: in the
    /// order of `reads`, [P, K].
    ///
    /// A dynamic scale over several tokens is over all R rows, whichever expert reads them: fused
    /// software does so. A static scale is that of the expert that reads.
    ///
    /// # Errors
    /// Those of [`quantise_activation`]; [`ReferenceError::Length`] if an expert has no static
    /// parameters.
    pub fn rows(
        &self,
        values: &[f64],
        k: usize,
        dtype: FloatFormat,
        reads: &[Read],
    ) -> Result<Vec<f64>, ReferenceError> {
        let gather = |rows: &mut dyn Iterator<Item = usize>| -> Vec<f64> {
            rows.flat_map(|row| &values[row * k..][..k]).copied().collect()
        };
        let Self::Activation { scheme, given } = *self else {
            return Ok(gather(&mut reads.iter().map(|read| read.row)));
        };
        let mut result = vec![0.0; reads.len() * k];
        for (expert, given) in given.iter().enumerate() {
            let own = || reads.iter().enumerate().filter(move |(_, read)| read.expert == expert);
            if own().next().is_none() {
                continue;
            }
            let whole = scheme.quantiser().is_some_and(is_scaled_over_tokens);
            let read = if whole {
                as_read(scheme, values, k, dtype, given)?
            } else {
                as_read(scheme, &gather(&mut own().map(|(_, read)| read.row)), k, dtype, given)?
            };
            for (number, (place, row)) in own().map(|(place, read)| (place, read.row)).enumerate() {
                let from = if whole { row } else { number };
                result[place * k..][..k].copy_from_slice(&read[from * k..][..k]);
            }
        }
        match reads.iter().map(|read| read.expert + 1).max() {
            Some(experts) if experts > given.len() => Err(ReferenceError::Length {
                what: "the experts' static parameters",
                expected: experts as u64,
                found: given.len() as u64,
            }),
            _ => Ok(result),
        }
    }
}

/// Whether a row's codes depend on other rows.
fn is_scaled_over_tokens(quantiser: &Quantiser) -> bool {
    let over_tokens = |rows: GroupSize| rows != GroupSize::Each(1);
    quantiser.scales.iter().any(|scale| !scale.stored && over_tokens(scale.group.rows))
}

/// `x~` [R, K] of one expert.
fn as_read(
    scheme: &Scheme,
    x: &[f64],
    k: usize,
    dtype: FloatFormat,
    given: &StaticInput,
) -> Result<Vec<f64>, ReferenceError> {
    let choice = scheme.activation_for(dtype);
    if let Some(quantiser) = choice.and_then(|choice| choice.quantiser()) {
        return Ok(quantise_activation(scheme, quantiser, x, k, dtype, given)?.values());
    }
    let x = given.prescaled(scheme, x, k, dtype)?;
    Ok(match choice.and_then(|choice| choice.converted()) {
        Some(listed) => x.iter().map(|value| listed.round(*value)).collect(),
        None => x.into_owned(),
    })
}
