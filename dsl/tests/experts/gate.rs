//! Each gate against numbers that a few lines of Python gave: the formulas of docs/expert-layers.md in
//! decimal numbers of 80 digits, with alpha in f32 and erf by its Taylor series.

use quantloom_dsl::experts::Gate;
use quantloom_dsl::reference::experts::gate;

const OAI: Gate = Gate::SwigluOai { alpha: 1.702, limit: 7.0 };
const LIMIT: Gate = Gate::SiluLimit { limit: 7.0 };
const STEP: Gate = Gate::SwigluStep { limit: 7.0 };

/// g, u, h. Gates and ups are inside of the limits, and beyond them on each side; there is no limit
/// of g from below.
const ROWS: &[(Gate, f64, f64, f64)] = &[
    (Gate::Silu, 1.5, -0.75, -0.9197712857178492),
    (Gate::Silu, -2.0, 3.0, -0.7152175321327053),
    (Gate::Silu, 9.0, -8.5, -76.49056031493706),
    (LIMIT, 1.5, -0.75, -0.9197712857178492),
    (LIMIT, 9.0, -8.5, -48.95535849147437),
    (LIMIT, -9.0, 8.5, -0.007773858287132599),
    (OAI, 1.5, -0.75, 0.34791555043853356),
    (OAI, -2.0, 3.0, -0.2573654964960145),
    (OAI, 9.0, -8.5, -41.99971876986309),
    (OAI, -9.0, 8.5, -1.6025420728880808e-05),
    (STEP, 1.5, -0.75, -0.9197712857178492),
    (STEP, 9.0, -8.5, -49.0),
    (STEP, -9.0, 8.5, -0.007773858287132599),
    (Gate::Gelu, 1.5, -0.75, -1.0498418985725346),
    (Gate::Gelu, -2.0, 3.0, -0.13650079168907525),
    (Gate::Gelu, -9.0, 8.5, -8.633701305546881e-18),
    (Gate::GeluTanh, 1.5, -0.75, -1.0496786827351747),
    (Gate::GeluTanh, -2.0, 3.0, -0.13620691773667495),
    (Gate::GeluTanh, -9.0, 8.5, -1.1359906555246417e-27),
    (Gate::UngatedSilu, 1.5, f64::NAN, 1.2263617142904655),
    (Gate::UngatedSilu, -9.0, f64::NAN, -0.0011105511838760856),
    (Gate::UngatedGelu, 1.5, f64::NAN, 1.399789198096713),
    (Gate::UngatedGelu, -2.0, f64::NAN, -0.04550026389635842),
    (Gate::UngatedGeluTanh, 1.5, f64::NAN, 1.3995715769802328),
    (Gate::UngatedRelu2, 1.5, f64::NAN, 2.25),
    (Gate::UngatedRelu2, -1.5, f64::NAN, 0.0),
];

/// A relative error r of its argument is one of (g^2 + 1) r in `normal(g)`, whose argument has two
/// roundings, and of 2 |t| r in `(1 + tanh(t)) / 2`, whose argument has at most eight; t is below
/// |g| + |g|^3 / 20. What is left are at most ten roundings.
#[test]
fn gates_are_their_formulas() {
    for &(function, g, u, expected) in ROWS {
        let found = gate(function, g, u);
        let argument = g * g + 8.0 * (g.abs() + g.abs().powi(3) / 20.0);
        let bound = (6.0 + argument) * f64::EPSILON * expected.abs();
        assert!((found - expected).abs() <= bound, "{function}: f({g}, {u}) is {found}");
    }
}

/// The limits are where they are said to be: of silu(g) in one gate, of g in the others.
#[test]
fn limits_are_of_g_or_of_silu() {
    let is_silu = |function: Gate, g: f64, of: f64| {
        let off = gate(function, g, 1.0) - of / (1.0 + (-of).exp());
        assert!(off.abs() <= 4.0 * f64::EPSILON * of, "{function}");
    };
    // silu(7.003) is just below 7: not limited by one, limited by the other.
    is_silu(STEP, 7.003, 7.003);
    is_silu(LIMIT, 7.003, 7.0);
    for function in [LIMIT, OAI, STEP] {
        assert_eq!(gate(function, 8.0, 1.0), gate(function, 1e6, 1.0), "{function}");
        assert_eq!(gate(function, 1.0, 7.0), gate(function, 1.0, 1e6), "{function}");
        assert_eq!(gate(function, 1.0, -7.0), gate(function, 1.0, -1e6), "{function}");
        assert_ne!(gate(function, -7.0, 1.0), gate(function, -8.0, 1.0), "{function}");
        assert_ne!(gate(function, 1.0, 6.5), gate(function, 1.0, 7.0), "{function}");
        assert_ne!(gate(function, 1.0, -6.5), gate(function, 1.0, -7.0), "{function}");
    }
}

#[test]
fn nan_is_not_limited() {
    let gates = [Gate::Silu, LIMIT, OAI, STEP, Gate::Gelu, Gate::GeluTanh];
    for function in gates {
        assert!(gate(function, f64::NAN, 1.0).is_nan(), "{function}");
        assert!(gate(function, 1.0, f64::NAN).is_nan(), "{function}");
    }
    let ungated = [Gate::UngatedSilu, Gate::UngatedGelu, Gate::UngatedGeluTanh, Gate::UngatedRelu2];
    for function in ungated {
        assert!(gate(function, f64::NAN, 1.0).is_nan(), "{function}");
    }
}
