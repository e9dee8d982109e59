//! Asynchronous copies: they reserve their memory when they start, and complete at their wait.

use super::clock::{ALL_LANES, AccessRecord};
use super::fault::FaultKind;
use super::mbarrier::{CopyPayload, InFlightCopy};
use super::state::UnitState;
use super::tensor::TensorBox;
use super::warp::{StepResult, Warp, fail_at, lanes_of};
use crate::ir::{Address, BarrierRef, BufferId, Operand, SharedId, Space, TensorId, Width};

/// One lane's part of a copy to shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneCopy {
    lane: u8,
    bytes: u8,
    owner: u16,
    /// The lane's copy group: the number of its commits when the copy started.
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
    /// Destination segments: byte in the buffer, offset in `from`, length.
    segments: Vec<(u64, u32, u32)>,
    /// The data, once they are read from shared memory.
    data: Option<Vec<u8>>,
}

impl<const L: usize> Warp<L> {
    pub(super) fn copy_async(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (to, from, width): (&Address, &Address, Width),
        mask: Option<Operand>,
    ) -> StepResult {
        let reads = self.masked(state, mask)?;
        let live = self.active;
        let bytes = width.bytes();
        let source = self.resolve(state, from, (u64::from(bytes), bytes), reads)?;
        let target = self.resolve(state, to, (u64::from(bytes), bytes), live)?;
        self.check_reads(state, from.space, reads)?;
        self.count(state, point, from.space, (bytes, true), &source, reads);
        let written = lanes_of(live).map(|lane| (lane, target[lane] as u32));
        state.tally.rounds(point, (bytes, false), &state.context.banks, written);
        let (Space::Shared(SharedId(owner)), Space::Global(BufferId(buffer))) =
            (to.space, from.space)
        else {
            return super::warp::fail(FaultKind::Unsupported(
                "a copy that is not global to shared",
            ));
        };
        for lane in lanes_of(live) {
            let mut data = [0; 16];
            if reads >> lane & 1 == 1 {
                let from = self.global_bytes(state, point, buffer, lane, source[lane], bytes)?;
                data[..bytes as usize].copy_from_slice(from);
            }
            let start = target[lane] as u32;
            self.start_write(state, point, (self.block, to.space), lane, (start, bytes))?;
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
        state: &mut UnitState<'_, '_>,
        point: u32,
        (block, array): (usize, Space),
        lane: usize,
        range: (u32, u32),
    ) -> StepResult {
        let who = self.observer(point);
        let checked = state.blocks[block].shared.start_write(&who, lane as u8, range);
        checked.or_else(|conflict| {
            fail_at(lane, state.conflict(conflict, array, u64::from(range.0), true))
        })
    }

    pub(super) fn copy_commit(&mut self) {
        for lane in lanes_of(self.active) {
            self.copy_groups[lane] += 1;
        }
    }

    /// Completes the copies that the wait covers.
    pub(super) fn copy_wait(&mut self, state: &mut UnitState<'_, '_>, pending: u32) {
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
            let record = AccessRecord { point: copy.point, ..self.observer(0).record(copy.lane) };
            let data = &copy.data[..usize::from(copy.bytes)];
            state.blocks[self.block].shared.land(copy.to, data, record, copy.owner);
            ended += u64::from(copy.bytes);
        }
        self.copies_bytes(0, ended);
    }

    /// Each lane arrives at the mbarrier when its copies so far are complete.
    pub(super) fn copy_arrive(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        barrier: &BarrierRef,
    ) -> StepResult {
        let numbers = self.mbarriers(state, barrier)?;
        let live = self.active;
        let clock = self.publish(live);
        for lane in lanes_of(live) {
            self.check_initialised(state, (self.block, numbers[lane]), lane, false)?;
            let own = |copy: &LaneCopy| usize::from(copy.lane) == lane;
            let (landing, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.copies).into_iter().partition(own);
            self.copies = rest;
            let bytes = landing.iter().map(|copy| u64::from(copy.bytes)).sum();
            self.copies_bytes(0, bytes);
            let data = |copy: &LaneCopy| (copy.to, copy.data[..usize::from(copy.bytes)].to_vec());
            state.blocks[self.block].copies_in_flight.push(InFlightCopy {
                mbarrier: numbers[lane],
                point,
                payload: CopyPayload::Arrival {
                    segments: landing.iter().map(data).collect(),
                    owners: landing.iter().map(|copy| copy.owner).collect(),
                    clock: clock.clone(),
                },
            });
        }
        Ok(())
    }

    pub(super) fn bulk_load(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (to, from, bytes): (&Address, &Address, Operand),
        barrier: &BarrierRef,
    ) -> StepResult {
        let live = self.active;
        let numbers = self.mbarriers(state, barrier)?;
        let bytes = self.read(state, bytes, live)?;
        self.check_reads(state, from.space, live)?;
        let (Space::Shared(SharedId(owner)), Space::Global(BufferId(buffer))) =
            (to.space, from.space)
        else {
            return super::warp::fail(FaultKind::Unsupported(
                "a copy that is not global to shared",
            ));
        };
        for lane in lanes_of(live) {
            let len = bulk_length(lane, bytes[lane])?;
            let source = self.resolve(state, from, (u64::from(len), 16), 1 << lane)?[lane];
            let target = self.resolve(state, to, (u64::from(len), 16), 1 << lane)?[lane] as u32;
            self.check_initialised(state, (self.block, numbers[lane]), lane, true)?;
            self.start_write(state, point, (self.block, to.space), lane, (target, len))?;
            let data = self.global_bytes(state, point, buffer, lane, source, len)?.to_vec();
            state.tally.range(point, u64::from(len));
            state.blocks[self.block].copies_in_flight.push(InFlightCopy {
                mbarrier: numbers[lane],
                point,
                payload: CopyPayload::Data {
                    segments: vec![(target, data)],
                    owner: owner as u16,
                    bytes: i64::from(len),
                },
            });
        }
        Ok(())
    }

    pub(super) fn tensor_load(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (to, map, at): (&Address, TensorId, &[Operand]),
        barrier: &BarrierRef,
        multicast: Option<Operand>,
    ) -> StepResult {
        let live = self.active;
        let numbers = self.mbarriers(state, barrier)?;
        let tile = TensorBox::new(state.context, map);
        let array = Space::Global(BufferId(tile.buffer));
        self.check_reads(state, array, live)?;
        let corner =
            at.iter().map(|&slot| self.read(state, slot, live)).collect::<StepResult<Vec<_>>>()?;
        let own = 1u32 << self.block;
        let blocks = match multicast {
            Some(slot) => self.read(state, slot, live)?,
            None => [own; L],
        };
        for lane in lanes_of(live) {
            let start = self.resolve(state, to, (tile.bytes(), tile.align()), 1 << lane)?[lane];
            let corner: Vec<i64> = corner.iter().map(|row| i64::from(row[lane] as i32)).collect();
            if let Some(kind) = tile.refuses(&corner) {
                return fail_at(lane, kind);
            }
            let mut data = vec![0; tile.bytes() as usize];
            for (element, byte) in tile.elements(&corner, start) {
                let Some(source) = byte else { continue };
                let from = self.tensor_bytes(state, point, &tile, lane, source)?;
                let to = (element - start) as usize;
                data[to..to + tile.word as usize].copy_from_slice(from);
            }
            state.tally.range(point, tile.bytes());
            let Space::Shared(SharedId(owner)) = to.space else { continue };
            for block in (0..state.blocks.len()).filter(|block| blocks[lane] >> block & 1 == 1) {
                self.check_initialised(state, (block, numbers[lane]), lane, true)?;
                let range = (start as u32, tile.bytes() as u32);
                self.start_write(state, point, (block, to.space), lane, range)?;
                state.blocks[block].copies_in_flight.push(InFlightCopy {
                    mbarrier: numbers[lane],
                    point,
                    payload: CopyPayload::Data {
                        segments: vec![(start as u32, data.clone())],
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
        state: &'w mut UnitState<'_, '_>,
        point: u32,
        tile: &TensorBox,
        lane: usize,
        byte: u64,
    ) -> StepResult<&'w [u8]> {
        let all = state.memory.contents[tile.buffer as usize].bytes.len() as u64;
        if byte + u64::from(tile.word) > all {
            let location = state.location(Space::Global(BufferId(tile.buffer)), byte);
            let words = all / u64::from(tile.word);
            return fail_at(lane, FaultKind::OutOfBounds { location, words });
        }
        self.global_bytes(state, point, tile.buffer, lane, byte, tile.word)
    }

    pub(super) fn bulk_store(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (to, from, bytes): (&Address, &Address, Operand),
    ) -> StepResult {
        let live = self.active;
        let bytes = self.read(state, bytes, live)?;
        self.check_writes(state, to.space, live)?;
        let Space::Global(BufferId(array)) = to.space else {
            return super::warp::fail(FaultKind::Unsupported(
                "a copy that is not shared to global",
            ));
        };
        for lane in lanes_of(live) {
            let len = bulk_length(lane, bytes[lane])?;
            let target = self.resolve(state, to, (u64::from(len), 16), 1 << lane)?[lane];
            let source = self.resolve(state, from, (u64::from(len), 16), 1 << lane)?[lane] as u32;
            let segments =
                (0..len).step_by(16).map(|at| (target + u64::from(at), at, 16)).collect();
            self.start_store(state, point, from.space, (array, lane, (source, len), segments))?;
        }
        Ok(())
    }

    pub(super) fn tensor_store(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (map, at, from): (TensorId, &[Operand], &Address),
    ) -> StepResult {
        let live = self.active;
        let tile = TensorBox::new(state.context, map);
        let array = Space::Global(BufferId(tile.buffer));
        self.check_writes(state, array, live)?;
        let corner =
            at.iter().map(|&slot| self.read(state, slot, live)).collect::<StepResult<Vec<_>>>()?;
        for lane in lanes_of(live) {
            let start = self.resolve(state, from, (tile.bytes(), tile.align()), 1 << lane)?[lane];
            let corner: Vec<i64> = corner.iter().map(|row| i64::from(row[lane] as i32)).collect();
            if let Some(kind) = tile.refuses(&corner) {
                return fail_at(lane, kind);
            }
            let mut segments = Vec::new();
            for (element, byte) in tile.elements(&corner, start) {
                if let Some(byte) = byte {
                    segments.push((byte, (element - start) as u32, tile.word));
                }
            }
            let range = (start as u32, tile.bytes() as u32);
            self.start_store(state, point, from.space, (tile.buffer, lane, range, segments))?;
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "destination, lane, source range, segments")]
    fn start_store(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        source: Space,
        (array, lane, from, segments): (u32, usize, (u32, u32), Vec<(u64, u32, u32)>),
    ) -> StepResult {
        let Space::Shared(SharedId(owner)) = source else { return Ok(()) };
        self.start_async_read(state, point, (source, owner), lane, from)?;
        state.tally.range(point, u64::from(from.1));
        let group = self.bulk_groups[lane];
        let store = BulkStore { lane, group, point, array, from, segments, data: None };
        self.bulk_stores.push(store);
        Ok(())
    }

    /// The async proxy starts to read shared memory for a lane.
    pub(super) fn start_async_read(
        &self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (array, owner): (Space, u32),
        lane: usize,
        (start, bytes): (u32, u32),
    ) -> StepResult {
        let who = self.observer(point);
        let shared = &mut state.blocks[self.block].shared;
        let checked = shared.start_read(&who, lane as u8, (start, bytes), owner as u16);
        let reported = if lane == usize::from(ALL_LANES) { 0 } else { lane };
        if let Err(conflict) = checked {
            return fail_at(reported, state.conflict(conflict, array, u64::from(start), false));
        }
        let engines = state.context.cluster * state.context.warps;
        let unfenced = shared.written(start, bytes).iter().find(|written| {
            let Some(fences) = state.proxy_fences.get(usize::from(written.entity)) else {
                return false;
            };
            let covers = |&(epoch, lanes): &(u32, u64)| {
                let of_lane = match written.lane {
                    ALL_LANES => lanes == Self::FULL,
                    lane => lanes >> lane & 1 == 1,
                };
                let fence = AccessRecord { epoch, ..**written };
                of_lane && epoch >= written.epoch && who.follows(lane as u8, &fence)
            };
            usize::from(written.entity) < engines && !fences.iter().any(covers)
        });
        match unfenced.copied() {
            None => Ok(()),
            Some(written) => {
                let location = state.location(array, u64::from(start));
                let write = state.point(written.point);
                fail_at(reported, FaultKind::MissingProxyFence { location, write })
            }
        }
    }

    pub(super) fn bulk_commit(&mut self) {
        for lane in lanes_of(self.active) {
            self.bulk_groups[lane] += 1;
        }
    }

    /// Completes the stores that the wait covers: reads shared memory, and writes global memory
    /// unless `reads_only`.
    pub(super) fn bulk_wait(
        &mut self,
        state: &mut UnitState<'_, '_>,
        pending: u32,
        reads_only: bool,
    ) -> StepResult {
        let (active, groups) = (self.active, self.bulk_groups);
        let mut stores = std::mem::take(&mut self.bulk_stores);
        let covered = |store: &BulkStore| {
            active >> store.lane & 1 == 1
                && (store.group < groups[store.lane])
                && store.group + pending < groups[store.lane]
        };
        for store in stores.iter_mut().filter(|store| covered(store)) {
            self.read_store(state, store);
            if !reads_only {
                self.write_store(state, store)?;
            }
        }
        stores.retain(|store| reads_only || !covered(store));
        self.bulk_stores = stores;
        Ok(())
    }

    fn read_store(&self, state: &mut UnitState<'_, '_>, store: &mut BulkStore) {
        if store.data.is_none() {
            let (start, bytes) = store.from;
            let shared = &mut state.blocks[self.block].shared;
            let range = start as usize..(start + bytes) as usize;
            store.data = Some(shared.bytes[range].to_vec());
            shared.end_read(&self.observer(store.point), store.lane as u8, store.from);
        }
    }

    fn write_store(&self, state: &mut UnitState<'_, '_>, store: &BulkStore) -> StepResult {
        let Some(data) = &store.data else { return Ok(()) };
        for &(byte, offset, bytes) in &store.segments {
            let data = &data[offset as usize..(offset + bytes) as usize];
            let array = Space::Global(BufferId(store.array));
            let all = state.memory.contents[store.array as usize].bytes.len() as u64;
            if byte + u64::from(bytes) > all {
                let location = state.location(array, byte);
                let kind = FaultKind::OutOfBounds { location, words: all };
                return fail_at(store.lane, kind);
            }
            self.write_bytes(state, store.point, array, store.lane, byte, data)?;
        }
        Ok(())
    }

    /// At the end of the warp: completes stores whose reads were awaited, and fails if any other
    /// copy is unfinished.
    pub(super) fn finish_copies(&mut self, state: &mut UnitState<'_, '_>) -> StepResult {
        for store in std::mem::take(&mut self.bulk_stores) {
            if store.data.is_none() {
                return fail_at(store.lane, FaultKind::Unfinished(state.point(store.point)));
            }
            self.write_store(state, &store)?;
        }
        if let Some(copy) = self.copies.first() {
            let kind = FaultKind::Unfinished(state.point(copy.point));
            return fail_at(usize::from(copy.lane), kind);
        }
        Ok(())
    }
}

fn bulk_length(lane: usize, bytes: u32) -> StepResult<u32> {
    if bytes.is_multiple_of(16) {
        return Ok(bytes);
    }
    let location = super::fault::MemoryLocation { array: "the copy's length".to_owned(), word: 0 };
    fail_at(lane, FaultKind::Misaligned { location, byte: u64::from(bytes), align: 16 })
}
