//! A cursor over tokens, with an error message for unexpected ones.

use super::diagnostic::{Diagnostic, Span};
use super::lex::{Token, TokenKind};

pub(super) type Parsed<T> = Result<T, Diagnostic>;

pub(super) struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(tokens: &'a [Token], end: usize) -> Self {
        Self { tokens, at: 0, end }
    }

    pub(super) fn peek(&self) -> Option<&'a TokenKind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    pub(super) fn peek_second(&self) -> Option<&'a TokenKind> {
        self.tokens.get(self.at + 1).map(|token| &token.kind)
    }

    /// The span of the next token, or the end of the input.
    pub(super) fn span(&self) -> Span {
        let end = Span { start: self.end, end: self.end };
        self.tokens.get(self.at).map_or(end, |token| token.span)
    }

    /// From `start` to the last token read.
    pub(super) fn since(&self, start: Span) -> Span {
        let last = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        last.map_or(start, |token| start.to(token.span))
    }

    pub(super) fn skip(&mut self) {
        self.at += 1;
    }

    pub(super) fn at_mark(&self, mark: char) -> bool {
        self.peek() == Some(&TokenKind::Mark(mark))
    }

    pub(super) fn take_mark(&mut self, mark: char) -> bool {
        let here = self.at_mark(mark);
        self.at += usize::from(here);
        here
    }

    pub(super) fn at_word(&self, wanted: &str) -> bool {
        matches!(self.peek(), Some(TokenKind::Word(word)) if word == wanted)
    }

    pub(super) fn take_word(&mut self, wanted: &str) -> bool {
        let here = self.at_word(wanted);
        self.at += usize::from(here);
        here
    }

    pub(super) fn mark(&mut self, mark: char, place: &str) -> Parsed<()> {
        if self.take_mark(mark) {
            return Ok(());
        }
        Err(self.expected(&format!("`{mark}` {place}")))
    }

    pub(super) fn word(&mut self, what: &str) -> Parsed<(&'a str, Span)> {
        let span = self.span();
        match self.peek() {
            Some(TokenKind::Word(word)) => {
                self.skip();
                Ok((word, span))
            }
            _ => Err(self.expected(what)),
        }
    }

    /// A decimal integer.
    pub(super) fn integer(&mut self, what: &str) -> Parsed<u32> {
        match self.peek() {
            Some(TokenKind::Number(text)) => {
                let value = text.parse().map_err(|_| self.expected(what))?;
                self.skip();
                Ok(value)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// A decimal number, possibly negative.
    pub(super) fn real(&mut self, what: &str) -> Parsed<f64> {
        let negative = self.take_mark('-');
        match self.peek() {
            Some(TokenKind::Number(text)) => {
                let value: f64 = text.parse().map_err(|_| self.expected(what))?;
                self.skip();
                Ok(if negative { -value } else { value })
            }
            _ => Err(self.expected(what)),
        }
    }

    /// `as "name"`, if present, and its span.
    pub(super) fn name(&mut self) -> Parsed<Option<(String, Span)>> {
        if !self.take_word("as") {
            return Ok(None);
        }
        let span = self.span();
        match self.peek() {
            Some(TokenKind::Text(name)) if !name.is_empty() => {
                self.skip();
                Ok(Some((name.clone(), span)))
            }
            _ => Err(self.expected("the tensor's name in quotes")),
        }
    }

    pub(super) fn expected(&self, what: &str) -> Diagnostic {
        let found = match self.peek() {
            None => "the text ends".to_owned(),
            Some(_) => format!("found {}", self.found()),
        };
        Diagnostic::new(self.span(), format!("expected {what}, {found}"))
    }

    /// The next token, quoted.
    pub(super) fn found(&self) -> String {
        match self.peek() {
            None => "the end".to_owned(),
            Some(TokenKind::Word(text) | TokenKind::Number(text)) => format!("`{text}`"),
            Some(TokenKind::Text(text)) => format!("\"{text}\""),
            Some(TokenKind::Doc(_)) => "a doc comment".to_owned(),
            Some(TokenKind::Mark(mark)) => format!("`{mark}`"),
        }
    }

    /// Whether a clause starts here: outside of brackets only the name of a clause is followed by a
    /// colon.
    pub(super) fn at_clause(&self) -> bool {
        matches!(self.peek(), Some(TokenKind::Word(_)))
            && self.peek_second() == Some(&TokenKind::Mark(':'))
    }

    pub(super) fn finish(&self) -> Parsed<()> {
        if self.at < self.tokens.len() {
            return Err(self.expected("the end"));
        }
        Ok(())
    }

    /// Index of the next token, for [`Reader::recover`].
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Skips to the next `,`, `}` or clause on the nesting level of token number `start`.
    pub(super) fn recover(&mut self, start: usize) {
        self.at = start;
        let mut depth = 0usize;
        while let Some(kind) = self.peek() {
            match kind {
                TokenKind::Word(_) if depth == 0 && self.at > start && self.at_clause() => return,
                TokenKind::Mark('[' | '{' | '(') => depth += 1,
                TokenKind::Mark(',' | '}') if depth == 0 => return,
                TokenKind::Mark(']' | '}' | ')') => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.skip();
        }
    }
}

/// The nearest of the names, if one is near enough.
pub(super) fn nearest<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    names
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
