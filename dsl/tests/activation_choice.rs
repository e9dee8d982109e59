//! The alternative that x of a type takes.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::Component;
use quantloom_dsl::{Activation, ActivationChoiceError, Scheme, parse};

fn scheme(activation: &str) -> Scheme {
    let text = format!(
        "s {{ weight: u4 - 8, scale: bf16 per 1x32, pack: [k, n], activation: {activation} }}"
    );
    parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
}

/// The index of the alternative for x in bf16, f16 and f32, and the type it is converted to.
fn of_types(activation: &str) -> Vec<(usize, Option<FloatFormat>)> {
    scheme(activation).activation_choices().map(|taken| (taken.place, taken.converted())).collect()
}

#[test]
fn the_first_that_takes_x_is_taken() {
    let i8 = "i8 { scale: f32 per token }";
    let plain = |places: [usize; 3]| places.map(|place| (place, None)).to_vec();
    assert_eq!(of_types(i8), plain([0, 0, 0]));
    assert_eq!(of_types(&format!("{i8} | bf16")), plain([0, 0, 0]));
    assert_eq!(of_types(&format!("bf16 | {i8}")), plain([0, 1, 1]));
    assert_eq!(of_types(&format!("f32 | bf16 | {i8}")), plain([1, 2, 0]));
    assert_eq!(of_types(&format!("bf16 | {i8} | f16")), plain([0, 1, 1]));
    assert_eq!(of_types("f16 | f32 | bf16"), plain([2, 0, 1]));
}

#[test]
fn a_type_that_is_not_listed_is_converted() {
    assert_eq!(of_types("bf16 | f16"), [(0, None), (1, None), (0, Some(BF16))]);
    assert_eq!(of_types("f16"), [(0, Some(F16)), (0, None), (0, Some(F16))]);
    assert_eq!(of_types("bf16 | f32"), [(0, None), (1, Some(F32)), (1, None)]);
    let said: Vec<String> =
        scheme("f16 | f32").activation_choices().map(|taken| taken.to_string()).collect();
    assert_eq!(
        said,
        [
            "x in bf16 is converted to f32: the scheme does not list bf16",
            "x in f16 is not converted",
            "x in f32 is not converted"
        ]
    );
}

#[test]
fn what_is_narrower_than_f32_is_listed_first() {
    let narrower = |activation: &str, own| {
        let scheme = scheme(activation);
        let narrower = scheme.activation_for(own).unwrap().narrower(&scheme);
        narrower.iter().map(Activation::name).collect::<Vec<_>>()
    };
    assert_eq!(narrower("f32", F32), ["bf16", "f16"]);
    assert_eq!(narrower("f32 | f16", F32), ["f16", "bf16"]);
    assert_eq!(narrower("f32", F16), ["f16", "bf16"]);
    assert_eq!(narrower("f32 | bf16", F16), ["f16", "bf16"]);
    assert!(narrower("bf16", F32).is_empty());
    assert!(narrower("i8 { scale: f32 per token } | f32", F32).is_empty());
}

#[test]
fn a_caller_may_insist() {
    let both = scheme("e4m3 { scale: f32 per tensor static } | bf16");
    assert!(both.is_mixed());
    assert!(both.stores.iter().any(|store| store.owner == Component::InputScale(0)));
    let float = both.with_activation("bf16").unwrap();
    assert_eq!(float.activations, [Activation::Float(Number::Float(BF16))]);
    assert!(float.stores.iter().all(|store| store.owner != Component::InputScale(0)));
    assert!(!float.is_mixed());
    let quantised = both.with_activation("e4m3").unwrap();
    assert_eq!((quantised.activations.len(), &quantised.stores), (1, &both.stores));
    let unknown = both.with_activation("f16").unwrap_err().to_string();
    assert_eq!(unknown, "the scheme `s` has no activation `f16`; it has e4m3, bf16");
    let shared = parse(
        "s { weight: u8, scale: f32 per tensor, pack: for [n] { u8 [code | k], input_scale } \
         as \"w\", activation: e4m3 { scale: f32 per tensor static } | bf16 }",
    );
    if let Ok(shared) = shared {
        assert_eq!(
            shared.with_activation("bf16"),
            Err(ActivationChoiceError::StoredTensors("w".to_owned()))
        );
    }
}
