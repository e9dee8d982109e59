//! Families of models with expert layers: how their tensors are named, and what their configuration says
//! of routing.
//!
//! In: a model's configuration (`config.json`). Out: its [`ModelFamily`], and the
//! [`ExpertLayer`](quantloom_dsl::experts::ExpertLayer) of its expert layers. The families are data:
//! `rows.rs`. To add one, add a row, and a configuration of a real model to the tests below.

mod config;
mod describe;
mod rows;

use quantloom_dsl::experts::Score;

pub(super) use config::{ModelConfig, find};
pub use rows::FAMILIES;

/// A family of models: what its tensors and the keys of its configuration are called.
#[derive(Clone, Copy, Debug)]
pub struct ModelFamily {
    /// The values of `model_type`.
    pub model_types: &'static [&'static str],
    /// The tensors of an expert layer.
    pub names: ExpertNames,
    /// Whether its models have a shared expert.
    pub shared: SharedExperts,
    /// Keys of E, the first that is there.
    pub experts: &'static [&'static str],
    /// Keys of k.
    pub top_k: &'static [&'static str],
    /// Keys of H.
    pub hidden: &'static [&'static str],
    /// Keys of I.
    pub intermediate: &'static [&'static str],
    /// Logits to scores.
    pub score: Setting<Score>,
    /// Whether the routing has a score bias.
    pub bias: Setting<bool>,
    /// The keys of the number of expert groups and of those that are kept, and whether they count; one
    /// group is none.
    pub groups: Option<([&'static str; 2], Setting<bool>)>,
    /// Whether router weights are divided by their sum.
    pub renormalise: Setting<bool>,
    /// The key of what multiplies router weights; 1 without it.
    pub scale: Option<&'static str>,
    /// The scale is for router weights that are not renormalised alone.
    pub scale_or_renormalise: bool,
    /// What is between the products.
    pub gate: GateSource,
    /// The router weight multiplies x.
    pub weight_on_input: bool,
}

/// A property of the routing: known of the family, or written in the configuration.
#[derive(Clone, Copy, Debug)]
pub enum Setting<T: 'static> {
    /// The same in every model of the family.
    Always(T),
    /// A boolean or a word of the configuration says it.
    Key {
        /// The key.
        key: &'static str,
        /// Its words, and what they mean; booleans are the words `true` and `false`. Others are refused.
        words: &'static [(&'static str, T)],
        /// What is meant without the key.
        otherwise: T,
    },
}

/// Whether models of a family have a shared expert.
#[derive(Clone, Copy, Debug)]
pub enum SharedExperts {
    /// None has.
    Never,
    /// Each has.
    Always,
    /// Those have, in whose configuration the number of a key is above 0.
    Above0(&'static str),
}

/// Where the gate is from.
#[derive(Clone, Copy, Debug)]
pub enum GateSource {
    /// The key of the activation function, whose result multiplies up.
    Gated(&'static str),
    /// The key of the activation function; there is no up.
    Ungated(&'static str),
    /// `swigluoai`.
    SwigluOai {
        /// Keys of alpha.
        alpha: (&'static [&'static str], f32),
        /// Keys of the limit.
        limit: (&'static [&'static str], f32),
    },
}

/// What the tensors of an expert layer are called. The experts are at `PARENT.experts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// The router, `PARENT.ROUTER.weight`.
    pub router: &'static str,
    /// The score bias, below PARENT.
    pub score_bias: Option<&'static str>,
    /// The shards of the first product, `PARENT.experts.EXPERT.SHARD`: gate and up, or the only one.
    pub shards: &'static [&'static str],
    /// The second product.
    pub down: &'static str,
    /// The shared expert, `PARENT.SHARED`.
    pub shared: Option<&'static str>,
    /// What gives the shared expert's result a weight, `PARENT.GATE.weight` [1, H].
    pub shared_gate: Option<&'static str>,
    /// Tensors that stack all experts without quantisation.
    pub stacked: StackedFloats,
}

/// How tensors stack the matrices of all experts without quantisation: [E, 2I, H] and [E, H, I], rows of
/// gate before rows of up, unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackedFloats {
    /// The matrices are transposed: [E, H, 2I] and [E, I, H].
    pub transposed: bool,
    /// Rows of gate and of up alternate.
    pub interleaved: bool,
}

impl ModelFamily {
    /// The family with a `model_type`.
    pub fn of_type(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
    }
}

#[cfg(test)]
mod tests;
