//! From router logits to the experts of a token and their weights.

use std::hash::{Hash, Hasher};

use super::ExpertLayerError;

/// How a token's logits become its experts and their router weights.
///
/// `Routing { renormalise: true, ..Routing::new(Score::Softmax) }` displays as
/// `softmax renormalised`, and is parsed from that text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Logits to scores.
    pub score: Score,
    /// Whether a bias `[E]` is added to the scores when experts are chosen (`e_score_correction_bias`
    /// in checkpoints). The bias decides the choice and is no part of a router weight.
    pub bias: bool,
    /// Experts are chosen from the best groups of experts alone.
    pub groups: Option<ExpertGroups>,
    /// Whether a token's router weights are divided by their sum (plus 1e-20).
    pub renormalise: bool,
    /// What multiplies the router weights at the end; finite, above 0.
    pub scale: f32,
}

/// The scale is above 0 in a checked layer: it equals itself.
impl Eq for Routing {}

impl Hash for Routing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { score, bias, groups, renormalise, scale } = self;
        (score, bias, groups, renormalise, scale.to_bits()).hash(state);
    }
}

impl Routing {
    /// The score and nothing else: no bias, no groups, not renormalised, scale 1.
    pub fn new(score: Score) -> Self {
        Self { score, bias: false, groups: None, renormalise: false, scale: 1.0 }
    }
}

/// The score of an expert from the logits l of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Score {
    /// `exp(l) / sum of exp(l) over all E`.
    Softmax,
    /// `1 / (1 + exp(-l))`.
    Sigmoid,
    /// `sqrt(ln(1 + exp(l)))`.
    SqrtSoftplus,
    /// `l`.
    Logits,
}

impl Score {
    /// Every score.
    pub const ALL: [Self; 4] = [Self::Softmax, Self::Sigmoid, Self::SqrtSoftplus, Self::Logits];

    /// Its name in the text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Sigmoid => "sigmoid",
            Self::SqrtSoftplus => "sqrtsoftplus",
            Self::Logits => "logits",
        }
    }
}

/// The experts in equal groups, neighbours together (`n_group` and `topk_group` in checkpoints).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// How many groups there are; divides E.
    pub count: u32,
    /// From how many of them experts are chosen.
    pub keep: u32,
}

impl ExpertGroups {
    pub(super) fn check(self, experts: u32, top_k: u32) -> Result<(), ExpertLayerError> {
        let Self { count, keep } = self;
        if count == 0 || !experts.is_multiple_of(count) {
            return Err(ExpertLayerError::GroupCount { count, experts });
        }
        if !(1..=count).contains(&keep) {
            return Err(ExpertLayerError::GroupKeep { keep, count });
        }
        let size = experts / count;
        if keep * size < top_k {
            return Err(ExpertLayerError::GroupsTooFew { keep, size, top_k });
        }
        Ok(())
    }
}

/// The experts that M tokens of k experts each meet on average, if each chooses any of them alike: `E (1 - (1 - k / E)^M)`, since a token leaves
/// an expert out with a probability of 1 - k / E.
pub fn experts_met(experts: f64, top_k: f64, tokens: f64) -> f64 {
    experts * (1.0 - (1.0 - (top_k / experts).min(1.0)).powf(tokens))
}
