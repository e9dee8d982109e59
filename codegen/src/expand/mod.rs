//! Expands `scheme!`: from a declaration to the type that it declares.
//!
//! In: `(root) declaration`, the tokens of a facade's `scheme!`; `root` is the path of a module
//! that contains `dsl` and `runtime`, so that the expansion resolves in any crate and under any
//! name. Out: a type of the declared name that implements the runtime's `Declared`. If the
//! declaration has errors: an error at the place of each, all at once (`errors`), and the same
//! type, so that the compiler still checks the rest of the user's file. Start at [`scheme`].

mod errors;
mod op;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quantloom_dsl::lang::{self, Clause, Declaration, Diagnostic, SchemeSyntax, Span};
use quantloom_dsl::{Scheme, parse};
use quote::quote;

use crate::plan;

/// Expands `(root) declaration`.
pub fn scheme(input: TokenStream) -> TokenStream {
    let mut input = input.into_iter();
    let root = match input.next() {
        Some(TokenTree::Group(root)) if root.delimiter() == Delimiter::Parenthesis => root.stream(),
        _ => return quote!(::core::compile_error! { "call `scheme!` of a Quantloom crate" }),
    };
    let mut faults = Vec::new();
    let declaration = Declaration::read(input.collect(), &mut faults);
    let syntax = lang::parse_syntax(&declaration.tokens, declaration.end(), &mut faults);
    let scheme = syntax.as_ref().and_then(|syntax| lang::check(syntax, &mut faults));
    // A scheme with errors is not used: it may not be what its author meant.
    let scheme = scheme.filter(|_| faults.is_empty());
    targets(syntax.as_ref(), scheme.as_ref(), &mut faults);
    let nameable = nameable(&declaration, &mut faults);
    let errors = errors::errors(&declaration, faults);
    let op = scheme
        .or_else(stand_in)
        .filter(|_| nameable)
        .map(|scheme| op::op(&root, &declaration, &scheme));
    quote!(#errors #op)
}

/// Checks the targets of the `targets` clause: that they exist, and, if the scheme has no errors,
/// that they support it.
fn targets(syntax: Option<&SchemeSyntax>, scheme: Option<&Scheme>, faults: &mut Vec<Diagnostic>) {
    let clauses = syntax.into_iter().flat_map(|syntax| &syntax.clauses);
    let listed = clauses.filter_map(|(clause, _)| match clause {
        Clause::Targets(targets) => Some(targets),
        _ => None,
    });
    for (name, span) in listed.flatten() {
        let target = match plan::known(name) {
            Ok(target) => target,
            Err(unknown) => {
                let help = format!("the targets are {}", crate::target::names());
                faults.push(Diagnostic::new(*span, unknown.to_string()).help(help));
                continue;
            }
        };
        if let Some(Err(refusal)) = scheme.map(|scheme| plan::planned(scheme, target)) {
            let message = format!("`{name}` does not support this scheme: {refusal}");
            let help = "list only targets that must be supported; without `targets`, the scheme runs \
                        on every target that supports it";
            faults.push(Diagnostic::new(*span, message).help(help));
        }
    }
}

/// Rust's keywords, which a scheme in a text file may use as its name.
const KEYWORDS: &[&str] = &[
    "_", "Self", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue",
    "crate", "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if",
    "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub",
    "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// Whether the scheme's name can be the name of a type.
fn nameable(declaration: &Declaration, faults: &mut Vec<Diagnostic>) -> bool {
    let Some(name) = &declaration.name else { return false };
    let keyword = KEYWORDS.iter().any(|keyword| name == keyword);
    if keyword {
        let text = name.to_string();
        let named = |token: &&lang::Token| token.kind == lang::TokenKind::Word(text.clone());
        let span = declaration.tokens.iter().find(named).map_or(Span::default(), |t| t.span);
        let message = format!("`{text}` is a Rust keyword, and cannot be the name of a scheme");
        faults.push(Diagnostic::new(span, message).help("name it as a type, such as `W4A16G128`"));
    }
    !keyword
}

/// The scheme that replaces a scheme with errors, so that its type is still declared.
fn stand_in() -> Option<Scheme> {
    parse("StandIn { weight: u8, pack: [k, n], activation: f32 }").ok()
}
