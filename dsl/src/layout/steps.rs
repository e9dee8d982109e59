//! Words whose fields belong to single steps of the run: `u8 [code[0..3] @0, code @1, .., k:2 | k,
//! n]`.
//!
//! A step is the number that the digits before the bar count, the first one fastest. Only digits
//! count steps, so that two words with the same digits have the same steps.

use super::bind::BindError;
use super::{Digit, DigitRange, Field, Fill, Layout};

/// A field and the step of its word that it belongs to.
pub(crate) struct Stepped<'l> {
    pub(crate) field: Field,
    /// The digits that count the steps; empty if the field is for every step.
    pub(crate) digits: &'l [Digit],
    /// The step.
    pub(crate) step: u64,
    /// The number of steps.
    pub(crate) steps: u64,
}

impl Layout {
    /// Every field of the tree with its step, in memory order; `None` if steps are wrong, which
    /// [`Layout::bind`] reports.
    pub(crate) fn stepped(&self) -> Option<Vec<Stepped<'_>>> {
        match self {
            Self::Field(field) => {
                outside_of_words(*field).ok()?;
                Some(vec![Stepped { field: *field, digits: &[], step: 0, steps: 1 }])
            }
            Self::Sequence(parts) => {
                let parts: Option<Vec<_>> = parts.iter().map(Self::stepped).collect();
                Some(parts?.into_iter().flatten().collect())
            }
            Self::For { body, .. } => body.stepped(),
            Self::Word { fields, inner, .. } => {
                let steps = steps(fields, inner).ok()?;
                let (digits, steps) = steps.map_or((&[][..], 1), |steps| (&inner[..], steps));
                let of_step = |field: &Field| Stepped {
                    field: *field,
                    digits,
                    step: step_of(*field).map_or(0, u64::from),
                    steps,
                };
                Some(fields.iter().map(of_step).collect())
            }
        }
    }
}

const fn step_of(field: Field) -> Option<u16> {
    match field {
        Field::Bits { step, .. } => step,
        Field::Pad { .. } => None,
    }
}

/// A field outside of words has no step.
pub(super) fn outside_of_words(field: Field) -> Result<(), BindError> {
    match step_of(field) {
        None => Ok(()),
        Some(_) => Err(BindError::new(
            None,
            format!("`{field}` has a step, but is not in a word"),
            "only fields of a word have steps: `u8 [code @0, code @1, k:2 | k, n]`",
        )),
    }
}

/// The number of steps that a word's fields are for; `None` if the fields are repeated for every
/// step.
///
/// # Errors
/// Some fields with a step and some without, digits that count no fixed number of steps, a step
/// beyond the last one, a pad of sign bits. Fields and digits are counted within the word.
pub(super) fn steps(fields: &[Field], inner: &[Digit]) -> Result<Option<u64>, BindError> {
    if fields.iter().all(|field| step_of(*field).is_none()) {
        return Ok(None);
    }
    let mut steps = 1u64;
    for (position, digit) in inner.iter().enumerate() {
        let DigitRange::Sized { size, .. } = digit.part else {
            return Err(BindError::new(
                Some(position),
                format!("the digit `{digit}` has no size, so the run has no fixed number of steps"),
                "give it a size, such as `k:8`, and put the open digit after the `|`",
            ));
        };
        steps = steps.saturating_mul(u64::from(size));
    }
    for (position, field) in fields.iter().enumerate() {
        let fault = |message: String, help: String| {
            Err(BindError { field: Some(position), ..BindError::new(None, message, help) })
        };
        match field {
            Field::Bits { step: None, .. } => {
                return fault(
                    format!("`{field}` has no step, and another field of its word has one"),
                    format!("give it a step, `{field} @0`, or remove all steps"),
                );
            }
            Field::Bits { step: Some(step), .. } if u64::from(*step) >= steps => {
                let message = match steps {
                    1 => format!("step {step} of a run that has one step"),
                    _ => format!("step {step} of a run of {steps} steps"),
                };
                return fault(
                    message,
                    format!(
                        "the digits before the `|` count the steps: here from 0 to {}",
                        steps.saturating_sub(1)
                    ),
                );
            }
            Field::Pad { fill: Fill::Sign, .. } => {
                return fault(
                    "a pad of sign bits among fields of single steps".to_owned(),
                    "fill it with 0 or 1, or remove the steps".to_owned(),
                );
            }
            Field::Bits { .. } | Field::Pad { .. } => {}
        }
    }
    Ok(Some(steps))
}
