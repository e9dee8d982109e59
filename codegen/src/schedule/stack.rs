//! A stack of matrices: the weights of a layer's experts.
//!
//! Each constant buffer of a product has the buffer of a single matrix once for each expert and shard,
//! `[expert][shard]` with shards faster. Nothing else of a matrix changes: its padding and its layout are
//! those of a single one.
//!
//! With a gate a block multiplies both shards of an expert, tile by tile of rows in turn: its tiles of rows
//! are tile 0 of gate, tile 0 of up, tile 1 of gate, and so on. So the two sums that a result needs are 16
//! rows apart in the block, whatever the instruction's lanes hold.

use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::FloatFormat;

use crate::ir::{Builder, Extent, Operand};

/// The experts of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Which product of the layer, which decides where the rows of x and y are.
    pub product: ExpertProduct,
    /// L: experts whose weights are in the buffers, at least 1.
    pub experts: u32,
    /// Experts that the ids of pairs are chosen from: more than L where an expert map has some of them elsewhere.
    pub chosen_from: u32,
    /// s: matrices of an expert, which multiply the same rows of x; 1 or 2.
    pub shards: u32,
    /// k: experts of a token.
    pub top_k: u32,
    /// The gate, if y is what it makes of the shards' sums: a row per slot.
    pub gate: Option<Gate>,
    /// Whether each pair is a token block of its own with the expert of its id, and nothing is sorted.
    pub direct: bool,
    /// Whether the row of a pair is multiplied by the pair's router weight.
    pub weighted: bool,
    /// Whether y has a row a token instead, the sum of its pairs' rows in the order of choice; of direct products alone.
    pub combined: bool,
    /// The type of what shared experts give, [M, N], if it is added to these sums.
    pub shared: Option<FloatFormat>,
    /// Which matrices read the same rows of x. Beyond [`OperandOf::Row`] x has a row per slot in the first
    /// product too, or one per shard and slot.
    pub operand: OperandOf,
}

impl Stack {
    /// Matrices of a buffer.
    pub const fn matrices(self) -> u32 {
        self.experts * self.shards
    }

    /// Matrices of an expert that a block multiplies.
    pub(super) const fn together(self) -> u32 {
        if self.gate.is_some() { self.shards } else { 1 }
    }

    /// The shards of y.
    pub(super) const fn shards_of_y(self) -> u32 {
        self.shards / self.together()
    }

    /// Whether rows of x are those of slots in the first product too.
    pub(super) fn reads_slots(self) -> bool {
        self.product == ExpertProduct::Down || self.operand != OperandOf::Row
    }

    /// Whether rows of x of a token block are not one after another, or not all written: those of tokens, or of slots
    /// that were made for the pairs alone.
    pub(super) fn gathers(self) -> bool {
        self.product == ExpertProduct::GateUp || self.operand != OperandOf::Row
    }

    /// Whether rows of y are those of pairs.
    pub(super) fn gives_pairs(self) -> bool {
        self.product == ExpertProduct::Down
    }

    /// Matrices whose sums of a row a block adds to one another: the experts of a token, or one.
    pub(super) const fn summed_experts(self) -> u32 {
        if self.combined { self.top_k } else { 1 }
    }

    /// Rows of x per slot, if x has rows of slots.
    pub(super) const fn x_rows_of_slot(self) -> u32 {
        let rows = self.operand.of_slot(self.shards);
        if rows > 1 { rows } else { 1 }
    }

    /// The shape of a constant buffer: that of one matrix, for all of them.
    pub(super) fn shape(stack: Option<Self>, matrix: &[u32]) -> Vec<Extent> {
        let matrices = stack.map(Self::matrices);
        matrices.into_iter().chain(matrix.iter().copied()).map(Extent::Constant).collect()
    }

    /// The part of a kernel's name.
    pub(super) fn label(self) -> String {
        let Self {
            product,
            experts,
            chosen_from,
            shards,
            top_k,
            gate,
            direct,
            weighted,
            combined,
            shared,
            operand,
        } = self;
        let from = if chosen_from == experts { String::new() } else { format!("of{chosen_from}") };
        let gate = gate.map_or(String::new(), |gate| format!("_{}", gate_name(gate)));
        let direct = if direct { "d" } else { "" };
        let weighted = if weighted { "w" } else { "" };
        let combined = if combined { "c" } else { "" };
        let shared = shared.map_or(String::new(), |own| format!("_shared_{own}"));
        let operand = match operand {
            OperandOf::Row => "",
            OperandOf::Expert => "e",
            OperandOf::Matrix => "m",
        };
        format!(
            "_{product}_x{experts}{from}s{shards}k{top_k}{direct}{weighted}{combined}{operand}{gate}{shared}"
        )
    }
}

/// The text of a gate in letters and digits.
fn gate_name(gate: Gate) -> String {
    let text = gate.to_string();
    text.chars()
        .filter_map(|c| match c {
            '.' => Some('p'),
            ' ' => Some('_'),
            c if c.is_ascii_alphanumeric() || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// The matrix of a block, or the first of those that it multiplies together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    /// Its number in the stack; `None` if there is no stack.
    pub(super) number: Option<Operand>,
    /// Matrices that the block multiplies.
    pub(super) together: u32,
}

/// A matrix that may be the block's: what is known before earlier kernels have ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuessedMatrix {
    /// The matrix; one of the stack, whatever was guessed.
    pub(super) matrix: Matrix,
    /// Whether the guessed expert is here.
    pub(super) there: Operand,
}

impl Matrix {
    /// The only matrix.
    pub(super) const SINGLE: Self = Self { number: None, together: 1 };

    /// By how many numbers the matrix comes after another one of its stack.
    pub(super) fn after(self, b: &mut Builder, other: Self) -> Operand {
        match (self.number, other.number) {
            (Some(number), Some(other)) => b.sub(number, other),
            _ => 0u32.into(),
        }
    }

    /// The first word of the matrix in a buffer with `words` words a matrix.
    pub(super) fn first_word(self, b: &mut Builder, words: u32) -> Operand {
        self.number.map_or(0u32.into(), |number| b.mul(number, words))
    }

    /// The tile of rows with a number among those of all matrices together: its number in its matrix, and
    /// that matrix.
    pub(super) fn tile(self, b: &mut Builder, number: Operand) -> (Operand, Self) {
        let (Some(first), 2..) = (self.number, self.together) else { return (number, self) };
        let (tile, shard) = (b.div(number, self.together), b.rem(number, self.together));
        (tile, Self { number: Some(b.add(first, shard)), together: 1 })
    }

    /// As [`Self::tile`], of a row among tiles of `rows` rows.
    pub(super) fn row(self, b: &mut Builder, row: Operand, rows: u32) -> (Operand, Self) {
        if self.together == 1 {
            return (row, self);
        }
        let (number, in_tile) = (b.div(row, rows), b.rem(row, rows));
        let (tile, matrix) = self.tile(b, number);
        (b.mad(tile, rows, in_tile), matrix)
    }
}
