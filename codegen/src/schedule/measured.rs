//! The table of measured tiles: the fastest free choices by product, shape and tokens.
//!
//! A line of `measured.txt` has a target, a product's name, N, K, M and a schedule with its free choices.
//! It serves that shape with every number of tokens that rounds up to its M. Shapes without a line are left
//! to the schedules' models. The name of a product of an expert layer has the layer's sizes too, and, where pairs are in order already,
//! the slots of a token block: the line of the first product decides them.
//! `quantloom tune --write codegen/src/schedule/measured.txt` measures again and replaces lines. `quantloom tune --keep` keeps
//! lines of a user's own GPU, which come before those of the table.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use super::choose::Chosen;
use super::problem::Problem;
use super::stack::Stack;

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
    /// Rows of x, a power of two; of an expert layer tokens before they are routed, up to three bits and zeros.
    pub m: u32,
}

impl Case {
    /// The case of a problem and a number of tokens, rounded up.
    pub fn new(problem: &Problem, tokens: u32) -> Self {
        let of_range = if problem.is_of_range() { OF_RANGE } else { "" };
        // Neither the router's weights nor what is added to y changes which tile is fast.
        let stack = problem.stack.map(|stack| Stack { weighted: false, shared: None, ..stack });
        let stack = stack.map(Stack::label).unwrap_or_default();
        let m = match problem.stack {
            None => tokens.checked_next_power_of_two(),
            Some(_) => tokens.checked_next_multiple_of(quarter_below(tokens)),
        };
        Self {
            target: problem.target().name.to_owned(),
            product: problem.product_name() + of_range + &stack,
            n: problem.n,
            k: problem.k,
            m: m.unwrap_or(u32::MAX),
        }
    }

    /// The same in token blocks of so many slots, if pairs are in order already.
    #[must_use]
    pub fn in_blocks(mut self, slots: Option<u32>) -> Self {
        if let Some(slots) = slots {
            self.product += &format!("_b{slots}");
        }
        self
    }
}

/// A quarter of the largest power of two below a number, at least 1.
fn quarter_below(number: u32) -> u32 {
    let power = number.saturating_sub(1).checked_ilog2().unwrap_or(0);
    1 << power.saturating_sub(2)
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
    measured_case(rows, &Case::new(problem, tokens)).filter(|chosen| chosen.takes(problem, tokens))
}

/// The tile of these lines for a case, whatever it supports.
pub fn measured_case(rows: &[Measured], case: &Case) -> Option<Chosen> {
    rows.iter().find(|row| row.case == *case).map(|row| row.chosen)
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
