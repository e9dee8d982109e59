//! The pairs of one expert that a block multiplies together, where pairs are not sorted.
//!
//! Each pair has blocks. The pairs of an expert, in their order, are groups of S: the blocks of a group's first pair multiply the whole
//! group, and the blocks of its other pairs end. No kernel makes an order before. A block knows its expert from the id of its own pair, and
//! loads its first weights; meanwhile its first warp compares the ids of all pairs with that one, 4 a lane at once, and counts by votes.

use super::order::{NONE, OrderWords};
use super::participants::Participants;
use crate::ir::{
    Address, Builder, Cache, Mask, Op, Operand, SharedId, Special, Type, Unary, Uniformity, Width,
    Word,
};

/// Ids that a lane loads together.
const TOGETHER: u32 = 4;

/// The pairs of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairGroup {
    /// u32, the pairs in their order, then [`NONE`]; all of them [`NONE`] in a block without any.
    pairs: SharedId,
    /// The most pairs: S.
    pub(super) slots: u32,
}

/// What a block knows before it has found its pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairSearch {
    /// Where the pairs will be.
    pub(super) group: PairGroup,
    /// The ids of pairs.
    pub(super) words: OrderWords,
    /// The block's pair, and the id of its expert.
    pub(super) pair: Operand,
    pub(super) expert: Operand,
}

impl PairSearch {
    /// Finds the block's pairs, and says whether there are any; all warps of the block wait.
    pub(super) fn run(&self, b: &mut Builder, by: Participants) -> Operand {
        let Self { group: PairGroup { pairs, slots }, words, pair, expert } = *self;
        b.comment(
            "the pairs with this one's expert, if this is the first of as many as a block has",
        );
        let (warp, lane) = (b.special(Special::Warp), b.special(Special::Lane));
        let first_warp = b.equal(warp, 0u32);
        b.when(first_warp, |b| {
            let is_slot = b.less(lane, slots);
            b.store(Address::new(pairs, lane), &[NONE.into()], Width::B32, Some(is_slot));
            b.push(Op::WarpSync);
            let counted = |b: &mut Builder, name: &str| {
                let count = b.variable(name, Type::U32, Uniformity::Warp);
                b.set(count, 0u32);
                count
            };
            let [before, since] = ["pairs_before", "pairs_since"].map(|name| counted(b, name));
            let lanes = b.warp_size();
            let of_lanes_before = {
                let next = b.shl(1u32, lane);
                b.sub(next, 1u32)
            };
            b.for_each(0u32, words.all_pairs(), TOGETHER * lanes, "first_pair", |b, first| {
                let loaded = (0..TOGETHER).map(|load| {
                    let other = b.add(first, lane);
                    let other = b.add(other, load * lanes);
                    let there = b.less(other, words.all_pairs());
                    let mask = Some(Mask { condition: there, fill: NONE.into() });
                    let from = words.expert_of(other);
                    let id = b.load_as(Type::U32, from, Width::B32, mask, Cache::Default)[0];
                    (other, id)
                });
                let loaded: Vec<_> = loaded.collect();
                for (other, id) in loaded {
                    let same = b.equal(id, expert);
                    let earlier = b.less(other, pair);
                    let next = b.add(other, 1u32);
                    let later = b.less(pair, next);
                    let (earlier, later) = (b.both(same, earlier), b.both(same, later));
                    let [of_earlier, of_later] = [earlier, later].map(|which| lanes_with(b, which));
                    // A later pair's place: the pairs from the block's own to that one.
                    let of_lower = b.and(of_later, of_lanes_before);
                    let lower = b.unary(Unary::PopCount, of_lower);
                    let place = b.add(since, lower);
                    let has_place = b.less(place, slots);
                    let stored = b.both(later, has_place);
                    b.store(Address::new(pairs, place), &[other], Width::B32, Some(stored));
                    for (count, which) in [(before, of_earlier), (since, of_later)] {
                        let more = b.unary(Unary::PopCount, which);
                        let all = b.add(count, more);
                        b.set(count, all);
                    }
                }
            });
            let in_group = b.rem(before, slots);
            let follows = b.less(0u32, in_group);
            b.push(Op::WarpSync);
            let none = b.both(follows, is_slot);
            b.store(Address::new(pairs, lane), &[NONE.into()], Width::B32, Some(none));
        });
        by.wait(b);
        let first = self.group.pair(b, 0u32.into(), true.into());
        b.less(first, NONE)
    }
}

impl PairGroup {
    /// Words of shared memory.
    pub(super) const fn words(slots: u32) -> u32 {
        slots.next_multiple_of(4)
    }

    /// Declares the pairs of a block, which has so many at most.
    pub(super) fn declare(b: &mut Builder, slots: u32) -> Self {
        let layout = "u32, the block's pairs of an expert";
        Self { pairs: b.shared("pairs", Word::U32, Self::words(slots), layout), slots }
    }

    /// The pair of a slot of the block, or [`NONE`]; [`NONE`] where `within` is false.
    pub(super) fn pair(&self, b: &mut Builder, slot: Operand, within: Operand) -> Operand {
        let mask = (within != Operand::Pred(true))
            .then_some(Mask { condition: within, fill: NONE.into() });
        let from = Address::new(self.pairs, slot);
        b.load_as(Type::U32, from, Width::B32, mask, Cache::Default)[0].into()
    }
}

/// A bit for each lane of the warp: whether the condition is true there.
fn lanes_with(b: &mut Builder, condition: Operand) -> Operand {
    let lanes = b.variable("lanes", Type::U32, Uniformity::Warp);
    b.push(Op::Ballot { dst: vec![lanes], a: condition });
    lanes.into()
}
