//! Layer names against the patterns of configurations: exact names, `re:` expressions that
//! match from the start as Python's `re.match` does, and shell globs.

use fancy_regex::Regex;

use super::CheckpointError;
use super::config::shortened;

/// A compiled pattern.
pub(super) enum Pattern {
    Exact(String),
    Expression(Regex),
}

/// Compiles the patterns of one configuration. A short expression can be large when compiled
/// (`a{1000}`): all of them together have a budget.
pub(super) struct Compiler {
    /// Bytes.
    left: usize,
}

/// Sizes that an expression is charged, in bytes: plain words, classes of Unicode letters, more.
const SIZES: [usize; 3] = [8 << 10, 64 << 10, 512 << 10];

impl Compiler {
    /// Room for some thousand plain expressions.
    pub(super) fn new() -> Self {
        Self { left: 64 << 20 }
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
        let mut what = "the configuration's expressions are too large".to_owned();
        for size in SIZES {
            if size > self.left {
                break;
            }
            let compiled = fancy_regex::RegexBuilder::new(&format!("^(?:{text})"))
                .backtrack_limit(100_000)
                .delegate_size_limit(size)
                .delegate_dfa_size_limit(size)
                .max_prog_size(size / 128)
                .build();
            match compiled {
                Ok(regex) => {
                    self.left -= size;
                    return Ok(Pattern::Expression(regex));
                }
                Err(error) => what = error.to_string(),
            }
        }
        Err(fault(text, what))
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
}

fn fault(pattern: &str, what: String) -> CheckpointError {
    CheckpointError::Pattern { pattern: shortened(pattern.to_owned()), what: shortened(what) }
}

impl Pattern {
    pub(super) fn matches(&self, name: &str) -> Result<bool, CheckpointError> {
        match self {
            Self::Exact(text) => Ok(text == name),
            Self::Expression(regex) => {
                regex.is_match(name).map_err(|error| fault(regex.as_str(), error.to_string()))
            }
        }
    }
}

/// Whether any of the patterns matches.
pub(super) fn any(patterns: &[Pattern], name: &str) -> Result<bool, CheckpointError> {
    for pattern in patterns {
        if pattern.matches(name)? {
            return Ok(true);
        }
    }
    Ok(false)
}
