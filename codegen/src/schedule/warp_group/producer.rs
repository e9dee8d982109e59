//! The producer: one thread starts the copies of one k-tile after another.

use super::Block;
use super::ring::{Place, Ring};
use super::stage::Stages;
use crate::ir::{Builder, Op, Operand, Special};

/// K-tiles of weights that are copied before the wait for earlier kernels. More of them delay the first k-tile
/// of x.
const AHEAD: u32 = 2;

/// The program of the producer's warps.
pub(super) fn produce(b: &mut Builder, block: &Block<'_>, of: (&Ring, &Stages)) {
    let thread = b.special(Special::Thread);
    let first = block.consumer_warps() * b.warp_size();
    let leads = b.equal(thread, first);
    b.when(leads, |b| copy(b, block, of));
}

fn copy(b: &mut Builder, block: &Block<'_>, (ring, stages): (&Ring, &Stages)) {
    let k_iters = block.main.k_iters();
    let weights = |b: &mut Builder, k_tile: Operand, place: Place| {
        let barrier = ring.expect(b, place, stages.bytes());
        stages.copy_weights(b, block, (k_tile, place.stage), barrier);
    };
    let ahead = AHEAD.min(block.tile.stages).min(k_iters);
    b.comment("weights of the first k-tiles, which no earlier kernel writes");
    for number in 0..ahead {
        weights(b, number.into(), ring.first(number));
    }
    if block.tile.programmatic {
        b.push(Op::GridWait);
    }
    let cursor = ring.cursor(b);
    b.for_each(0u32, k_iters, 1u32, "k_tile", |b, k_tile| {
        let place = cursor.place();
        let later = b.less(ahead - 1, k_tile);
        b.when(later, |b| {
            ring.acquire(b, place);
            weights(b, k_tile, place);
        });
        stages.copy_x(b, block, (k_tile, place.stage), ring.arrival(place));
        let next = ring.after(b, place);
        cursor.move_to(b, next);
    });
}
