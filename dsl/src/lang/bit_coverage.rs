//! Coverage of one bit of a component: every element must store the bit exactly once. A field holds
//! the bit of every element, or of the elements at one step of its word's run.

use std::collections::BTreeSet;

use crate::layout::{Digit, Stepped};

/// The elements whose bit is stored so far.
#[derive(Clone, Default)]
pub(super) struct BitCoverage<'l> {
    /// The digits that count the steps; empty if a field holds the bit of every element.
    digits: &'l [Digit],
    steps: u64,
    taken: BTreeSet<u64>,
}

/// Why a field cannot store the bit. A step displays as ` at step 3`, or as nothing if the field is
/// for every element.
pub(super) enum CoverageError {
    /// The bit is stored already.
    Twice(String),
    /// Other digits count the steps: those of this field, and those of the other fields.
    Digits([String; 2]),
}

impl<'l> BitCoverage<'l> {
    pub(super) fn place(&mut self, field: &Stepped<'l>) -> Result<(), CoverageError> {
        if self.taken.is_empty() {
            (self.digits, self.steps) = (field.digits, field.steps);
        }
        if self.digits != field.digits {
            let of_all = self.digits.is_empty() || field.digits.is_empty();
            return Err(match of_all {
                true => CoverageError::Twice(String::new()),
                false => CoverageError::Digits([field.digits, self.digits].map(list)),
            });
        }
        match self.taken.insert(field.step) {
            true => Ok(()),
            false => Err(CoverageError::Twice(self.at(field.step))),
        }
    }

    /// The first step at which the bit is not stored.
    pub(super) fn absent(&self) -> Option<String> {
        let taken =
            (0..).zip(&self.taken).take_while(|(step, taken)| step == *taken).count() as u64;
        match self.taken.is_empty() {
            true => Some(String::new()),
            false => (taken < self.steps).then(|| self.at(taken)),
        }
    }

    fn at(&self, step: u64) -> String {
        if self.digits.is_empty() { String::new() } else { format!(" at step {step}") }
    }
}

fn list(digits: &[Digit]) -> String {
    digits.iter().map(Digit::to_string).collect::<Vec<_>>().join(", ")
}
