//! Loads and stores of a warp.

use super::clock::ALL_LANES;
use super::fault::FaultKind;
use super::global::Stored;
use super::lanes::Row;
use super::program::{Array, At, Flag, Slot};
use super::warp::{Exec, Warp, fail_at, lanes_of};
use super::world::World;
use crate::ir::{Access, Width};

/// Byte addresses of the lanes: from the start of a buffer, or of shared memory.
pub(super) type Bytes<const L: usize> = [u64; L];

impl<const L: usize> Warp<L> {
    /// The byte addresses of an access by the live lanes: inside of the array, and aligned.
    pub(super) fn resolve(
        &mut self,
        world: &World<'_, '_>,
        at: &At,
        (bytes, align): (u64, u32),
        live: u64,
    ) -> Exec<Bytes<L>> {
        let index = self.read(world, at.index, live)?;
        let (start, len) = match at.array {
            Array::Global(id) => (0, world.memory.contents[id as usize].bytes.len() as u64),
            Array::Shared(id) => {
                let (start, len) = world.blocks[self.block].shared.blocks[id as usize];
                (u64::from(start), u64::from(len))
            }
        };
        let (offset, word) = (u64::from(at.offset), u64::from(at.word));
        let mut resolved = [0; L];
        for lane in lanes_of(live) {
            let byte = (u64::from(index[lane]) + offset) * word;
            let place = || world.place(at.array, start + byte);
            if byte + bytes > len {
                let kind = FaultKind::OutOfBounds { place: place(), words: len / word };
                return fail_at(lane, kind);
            }
            let byte = start + byte;
            if !byte.is_multiple_of(u64::from(align)) {
                return fail_at(lane, FaultKind::Misaligned { place: place(), byte, align });
            }
            resolved[lane] = byte;
        }
        Ok(resolved)
    }

    /// Refuses what the buffer's declaration or the grid before this one forbid.
    pub(super) fn may_touch(
        &self,
        world: &World<'_, '_>,
        array: Array,
        live: u64,
        wanted: &[Access],
        what: &'static str,
    ) -> Exec {
        let Array::Global(id) = array else { return Ok(()) };
        let access = world.memory.access[id as usize];
        let Some(lane) = lanes_of(live).next() else { return Ok(()) };
        let name = || world.set.kernel.buffers[id as usize].name.clone();
        if !wanted.contains(&access) {
            return fail_at(lane, FaultKind::WrongAccess { buffer: name(), what, access });
        }
        if access != Access::Constant {
            let grid = world.set.grid_entity();
            let seen = |lane: usize| {
                let some = self.some.as_ref().filter(|(mask, _)| mask >> lane & 1 == 1);
                self.clock.own[usize::from(grid)].full > 0
                    || some.is_some_and(|(_, clock)| clock.own[usize::from(grid)].full > 0)
            };
            if let Some(lane) = lanes_of(live).find(|&lane| !seen(lane)) {
                return fail_at(lane, FaultKind::BeforeGridWait(name()));
            }
        }
        Ok(())
    }

    /// The live lanes where a mask is true.
    pub(super) fn masked(&self, world: &World<'_, '_>, mask: Option<Flag>) -> Exec<u64> {
        match mask {
            Some(mask) => Ok(self.active & self.flag(world, mask, self.active)?),
            None => Ok(self.active),
        }
    }

    /// Reads memory into registers.
    pub(super) fn load(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (dst, from, width): (&[Slot], &At, Width),
        mask: Option<(Flag, Slot)>,
    ) -> Exec {
        let live = self.masked(world, mask.map(|(condition, _)| condition))?;
        let mut rows = [[0; L]; 4];
        if let Some((_, fill)) = mask
            && live != self.active
        {
            let fill = self.read(world, fill, self.active & !live)?;
            rows = [fill; 4];
        }
        let bytes = width.bytes();
        let at = self.resolve(world, from, (u64::from(bytes), bytes), live)?;
        self.count(world, point, from.array, (bytes, true), &at, live);
        match from.array {
            Array::Global(id) => {
                let readable = [Access::Constant, Access::ReadOnly, Access::Workspace];
                self.may_touch(world, from.array, live, &readable, "reads")?;
                for lane in lanes_of(live) {
                    let data = self.global_bytes(world, point, id, lane, at[lane], bytes)?;
                    put(&mut rows, lane, data);
                }
            }
            Array::Shared(id) => {
                for lane in lanes_of(live) {
                    let start = at[lane] as u32;
                    self.judge_read(world, point, (from.array, id), lane, start, bytes)?;
                    let shared = &world.blocks[self.block].shared.bytes;
                    put(&mut rows, lane, &shared[start as usize..(start + bytes) as usize]);
                }
            }
        }
        for (&slot, row) in dst.iter().zip(rows) {
            self.write(world, slot, row)?;
        }
        if matches!(from.array, Array::Global(_)) {
            let asked = u64::from(bytes) * u64::from(live.count_ones());
            self.loads(dst, asked);
        }
        Ok(())
    }

    /// Bytes of a buffer that may be read by a lane.
    pub(super) fn global_bytes<'w>(
        &self,
        world: &'w mut World<'_, '_>,
        point: u32,
        buffer: u32,
        lane: usize,
        byte: u64,
        bytes: u32,
    ) -> Exec<&'w [u8]> {
        let range = byte as usize..byte as usize + bytes as usize;
        if world.memory.access[buffer as usize] != Access::Workspace {
            return Ok(&world.memory.contents[buffer as usize].bytes[range]);
        }
        let who = self.observer(point);
        if let Some(Some(space)) = world.memory.workspaces.get_mut(buffer as usize)
            && let Err(clash) = space.read(&who, lane as u8, byte, u64::from(bytes))
        {
            return fail_at(lane, world.clash(clash, Array::Global(buffer), byte, false));
        }
        match world.memory.workspaces.get(buffer as usize) {
            Some(Some(space)) => Ok(&space.contents.bytes[range]),
            _ => Ok(&world.memory.contents[buffer as usize].bytes[range]),
        }
    }

    /// Notes a read of shared memory by a lane.
    pub(super) fn judge_read(
        &self,
        world: &mut World<'_, '_>,
        point: u32,
        (array, id): (Array, u32),
        lane: usize,
        start: u32,
        bytes: u32,
    ) -> Exec {
        let who = self.observer(point);
        let shared = &mut world.blocks[self.block].shared;
        match shared.read(&who, lane as u8, (start, bytes), id as u16) {
            Ok(()) => Ok(()),
            Err(clash) => {
                let kind = world.clash(clash, array, u64::from(start), false);
                fail_at(if lane == usize::from(ALL_LANES) { 0 } else { lane }, kind)
            }
        }
    }

    /// Writes registers to memory.
    pub(super) fn store(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (to, values, width): (&At, &[Slot], Width),
        mask: Option<Flag>,
    ) -> Exec {
        let live = self.masked(world, mask)?;
        let bytes = width.bytes();
        let at = self.resolve(world, to, (u64::from(bytes), bytes), live)?;
        self.count(world, point, to.array, (bytes, false), &at, live);
        self.may_touch(world, to.array, live, &[Access::WriteOnce, Access::Workspace], "writes")?;
        let mut rows = [[0; L]; 4];
        for (row, &slot) in rows.iter_mut().zip(values) {
            *row = self.read(world, slot, live)?;
        }
        for lane in lanes_of(live) {
            let mut data = [0; 16];
            for (word, row) in data.chunks_exact_mut(4).zip(&rows) {
                word.copy_from_slice(&row[lane].to_le_bytes());
            }
            self.put_bytes(world, point, to.array, lane, at[lane], &data[..bytes as usize])?;
        }
        Ok(())
    }

    /// Writes bytes, up to 16 of them, for a lane.
    pub(super) fn put_bytes(
        &self,
        world: &mut World<'_, '_>,
        point: u32,
        array: Array,
        lane: usize,
        byte: u64,
        data: &[u8],
    ) -> Exec {
        let who = self.observer(point);
        let clash = match array {
            Array::Global(id) => match world.memory.workspaces.get_mut(id as usize) {
                Some(Some(space)) => space.write(&who, lane as u8, byte, data),
                _ => {
                    let mut kept = [0; 16];
                    kept[..data.len()].copy_from_slice(data);
                    let block = world.block_number(self.block);
                    world.memory.stored.push(Stored {
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
            Array::Shared(id) => {
                let shared = &mut world.blocks[self.block].shared;
                let start = byte as usize;
                let range = (start as u32, data.len() as u32);
                let judged = shared.write(&who, lane as u8, range, id as u16);
                if judged.is_ok() {
                    shared.bytes[start..start + data.len()].copy_from_slice(data);
                }
                judged
            }
        };
        match clash {
            Ok(()) => Ok(()),
            Err(clash) => fail_at(lane, world.clash(clash, array, byte, true)),
        }
    }

    /// Counts an access of so many bytes a lane, a read or a write.
    pub(super) fn count(
        &self,
        world: &mut World<'_, '_>,
        point: u32,
        array: Array,
        (width, reads): (u32, bool),
        at: &Bytes<L>,
        live: u64,
    ) {
        match array {
            Array::Global(_) => {
                world.tally.global(point, width, lanes_of(live).map(|lane| at[lane]));
            }
            Array::Shared(_) => {
                let lanes = lanes_of(live).map(|lane| (lane, at[lane] as u32));
                world.tally.shared(point, (width, reads), &world.set.banks, lanes);
            }
        }
    }
}

/// Puts a lane's bytes into rows, little-endian, the rest of a register zero.
fn put<const L: usize>(rows: &mut [Row<L>; 4], lane: usize, data: &[u8]) {
    for (row, part) in rows.iter_mut().zip(data.chunks(4)) {
        let mut word = [0; 4];
        word[..part.len()].copy_from_slice(part);
        row[lane] = u32::from_le_bytes(word);
    }
}
