//! What is asked of a source of product kernels besides their texts.

use std::fmt;
use std::sync::Arc;

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::{Activation, Scheme};

use super::native::NativePart;
use crate::op::{Decoded, Sums};
use crate::source::{KernelKey, KernelSource, Refusal};

/// A product whose M is not known yet.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The weight's scheme.
    pub scheme: &'a Scheme,
    /// What x comes as: one of the scheme's activations.
    pub activation: &'a Activation,
    /// The type that x comes in, which is that of y where the scheme does not say another.
    pub own: FloatFormat,
    /// Where it runs: the target's name, as `sm_90a`.
    pub target: &'a str,
    /// Rows of w.
    pub n: u64,
    /// Columns of w, in the order in which products take them.
    pub k: u64,
    /// Columns of x.
    pub x_columns: u64,
}

/// A kernel for a number of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The kernel.
    pub key: KernelKey,
    /// The most rows of x that a launch of it takes, [`u64::MAX`] if any number; a larger product is
    /// cut into such pieces.
    pub tokens: u64,
    /// The type in which it multiplies weights and x, and why not in another: `in bf16`.
    pub meeting: String,
    /// How it adds up.
    pub sums: Sums,
    /// What it decodes codes to.
    pub decoded: Decoded,
    /// Why this one.
    pub by: Basis,
}

/// What a choice of a kernel rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// It was the fastest that was measured for this product, shape and M.
    Measured,
    /// A model of what kernels cost.
    Model,
    /// Somebody asked for it.
    Asked,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "the fastest that was measured",
            Self::Model => "by the model of costs, not measured",
            Self::Asked => "as asked for",
        })
    }
}

/// The kernels that move a part between stores of the scheme and its native buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The stores that the part is made of.
    pub stores: Vec<String>,
    /// Whether the order of the columns comes after them ([`ColumnOrder::columns`], u32).
    ///
    /// [`ColumnOrder::columns`]: super::ColumnOrder::columns
    pub order: bool,
    /// The kernel from the stores, its first buffers, to the native buffer, its last one, which it
    /// writes whole.
    pub to_native: KernelKey,
    /// The kernel back, from the native buffer to the only store. It may be refused where the other
    /// is not: a store may hold more than the part, and a part be computed of several.
    pub from_native: KernelKey,
}

/// A source without transforms.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this source of kernels has no transforms from stored tensors")]
struct NoTransforms;

/// A source of product kernels. Its kernels' buffers have names: `x`, `y`, those of
/// [`Products::native`] and [`Products::operand`], and any for workspaces, which are 0 before the first launch.
pub trait Products: KernelSource {
    /// The constant buffers of the product, the same for every M.
    ///
    /// # Errors
    /// Why no kernel of the source computes it.
    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal>;

    /// The kernel for M tokens.
    ///
    /// # Errors
    /// Why none of the source takes them.
    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal>;

    /// The kernels that make what the product reads of x, in the order in which they are launched;
    /// none if that is x itself. They read `x`, `order` (u32, [`ColumnOrder::columns`]),
    /// `input_scale_L` of a static level L and `input_zero` (f32), and write `operand`, which is the
    /// product's `x`, its `x_scale`, and what they need between them.
    ///
    /// [`ColumnOrder::columns`]: super::ColumnOrder::columns
    ///
    /// # Errors
    /// Why no kernel of the source makes it.
    fn operand(&self, request: &Request<'_>) -> Result<Vec<KernelKey>, Refusal>;

    /// The transforms of a part of [`Products::native`]. Without them the host packs it.
    ///
    /// # Errors
    /// Why there are none.
    fn moves(&self, _request: &Request<'_>, _part: &NativePart) -> Result<Moves, Refusal> {
        Err(Refusal::Reason(Arc::new(NoTransforms)))
    }
}
