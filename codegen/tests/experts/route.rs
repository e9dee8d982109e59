//! Routing against the reference: the same experts, their weights within rounding.

use quantloom_codegen::ir::Kernel;
use quantloom_codegen::schedule::experts::exponential::EXP_UNITS;
use quantloom_codegen::schedule::experts::logarithm::LN_UNITS;
use quantloom_codegen::schedule::experts::reciprocal::RECIPROCAL_UNITS;
use quantloom_codegen::schedule::experts::{RouteProblem, route};
use quantloom_codegen::target::target;
use quantloom_dsl::experts::{ExpertLayer, Routing, Score};
use quantloom_dsl::reference::experts;

use super::{Launched, TARGETS, UNIT, off, random};
use quantloom_tests::sweep::Share;

fn layer(text: &str) -> ExpertLayer {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A routing of each clause, with sizes that fill threads and that do not.
const LAYERS: [&str; 16] = [
    "8 experts of 1 x 1, top 2, softmax, silu",
    "8 experts of 1 x 1, top 8, softmax renormalised, silu",
    "1 experts of 1 x 1, top 1, softmax, silu",
    "128 experts of 1 x 1, top 8, softmax renormalised, silu",
    "128 experts of 1 x 1, top 8, sigmoid with bias renormalised times 2.5, silu",
    "160 experts of 1 x 1, top 6, softmax in 3 of 8 groups times 16, silu",
    "256 experts of 1 x 1, top 8, sigmoid with bias in 4 of 8 groups renormalised times 2.5, silu",
    "384 experts of 1 x 1, top 8, sigmoid with bias renormalised times 2.827, silu",
    "60 experts of 1 x 1, top 4, softmax, silu",
    "16 experts of 1 x 1, top 1, sigmoid, silu",
    "41 experts of 1 x 1, top 5, sqrtsoftplus with bias renormalised times 1.5, silu",
    "41 experts of 1 x 1, top 5, sqrtsoftplus, silu",
    "33 experts of 1 x 1, top 32, logits, silu",
    "1024 experts of 1 x 1, top 32, sigmoid, silu",
    "12 experts of 1 x 1, top 3, logits with bias in 3 of 12 groups, silu",
    "300 experts of 1 x 1, top 7, logits renormalised, silu",
];

const TOKENS: usize = 7;

/// Logits in steps of 1/4, so that some are equal; the second token has experts that are switched off,
/// the third too few that are not.
fn logits(layer: &ExpertLayer, seed: u64) -> Vec<f32> {
    let mut random = random(seed);
    let experts = layer.experts;
    let mut logit = |at: u32| {
        let value = random(64) as f32 / 4.0 - 8.0;
        match at / experts {
            1 if random(3) == 0 => f32::NEG_INFINITY,
            2 if !at.is_multiple_of(experts) => f32::NEG_INFINITY,
            3 => value * 10.0,
            4 => value + random(1 << 20) as f32 / (1 << 22) as f32,
            // Logits that are divided by their sum are positive.
            _ if layer.routing.score == Score::Logits => value.abs() + 0.25,
            _ => value,
        }
    };
    (0..experts * TOKENS as u32).map(&mut logit).collect()
}

/// The largest relative error of a score.
///
/// - softmax: of a power, exp's own and that of `l - max`, which rounds once to a multiple of 2^-24 of
///   itself: EXP + |l - max| units; the sum of powers has the mean of their errors, below EXP + 1 (a power
///   of argument -a has weight exp(-a), and a exp(-a) < 1/2 a term; the largest has none), and one rounding
///   a step, E / 4 + 2; the quotient one.
/// - sigmoid: e or 1 times the reciprocal of 1 + e: EXP, RECIPROCAL, the sum and the product round once each.
/// - sqrtsoftplus: ln(1 + t) has [`LN_UNITS`] and that of t, EXP; the sum one, halved by the root, which
///   has one.
/// - logits are exact.
fn score_units(routing: &Routing, logit: f64, largest: f64, experts: u32) -> f64 {
    match routing.score {
        Score::Softmax => {
            let steps = f64::from(experts) / 4.0 + 2.0;
            2.0 * EXP_UNITS + (largest - logit) + f64::from(experts) / 2.0 + steps + 2.0
        }
        Score::Sigmoid => EXP_UNITS + RECIPROCAL_UNITS + 2.0,
        Score::SqrtSoftplus => (LN_UNITS + EXP_UNITS + 1.0) / 2.0 + 1.0,
        Score::Logits => 0.0,
    }
}

/// Runs the kernel and compares.
///
/// # Errors
/// The first choice or weight that differs, or the simulator's fault.
pub(super) fn check(
    name: &str,
    layer: &ExpertLayer,
    seed: u64,
    change: impl Fn(&mut Kernel),
) -> Result<(), String> {
    let (experts, k) = (layer.experts as usize, layer.top_k as usize);
    let logits = logits(layer, seed);
    let mut random = random(seed + 1);
    let count = if layer.routing.bias { experts } else { 0 };
    let bias: Vec<f32> = (0..count).map(|_| random(1 << 12) as f32 / 8192.0 - 0.25).collect();
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
    let expected = experts::route(layer, &wide(&logits), &wide(&bias)).unwrap();
    let (target, routing, top_k) = (target(name).unwrap(), layer.routing, layer.top_k);
    let mut kernel = route(&RouteProblem { target, routing, experts: layer.experts, top_k });
    change(&mut kernel);
    let mut launched =
        Launched::new(TOKENS, layer.top_k).floats("logits", &logits).floats("score_bias", &bias);
    launched.run(kernel)?;
    let ids: Vec<i32> = launched.found("routed_ids").into_iter().map(u32::cast_signed).collect();
    let weights = launched.found_floats("routed_weights");
    for token in 0..TOKENS {
        let of = token * k..(token + 1) * k;
        let row = wide(&logits[token * experts..][..experts]);
        let largest = row.iter().copied().fold(f64::MIN, f64::max);
        let units = |expert: i32| {
            let logit = row[expert as usize];
            score_units(&layer.routing, logit, largest, layer.experts)
        };
        let (ids, weights) = (&ids[of.clone()], &weights[of.clone()]);
        let (wanted, exact) = (&expected.ids[of.clone()], &expected.weights[of]);
        if ids != wanted {
            let differs = || Err(format!("token {token}: {ids:?}, expected {wanted:?}"));
            if !layer.routing.bias
                || ids.iter().chain(wanted).any(|id| !(0..experts as i32).contains(id))
            {
                return differs();
            }
            // With a bias, rounding may order scores that almost agree.
            let scores = experts::scores(layer.routing.score, &row);
            let close =
                ids.iter().zip(wanted).filter(|(id, wanted)| id != wanted).all(|(id, other)| {
                    let [one, other] = [*id, *other].map(|id| {
                        let place = id as usize;
                        (scores[place] + f64::from(bias[place]), (units(id) + 2.0) * UNIT)
                    });
                    (one.0 - other.0).abs() <= 2.0 * (one.1 + other.1)
                });
            if !close {
                return differs();
            }
            continue;
        }
        for ((id, weight), exact) in ids.iter().zip(weights).zip(exact) {
            // A sum of k scores, its quotient and the scale.
            let chosen = wanted.iter().filter(|id| **id >= 0);
            let most = chosen.map(|id| units(*id)).fold(0.0, f64::max);
            let sum = if layer.routing.renormalise { most + f64::from(layer.top_k) } else { 0.0 };
            let bound = (most + sum + 3.0) * UNIT * exact.abs() * 1.001 + 2f64.powi(-126);
            if off((*weight).into(), *exact, bound) {
                return Err(format!(
                    "token {token}, expert {id}: {weight}, expected {exact} +- {bound:e}"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn experts_and_weights_are_the_references() {
    let share = Share::new(4, 1);
    for (turn, name) in TARGETS.into_iter().enumerate() {
        for (number, text) in LAYERS.into_iter().enumerate() {
            if !share.takes(turn * LAYERS.len() + number) {
                continue;
            }
            check(name, &layer(text), (turn * 31 + number) as u64, |_| {})
                .unwrap_or_else(|wrong| panic!("{name}: {text}: {wrong}"));
        }
    }
}

/// A NaN makes the weights of its own token NaN, and of no other.
#[test]
fn a_logit_that_is_no_number_stays_in_its_token() {
    let experts = 60;
    for name in TARGETS {
        for text in [
            "60 experts of 1 x 1, top 4, softmax renormalised, silu",
            "60 experts of 1 x 1, top 4, sigmoid with bias in 3 of 6 groups, silu",
        ] {
            let layer = layer(text);
            let mut logits = logits(&layer, 3);
            for (token, expert) in [(0, 59), (5, 0)] {
                logits[token * experts + expert] = f32::NAN;
            }
            let (target, routing) = (target(name).unwrap(), layer.routing);
            let problem = RouteProblem { target, routing, experts: 60, top_k: 4 };
            let bias = vec![0.0; experts];
            let mut launched =
                Launched::new(TOKENS, 4).floats("logits", &logits).floats("score_bias", &bias);
            launched.run(route(&problem)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            let (ids, weights) =
                (launched.found("routed_ids"), launched.found_floats("routed_weights"));
            for (pair, weight) in weights.into_iter().enumerate() {
                assert_eq!(weight.is_nan(), [0, 5].contains(&(pair / 4)), "{name}: pair {pair}");
                assert!(ids[pair] < 60 || pair / 4 == 2 && ids[pair] == u32::MAX, "{name}");
            }
        }
    }
}
