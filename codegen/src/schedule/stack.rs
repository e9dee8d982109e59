//! A stack of matrices: the weights of a layer's experts.
//!
//! Each constant buffer of a product has the buffer of a single matrix once for each expert and shard,
//! `[expert][shard]` with shards faster. Nothing else of a matrix changes: its padding and its layout are
//! those of a single one.

use quantloom_dsl::experts::ExpertProduct;

use crate::ir::{Builder, Extent, Operand};

/// The experts of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Which product of the layer, which decides where the rows of x and y are.
    pub product: ExpertProduct,
    /// L: experts whose weights are in the buffers, at least 1.
    pub experts: u32,
    /// s: matrices of an expert, which multiply the same rows of x.
    pub shards: u32,
    /// k: experts of a token.
    pub top_k: u32,
}

impl Stack {
    /// Matrices of a buffer.
    pub const fn matrices(self) -> u32 {
        self.experts * self.shards
    }

    /// The shape of a constant buffer: that of one matrix, for all of them.
    pub(super) fn shape(stack: Option<Self>, matrix: &[u32]) -> Vec<Extent> {
        let matrices = stack.map(Self::matrices);
        matrices.into_iter().chain(matrix.iter().copied()).map(Extent::Constant).collect()
    }

    /// The part of a kernel's name.
    pub(super) fn label(self) -> String {
        let Self { product, experts, shards, top_k } = self;
        format!("_{product}_x{experts}s{shards}k{top_k}")
    }
}

/// The matrix of a block: its number in the stack, if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix(pub(super) Option<Operand>);

impl Matrix {
    /// The only matrix.
    pub(super) const SINGLE: Self = Self(None);

    /// The first word of the matrix in a buffer with `words` words a matrix.
    pub(super) fn first_word(self, b: &mut Builder, words: u32) -> Operand {
        self.0.map_or(0u32.into(), |number| b.mul(number, words))
    }
}
