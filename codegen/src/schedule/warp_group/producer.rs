//! The producer: one thread starts the tensor copies of one stage after another; rows of x that no tensor copy brings
//! are copied by all lanes ([`gather`]).

use super::ring::{Ring, StagePhase};
use super::stage::Stages;
use super::tiles::Tiles;
use super::{Block, exchange, gather};
use crate::ir::{Builder, Op, Operand, Special};
use crate::schedule::mapping::KRange;
use crate::schedule::routed_block::RoutedBlock;

/// Stages of weights that are copied before the wait for earlier kernels. More of them delay the first stage of
/// x.
const AHEAD: u32 = 2;

/// The program of the producer's warps.
pub(super) fn produce(b: &mut Builder, block: &Block<'_>, of: (&Ring, &Stages, KRange)) {
    let thread = b.special(Special::Thread);
    let first = block.consumer_warps() * b.warp_size();
    let leads = b.equal(thread, first);
    b.when(leads, |b| copy(b, block, of));
    b.comment("as often as the consumers");
    for _ in 0..exchange::meetings(&block.tile) {
        b.cluster_barrier();
    }
}

/// The same for each tile of a block that persists.
pub(super) fn produce_tiles(
    b: &mut Builder,
    block: &Block<'_>,
    (ring, stages, of_tile): (&Ring, &Stages, KRange),
    tiles: &Tiles,
) {
    let thread = b.special(Special::Thread);
    let first = block.consumer_warps() * b.warp_size();
    let leads = b.equal(thread, first);
    if let Some(warps) = gather::warps(block) {
        return gather::produce(b, block, (ring, stages, of_tile), (tiles, warps, leads));
    }
    b.when(leads, |b| {
        let cursor = ring.cursor(b);
        let none = |_: &mut Builder, _: &RoutedBlock| ();
        tiles.each_ahead(b, none, |b, tile, load_next| {
            let block = &block.of_tile(b, tile);
            load_next(b);
            b.when(tile.in_use(), |b| {
                let KRange { start, end } = of_tile;
                b.for_each(start, end, 1u32, "number", |b, number| {
                    let phase = cursor.phase();
                    ring.acquire(b, phase);
                    let barrier = ring.expect(b, phase, stages.bytes());
                    stages.copy_weights(b, block, (number, phase.stage), barrier);
                    stages.copy_x(b, block, (number, phase.stage), barrier);
                    let next = ring.after(b, phase);
                    cursor.move_to(b, next);
                });
            });
        });
    });
}

fn copy(
    b: &mut Builder,
    block: &Block<'_>,
    (ring, stages, KRange { start, end }): (&Ring, &Stages, KRange),
) {
    let weights = |b: &mut Builder, number: Operand, phase: StagePhase| {
        let barrier = ring.expect(b, phase, stages.bytes());
        stages.copy_weights(b, block, (number, phase.stage), barrier);
    };
    let fewest = block.tile.k_stages(block.main) / block.tile.splits;
    let ahead = AHEAD.min(block.tile.stages).min(fewest);
    b.comment("weights of the first stages, which no earlier kernel writes");
    for number in 0..ahead {
        let phase = ring.first(number);
        let number = b.add(start, number);
        weights(b, number, phase);
    }
    let first = b.add(start, ahead);
    if block.waits() {
        b.push(Op::GridWait);
    }
    let cursor = ring.cursor(b);
    b.for_each(start, end, 1u32, "number", |b, number| {
        let phase = cursor.phase();
        let there = b.less(number, first);
        b.if_else(
            there,
            |_| {},
            |b| {
                ring.acquire(b, phase);
                weights(b, number, phase);
            },
        );
        stages.copy_x(b, block, (number, phase.stage), ring.arrival(phase));
        let next = ring.after(b, phase);
        cursor.move_to(b, next);
    });
}
