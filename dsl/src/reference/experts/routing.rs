//! The router's logits to the experts of a token and their weights.

use std::cmp::Ordering;

use super::super::ReferenceError;
use super::expected_length;
use super::gate::sigmoid;
use crate::experts::{ExpertGroups, ExpertLayer, Routing, Score};

/// The experts of each token and their router weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// [M, k]: the expert, 0 to E - 1; a negative number is not an expert.
    pub ids: Vec<i32>,
    /// [M, k]: the router weight; 0 where [`route`] gives no expert.
    pub weights: Vec<f64>,
}

/// The choices of each token: logits [M, E], score bias `[E]` (empty if the routing has none).
///
/// Of a token:
/// 1. [`scores`] of its logits.
/// 2. [`preferences`]: what the choice compares.
/// 3. [`keep_groups`]: experts outside of the best groups are out.
/// 4. [`top_k`] of the rest, best first.
/// 5. [`router_weights`] of the chosen experts' scores.
///
/// An expert with a logit of -infinity is switched off: it is never chosen, whatever its bias. If
/// fewer than k experts are left, the last choices of the token are -1, with weight 0.
///
/// Source: vLLM `fused_topk`, `grouped_topk`; transformers `DeepseekV3MoE`, `GptOssTopKRouter`.
/// Where these set experts outside of the groups to 0, they differ from here if a preference is
/// negative.
///
/// # Errors
/// [`ReferenceError::ExpertLayer`] if the layer is not valid, [`ReferenceError::Length`] for slices
/// of other lengths, [`ReferenceError::Logit`] and [`ReferenceError::ScoreBias`] for NaN and
/// +infinity.
pub fn route(layer: &ExpertLayer, logits: &[f64], bias: &[f64]) -> Result<Choices, ReferenceError> {
    layer.check()?;
    let (experts, k) = (layer.experts as usize, layer.top_k as usize);
    let tokens = logits.len() / experts;
    expected_length("the router's logits", tokens * experts, logits.len())?;
    let biases = if layer.routing.bias { experts } else { 0 };
    expected_length("the score bias", biases, bias.len())?;
    let wrong = |value: &f64| value.is_nan() || *value == f64::INFINITY;
    if let Some(at) = logits.iter().position(wrong) {
        let (token, expert) = (at / experts, at % experts);
        return Err(ReferenceError::Logit { token, expert, value: logits[at] });
    }
    if let Some(expert) = bias.iter().position(wrong) {
        return Err(ReferenceError::ScoreBias { expert, value: bias[expert] });
    }
    let mut choices = Choices::default();
    for logits in logits.chunks_exact(experts) {
        let scores = scores(layer.routing.score, logits);
        let mut preferences = preferences(logits, &scores, bias);
        if let Some(groups) = layer.routing.groups {
            keep_groups(groups, layer.routing.bias, &mut preferences);
        }
        let chosen = top_k(&preferences, k);
        let chosen_scores: Vec<f64> = chosen.iter().map(|expert| scores[*expert]).collect();
        let mut ids: Vec<i32> = chosen.iter().map(|expert| *expert as i32).collect();
        let mut weights = router_weights(&layer.routing, &chosen_scores);
        ids.resize(k, -1);
        weights.resize(k, 0.0);
        choices.ids.extend(ids);
        choices.weights.extend(weights);
    }
    Ok(choices)
}

/// The scores `[E]` of one token's logits `[E]`. Scores of [`Score::Softmax`] are all 0 if every logit
/// is -infinity.
pub fn scores(score: Score, logits: &[f64]) -> Vec<f64> {
    match score {
        Score::Softmax => {
            let largest = logits.iter().copied().fold(f64::MIN, f64::max);
            let powers: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.iter().map(|power| if sum == 0.0 { 0.0 } else { power / sum }).collect()
        }
        Score::Sigmoid => logits.iter().map(|logit| sigmoid(*logit)).collect(),
        Score::SqrtSoftplus => logits.iter().map(|logit| softplus(*logit).sqrt()).collect(),
        Score::Logits => logits.to_vec(),
    }
}

/// `ln(1 + exp(v))`, without overflow.
fn softplus(v: f64) -> f64 {
    v.max(0.0) + (-v.abs()).exp().ln_1p()
}

/// What the choice compares, `[E]`: scores plus bias. Without a bias the logits themselves: every
/// score grows with its logit, and logits have no rounding that could make two experts equal.
/// -infinity is out.
pub fn preferences(logits: &[f64], scores: &[f64], bias: &[f64]) -> Vec<f64> {
    if bias.is_empty() {
        return logits.to_vec();
    }
    let preference = |((logit, score), bias): ((&f64, &f64), &f64)| {
        if *logit == f64::NEG_INFINITY { f64::NEG_INFINITY } else { score + bias }
    };
    logits.iter().zip(scores).zip(bias).map(preference).collect()
}

/// Sets the preferences `[E]` of all but the best groups to -infinity. A group is as good as its best
/// expert; with a score bias, as the sum of its two best, or as its only one. Experts that are out do
/// not count. Of equal groups the first is better.
pub fn keep_groups(groups: ExpertGroups, bias: bool, preferences: &mut [f64]) {
    let size = preferences.len() / groups.count as usize;
    let best = if bias { 2 } else { 1 };
    let goodness = |group: &[f64]| {
        let chosen = top_k(group, best);
        let sum = chosen.iter().map(|expert| group[*expert]).reduce(|a, b| a + b);
        sum.unwrap_or(f64::NEG_INFINITY)
    };
    let goodness: Vec<f64> = preferences.chunks_exact(size).map(goodness).collect();
    for group in best_first(&goodness).into_iter().skip(groups.keep as usize) {
        preferences[group * size..][..size].fill(f64::NEG_INFINITY);
    }
}

/// The at most k experts of the largest preferences, best first; of equal ones the smaller number.
/// Experts that are out are not among them.
pub fn top_k(preferences: &[f64], k: usize) -> Vec<usize> {
    let mut order = best_first(preferences);
    order.retain(|expert| preferences[*expert] != f64::NEG_INFINITY);
    order.truncate(k);
    order
}

/// The router weights of a token's chosen experts, from their scores: divided by their sum plus
/// 1e-20 if the routing renormalises (DeepSeek-V3's constant), times the routing's scale.
pub fn router_weights(routing: &Routing, scores: &[f64]) -> Vec<f64> {
    let sum = if routing.renormalise { scores.iter().sum::<f64>() + 1e-20 } else { 1.0 };
    scores.iter().map(|score| score / sum * f64::from(routing.scale)).collect()
}

/// The places of values that are not NaN, the largest first; equal ones in their order.
fn best_first(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].partial_cmp(&values[*a]).unwrap_or(Ordering::Equal));
    order
}
