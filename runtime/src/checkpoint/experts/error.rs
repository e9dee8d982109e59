//! Why the expert layer of a checkpoint cannot be used.

use std::sync::Arc;

use quantloom_dsl::experts::{ExpertLayerError, MOST_EXPERTS};

use super::super::config::shortened;
use super::super::{CheckpointError, first_names};
use crate::experts::{ExpertError, ExpertProduct};
use crate::unpacked::UnpackError;

/// What is wrong with an expert layer of a checkpoint.
#[derive(Clone, Debug, thiserror::Error)]
#[error("expert layer \"{layer}\": {problem}")]
#[non_exhaustive]
pub struct CheckpointExpertsError {
    /// The expert layer's name.
    pub layer: String,
    /// What is wrong.
    pub problem: Box<ExpertsProblem>,
}

impl CheckpointExpertsError {
    pub(super) fn of(layer: &str, problem: impl Into<ExpertsProblem>) -> Self {
        Self { layer: shortened(layer.to_owned()), problem: Box::new(problem.into()) }
    }
}

/// What may be wrong with an expert layer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertsProblem {
    /// There is none of this name.
    #[error("there is none of this name; there are: {}", first_names(known))]
    NoLayer {
        /// The names that exist.
        known: Vec<String>,
    },
    /// A matrix of an expert is not there.
    #[error("the layer has {experts} experts, and \"{matrix}\" is missing")]
    MissingMatrix {
        /// The matrix.
        matrix: String,
        /// E.
        experts: u32,
    },
    /// The stack of a product is not there.
    #[error("the stack \"{0}\" of all experts is missing")]
    MissingStack(String),
    /// An expert beyond the description's number.
    #[error("the layer has {experts} experts, and there is \"{matrix}\" besides")]
    OneTooMany {
        /// A matrix of that expert.
        matrix: String,
        /// E.
        experts: u32,
    },
    /// More experts than a layer may have.
    #[error("there is \"{0}\", and a layer has {MOST_EXPERTS} experts at most")]
    TooMany(String),
    /// An expert has a matrix that is none of the layer's.
    #[error("\"{matrix}\" is not one of the matrices {} of an expert", known.join(", "))]
    OtherMatrix {
        /// The matrix.
        matrix: String,
        /// The matrices of an expert.
        known: Vec<&'static str>,
    },
    /// A matrix that cannot be read.
    #[error(transparent)]
    Broken(Arc<CheckpointError>),
    /// The matrix of an expert has another scheme than that of expert 0.
    #[error(
        "expert {expert}: the scheme of \"{matrix}\" differs from that of expert 0 in its {clause}"
    )]
    Scheme {
        /// The expert.
        expert: u32,
        /// The matrix.
        matrix: String,
        /// The first clause that differs.
        clause: &'static str,
    },
    /// gate and up have different schemes.
    #[error("the schemes of \"{gate}\" and \"{up}\" differ in their {clause}")]
    Shards {
        /// The first shard of expert 0.
        gate: String,
        /// Its second shard.
        up: String,
        /// The first clause that differs.
        clause: &'static str,
    },
    /// A matrix does not have the sizes of the description, or of expert 0.
    #[error(
        "expert {expert}: \"{matrix}\" is {} x {}, expected {} x {}",
        found[0], found[1], expected[0], expected[1]
    )]
    Shape {
        /// The expert.
        expert: u32,
        /// The matrix.
        matrix: String,
        /// N and K.
        found: [u64; 2],
        /// N and K that it has to have.
        expected: [u64; 2],
    },
    /// A stack of matrices does not have the sizes of the description.
    #[error("\"{matrix}\" is {found:?}, expected {expected:?}")]
    Stack {
        /// The stack.
        matrix: String,
        /// E, N and K.
        found: Vec<u64>,
        /// E, N and K that it has to have.
        expected: Vec<u64>,
    },
    /// The stack of a product says that its shards are stored as those of another product are.
    #[error("\"{matrix}\" is the stack of {product}, and its scheme says {stored}")]
    StackShards {
        /// The stack.
        matrix: String,
        /// Its product.
        product: ExpertProduct,
        /// What its scheme says.
        stored: &'static str,
    },
    /// The gate of the description has another number of shards than the tensors.
    #[error("its gate `{gate}` takes {expected} shards, and the tensors are those of {found}")]
    Gate {
        /// The gate.
        gate: String,
        /// The gate's shards.
        expected: usize,
        /// The shards that are there.
        found: usize,
    },
    /// A tensor of the router does not have the sizes of the layer, or is not of floats.
    #[error("the tensor \"{tensor}\" is {found}, expected floats {expected:?}")]
    Router {
        /// The tensor.
        tensor: String,
        /// Its type and dimensions.
        found: String,
        /// The dimensions that it has to have.
        expected: Vec<u64>,
    },
    /// The gate of the shared expert is not there; models of this family have one.
    #[error("the shared expert has no gate \"{0}\"")]
    NoSharedGate(String),
    /// Nothing describes the layer.
    #[error(
        "nothing says its routing: {}; the layer can be given as text, such as `{example}`",
        model_of(model_type.as_deref())
    )]
    NotDescribed {
        /// The model's `model_type`, if it has one.
        model_type: Option<String>,
        /// The tensors' own sizes in the text of a layer.
        example: String,
    },
    /// The description that the caller gives is none.
    #[error(transparent)]
    Layer(#[from] ExpertLayerError),
    /// The description in the file's metadata is none.
    #[error("the metadata key `{key}`: {error}")]
    Text {
        /// The key of the metadata.
        key: &'static str,
        /// What is wrong.
        error: ExpertLayerError,
    },
    /// The weights are not quantised: devices prepare quantised ones.
    #[error("its weights are {0}, not quantised")]
    Float(&'static str),
    /// The expert map has more places than experts.
    #[error("the expert map has no expert at place {0}")]
    EmptyPlace(usize),
    /// The expert map has two experts at one place, whose weights differ.
    #[error("the expert map has the experts {} and {} at place {place}", experts[0], experts[1])]
    TwoAtPlace {
        /// The place.
        place: usize,
        /// The first two experts that it has there.
        experts: [u32; 2],
    },
    /// The routing needs logits, and the checkpoint has no router.
    #[error("the checkpoint has no router of this layer: none of the tensors {}", tried.join(", "))]
    NoRouter {
        /// The names that a router may have.
        tried: Vec<String>,
    },
    /// The router, or the gate of a shared expert, is quantised.
    #[error("the router \"{0}\" is quantised, and only those of floats are read")]
    QuantisedRouter(String),
    /// A stack's scheme has values that are of rows of both shards.
    #[error(transparent)]
    Unpack(Box<UnpackError>),
    /// A device cannot prepare the layer.
    #[error(transparent)]
    Expert(Box<ExpertError>),
}

impl From<UnpackError> for ExpertsProblem {
    fn from(error: UnpackError) -> Self {
        Self::Unpack(Box::new(error))
    }
}

impl From<ExpertError> for ExpertsProblem {
    fn from(error: ExpertError) -> Self {
        Self::Expert(Box::new(error))
    }
}

fn model_of(model_type: Option<&str>) -> String {
    match model_type {
        Some(name) if !name.is_empty() => {
            format!("the model_type `{}` is unknown", shortened(name.to_owned()))
        }
        _ => "there is no `model_type`".to_owned(),
    }
}
