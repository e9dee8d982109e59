//! The free choices of a schedule: numbers and flags by name, as a kernel's key stores them.

use std::collections::BTreeMap;

use super::unscheduled::Unscheduled;

/// The type of a free choice.
pub(super) trait Choice {
    /// The choice of a number in a key.
    fn of(number: u32) -> Self;
}

impl Choice for u32 {
    fn of(number: u32) -> Self {
        number
    }
}

impl Choice for bool {
    fn of(number: u32) -> Self {
        number != 0
    }
}

/// Reads a free choice from the parameters of a key.
///
/// # Errors
/// If the parameter is missing or too large.
pub(super) fn read<C: Choice>(
    schedule: &'static str,
    parameters: &BTreeMap<String, u64>,
    name: &'static str,
) -> Result<C, Unscheduled> {
    let number = parameters.get(name).and_then(|&number| u32::try_from(number).ok());
    number.map(C::of).ok_or(Unscheduled::MissingChoice { schedule, name })
}

/// Declares a struct of free choices. A key stores them by name, with the name of their schedule.
macro_rules! choices {
    (
        $(#[$meta:meta])*
        $schedule:literal: pub struct $name:ident { $($(#[$of:meta])* pub $field:ident: $ty:ty,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            $($(#[$of])* pub $field: $ty,)*
        }

        impl $crate::schedule::FreeChoices for $name {
            fn schedule() -> &'static str {
                $schedule
            }

            fn name(&self) -> &'static str {
                $schedule
            }

            fn parameters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.into()),)*]
            }

            fn read(
                parameters: &std::collections::BTreeMap<String, u64>,
            ) -> Result<Self, $crate::schedule::Unscheduled> {
                Ok(Self {
                    $($field: $crate::schedule::choices::read::<$ty>(
                        $schedule, parameters, stringify!($field),
                    )?,)*
                })
            }
        }
    };
}

pub(super) use choices;
