//! The free choices of a schedule: numbers and yes or no, by name, as a kernel's key holds them.

/// What a free choice may be.
pub(super) trait Choice {
    /// The choice that a key's number stands for.
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

/// Declares a struct of free choices, which are written to a key and read from one by their names.
macro_rules! choices {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$of:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            $($(#[$of])* pub $field: $ty,)*
        }

        impl $name {
            /// The free choices by name.
            pub(in crate::schedule) fn parameters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.into()),)*]
            }

            /// These choices by name, the inverse.
            pub(in crate::schedule) fn read(
                of: impl Fn(&str) -> Result<u32, $crate::schedule::Unscheduled>,
            ) -> Result<Self, $crate::schedule::Unscheduled> {
                use $crate::schedule::choices::Choice;
                Ok(Self { $($field: <$ty as Choice>::of(of(stringify!($field))?),)* })
            }
        }
    };
}

pub(super) use choices;
