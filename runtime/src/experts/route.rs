//! Routing on the host: from the router's logits to the experts of each token and their weights.
//!
//! In: logits [M, E] in `f32`. Out: ids [M, k] and router weights [M, k] in `f32`. The meaning is that
//! of [`quantloom_dsl::reference::experts::route`]. Scores and sums are in `f64`: a router weight is
//! then within one unit of `f32` of the exact one, whatever E is, and a choice between preferences
//! with a bias is decided by the same numbers as the reference's. Nothing is allocated: a layer has at
//! most [`MOST_EXPERTS`] experts, whose scores fit the stack.

use quantloom_dsl::experts::{ExpertGroups, ExpertLayer, MOST_EXPERTS, MOST_TOP_K, Score};

use super::error::ExpertError;

/// Numbers of one token, `[E]`.
type PerExpert = [f64; MOST_EXPERTS as usize];

/// The experts [M, k] of logits [M, E] and their router weights, best first. `bias` is the score bias
/// `[E]`, empty if the routing has none. Where fewer than k experts are left, the last ids are -1 with
/// weight 0.
///
/// # Errors
/// [`ExpertError::Layer`], [`ExpertError::Length`]; [`ExpertError::NotFinite`] for a logit that is NaN
/// or +infinity.
pub fn route(
    layer: &ExpertLayer,
    logits: &[f32],
    bias: &[f32],
    ids: &mut [i32],
    weights: &mut [f32],
) -> Result<(), ExpertError> {
    layer.check()?;
    let (experts, k) = (layer.experts as usize, layer.top_k as usize);
    let tokens = logits.len() / experts;
    same_length("the router's logits", tokens * experts, logits.len())?;
    same_length("the ids of experts", tokens * k, ids.len())?;
    same_length("the router weights", tokens * k, weights.len())?;
    check_bias(layer, bias)?;
    if let Some(at) = logits.iter().position(is_refused) {
        let (token, expert) = (at / experts, at % experts);
        return Err(ExpertError::NotFinite { what: "logits", token, expert, value: logits[at] });
    }
    let rows = logits.chunks_exact(experts);
    for ((logits, ids), weights) in
        rows.zip(ids.chunks_exact_mut(k)).zip(weights.chunks_exact_mut(k))
    {
        route_token(layer, logits, bias, ids, weights);
    }
    Ok(())
}

/// Checks the score bias `[E]`, which is there if the routing has one.
///
/// # Errors
/// [`ExpertError::NoBias`], [`ExpertError::Length`]; [`ExpertError::NotFinite`] for a bias that is NaN
/// or +infinity.
pub fn check_bias(layer: &ExpertLayer, bias: &[f32]) -> Result<(), ExpertError> {
    if layer.routing.bias && bias.is_empty() {
        return Err(ExpertError::NoBias);
    }
    let expected = if layer.routing.bias { layer.experts as usize } else { 0 };
    same_length("the score bias", expected, bias.len())?;
    match bias.iter().position(is_refused) {
        None => Ok(()),
        Some(expert) => {
            let value = bias[expert];
            Err(ExpertError::NotFinite { what: "the score bias", token: 0, expert, value })
        }
    }
}

fn is_refused(value: &f32) -> bool {
    value.is_nan() || *value == f32::INFINITY
}

/// Refuses an input of another length.
pub(crate) fn same_length(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), ExpertError> {
    if expected == found {
        return Ok(());
    }
    Err(ExpertError::Length { what, expected: expected as u64, found: found as u64 })
}

/// One token: logits `[E]` to ids `[k]` and weights `[k]`.
fn route_token(
    layer: &ExpertLayer,
    logits: &[f32],
    bias: &[f32],
    ids: &mut [i32],
    weights: &mut [f32],
) {
    let routing = &layer.routing;
    let (mut scores, mut preferences): (PerExpert, PerExpert) =
        ([0.0; MOST_EXPERTS as usize], [0.0; MOST_EXPERTS as usize]);
    let scores = &mut scores[..logits.len()];
    let preferences = &mut preferences[..logits.len()];
    score(routing.score, logits, scores);
    for (expert, (preference, logit)) in preferences.iter_mut().zip(logits).enumerate() {
        // Without a bias logits are compared: every score grows with its logit, and no rounding
        // decides. An expert with a logit of -infinity is out, whatever its bias.
        *preference = match bias.get(expert) {
            Some(bias) if *logit != f32::NEG_INFINITY => scores[expert] + f64::from(*bias),
            _ => f64::from(*logit),
        };
    }
    if let Some(groups) = routing.groups {
        keep_groups(groups, routing.bias, preferences);
    }
    let mut chosen = [0.0; MOST_TOP_K as usize];
    let chosen = &mut chosen[..ids.len()];
    let mut found = 0;
    while let Some(expert) = (found < ids.len()).then(|| largest(preferences)).flatten() {
        preferences[expert] = f64::NEG_INFINITY;
        ids[found] = expert as i32;
        chosen[found] = scores[expert];
        found += 1;
    }
    let sum = if routing.renormalise { chosen[..found].iter().sum::<f64>() + 1e-20 } else { 1.0 };
    for (weight, score) in weights.iter_mut().zip(&chosen[..found]) {
        *weight = (score / sum * f64::from(routing.scale)) as f32;
    }
    ids[found..].fill(-1);
    weights[found..].fill(0.0);
}

/// The scores `[E]` of logits `[E]`: see [`Score`]. Scores of a softmax are all 0 if every logit is
/// -infinity.
fn score(score: Score, logits: &[f32], scores: &mut [f64]) {
    for (score, logit) in scores.iter_mut().zip(logits) {
        *score = f64::from(*logit);
    }
    match score {
        Score::Softmax => {
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let sum: f64 = scores.iter().sum();
            let factor = |score: &mut f64| *score = if sum == 0.0 { 0.0 } else { *score / sum };
            scores.iter_mut().for_each(factor);
        }
        Score::Sigmoid => {
            scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp()));
        }
        Score::SqrtSoftplus => {
            let softplus = |v: f64| v.max(0.0) + (-v.abs()).exp().ln_1p();
            scores.iter_mut().for_each(|score| *score = softplus(*score).sqrt());
        }
        Score::Logits => {}
    }
}

/// Sets the preferences `[E]` of all but the best expert groups to -infinity. A group is as good as its
/// best expert; with a score bias, as the sum of its two best, or as its only one.
fn keep_groups(groups: ExpertGroups, bias: bool, preferences: &mut [f64]) {
    let size = preferences.len() / groups.count as usize;
    let mut goodness: PerExpert = [f64::NEG_INFINITY; MOST_EXPERTS as usize];
    let goodness = &mut goodness[..groups.count as usize];
    for (goodness, group) in goodness.iter_mut().zip(preferences.chunks_exact(size)) {
        let Some(first) = largest(group) else { continue };
        let mut second = f64::NEG_INFINITY;
        for (expert, preference) in group.iter().enumerate() {
            if expert != first && *preference > second {
                second = *preference;
            }
        }
        let both = bias && second != f64::NEG_INFINITY;
        *goodness = if both { group[first] + second } else { group[first] };
    }
    let mut kept = [false; MOST_EXPERTS as usize];
    for _ in 0..groups.keep {
        let Some(group) = largest(goodness) else { break };
        goodness[group] = f64::NEG_INFINITY;
        kept[group] = true;
    }
    for (group, kept) in preferences.chunks_exact_mut(size).zip(&kept) {
        if !kept {
            group.fill(f64::NEG_INFINITY);
        }
    }
}

/// The place of the largest value, the first of equal ones; `None` if all are -infinity.
fn largest(values: &[f64]) -> Option<usize> {
    let mut best = (None, f64::NEG_INFINITY);
    for (at, value) in values.iter().enumerate() {
        if *value > best.1 {
            best = (Some(at), *value);
        }
    }
    best.0
}

#[cfg(test)]
mod tests;
