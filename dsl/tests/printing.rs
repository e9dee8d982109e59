//! `parse(print(s)) = s` for schemes that use every clause, for every order of their clauses,
//! and for whatever a damaged text still means; no text makes the parser panic.

use quantloom_dsl::layout::Component;
use quantloom_dsl::{Diagnostics, Scheme, parse, parse_fragment, parse_layout};

const GOOD: &[&str] = &[
    "Plain { weight: i8, pack: [k, n], activation: f32 }",
    "/// Two lines,\n///  the second indented.\npub Offset {
        weight: u4 - 8, // a comment
        scale: bf16 per 1x128, pack: u32 [k:* | w, n] as \"weight_packed\",
        activation: bf16 | f16 | f32, bias: f16 as \"b\", output: bf16, arithmetic: own, accuracy: exact, }",
    "Gptq {
        weight: u4,
        zero: u4 + 1 wraps u32 [n:8 | n, g] as \"qzeros\",
        scale: f16 per 1x128 [n, g] as \"scales\",
        index: i32 as \"g_idx\",
        pack: u32 [k:8 | n, k] as \"qweight\",
        activation: f16,
        targets: sm_80 | sm_90a | neon,
    }",
    "Factors {
        weight: i4, scale: f16 per 1x128, prescale: bf16, pack: u8 [n:2 | k, n],
        activation: e4m3 { scale: f32 per tensor static } | bf16 }",
    "FactorsElsewhere {
        prescale: f32 [k] as \"smooth\", weight: i8, pack: [k, n], activation: f16 }",
    "AnyOrder {
        activation: i8 { scale: f32 per tensor static, zero: i8 },
        bias: f32, index: i32, scale: f16 per 1x64 { [g, n] }, shift: f16 per 1x32, zero: f16,
        pack: for [k, n] { [k:2, k/2:32], u8 [zero[0..8]], u8 [zero[8..16]] }, weight: u8 + 3,
    }",
    "Record {
        weight: u4, zero: u8, shift: f16,
        scale: f16 per 1x32,
        pack: for [k, n] { scale, shift, zero, pad 8 = 1, u8 msf [k/16:2 | k:16] },
        activation: f16,
    }",
    "RecordInScale {
        zero: u8, weight: u4, activation: bf16, pack: u8 [k:2 | k, n],
        scale: f16 per 1x32 for [g, n] { scale, zero },
    }",
    "Levels {
        weight: u6 - 32,
        scale: i8 per 1x16 from amax / 32, scale: f16 per 1x256 from amax / 4064 [n, g],
        scale: divide f32 per tensor from amax / 0.3 [g] as \"global\",
        pack: u8 [code[0..4], k:2 | k, n], pack: u8 [code[4..6], k:4 | k, n],
        activation: f16,
    }",
    "ShiftLevels {
        weight: u4, scale: u6 - 32 per 1x16, scale: f16 per 1x256, shift: -u6 - 1 per 1x32,
        shift: -f16 per 1x256 as \"minima\", shift: e4m3 + 0 per channel,
        pack: for [k, n] { scale2, for [k/32:8] u8 [shift, pad 2], for [k/16:16] u8 [scale, pad 2],
            [k:256] },
        activation: f16,
    }",
    "NvFp4 {
        weight: e2m1, scale: e4m3 per 1x16, scale: divide f32 per tensor,
        pack: u8 [k:2 | k, n],
        activation: e2m1 { scale: e4m3 per 1x16,
            scale: divide f32 per tensor from amax / 2688 static as \"input_global\" } | bf16,
    }",
    "Mx {
        weight: e2m3, scale: e8m0 per 1x32 from pow2 above 1.9375, pack: u8 [k:4 | w, k, n],
        activation: e3m2fn { scale: e8m0 per 1x32 from pow2 },
    }",
    "Integers {
        weight: i4, scale: f32 per channel, pack: i8 [code, pad 4 = sign | k, n],
        activation: i8 { zero: u8, scale: own per token from range / 254.5, ties: away },
        accumulate: i32, output: f16,
    }",
    "Static {
        weight: i8, scale: f32 per 128x128 from amax / 127, pack: [k, n],
        activation: u8 { zero: u8 as \"z\", scale: f32 per tensor static [g] as \"s\" },
    }",
    "Book {
        weight: codebook(-1, -0, 1.0e-3, 3.4028234663852886e38),
        scale: f32 per 1x64, pack: u8 [~k:4 | k/4:8 ^ n:8, k, n], activation: bf16,
    }",
    "Experts {
        weight: e4m3fnuz,
        scale: f32 per tensor [e], pack: [k, n//2, n, e] as \"w13 [x]\", bias: f32 [n, e],
        activation: e4m3 { scale: f32 per tensor static [e] }, experts: interleaved,
    }",
    "Whole {
        weight: u3, scale: f32 per tensor, pack: u32 msf [code, pad 1, ~k:4, n/2:2 | n/4:3,
        k, n, ~n:2], activation: f32,
    }",
    "Steps {
        weight: u6, scale: f16 per tensor,
        pack: u8 [code[0..4] @3, code[4..6] @0, code @1, code[4..6] @3, code[0..4]@0, code[0..1] @2,
            code[1..6] @2, k:2, n/4:2 | n:4, w, n, k], activation: f16,
    }",
    "StepsOfTwo {
        weight: u4,
        pack: for [k, n] { u8 [code[0..3] @0, pad 1 = 1, code @1, k:2],
            u8 msf [code[3..4] @0, pad 7, k:2] },
        activation: f16,
    }",
    "Concatenated { weight: u1, pack: u8 [k:8 | k, n/top:2, n, e], activation: f32,
        experts: concatenated }",
    "Single { weight: u2 - 2, pack: u16 [k:8 | e, ~k, n], activation: f32, experts: single,
        accumulate: f32, arithmetic: f32 }",
];

const FRAGMENTS: &[&str] = &["[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8]", "[~k:4 ;  ; n:8]"];

fn good(text: &str) -> Scheme {
    parse(text).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

#[test]
fn schemes_print_back_to_themselves() {
    for text in GOOD {
        let scheme = good(text);
        let printed = scheme.to_string();
        let again = good(&printed);
        assert_eq!(again, scheme, "{text}\n{printed}");
        assert_eq!(again.to_string(), printed);
    }
}

/// Only levels, of scales and of shifts, and tensors of codes have an order.
#[test]
fn clauses_stand_in_any_order() {
    for text in GOOD {
        let scheme = good(text);
        let printed = scheme.to_string();
        let lines: Vec<&str> = printed.lines().collect();
        let first = 1 + lines.iter().position(|line| line.ends_with(" {")).unwrap_or(0);
        let clauses = &lines[first..lines.len() - 1];
        for turn in 0..clauses.len() {
            let mut turned = clauses.to_vec();
            turned.rotate_left(turn);
            turned.reverse();
            for ordered in ["    scale:", "    shift:", "    pack:"] {
                let mut same = clauses.iter().filter(|clause| clause.starts_with(ordered));
                for place in turned.iter_mut().filter(|clause| clause.starts_with(ordered)) {
                    *place = same.next().unwrap_or(place);
                }
            }
            let text = [&lines[..first], &turned, &["}"]].concat().join("\n");
            assert_eq!(good(&text), scheme, "{text}");
        }
    }
}

#[test]
fn layouts_and_fragments_print_back_to_themselves() {
    for text in FRAGMENTS {
        assert_eq!(parse_fragment(text).unwrap().to_string(), *text);
    }
    let scheme = |text: &&str| good(text).stores;
    for store in GOOD.iter().flat_map(scheme) {
        let printed = store.layout.display(store.owner).to_string();
        assert_eq!(parse_layout(&printed, store.owner), Ok(store.layout), "{printed}");
    }
}

/// Every prefix, every text with a character less, every text with a byte changed.
fn damaged(text: &str) -> impl Iterator<Item = String> + '_ {
    const BYTES: &[u8] = b"\0\n \"/\\{}[]():,|-+*~^=.;@_#09aekngwxz\x80\xc3\xff";
    let starts = || text.char_indices().map(|(at, _)| at);
    let prefixes = starts().map(|at| text[..at].to_owned());
    let deletions =
        text.char_indices().map(|(at, c)| format!("{}{}", &text[..at], &text[at + c.len_utf8()..]));
    // Every third byte, others at a neighbouring place.
    let mutations = (0..text.len()).flat_map(move |at| {
        BYTES.iter().skip(at % 3).step_by(3).map(move |byte| {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = *byte;
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    prefixes.chain(deletions).chain(mutations)
}

/// Spans lie on characters of the text, and the faults can be shown.
fn check(text: &str, faults: &Diagnostics, shown: bool) {
    assert!(!faults.faults().is_empty(), "refused without a fault: {text}");
    for fault in faults.faults() {
        let slice = text.get(fault.span.start..fault.span.end);
        assert!(slice.is_some(), "{} at {:?}: {text}", fault.message, fault.span);
    }
    assert!(!shown || !faults.to_string().is_empty());
}

#[test]
fn no_text_makes_the_parser_panic() {
    let (mut read, mut refused) = (0, 0);
    for text in GOOD {
        for text in damaged(text) {
            match parse(&text) {
                Ok(scheme) => {
                    let printed = scheme.to_string();
                    assert_eq!(parse(&printed), Ok(scheme), "{text}\n{printed}");
                    read += 1;
                }
                Err(faults) => {
                    refused += 1;
                    check(&text, &faults, refused % 16 == 0);
                }
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
    for text in FRAGMENTS.iter().flat_map(|text| damaged(text)) {
        match parse_fragment(&text) {
            Ok(fragment) => assert_eq!(parse_fragment(&fragment.to_string()), Ok(fragment)),
            Err(faults) => check(&text, &faults, true),
        }
        if let Err(faults) = parse_layout(&text, Component::Code) {
            check(&text, &faults, true);
        }
    }
}
