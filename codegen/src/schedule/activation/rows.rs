//! Rows of the operand: the row of x that each is made of, and the matrix whose static scales, zero points,
//! prescale and order of columns it has.
//!
//! A row of the operand is a row of x, with one set of static parameters for all. In the second product of an expert
//! layer, and where the experts of a layer, or all their matrices, read x in different ways ([`Routed`]), a row of the
//! operand belongs to a slot: row `copy T B + slot` is the slot's input as matrix `expert copies + copy` reads it, with
//! one copy if an expert's matrices read alike, else one a shard. The row of x is that of the pair's token in the first
//! product, the slot in the second.
//!
//! Blocks are those of pairs, each with the row of its slot. So rows of slots without a pair are neither read
//! nor written: products read the row of another slot instead. A product that copies whole token blocks reads
//! those of token blocks in use: they are zeros with scales of 0, which the blocks of the last pair of an
//! expert write. Pairs of a token block are before its slots without one, so that the next slot tells which
//! pair that is.

use quantloom_dsl::experts::{ExpertProduct, OperandOf};

use super::problem::ActivationProblem;
use crate::ir::{Access, Builder, Cache, Extent, Mask, Operand, ParameterId, Special, Type, Width};
use crate::schedule::order::{NONE, OrderArray};
use crate::schedule::stack::Stack;

/// The product of an expert layer whose rows of x are those of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The product and its experts; [`Stack::operand`] says which of them read alike.
    pub stack: Stack,
    /// B: slots of a token block; of no meaning where nothing is sorted.
    pub slots: u32,
    /// Whether the product copies the rows of whole token blocks.
    pub whole_blocks: bool,
}

impl Routed {
    /// Rows of the operand per slot.
    pub(super) fn copies(self) -> u32 {
        self.stack.x_rows_of_slot()
    }

    /// Sets of static parameters.
    pub(super) fn matrices(self) -> u32 {
        match self.stack.operand {
            OperandOf::Row => 1,
            OperandOf::Expert | OperandOf::Matrix => self.stack.experts * self.copies(),
        }
    }

    /// The part of a kernel's name.
    pub(super) fn label(self) -> String {
        let slots = if self.stack.direct { 1 } else { self.slots };
        let whole = if self.whole_blocks { "z" } else { "" };
        format!("{}b{slots}{whole}", self.stack.label())
    }
}

/// The rows of an operand.
#[derive(Clone, Copy)]
pub(super) struct OperandRows {
    m: ParameterId,
    routed: Option<(Routed, OrderArray)>,
}

/// A row of an operand of slots.
pub(super) struct SlotRow {
    /// Its number.
    pub(super) number: Operand,
    /// Whether its slot has a pair; all else holds only there.
    pub(super) there: Operand,
    /// The row of x.
    pub(super) of_x: Operand,
    /// The matrix whose static parameters it has.
    pub(super) matrix: Operand,
    /// The slots without a pair that the block of this one writes, from one to before another.
    pub(super) empty: Option<(Operand, Operand)>,
}

impl OperandRows {
    /// Declares the order of pairs, if rows belong to slots.
    pub(super) fn declare(b: &mut Builder, problem: &ActivationProblem, m: ParameterId) -> Self {
        let routed = problem.routed.map(|routed| {
            let Stack { experts, direct, .. } = routed.stack;
            let order = match direct {
                true => OrderArray::of_ids(b, experts, false),
                false => OrderArray::declare(b, (experts, routed.slots), Access::ReadOnly),
            };
            (routed, order)
        });
        Self { m, routed }
    }

    /// Their number.
    pub(super) fn count(&self) -> Extent {
        match self.routed {
            None => Extent::Parameter(self.m),
            Some((routed, order)) => order.rows_of_slots(routed.copies()),
        }
    }

    /// The grid of a kernel with so many blocks a row: rows of x, or pairs and their copies.
    pub(super) fn grid(&self, blocks: u32) -> [Extent; 3] {
        let (rows, copies) = match self.routed {
            None => (Extent::Parameter(self.m), 1),
            Some((routed, order)) => (Extent::Parameter(order.pairs), routed.copies()),
        };
        [rows, Extent::Constant(blocks), Extent::Constant(copies)]
    }

    /// The row of a block, whose first number is `pair`; `None` if rows are those of x. The kernel that made
    /// the order has ended.
    pub(super) fn of_pair(&self, b: &mut Builder, pair: Operand) -> Option<SlotRow> {
        let (routed, order) = self.routed?;
        let words = order.words(b);
        let load = |b: &mut Builder, from, condition: Option<Operand>| -> Operand {
            let mask = condition.map(Mask::or_zero);
            b.load_as(Type::U32, from, Width::B32, mask, Cache::Default)[0].into()
        };
        let mut empty = None;
        let (slot, expert, there) = if routed.stack.direct {
            let expert = load(b, words.expert_of(pair), None);
            let there = b.less(expert, routed.stack.experts);
            (pair, expert, there)
        } else {
            let from = words.slot(b, pair);
            let slot = load(b, from, None);
            let there = b.less(slot, NONE);
            let block = b.div(slot, order.slots);
            let expert = match routed.matrices() {
                1 => 0u32.into(),
                _ => load(b, words.expert(block), Some(there)),
            };
            if routed.whole_blocks {
                let next = b.add(slot, 1u32);
                let (after, first) = (b.add(block, 1u32), b.mul(block, order.slots));
                let (end, last) = (b.mul(after, order.slots), b.add(first, order.slots - 1));
                let before = b.less(slot, last);
                let follows = b.both(there, before);
                let from = words.pair(b, next);
                let follower = load(b, from, Some(follows));
                let none = b.equal(follower, NONE);
                empty = Some((b.select(none, next, end), end));
            }
            (slot, expert, there)
        };
        let of_x = match routed.stack.product {
            ExpertProduct::GateUp => b.div(pair, routed.stack.top_k),
            ExpertProduct::Down => slot,
        };
        let (number, matrix) = match routed.copies() {
            1 if routed.matrices() == 1 => (slot, 0u32.into()),
            1 => (slot, expert),
            copies => {
                let copy = b.special(Special::Block(2));
                let slots = b.mul(words.token_blocks, order.slots);
                (b.mad(copy, slots, slot), b.mad(expert, copies, copy))
            }
        };
        Some(SlotRow { number, there, of_x, matrix, empty })
    }
}
