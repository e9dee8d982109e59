//! Why an expert layer could not be prepared or computed.

use std::error::Error;
use std::sync::Arc;

use quantloom_dsl::experts::ExpertLayerError;
use quantloom_dsl::reference::ReferenceError;

use super::not_scheduled::ExpertsNotScheduled;
use super::source::ExpertProduct;
use crate::op::ProductError;
use crate::unpacked::UnpackError;

/// Why an expert layer could not be prepared or computed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertError {
    /// The description is not valid.
    #[error(transparent)]
    Layer(#[from] ExpertLayerError),
    /// An input has another number of values than M, k, E, H and L give.
    #[error("{what} has {found} values, expected {expected}")]
    Length {
        /// Which input.
        what: &'static str,
        /// The values that it has to have.
        expected: u64,
        /// The values that it has.
        found: u64,
    },
    /// x is not whole rows.
    #[error("x has {found} values, which is not a whole number of rows of H = {hidden}")]
    Rows {
        /// H.
        hidden: u64,
        /// Values of x.
        found: u64,
    },
    /// An id of E or more.
    #[error("token {token}, choice {choice}: there is no expert {id} among {experts}")]
    Expert {
        /// The token.
        token: usize,
        /// Its choice, 0 to k - 1.
        choice: usize,
        /// The id.
        id: i32,
        /// E.
        experts: u32,
    },
    /// A logit or a score bias that is NaN or +infinity.
    #[error("{what}[{token}, {expert}] is {value}; routing needs numbers")]
    NotFinite {
        /// `logits` or `the score bias`.
        what: &'static str,
        /// The token; 0 for a bias.
        token: usize,
        /// The expert.
        expert: usize,
        /// The value.
        value: f32,
    },
    /// An element of h that is not a number, where the second product quantises h.
    #[error(
        "h[{column}] of token {token} and the expert at place {place} is {value}; the activation \
         quantiser needs finite values"
    )]
    Intermediate {
        /// The token; the row of x if rows are sorted by expert already.
        token: usize,
        /// The place of the expert, 0 to L - 1.
        place: usize,
        /// The column of h.
        column: usize,
        /// The value.
        value: f64,
    },
    /// The expert map names a place that is not there.
    #[error("the expert map has expert {expert} at place {place}, and {local} experts are here")]
    Map {
        /// The expert.
        expert: usize,
        /// Its place.
        place: i32,
        /// L.
        local: usize,
    },
    /// The expert map has more places than there are experts.
    #[error("the expert map has {local} places for {experts} experts")]
    MapPlaces {
        /// L.
        local: usize,
        /// E.
        experts: usize,
    },
    /// A matrix of the source has another shape than the layer.
    #[error(
        "expert {expert}, shard {shard} of {product}: {found_n} x {found_k}, expected {n} x {k}"
    )]
    Shape {
        /// Which product.
        product: ExpertProduct,
        /// The expert, 0 to L - 1.
        expert: u32,
        /// The shard.
        shard: u32,
        /// Rows.
        n: u64,
        /// Columns.
        k: u64,
        /// Rows of the matrix.
        found_n: u64,
        /// Columns of the matrix.
        found_k: u64,
    },
    /// A matrix of the source is of another scheme than the first one of its product.
    #[error("expert {expert}, shard {shard} of {product}: another scheme, its {clause} differs")]
    Scheme {
        /// Which product.
        product: ExpertProduct,
        /// The expert.
        expert: u32,
        /// The shard.
        shard: u32,
        /// The clause.
        clause: &'static str,
    },
    /// The layer's routing has a score bias, and the call or the layer has none.
    #[error("the routing adds a bias to scores, and the options give none")]
    NoBias,
    /// The device does not compute such layers: why.
    #[error("not scheduled: {0}")]
    NotScheduled(#[from] ExpertsNotScheduled),
    /// The call needs more workspace than the options allow.
    #[error("the call needs {needed} bytes of workspace, and the options allow {most}")]
    Workspace {
        /// Bytes.
        needed: u64,
        /// The most.
        most: u64,
    },
    /// The source of the matrices: its own error.
    #[error(transparent)]
    Source(Arc<dyn Error + Send + Sync>),
    /// A stored tensor cannot be unpacked.
    #[error(transparent)]
    Unpack(Box<UnpackError>),
    /// What the reference's quantiser says of x or h.
    #[error(transparent)]
    Quantiser(#[from] ReferenceError),
    /// A product of the layer.
    #[error(transparent)]
    Product(Box<ProductError>),
}

impl ExpertError {
    /// Whether the device has no kernels for the layer, or for one of its products: another device may.
    pub fn is_not_scheduled(&self) -> bool {
        match self {
            Self::NotScheduled(_) => true,
            Self::Product(error) => matches!(**error, ProductError::NotScheduled(_)),
            _ => false,
        }
    }

    /// The error of a product of the layer.
    pub(crate) fn product(error: impl Into<ProductError>) -> Self {
        Self::Product(Box::new(error.into()))
    }
}

impl From<ProductError> for ExpertError {
    fn from(error: ProductError) -> Self {
        Self::product(error)
    }
}

impl From<UnpackError> for ExpertError {
    fn from(error: UnpackError) -> Self {
        Self::Unpack(Box::new(error))
    }
}
