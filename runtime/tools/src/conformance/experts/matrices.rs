//! The matrices of an expert layer as the reference takes them.

use quantloom_dsl::Scheme;
use quantloom_dsl::reference::{PlainCodes, ReferenceError, dequantise};

/// A matrix of a layer.
pub(super) struct Matrix {
    pub(super) plain: PlainCodes,
    /// [N, K].
    pub(super) values: Vec<f64>,
}

impl Matrix {
    pub(super) fn new(scheme: &Scheme, plain: PlainCodes) -> Result<Self, ReferenceError> {
        Ok(Self { values: dequantise(scheme, &plain)?, plain })
    }
}

/// The matrices of a layer.
pub(super) struct LayerMatrices {
    /// [expert][shard].
    pub(super) gate_up: Vec<Vec<Matrix>>,
    /// `[expert]`.
    pub(super) down: Vec<Matrix>,
}
