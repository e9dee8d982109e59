//! Why a device does not compute an expert layer.

use quantloom_dsl::BufferRole;

use super::source::ExpertProduct;

/// Why a device does not compute an expert layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertsNotScheduled {
    /// The device has no expert layers.
    #[error("{0} has no expert layers")]
    Device(String),
    /// The expert map places no expert on the device.
    #[error("no expert is here")]
    NoExpert,
    /// A buffer of all experts is larger than indices of kernels reach.
    #[error("`{buffer}` of all experts has more than {most} bytes")]
    Bytes {
        /// The buffer.
        buffer: BufferRole,
        /// The most bytes.
        most: u64,
    },
    /// M tokens do not fit the workspace in one chunk, and the caller's memory holds one.
    #[error("{0} tokens in one chunk")]
    Chunks(u64),
    /// Scales of h over groups of several rows.
    #[error(
        "scales of groups of several rows of the second product's input: its rows are pairs of a token \
         and an expert, and no scheme says which pairs share a group"
    )]
    RowGroups,
    /// A quantiser that is not computed expert by expert as the reference computes it.
    #[error("{product}: {scheme}: {rule}")]
    Quantiser {
        /// Which product.
        product: ExpertProduct,
        /// The scheme's name.
        scheme: String,
        /// What it does that rows of an expert alone do not decide.
        rule: QuantiserRule,
    },
}

/// What a quantiser of x does that the rows of an expert alone do not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantiserRule {
    /// A scale of some neighbouring rows.
    #[error("a scale of x over some neighbouring rows; rows of experts have none")]
    NeighbouringRows,
    /// A scale of all rows inside of one of a row.
    #[error("a scale over all rows inside of one of a row")]
    AllRowsInside,
}
