//! Operands of matrix operations. The instructions themselves are a table of the targets'
//! ([`MATRIX_OPS`](crate::target::MATRIX_OPS)).

use super::{Address, Operand, Reg, SharedId, Space, Swizzle};

/// An operand of a matrix operation: its registers or its tile of shared memory.
#[derive(Clone, Debug, PartialEq)]
pub enum MatrixOperand {
    /// Registers, in the order of the row's layout.
    Registers(Vec<Reg>),
    /// Shared memory.
    Shared(SharedTile),
}

/// An operand of a warp-group matrix operation in shared memory, k fastest, in core matrices of 8
/// rows by 16 bytes. Row r, byte c of k is at byte `start + (r / 8) stride + (r % 8) pitch + c` for
/// c below the pitch, before the swizzle. The pitch is the swizzle's bytes, or 16 without a
/// swizzle; then byte c is at `start + (c / 16) leading + (r / 8) stride + (r % 8) 16 + c % 16`.
/// The swizzle permutes the address itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedTile {
    /// The block.
    pub block: SharedId,
    /// Its first word: `index + offset` words of the block.
    pub index: Operand,
    /// In words of the block.
    pub offset: u32,
    /// Bytes between core matrices that are neighbours along k; used without a swizzle only.
    pub leading: u32,
    /// Bytes between core matrices that are neighbours along rows.
    pub stride: u32,
    /// The permutation of the tile's 16-byte segments.
    pub swizzle: Swizzle,
}

impl SharedTile {
    /// The address of its first word.
    pub(crate) const fn address(&self) -> Address {
        Address { space: Space::Shared(self.block), index: self.index, offset: self.offset }
    }
}

/// The scale of an operand of a scaled matrix operation: each lane's code of e8m0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixScale {
    /// Its register, of type u32.
    pub from: Reg,
    /// Its byte in the register, 0 the lowest.
    pub byte: u8,
}

/// C of a matrix operation: what is added to the product.
#[derive(Clone, Debug, PartialEq)]
pub enum Accumulator {
    /// Nothing.
    Zero,
    /// Registers in the layout of D; D itself for warp-group operations.
    Registers(Vec<Reg>),
}
