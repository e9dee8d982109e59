//! What an author of a scheme sees: for each mistake the message, what would be right, and the
//! text that the span covers.

use quantloom_dsl::parse;

pub(crate) mod bad;

use bad::{BAD, Bad};

#[test]
fn each_mistake_is_named_where_it_stands() {
    let mut wrong = Vec::new();
    for Bad { text, faults } in BAD {
        let Err(found) = parse(text) else { panic!("no mistake in {text}") };
        let told: Vec<[&str; 3]> = found
            .faults()
            .iter()
            .map(|fault| {
                let slice = &text[fault.span.start..fault.span.end];
                [slice, &fault.message, fault.help.as_deref().unwrap_or("")]
            })
            .collect();
        let as_told = |(told, wanted): (&[&str; 3], &(&str, &str, &str))| {
            told[0] == wanted.0 && told[1].starts_with(wanted.1) && told[2].contains(wanted.2)
        };
        let alike = told.len() == faults.len() && told.iter().zip(*faults).all(as_told);
        let shown = found.to_string();
        if !alike || !told.iter().all(|[_, message, _]| shown.contains(message)) {
            wrong.push(format!("expected {faults:?}\n{shown}\nwhich is {told:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Where two tokens read alike, the span is the second one's.
#[test]
fn spans_tell_like_tokens_apart() {
    let text = "S { weight: u4, pack: u8 [code, code | k, k, n], activation: bf16 }";
    let second = |token: &str| text.rfind(token).unwrap();
    let faults = parse(text).unwrap_err();
    let starts: Vec<usize> = faults.faults().iter().map(|fault| fault.span.start).collect();
    assert_eq!(starts, [second("code"), second("k, n")], "{faults}");
    assert_eq!(faults.line_column(starts[0]), (1, starts[0] + 1));
}
