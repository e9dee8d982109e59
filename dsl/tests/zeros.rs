//! What is 0 stays 0, by every rule and with every kind of levels: no scale that is chosen for it, and
//! no product of scales, makes it a NaN.

use quantloom_dsl::format::{BF16, F16, F32, Number};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::{StaticInput, dequantise, quantise, quantise_activation};
use quantloom_dsl::{Scheme, ZeroKind, parse};

const CODES: [&str; 6] = ["i8", "u8", "e4m3", "e5m2", "e2m1", "e4m3fnuz"];
const NUMBERS: [&str; 7] = ["f32", "f16", "bf16", "e8m0", "e4m3", "u8", "i8"];

/// One level, and every pair of levels.
fn levels(coarse: &str) -> Vec<String> {
    let one = |group: &str, number: &str| {
        let rules = match number {
            "e8m0" => &["", " from pow2", " from amax / 6"][..],
            _ => &["", " from amax / 6"],
        };
        let divides = ["", "divide "];
        let all = divides.iter().flat_map(|divide| rules.iter().map(move |rule| (divide, rule)));
        all.map(|(divide, rule)| format!("scale: {divide}{number} per {group}{rule}"))
            .collect::<Vec<_>>()
    };
    let pairs = NUMBERS.iter().flat_map(|fine| one("1x16", fine)).flat_map(|fine| {
        let coarse = NUMBERS.iter().flat_map(|number| one(coarse, number));
        coarse.map(|coarse| format!("{fine}, {coarse}")).collect::<Vec<_>>()
    });
    NUMBERS.iter().flat_map(|number| one(coarse, number)).chain(pairs).collect()
}

/// Zeros, and numbers so small that no scale holds them.
const VALUES: [f64; 3] = [0.0, -0.0, 1e-45];

fn scheme(text: &str) -> Scheme {
    parse(text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
}

#[test]
fn a_token_of_zeros_is_0() {
    for code in CODES {
        let zero = if code.starts_with('e') { "" } else { "zero: i8, " };
        for (levels, zero) in levels("token").iter().flat_map(|l| [(l, ""), (l, zero)]) {
            let text = format!(
                "s {{ weight: i8, pack: [k, n], activation: {code} {{ {zero}{levels} }} }}"
            );
            let scheme = scheme(&text);
            let quantiser = scheme.quantiser().unwrap();
            for (own, value) in [F32, F16, BF16].into_iter().flat_map(|o| VALUES.map(|v| (o, v))) {
                let x = vec![own.round(value); 40];
                let given = StaticInput::default();
                let x = quantise_activation(&scheme, quantiser, &x, 40, own, &given).unwrap();
                let worst = x.values().iter().fold(0.0, |worst: f64, x| match x.is_nan() {
                    true => f64::NAN,
                    false => worst.max(x.abs()),
                });
                assert!(worst <= value.abs() * 2.0, "{text}, x = {value} of {own}: {worst}");
            }
        }
    }
}

#[test]
fn a_weight_of_zeros_is_0() {
    let shape = Shape::matrix(2, 40);
    for code in CODES {
        let zeros: &[&str] =
            if code.starts_with('e') { &[""] } else { &["", "zero: u8, ", "zero: f16, "] };
        for (levels, zero) in levels("1x32").iter().flat_map(|l| zeros.iter().map(move |z| (l, z)))
        {
            let text =
                format!("s {{ weight: {code}, {levels}, {zero}pack: [k, n], activation: f32 }}");
            let scheme = scheme(&text);
            let plain = quantise(&scheme, shape, &[0.0; 80], F32, None).unwrap();
            let w = dequantise(&scheme, &plain).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(w.iter().all(|w| *w == 0.0), "{text}: {w:?}");
        }
    }
}

/// A code stands for a zero point of its kind's range, and is the code that the zero point gets: the
/// stored constant and the remainder of those that wrap included.
#[test]
fn zero_points_have_codes() {
    for number in [Number::Uint(4), Number::Int(7), Number::Int(2), Number::Uint(8)] {
        for plus in [-3, 0, 1, 9] {
            for wraps in [false, true] {
                let kind = ZeroKind::Codes { number, plus, wraps };
                let (least, largest) = kind.integer_range().unwrap();
                let zeros: Vec<f64> = (0..=number.mask()).map(|code| kind.decode(code)).collect();
                let ends = zeros.iter().fold((f64::MAX, f64::MIN), |(low, high), zero| {
                    (low.min(*zero), high.max(*zero))
                });
                assert_eq!(ends, (least, largest), "{kind}");
                let codes: Vec<u32> = zeros.iter().map(|zero| kind.encode(*zero)).collect();
                assert_eq!(codes, (0..=number.mask()).collect::<Vec<_>>(), "{kind}");
            }
        }
    }
}

/// Static scales and prescales that nobody has calibrated yet are positive numbers, in types without 1 too.
#[test]
fn static_inputs_of_a_fresh_weight_are_no_zeros() {
    for number in ["e1m0", "e4m3", "f16"] {
        let text = format!(
            "Fresh {{ weight: i8, pack: [k, n], prescale: f16, \
             activation: i8 {{ scale: divide {number} per tensor static }} }}"
        );
        let (scheme, shape) = (scheme(&text), Shape::matrix(2, 4));
        let plain = quantise(&scheme, shape, &[1.0; 8], F32, None).unwrap();
        let given = StaticInput::of(&scheme, &plain, 0);
        let all = given.scales.iter().flatten().chain(&given.prescale);
        assert!(
            all.clone().count() > 0 && all.clone().all(|value| *value > 0.0),
            "{text}: {given:?}"
        );
    }
}
