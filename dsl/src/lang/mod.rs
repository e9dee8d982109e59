//! The scheme language as text: `lex -> parse -> check`, and `print` back.
//!
//! In: the text of one scheme, or a macro's tokens (`tokens`, a feature). Out: a [`Scheme`], or
//! every error with its span. Start at [`parse()`]; docs/scheme-language.md is the reference.

mod bit_coverage;
mod check;
mod clauses;
mod diagnostic;
mod layouts;
mod lex;
mod print;
mod reader;
mod syntax;
#[cfg(feature = "tokens")]
mod tokens;

pub use check::check;
pub use diagnostic::{Diagnostic, Diagnostics, Span};
pub use layouts::LayoutSyntax;
pub use lex::{Token, TokenKind, lex};
pub(crate) use print::offset_text;
pub use syntax::{Clause, SchemeSyntax};
#[cfg(feature = "tokens")]
pub use tokens::Declaration;

use crate::Scheme;
use crate::layout::{Component, Fragment, Layout};

/// Longer texts are rejected unread, which bounds time and memory.
const MOST_BYTES: usize = 1 << 16;

/// Reads one scheme.
///
/// # Errors
/// Every error of the text, each with its span; see [`Diagnostics`].
pub fn parse(text: &str) -> Result<Scheme, Diagnostics> {
    if text.len() > MOST_BYTES {
        let message =
            format!("a scheme of {} bytes is too long; the limit is {MOST_BYTES}", text.len());
        let start = Span { start: 0, end: 0 };
        return Err(Diagnostics::new("", vec![Diagnostic::new(start, message)]));
    }
    let mut faults = Vec::new();
    let tokens = lex(text, &mut faults);
    let scheme = parse_tokens(&tokens, text.len(), &mut faults);
    match scheme {
        Some(scheme) if faults.is_empty() => Ok(scheme),
        _ => Err(Diagnostics::new(text, faults)),
    }
}

/// The pipeline of both front ends: from the tokens of a text file or of a macro to a scheme.
///
/// `end` is the position to report if the input ends too soon.
pub fn parse_tokens(tokens: &[Token], end: usize, faults: &mut Vec<Diagnostic>) -> Option<Scheme> {
    let syntax = parse_syntax(tokens, end, faults)?;
    check(&syntax, faults)
}

/// The clauses that could be read, before they are checked together.
pub fn parse_syntax(
    tokens: &[Token],
    end: usize,
    faults: &mut Vec<Diagnostic>,
) -> Option<SchemeSyntax> {
    clauses::parse(tokens, end, faults)
}

/// Reads a layout alone; digits without a field address the component `own`.
///
/// # Errors
/// Every error of the text.
pub fn parse_layout(text: &str, own: Component) -> Result<Layout, Diagnostics> {
    let mut faults = Vec::new();
    let tokens = lex(text, &mut faults);
    let mut reader = reader::Reader::new(&tokens, text.len());
    let layout = layouts::layout(&mut reader, own)
        .and_then(|layout| reader.finish().map(|()| layout))
        .map_err(|fault| faults.push(fault));
    match layout {
        Ok(syntax) if faults.is_empty() => Ok(syntax.layout),
        _ => Err(Diagnostics::new(text, faults)),
    }
}

/// Reads a matrix instruction's fragment, `[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8]`.
///
/// # Errors
/// Every error of the text, and digits that do not form a chain.
pub fn parse_fragment(text: &str) -> Result<Fragment, Diagnostics> {
    let mut faults = Vec::new();
    let tokens = lex(text, &mut faults);
    let mut reader = reader::Reader::new(&tokens, text.len());
    let whole = Span { start: 0, end: text.len() };
    let fragment = layouts::fragment(&mut reader)
        .and_then(|outputs| reader.finish().map(|()| outputs))
        .and_then(|outputs| {
            Fragment::new(outputs).map_err(|error| Diagnostic::new(whole, error.to_string()))
        })
        .map_err(|fault| faults.push(fault));
    match fragment {
        Ok(fragment) if faults.is_empty() => Ok(fragment),
        _ => Err(Diagnostics::new(text, faults)),
    }
}
