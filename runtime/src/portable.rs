//! The plain-Rust product: decode a row, multiply it with every token, all cores.

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::reference::{ReferenceError, quantise_activation};
use quantloom_dsl::{Activation, Scheme};
use rayon::prelude::*;

use crate::unpacked::Unpacked;

/// Why a product could not be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProductError {
    /// The activation's width is not the weight's.
    #[error("x has {found} columns, the weight has K = {expected}")]
    Columns {
        /// K.
        expected: u64,
        /// Columns of x.
        found: u64,
    },
    /// There is no such expert.
    #[error("there is no expert {expert}; the layer stacks {experts}")]
    Expert {
        /// Asked for.
        expert: u64,
        /// E.
        experts: u64,
    },
    /// The activation quantiser refused.
    #[error(transparent)]
    Quantiser(#[from] ReferenceError),
    /// An activation that is NaN has no scale.
    #[error("x[{token}, {k}] is {value}; the activation quantiser needs finite values")]
    NotFinite {
        /// Row of x.
        token: usize,
        /// Column of x.
        k: usize,
        /// The value.
        value: f64,
    },
}

/// The activation as the scheme multiplies it: as given, or quantised and read back, [M, K].
///
/// `own` is the type whose values `x` holds.
///
/// # Errors
/// See [`ProductError`].
pub fn activation(
    scheme: &Scheme,
    weight: &Unpacked,
    x: &[f64],
    own: FloatFormat,
) -> Result<Vec<f64>, ProductError> {
    let k = weight.shape().k as usize;
    match scheme.activations.first() {
        Some(Activation::Quantised(quantiser)) => {
            if let Some(at) = x.iter().position(|value| !value.is_finite()) {
                let (token, k) = (at / k, at % k);
                return Err(ProductError::NotFinite { token, k, value: x[at] });
            }
            let quantised = quantise_activation(scheme, quantiser, x, k, own, weight.input())?;
            Ok(quantised.values())
        }
        _ => Ok(x.to_vec()),
    }
}

/// `y[m,n] = sum_k x[m,k] w[n,k] + bias[n]` of one expert: x [M, K] to y [M, N].
///
/// Each row of the weight is decoded once to `f32`; products are summed in `f32` over 16
/// interleaved partial sums. A sum of K products is within `(K/16 + 5) 2^-24` of the exact
/// one, relative to the sum of the products' magnitudes.
///
/// # Errors
/// [`ProductError::Columns`], [`ProductError::Expert`].
pub fn matmul(weight: &Unpacked, expert: u64, x: &[f32]) -> Result<Vec<f32>, ProductError> {
    let shape = weight.shape();
    let (n, k) = (shape.n as usize, shape.k as usize);
    if !x.len().is_multiple_of(k) {
        return Err(ProductError::Columns { expected: shape.k, found: (x.len() % k) as u64 });
    }
    if expert >= shape.experts {
        return Err(ProductError::Expert { expert, experts: shape.experts });
    }
    let tokens = x.len() / k;
    let mut transposed = vec![0.0; n * tokens];
    transposed.par_chunks_mut(tokens.max(1)).enumerate().for_each_init(
        || vec![0.0; k],
        |row, (n_at, out)| {
            weight.decode_row(expert, n_at as u64, row);
            let bias = weight.bias().map_or(0.0, |bias| bias[expert as usize * n + n_at] as f32);
            for (y, x) in out.iter_mut().zip(x.chunks_exact(k)) {
                *y = dot(row, x) + bias;
            }
        },
    );
    let mut y = vec![0.0; tokens * n];
    for (n_at, column) in transposed.chunks_exact(tokens.max(1)).enumerate() {
        for (token, value) in column.iter().enumerate() {
            y[token * n + n_at] = *value;
        }
    }
    Ok(y)
}

const LANES: usize = 16;

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a_runs, b_runs) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_runs.remainder().iter().zip(b_runs.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_runs.zip(b_runs) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}
