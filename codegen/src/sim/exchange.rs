//! Exchanges between the lanes of a warp: shuffles, votes, and matrices in shared memory.

use super::fault::FaultKind;
use super::lanes::Row;
use super::state::UnitState;
use super::warp::{StepResult, Warp, fail, fail_at, lanes_of};
use crate::ir::{Address, Operand, Reg, SharedId, Shuffle, Space, Uniformity, Vote};

impl<const L: usize> Warp<L> {
    pub(super) fn shuffle(
        &mut self,
        state: &UnitState<'_, '_>,
        (dst, op): (Reg, Shuffle),
        (a, by): (Operand, Operand),
    ) -> StepResult {
        self.converged()?;
        let (a, by) = (self.read(state, a, Self::FULL)?, self.read(state, by, Self::FULL)?);
        let mut row = [0; L];
        for lane in 0..L {
            let own = lane as u32;
            let from = match op {
                Shuffle::Xor => own ^ by[lane],
                Shuffle::Index => by[lane],
                Shuffle::Up => own.checked_sub(by[lane]).unwrap_or(own),
                Shuffle::Down => {
                    own.checked_add(by[lane]).filter(|&from| from < L as u32).unwrap_or(own)
                }
            };
            let shuffle_lanes = state.context.shuffle_lanes;
            if from >= L as u32 || from / shuffle_lanes != own / shuffle_lanes {
                return fail_at(lane, FaultKind::LaneRange(from));
            }
            row[lane] = a[from as usize];
        }
        self.write(state, dst, row)
    }

    pub(super) fn vote(
        &mut self,
        state: &UnitState<'_, '_>,
        dst: Reg,
        op: Vote,
        a: Operand,
    ) -> StepResult {
        self.converged()?;
        let a = self.flag(state, a, Self::FULL)? & Self::FULL;
        let says = match op {
            Vote::All => a == Self::FULL,
            Vote::Any => a != 0,
        };
        self.set_flag(state, dst, (if says { !0 } else { 0 }, 0));
        Ok(())
    }

    pub(super) fn ballot(
        &mut self,
        state: &UnitState<'_, '_>,
        dst: &[Reg],
        a: Operand,
    ) -> StepResult {
        self.converged()?;
        let a = self.flag(state, a, Self::FULL)? & Self::FULL;
        for (part, &slot) in dst.iter().enumerate() {
            self.write(state, slot, [(a >> (32 * part)) as u32; L])?;
        }
        Ok(())
    }

    /// Checks the promise that `a` is uniform over the scope.
    pub(super) fn uniform(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        a: &Row<L>,
        scope: Uniformity,
    ) -> StepResult {
        let Some(first) = lanes_of(self.active).next() else { return Ok(()) };
        let name = match scope {
            Uniformity::Varying => return Ok(()),
            Uniformity::Warp => "warp",
            Uniformity::WarpGroup => "warp group",
            Uniformity::Block => "block",
        };
        self.converged()?;
        if let Some(lane) = lanes_of(self.active).find(|&lane| a[lane] != a[first]) {
            return fail_at(lane, FaultKind::NotUniform(name, a[first], a[lane]));
        }
        let group = match scope {
            Uniformity::WarpGroup => self.number / 4 + 1,
            Uniformity::Block => 0,
            _ => return Ok(()),
        };
        // The n-th visits of all warps must see the same value.
        let visits = self.visits.entry(point).or_insert(0);
        *visits += 1;
        let key = (self.block, group << 16 | point, *visits);
        let value = *state.uniform.entry(key).or_insert(a[first]);
        if value != a[first] {
            return fail(FaultKind::NotUniform(name, value, a[first]));
        }
        Ok(())
    }

    /// Loads matrices of 8 rows of 16 bytes from shared memory.
    pub(super) fn matrix_load(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (dst, from): (&[Reg], &Address),
        transpose: bool,
    ) -> StepResult {
        self.converged()?;
        let live = row_lanes::<L>(dst.len());
        let starts = self.resolve(state, from, (16, 16), live)?;
        self.count(state, point, from.space, (16, true), &starts, live);
        let Space::Shared(SharedId(id)) = from.space else {
            return fail(FaultKind::Unsupported("a matrix load from global memory"));
        };
        for lane in lanes_of(live) {
            // Four lanes receive the row: it counts as read by all lanes.
            let all = usize::from(super::clock::ALL_LANES);
            self.check_read(state, point, (from.space, id), all, starts[lane] as u32, 16)?;
        }
        let bytes = &state.blocks[self.block].shared.bytes;
        let mut rows = vec![[0; L]; dst.len()];
        for (matrix, row) in rows.iter_mut().enumerate() {
            let half = |r: usize, column: usize| {
                let at = starts[8 * matrix + r] as usize + 2 * column;
                u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
            };
            for (lane, word) in row.iter_mut().enumerate().take(32) {
                let (r, pair) = (lane / 4, 2 * (lane % 4));
                *word = if transpose {
                    half(pair, r) | half(pair + 1, r) << 16
                } else {
                    half(r, pair) | half(r, pair + 1) << 16
                };
            }
        }
        for (&slot, row) in dst.iter().zip(rows) {
            self.write(state, slot, row)?;
        }
        Ok(())
    }

    /// Stores matrices of 8 rows of 16 bytes: the inverse of [`Self::matrix_load`].
    pub(super) fn matrix_store(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (to, values): (&Address, &[Operand]),
        transpose: bool,
    ) -> StepResult {
        self.converged()?;
        let live = row_lanes::<L>(values.len());
        let starts = self.resolve(state, to, (16, 16), live)?;
        self.count(state, point, to.space, (16, false), &starts, live);
        self.check_writes(state, to.space, live)?;
        for (matrix, &slot) in values.iter().enumerate() {
            let row = self.read(state, slot, Self::FULL)?;
            for r in 0..8 {
                let mut data = [0; 16];
                for (column, half) in data.chunks_exact_mut(2).enumerate() {
                    let (owner, side) = match transpose {
                        true => (4 * column + r / 2, r % 2),
                        false => (4 * r + column / 2, column % 2),
                    };
                    half.copy_from_slice(&((row[owner] >> (16 * side)) as u16).to_le_bytes());
                }
                let lane = 8 * matrix + r;
                self.write_bytes(state, point, to.space, lane, starts[lane], &data)?;
            }
        }
        Ok(())
    }

    /// Transposes an 8 x 8 matrix of 16-bit elements.
    pub(super) fn matrix_transpose(
        &mut self,
        state: &UnitState<'_, '_>,
        dst: Reg,
        a: Operand,
    ) -> StepResult {
        self.converged()?;
        let a = self.read(state, a, Self::FULL)?;
        let half = |r: usize, column: usize| a[4 * r + column / 2] >> (16 * (column % 2)) & 0xffff;
        let mut row = [0; L];
        for (lane, word) in row.iter_mut().enumerate().take(32) {
            let (r, pair) = (lane / 4, 2 * (lane % 4));
            *word = half(pair, r) | half(pair + 1, r) << 16;
        }
        self.write(state, dst, row)
    }
}

/// The lanes whose addresses are used.
fn row_lanes<const L: usize>(matrices: usize) -> u64 {
    let lanes = (8 * matrices).min(L);
    if lanes == 64 { !0 } else { (1 << lanes) - 1 }
}
