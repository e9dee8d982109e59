//! The whole backend on a real device, in a second: `quantloom devices --test`.
//!
//! In: a device number. Out: one [`Check`] a feature, as soon as it is done. Each compares what
//! the device computed with what it should; on a machine without a device each says why it was
//! skipped. [`texts`] has the kernels, [`checks`](self) here what is expected of them.

mod checks;
pub mod texts;

use std::fmt;

use quantloom_runtime::cuda::{Context, CudaError, Stream};

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was seen.
    Passed(String),
    /// What was wrong.
    Failed(String),
    /// Why it was not run.
    Skipped(String),
}

/// One feature of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The feature.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, what) = match &self.outcome {
            Outcome::Passed(what) => ("ok", what),
            Outcome::Failed(what) => ("FAILED", what),
            Outcome::Skipped(what) => ("skipped", what),
        };
        write!(f, "{state:<8}{:<16}{what}", self.name)
    }
}

/// Why a check fails.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The backend refused something.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The device computed something else.
    #[error("{0}")]
    Wrong(String),
}

/// What every check needs.
struct Machine {
    context: Context,
    stream: Stream,
}

/// A row of the table of checks.
struct Row {
    name: &'static str,
    /// The compute capability that has the feature.
    since: (u32, u32),
    run: fn(&Machine) -> Result<String, Failure>,
}

/// Runs every check on a device and reports each. Whether none failed.
pub fn run(ordinal: u32, report: &mut dyn FnMut(&Check)) -> bool {
    let machine = Context::new(ordinal).and_then(|context| {
        let stream = Stream::new(&context)?;
        Ok(Machine { context, stream })
    });
    let mut good = true;
    for row in checks::CHECKS {
        let outcome = match &machine {
            Err(error) => Outcome::Skipped(error.to_string()),
            Ok(machine) => outcome(row, machine),
        };
        good &= !matches!(outcome, Outcome::Failed(_));
        report(&Check { name: row.name, outcome });
    }
    good
}

fn outcome(row: &Row, machine: &Machine) -> Outcome {
    if machine.context.compute() < row.since {
        let ((major, minor), device) = (row.since, &machine.context.info().architecture);
        return Outcome::Skipped(format!("needs sm_{major}{minor}, the device is {device}"));
    }
    match (row.run)(machine) {
        Ok(seen) => Outcome::Passed(seen),
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}
