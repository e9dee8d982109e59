//! The two products of an expert.

use std::fmt;

/// A product of an expert layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertProduct {
    /// The first: s shards of [I, H]; gate and up, or one.
    GateUp,
    /// The second: [H, I].
    Down,
}

impl fmt::Display for ExpertProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GateUp => "gate_up",
            Self::Down => "down",
        })
    }
}
