//! The macro's front end: Rust's tokens to the tokens of the language.
//!
//! In: the tokens between the braces of `scheme!`. Out: a [`Declaration`]: the tokens that
//! [`lex`](super::lex()) gives for the same text, what only Rust needs (visibility, the name as an
//! identifier), and a map from the span of an error, which counts Rust tokens, to the user's file.
//! Start at [`Declaration::read`].

use proc_macro2::{Delimiter, Group, Ident, Literal, Span as OrderDigit, TokenStream, TokenTree};

use super::diagnostic::{Diagnostic, Span};
use super::lex::{MARKS, Token, TokenKind};

/// A declaration as tokens of a macro.
#[derive(Clone, Debug)]
pub struct Declaration {
    /// The tokens; spans are token indices.
    pub tokens: Vec<Token>,
    /// `pub`, `pub(crate)` and the like, as written; empty if absent.
    pub visibility: TokenStream,
    /// The token in the place of the scheme's name, if any.
    pub name: Option<Ident>,
    /// The Rust span of each token, skipped ones included.
    places: Vec<OrderDigit>,
}

impl Declaration {
    /// Reads the tokens; reports those that have no meaning in the language.
    pub fn read(stream: TokenStream, faults: &mut Vec<Diagnostic>) -> Self {
        let mut trees = Vec::new();
        flatten(stream, &mut trees);
        let mut tokens = Tokens { tokens: Vec::new(), places: Vec::new(), faults };
        let mut rest = tokens.docs(&trees);
        let mut visibility = TokenStream::new();
        if let [TokenTree::Ident(word), after @ ..] = rest
            && word == "pub"
        {
            tokens.word(word);
            visibility.extend([rest[0].clone()]);
            rest = after;
            // The language knows only `pub`; the tokens between the parentheses belong to Rust.
            if let [TokenTree::Group(scope), after @ ..] = rest
                && scope.delimiter() == Delimiter::Parenthesis
            {
                visibility.extend([rest[0].clone()]);
                rest = after;
            }
        }
        let name = match rest.first() {
            Some(TokenTree::Ident(name)) => Some(name.clone()),
            _ => None,
        };
        tokens.trees(rest);
        let Tokens { tokens, places, .. } = tokens;
        Self { tokens, visibility, name, places }
    }

    /// The position to report if the tokens end too soon.
    pub fn end(&self) -> usize {
        self.places.len()
    }

    /// The first and the last token of a span, as Rust spans. An empty span at the end is the last
    /// token; without any token it is the macro call.
    pub fn place(&self, span: Span) -> (OrderDigit, OrderDigit) {
        let last = self.places.len().saturating_sub(1);
        let at = |number: usize| self.places.get(number.min(last)).copied();
        let first = at(span.start).unwrap_or_else(OrderDigit::call_site);
        let last = at(span.end.saturating_sub(1).max(span.start)).unwrap_or(first);
        (first, last)
    }
}

/// The token trees without the invisible groups that `macro_rules` puts around its fragments.
fn flatten(stream: TokenStream, trees: &mut Vec<TokenTree>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                flatten(group.stream(), trees);
            }
            tree => trees.push(tree),
        }
    }
}

struct Tokens<'f> {
    tokens: Vec<Token>,
    places: Vec<OrderDigit>,
    faults: &'f mut Vec<Diagnostic>,
}

impl Tokens<'_> {
    fn push(&mut self, kind: TokenKind, place: OrderDigit) {
        let span = self.place(place);
        self.tokens.push(Token { kind, span });
    }

    fn place(&mut self, place: OrderDigit) -> Span {
        let start = self.places.len();
        self.places.push(place);
        Span { start, end: start + 1 }
    }

    /// Reports the last token as meaningless.
    fn meaningless(&mut self, text: &str, help: &str) {
        let end = self.places.len();
        let span = Span { start: end - 1, end };
        let fault = Diagnostic::new(span, format!("`{text}` has no meaning in a scheme"));
        self.faults.push(if help.is_empty() { fault } else { fault.help(help) });
    }

    /// Reads the doc comments at the front; returns the rest.
    fn docs<'t>(&mut self, mut trees: &'t [TokenTree]) -> &'t [TokenTree] {
        while let [TokenTree::Punct(hash), TokenTree::Group(group), rest @ ..] = trees
            && hash.as_char() == '#'
            && let Some(text) = doc(group)
        {
            for line in text.split('\n') {
                let line = line.trim_end();
                let line = line.strip_prefix(' ').unwrap_or(line).to_owned();
                self.push(TokenKind::Doc(line), group.span());
            }
            trees = rest;
        }
        trees
    }

    fn trees(&mut self, mut trees: &[TokenTree]) {
        loop {
            trees = self.docs(trees);
            let [tree, rest @ ..] = trees else { return };
            trees = rest;
            match tree {
                TokenTree::Ident(word) => self.word(word),
                TokenTree::Literal(literal) => self.literal(literal),
                TokenTree::Group(group) => self.group(group),
                TokenTree::Punct(mark) if MARKS.contains(mark.as_char()) => {
                    self.push(TokenKind::Mark(mark.as_char()), mark.span());
                }
                TokenTree::Punct(mark) => {
                    // Skipped, as the lexer of texts skips it; an attribute is skipped as a whole.
                    self.place(mark.span());
                    let attribute =
                        mark.as_char() == '#' && matches!(rest, [TokenTree::Group(_), ..]);
                    if attribute {
                        self.meaningless("#", "a scheme has no attributes but doc comments");
                        trees = &rest[1..];
                    } else {
                        self.meaningless(&mark.as_char().to_string(), "");
                    }
                }
            }
        }
    }

    fn group(&mut self, group: &Group) {
        let (open, close) = match group.delimiter() {
            Delimiter::Brace => ('{', '}'),
            Delimiter::Bracket => ('[', ']'),
            Delimiter::Parenthesis | Delimiter::None => ('(', ')'),
        };
        let mut trees = Vec::new();
        flatten(group.stream(), &mut trees);
        self.push(TokenKind::Mark(open), group.span_open());
        self.trees(&trees);
        self.push(TokenKind::Mark(close), group.span_close());
    }

    fn word(&mut self, word: &Ident) {
        let text = word.to_string();
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        self.push(TokenKind::Word(text.clone()), word.span());
        if !plain {
            self.meaningless(&text, "a word has ASCII letters, digits and `_`");
        }
    }

    fn literal(&mut self, literal: &Literal) {
        let text = literal.to_string();
        let place = literal.span();
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            // `1.` is one token in Rust and two in the language.
            let number = text.strip_suffix('.').unwrap_or(&text);
            self.push(TokenKind::Number(number.to_owned()), place);
            if number.len() < text.len() {
                self.push(TokenKind::Mark('.'), place);
            }
            return;
        }
        let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match inner {
            Some(name) if !name.contains(['\\', '\n']) => {
                self.push(TokenKind::Text(name.to_owned()), place);
            }
            _ => {
                // In the place of a name it is not reported as a missing name too.
                self.push(TokenKind::Text(text.clone()), place);
                self.meaningless(
                    &text,
                    "write a name between plain double quotes on one line, without escapes",
                );
            }
        }
    }
}

/// The text of `[doc = "..."]`, which is Rust's form of a doc comment.
fn doc(attribute: &Group) -> Option<String> {
    if attribute.delimiter() != Delimiter::Bracket {
        return None;
    }
    let mut trees = Vec::new();
    flatten(attribute.stream(), &mut trees);
    match trees.as_slice() {
        [TokenTree::Ident(doc), TokenTree::Punct(equals), TokenTree::Literal(text)]
            if doc == "doc" && equals.as_char() == '=' =>
        {
            unquoted(&text.to_string())
        }
        _ => None,
    }
}

/// The value of a string literal, raw or with escapes.
fn unquoted(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        let raw = raw.trim_matches('#');
        return Some(raw.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    }
    let mut text = String::new();
    let mut rest = literal.strip_prefix('"')?.strip_suffix('"')?.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        text.push(match rest.next()? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '0' => '\0',
            'x' => {
                let digits: String = rest.by_ref().take(2).collect();
                char::from(u8::from_str_radix(&digits, 16).ok()?)
            }
            'u' => {
                let digits = rest.by_ref().skip(1).take_while(|digit| *digit != '}');
                char::from_u32(u32::from_str_radix(&digits.collect::<String>(), 16).ok()?)?
            }
            // Quotes and the backslash mean themselves.
            other => other,
        });
    }
    Some(text)
}
