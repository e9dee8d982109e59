//! Text to tokens. The kinds of tokens are those of Rust's lexer, so that one parser serves both
//! front ends, text files and the macro: `1x128` and `7.5` are one token each, `..` is two.

use super::diagnostic::{Diagnostic, Span};

/// The kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A name: `weight`, `u4`, `k`.
    Word(String),
    /// Starts with a digit: `8`, `7.5`, `1x128`.
    Number(String),
    /// Between double quotes, unescaped.
    Text(String),
    /// A `///` line, without the slashes and one space.
    Doc(String),
    /// A single character.
    Mark(char),
}

/// A token and its span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The kind.
    pub kind: TokenKind,
    /// The span.
    pub span: Span,
}

/// Characters that are tokens by themselves.
pub(super) const MARKS: &str = "{}[]():,|-+/*~^=.;@";

/// Splits a text into tokens; other characters are reported and skipped.
pub fn lex(text: &str, faults: &mut Vec<Diagnostic>) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (length, kind) = if first.is_whitespace() {
            (first.len_utf8(), None)
        } else if top_digit(rest, tokens.last(), at) {
            // `n//2` is the top digit of two parts; elsewhere `//` starts a comment.
            (1, Some(TokenKind::Mark('/')))
        } else if rest.starts_with("//") {
            comment(rest)
        } else if first.is_ascii_digit() {
            let length = number_length(rest);
            (length, Some(TokenKind::Number(rest[..length].to_owned())))
        } else if first.is_ascii_alphabetic() || first == '_' {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
            (length, Some(TokenKind::Word(rest[..length].to_owned())))
        } else if first == '"' {
            quoted(rest, at, faults)
        } else if MARKS.contains(first) {
            (1, Some(TokenKind::Mark(first)))
        } else {
            let span = Span { start: at, end: at + first.len_utf8() };
            faults.push(Diagnostic::new(span, format!("`{first}` has no meaning in a scheme")));
            (first.len_utf8(), None)
        };
        let span = Span { start: at, end: at + length };
        tokens.extend(kind.map(|kind| Token { kind, span }));
        at += length;
    }
    tokens
}

/// `//` directly between an axis and a number.
fn top_digit(rest: &str, before: Option<&Token>, at: usize) -> bool {
    let glued = before.is_some_and(|token| {
        token.span.end == at && matches!(&token.kind, TokenKind::Word(word) if word.len() == 1)
    });
    let after = rest.strip_prefix("//");
    glued && after.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()))
        || second_slash(rest, before, at)
}

/// The second slash of `//`; the first is a token already.
fn second_slash(rest: &str, before: Option<&Token>, at: usize) -> bool {
    let after_slash =
        before.is_some_and(|token| token.span.end == at && token.kind == TokenKind::Mark('/'));
    after_slash && rest.starts_with('/') && rest[1..].starts_with(|c: char| c.is_ascii_digit())
}

fn comment(rest: &str) -> (usize, Option<TokenKind>) {
    let length = rest.find('\n').unwrap_or(rest.len());
    let line = rest[..length].trim_end();
    let doc = line.strip_prefix("///").filter(|doc| !doc.starts_with('/'));
    let doc = doc.map(|doc| doc.strip_prefix(' ').unwrap_or(doc).to_owned());
    (length, doc.map(TokenKind::Doc))
}

/// Digits and letters, and a point if a digit follows (`4..6` is 4, two points, 6).
fn number_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut length = 0;
    while let Some(&byte) = bytes.get(length) {
        let point = byte == b'.' && bytes.get(length + 1).is_some_and(u8::is_ascii_digit);
        // `1e-3` is one token, as in Rust.
        let exponent_sign = matches!(byte, b'-' | b'+')
            && length > 1
            && matches!(bytes[length - 1], b'e' | b'E')
            && bytes[..length - 1].iter().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'_'));
        if !(byte.is_ascii_alphanumeric() || byte == b'_' || point || exponent_sign) {
            break;
        }
        length += 1;
    }
    length
}

fn quoted(rest: &str, at: usize, faults: &mut Vec<Diagnostic>) -> (usize, Option<TokenKind>) {
    let inner = &rest[1..];
    match inner.find(['"', '\n', '\\']) {
        Some(end) if inner[end..].starts_with('"') => {
            (end + 2, Some(TokenKind::Text(inner[..end].to_owned())))
        }
        end => {
            let length = 1 + end.unwrap_or(inner.len());
            let span = Span { start: at, end: at + length };
            let fault = Diagnostic::new(span, "this name has no closing quote")
                .help("close it with `\"` on the same line; names have no escapes");
            faults.push(fault);
            (length + usize::from(end.is_some_and(|end| inner[end..].starts_with('\\'))), None)
        }
    }
}
