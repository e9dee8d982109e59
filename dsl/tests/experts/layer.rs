//! The layer's steps on matrices that are small enough to follow.

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{BF16, F32, FloatFormat};
use quantloom_dsl::reference::experts::{
    Choices, ExpertWeights, LayerReference, Matrix, ProductInput, Read,
};
use quantloom_dsl::reference::{ReferenceError, StaticInput, quantise_activation};
use quantloom_dsl::{Scheme, parse};

use super::described;

fn matrix(values: &[f64]) -> Matrix {
    Matrix { values: values.to_vec(), bias: Vec::new() }
}

/// One expert of H = 2, I = 1, with one shard.
fn expert(up: [f64; 2], down: [f64; 2]) -> ExpertWeights {
    ExpertWeights { gate_up: vec![matrix(&up)], down: matrix(&down) }
}

fn reference<'a>(
    layer: &'a ExpertLayer,
    weights: &'a [ExpertWeights],
    dtype: FloatFormat,
) -> LayerReference<'a> {
    let (gate_up_input, down_input) = (ProductInput::Exact, ProductInput::Exact);
    LayerReference { layer, weights, map: None, gate_up_input, down_input, dtype }
}

fn chosen(ids: &[i32], weights: &[f64]) -> Choices {
    Choices { ids: ids.to_vec(), weights: weights.to_vec() }
}

/// For x = [2, 3]: h = 4 and 9, parts [4, 40], [9, -9], and [5 x 5, 25] of the third.
fn three() -> [ExpertWeights; 3] {
    [
        expert([1.0, 0.0], [1.0, 10.0]),
        expert([0.0, 1.0], [1.0, -1.0]),
        expert([1.0, 1.0], [1.0, 1.0]),
    ]
}

const TOP_2: &str = "3 experts of 2 x 1, top 2, softmax, ungated relu2";
const TOP_1: &str = "3 experts of 2 x 1, top 1, sigmoid, ungated relu2";

#[test]
fn a_token_by_hand() {
    let (layer, weights) = (described(TOP_2), three());
    let reference = reference(&layer, &weights, F32);
    let x = [2.0, 3.0];
    let forward = |choices: &Choices| reference.forward(&x, choices, &[]).unwrap();
    assert_eq!(forward(&chosen(&[0, 1], &[0.5, 0.25])), [2.0 + 2.25, 20.0 - 2.25]);
    assert_eq!(forward(&chosen(&[1, 0], &[0.5, 0.25])), [4.5 + 1.0, -4.5 + 10.0]);
    // An expert that is chosen twice counts twice.
    assert_eq!(forward(&chosen(&[1, 1], &[0.5, 0.25])), [6.75, -6.75]);
    // The steps, one after the other.
    let pairs = reference.pairs(1, &chosen(&[2, 0], &[0.5, 0.25])).unwrap();
    let z = reference.gate_up(&x, &pairs).unwrap();
    assert_eq!(z, [5.0, 2.0]);
    let h = reference.gate(&z);
    assert_eq!(h, [25.0, 4.0]);
    let parts = reference.down(&h, &pairs).unwrap();
    assert_eq!(parts, [25.0, 25.0, 4.0, 40.0]);
    let shared = [0.5, -0.5];
    assert_eq!(reference.combine(&parts, &pairs, 1, &shared), [14.0, 22.0]);
}

/// The first bias is before the gate; the second is weighted like the product.
#[test]
fn biases_are_added_to_products() {
    let layer = described(TOP_1);
    let mut weights = three();
    weights[0].gate_up[0].bias = vec![-1.0];
    weights[0].down.bias = vec![2.0, 4.0];
    let reference = reference(&layer, &weights, F32);
    let y = reference.forward(&[2.0, 3.0], &chosen(&[0], &[0.5]), &[]).unwrap();
    assert_eq!(y, [0.5 * (1.0 + 2.0), 0.5 * (10.0 + 4.0)]);
}

/// The first shard is the gate, the second up: silu(1.5) * -0.75, and its neighbour the other way
/// round; each row of z is of its own row of the matrices.
#[test]
fn shards_are_gate_then_up() {
    let layer = described("1 experts of 2 x 2, top 1, softmax, silu");
    let gate = matrix(&[1.5, 0.0, 0.0, -0.75]);
    let up = matrix(&[-0.75, 0.0, 0.0, 1.5]);
    let down = matrix(&[1.0, 0.0, 0.0, 1.0]);
    let weights = [ExpertWeights { gate_up: vec![gate, up], down }];
    let reference = reference(&layer, &weights, F32);
    let pairs = reference.pairs(1, &chosen(&[0], &[1.0])).unwrap();
    let z = reference.gate_up(&[1.0, 1.0], &pairs).unwrap();
    assert_eq!(z, [1.5, -0.75, -0.75, 1.5]);
    let h = reference.gate(&z);
    assert!((h[0] - -0.919771285717849).abs() <= 1e-15, "{h:?}");
    // silu(-0.75) * 1.5, by Python.
    assert!((h[1] - -0.3609239634276829).abs() <= 1e-15, "{h:?}");
}

/// No expert, by id or by map: `shared` or 0, and nothing of an expert that is NaN throughout.
#[test]
fn a_choice_may_be_no_expert() {
    let layer = described(TOP_2);
    let mut weights = three();
    weights[2] = expert([f64::NAN; 2], [f64::NAN; 2]);
    let here = reference(&layer, &weights, F32);
    let x = [2.0, 3.0, 2.0, 3.0];
    let choices = chosen(&[-1, 0, -1, -7], &[f64::NAN, 0.5, 1.0, 1.0]);
    assert_eq!(here.forward(&x, &choices, &[]).unwrap(), [2.0, 20.0, 0.0, 0.0]);
    let shared = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(here.forward(&x, &choices, &shared).unwrap(), [3.0, 22.0, 3.0, 4.0]);

    // Two of three experts are here, in another order; the third is elsewhere.
    let weights = three();
    let local = [weights[1].clone(), weights[0].clone()];
    let map = [1, 0, -1];
    let mapped = LayerReference { map: Some(&map), ..reference(&layer, &local, F32) };
    let choices = chosen(&[0, 2, 2, 1], &[1.0, 1.0, 1.0, 1.0]);
    assert_eq!(mapped.forward(&x, &choices, &[]).unwrap(), [4.0, 40.0, 9.0, -9.0]);
}

#[test]
fn no_tokens_is_no_rows() {
    let (layer, weights) = (described(TOP_2), three());
    let y = reference(&layer, &weights, F32).forward(&[], &Choices::default(), &[]);
    assert_eq!(y, Ok(Vec::new()));
}

/// On the input the weight is squared by relu2 here, and rounded to the input dtype; there is none at
/// the end.
#[test]
fn the_weight_may_be_on_the_input() {
    let layer = described(&format!("{TOP_1}, weight on input"));
    let weights = three();
    let of = |dtype: FloatFormat, weight: f64| {
        let reference = reference(&layer, &weights, dtype);
        reference.forward(&[2.0, 3.0], &chosen(&[0], &[weight]), &[]).unwrap()
    };
    assert_eq!(of(F32, 0.5), [1.0, 10.0]);
    // 2 * 0.501953125 is 1 + 2^-8, a tie of bf16, to even: 1.
    assert_eq!(of(BF16, 0.501953125), [1.0, 10.0]);
    let plain = described(TOP_1);
    let reference = reference(&plain, &weights, F32);
    assert_eq!(reference.forward(&[2.0, 3.0], &chosen(&[0], &[0.5]), &[]).unwrap(), [2.0, 20.0]);
}

/// h and y are rounded to the input dtype, each once, and nothing in between.
#[test]
fn h_and_y_are_rounded() {
    let layer = described("1 experts of 1 x 1, top 1, softmax, ungated relu2");
    let bias = |value: f64| Matrix { values: vec![1.0], bias: vec![value] };
    // h = 1.0625^2 = 1.12890625, a tie of bf16, to even: 1.125.
    let weights = [ExpertWeights { gate_up: vec![matrix(&[1.0])], down: bias(-1.0) }];
    let of = |dtype| {
        let reference = reference(&layer, &weights, dtype);
        reference.forward(&[1.0625], &chosen(&[0], &[1.0]), &[]).unwrap()
    };
    assert_eq!((of(F32), of(BF16)), (vec![0.12890625], vec![0.125]));
    // 1 + 2^-8 is a tie of bf16: with the shared expert's 2^-9 it is above.
    let weights = [ExpertWeights { gate_up: vec![matrix(&[1.0])], down: bias((-8f64).exp2()) }];
    let reference = reference(&layer, &weights, BF16);
    let of = |shared: &[f64]| reference.forward(&[1.0], &chosen(&[0], &[1.0]), shared).unwrap();
    assert_eq!(of(&[]), [1.0]);
    assert_eq!(of(&[(-9f64).exp2()]), [1.0 + (-7f64).exp2()]);
}

fn scheme(activation: &str) -> Scheme {
    let text = format!(
        "s {{ weight: i8, scale: f32 per channel, pack: [k, n], activation: {activation} }}"
    );
    parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

fn fixed(scale: f64) -> StaticInput {
    StaticInput { scales: vec![vec![scale]], ..StaticInput::default() }
}

/// Three rows [3, 2] as two experts read them: row 1 by both, row 0 and the largest by none.
fn rows(scheme: &Scheme, given: &[StaticInput]) -> Result<Vec<f64>, ReferenceError> {
    let values = [7.0, 7.0, 0.3, 1.3, 1000.0, 0.0];
    let reads = [Read { row: 1, expert: 1 }, Read { row: 1, expert: 0 }];
    ProductInput::Activation { scheme, given }.rows(&values, 2, F32, &reads)
}

#[test]
fn a_static_scale_is_of_the_expert_that_reads() {
    let scheme = scheme("i8 { scale: f32 per tensor static }");
    let found = rows(&scheme, &[fixed(0.5), fixed(0.25)]).unwrap();
    assert_eq!(found, [0.25, 1.25, 0.5, 1.5]);
    match rows(&scheme, &[fixed(0.5)]) {
        Err(ReferenceError::Length { expected: 2, found: 1, .. }) => {}
        found => panic!("{found:?}"),
    }
}

/// A scale per token is of the row; one per tensor is of all rows, those without an expert too.
#[test]
fn a_dynamic_scale_is_of_its_rows() {
    let given = [StaticInput::default(), StaticInput::default()];
    let of = |scheme: &Scheme, values: &[f64]| {
        let quantiser = scheme.quantiser().unwrap();
        let made = quantise_activation(scheme, quantiser, values, 2, F32, &given[0]);
        made.unwrap().values()
    };
    let token = scheme("i8 { scale: f32 per token }");
    let alone = of(&token, &[0.3, 1.3]);
    assert_eq!(rows(&token, &given).unwrap(), [alone.clone(), alone.clone()].concat());
    let tensor = scheme("i8 { scale: f32 per tensor }");
    // 0.3 and 1.3 in steps of 1000 / 127 and more.
    assert_eq!(rows(&tensor, &given).unwrap(), [0.0; 4]);
    assert_eq!(of(&tensor, &[0.3, 1.3]), alone);
    assert_ne!(alone, [0.0; 2]);
}

#[test]
fn a_float_activation_is_converted_and_prescaled() {
    let given = [StaticInput::default(), StaticInput::default()];
    let found = rows(&scheme("bf16"), &given).unwrap();
    assert_eq!(found[..2], [0.3, 1.3].map(|value| BF16.round(value)));
    assert_eq!(rows(&scheme("f32"), &given).unwrap()[2..], [0.3, 1.3]);
    let text = "s { weight: i8, scale: f32 per channel, prescale: f32, pack: [k, n], \
                activation: f32 }";
    let prescaled = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let factors = StaticInput { prescale: vec![2.0, 10.0], ..StaticInput::default() };
    let found = rows(&prescaled, &[factors.clone(), factors]).unwrap();
    assert_eq!(found[..2], [0.6, 13.0].map(|value| F32.round(value)));
}

/// Both products use their own activation.
#[test]
fn each_product_has_its_own_input() {
    let layer = described("1 experts of 2 x 1, top 1, softmax, ungated relu2");
    let weights = [expert([1.0, 1.0], [1.0, 1.0])];
    let scheme = scheme("i8 { scale: f32 per tensor static }");
    let (quarters, fives) = ([fixed(0.25)], [fixed(5.0)]);
    let reference = LayerReference {
        gate_up_input: ProductInput::Activation { scheme: &scheme, given: &quarters },
        down_input: ProductInput::Activation { scheme: &scheme, given: &fives },
        ..reference(&layer, &weights, F32)
    };
    // x~ = [2, 1.25]; z = 3.25; h = 10.5625, in fives: 10.
    let y = reference.forward(&[2.1, 1.2], &chosen(&[0], &[1.0]), &[]).unwrap();
    assert_eq!(y, [10.0, 10.0]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (layer, weights) = (described(TOP_2), three());
    let whole = reference(&layer, &weights, F32);
    let x = [2.0, 3.0];
    let said = |reference: &LayerReference<'_>, ids: &[i32]| {
        let weights = vec![1.0; ids.len()];
        reference.forward(&x, &chosen(ids, &weights), &[]).unwrap_err().to_string()
    };
    let message = "choice 1 of token 0 is expert 3: the layer has 3 experts";
    assert_eq!(said(&whole, &[0, 3]), message);
    assert_eq!(said(&whole, &[0]), "the ids of experts has 1 values, expected 2");
    let map = [0, 1, 2];
    let mapped = LayerReference { map: Some(&map), weights: &weights[..2], ..whole };
    let message = "the expert map has expert 2 at place 2, but 2 experts are here";
    assert_eq!(said(&mapped, &[0, 1]), message);
    let short = LayerReference { map: Some(&map[..2]), ..whole };
    assert_eq!(said(&short, &[0, 1]), "the expert map has 2 values, expected 3");
    let fewer = LayerReference { weights: &weights[..2], ..whole };
    assert_eq!(said(&fewer, &[0, 1]), "the experts has 2 values, expected 3");
    let gated = described("3 experts of 2 x 1, top 2, softmax, silu");
    let shards = LayerReference { layer: &gated, ..whole };
    assert_eq!(said(&shards, &[0, 1]), "an expert's shards has 1 values, expected 2");
    let wide = described("3 experts of 2 x 2, top 2, softmax, ungated relu2");
    let rows = LayerReference { layer: &wide, ..whole };
    assert_eq!(said(&rows, &[0, 1]), "a shard of gate_up has 2 values, expected 4");
    let mut biased = three();
    biased[1].down.bias = vec![0.0; 3];
    let bias = LayerReference { weights: &biased, ..whole };
    assert_eq!(said(&bias, &[0, 1]), "a bias of down has 3 values, expected 2");
    let shared = whole.forward(&x, &chosen(&[0, 1], &[1.0, 1.0]), &[0.0]);
    assert!(matches!(shared, Err(ReferenceError::Length { expected: 2, found: 1, .. })));
}
