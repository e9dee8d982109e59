//! Routing against rows that were worked out by hand.

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::reference::ReferenceError;
use quantloom_dsl::reference::experts::{Choices, route};

use super::described;

const OUT: f64 = f64::NEG_INFINITY;

/// `E experts, top k, ROUTING`.
fn layer(experts: usize, top_k: usize, routing: &str) -> ExpertLayer {
    described(&format!("{experts} experts of 2 x 2, top {top_k}, {routing}, silu"))
}

/// The ids and weights of one token.
fn routed(top_k: usize, routing: &str, logits: &[f64], bias: &[f64]) -> (Vec<i32>, Vec<f64>) {
    let layer = layer(logits.len(), top_k, routing);
    let Choices { ids, weights } = route(&layer, logits, bias).unwrap();
    (ids, weights)
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let bound = 8.0 * f64::EPSILON * expected.abs();
        assert!((found - expected).abs() <= bound, "{found}, expected {expected}");
    }
}

/// Logits that make softmax the numbers of a set of weights 1 : 2 : 4 : 8.
fn powers() -> Vec<f64> {
    [1.0, 4.0, 2.0, 8.0].map(f64::ln).to_vec()
}

#[test]
fn scores_are_their_formulas() {
    let (ids, weights) = routed(2, "softmax", &powers(), &[]);
    assert_eq!(ids, [3, 1]);
    close(&weights, &[8.0 / 15.0, 4.0 / 15.0]);
    let (ids, weights) = routed(2, "softmax renormalised", &powers(), &[]);
    assert_eq!(ids, [3, 1]);
    close(&weights, &[8.0 / 12.0, 4.0 / 12.0]);
    let (_, weights) = routed(2, "softmax renormalised times 2.5", &powers(), &[]);
    close(&weights, &[2.5 * 8.0 / 12.0, 2.5 * 4.0 / 12.0]);
    let (_, weights) = routed(2, "softmax times 16", &powers(), &[]);
    close(&weights, &[16.0 * 8.0 / 15.0, 16.0 * 4.0 / 15.0]);
    // 1 / (1 + 1/8) and 1 / (1 + 1/4).
    let (ids, weights) = routed(2, "sigmoid", &powers(), &[]);
    assert_eq!(ids, [3, 1]);
    close(&weights, &[8.0 / 9.0, 4.0 / 5.0]);
    // sqrt(ln(1 + 8)), sqrt(ln(1 + 4)).
    let (ids, weights) = routed(2, "sqrtsoftplus", &powers(), &[]);
    assert_eq!(ids, [3, 1]);
    close(&weights, &[9f64.ln().sqrt(), 5f64.ln().sqrt()]);
    let (ids, weights) = routed(3, "logits", &[-1.0, 3.0, -2.0, 0.5], &[]);
    assert_eq!((ids, weights), (vec![1, 3, 0], vec![3.0, 0.5, -1.0]));
    // Neither end of the exponential overflows.
    let (ids, weights) = routed(2, "softmax", &[-800.0, 800.0, 800.0], &[]);
    assert_eq!((ids, weights), (vec![1, 2], vec![0.5, 0.5]));
    let (_, weights) = routed(1, "sqrtsoftplus", &[900.0, -900.0], &[]);
    assert_eq!(weights, [30.0]);
}

/// Of equal logits the smaller number; logits are compared even where their scores round to equal
/// numbers.
#[test]
fn ties_are_to_the_smaller_number() {
    assert_eq!(routed(3, "softmax", &[1.0, 2.0, 1.0, 2.0, 1.0], &[]).0, [1, 3, 0]);
    assert_eq!(routed(2, "softmax", &[0.0, -0.0, 0.0], &[]).0, [0, 1]);
    assert_eq!(routed(2, "sigmoid", &[40.0, 50.0, 60.0], &[]).0, [2, 1]);
    let biased = routed(2, "sigmoid with bias", &[0.0, 0.0, 0.0], &[0.0, 1.0, 1.0]);
    assert_eq!(biased.0, [1, 2]);
    // Equal groups: the first.
    let groups = "softmax in 1 of 3 groups";
    assert_eq!(routed(2, groups, &[0.0, 1.0, 3.0, 2.0, 2.5, 3.0], &[]).0, [2, 3]);
}

/// The bias decides the choice, and is in no weight.
#[test]
fn a_bias_chooses_and_weighs_nothing() {
    let logits = powers(); // sigmoid: 1/2, 4/5, 2/3, 8/9
    let bias = [0.5, -0.5, 0.0, -0.25]; // choice: 1, 0.3, 0.667, 0.639
    let (ids, weights) = routed(2, "sigmoid with bias", &logits, &bias);
    assert_eq!(ids, [0, 2]);
    close(&weights, &[1.0 / 2.0, 2.0 / 3.0]);
    let (_, weights) = routed(2, "sigmoid with bias renormalised", &logits, &bias);
    close(&weights, &[3.0 / 7.0, 4.0 / 7.0]);
    let (_, weights) = routed(2, "sigmoid with bias renormalised times 3", &logits, &bias);
    close(&weights, &[9.0 / 7.0, 12.0 / 7.0]);
}

/// Experts of other groups are out, also where every preference that is left is negative: software
/// that sets them to 0 would choose experts 0 and 1 here.
#[test]
fn negative_preferences_stay_in_their_groups() {
    let logits = [0.0; 6];
    let bias = [-3.0, -3.5, -2.0, -2.5, -9.0, -9.0]; // two best: -5.5, -3.5, -17
    let (ids, weights) = routed(2, "sigmoid with bias in 1 of 3 groups", &logits, &bias);
    assert_eq!((ids, weights), (vec![2, 3], vec![0.5, 0.5]));
}

#[test]
fn groups_are_as_good_as_their_best() {
    // Best experts: 5, 4, 3. Sums of the two best: 5, 7.5, 6 (logits are scores here).
    let logits = [5.0, 0.0, 0.0, 3.5, 4.0, 0.0, 3.0, 3.0, 0.0];
    let found = routed(3, "logits in 1 of 3 groups", &logits, &[]);
    assert_eq!(found.0, [0, 1, 2]);
    let found = routed(3, "logits with bias in 1 of 3 groups", &logits, &[0.0; 9]);
    assert_eq!(found.0, [4, 3, 5]);
    // Sums of the two best: 5, 7.5, 6.4; a third expert does not count, which would make 9.6.
    let logits = [5.0, 0.0, 0.0, 3.5, 4.0, 0.0, 3.2, 3.2, 3.2];
    let found = routed(2, "logits with bias in 1 of 3 groups", &logits, &[0.0; 9]);
    assert_eq!(found.0, [4, 3]);
    let found = routed(4, "logits with bias in 2 of 3 groups", &logits, &[0.0; 9]);
    assert_eq!(found.0, [4, 3, 6, 7]);
}

/// One group is no restriction, and neither are all groups; a group may be one expert.
#[test]
fn groups_of_one() {
    let logits = [0.25, 3.0, -1.0, 2.0];
    let bias = [4.0, 0.0, 0.0, 0.0];
    for groups in ["", " in 1 of 1 groups", " in 2 of 2 groups", " in 4 of 4 groups"] {
        assert_eq!(routed(2, &format!("softmax{groups}"), &logits, &[]).0, [1, 3], "{groups}");
        let routing = format!("sigmoid with bias{groups}");
        assert_eq!(routed(2, &routing, &logits, &bias).0, [0, 1], "{groups}");
    }
    assert_eq!(routed(2, "sigmoid with bias in 2 of 4 groups", &logits, &bias).0, [0, 1]);
}

#[test]
fn all_experts_can_be_chosen() {
    let (ids, weights) = routed(4, "softmax", &powers(), &[]);
    assert_eq!(ids, [3, 1, 2, 0]);
    close(&weights, &[8.0 / 15.0, 4.0 / 15.0, 2.0 / 15.0, 1.0 / 15.0]);
    assert_eq!(routed(1, "sigmoid", &[0.0], &[]), (vec![0], vec![0.5]));
}

/// -infinity switches an expert off: never chosen, with a bias neither, even if nothing else is left.
#[test]
fn minus_infinity_is_switched_off() {
    let none = (vec![-1, -1], vec![0.0, 0.0]);
    for routing in ["softmax", "sigmoid", "sqrtsoftplus", "logits", "softmax renormalised"] {
        assert_eq!(routed(2, routing, &[OUT; 3], &[]), none, "{routing}");
        let (ids, weights) = routed(2, routing, &[OUT, 2.0, OUT], &[]);
        assert_eq!((ids, weights[1]), (vec![1, -1], 0.0), "{routing}");
        assert!(weights[0] > 0.0, "{routing}");
    }
    let (ids, weights) = routed(2, "softmax", &[OUT, 1f64.ln(), 3f64.ln()], &[]);
    assert_eq!(ids, [2, 1]);
    close(&weights, &[0.75, 0.25]);
    let bias = [9.0, 0.0, 0.0];
    assert_eq!(routed(2, "sigmoid with bias", &[OUT, 0.0, 1.0], &bias).0, [2, 1]);
    // A bias of -infinity switches an expert off too.
    assert_eq!(routed(2, "sigmoid with bias", &[0.0, 0.0], &[OUT, -1.0]).0, [1, -1]);
    // A group with one expert left is as good as that one; without any it is the worst.
    let routing = "sigmoid with bias in 1 of 2 groups";
    assert_eq!(routed(2, routing, &[OUT, 0.0, 0.0, 0.0], &[0.0, 9.0, 0.0, 0.0]).0, [1, -1]);
    assert_eq!(routed(2, routing, &[OUT, OUT, 0.0, 0.0], &[9.0, 9.0, -8.0, -9.0]).0, [2, 3]);
}

/// Renormalised weights of scores far below 1e-20 do not sum to 1: 1e-20 is in the sum.
#[test]
fn renormalisation_adds_1e_20() {
    let tiny = 1e-20f64.ln();
    let (ids, weights) = routed(2, "sigmoid renormalised", &[tiny, tiny, -100.0], &[]);
    assert_eq!(ids, [0, 1]);
    // sigmoid(ln t) is t / (1 + t), 1e-20 up to the rounding of t's logarithm, 46 * 2^-53.
    for weight in weights {
        assert!((weight - 1.0 / 3.0).abs() <= 64.0 * f64::EPSILON, "{weight}");
    }
    let (_, weights) = routed(1, "softmax renormalised", &[0.0, -1.0], &[]);
    assert_eq!(weights, [1.0]);
}

#[test]
fn tokens_are_independent() {
    let layer = layer(4, 2, "softmax");
    let logits = [powers(), vec![3.0, 0.0, 2.0, 1.0], powers()].concat();
    let choices = route(&layer, &logits, &[]).unwrap();
    assert_eq!(choices.ids, [3, 1, 0, 2, 3, 1]);
    assert_eq!(choices.weights[..2], choices.weights[4..]);
    assert_eq!(route(&layer, &[], &[]), Ok(Choices::default()));
}

#[test]
fn what_is_no_number_is_refused() {
    let plain = layer(2, 1, "softmax");
    for value in [f64::NAN, f64::INFINITY] {
        match route(&plain, &[0.0, 0.0, 0.0, value], &[]) {
            Err(ReferenceError::Logit { token: 1, expert: 1, .. }) => {}
            found => panic!("{found:?}"),
        }
        let biased = layer(2, 1, "sigmoid with bias");
        match route(&biased, &[0.0, 0.0], &[value, 0.0]) {
            Err(ReferenceError::ScoreBias { expert: 0, .. }) => {}
            found => panic!("{found:?}"),
        }
    }
    let error = route(&plain, &[f64::NAN, 0.0], &[]).unwrap_err().to_string();
    assert_eq!(error, "the logit of token 0, expert 0 is NaN: it is finite or -infinity");
    let length = |error: Result<Choices, ReferenceError>| error.unwrap_err().to_string();
    let text = length(route(&plain, &[0.0; 3], &[]));
    assert_eq!(text, "the router's logits has 3 values, expected 2");
    let text = length(route(&plain, &[0.0; 2], &[0.0; 2]));
    assert_eq!(text, "the score bias has 2 values, expected 0");
    let invalid = ExpertLayer { top_k: 0, ..plain };
    assert!(matches!(route(&invalid, &[], &[]), Err(ReferenceError::ExpertLayer(_))));
}
