//! The free choices of a schedule: numbers and flags by name, as a kernel's key stores them.

use std::collections::BTreeMap;

use super::unscheduled::Unscheduled;

/// The type of a free choice.
pub(super) trait Choice: Sized {
    /// The choice of a number in a key.
    fn of(number: u32) -> Self;

    /// The choice of a key that does not name it, if it may be left out.
    fn left_out() -> Option<Self> {
        None
    }

    /// The number in a key; `None` if the key does not name it.
    fn stored(self) -> Option<u64>;
}

impl Choice for u32 {
    fn of(number: u32) -> Self {
        number
    }

    fn stored(self) -> Option<u64> {
        Some(self.into())
    }
}

impl Choice for bool {
    fn of(number: u32) -> Self {
        number != 0
    }

    fn stored(self) -> Option<u64> {
        Some(self.into())
    }
}

/// A flag that keys name only where it is set: one that came later than keys that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RareFlag(pub bool);

impl Choice for RareFlag {
    fn of(number: u32) -> Self {
        Self(number != 0)
    }

    fn left_out() -> Option<Self> {
        Some(Self(false))
    }

    fn stored(self) -> Option<u64> {
        self.0.then_some(1)
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
    let number = parameters.get(name);
    let read = number.and_then(|&number| u32::try_from(number).ok()).map(C::of);
    let left_out = C::left_out().filter(|_| number.is_none());
    read.or(left_out).ok_or(Unscheduled::MissingChoice { schedule, name })
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

            fn choices() -> &'static [&'static str] {
                &[$(stringify!($field),)*]
            }

            fn parameters(&self) -> Vec<(&'static str, u64)> {
                let stored = [$(
                    (stringify!($field), $crate::schedule::choices::Choice::stored(self.$field)),
                )*];
                stored.into_iter().filter_map(|(name, number)| Some((name, number?))).collect()
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
