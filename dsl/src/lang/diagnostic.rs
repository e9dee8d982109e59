//! Errors in the text of a scheme: message, location, and a suggestion.

use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// A half-open range of bytes of the text, or of token indices of a macro.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The smallest span that holds both.
    pub fn to(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The location.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// A suggestion.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error without a suggestion.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None }
    }

    /// Adds a suggestion.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// All errors of one text, in the order of the text; displays as annotated source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    text: String,
    faults: Vec<Diagnostic>,
}

impl Diagnostics {
    pub(crate) fn new(text: &str, mut faults: Vec<Diagnostic>) -> Self {
        faults.sort_by_key(|fault| fault.span.start);
        faults.dedup();
        Self { text: text.to_owned(), faults }
    }

    /// The errors, in the order of the text.
    pub fn faults(&self) -> &[Diagnostic] {
        &self.faults
    }

    /// Line and column, both from 1, of a byte of the text.
    pub fn line_column(&self, byte: usize) -> (usize, usize) {
        let before = self.text.get(..byte).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (line, column)
    }
}

/// At most this many errors are shown, the rest is counted: a text that is no scheme has thousands.
const MOST_SHOWN: usize = 20;

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renderer = Renderer::plain();
        for (number, fault) in self.faults.iter().take(MOST_SHOWN).enumerate() {
            if number > 0 {
                f.write_str("\n\n")?;
            }
            let start = fault.span.start.min(self.text.len());
            let end = fault.span.end.clamp(start, self.text.len());
            let source = Snippet::source(self.text.as_str())
                .annotation(AnnotationKind::Primary.span(start..end));
            let mut group: Group<'_> =
                Level::ERROR.primary_title(fault.message.as_str()).element(source);
            if let Some(help) = &fault.help {
                group = group.element(Level::HELP.message(help.as_str()));
            }
            f.write_str(&renderer.render(&[group]))?;
        }
        match self.faults.len().saturating_sub(MOST_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more errors"),
        }
    }
}

impl std::error::Error for Diagnostics {}
