//! The table of measured tiles: the fastest free choices by product, shape and tokens.
//!
//! A line of `measured.txt` has a target, a product's name, N, K, M and a schedule with its free choices.
//! It serves that shape with every number of tokens that rounds up to its M. Shapes without a line are left
//! to the schedules' models.
//! `quantloom tune --write codegen/src/schedule/measured.txt` measures again and replaces lines. `quantloom tune --keep` keeps
//! lines of a user's own GPU, which come before those of the table.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use super::choose::Chosen;
use super::problem::Problem;

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The product.
    pub case: Case,
    /// The fastest choice.
    pub chosen: Chosen,
}

/// Behind the product's name where the weight is in the layout for scales of a range ([`Problem::is_of_range`]).
const OF_RANGE: &str = "_of_range";

/// A product, as far as it affects which tile is fast.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The target's name.
    pub target: String,
    /// The product's name.
    pub product: String,
    /// Rows of w.
    pub n: u32,
    /// Columns of w.
    pub k: u32,
    /// Rows of x, a power of two.
    pub m: u32,
}

impl Case {
    /// The case of a problem and a number of tokens, rounded up.
    pub fn new(problem: &Problem, tokens: u32) -> Self {
        Self {
            target: problem.target().name.to_owned(),
            product: problem.product_name() + if problem.is_of_range() { OF_RANGE } else { "" },
            n: problem.n,
            k: problem.k,
            m: tokens.checked_next_power_of_two().unwrap_or(u32::MAX),
        }
    }
}

/// The text of the table.
const LINES: &str = include_str!("measured.txt");

/// The lines of the table. A line that does not parse is skipped here; a test finds it.
pub fn measured_rows() -> &'static [Measured] {
    static TABLE: OnceLock<Vec<Measured>> = OnceLock::new();
    TABLE.get_or_init(|| measured_lines(LINES).filter_map(|line| line.parse().ok()).collect())
}

/// The lines of a table, without comments.
pub fn measured_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The fastest measured tile for a number of tokens, if the table has one.
pub fn measured(problem: &Problem, tokens: u32) -> Option<Chosen> {
    measured_in(measured_rows(), problem, tokens)
}

/// The tile of these lines for a number of tokens, if there is one and it supports them.
pub fn measured_in(rows: &[Measured], problem: &Problem, tokens: u32) -> Option<Chosen> {
    let case = Case::new(problem, tokens);
    let row = rows.iter().find(|row| row.case == case)?;
    row.chosen.takes(problem, tokens).then_some(row.chosen)
}

/// The text of a table after new lines replace those of the same cases: sorted, below the comments at
/// its start.
///
/// # Errors
/// A line that does not parse.
pub fn merged(text: &str, new: &[Measured]) -> Result<String, WrongLine> {
    let mut rows = BTreeMap::new();
    for line in measured_lines(text) {
        let row: Measured = line.parse()?;
        rows.insert(row.case.clone(), row);
    }
    rows.extend(new.iter().map(|row| (row.case.clone(), row.clone())));
    let comments = text.lines().take_while(|line| line.starts_with('#')).map(str::to_owned);
    let all = comments.chain(rows.values().map(Measured::to_string));
    Ok(all.map(|line| line + "\n").collect())
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { target, product, n, k, m } = &self.case;
        write!(f, "{target} {product} {n} {k} {m} {}", self.chosen.name())?;
        self.chosen.parameters().iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A line that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a line of a table of tiles: expected TARGET PRODUCT N K M SCHEDULE NAME=VALUE ..."
)]
pub struct WrongLine(String);

impl FromStr for Measured {
    type Err = WrongLine;

    fn from_str(line: &str) -> Result<Self, WrongLine> {
        let wrong = || WrongLine(line.to_owned());
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or_else(wrong);
        let (target, product) = (word()?.to_owned(), word()?.to_owned());
        let mut size = || word()?.parse().map_err(|_| wrong());
        let (n, k, m) = (size()?, size()?, size()?);
        let schedule = word()?;
        let choice = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let parameters = words.map(choice).collect::<Option<_>>().ok_or_else(wrong)?;
        let chosen = Chosen::read(schedule, &parameters).map_err(|_| wrong())?;
        Ok(Self { case: Case { target, product, n, k, m }, chosen })
    }
}
