//! The scalar reference: the meaning of a scheme, one element at a time, written to be read.
//!
//! In: a [`Scheme`](crate::Scheme) and packed tensors or float weights. Out: plain codes
//! ([`unpack`], [`pack`]), real weights ([`dequantise`]), quantised weights ([`quantise`]),
//! quantised activations ([`quantise_activation`]), products ([`matmul`]), and layers of experts
//! ([`experts`]). Reals are `f64`; the only roundings are those that the scheme declares. The reference is slow on purpose. The layout
//! transforms and every kernel are tested against the reference; the reference is tested against
//! files of third-party software.

mod activation;
pub mod experts;
mod pack;
mod quantise;
mod value;

pub use activation::{QuantisedActivation, StaticInput, quantise_activation};
pub use pack::{PlainCodes, StoredTensors, pack, unpack};
pub use quantise::{RoundedArithmetic, quantise};
pub use value::{Dequantiser, dequantise, matmul};

use crate::experts::ExpertLayerError;
use crate::layout::{BindError, Component};

/// Why the reference has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// A layout does not fit the shape.
    #[error("tensor \"{store}\": {error}")]
    Bind {
        /// The store.
        store: String,
        /// What does not fit.
        error: BindError,
    },
    /// A stored tensor is missing.
    #[error("the tensor \"{0}\" is missing")]
    Missing(String),
    /// A stored tensor has the wrong size.
    #[error("the tensor \"{store}\" has {found} bytes, expected {expected}")]
    Size {
        /// The store.
        store: String,
        /// Bytes by the layout.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A slice has the wrong length.
    #[error("{what} has {found} values, expected {expected}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Values expected.
        expected: u64,
        /// Values found.
        found: u64,
    },
    /// A group index is outside of the groups.
    #[error("the group index of k = {k} is {group}, but there are {groups} groups")]
    Group {
        /// The column.
        k: u64,
        /// Its group.
        group: i64,
        /// Number of groups.
        groups: u64,
    },
    /// A scale is NaN, or a divisor is zero.
    #[error("element {element} of {component} is {value}, which is not a valid scale")]
    Scale {
        /// The level.
        component: Component,
        /// Its position.
        element: u64,
        /// Its value.
        value: f64,
    },
    /// The activation's static scale was not given.
    #[error("the activation needs {0} from the checkpoint")]
    StaticInput(Component),
    /// The expert layer is not valid.
    #[error(transparent)]
    ExpertLayer(#[from] ExpertLayerError),
    /// A router logit is NaN or +infinity.
    #[error("the logit of token {token}, expert {expert} is {value}: it is finite or -infinity")]
    Logit {
        /// The token.
        token: usize,
        /// The expert.
        expert: usize,
        /// The logit.
        value: f64,
    },
    /// A score bias is NaN or +infinity.
    #[error("the score bias of expert {expert} is {value}: it is finite or -infinity")]
    ScoreBias {
        /// The expert.
        expert: usize,
        /// Its bias.
        value: f64,
    },
    /// A token chose an expert that does not exist.
    #[error("choice {choice} of token {token} is expert {id}: the layer has {experts} experts")]
    Expert {
        /// The token.
        token: usize,
        /// Which of its choices, from 0.
        choice: usize,
        /// The number that it chose.
        id: i32,
        /// E.
        experts: u32,
    },
    /// The expert map names a place without an expert.
    #[error("the expert map has expert {expert} at place {place}, but {local} experts are here")]
    ExpertMap {
        /// The expert.
        expert: usize,
        /// Its place by the map.
        place: i32,
        /// L.
        local: usize,
    },
}
