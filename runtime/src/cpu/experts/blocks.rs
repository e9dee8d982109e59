//! Token blocks: slots of one expert that are multiplied together.
//!
//! In: the slots of each expert. Out: blocks of at most [`MOST_ROWS`] slots, those with the most slots
//! first, so that the last units of a queue are small.

use std::cmp::Reverse;

/// The most slots of a block: memory of a thread is for that many, and an expert with more rows is the
/// work of several threads. Decoding a panel once for each block then costs a few percent of
/// multiplying it with so many rows.
pub(super) const MOST_ROWS: usize = 256;

/// Slots of one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenBlock {
    /// Its place.
    pub(super) expert: usize,
    /// The first slot.
    pub(super) first: usize,
    /// The number of slots.
    pub(super) rows: usize,
}

/// A block in memory.
pub(super) type StoredBlock = [u32; 4];

impl From<StoredBlock> for TokenBlock {
    fn from([expert, first, rows, _]: StoredBlock) -> Self {
        Self { expert: expert as usize, first: first as usize, rows: rows as usize }
    }
}

/// The most blocks of `slots` slots of `experts` experts.
pub(super) fn most(experts: usize, slots: usize) -> usize {
    experts.min(slots) + slots / MOST_ROWS
}

/// Cuts the slots of experts into blocks, the largest first, and returns their number. `starts` `[L + 1]`
/// are the first slots of the experts; `blocks` has room for [`most`].
pub(super) fn cut(starts: &[u32], blocks: &mut [StoredBlock]) -> usize {
    let mut count = 0;
    for (expert, ends) in (0u32..).zip(starts.windows(2)) {
        for first in (ends[0]..ends[1]).step_by(MOST_ROWS) {
            blocks[count] = [expert, first, (ends[1] - first).min(MOST_ROWS as u32), 0];
            count += 1;
        }
    }
    blocks[..count]
        .sort_unstable_by_key(|[expert, first, rows, _]| (Reverse(*rows), *expert, *first));
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_in_one_block_and_the_bound_is_reached() {
        for counts in [vec![], vec![0, 0], vec![1, 0, 5], vec![256, 257, 0, 1], vec![600; 3]] {
            let mut starts = vec![0];
            let mut slots = 0;
            for count in &counts {
                slots += *count;
                starts.push(slots);
            }
            let room = most(counts.len(), slots as usize);
            let mut blocks = vec![[9; 4]; room];
            let count = cut(&starts, &mut blocks);
            let mut all: Vec<TokenBlock> = blocks[..count].iter().map(|b| (*b).into()).collect();
            assert!(all.windows(2).all(|pair| pair[0].rows >= pair[1].rows));
            all.sort_by_key(|block| block.first);
            let mut next = 0;
            for TokenBlock { expert, first, rows } in all {
                assert!(first == next && (1..=MOST_ROWS).contains(&rows));
                assert!(starts[expert] as usize <= first);
                assert!(first + rows <= starts[expert + 1] as usize);
                next = first + rows;
            }
            assert_eq!(next, slots as usize);
        }
        // One full block and a rest in each of two experts.
        let mut blocks = vec![[0; 4]; most(2, 514)];
        assert_eq!(cut(&[0, 257, 514], &mut blocks), 4);
        assert_eq!(most(2, 514), 4);
    }
}
