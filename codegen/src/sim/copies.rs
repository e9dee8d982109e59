//! Asynchronous copies: they take hold of their memory when they start and land when they must.

use super::clock::{ALL_LANES, Record};
use super::fault::FaultKind;
use super::mbarrier::{Carried, Flight};
use super::program::{Array, At, BarrierAt, Flag, Slot};
use super::tensor::Tile;
use super::warp::{Exec, Warp, fail_at, lanes_of};
use super::world::World;
use crate::ir::{Access, TensorId, Width};

/// One lane's part of a copy to shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneCopy {
    lane: u8,
    bytes: u8,
    owner: u16,
    /// The lane's group: its number of commits when the copy started.
    group: u32,
    to: u32,
    point: u32,
    data: [u8; 16],
}

/// A copy from shared to global memory.
#[derive(Debug)]
pub(super) struct BulkStore {
    lane: usize,
    group: u32,
    pub(super) point: u32,
    array: u32,
    from: (u32, u32),
    /// Destination bytes in pieces: where, and the offset and length in `from`.
    pieces: Vec<(u64, u32, u32)>,
    /// What was read, once it was.
    data: Option<Vec<u8>>,
}

const READABLE: [Access; 3] = [Access::Constant, Access::ReadOnly, Access::Workspace];

impl<const L: usize> Warp<L> {
    pub(super) fn copy_async(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (to, from, width): (&At, &At, Width),
        mask: Option<Flag>,
    ) -> Exec {
        let reads = self.masked(world, mask)?;
        let live = self.active;
        let bytes = width.bytes();
        let source = self.resolve(world, from, (u64::from(bytes), bytes), reads)?;
        let target = self.resolve(world, to, (u64::from(bytes), bytes), live)?;
        self.may_touch(world, from.array, reads, &READABLE, "reads")?;
        self.count(world, point, from.array, (bytes, true), &source, reads);
        let written = lanes_of(live).map(|lane| (lane, target[lane] as u32));
        world.tally.rounds(point, (bytes, false), &world.set.banks, written);
        let (Array::Shared(owner), Array::Global(buffer)) = (to.array, from.array) else {
            return super::warp::fail(FaultKind::Unsupported(
                "a copy that is not global to shared",
            ));
        };
        for lane in lanes_of(live) {
            let mut data = [0; 16];
            if reads >> lane & 1 == 1 {
                let from = self.global_bytes(world, point, buffer, lane, source[lane], bytes)?;
                data[..bytes as usize].copy_from_slice(from);
            }
            let start = target[lane] as u32;
            self.start_write(world, point, (self.block, to.array), lane, (start, bytes))?;
            self.copies.push(LaneCopy {
                lane: lane as u8,
                bytes: bytes as u8,
                owner: owner as u16,
                group: self.copy_groups[lane],
                to: start,
                point,
                data,
            });
        }
        self.copies_bytes(u64::from(bytes) * u64::from(live.count_ones()), 0);
        Ok(())
    }

    fn start_write(
        &self,
        world: &mut World<'_, '_>,
        point: u32,
        (block, array): (usize, Array),
        lane: usize,
        range: (u32, u32),
    ) -> Exec {
        let who = self.observer(point);
        let judged = world.blocks[block].shared.start_write(&who, lane as u8, range);
        judged.or_else(|clash| fail_at(lane, world.clash(clash, array, u64::from(range.0), true)))
    }

    pub(super) fn copy_commit(&mut self) {
        for lane in lanes_of(self.active) {
            self.copy_groups[lane] += 1;
        }
    }

    /// Lands the copies that the wait covers: now, and not a moment before.
    pub(super) fn copy_wait(&mut self, world: &mut World<'_, '_>, pending: u32) {
        let (active, groups) = (self.active, self.copy_groups);
        let covered = |copy: &LaneCopy| {
            let lane = usize::from(copy.lane);
            active >> lane & 1 == 1 && (pending == 0 || copy.group + pending < groups[lane])
        };
        let (landing, rest) = std::mem::take(&mut self.copies).into_iter().partition(covered);
        self.copies = rest;
        let mut ended = 0;
        let landing: Vec<LaneCopy> = landing;
        for copy in &landing {
            let record = Record { point: copy.point, ..self.observer(0).record(copy.lane) };
            let data = &copy.data[..usize::from(copy.bytes)];
            world.blocks[self.block].shared.land(copy.to, data, record, copy.owner);
            ended += u64::from(copy.bytes);
        }
        self.copies_bytes(0, ended);
    }

    /// An arrival of each lane, once its copies so far are there.
    pub(super) fn copy_arrive(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        barrier: &BarrierAt,
    ) -> Exec {
        let numbers = self.mbarriers(world, barrier)?;
        let live = self.active;
        let clock = self.publish(live);
        for lane in lanes_of(live) {
            self.usable(world, (self.block, numbers[lane]), lane, false)?;
            let own = |copy: &LaneCopy| usize::from(copy.lane) == lane;
            let (landing, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.copies).into_iter().partition(own);
            self.copies = rest;
            let bytes = landing.iter().map(|copy| u64::from(copy.bytes)).sum();
            self.copies_bytes(0, bytes);
            let data = |copy: &LaneCopy| (copy.to, copy.data[..usize::from(copy.bytes)].to_vec());
            world.blocks[self.block].flights.push(Flight {
                mbarrier: numbers[lane],
                point,
                what: Carried::Arrival {
                    pieces: landing.iter().map(data).collect(),
                    owners: landing.iter().map(|copy| copy.owner).collect(),
                    clock: clock.clone(),
                },
            });
        }
        Ok(())
    }

    pub(super) fn bulk_load(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (to, from, bytes): (&At, &At, Slot),
        barrier: &BarrierAt,
    ) -> Exec {
        let live = self.active;
        let numbers = self.mbarriers(world, barrier)?;
        let bytes = self.read(world, bytes, live)?;
        self.may_touch(world, from.array, live, &READABLE, "reads")?;
        let (Array::Shared(owner), Array::Global(buffer)) = (to.array, from.array) else {
            return super::warp::fail(FaultKind::Unsupported(
                "a copy that is not global to shared",
            ));
        };
        for lane in lanes_of(live) {
            let len = bulk_length(lane, bytes[lane])?;
            let source = self.resolve(world, from, (u64::from(len), 16), 1 << lane)?[lane];
            let target = self.resolve(world, to, (u64::from(len), 16), 1 << lane)?[lane] as u32;
            self.usable(world, (self.block, numbers[lane]), lane, true)?;
            self.start_write(world, point, (self.block, to.array), lane, (target, len))?;
            let data = self.global_bytes(world, point, buffer, lane, source, len)?.to_vec();
            world.tally.range(point, u64::from(len));
            world.blocks[self.block].flights.push(Flight {
                mbarrier: numbers[lane],
                point,
                what: Carried::Data {
                    pieces: vec![(target, data)],
                    owner: owner as u16,
                    bytes: i64::from(len),
                },
            });
        }
        Ok(())
    }

    pub(super) fn tensor_load(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (to, map, at): (&At, TensorId, &[Slot]),
        barrier: &BarrierAt,
        multicast: Option<Slot>,
    ) -> Exec {
        let live = self.active;
        let numbers = self.mbarriers(world, barrier)?;
        let tile = Tile::new(world.set, map);
        let array = Array::Global(tile.buffer);
        self.may_touch(world, array, live, &READABLE, "reads")?;
        let corner =
            at.iter().map(|&slot| self.read(world, slot, live)).collect::<Exec<Vec<_>>>()?;
        let own = 1u32 << self.block;
        let blocks = match multicast {
            Some(slot) => self.read(world, slot, live)?,
            None => [own; L],
        };
        for lane in lanes_of(live) {
            let start = self.resolve(world, to, (tile.bytes(), tile.align()), 1 << lane)?[lane];
            let corner: Vec<i64> = corner.iter().map(|row| i64::from(row[lane] as i32)).collect();
            if let Some(kind) = tile.refuses(&corner) {
                return fail_at(lane, kind);
            }
            let mut data = vec![0; tile.bytes() as usize];
            for (element, byte) in tile.elements(&corner, start) {
                let Some(source) = byte else { continue };
                let from = self.tensor_bytes(world, point, &tile, lane, source)?;
                let to = (element - start) as usize;
                data[to..to + tile.word as usize].copy_from_slice(from);
            }
            world.tally.range(point, tile.bytes());
            let Array::Shared(owner) = to.array else { continue };
            for block in (0..world.blocks.len()).filter(|block| blocks[lane] >> block & 1 == 1) {
                self.usable(world, (block, numbers[lane]), lane, true)?;
                let range = (start as u32, tile.bytes() as u32);
                self.start_write(world, point, (block, to.array), lane, range)?;
                world.blocks[block].flights.push(Flight {
                    mbarrier: numbers[lane],
                    point,
                    what: Carried::Data {
                        pieces: vec![(start as u32, data.clone())],
                        owner: owner as u16,
                        bytes: tile.bytes() as i64,
                    },
                });
            }
        }
        Ok(())
    }

    fn tensor_bytes<'w>(
        &self,
        world: &'w mut World<'_, '_>,
        point: u32,
        tile: &Tile,
        lane: usize,
        byte: u64,
    ) -> Exec<&'w [u8]> {
        let all = world.memory.contents[tile.buffer as usize].bytes.len() as u64;
        if byte + u64::from(tile.word) > all {
            let place = world.place(Array::Global(tile.buffer), byte);
            let words = all / u64::from(tile.word);
            return fail_at(lane, FaultKind::OutOfBounds { place, words });
        }
        self.global_bytes(world, point, tile.buffer, lane, byte, tile.word)
    }

    pub(super) fn bulk_store(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (to, from, bytes): (&At, &At, Slot),
    ) -> Exec {
        let live = self.active;
        let bytes = self.read(world, bytes, live)?;
        self.may_touch(world, to.array, live, &[Access::WriteOnce, Access::Workspace], "writes")?;
        let Array::Global(array) = to.array else {
            return super::warp::fail(FaultKind::Unsupported(
                "a copy that is not shared to global",
            ));
        };
        for lane in lanes_of(live) {
            let len = bulk_length(lane, bytes[lane])?;
            let target = self.resolve(world, to, (u64::from(len), 16), 1 << lane)?[lane];
            let source = self.resolve(world, from, (u64::from(len), 16), 1 << lane)?[lane] as u32;
            let pieces = (0..len).step_by(16).map(|at| (target + u64::from(at), at, 16)).collect();
            self.start_store(world, point, from.array, (array, lane, (source, len), pieces))?;
        }
        Ok(())
    }

    pub(super) fn tensor_store(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (map, at, from): (TensorId, &[Slot], &At),
    ) -> Exec {
        let live = self.active;
        let tile = Tile::new(world.set, map);
        let array = Array::Global(tile.buffer);
        self.may_touch(world, array, live, &[Access::WriteOnce, Access::Workspace], "writes")?;
        let corner =
            at.iter().map(|&slot| self.read(world, slot, live)).collect::<Exec<Vec<_>>>()?;
        for lane in lanes_of(live) {
            let start = self.resolve(world, from, (tile.bytes(), tile.align()), 1 << lane)?[lane];
            let corner: Vec<i64> = corner.iter().map(|row| i64::from(row[lane] as i32)).collect();
            if let Some(kind) = tile.refuses(&corner) {
                return fail_at(lane, kind);
            }
            let mut pieces = Vec::new();
            for (element, byte) in tile.elements(&corner, start) {
                if let Some(byte) = byte {
                    pieces.push((byte, (element - start) as u32, tile.word));
                }
            }
            let range = (start as u32, tile.bytes() as u32);
            self.start_store(world, point, from.array, (tile.buffer, lane, range, pieces))?;
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "destination, lane, source range, pieces")]
    fn start_store(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        source: Array,
        (array, lane, from, pieces): (u32, usize, (u32, u32), Vec<(u64, u32, u32)>),
    ) -> Exec {
        let Array::Shared(owner) = source else { return Ok(()) };
        self.start_async_read(world, point, (source, owner), lane, from)?;
        world.tally.range(point, u64::from(from.1));
        let group = self.bulk_groups[lane];
        let store = BulkStore { lane, group, point, array, from, pieces, data: None };
        self.bulk_stores.push(store);
        Ok(())
    }

    /// The async proxy starts to read shared memory for a lane.
    pub(super) fn start_async_read(
        &self,
        world: &mut World<'_, '_>,
        point: u32,
        (array, owner): (Array, u32),
        lane: usize,
        (start, bytes): (u32, u32),
    ) -> Exec {
        let who = self.observer(point);
        let shared = &mut world.blocks[self.block].shared;
        let judged = shared.start_read(&who, lane as u8, (start, bytes), owner as u16);
        let reported = if lane == usize::from(ALL_LANES) { 0 } else { lane };
        if let Err(clash) = judged {
            return fail_at(reported, world.clash(clash, array, u64::from(start), false));
        }
        let engines = world.set.cluster * world.set.warps;
        let unfenced = shared.written(start, bytes).iter().find(|written| {
            let Some(fences) = world.proxy_fences.get(usize::from(written.entity)) else {
                return false;
            };
            let covers = |&(epoch, lanes): &(u32, u64)| {
                let of_lane = match written.lane {
                    ALL_LANES => lanes == Self::FULL,
                    lane => lanes >> lane & 1 == 1,
                };
                let fence = Record { epoch, ..**written };
                of_lane && epoch >= written.epoch && who.follows(lane as u8, &fence)
            };
            usize::from(written.entity) < engines && !fences.iter().any(covers)
        });
        match unfenced.copied() {
            None => Ok(()),
            Some(written) => {
                let place = world.place(array, u64::from(start));
                let write = world.point(written.point);
                fail_at(reported, FaultKind::MissingProxyFence { place, write })
            }
        }
    }

    pub(super) fn bulk_commit(&mut self) {
        for lane in lanes_of(self.active) {
            self.bulk_groups[lane] += 1;
        }
    }

    /// Ends the stores that the wait covers: reading shared memory, and, unless only that is
    /// awaited, writing global memory.
    pub(super) fn bulk_wait(
        &mut self,
        world: &mut World<'_, '_>,
        pending: u32,
        reads_only: bool,
    ) -> Exec {
        let (active, groups) = (self.active, self.bulk_groups);
        let mut stores = std::mem::take(&mut self.bulk_stores);
        let covered = |store: &BulkStore| {
            active >> store.lane & 1 == 1
                && (store.group < groups[store.lane])
                && store.group + pending < groups[store.lane]
        };
        for store in stores.iter_mut().filter(|store| covered(store)) {
            self.read_store(world, store);
            if !reads_only {
                self.write_store(world, store)?;
            }
        }
        stores.retain(|store| reads_only || !covered(store));
        self.bulk_stores = stores;
        Ok(())
    }

    fn read_store(&self, world: &mut World<'_, '_>, store: &mut BulkStore) {
        if store.data.is_none() {
            let (start, bytes) = store.from;
            let shared = &mut world.blocks[self.block].shared;
            let range = start as usize..(start + bytes) as usize;
            store.data = Some(shared.bytes[range].to_vec());
            shared.end_read(&self.observer(store.point), store.lane as u8, store.from);
        }
    }

    fn write_store(&self, world: &mut World<'_, '_>, store: &BulkStore) -> Exec {
        let Some(data) = &store.data else { return Ok(()) };
        for &(byte, offset, bytes) in &store.pieces {
            let data = &data[offset as usize..(offset + bytes) as usize];
            let array = Array::Global(store.array);
            let all = world.memory.contents[store.array as usize].bytes.len() as u64;
            if byte + u64::from(bytes) > all {
                let place = world.place(array, byte);
                let kind = FaultKind::OutOfBounds { place, words: all };
                return fail_at(store.lane, kind);
            }
            self.put_bytes(world, store.point, array, store.lane, byte, data)?;
        }
        Ok(())
    }

    /// The warp ends: stores that were only read write their bytes; anything else unfinished is
    /// named.
    pub(super) fn finish_copies(&mut self, world: &mut World<'_, '_>) -> Exec {
        for store in std::mem::take(&mut self.bulk_stores) {
            if store.data.is_none() {
                return fail_at(store.lane, FaultKind::Unfinished(world.point(store.point)));
            }
            self.write_store(world, &store)?;
        }
        if let Some(copy) = self.copies.first() {
            let kind = FaultKind::Unfinished(world.point(copy.point));
            return fail_at(usize::from(copy.lane), kind);
        }
        Ok(())
    }
}

fn bulk_length(lane: usize, bytes: u32) -> Exec<u32> {
    if bytes.is_multiple_of(16) {
        return Ok(bytes);
    }
    let place = super::fault::Place { array: "the copy's length".to_owned(), word: 0 };
    fail_at(lane, FaultKind::Misaligned { place, byte: u64::from(bytes), align: 16 })
}
