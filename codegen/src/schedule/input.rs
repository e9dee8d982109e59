//! x as a product reads it, and whether a kernel prepares it.

use quantloom_dsl::Activation;

use super::activation::common_group;
use super::byte_fragments::ByteFragments;
use crate::ir::{Builder, Extent, Operand, Word};
use crate::plan::compute::has_zero;
use crate::plan::{OperandType, Plan};
use crate::target::Class;

/// Tokens whose scales of a group are adjacent in [`ScaleOrder::TokenTiles`]: a line of 128 bytes.
pub(super) const TOKEN_TILE: u32 = 32;

/// x as a product reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Type of its elements.
    pub operand: OperandType,
    /// Elements of a row; beyond K they are 0.
    pub columns: u32,
    /// Whether a kernel before the product prepares x: multiplies its columns by the prescale, quantises
    /// it, reorders its columns as those of w, or pads it.
    pub prepared: bool,
    /// The scales of x, if it has scales.
    pub scale: Option<InputScale>,
    /// Whether each scale is followed by the zero point of its row: products of integers leave the zero points to the epilogue, where
    /// they multiply the sums of rows of w.
    pub zero: bool,
    /// Whether the product's instruction reads the scales, as codes of a byte instead of f32: four in a word, that of
    /// the first block of columns in the lowest byte.
    pub codes: bool,
    /// The fragments in whose order the columns of each step are; `None` if columns are in their own order.
    pub fragments: Option<ByteFragments>,
    /// The order of the scales of x in their buffer.
    pub scale_order: ScaleOrder,
}

/// The order of scales of x: f32, or words of codes ([`Input::codes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleOrder {
    /// `[M, groups]`.
    Rows,
    /// `[ceil(M / 32), groups, 32]`: scales of a group are adjacent, as a tensor copy moves those of a block's tokens.
    /// Beyond M are copies of the last row's.
    TokenTiles,
}

impl ScaleOrder {
    /// The extents of a buffer for rows of so many groups.
    pub(super) fn shape(self, rows: Extent, groups: u32) -> Vec<Extent> {
        let groups = Extent::Constant(groups);
        match (self, rows) {
            (Self::TokenTiles, Extent::Parameter(m)) => {
                vec![Extent::CeilDiv(m, TOKEN_TILE), groups, Extent::Constant(TOKEN_TILE)]
            }
            _ => vec![rows, groups],
        }
    }

    /// The word of a row's scale of a group.
    pub(super) fn place(
        self,
        b: &mut Builder,
        (row, groups): (Operand, u32),
        group: Operand,
    ) -> Operand {
        match self {
            Self::Rows => b.mad(row, groups, group),
            Self::TokenTiles => {
                let (tile, token) = (b.div(row, TOKEN_TILE), b.rem(row, TOKEN_TILE));
                let line = b.mad(tile, groups, group);
                b.mad(line, TOKEN_TILE, token)
            }
        }
    }

    /// Of [`Self::TokenTiles`], one past the last row whose place holds this row's scales: the next row, or after the last
    /// of M rows the end of its tile.
    pub(super) fn end_of_tile(b: &mut Builder, row: Operand, m: Operand) -> Operand {
        let own = b.add(row, 1u32);
        let last = b.equal(own, m);
        let tiles = b.add(m, TOKEN_TILE - 1);
        let tiles = b.div(tiles, TOKEN_TILE);
        let all = b.mul(tiles, TOKEN_TILE);
        b.select(last, all, own)
    }

    /// The order in the notation of docs/scheme-language.md.
    pub(super) const fn layout(self) -> &'static str {
        match self {
            Self::Rows => "[g, m]",
            Self::TokenTiles => "[m:32, g, m]",
        }
    }
}

/// Scales of x.
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
        let (operand, scaling) = (plan.compute.product.activation, plan.compute.product.scaling());
        let scale = match activation {
            Activation::Float(_) => None,
            // Nothing is left but scales of rows, if there are several levels.
            Activation::Quantised(quantiser) if plan.compute.folds_input => {
                (quantiser.scales.len() > 1).then_some(InputScale::Row)
            }
            Activation::Quantised(quantiser) => {
                let columns = common_group(&quantiser.scales);
                // Of codes, a word.
                let columns = columns.map(|columns| scaling.map_or(columns, |of| 4 * of.columns));
                Some(columns.map_or(InputScale::Row, InputScale::Columns))
            }
        };
        let zero = leaves_zero(activation, operand);
        // Rows of x are read in vectors of 16 bytes.
        let whole = (k * operand.stored_bits() / 8).is_multiple_of(16);
        // Shader products read f32.
        let by_lanes = plan.target.class == Class::Shader;
        let prepared = plan.compute.quantises || changes || !whole || by_lanes;
        let columns = if prepared { k.next_multiple_of(k_tile) } else { k };
        Self {
            operand,
            columns,
            prepared,
            scale,
            zero,
            codes: scaling.is_some(),
            fragments: None,
            scale_order: ScaleOrder::Rows,
        }
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

    /// f32 or codes of a row in the buffer of scales: the scales, and the zero point if there is one.
    pub(super) fn numbers(&self) -> Option<u32> {
        Some(self.groups()? + u32::from(self.zero))
    }

    /// Where the buffer of scales has the scale of a row that has one ([`InputScale::Row`]).
    pub(super) fn scale_of_row(&self, b: &mut Builder, row: Operand) -> Operand {
        if self.zero { b.mul(row, 2u32) } else { row }
    }

    /// Where the buffer of scales has the zero point of a row.
    pub(super) fn zero_of_row(&self, b: &mut Builder, row: Operand) -> Operand {
        b.mad(row, 2u32, 1u32)
    }
}

/// Whether an operand of x has its codes, and not their differences from the zero point: differences of integers of 8 bits have 9.
pub(super) fn leaves_zero(activation: &Activation, operand: OperandType) -> bool {
    has_zero(activation) && matches!(operand, OperandType::I8 | OperandType::I4)
}
