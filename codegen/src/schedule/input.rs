//! x as a product reads it, and what prepares it.

use quantloom_dsl::Activation;

use super::activation::common_group;
use crate::ir::Word;
use crate::plan::{Operand, Plan};
use crate::target::Class;

/// x as a product reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Type of its elements.
    pub operand: Operand,
    /// Elements from one row to the next; beyond K they are 0.
    pub columns: u32,
    /// Whether a kernel before the product makes it of what the user gives: multiplied by factors of its
    /// columns, quantised, with its columns in the order of w's, or padded.
    pub prepared: bool,
    /// The scales that come with it.
    pub scale: Option<InputScale>,
    /// Whether the product's instruction takes them, as codes of e8m0 instead of f32: those of a step in a
    /// word, that of the first block of columns in the lowest byte.
    pub codes: bool,
}

/// Scales of x, `[M, groups]`, f32 or words of codes ([`Input::codes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputScale {
    /// One a row.
    Row,
    /// One for so many columns.
    Columns(u32),
}

impl InputScale {
    /// Columns of a number that changes along K.
    pub const fn columns(self) -> Option<u32> {
        match self {
            Self::Row => None,
            Self::Columns(columns) => Some(columns),
        }
    }
}

impl Input {
    /// Of an activation, for a plan's product of K columns in k-tiles; `changes` says whether x is changed
    /// besides: columns in an order of their own, multiplied by factors.
    pub(super) fn new(
        activation: &Activation,
        plan: &Plan,
        (k, k_tile): (u32, u32),
        changes: bool,
    ) -> Self {
        let (operand, step) = (plan.compute.product.activation, plan.compute.product.columns);
        let codes = plan.compute.product.scaling().is_some();
        let scale = match activation {
            Activation::Float(_) => None,
            Activation::Quantised(quantiser) => {
                let columns = common_group(&quantiser.scales);
                let columns = columns.map(|columns| if codes { step } else { columns });
                Some(columns.map_or(InputScale::Row, InputScale::Columns))
            }
        };
        // Rows of x are read by 16 bytes.
        let whole = (k * operand.stored_bits() / 8).is_multiple_of(16);
        // Lanes that multiply by themselves read f32.
        let by_lanes = plan.target.class == Class::Shader;
        let prepared = scale.is_some() || changes || !whole || by_lanes;
        let columns = if prepared { k.next_multiple_of(k_tile) } else { k };
        Self { operand, columns, prepared, scale, codes }
    }

    /// Bytes that so many columns of a row take.
    pub fn bytes(&self, columns: u32) -> u32 {
        columns * self.operand.stored_bits() / 8
    }

    /// What the buffer is an array of.
    pub fn word(&self) -> Word {
        match self.operand.stored_bits() {
            ..=8 => Word::U8,
            16 => Word::U16,
            _ => Word::U32,
        }
    }

    /// Words of that buffer that so many columns of a row take.
    pub fn words(&self, columns: u32) -> u32 {
        self.bytes(columns) / self.word().bytes()
    }

    /// Numbers of the scales of a row, if it has scales.
    pub fn groups(&self) -> Option<u32> {
        let columns = self.scale?.columns();
        Some(columns.map_or(1, |columns| self.columns.div_ceil(columns)))
    }
}
