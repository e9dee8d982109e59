//! The swizzle of x in a stage, against bank conflicts.

use super::{ROW, WORDS};
use crate::ir::{Builder, Operand};
use crate::schedule::lanes::Tokens;
use crate::schedule::mapping::MainLoop;

/// The swizzle of x: vector v of token t is at place `v ^ ((t / rows & mask) << shift)`.
#[derive(Clone, Copy)]
pub(in crate::schedule::tile) struct TokenSwizzle {
    /// Rows of x that fill all banks.
    pub(super) rows: u32,
    mask: u32,
    shift: u32,
    /// Words of a vector.
    pub(super) vector: u32,
    /// Words of one read of a lane.
    pub(super) words: u32,
}

impl TokenSwizzle {
    pub(super) fn new(main: &MainLoop<'_>, x_fragment: &Tokens) -> Self {
        let lane_bytes = main.problem.input.bytes(main.lane_columns());
        let tokens = x_fragment.side_by_side();
        if tokens > 1 {
            // Lanes that read together have as many tokens, and read the same vector of each.
            let banks = main.problem.target().gpu.map_or(ROW, |gpu| gpu.banks);
            let (rows, words) = (banks / ROW, (lane_bytes / 4).min(WORDS));
            let together = tokens.min(banks / words);
            let vector = if together > rows * (ROW / WORDS) { words } else { WORDS };
            return Self { rows, mask: ROW / vector - 1, shift: 0, vector, words };
        }
        // The lanes of a token are adjacent; the constants follow from how many tokens a part of the
        // warp reads at once, and by how many vectors these have to differ.
        let [mask, shift, words] = match lane_bytes {
            4 => [7, 0, 1],
            8 => [3, 1, 2],
            16 => [1, 2, 4],
            _ => [1, 0, 4],
        };
        Self { rows: 1, mask, shift, vector: WORDS, words }
    }

    /// Vectors of x in a k-tile.
    pub(super) fn vectors(self, main: &MainLoop<'_>) -> u32 {
        main.problem.input.bytes(main.k_tile()) / 4 / self.vector
    }

    /// Distance in tokens of the consecutive vectors that each of `threads` threads copies, all of the
    /// same columns; `None` if the vectors do not divide evenly, or the distance does not fit the
    /// swizzle's period.
    pub(in crate::schedule::tile) fn apart(self, main: &MainLoop<'_>, threads: u32) -> Option<u32> {
        let apart = threads / self.vectors(main).max(1);
        let period = self.period();
        let even = apart > 0 && threads.is_multiple_of(self.vectors(main));
        let whole = apart > 0 && (apart.is_multiple_of(period) || period.is_multiple_of(apart));
        (even && whole && apart.is_multiple_of(self.rows)).then_some(apart)
    }

    /// Tokens after which the swizzle repeats.
    pub(super) const fn period(self) -> u32 {
        self.rows * (self.mask + 1)
    }

    pub(super) fn place(self, b: &mut Builder, vector: Operand, row: Operand) -> Operand {
        let row = b.div(row, self.rows);
        let row = b.and(row, self.mask);
        let row = b.mul(row, 1u32 << self.shift);
        b.xor(vector, row)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{ROW, TokenSwizzle};
    use crate::ir::{Builder, Operand};
    use crate::target::target;

    /// A row's vectors change places among themselves; of neighbouring rows the first vector is in another
    /// place each, until the pattern repeats.
    #[test]
    fn vectors_change_places() {
        let mut b = Builder::trial(target("sm_90a").unwrap());
        for (mask, shift, words) in [(7, 0, 1), (3, 1, 2), (1, 2, 4), (1, 0, 4)] {
            let swizzle = TokenSwizzle { rows: 1, mask, shift, vector: 4, words };
            let mut place =
                |vector: u32, row: u32| match swizzle.place(&mut b, vector.into(), row.into()) {
                    Operand::U32(place) => place,
                    other => panic!("{other:?} is no constant"),
                };
            let vectors = ROW / swizzle.vector;
            for row in 0..2 * swizzle.period() {
                let mut places: Vec<u32> = (0..vectors).map(|vector| place(vector, row)).collect();
                places.sort_unstable();
                assert_eq!(places, (0..vectors).collect::<Vec<_>>(), "row {row}");
            }
            let first: BTreeSet<u32> = (0..swizzle.period()).map(|row| place(0, row)).collect();
            assert_eq!(first.len() as u32, swizzle.period());
        }
    }
}
