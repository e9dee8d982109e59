//! mbarriers: phases that arrivals and copied bytes complete, and the copies under way to them.

use super::clock::{ALL_LANES, Clock, Record};
use super::fault::FaultKind;
use super::program::{BarrierAt, Slot};
use super::warp::{Exec, Warp, fail_at, lanes_of};
use super::world::World;

/// One mbarrier.
#[derive(Debug, Default)]
pub(super) struct Mbarrier {
    /// Arrivals of a phase; 0 until it is prepared.
    arrivals: u32,
    /// Arrivals that the current phase still needs.
    missing: u32,
    /// Bytes that it still needs.
    bytes: i64,
    /// Number of the current phase.
    pub(super) phase: u32,
    /// Who prepared it, and whether a fence made that visible.
    prepared: Record,
    fenced: bool,
    current: Clock,
    done: Clock,
}

/// An asynchronous copy to shared memory that an mbarrier counts, or an arrival that waits for
/// copies.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) mbarrier: usize,
    pub(super) point: u32,
    pub(super) what: Carried,
}

/// What arrives.
#[derive(Debug)]
pub(super) enum Carried {
    /// Pieces of shared memory: start, data; the shared block they were addressed through. `bytes`
    /// is what the mbarrier counts.
    Data { pieces: Vec<(u32, Vec<u8>)>, owner: u16, bytes: i64 },
    /// Copies of a lane that the arrival waits for, and what the lane publishes.
    Arrival { pieces: Vec<(u32, Vec<u8>)>, owners: Vec<u16>, clock: Clock },
}

impl Mbarrier {
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
    /// The mbarrier that each live lane names, as flat numbers.
    pub(super) fn mbarriers(
        &mut self,
        world: &World<'_, '_>,
        barrier: &BarrierAt,
    ) -> Exec<[usize; L]> {
        let index = self.read(world, barrier.index, self.active)?;
        let arrays = &world.set.kernel.barriers;
        let array = barrier.array as usize;
        let first: u32 = arrays[..array].iter().map(|array| array.len).sum();
        let mut numbers = [0; L];
        for lane in lanes_of(self.active) {
            if index[lane] >= arrays[array].len {
                let barrier = format!("{}[{}]", arrays[array].name, index[lane]);
                let problem = format!("the array has {} mbarriers", arrays[array].len);
                return fail_at(lane, FaultKind::Barrier { barrier, problem });
            }
            numbers[lane] = (first + index[lane]) as usize;
        }
        Ok(numbers)
    }

    /// Fails if the mbarrier is not ready for the lane.
    pub(super) fn usable(
        &self,
        world: &World<'_, '_>,
        (block, number): (usize, usize),
        lane: usize,
        by_engine: bool,
    ) -> Exec {
        let mbarrier = &world.blocks[block].mbarriers[number];
        let problem = if mbarrier.arrivals == 0 {
            "was not prepared by MbarrierInit"
        } else if !self.observer(0).follows(lane as u8, &mbarrier.prepared) {
            "was prepared, but no barrier lies between"
        } else if by_engine && !mbarrier.fenced {
            "was prepared without an MbarrierFence"
        } else {
            return Ok(());
        };
        let barrier = world.mbarrier_name(number);
        fail_at(lane, FaultKind::Barrier { barrier, problem: problem.to_owned() })
    }

    pub(super) fn mbarrier_init(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        barrier: &BarrierAt,
        arrivals: u32,
    ) -> Exec {
        let numbers = self.mbarriers(world, barrier)?;
        for lane in lanes_of(self.active) {
            let old = &world.blocks[self.block].mbarriers[numbers[lane]];
            if old.arrivals != 0 || arrivals == 0 {
                let barrier = world.mbarrier_name(numbers[lane]);
                let problem =
                    if arrivals == 0 { "needs an arrival" } else { "is prepared a second time" };
                let problem = problem.to_owned();
                return fail_at(lane, FaultKind::Barrier { barrier, problem });
            }
            let entities = self.clock.own.len();
            world.blocks[self.block].mbarriers[numbers[lane]] = Mbarrier {
                arrivals,
                missing: arrivals,
                prepared: self.observer(point).record(lane as u8),
                current: Clock::new(entities),
                done: Clock::new(entities),
                ..Mbarrier::default()
            };
        }
        Ok(())
    }

    /// Makes the lanes' own preparations visible.
    pub(super) fn mbarrier_fence(&mut self, world: &mut World<'_, '_>) {
        for mbarrier in &mut world.blocks[self.block].mbarriers {
            let by = &mbarrier.prepared;
            let own = by.entity == self.entity && self.active >> by.lane & 1 == 1;
            mbarrier.fenced |= mbarrier.arrivals != 0 && own;
        }
    }

    /// One arrival a lane.
    pub(super) fn mbarrier_arrive(
        &mut self,
        world: &mut World<'_, '_>,
        barrier: &BarrierAt,
        expect: Option<Slot>,
    ) -> Exec {
        let numbers = self.mbarriers(world, barrier)?;
        let live = self.active;
        let expect = match expect {
            Some(slot) => self.read(world, slot, live)?,
            None => [0; L],
        };
        for lane in lanes_of(live) {
            self.usable(world, (self.block, numbers[lane]), lane, false)?;
        }
        let clock = self.publish(live);
        for lane in lanes_of(live) {
            let arrival = Some((&clock, i64::from(expect[lane])));
            self.arrive_at(world, self.block, numbers[lane], lane, arrival)?;
        }
        Ok(())
    }

    /// An arrival with what it publishes and expects.
    fn arrive_at(
        &self,
        world: &mut World<'_, '_>,
        block: usize,
        number: usize,
        lane: usize,
        arrival: Option<(&Clock, i64)>,
    ) -> Exec {
        let engine = world.set.engine(block, number);
        let mbarrier = &mut world.blocks[block].mbarriers[number];
        if mbarrier.missing == 0 {
            let barrier = world.mbarrier_name(number);
            let problem = "gets more arrivals in a phase than it was prepared for".to_owned();
            return fail_at(lane, FaultKind::Barrier { barrier, problem });
        }
        if let Some((clock, expect)) = arrival {
            mbarrier.current.join(clock);
            mbarrier.bytes += expect;
        }
        mbarrier.missing -= 1;
        mbarrier.settle(engine);
        Ok(())
    }

    /// Whether the wait is over for all lanes; then they know what came before it.
    pub(super) fn mbarrier_wait(
        &mut self,
        world: &mut World<'_, '_>,
        barrier: &BarrierAt,
        parity: Slot,
    ) -> Exec<bool> {
        let numbers = self.mbarriers(world, barrier)?;
        let live = self.active;
        let parity = self.read(world, parity, live)?;
        for lane in lanes_of(live) {
            self.usable(world, (self.block, numbers[lane]), lane, false)?;
            if parity[lane] > 1 {
                let barrier = world.mbarrier_name(numbers[lane]);
                let problem = format!("is awaited with parity {}", parity[lane]);
                return fail_at(lane, FaultKind::Barrier { barrier, problem });
            }
            let mbarrier = &world.blocks[self.block].mbarriers[numbers[lane]];
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
                self.learn(lanes, &world.blocks[self.block].mbarriers[seen].done);
            }
        }
        Ok(true)
    }
}

/// Lands the flight of a block: the data are there, and the mbarrier has counted them.
pub(super) fn land(world: &mut World<'_, '_>, block: usize, flight: usize) {
    let Flight { mbarrier: number, point, what } = world.blocks[block].flights.swap_remove(flight);
    let engine = world.set.engine(block, number);
    let unit = world.unit;
    let Some(at) = world.blocks.get_mut(block) else { return };
    let mbarrier = &mut at.mbarriers[number];
    let epoch = mbarrier.phase + 1;
    let record = Record { epoch, unit, point, entity: engine, lane: ALL_LANES, atomic: false };
    match what {
        Carried::Data { pieces, owner, bytes } => {
            for (start, data) in pieces {
                at.shared.land(start, &data, record, owner);
            }
            mbarrier.bytes -= bytes;
        }
        Carried::Arrival { pieces, owners, clock } => {
            for ((start, data), owner) in pieces.into_iter().zip(owners) {
                at.shared.land(start, &data, record, owner);
            }
            mbarrier.current.join(&clock);
            mbarrier.missing = mbarrier.missing.saturating_sub(1);
        }
    }
    mbarrier.settle(engine);
}
