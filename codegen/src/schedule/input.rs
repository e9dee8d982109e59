//! x as a product reads it, and whether a kernel prepares it.

use quantloom_dsl::Activation;

use super::activation::common_group;
use super::byte_fragments::ByteFragments;
use crate::ir::Word;
use crate::plan::native::SHARED_BYTES;
use crate::plan::{Operand, Plan};
use crate::target::Class;

/// Scales of x, in f32, of a vector of 16 bytes.
pub(super) const VECTOR_SCALES: u32 = 4;

/// x as a product reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Type of its elements.
    pub operand: Operand,
    /// Elements of a row; beyond K they are 0.
    pub columns: u32,
    /// Whether a kernel before the product prepares x: multiplies its columns by the prescale, quantises
    /// it, reorders its columns as those of w, or pads it.
    pub prepared: bool,
    /// The scales of x, if it has scales.
    pub scale: Option<InputScale>,
    /// Whether the product's instruction reads the scales, as codes of e8m0 instead of f32: the codes of
    /// a step in one word, that of the first block of columns in the lowest byte.
    pub codes: bool,
    /// The fragments in whose order the columns of each step are; `None` if columns are in their own order.
    pub fragments: Option<ByteFragments>,
}

/// Scales of x, `[M, groups]`, f32 or words of codes ([`Input::codes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputScale {
    /// One per row.
    Row,
    /// One per this number of columns.
    Columns(u32),
}

impl InputScale {
    /// Columns that share a scale; `None` if scales do not change along K.
    pub const fn columns(self) -> Option<u32> {
        match self {
            Self::Row => None,
            Self::Columns(columns) => Some(columns),
        }
    }
}

impl Input {
    /// The input of an activation, for a plan's product with K columns in k-tiles; `changes` says
    /// whether x is also reordered or multiplied by a prescale.
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
        // Rows of x are read in vectors of 16 bytes.
        let whole = (k * operand.stored_bits() / 8).is_multiple_of(16);
        // Shader products read f32.
        let by_lanes = plan.target.class == Class::Shader;
        let prepared = scale.is_some() || changes || !whole || by_lanes;
        let columns = if prepared { k.next_multiple_of(k_tile) } else { k };
        Self { operand, columns, prepared, scale, codes, fragments: None }
    }

    /// The same with rows that end with whole lines of 128 bytes of K columns; if groups of columns have scales, with
    /// whole vectors of 16 bytes of these too: what tensor copies move.
    pub(super) fn in_lines(self, k: u32) -> Self {
        let line = SHARED_BYTES * 8 / self.operand.stored_bits();
        let whole = match self.scale.and_then(InputScale::columns) {
            Some(columns) => (VECTOR_SCALES * columns).max(line),
            None => line,
        };
        Self { columns: k.next_multiple_of(whole), ..self }
    }

    /// Bytes of this number of columns of a row.
    pub fn bytes(&self, columns: u32) -> u32 {
        columns * self.operand.stored_bits() / 8
    }

    /// The word type of the buffer.
    pub fn word(&self) -> Word {
        match self.operand.stored_bits() {
            ..=8 => Word::U8,
            16 => Word::U16,
            _ => Word::U32,
        }
    }

    /// Words of this number of columns of a row.
    pub fn words(&self, columns: u32) -> u32 {
        self.bytes(columns) / self.word().bytes()
    }

    /// Scales of a row; `None` without scales.
    pub fn groups(&self) -> Option<u32> {
        let columns = self.scale?.columns();
        Some(columns.map_or(1, |columns| self.columns.div_ceil(columns)))
    }
}
