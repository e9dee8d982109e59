//! Two warp groups in ping-pong: each multiplies every other tile of a block that has several, so that one multiplies while the
//! other one finishes its sums and stores them.
//!
//! Both visit all tiles. A group skips the stages of the other one's tiles, which it does not read. A wait for a stage needs the
//! parity of its use, which the use two before has too: so a group waits for its first stage when the other one has waited for
//! all of its own, which a pair of mbarriers tells.

use super::Block;
use super::ring::{Cursor, Ring};
use crate::ir::{BarrierId, BarrierRef, Builder, Op, Operand, Reg, Special, Type, Uniformity};

/// The mbarriers: `ping_pong[group]` completes a phase when all warps of the other group have waited for their last stage of a tile.
#[derive(Clone, Copy)]
pub(super) struct PingPong(BarrierId);

/// A group's state, as variables of the loop over tiles.
#[derive(Clone, Copy)]
pub(super) struct Group {
    barriers: PingPong,
    /// The number of the group.
    group: Operand,
    /// The group that has the next tile.
    next: Reg,
    /// The parity of the phase that the group's next tile waits for.
    parity: Reg,
}

impl PingPong {
    /// Declares the mbarriers of two groups, if those of the block are in ping-pong.
    pub(super) fn declare(b: &mut Builder, block: &Block<'_>) -> Option<Self> {
        block.is_ping_pong().then(|| Self(b.barriers("ping_pong", 2)))
    }

    /// One thread initialises the mbarriers, before it does those of the ring.
    pub(super) fn initialise(self, b: &mut Builder, warps: u32) {
        let thread = b.special(Special::Thread);
        let first = b.equal(thread, 0u32);
        b.when(first, |b| {
            for group in 0..2 {
                let barrier = BarrierRef { array: self.0, index: Operand::U32(group) };
                b.push(Op::MbarrierInit { barrier, arrivals: warps });
            }
        });
    }

    /// Of this warp's group, one of so many warps, before the first tile, which group 0 has.
    pub(super) fn of_group(self, b: &mut Builder, warps: u32) -> Group {
        let warp = b.special(Special::Warp);
        let number = b.div(warp, warps);
        let group = b.variable("ping_pong_group", Type::U32, Uniformity::WarpGroup);
        b.push(Op::Uniform { dst: group, a: number });
        let group = group.into();
        let variable =
            |b: &mut Builder, name: &str| b.variable(name, Type::U32, Uniformity::WarpGroup);
        let (next, parity) = (variable(b, "next_group"), variable(b, "ping_pong_parity"));
        b.set(next, 0u32);
        // Nobody is before group 0's first tile: the phase before phase 0 counts as complete.
        let other = b.xor(group, 1u32);
        b.set(parity, other);
        Group { barriers: self, group, next, parity }
    }
}

impl Group {
    /// Writes what a group does with a tile of so many stages, if the tile is its own.
    pub(super) fn take(
        self,
        b: &mut Builder,
        (ring, cursor, stages): (&Ring, Cursor, u32),
        work: impl FnOnce(&mut Builder),
    ) {
        let own = b.equal(self.next, self.group);
        b.if_else(own, work, |b| {
            b.comment("the other warp group's stages");
            let later = ring.later(b, cursor.phase(), stages);
            cursor.move_to(b, later);
        });
        let other = b.xor(self.next, 1u32);
        b.set(self.next, other);
    }

    /// The group waits until the other one has waited for all stages of the tile before.
    pub(super) fn begin(self, b: &mut Builder) {
        let barrier = BarrierRef { array: self.barriers.0, index: self.group };
        b.push(Op::MbarrierWait { barrier, parity: self.parity.into() });
        let flipped = b.xor(self.parity, 1u32);
        b.set(self.parity, flipped);
    }

    /// A warp has waited for the last stage of its tile; the condition is that of its first lane.
    pub(super) fn end(self, b: &mut Builder, first_lane: Operand) {
        let other = b.xor(self.group, 1u32);
        let barrier = BarrierRef { array: self.barriers.0, index: other };
        b.push(Op::WarpSync);
        b.when(first_lane, |b| b.push(Op::MbarrierArrive { barrier, expect: None }));
    }
}
