//! Errors of a declaration as errors of the Rust compiler, each at its place in the declaration.

use proc_macro2::{Delimiter, Group, Literal, TokenStream, TokenTree};
use quantloom_dsl::lang::{Declaration, Diagnostic};
use quote::quote_spanned;

/// One `compile_error!` per fault, in the order of the source.
pub(super) fn errors(declaration: &Declaration, mut faults: Vec<Diagnostic>) -> TokenStream {
    faults.sort_by_key(|fault| fault.span.start);
    faults.dedup();
    faults.iter().map(|fault| error(declaration, fault)).collect()
}

/// The compiler underlines from the macro's path to its closing brace: the path gets the span of
/// the fault's first token, the braces the span of its last.
fn error(declaration: &Declaration, fault: &Diagnostic) -> TokenStream {
    let (first, last) = declaration.place(fault.span);
    let message = match &fault.help {
        Some(help) => format!("{}\nhelp: {help}", fault.message),
        None => fault.message.clone(),
    };
    let mut message = Literal::string(&message);
    message.set_span(last);
    let mut body = Group::new(Delimiter::Brace, TokenTree::from(message).into());
    body.set_span(last);
    quote_spanned!(first=> ::core::compile_error! #body)
}
