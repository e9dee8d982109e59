//! The macro's front end against the text's: the same tokens, the same scheme, the same mistakes at
//! the same places. Outside a macro, places are bytes of the text (`span-locations`).

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quantloom_dsl::lang::{Declaration, TokenKind, lex, parse_tokens};
use quantloom_dsl::{Diagnostic, Scheme, parse};

use crate::errors::bad::BAD;

/// Through the macro's front end.
fn declare(text: &str) -> (Declaration, Option<Scheme>, Vec<Diagnostic>) {
    let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut faults = Vec::new();
    let declaration = Declaration::read(stream, &mut faults);
    let scheme = parse_tokens(&declaration.tokens, declaration.end(), &mut faults);
    faults.sort_by_key(|fault| fault.span.start);
    faults.dedup();
    (declaration, scheme, faults)
}

/// What Rust reads otherwise: an open bracket or quote, a character that is none of its own.
fn tokens_of_rust(text: &str) -> bool {
    text.parse::<TokenStream>().is_ok() && !text.contains('ü')
}

#[test]
fn the_same_mistakes_at_the_same_places() {
    let mut compared = 0;
    for bad in BAD.iter().filter(|bad| tokens_of_rust(bad.text)) {
        let told = parse(bad.text).unwrap_err();
        let (declaration, scheme, faults) = declare(bad.text);
        let placed: Vec<_> = faults
            .iter()
            .map(|fault| {
                let (first, last) = declaration.place(fault.span);
                let place = first.byte_range().start..last.byte_range().end;
                (&bad.text[place], &fault.message, &fault.help)
            })
            .collect();
        let written: Vec<_> = told
            .faults()
            .iter()
            .map(|fault| (&bad.text[fault.span.start..fault.span.end], &fault.message, &fault.help))
            .collect();
        assert_eq!(placed, written, "{}", bad.text);
        assert!(scheme.is_none() || !faults.is_empty(), "{}", bad.text);
        compared += 1;
    }
    assert!(compared + 4 >= BAD.len(), "only {compared} of {} are tokens of Rust", BAD.len());
}

/// Each token of a text, by either front end.
#[test]
fn the_same_tokens() {
    let texts = [
        "/// A doc line.\n///\n///   indented, \"quoted\", \\back\\slashed\n S { weight: u4 - 8 }",
        "1x128 128x128 7.5 1e-3 1.5e+3 4..6 k/2:4 ~k:2 k:8^n:8 u32[k:8|k,n] n/top:2",
        "codebook(-1, 0, 0.5, 1e-3,) pad 4 = sign as \"a.b-c\" u4 + 1 wraps; _ __x i8{}",
        "code[4 . . 6] 1 . 5 16777216 1_000 0x16",
        "code[0..3] @0, code@12 @ 3",
    ];
    for text in texts {
        let mut faults = Vec::new();
        let lexed = lex(text, &mut faults);
        let stream: TokenStream = text.parse().unwrap();
        let declaration = Declaration::read(stream, &mut faults);
        let kinds = |tokens: &[quantloom_dsl::lang::Token]| -> Vec<TokenKind> {
            tokens.iter().map(|token| token.kind.clone()).collect()
        };
        assert_eq!(kinds(&declaration.tokens), kinds(&lexed), "{text}");
        assert!(faults.is_empty(), "{text}: {faults:?}");
    }
}

/// What only Rust's lexer gives: one fault each, at its token.
#[test]
fn tokens_without_a_meaning() {
    let table = [
        ("r#S", "`r#S` has no meaning", "weight: u4"),
        ("größe", "`größe` has no meaning", "weight: u4"),
        ("$", "`$` has no meaning", "weight: $ u4"),
        ("#", "`#` has no meaning", "#[cfg(test)] weight: u4"),
        ("r\"name\"", "`r\"name\"` has no meaning", "weight: u4, scale: f16 per 1x32 as r\"name\""),
        ("\"a\\n\"", "`\"a\\n\"` has no meaning", "weight: u4, scale: f16 per 1x32 as \"a\\n\""),
    ];
    for (token, message, clauses) in table {
        let name = if clauses.contains(token) { "S" } else { token };
        let text = format!("{name} {{ {clauses}, pack: u32 [k:8 | k, n], activation: bf16 }}");
        let (declaration, _, faults) = declare(&text);
        let [fault] = faults.as_slice() else { panic!("{text}: {faults:?}") };
        assert!(fault.message.starts_with(message), "{text}: {}", fault.message);
        assert_eq!(declaration.place(fault.span).0.source_text().as_deref(), Some(token), "{text}");
    }
}

#[test]
fn visibility_and_name_are_rusts() {
    let clauses = "{ weight: u4, pack: u32 [k:8 | k, n], activation: bf16 }";
    for visibility in ["", "pub", "pub(crate)", "pub(in crate::a)"] {
        let (declaration, scheme, faults) = declare(&format!("/// Doc.\n{visibility} S {clauses}"));
        assert_eq!(faults, [], "{visibility}");
        assert_eq!(scheme, parse(&format!("/// Doc.\nS {clauses}")).ok());
        let written = declaration.visibility.to_string().replace(' ', "");
        assert_eq!(written, visibility.replace(' ', ""));
        assert_eq!(declaration.name.unwrap().to_string(), "S");
    }
    let (declaration, _, faults) = declare("pub (crate)");
    assert!(declaration.name.is_none());
    assert_eq!(faults[0].message, "expected the scheme's name, the text ends");
}

/// Docs as attributes: escapes, raw strings, several lines in one.
#[test]
fn doc_attributes_are_doc_comments() {
    let text = r####"#[doc = " a \"b\" \\c\t\u{e9}\x41\'"] #[doc = " d\ne"] #[doc = r##" "f"# \g"##] S"####;
    let (declaration, _, _) = declare(text);
    let docs = declaration.tokens.into_iter().filter_map(|token| match token.kind {
        TokenKind::Doc(line) => Some(line),
        _ => None,
    });
    let lines = ["a \"b\" \\c\té\u{41}'", "d", "e", "\"f\"# \\g"];
    assert_eq!(docs.collect::<Vec<_>>(), lines);
}

/// `macro_rules` hands its fragments over in invisible groups.
#[test]
fn fragments_of_other_macros() {
    let text = "S { weight: codebook(-1, 1), pack: u8 [k:8 | k, n], activation: bf16 }";
    let wrapped: TokenStream = text.parse().unwrap();
    fn wrap(stream: TokenStream) -> TokenStream {
        let group = |stream| TokenTree::Group(Group::new(Delimiter::None, stream));
        let deeper = stream.into_iter().map(|tree| match tree {
            TokenTree::Group(inner) => {
                TokenTree::Group(Group::new(inner.delimiter(), wrap(inner.stream())))
            }
            tree => group(tree.into()),
        });
        group(deeper.collect()).into()
    }
    let mut faults = Vec::new();
    let declaration = Declaration::read(wrap(wrapped), &mut faults);
    let scheme = parse_tokens(&declaration.tokens, declaration.end(), &mut faults);
    assert_eq!((scheme, faults), (parse(text).ok(), Vec::new()));
}
