//! The pairs of a token block's slots, which say where rows of y are.
//!
//! A lane has sums of a quarter of the slots. Loads of their pairs from global memory take longer than all that
//! the epilogue does beside them. So a thread of a warp group loads the pair of one slot or two before the first product,
//! and after the last one the group's threads exchange them in shared memory.

use super::Block;
use super::store::meet;
use super::weights::WarpRows;
use crate::ir::{Address, Builder, Operand, SharedId, Width, Word};
use crate::schedule::rows::Token;

/// The pairs of a warp group.
pub(super) struct Pairs {
    shared: SharedId,
    /// The group's first word.
    first: Operand,
    /// Per slot that this thread loads, its number in the token block, its pair, and whether there is such a slot.
    own: Vec<(Operand, Operand, Operand)>,
}

/// 32-bit words of the pairs of all warp groups.
pub(super) const fn words(groups: u32, tokens: u32) -> u32 {
    groups * tokens
}

impl Pairs {
    /// Starts the loads, in an expert layer.
    pub(super) fn load(b: &mut Builder, block: &Block<'_>, rows: &WarpRows) -> Option<Self> {
        block.main.problem.stack?;
        let tokens = block.tile.tokens;
        let words = words(block.tile.groups, tokens);
        let shared = b.shared("pairs", Word::U32, words, "the pair of each slot, by warp group");
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
            (slot, pair, exists)
        });
        Some(Self { shared, first, own: own.collect() })
    }

    /// The group's threads exchange pairs; those of the tile before are not needed any more.
    pub(super) fn exchange(&self, b: &mut Builder, block: &Block<'_>, rows: &WarpRows) {
        meet(b, block, rows);
        for &(slot, pair, exists) in &self.own {
            let to = Address::new(self.shared, b.add(self.first, slot));
            let mask = (exists != Operand::Pred(true)).then_some(exists);
            b.store(to, &[pair], Width::B32, mask);
        }
        meet(b, block, rows);
    }

    /// The token of a slot of the token block.
    pub(super) fn token(&self, b: &mut Builder, block: &Block<'_>, slot: Operand) -> Token {
        let number = block.rows.number(b, slot);
        let from = Address::new(self.shared, b.add(self.first, slot));
        Token::of_pair(number, b.load(from, Width::B32)[0].into())
    }
}
