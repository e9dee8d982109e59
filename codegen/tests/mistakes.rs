//! What an author of a scheme sees: for each `mistakes/*.rs`, the errors of its `scheme!` as rustc
//! prints them, `mistakes/*.stderr`. After a change of messages:
//! `MISTAKES=overwrite cargo test --test codegen mistakes`, and read the
//! difference. That rustc underlines so is tested by `tests/tests/ui`.

use std::fmt::Write;
use std::path::Path;

use proc_macro2::{Delimiter, Group, Ident, LineColumn, Span, TokenStream, TokenTree};
use quantloom_codegen::expand;

/// The declaration in the first call of `scheme!`, in functions and modules too.
fn declaration(tokens: TokenStream) -> Option<TokenStream> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    tokens.iter().enumerate().find_map(|(at, token)| {
        let TokenTree::Group(group) = token else { return None };
        let name = at.checked_sub(2).map(|name| tokens[name].to_string());
        match name.as_deref() {
            Some("scheme") => Some(group.stream()),
            _ => declaration(group.stream()),
        }
    })
}

/// An error of an expansion: its message and the place that rustc underlines.
struct Error {
    message: String,
    start: LineColumn,
    end: LineColumn,
}

/// The errors of an expansion: `::core::compile_error! { "message" }`.
fn errors(expansion: TokenStream) -> Vec<Error> {
    let tokens: Vec<TokenTree> = expansion.into_iter().collect();
    let calls = tokens.windows(8).filter(|call| call[5].to_string() == "compile_error");
    calls
        .map(|call| {
            let body = match &call[7] {
                TokenTree::Group(body) => body,
                other => panic!("an error has a body: {other}"),
            };
            let message = syn::parse2::<syn::LitStr>(body.stream()).unwrap().value();
            Error { message, start: call[0].span().start(), end: body.span().end() }
        })
        .collect()
}

/// As rustc prints an error of a line.
fn shown(error: &Error, file: &str, text: &str) -> String {
    let Error { message, start, end } = error;
    assert_eq!(start.line, end.line, "{file}: {message}");
    let (number, margin) = (start.line.to_string(), " ".repeat(start.line.to_string().len()));
    let line = text.lines().nth(start.line - 1).unwrap();
    let (indent, marks) = (" ".repeat(start.column), "^".repeat(end.column - start.column));
    let mut shown = format!("error: {}\n", message.replace('\n', "\n       "));
    writeln!(shown, "{margin}--> {file}:{number}:{}", start.column + 1).unwrap();
    writeln!(shown, "{margin} |\n{number} | {line}\n{margin} | {indent}{marks}").unwrap();
    shown
}

#[test]
fn each_mistake_is_underlined() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mistakes");
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().unwrap() == "rs").collect();
    files.sort();
    assert!(files.len() > 50, "{} files", files.len());
    let mut wrong = String::new();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let root = Ident::new("root", Span::call_site());
        let root = Group::new(Delimiter::Parenthesis, TokenTree::from(root).into());
        let declared = declaration(text.parse().unwrap()).expect(name);
        let given = std::iter::once(TokenTree::from(root)).chain(declared).collect();
        let errors = errors(expand::scheme(given));
        let errors: Vec<String> = errors.iter().map(|error| shown(error, name, &text)).collect();
        let found = errors.join("\n");
        let kept = path.with_extension("stderr");
        if std::env::var_os("MISTAKES").is_some_and(|mode| mode == "overwrite") {
            std::fs::write(&kept, &found).unwrap();
        } else if found.is_empty() || std::fs::read_to_string(&kept).ok().as_ref() != Some(&found) {
            writeln!(wrong, "{name}:\n{found}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "other errors than in *.stderr:\n{wrong}");
}
