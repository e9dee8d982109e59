//! Matching of layer names against the patterns of configurations: exact names, `re:` expressions
//! that match from the start like Python's `re.match`, and shell globs.
//!
//! A short expression can be large when compiled (`a{1000}`), and slow on a short name
//! (`(a|a)(a|a)..`). All patterns of a configuration share one [`Compiler`] with a budget for both:
//! memory of compiled expressions, and steps of all matches of all layers.

use std::cell::{Cell, OnceCell};
use std::collections::HashSet;
use std::rc::Rc;

use fancy_regex::{Error, Regex, RegexBuilder, RuntimeError};

use super::CheckpointError;
use super::config::shortened;

/// Why a pattern of a configuration cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatternProblem {
    /// It is no expression, or fails as one.
    #[error("{what}")]
    Expression {
        /// What the engine of expressions says, shortened: for a person, since a program can only take another pattern.
        what: String,
    },
    /// The patterns of the configuration take too much memory.
    #[error("the configuration's expressions are too large")]
    Memory,
    /// The name of a layer is longer than those that are compared with expressions.
    #[error("a layer's name of {bytes} letters is too long for it")]
    Name {
        /// The bytes of the name.
        bytes: usize,
    },
    /// The patterns of the configuration take too many steps on the names of all layers.
    #[error(
        "the configuration's patterns take too long on the names of its layers: write exact names, or \
         expressions without `(?` and `\\1`"
    )]
    Time,
}

impl From<Error> for PatternProblem {
    /// In words, since the engine's error quotes the pattern, which may be as long as the file.
    fn from(error: Error) -> Self {
        Self::Expression { what: shortened(error.to_string()) }
    }
}

/// A compiled pattern.
pub(super) enum Pattern {
    Exact(String),
    Expression(Box<Expression>),
}

/// Compiles the patterns of one configuration.
pub(super) struct Compiler {
    /// Budget in bytes.
    left: usize,
    steps: Rc<Cell<u64>>,
}

/// The charge for parts of an expression, in bytes: plain words, classes of Unicode letters,
/// others.
const SIZES: [usize; 3] = [8 << 10, 64 << 10, 512 << 10];

/// Steps that all matches of a configuration may take together: some seconds.
const STEPS: u64 = 100_000_000;
/// The backtracking limit of a first match, and of a second one if the first reaches it.
const FEW: usize = 256;
const MANY: usize = 100_000;
/// Longer names of layers are not compared with expressions; usual names have some hundred letters.
const LONGEST: usize = 2000;

/// An expression: compiled with the low backtracking limit, and with the high one when necessary.
pub(super) struct Expression {
    text: String,
    quick: Regex,
    patient: OnceCell<Regex>,
    size: usize,
    /// Whether it may backtrack.
    backtracks: bool,
    steps: Rc<Cell<u64>>,
}

impl Compiler {
    /// Enough for some thousand plain expressions.
    pub(super) fn new() -> Self {
        Self { left: 64 << 20, steps: Rc::new(Cell::new(STEPS)) }
    }

    /// `re:EXPRESSION`, or an exact name.
    pub(super) fn target(&mut self, text: &str) -> Result<Pattern, CheckpointError> {
        match text.strip_prefix("re:") {
            Some(expression) => self.expression(expression),
            None => Ok(Pattern::Exact(text.to_owned())),
        }
    }

    /// An expression that matches from the start of the name.
    pub(super) fn expression(&mut self, text: &str) -> Result<Pattern, CheckpointError> {
        let mut problem = PatternProblem::Memory;
        for size in SIZES {
            if size > self.left {
                break;
            }
            match compiled(text, size, FEW) {
                Ok(quick) => {
                    self.left -= size;
                    return Ok(Pattern::Expression(Box::new(Expression {
                        text: text.to_owned(),
                        quick,
                        patient: OnceCell::new(),
                        size,
                        backtracks: may_backtrack(text),
                        steps: self.steps.clone(),
                    })));
                }
                Err(error) => problem = error.into(),
            }
        }
        Err(fault(text, problem))
    }

    /// A shell glob of the whole name: `*`, `?`.
    pub(super) fn glob(&mut self, text: &str) -> Result<Pattern, CheckpointError> {
        if text.starts_with("re:") || !text.contains(['*', '?']) {
            return self.target(text);
        }
        let escaped: String = text
            .chars()
            .map(|c| match c {
                '*' => ".*".to_owned(),
                '?' => ".".to_owned(),
                c if c.is_ascii_alphanumeric() || c == '_' => c.to_string(),
                c => format!("\\{c}"),
            })
            .collect();
        self.expression(&format!("(?s:{escaped})$"))
    }

    /// A list of patterns, each compiled by `one`.
    pub(super) fn list<'t>(
        &mut self,
        texts: impl IntoIterator<Item = &'t str>,
        one: impl Fn(&mut Self, &str) -> Result<Pattern, CheckpointError>,
    ) -> Result<Patterns, CheckpointError> {
        let mut patterns = Patterns::default();
        for text in texts {
            match one(self, text)? {
                Pattern::Exact(name) => {
                    patterns.exact.insert(name);
                }
                Pattern::Expression(expression) => patterns.expressions.push(*expression),
            }
        }
        Ok(patterns)
    }
}

fn compiled(text: &str, size: usize, limit: usize) -> Result<Regex, Error> {
    RegexBuilder::new(&format!("^(?:{text})"))
        .backtrack_limit(limit)
        .delegate_size_limit(size)
        .delegate_dfa_size_limit(size)
        .max_prog_size(size / 128)
        .build()
}

/// Whether an expression has features that automata do not support: lookaround, backreferences,
/// atomic groups. If unsure, the answer is yes, which costs only steps.
fn may_backtrack(text: &str) -> bool {
    let special = ["(?=", "(?!", "(?<", "(?>", "(?(", "(?P=", "(?P>", "++", "*+", "?+", "}+"];
    let escaped = |pair: &[u8]| {
        pair[0] == b'\\' && (pair[1].is_ascii_digit() || b"bBgGkKzZAR<>".contains(&pair[1]))
    };
    special.iter().any(|special| text.contains(special)) || text.as_bytes().windows(2).any(escaped)
}

fn fault(pattern: &str, problem: impl Into<PatternProblem>) -> CheckpointError {
    CheckpointError::Pattern { pattern: shortened(pattern.to_owned()), problem: problem.into() }
}

impl Expression {
    fn matches(&self, name: &str) -> Result<bool, CheckpointError> {
        if name.len() > LONGEST {
            return Err(fault(&self.text, PatternProblem::Name { bytes: name.len() }));
        }
        // A letter takes one step of the automaton, or an eighth of one in a small automaton; an
        // expression that may backtrack is charged for the low backtracking limit.
        let length = name.len() as u64 + 8;
        let few = if self.backtracks { FEW as u64 } else { 0 };
        self.spend(length * (self.size / SIZES[0]) as u64 / 8 + few)?;
        let failed = |error: Error| fault(&self.text, error);
        match self.quick.is_match(name) {
            Err(Error::RuntimeError(RuntimeError::BacktrackLimitExceeded)) => {
                self.spend(MANY as u64)?;
                if self.patient.get().is_none() {
                    let patient = compiled(&self.text, self.size, MANY).map_err(failed)?;
                    let _ = self.patient.set(patient);
                }
                let patient = self.patient.get().unwrap_or(&self.quick);
                patient.is_match(name).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    fn spend(&self, steps: u64) -> Result<(), CheckpointError> {
        let left = self.steps.get().checked_sub(steps);
        self.steps.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or_else(|| fault(&self.text, PatternProblem::Time))
    }
}

impl Pattern {
    pub(super) fn matches(&self, name: &str) -> Result<bool, CheckpointError> {
        match self {
            Self::Exact(text) => Ok(text == name),
            Self::Expression(expression) => expression.matches(name),
        }
    }
}

/// Patterns, any of which may match.
#[derive(Default)]
pub(super) struct Patterns {
    exact: HashSet<String>,
    expressions: Vec<Expression>,
}

impl Patterns {
    /// Whether any of them matches.
    pub(super) fn any(&self, name: &str) -> Result<bool, CheckpointError> {
        if self.exact.contains(name) {
            return Ok(true);
        }
        for expression in &self.expressions {
            if expression.matches(name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
