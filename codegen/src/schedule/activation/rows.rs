//! Rows of the operand: the row of x that each is made of, and the matrix whose static scales, zero points,
//! prescale and order of columns it has.
//!
//! A row of the operand is a row of x, with one set of static parameters for all. Where the experts of a
//! layer, or all their matrices, read x in different ways ([`Routed`]), a row of the operand belongs to a
//! slot: row `copy T B + slot` is the slot's input as matrix `expert copies + copy` reads it, with one copy if
//! an expert's matrices read alike, else one a shard. The row of x is that of the pair's token in the first
//! product, the slot in the second. Rows of slots without a pair are not written, and no product reads them.

use quantloom_dsl::experts::ExpertProduct;

use super::problem::ActivationProblem;
use crate::ir::{
    Access, Builder, Cache, Extent as Count, Operand, ParameterId, Special, Type, Width,
};
use crate::schedule::order::{NONE, OrderArray};
use crate::schedule::stack::Stack;

/// The product of an expert layer whose experts read x in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The product and its experts; [`Stack::operand`] says which of them read alike.
    pub stack: Stack,
    /// B: slots of a token block; of no meaning where nothing is sorted.
    pub slots: u32,
}

impl Routed {
    /// Rows of the operand per slot.
    pub(super) fn copies(self) -> u32 {
        self.stack.x_rows_of_slot()
    }

    /// Sets of static parameters.
    pub(super) fn matrices(self) -> u32 {
        self.stack.experts * self.copies()
    }

    /// The part of a kernel's name.
    pub(super) fn label(self) -> String {
        let slots = if self.stack.direct { 1 } else { self.slots };
        format!("{}b{slots}", self.stack.label())
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
    pub(super) fn count(&self) -> Count {
        match self.routed {
            None => Count::Parameter(self.m),
            Some((routed, order)) => order.rows_of_slots(routed.copies()),
        }
    }

    /// The grid of a kernel with so many blocks a row: rows of x, or slots and their copies.
    pub(super) fn grid(&self, blocks: u32) -> [Count; 3] {
        let (rows, copies) = match self.routed {
            None => (Count::Parameter(self.m), 1),
            Some((routed, order)) => (order.all_slots(), routed.copies()),
        };
        [rows, Count::Constant(blocks), Count::Constant(copies)]
    }

    /// The row of a block, whose first number is `slot`; `None` if rows are those of x. The kernel that made
    /// the order has ended.
    pub(super) fn of_slot(&self, b: &mut Builder, slot: Operand) -> Option<SlotRow> {
        let (routed, order) = self.routed?;
        let words = order.words(b);
        let load = |b: &mut Builder, from| -> Operand {
            b.load_as(Type::U32, from, Width::B32, None, Cache::Default)[0].into()
        };
        let (pair, expert, there) = if routed.stack.direct {
            let expert = load(b, words.expert_of(slot));
            let there = b.less(expert, routed.stack.experts);
            (slot, expert, there)
        } else {
            let block = b.div(slot, order.slots);
            let count = load(b, words.count());
            let expert = load(b, words.expert(block));
            let from = words.pair(b, slot);
            let pair = load(b, from);
            let (in_use, held) = (b.less(block, count), b.less(pair, NONE));
            (pair, expert, b.both(in_use, held))
        };
        let of_x = match routed.stack.product {
            ExpertProduct::GateUp => b.div(pair, routed.stack.top_k),
            ExpertProduct::Down => slot,
        };
        let (number, matrix) = match routed.copies() {
            1 => (slot, expert),
            copies => {
                let copy = b.special(Special::Block(2));
                let slots = b.mul(words.token_blocks, order.slots);
                (b.mad(copy, slots, slot), b.mad(expert, copies, copy))
            }
        };
        Some(SlotRow { number, there, of_x, matrix })
    }
}
