//! Free choices of schedules that a user sets, in place of the chosen ones.

use std::collections::BTreeMap;
use std::str::FromStr;

use quantloom_runtime::source::Schedule;

use super::JitError;
use super::compile::SCALES_IN_RANGE;
use crate::schedule::Chosen;

/// The environment variable that overrides free choices of every product:
/// `QUANTLOOM_KERNEL="skinny(row_tiles=2, warps=12); tile(rows=64)"`; or the schedule itself:
/// `QUANTLOOM_KERNEL="use warp_group; warp_group(tokens=64)"`.
pub const VARIABLE: &str = "QUANTLOOM_KERNEL";

/// Values of free choices by name, for one schedule or for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// By the schedule's name.
    of: BTreeMap<String, BTreeMap<String, u64>>,
    /// Of every schedule.
    all: BTreeMap<String, u64>,
    /// The schedule that is used in place of the chosen one.
    instead: Option<String>,
}

/// A text that is not a list of overrides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrongOverride {
    /// The text has another form.
    #[error(
        "\"{0}\" is neither SCHEDULE(NAME=VALUE, ...), such as skinny(row_tiles=2, warps=12), nor use SCHEDULE"
    )]
    Form(String),
    /// There is no such schedule.
    #[error("there is no schedule \"{name}\", only {}", Chosen::names().join(", "))]
    Schedule {
        /// The name in the text.
        name: String,
    },
}

impl Overrides {
    /// These free choices for every schedule.
    pub fn of_all(all: BTreeMap<String, u64>) -> Self {
        Self { all, ..Self::default() }
    }

    /// The overrides in [`VARIABLE`]; none if the variable is not set or empty.
    ///
    /// # Errors
    /// [`WrongOverride`].
    pub fn from_environment() -> Result<Self, WrongOverride> {
        let Some(text) = std::env::var_os(VARIABLE) else { return Ok(Self::default()) };
        text.to_string_lossy().parse()
    }

    /// The schedule that is used in place of the chosen one.
    pub fn instead(&self) -> Option<&str> {
        self.instead.as_deref()
    }

    /// Replaces free choices of a schedule; returns whether it has replaced any.
    ///
    /// # Errors
    /// [`JitError::Parameter`]: the schedule has no free choice of that name. N, K and facts of the weight are not free.
    pub fn apply(&self, schedule: &mut Schedule) -> Result<bool, JitError> {
        let own = self.of.get(&schedule.name).into_iter().flatten();
        let mut any = false;
        for (name, value) in self.all.iter().chain(own) {
            let free = |name: &str| !["n", "k", SCALES_IN_RANGE].contains(&name);
            let choices = Chosen::choices(&schedule.name);
            match schedule.parameters.get_mut(name).filter(|_| free(name)) {
                Some(parameter) => *parameter = *value,
                None if choices.contains(&name.as_str()) => {
                    schedule.parameters.insert(name.clone(), *value);
                }
                None => {
                    return Err(JitError::Parameter {
                        schedule: schedule.name.clone(),
                        parameter: name.clone(),
                        known: choices.iter().map(|&name| name.to_owned()).collect(),
                    });
                }
            }
            any = true;
        }
        Ok(any)
    }
}

impl FromStr for Overrides {
    type Err = WrongOverride;

    fn from_str(text: &str) -> Result<Self, WrongOverride> {
        let wrong = || WrongOverride::Form(text.trim().to_owned());
        let mut of: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        let mut instead = None;
        let known = |name: &str| match Chosen::names().contains(&name) {
            true => Ok(name.to_owned()),
            false => Err(WrongOverride::Schedule { name: name.to_owned() }),
        };
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            if let Some(name) = part.strip_prefix("use ") {
                instead = Some(known(name.trim())?);
                continue;
            }
            let (name, choices) = part.split_once('(').ok_or_else(wrong)?;
            let choices = choices.strip_suffix(')').ok_or_else(wrong)?;
            let name = known(name.trim())?;
            let choice = |choice: &str| {
                let (name, value) = choice.split_once('=')?;
                Some((name.trim().to_owned(), value.trim().parse().ok()?))
            };
            let choices = choices.split(',').map(choice).collect::<Option<Vec<_>>>();
            of.entry(name).or_default().extend(choices.ok_or_else(wrong)?);
        }
        Ok(Self { of, all: BTreeMap::new(), instead })
    }
}
