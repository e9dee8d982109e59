//! Loads and stores of a warp.

use super::clock::ALL_LANES;
use super::fault::FaultKind;
use super::global::OutputStore;
use super::lanes::Row;
use super::shared::AccessConflict;
use super::state::UnitState;
use super::warp::{StepResult, Warp, fail_at, lanes_of};
use crate::ir::{Access, Address, BufferId, Mask, Operand, Reg, SharedId, Space, Width};

/// Byte addresses of the lanes: from the start of a buffer, or of shared memory.
pub(super) type Bytes<const L: usize> = [u64; L];

impl<const L: usize> Warp<L> {
    /// The byte addresses of an access by the live lanes, checked for bounds and alignment.
    pub(super) fn resolve(
        &mut self,
        state: &UnitState<'_, '_>,
        at: &Address,
        (bytes, align): (u64, u32),
        live: u64,
    ) -> StepResult<Bytes<L>> {
        let index = self.read(state, at.index, live)?;
        let (start, len) = match at.space {
            Space::Global(BufferId(id)) => {
                (0, state.memory.contents[id as usize].bytes.len() as u64)
            }
            Space::Shared(SharedId(id)) => {
                let (start, len) = state.blocks[self.block].shared.blocks[id as usize];
                (u64::from(start), u64::from(len))
            }
        };
        let (offset, (_, word)) = (u64::from(at.offset), state.array(at.space));
        let mut resolved = [0; L];
        for lane in lanes_of(live) {
            let byte = (u64::from(index[lane]) + offset) * word;
            let location = || state.location(at.space, start + byte);
            if byte + bytes > len {
                let kind = FaultKind::OutOfBounds { location: location(), words: len / word };
                return fail_at(lane, kind);
            }
            let byte = start + byte;
            if !byte.is_multiple_of(u64::from(align)) {
                return fail_at(lane, FaultKind::Misaligned { location: location(), byte, align });
            }
            resolved[lane] = byte;
        }
        Ok(resolved)
    }

    /// [`Self::check_access_mode`] of a copy from a buffer.
    pub(super) fn check_reads(
        &self,
        state: &UnitState<'_, '_>,
        array: Space,
        live: u64,
    ) -> StepResult {
        let readable = [Access::Constant, Access::ReadOnly, Access::Workspace];
        self.check_access_mode(state, array, live, &readable, "reads")
    }

    /// [`Self::check_access_mode`] of a store to a buffer.
    pub(super) fn check_writes(
        &self,
        state: &UnitState<'_, '_>,
        array: Space,
        live: u64,
    ) -> StepResult {
        let writable = [Access::WriteOnce, Access::WriteSome, Access::Workspace];
        self.check_access_mode(state, array, live, &writable, "writes")
    }

    /// Fails if the buffer's declaration or a missing [`Op::GridWait`](crate::ir::Op::GridWait)
    /// forbids the access.
    pub(super) fn check_access_mode(
        &self,
        state: &UnitState<'_, '_>,
        array: Space,
        live: u64,
        wanted: &[Access],
        what: &'static str,
    ) -> StepResult {
        let Space::Global(BufferId(id)) = array else { return Ok(()) };
        let access = state.memory.access[id as usize];
        let Some(lane) = lanes_of(live).next() else { return Ok(()) };
        let name = || state.context.kernel.buffers[id as usize].name.clone();
        if !wanted.contains(&access) {
            return fail_at(lane, FaultKind::WrongAccess { buffer: name(), what, access });
        }
        if access != Access::Constant {
            let grid = state.context.grid_entity();
            let seen = |lane: usize| {
                let partial = self.partial.as_ref().filter(|(mask, _)| mask >> lane & 1 == 1);
                self.clock.own[usize::from(grid)].full > 0
                    || partial.is_some_and(|(_, clock)| clock.own[usize::from(grid)].full > 0)
            };
            if let Some(lane) = lanes_of(live).find(|&lane| !seen(lane)) {
                return fail_at(lane, FaultKind::BeforeGridWait(name()));
            }
        }
        Ok(())
    }

    /// The live lanes where a mask is true.
    pub(super) fn masked(
        &self,
        state: &UnitState<'_, '_>,
        mask: Option<Operand>,
    ) -> StepResult<u64> {
        match mask {
            Some(mask) => Ok(self.active & self.flag(state, mask, self.active)?),
            None => Ok(self.active),
        }
    }

    /// Reads memory into registers.
    pub(super) fn load(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (dst, from, width): (&[Reg], &Address, Width),
        mask: Option<Mask>,
    ) -> StepResult {
        let live = self.masked(state, mask.map(|mask| mask.condition))?;
        let mut rows = [[0; L]; 4];
        if let Some(Mask { fill, .. }) = mask
            && live != self.active
        {
            let fill = self.read(state, fill, self.active & !live)?;
            rows = [fill; 4];
        }
        let bytes = width.bytes();
        let at = self.resolve(state, from, (u64::from(bytes), bytes), live)?;
        self.count(state, point, from.space, (bytes, true), &at, live);
        match from.space {
            Space::Global(BufferId(id)) => {
                self.check_reads(state, from.space, live)?;
                for lane in lanes_of(live) {
                    let data = self.global_bytes(state, point, id, lane, at[lane], bytes)?;
                    put(&mut rows, lane, data);
                }
            }
            Space::Shared(SharedId(id)) => {
                for lane in lanes_of(live) {
                    let start = at[lane] as u32;
                    self.check_read(state, point, (from.space, id), lane, start, bytes)?;
                    let shared = &state.blocks[self.block].shared.bytes;
                    put(&mut rows, lane, &shared[start as usize..(start + bytes) as usize]);
                }
            }
        }
        for (&reg, row) in dst.iter().zip(rows) {
            self.write(state, reg, row)?;
        }
        if matches!(from.space, Space::Global(_)) {
            let asked = u64::from(bytes) * u64::from(live.count_ones());
            self.loads(state, dst, asked);
        }
        Ok(())
    }

    /// Bytes of a buffer, after a check that the lane may read them.
    pub(super) fn global_bytes<'w>(
        &self,
        state: &'w mut UnitState<'_, '_>,
        point: u32,
        buffer: u32,
        lane: usize,
        byte: u64,
        bytes: u32,
    ) -> StepResult<&'w [u8]> {
        let range = byte as usize..byte as usize + bytes as usize;
        if state.memory.access[buffer as usize] != Access::Workspace {
            let contents = &state.memory.contents[buffer as usize];
            // An earlier launch may have left parts of a buffer unwritten.
            if !contents.known(byte as usize, bytes as usize) {
                let space = Space::Global(BufferId(buffer));
                return fail_at(lane, state.conflict(AccessConflict::Poison, space, byte, false));
            }
            return Ok(&state.memory.contents[buffer as usize].bytes[range]);
        }
        let who = self.observer(point);
        if let Some(Some(space)) = state.memory.workspaces.get_mut(buffer as usize)
            && let Err(conflict) = space.read(&who, lane as u8, byte, u64::from(bytes))
        {
            return fail_at(
                lane,
                state.conflict(conflict, Space::Global(BufferId(buffer)), byte, false),
            );
        }
        match state.memory.workspaces.get(buffer as usize) {
            Some(Some(space)) => Ok(&space.contents.bytes[range]),
            _ => Ok(&state.memory.contents[buffer as usize].bytes[range]),
        }
    }

    /// Reads shared memory of a block of the cluster.
    pub(super) fn cluster_load(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (dst, from, width): (&[Reg], &Address, Width),
        block: Operand,
    ) -> StepResult {
        let (live, bytes) = (self.active, width.bytes());
        let blocks = self.read(state, block, live)?;
        let at = self.resolve(state, from, (u64::from(bytes), bytes), live)?;
        self.count(state, point, from.space, (bytes, true), &at, live);
        let mut rows = [[0; L]; 4];
        let Space::Shared(SharedId(id)) = from.space else { return Ok(()) };
        for lane in lanes_of(live) {
            let who = self.observer(point);
            let (start, number) = (at[lane] as u32, blocks[lane] as usize);
            let Some(of) = state.blocks.get_mut(number) else {
                let what = "a load from a block outside of the cluster";
                return fail_at(lane, FaultKind::Unsupported(what));
            };
            if let Err(conflict) = of.shared.read(&who, lane as u8, (start, bytes), id as u16) {
                let kind = state.conflict(conflict, from.space, u64::from(start), false);
                return fail_at(lane, kind);
            }
            put(&mut rows, lane, &of.shared.bytes[start as usize..(start + bytes) as usize]);
            if number != self.block {
                of.used_by_others.push(who.record(lane as u8));
            }
        }
        for (&reg, row) in dst.iter().zip(rows) {
            self.write(state, reg, row)?;
        }
        Ok(())
    }

    /// Checks and records a read of shared memory by a lane.
    pub(super) fn check_read(
        &self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (array, id): (Space, u32),
        lane: usize,
        start: u32,
        bytes: u32,
    ) -> StepResult {
        let who = self.observer(point);
        let shared = &mut state.blocks[self.block].shared;
        match shared.read(&who, lane as u8, (start, bytes), id as u16) {
            Ok(()) => Ok(()),
            Err(conflict) => {
                let kind = state.conflict(conflict, array, u64::from(start), false);
                fail_at(if lane == usize::from(ALL_LANES) { 0 } else { lane }, kind)
            }
        }
    }

    /// Writes registers to memory.
    pub(super) fn store(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (to, values, width): (&Address, &[Operand], Width),
        mask: Option<Operand>,
    ) -> StepResult {
        let live = self.masked(state, mask)?;
        let bytes = width.bytes();
        let at = self.resolve(state, to, (u64::from(bytes), bytes), live)?;
        self.count(state, point, to.space, (bytes, false), &at, live);
        self.check_writes(state, to.space, live)?;
        let mut rows = [[0; L]; 4];
        for (row, &value) in rows.iter_mut().zip(values) {
            *row = self.read(state, value, live)?;
        }
        for lane in lanes_of(live) {
            let mut data = [0; 16];
            for (word, row) in data.chunks_exact_mut(4).zip(&rows) {
                word.copy_from_slice(&row[lane].to_le_bytes());
            }
            self.write_bytes(state, point, to.space, lane, at[lane], &data[..bytes as usize])?;
        }
        Ok(())
    }

    /// Writes bytes, up to 16 of them, for a lane.
    pub(super) fn write_bytes(
        &self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        array: Space,
        lane: usize,
        byte: u64,
        data: &[u8],
    ) -> StepResult {
        let who = self.observer(point);
        let conflict = match array {
            Space::Global(BufferId(id)) => match state.memory.workspaces.get_mut(id as usize) {
                Some(Some(space)) => space.write(&who, lane as u8, byte, data),
                _ => {
                    let mut kept = [0; 16];
                    kept[..data.len()].copy_from_slice(data);
                    let block = state.block_number(self.block);
                    state.memory.stored.push(OutputStore {
                        buffer: id,
                        byte,
                        data: kept,
                        bytes: data.len() as u8,
                        lane: lane as u8,
                        warp: self.number as u16,
                        block,
                        point,
                    });
                    Ok(())
                }
            },
            Space::Shared(SharedId(id)) => {
                let shared = &mut state.blocks[self.block].shared;
                let start = byte as usize;
                let range = (start as u32, data.len() as u32);
                let checked = shared.write(&who, lane as u8, range, id as u16);
                if checked.is_ok() {
                    shared.bytes[start..start + data.len()].copy_from_slice(data);
                }
                checked
            }
        };
        match conflict {
            Ok(()) => Ok(()),
            Err(conflict) => fail_at(lane, state.conflict(conflict, array, byte, true)),
        }
    }

    /// Counts an access of `width` bytes per lane, a read or a write.
    pub(super) fn count(
        &self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        array: Space,
        (width, reads): (u32, bool),
        at: &Bytes<L>,
        live: u64,
    ) {
        match array {
            Space::Global(_) => {
                state.tally.global(point, width, lanes_of(live).map(|lane| at[lane]));
            }
            Space::Shared(_) => {
                let lanes = lanes_of(live).map(|lane| (lane, at[lane] as u32));
                state.tally.shared(point, (width, reads), &state.context.banks, lanes);
            }
        }
    }
}

/// Writes a lane's bytes into rows, little-endian; the rest of a register is zero.
fn put<const L: usize>(rows: &mut [Row<L>; 4], lane: usize, data: &[u8]) {
    for (row, part) in rows.iter_mut().zip(data.chunks(4)) {
        let mut word = [0; 4];
        word[..part.len()].copy_from_slice(part);
        row[lane] = u32::from_le_bytes(word);
    }
}
