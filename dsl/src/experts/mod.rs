//! Expert layers (mixture of experts): which experts a token meets, and what happens between the
//! two products of an expert.
//!
//! In: the fields of an [`ExpertLayer`], or its text, which [`std::fmt::Display`] and
//! [`std::str::FromStr`] write and read. Out: a checked description. A [`Scheme`](crate::Scheme)
//! says what a weight is and knows nothing of experts' routing; an expert layer knows nothing of
//! codes. [`reference::experts`](crate::reference::experts) defines what a layer computes;
//! docs/expert-layers.md is the reference of the text.

mod error;
mod gate;
mod product;
mod routing;
mod text;

pub use error::ExpertLayerError;
pub use gate::Gate;
pub use product::{ExpertProduct, OperandOf};
pub use routing::{ExpertGroups, Routing, Score, experts_met};

/// The most experts of a layer.
pub const MOST_EXPERTS: u32 = 1024;
/// The most experts of a token.
pub const MOST_TOP_K: u32 = 32;

/// A feed-forward layer whose weights are E experts, of which each token meets k.
///
/// Displays as `128 experts of 2048 x 768, top 8, softmax renormalised, silu`, and is parsed from
/// that text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLayer {
    /// E: the experts of the model, 1 to [`MOST_EXPERTS`].
    pub experts: u32,
    /// H: the columns of x and of y.
    pub hidden: u64,
    /// I: the rows of each shard of the first product, and the columns of the second matrix.
    pub intermediate: u64,
    /// k: the experts of a token, 1 to [`MOST_TOP_K`] and at most E.
    pub top_k: u32,
    /// Router logits to experts and weights.
    pub routing: Routing,
    /// What is between the two products.
    pub gate: Gate,
    /// The router weight multiplies x instead of the expert's result; with k = 1 alone.
    pub weight_on_input: bool,
}

impl ExpertLayer {
    /// Checks sizes and numbers.
    ///
    /// # Errors
    /// The first of: E or a size out of range, k out of range, expert groups that are not of equal
    /// size or keep fewer than k experts, a weight on the input with k > 1, a scale, an alpha or a
    /// limit that is not a finite number above 0.
    pub fn check(&self) -> Result<(), ExpertLayerError> {
        let &Self { experts, hidden, intermediate, top_k, .. } = self;
        if !(1..=MOST_EXPERTS).contains(&experts) {
            return Err(ExpertLayerError::Experts { experts });
        }
        if hidden == 0 || intermediate == 0 {
            return Err(ExpertLayerError::Size { hidden, intermediate });
        }
        if !(1..=experts.min(MOST_TOP_K)).contains(&top_k) {
            return Err(ExpertLayerError::TopK { top_k, experts });
        }
        if let Some(groups) = self.routing.groups {
            groups.check(experts, top_k)?;
        }
        if self.weight_on_input && top_k > 1 {
            return Err(ExpertLayerError::WeightOnInput { top_k });
        }
        let scale = ("the scale of the router weights", self.routing.scale);
        for (what, value) in [scale].into_iter().chain(self.gate.numbers()) {
            if !(value.is_finite() && value > 0.0) {
                return Err(ExpertLayerError::Number { what, value });
            }
        }
        Ok(())
    }
}
