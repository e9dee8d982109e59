//! mbarriers: phases that arrivals and copied bytes complete, and the copies in flight to them.

use super::clock::{ALL_LANES, AccessRecord, Clock};
use super::fault::FaultKind;
use super::misuse::BarrierMisuse;
use super::state::UnitState;
use super::warp::{StepResult, Warp, fail_at, lanes_of};
use crate::ir::{BarrierRef, Operand};

/// One mbarrier.
#[derive(Debug, Default)]
pub(super) struct Mbarrier {
    /// Arrivals of a phase; 0 until the mbarrier is initialised.
    arrivals: u32,
    /// Arrivals that the current phase still needs.
    missing: u32,
    /// Bytes that the current phase still needs.
    bytes: i64,
    /// Number of the current phase.
    pub(super) phase: u32,
    /// The access that initialised it.
    initialised: AccessRecord,
    /// Whether a fence made the initialisation visible.
    fenced: bool,
    /// What the arrivals of the current phase publish.
    current: Clock,
    /// What a wait for the completed phases has seen.
    done: Clock,
}

/// An asynchronous copy to shared memory that an mbarrier counts, or an arrival that waits for
/// copies.
#[derive(Debug)]
pub(super) struct InFlightCopy {
    pub(super) mbarrier: usize,
    pub(super) point: u32,
    pub(super) payload: CopyPayload,
}

/// What completes with an [`InFlightCopy`].
#[derive(Debug)]
pub(super) enum CopyPayload {
    /// Segments of shared memory (start, data), the shared block of their address, and the bytes
    /// that the mbarrier counts.
    Data { segments: Vec<(u32, Vec<u8>)>, owner: u16, bytes: i64 },
    /// An arrival: the lane's copies that it waits for, and the clock that the lane publishes.
    Arrival { segments: Vec<(u32, Vec<u8>)>, owners: Vec<u16>, clock: Clock },
}

impl Mbarrier {
    /// One arrival, which publishes a clock, by an engine.
    pub(super) fn arrive(&mut self, clock: &Clock, engine: u16) -> Result<(), BarrierMisuse> {
        self.missing = self.missing.checked_sub(1).ok_or(BarrierMisuse::ExcessArrivals)?;
        self.current.join(clock);
        self.settle(engine);
        Ok(())
    }

    /// Ends the phase if nothing is missing.
    fn settle(&mut self, engine: u16) {
        if self.missing == 0 && self.bytes == 0 {
            self.current.own[usize::from(engine)].full = self.phase + 1;
            self.done.join(&self.current);
            self.phase += 1;
            self.missing = self.arrivals;
        }
    }
}

impl<const L: usize> Warp<L> {
    /// The flat number of the mbarrier that each live lane names.
    pub(super) fn mbarriers(
        &mut self,
        state: &UnitState<'_, '_>,
        barrier: &BarrierRef,
    ) -> StepResult<[usize; L]> {
        let index = self.read(state, barrier.index, self.active)?;
        let arrays = &state.context.kernel.barriers;
        let array = barrier.array.0 as usize;
        let first: u32 = arrays[..array].iter().map(|array| array.len).sum();
        let mut numbers = [0; L];
        for lane in lanes_of(self.active) {
            if index[lane] >= arrays[array].len {
                let barrier = format!("{}[{}]", arrays[array].name, index[lane]);
                let misuse = BarrierMisuse::Index(arrays[array].len);
                return fail_at(lane, FaultKind::Barrier { barrier, misuse });
            }
            numbers[lane] = (first + index[lane]) as usize;
        }
        Ok(numbers)
    }

    /// Fails unless the mbarrier is initialised, and the lane (and the copy engine) can see that.
    pub(super) fn check_initialised(
        &self,
        state: &UnitState<'_, '_>,
        (block, number): (usize, usize),
        lane: usize,
        by_engine: bool,
    ) -> StepResult {
        let mbarrier = &state.blocks[block].mbarriers[number];
        let misuse = if mbarrier.arrivals == 0 {
            BarrierMisuse::Uninitialised
        } else if !self.observer(0).follows(lane as u8, &mbarrier.initialised) {
            BarrierMisuse::UnorderedInit
        } else if by_engine && !mbarrier.fenced {
            BarrierMisuse::UnfencedInit
        } else {
            return Ok(());
        };
        let barrier = state.mbarrier_name(number);
        fail_at(lane, FaultKind::Barrier { barrier, misuse })
    }

    pub(super) fn mbarrier_init(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        barrier: &BarrierRef,
        arrivals: u32,
    ) -> StepResult {
        let numbers = self.mbarriers(state, barrier)?;
        for lane in lanes_of(self.active) {
            let old = &state.blocks[self.block].mbarriers[numbers[lane]];
            if old.arrivals != 0 || arrivals == 0 {
                let barrier = state.mbarrier_name(numbers[lane]);
                let misuse = if arrivals == 0 {
                    BarrierMisuse::NoArrivals
                } else {
                    BarrierMisuse::InitialisedTwice
                };
                return fail_at(lane, FaultKind::Barrier { barrier, misuse });
            }
            let entities = self.clock.own.len();
            state.blocks[self.block].mbarriers[numbers[lane]] = Mbarrier {
                arrivals,
                missing: arrivals,
                initialised: self.observer(point).record(lane as u8),
                current: Clock::new(entities),
                done: Clock::new(entities),
                ..Mbarrier::default()
            };
        }
        Ok(())
    }

    /// Makes the initialisations by these lanes visible.
    pub(super) fn mbarrier_fence(&mut self, state: &mut UnitState<'_, '_>) {
        for mbarrier in &mut state.blocks[self.block].mbarriers {
            let by = &mbarrier.initialised;
            let own = by.entity == self.entity && self.active >> by.lane & 1 == 1;
            mbarrier.fenced |= mbarrier.arrivals != 0 && own;
        }
    }

    /// One arrival per lane.
    pub(super) fn mbarrier_arrive(
        &mut self,
        state: &mut UnitState<'_, '_>,
        barrier: &BarrierRef,
        expect: Option<Operand>,
    ) -> StepResult {
        let numbers = self.mbarriers(state, barrier)?;
        let live = self.active;
        let expect = match expect {
            Some(slot) => self.read(state, slot, live)?,
            None => [0; L],
        };
        for lane in lanes_of(live) {
            self.check_initialised(state, (self.block, numbers[lane]), lane, false)?;
        }
        let clock = self.publish(live);
        for lane in lanes_of(live) {
            let arrival = Some((&clock, i64::from(expect[lane])));
            self.arrive_at(state, self.block, numbers[lane], lane, arrival)?;
        }
        Ok(())
    }

    /// One arrival per lane, at an mbarrier of a block of the cluster.
    pub(super) fn cluster_arrive(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        barrier: &BarrierRef,
        block: Operand,
    ) -> StepResult {
        let numbers = self.mbarriers(state, barrier)?;
        let live = self.active;
        let blocks = self.read(state, block, live)?.map(|block| block as usize);
        for lane in lanes_of(live) {
            let record = self.observer(point).record(lane as u8);
            let Some(of) = state.blocks.get_mut(blocks[lane]) else {
                let what = "an arrival at a block outside of the cluster";
                return fail_at(lane, FaultKind::Unsupported(what));
            };
            if blocks[lane] != self.block {
                of.used_by_others.push(record);
            }
            self.check_initialised(state, (blocks[lane], numbers[lane]), lane, false)?;
        }
        let clock = self.publish(live);
        for lane in lanes_of(live) {
            self.arrive_at(state, blocks[lane], numbers[lane], lane, Some((&clock, 0)))?;
        }
        Ok(())
    }

    /// An arrival, with the clock that it publishes and the bytes that it expects.
    fn arrive_at(
        &self,
        state: &mut UnitState<'_, '_>,
        block: usize,
        number: usize,
        lane: usize,
        arrival: Option<(&Clock, i64)>,
    ) -> StepResult {
        let engine = state.context.engine(block, number);
        let mbarrier = &mut state.blocks[block].mbarriers[number];
        if mbarrier.missing == 0 {
            let barrier = state.mbarrier_name(number);
            let misuse = BarrierMisuse::ExcessArrivals;
            return fail_at(lane, FaultKind::Barrier { barrier, misuse });
        }
        if let Some((clock, expect)) = arrival {
            mbarrier.current.join(clock);
            mbarrier.bytes += expect;
        }
        mbarrier.missing -= 1;
        mbarrier.settle(engine);
        Ok(())
    }

    /// Whether the wait is over for all lanes; they have then seen the accesses before the phase's
    /// arrivals.
    pub(super) fn mbarrier_wait(
        &mut self,
        state: &mut UnitState<'_, '_>,
        barrier: &BarrierRef,
        parity: Operand,
    ) -> StepResult<bool> {
        let numbers = self.mbarriers(state, barrier)?;
        let live = self.active;
        let parity = self.read(state, parity, live)?;
        for lane in lanes_of(live) {
            self.check_initialised(state, (self.block, numbers[lane]), lane, false)?;
            if parity[lane] > 1 {
                let barrier = state.mbarrier_name(numbers[lane]);
                let misuse = BarrierMisuse::Parity(parity[lane]);
                return fail_at(lane, FaultKind::Barrier { barrier, misuse });
            }
            let mbarrier = &state.blocks[self.block].mbarriers[numbers[lane]];
            if mbarrier.phase % 2 == parity[lane] {
                return Ok(false);
            }
        }
        let mut seen = usize::MAX;
        for lane in lanes_of(live) {
            if numbers[lane] != seen {
                seen = numbers[lane];
                let same = lanes_of(live).filter(|&other| numbers[other] == seen);
                let lanes = same.fold(0, |mask, lane| mask | 1 << lane);
                self.learn(lanes, &state.blocks[self.block].mbarriers[seen].done);
            }
        }
        Ok(true)
    }
}

/// Completes a copy in flight of a block: writes its data, and counts it on its mbarrier.
pub(super) fn land(state: &mut UnitState<'_, '_>, block: usize, copy: usize) {
    let InFlightCopy { mbarrier: number, point, payload } =
        state.blocks[block].copies_in_flight.swap_remove(copy);
    let engine = state.context.engine(block, number);
    let unit = state.unit;
    let Some(at) = state.blocks.get_mut(block) else { return };
    let mbarrier = &mut at.mbarriers[number];
    let epoch = mbarrier.phase + 1;
    let record =
        AccessRecord { epoch, unit, point, entity: engine, lane: ALL_LANES, atomic: false };
    match payload {
        CopyPayload::Data { segments, owner, bytes } => {
            for (start, data) in segments {
                at.shared.land(start, &data, record, owner);
            }
            mbarrier.bytes -= bytes;
        }
        CopyPayload::Arrival { segments, owners, clock } => {
            for ((start, data), owner) in segments.into_iter().zip(owners) {
                at.shared.land(start, &data, record, owner);
            }
            mbarrier.current.join(&clock);
            mbarrier.missing = mbarrier.missing.saturating_sub(1);
        }
    }
    mbarrier.settle(engine);
}
