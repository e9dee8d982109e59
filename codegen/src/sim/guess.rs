//! Guesses: reads of words that earlier grids may be writing.
//!
//! Nothing orders such a read, so that a lane may get anything. The simulator gives the warps of a launch what a GPU gives almost always
//! and what it hardly ever gives: the word, a word close to it, any word, or to each lane another one of these. Which, follows from the
//! seed, the block, the warp and the statement, so that a run can be repeated.

use super::lanes::Row;
use super::random::Random;
use super::state::UnitState;
use super::warp::{StepResult, Warp, lanes_of};
use crate::ir::{Address, BufferId, Operand, Reg, Space};

impl<const L: usize> Warp<L> {
    /// Guesses one word per lane.
    pub(super) fn guess(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (dst, from): (Reg, &Address),
        mask: Option<Operand>,
    ) -> StepResult {
        let live = self.masked(state, mask)?;
        let at = self.resolve(state, from, (4, 4), live)?;
        self.count(state, point, from.space, (4, true), &at, live);
        let mut row: Row<L> = [0; L];
        if let Space::Global(BufferId(id)) = from.space {
            let contents = match state.memory.workspaces.get(id as usize) {
                Some(Some(space)) => &space.contents,
                _ => &state.memory.contents[id as usize],
            };
            for lane in lanes_of(live) {
                let at = at[lane] as usize;
                let mut word = [0; 4];
                word.copy_from_slice(&contents.bytes[at..at + 4]);
                row[lane] = u32::from_le_bytes(word);
            }
        }
        let block = state.block_number(self.block);
        let place = state.context.options.seed ^ u64::from(block) << 32
            | u64::from(self.number) << 24
            | u64::from(point);
        let mut random = Random::new(place);
        let (of_warp, apart) = (random.next(), random.below(4) == 0);
        for lane in lanes_of(live) {
            row[lane] = guessed(row[lane], if apart { random.next() } else { of_warp });
        }
        self.write(state, dst, row)
    }
}

/// A word, one close to it, or any.
const fn guessed(word: u32, random: u64) -> u32 {
    match random % 4 {
        0 | 1 => word,
        2 => word ^ 1,
        _ => (random >> 32) as u32,
    }
}
