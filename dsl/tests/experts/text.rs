//! `parse(print(layer)) = layer`, every field has a spelling, and errors say what would be right.

use proptest::prelude::*;
use quantloom_dsl::experts::{ExpertGroups, ExpertLayer, Gate, Routing, Score};

use super::described;

/// Every field away from its default, and every gate and score.
#[test]
fn every_field_has_a_spelling() {
    let plain = ExpertLayer {
        experts: 128,
        hidden: 2048,
        intermediate: 768,
        top_k: 8,
        routing: Routing { renormalise: true, ..Routing::new(Score::Softmax) },
        gate: Gate::Silu,
        weight_on_input: false,
    };
    let text = "128 experts of 2048 x 768, top 8, softmax renormalised, silu";
    assert_eq!((plain.to_string().as_str(), described(text)), (text, plain));

    let routing = Routing {
        score: Score::Sigmoid,
        bias: true,
        groups: Some(ExpertGroups { count: 8, keep: 4 }),
        renormalise: true,
        scale: 2.5,
    };
    let deepseek = ExpertLayer { experts: 256, hidden: 7168, intermediate: 2048, routing, ..plain };
    let text = "256 experts of 7168 x 2048, top 8, \
                sigmoid with bias in 4 of 8 groups renormalised times 2.5, silu";
    assert_eq!((deepseek.to_string().as_str(), described(text)), (text, deepseek));

    let routing = Routing::new(Score::Sigmoid);
    let llama = ExpertLayer { experts: 16, top_k: 1, routing, weight_on_input: true, ..plain };
    let text = "16 experts of 2048 x 768, top 1, sigmoid, silu, weight on input";
    assert_eq!((llama.to_string().as_str(), described(text)), (text, llama));

    for (text, gate, shards) in [
        ("silu", Gate::Silu, 2),
        ("silu limit 10", Gate::SiluLimit { limit: 10.0 }, 2),
        ("swigluoai alpha 1.702 limit 7", Gate::SwigluOai { alpha: 1.702, limit: 7.0 }, 2),
        ("swiglustep limit 7.5", Gate::SwigluStep { limit: 7.5 }, 2),
        ("gelu", Gate::Gelu, 2),
        ("gelu_tanh", Gate::GeluTanh, 2),
        ("ungated silu", Gate::UngatedSilu, 1),
        ("ungated gelu", Gate::UngatedGelu, 1),
        ("ungated gelu_tanh", Gate::UngatedGeluTanh, 1),
        ("ungated relu2", Gate::UngatedRelu2, 1),
    ] {
        assert_eq!((gate.to_string().as_str(), text.parse()), (text, Ok(gate)));
        assert_eq!(gate.shards(), shards, "{text}");
    }
    let scores = ["softmax", "sigmoid", "sqrtsoftplus", "logits"];
    for (text, score) in scores.into_iter().zip(Score::ALL) {
        let routing = Routing::new(score);
        assert_eq!((routing.to_string().as_str(), text.parse()), (text, Ok(routing)));
    }
    let spaced = "  8 experts of 64 x 96 ,top 2,softmax\n times 1 , silu  ";
    assert_eq!(described(spaced).to_string(), "8 experts of 64 x 96, top 2, softmax, silu");
}

/// The text, without its frame, and the message.
#[test]
fn errors_say_what_would_be_right() {
    let scores = "a score (`softmax`, `sigmoid`, `sqrtsoftplus`, `logits`)";
    let gates = "a gate (`silu`, `silu limit 7`, `swigluoai alpha 1.702 limit 7`, \
                 `swiglustep limit 7`, `gelu`, `gelu_tanh`, or `ungated` before `silu`, `gelu`, \
                 `gelu_tanh`, `relu2`)";
    let words = "a word of the routing, in their order, or `,` and the gate";
    for (text, expected, found) in [
        ("", "the number of experts", "the end"),
        ("many experts", "the number of experts", "`many`"),
        ("-1 experts of 4 x 4", "the number of experts", "`-1`"),
        ("8 expert of 4 x 4", "`experts`", "`expert`"),
        ("8 experts 4 x 4", "`of`", "`4`"),
        ("8 experts of 4x4", "the hidden size", "`4x4`"),
        ("8 experts of 4 by 4", "`x`", "`by`"),
        ("8 experts of 4 x 4", "`,`", "the end"),
        ("8 experts of 4 x 4, 2", "`top`", "`2`"),
        ("8 experts of 4 x 4, top two", "the number of experts of a token", "`two`"),
        ("8 experts of 4 x 4, top 2, softmx, silu", scores, "`softmx`"),
        ("8 experts of 4 x 4, top 2, softmax with biases, silu", words, "`with`"),
        ("8 experts of 4 x 4, top 2, softmax times 2 renormalised, silu", words, "`renormalised`"),
        ("8 experts of 4 x 4, top 2, softmax in 4, silu", "`of`", "`,`"),
        ("8 experts of 4 x 4, top 2, softmax in 1 of 2, silu", "`groups`", "`,`"),
        ("8 experts of 4 x 4, top 2, softmax times two, silu", "a scale", "`two`"),
        ("8 experts of 4 x 4, top 2, softmax", words, "the end"),
        ("8 experts of 4 x 4, top 2, softmax, relu2", gates, "`relu2`"),
        ("8 experts of 4 x 4, top 2, softmax, swigluoai", "`alpha`", "the end"),
        ("8 experts of 4 x 4, top 2, softmax, swigluoai alpha 1", "`limit`", "the end"),
        ("8 experts of 4 x 4, top 2, softmax, swiglustep 7", "`limit`", "`7`"),
        ("8 experts of 4 x 4, top 2, softmax, silu limit", "a limit", "the end"),
        (
            "8 experts of 4 x 4, top 2, softmax, ungated swiglustep limit 7",
            "`silu`, `gelu`, `gelu_tanh` or `relu2`",
            "`swiglustep`",
        ),
        (
            "8 experts of 4 x 4, top 2, softmax, silu, weight on output",
            "`, weight on input` or the end",
            "`,`",
        ),
    ] {
        let error = text.parse::<ExpertLayer>().unwrap_err().to_string();
        assert_eq!(error, format!("`{text}`: expected {expected}, found {found}"));
    }
    assert!("silu, weight on input".parse::<Gate>().is_err());
    assert!("softmax, silu".parse::<Routing>().is_err());
}

/// What is well-formed and no layer.
#[test]
fn layers_are_checked() {
    for (text, message) in [
        ("0 experts of 4 x 4, top 1, softmax, silu", "0 experts: a layer has 1 to 1024"),
        ("1025 experts of 4 x 4, top 1, softmax, silu", "1025 experts: a layer has 1 to 1024"),
        ("8 experts of 0 x 4, top 1, softmax, silu", "experts of 0 x 4: each size is at least 1"),
        ("8 experts of 4 x 0, top 1, softmax, silu", "experts of 4 x 0: each size is at least 1"),
        ("8 experts of 4 x 4, top 0, softmax, silu", "top 0 of 8 experts: top-k is 1 to 8"),
        ("8 experts of 4 x 4, top 9, softmax, silu", "top 9 of 8 experts: top-k is 1 to 8"),
        ("64 experts of 4 x 4, top 33, softmax, silu", "top 33 of 64 experts: top-k is 1 to 32"),
        (
            "8 experts of 4 x 4, top 1, softmax in 1 of 3 groups, silu",
            "8 experts in 3 groups: the number of groups divides that of experts",
        ),
        (
            "8 experts of 4 x 4, top 1, softmax in 0 of 0 groups, silu",
            "8 experts in 0 groups: the number of groups divides that of experts",
        ),
        (
            "8 experts of 4 x 4, top 1, softmax in 5 of 4 groups, silu",
            "5 of 4 groups: 1 to 4 groups are kept",
        ),
        (
            "8 experts of 4 x 4, top 1, softmax in 0 of 4 groups, silu",
            "0 of 4 groups: 1 to 4 groups are kept",
        ),
        (
            "8 experts of 4 x 4, top 5, softmax in 2 of 4 groups, silu",
            "2 groups of 2 experts: top 5 needs 3 groups",
        ),
        (
            "8 experts of 4 x 4, top 2, softmax, silu, weight on input",
            "weight on input with top 2: a token has one router weight only with top 1",
        ),
        (
            "8 experts of 4 x 4, top 2, softmax times -1, silu",
            "the scale of the router weights is -1: it is a finite number above 0",
        ),
        (
            "8 experts of 4 x 4, top 2, softmax, swigluoai alpha nan limit 7",
            "alpha is NaN: it is a finite number above 0",
        ),
        (
            "8 experts of 4 x 4, top 2, softmax, silu limit inf",
            "limit is inf: it is a finite number above 0",
        ),
        (
            "8 experts of 4 x 4, top 2, softmax, swiglustep limit 0",
            "limit is 0: it is a finite number above 0",
        ),
    ] {
        assert_eq!(text.parse::<ExpertLayer>().unwrap_err().to_string(), message, "{text}");
    }
    described("1024 experts of 1 x 1, top 32, softmax in 1 of 1 groups, silu");
    described("8 experts of 4 x 4, top 4, softmax in 2 of 4 groups, silu");
    described("1 experts of 1 x 1, top 1, logits, ungated relu2, weight on input");
}

/// Any finite f32 above 0.
fn number() -> impl Strategy<Value = f32> {
    (1u32..0x7f80_0000).prop_map(f32::from_bits)
}

fn any_gate() -> impl Strategy<Value = Gate> {
    (0usize..10, number(), number()).prop_map(|(kind, alpha, limit)| {
        [
            Gate::Silu,
            Gate::SiluLimit { limit },
            Gate::SwigluOai { alpha, limit },
            Gate::SwigluStep { limit },
            Gate::Gelu,
            Gate::GeluTanh,
            Gate::UngatedSilu,
            Gate::UngatedGelu,
            Gate::UngatedGeluTanh,
            Gate::UngatedRelu2,
        ][kind]
    })
}

/// Any layer that is valid.
fn any_layer() -> impl Strategy<Value = ExpertLayer> {
    let groups = (1u32..=32, 1u32..=32).prop_flat_map(|(count, size)| {
        (1..=count).prop_flat_map(move |keep| {
            let kept = Just((count * size, ExpertGroups { count, keep }));
            (kept, 1..=(keep * size).min(32), any::<bool>())
        })
    });
    let routing = (0usize..4, any::<bool>(), any::<bool>(), prop_oneof![Just(1.0), number()]);
    let sizes = (1u64.., 1u64.., any::<bool>());
    (groups, routing, sizes, any_gate()).prop_map(|(groups, routing, sizes, gate)| {
        let ((experts, groups), top_k, grouped) = groups;
        let (score, bias, renormalise, scale) = routing;
        let (hidden, intermediate, on_input) = sizes;
        let groups = grouped.then_some(groups);
        let routing = Routing { score: Score::ALL[score], bias, groups, renormalise, scale };
        let weight_on_input = on_input && top_k == 1;
        ExpertLayer { experts, hidden, intermediate, top_k, routing, gate, weight_on_input }
    })
}

proptest! {
    #[test]
    fn what_is_printed_parses(layer in any_layer()) {
        layer.check().unwrap();
        prop_assert_eq!(layer.to_string().parse(), Ok(layer));
        prop_assert_eq!(layer.routing.to_string().parse(), Ok(layer.routing));
        prop_assert_eq!(layer.gate.to_string().parse(), Ok(layer.gate));
    }

    /// A damaged text is refused, or means what it prints.
    #[test]
    fn damaged_texts_are_no_panic(layer in any_layer(), at in any::<prop::sample::Index>(), put in "\\PC{0,3}") {
        let text = layer.to_string();
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
        let place = *at.get(&places);
        for damaged in [format!("{}{put}{}", &text[..place], &text[place + 1..]), text[..place].to_owned()] {
            if let Ok(read) = damaged.parse::<ExpertLayer>() {
                prop_assert_eq!(read.to_string().parse(), Ok(read));
            }
        }
    }
}
