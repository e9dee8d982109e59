//! The two products of an expert, and which matrices of a product read the same input.

use std::fmt;

/// A product of an expert layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertProduct {
    /// The first: s shards of [I, H]; gate and up, or one.
    GateUp,
    /// The second: [H, I].
    Down,
}

impl ExpertProduct {
    /// What belongs to this product, of two things: the first product's and the second's.
    pub const fn of<T>(self, both: &[T; 2]) -> &T {
        match self {
            Self::GateUp => &both[0],
            Self::Down => &both[1],
        }
    }
}

impl fmt::Display for ExpertProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GateUp => "gate_up",
            Self::Down => "down",
        })
    }
}

/// Which matrices of a product read a row of the input in the same way: with the same static scales and
/// zero points, the same prescale and the same order of columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperandOf {
    /// All of them: a row of the input has one operand.
    #[default]
    Row,
    /// Those of an expert: a slot has an operand of its own.
    Expert,
    /// None: a slot has an operand for each shard.
    Matrix,
}

impl OperandOf {
    /// Operands of a slot whose expert has `shards` matrices; 0 if slots share those of rows.
    pub const fn of_slot(self, shards: u32) -> u32 {
        match self {
            Self::Row => 0,
            Self::Expert => 1,
            Self::Matrix => shards,
        }
    }
}

impl fmt::Display for OperandOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Row => "row",
            Self::Expert => "expert",
            Self::Matrix => "matrix",
        })
    }
}
