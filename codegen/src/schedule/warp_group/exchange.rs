//! K in two parts: the two blocks of a cluster exchange sums, each of the half of the tokens that the other one
//! stores.
//!
//! A thread has the sums of the same rows and tokens as its counterpart in the other block. It leaves those of
//! the other block's tokens in its own shared memory, and after a barrier of the cluster reads those of its own
//! tokens from the other block's. Two terms have one sum in any order, so every call gives the same bits. A block
//! does not end before the other one has read: all warps of both meet again. So do blocks that share copies of x, which
//! arrive at each other's mbarriers ([`meetings`]).

use super::stage::Stages;
use super::weights::WarpRows;
use super::{Block, WarpGroupTile};
use crate::ir::{Address, Builder, Operand, Special, Width, Word};

/// 32-bit words of a vector.
const VECTOR: u32 = 4;

/// 32-bit words of shared memory for half of the sums of so many threads.
pub(super) const fn words(threads: u32, sums: u32) -> u32 {
    threads * sums / 2
}

/// How often all warps of a cluster wait for each other after the ring: before they read the other block's sums, and before
/// they end.
pub(super) const fn meetings(tile: &WarpGroupTile) -> u32 {
    match (tile.splits, tile.multicast) {
        (1, 1) => 0,
        (1, _) => 1,
        _ => 2,
    }
}

/// The last one: a warp does not end before those of the other block of its cluster, which read its sums or arrive at its
/// mbarriers.
pub(super) fn meet_cluster(b: &mut Builder, tile: &WarpGroupTile) {
    if meetings(tile) > 0 {
        b.cluster_barrier();
    }
}

/// Of the sums of each tile of rows, those of this block's tokens over all of K. All consumers have read the stages,
/// whose first planes of codes the sums take the place of.
pub(super) fn exchanged(
    b: &mut Builder,
    (block, stages): (&Block<'_>, &Stages),
    rows: &WarpRows,
    sums: Vec<Vec<Operand>>,
) -> Vec<Vec<Operand>> {
    if block.tile.splits == 1 {
        return sums;
    }
    let threads = block.consumer_warps() * b.warp_size();
    let all: usize = sums.iter().map(Vec::len).sum();
    let layout = "f32 [vector, thread, number of the vector]";
    let count = words(threads, all as u32);
    let codes = stages.codes.first();
    let over = codes.and_then(|codes| codes.array.for_words(block.tile.stages, count));
    let shared = b.shared_block("exchange", Word::U32, count, layout, 16, over);
    b.comment("the sums of the other block's tokens");
    let rank = b.special(Special::ClusterBlock);
    let first = b.equal(rank, 0u32);
    let warp = b.mad(rows.group, block.group_warps(), rows.warp);
    let thread = b.mad(warp, b.warp_size(), rows.lane);
    let at = b.mul(thread, VECTOR);
    let place = |number: usize| Address::new(shared, at).plus(number as u32 * threads * VECTOR);
    let (mut kept, mut number) = (Vec::new(), 0);
    for tile in &sums {
        let (low, high) = tile.split_at(tile.len() / 2);
        let mut own = Vec::new();
        for (low, high) in low.chunks(VECTOR as usize).zip(high.chunks(VECTOR as usize)) {
            let pairs = || low.iter().zip(high);
            own.extend(pairs().map(|(&low, &high)| b.select(first, low, high)));
            let others = pairs().map(|(&low, &high)| b.select(first, high, low));
            let others: Vec<Operand> = others.collect();
            b.store(place(number), &others, Width::B128, None);
            number += 1;
        }
        kept.push(own);
    }
    b.cluster_barrier();
    b.comment("the other block's sums of this block's tokens");
    let other = b.xor(rank, 1u32);
    let mut number = 0;
    for own in &mut kept {
        for own in own.chunks_mut(VECTOR as usize) {
            let parts = b.cluster_load(place(number), Width::B128, other);
            for (own, part) in own.iter_mut().zip(parts) {
                *own = b.add_f32(*own, part);
            }
            number += 1;
        }
    }
    kept
}
