//! Why a description is not an expert layer.

use super::{MOST_EXPERTS, MOST_TOP_K};

/// Why a description is not an expert layer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertLayerError {
    /// The number of experts is out of range.
    #[error("{experts} experts: a layer has 1 to {MOST_EXPERTS}")]
    Experts {
        /// E.
        experts: u32,
    },
    /// A size is 0.
    #[error("experts of {hidden} x {intermediate}: each size is at least 1")]
    Size {
        /// H.
        hidden: u64,
        /// I.
        intermediate: u64,
    },
    /// The number of experts of a token is out of range.
    #[error("top {top_k} of {experts} experts: top-k is 1 to {}", experts.min(&MOST_TOP_K))]
    TopK {
        /// k.
        top_k: u32,
        /// E.
        experts: u32,
    },
    /// The expert groups are not of equal size.
    #[error("{experts} experts in {count} groups: the number of groups divides that of experts")]
    GroupCount {
        /// The number of expert groups.
        count: u32,
        /// E.
        experts: u32,
    },
    /// The number of expert groups that are kept is out of range.
    #[error("{keep} of {count} groups: 1 to {count} groups are kept")]
    GroupKeep {
        /// The expert groups that are kept.
        keep: u32,
        /// The number of expert groups.
        count: u32,
    },
    /// The expert groups that are kept have fewer than k experts.
    #[error("{keep} groups of {size} experts: top {top_k} needs {} groups", top_k.div_ceil(*size))]
    GroupsTooFew {
        /// The expert groups that are kept.
        keep: u32,
        /// The experts of a group.
        size: u32,
        /// k.
        top_k: u32,
    },
    /// The router weight cannot multiply x if a token has several.
    #[error("weight on input with top {top_k}: a token has one router weight only with top 1")]
    WeightOnInput {
        /// k.
        top_k: u32,
    },
    /// A number is not finite or not above 0.
    #[error("{what} is {value}: it is a finite number above 0")]
    Number {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f32,
    },
    /// The text is not a description.
    #[error("`{text}`: expected {expected}, found {found}")]
    Text {
        /// The text.
        text: String,
        /// What is expected at this place.
        expected: String,
        /// The text that was found.
        found: String,
    },
}
