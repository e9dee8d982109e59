//! The pairs of a token block's slots, which say where rows of y are.
//!
//! A lane has sums of a quarter of the slots. Loads of their pairs from global memory take longer than all that
//! the epilogue does beside them. So a thread of a warp group loads the pair of one slot or two before the first product,
//! and after the last one the group's threads exchange them in shared memory. So with the router weights of slots, if
//! rows of y are multiplied by these.

use super::Block;
use super::weights::WarpRows;
use super::y_lines::meet;
use crate::ir::{Address, Builder, Cache, Mask, Operand, SharedId, Type, Width, Word};
use crate::schedule::order::NONE;
use crate::schedule::rows::Token;
use crate::schedule::stack::Stack;

/// The pairs of a warp group.
pub(super) struct Pairs {
    shared: SharedId,
    /// The group's first word.
    first: Operand,
    /// The distance of a slot's weight from its pair, if rows are weighted.
    weights: Option<u32>,
    /// The slots that this thread loads.
    own: Vec<Slot>,
}

/// A slot that a thread loads.
struct Slot {
    /// Its number in the token block.
    number: Operand,
    pair: Operand,
    weight: Option<Operand>,
    /// Whether there is such a slot.
    exists: Operand,
}

/// 32-bit words of the pairs of all warp groups, and of the weights.
pub(super) const fn words(stack: Stack, (groups, tokens): (u32, u32)) -> u32 {
    groups * tokens * (1 + stack.weighted as u32)
}

impl Pairs {
    /// Starts the loads, in an expert layer.
    pub(super) fn load(b: &mut Builder, block: &Block<'_>, rows: &WarpRows) -> Option<Self> {
        let stack = block.main.problem.stack?;
        let (groups, tokens) = (block.tile.groups, block.tile.tokens);
        let words = words(stack, (groups, tokens));
        let layout = match stack.weighted {
            true => "the pair of each slot, by warp group, then the router weights",
            false => "the pair of each slot, by warp group",
        };
        let shared = b.shared("pairs", Word::U32, words, layout);
        let first = b.mul(rows.group, tokens);
        let thread = b.mad(rows.warp, b.warp_size(), rows.lane);
        let threads = block.group_warps() * b.warp_size();
        let own = (0..tokens).step_by(threads as usize).map(|further| {
            let slot = b.add(thread, further);
            let exists = match further + threads <= tokens {
                true => Operand::Pred(true),
                false => b.less(slot, tokens),
            };
            let number = block.rows.number(b, slot);
            let pair = block.rows.token(b, number, exists).pair();
            let weight = block.rows.weight(b, number, exists);
            Slot { number: slot, pair, weight, exists }
        });
        let own = own.collect();
        Some(Self { shared, first, weights: stack.weighted.then_some(groups * tokens), own })
    }

    /// The group's threads exchange pairs; those of the tile before are not needed any more.
    pub(super) fn exchange(&self, b: &mut Builder, block: &Block<'_>, rows: &WarpRows) {
        meet(b, block, rows);
        for &Slot { number, pair, weight, exists } in &self.own {
            let to = Address::new(self.shared, b.add(self.first, number));
            let mask = (exists != Operand::Pred(true)).then_some(exists);
            b.store(to, &[pair], Width::B32, mask);
            if let (Some(weight), Some(further)) = (weight, self.weights) {
                b.store(to.plus(further), &[weight], Width::B32, mask);
            }
        }
        meet(b, block, rows);
    }

    /// The token of a slot of the token block.
    pub(super) fn token(&self, b: &mut Builder, block: &Block<'_>, slot: Operand) -> Token {
        self.token_where(b, block, (slot, true.into()))
    }

    /// The token of a slot, if it is one of the token block; otherwise it has no pair.
    pub(super) fn token_where(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        (slot, is_slot): (Operand, Operand),
    ) -> Token {
        let number = block.rows.number(b, slot);
        let from = Address::new(self.shared, b.add(self.first, slot));
        let mask = (is_slot != Operand::Pred(true))
            .then_some(Mask { condition: is_slot, fill: NONE.into() });
        let pair = b.load_as(Type::U32, from, Width::B32, mask, Cache::Default)[0];
        Token::of_pair(number, pair.into())
    }

    /// Results of a slot of the token block times its router weight, if rows are weighted.
    pub(super) fn weighted(
        &self,
        b: &mut Builder,
        slot: Operand,
        values: Vec<Operand>,
    ) -> Vec<Operand> {
        let Some(further) = self.weights else { return values };
        let from = Address::new(self.shared, b.add(self.first, slot)).plus(further);
        let weight = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
        values.into_iter().map(|value| b.mul_f32(value, weight)).collect()
    }
}
