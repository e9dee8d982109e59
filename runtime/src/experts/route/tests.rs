//! Routing against the reference, and rows by hand.

use quantloom_dsl::experts::{ExpertGroups, ExpertLayer, Gate, Routing, Score};
use quantloom_dsl::reference::experts::route as reference;

use super::*;

fn layer(experts: u32, top_k: u32, routing: Routing) -> ExpertLayer {
    let (hidden, intermediate, gate) = (8, 8, Gate::Silu);
    ExpertLayer { experts, hidden, intermediate, top_k, routing, gate, weight_on_input: false }
}

fn routed(layer: &ExpertLayer, logits: &[f32], bias: &[f32]) -> (Vec<i32>, Vec<f32>) {
    let pairs = logits.len() / layer.experts as usize * layer.top_k as usize;
    let (mut ids, mut weights) = (vec![99; pairs], vec![f32::NAN; pairs]);
    route(layer, logits, bias, &mut ids, &mut weights).unwrap();
    (ids, weights)
}

/// A random stream (SplitMix64).
struct Stream(u64);

impl Stream {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// -1 to 1, in steps of which many are equal.
    fn value(&mut self) -> f32 {
        (self.below(65) as f32 - 32.0) / 32.0
    }
}

/// Scores and sums of both are the same formulas in f64, of at most 1024 terms, so that they differ
/// by 1024 units of f64 at most; one rounding to f32 remains: a relative difference of 2^-24, plus
/// less than 2^-40. A weight below the normal numbers of f32 has the unit of the smallest of them.
#[test]
fn choices_and_weights_are_those_of_the_reference() {
    let mut stream = Stream(3);
    let mut fewer = 0;
    for round in 0..3000 {
        let count = 1 + stream.below(8) as u32;
        let size = 1 + stream.below(20) as u32;
        let experts = count * size;
        let keep = 1 + stream.below(u64::from(count)) as u32;
        let groups = (round % 2 == 0).then_some(ExpertGroups { count, keep });
        let most = groups.map_or(experts, |groups| groups.keep * size).min(MOST_TOP_K);
        let routing = Routing {
            score: Score::ALL[stream.below(4) as usize],
            bias: stream.below(2) == 0,
            groups,
            renormalise: stream.below(2) == 0,
            scale: [1.0, 2.5, 0.1][stream.below(3) as usize],
        };
        let layer = layer(experts, 1 + stream.below(u64::from(most)) as u32, routing);
        let spread = [1.0, 20.0, 300.0][stream.below(3) as usize];
        let draw = |stream: &mut Stream| match stream.below(9) {
            0 => f32::NEG_INFINITY,
            _ => stream.value() * spread,
        };
        let logits: Vec<f32> = (0..4 * experts).map(|_| draw(&mut stream)).collect();
        let biases = if routing.bias { experts } else { 0 };
        let bias: Vec<f32> = (0..biases).map(|_| stream.value()).collect();
        let exact = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let expected = reference(&layer, &exact(&logits), &exact(&bias)).unwrap();
        let (ids, weights) = routed(&layer, &logits, &bias);
        assert_eq!(ids, expected.ids, "{layer}");
        fewer += ids.iter().filter(|id| **id == -1).count();
        for (ours, exact) in weights.iter().zip(&expected.weights) {
            let bound = exact.abs() * (2f64.powi(-24) + 2f64.powi(-40)) + 2f64.powi(-150);
            let error = (f64::from(*ours) - exact).abs();
            assert!(error <= bound, "{layer}: {ours} instead of {exact}");
        }
    }
    assert!(fewer > 100, "tokens that have fewer than k experts were drawn");
}

#[test]
fn rows_by_hand() {
    let softmax = Routing { renormalise: true, ..Routing::new(Score::Softmax) };
    // Of equal logits the smaller numbers, in their order.
    let (ids, weights) = routed(&layer(5, 3, softmax), &[1.0, 2.0, 1.0, 2.0, 1.0], &[]);
    assert_eq!(ids, [1, 3, 0]);
    assert!(weights[0] == weights[1] && weights[2] < weights[0]);
    // Logits that one unit of f32 tells apart, whose scores in f32 are equal.
    let close = [30.0, 30.000_002];
    assert_eq!(routed(&layer(2, 1, Routing::new(Score::Sigmoid)), &close, &[]).0, [1]);
    // A bias chooses and is no part of the weight.
    let biased = Routing { bias: true, ..Routing::new(Score::Logits) };
    let (ids, weights) = routed(&layer(3, 1, biased), &[0.5, 0.25, 0.0], &[-1.0, 0.0, 0.125]);
    assert_eq!((ids, weights), (vec![1], vec![0.25]));
    // Groups: with a bias the sum of the two best counts, without one the best alone.
    let in_groups = |bias| Routing {
        bias,
        groups: Some(ExpertGroups { count: 2, keep: 1 }),
        ..Routing::new(Score::Logits)
    };
    let logits = [4.0, 0.0, 3.0, 2.0];
    assert_eq!(routed(&layer(4, 2, in_groups(false)), &logits, &[]).0, [0, 1]);
    assert_eq!(routed(&layer(4, 2, in_groups(true)), &logits, &[0.0; 4]).0, [2, 3]);
    // Switched off: all but one.
    let off = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    let (ids, weights) = routed(&layer(3, 2, softmax), &off, &[]);
    assert_eq!((ids, weights), (vec![1, -1], vec![1.0, 0.0]));
    // No tokens.
    assert_eq!(routed(&layer(3, 2, softmax), &[], &[]).0, [0i32; 0]);
}

#[test]
fn what_is_no_number_is_refused_with_its_place() {
    let routing = Routing { bias: true, ..Routing::new(Score::Sigmoid) };
    let layer = layer(3, 1, routing);
    let error = |logits: &[f32], bias: &[f32]| {
        let (mut ids, mut weights) = ([0; 2], [0.0; 2]);
        route(&layer, logits, bias, &mut ids, &mut weights).unwrap_err().to_string()
    };
    let bias = [0.0; 3];
    let mut logits = [0.0; 6];
    logits[4] = f32::NAN;
    assert_eq!(error(&logits, &bias), "logits[1, 1] is NaN; routing needs numbers");
    logits[4] = f32::INFINITY;
    assert_eq!(error(&logits, &bias), "logits[1, 1] is inf; routing needs numbers");
    let wrong = error(&[0.0; 6], &[0.0, f32::NAN, 0.0]);
    assert_eq!(wrong, "the score bias[0, 1] is NaN; routing needs numbers");
    assert!(matches!(check_bias(&layer, &[]), Err(ExpertError::NoBias)));
    assert!(matches!(check_bias(&layer, &[0.0; 4]), Err(ExpertError::Length { .. })));
    assert!(error(&[0.0; 5], &bias).contains("has 5 values, expected 3"));
}
