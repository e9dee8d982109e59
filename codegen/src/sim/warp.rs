//! One warp: its registers with their poison, its masks, and what it has seen of others.

use std::collections::HashMap;

use super::clock::{Clock, Observer};
use super::copies::{BulkStore, LaneCopy};
use super::fault::FaultKind;
use super::lanes::Row;
use super::products::Product;
use super::program::{Flag, Program, Slot};
use super::world::World;
use crate::ir::Scope;

/// Why a step fails; the unit adds where.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) lane: Option<u32>,
    pub(super) kind: FaultKind,
}

/// The result of executing something.
pub(super) type Exec<T = ()> = Result<T, Box<Trouble>>;

/// A failure of the whole warp.
pub(super) fn fail<T>(kind: FaultKind) -> Exec<T> {
    Err(Box::new(Trouble { lane: None, kind }))
}

/// A failure of a lane.
pub(super) fn fail_at<T>(lane: usize, kind: FaultKind) -> Exec<T> {
    Err(Box::new(Trouble { lane: Some(lane as u32), kind }))
}

/// The lanes of a mask.
pub(super) fn lanes_of(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            lane as usize
        })
    })
}

/// Where a warp stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It can run, or try a wait again.
    Ready,
    /// It waits for a gathering of this generation to end.
    Gathering { which: Gathered, generation: u32 },
    /// It is done.
    Done,
}

/// A barrier of warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathered {
    Block,
    Named(u32),
    Cluster,
}

/// Masks that control flow comes back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Live lanes outside.
    pub(super) outside: u64,
    /// Lanes of the other side of an `If`.
    pub(super) other: u64,
}

/// A register is written by a matrix operation in flight.
pub(super) const PRODUCED: u8 = 1;
/// A register is read by a matrix operation in flight.
pub(super) const MULTIPLIED: u8 = 2;
/// A register was written since the last matrix fence.
pub(super) const CHANGED: u8 = 4;
/// A register is the result of a load that nothing has used yet.
const LOADED: u8 = 8;

pub(super) struct Warp<const L: usize> {
    /// In its block.
    pub(super) number: u32,
    /// In its unit.
    pub(super) block: usize,
    pub(super) entity: u16,
    pub(super) unit: u32,
    pub(super) at: usize,
    pub(super) active: u64,
    pub(super) stack: Vec<Frame>,
    pub(super) state: State,
    pub(super) ran: u64,

    slots: Vec<Row<L>>,
    poison: Vec<u64>,
    pub(super) marks: Vec<u8>,
    pub(super) flags: Vec<u64>,
    flag_poison: Vec<u64>,
    registers: usize,
    tracks: bool,

    pub(super) epoch: u32,
    pub(super) clock: Clock,
    /// What only these lanes have seen.
    pub(super) some: Option<(u64, Clock)>,
    /// What the last fence lets relaxed atomics release.
    pub(super) fenced: Option<(u64, Scope, Clock)>,
    /// What relaxed atomics have read, for a fence to acquire.
    pub(super) read_relaxed: Option<(u64, Clock)>,

    pub(super) copies: Vec<LaneCopy>,
    pub(super) copy_groups: [u32; 64],
    pub(super) bulk_stores: Vec<BulkStore>,
    pub(super) bulk_groups: [u32; 64],
    pub(super) products: Vec<Product>,
    pub(super) product_group: u32,
    /// Hash of the warp-group operations so far, which the warps of a group share.
    pub(super) group_trail: u64,

    /// How often it came by each promise of uniformity.
    pub(super) visits: HashMap<u32, u32>,
    loading: Vec<([Slot; 4], u64)>,
    in_flight: u64,
    pub(super) most_in_flight: u64,
}

impl<const L: usize> Warp<L> {
    /// All lanes.
    pub(super) const FULL: u64 = if L == 64 { !0 } else { (1 << L) - 1 };

    pub(super) fn new(
        program: &Program,
        clock: Clock,
        (unit, block, number, entity): (u32, usize, u32, u16),
    ) -> Self {
        let mut slots = vec![[0; L]; program.registers];
        slots.extend(program.constants.iter().map(|&bits| [bits; L]));
        let mut flags = vec![0; program.flags];
        flags.extend(program.constant_flags.iter().map(|&on| if on { !0 } else { 0 }));
        let mut poison = vec![!0; program.registers];
        poison.resize(slots.len(), 0);
        let mut flag_poison = vec![!0; program.flags];
        flag_poison.resize(flags.len(), 0);
        Self {
            number,
            block,
            entity,
            unit,
            at: 0,
            active: Self::FULL,
            stack: Vec::new(),
            state: State::Ready,
            ran: 0,
            marks: vec![0; slots.len()],
            slots,
            poison,
            flags,
            flag_poison,
            registers: program.registers,
            tracks: program.matrix_groups,
            epoch: 1,
            clock,
            some: None,
            fenced: None,
            read_relaxed: None,
            copies: Vec::new(),
            copy_groups: [0; 64],
            bulk_stores: Vec::new(),
            bulk_groups: [0; 64],
            products: Vec::new(),
            product_group: 0,
            group_trail: 0,
            visits: HashMap::new(),
            loading: Vec::new(),
            in_flight: 0,
            most_in_flight: 0,
        }
    }

    /// Reads a slot; poison in a live lane is an error.
    pub(super) fn read(&mut self, world: &World<'_, '_>, slot: Slot, live: u64) -> Exec<Row<L>> {
        let at = slot as usize;
        let bad = self.poison[at] & live;
        if bad != 0 {
            let lane = bad.trailing_zeros() as usize;
            if self.marks[at] & PRODUCED != 0 {
                return fail_at(lane, self.in_flight_fault(world, slot));
            }
            return fail_at(lane, FaultKind::PoisonRegister(world.slot_name(slot)));
        }
        if self.marks[at] & LOADED != 0 {
            self.used(slot);
        }
        Ok(self.slots[at])
    }

    /// Reads a slot with its poison, for those that pass it on.
    pub(super) fn read_any(&mut self, world: &World<'_, '_>, slot: Slot) -> Exec<(Row<L>, u64)> {
        let at = slot as usize;
        if self.marks[at] & PRODUCED != 0 {
            return fail(self.in_flight_fault(world, slot));
        }
        if self.marks[at] & LOADED != 0 {
            self.used(slot);
        }
        Ok((self.slots[at], self.poison[at]))
    }

    /// Writes the live lanes of a slot.
    pub(super) fn write(&mut self, world: &World<'_, '_>, slot: Slot, row: Row<L>) -> Exec {
        self.write_any(world, slot, (row, 0))
    }

    /// Writes the live lanes of a slot, poison included.
    pub(super) fn write_any(
        &mut self,
        world: &World<'_, '_>,
        slot: Slot,
        (row, poison): (Row<L>, u64),
    ) -> Exec {
        let at = slot as usize;
        debug_assert!(at < self.registers, "a constant is never written");
        if self.marks[at] != 0 {
            self.overwritten(world, slot)?;
        }
        if self.tracks {
            self.marks[at] |= CHANGED;
        }
        let live = self.active;
        if live == Self::FULL {
            self.slots[at] = row;
        } else {
            for lane in lanes_of(live) {
                self.slots[at][lane] = row[lane];
            }
        }
        self.poison[at] = (self.poison[at] & !live) | (poison & live);
        Ok(())
    }

    fn overwritten(&mut self, world: &World<'_, '_>, slot: Slot) -> Exec {
        let marks = self.marks[slot as usize];
        if marks & PRODUCED != 0 {
            return fail(self.in_flight_fault(world, slot));
        }
        if marks & MULTIPLIED != 0 {
            let by = self.product_of(slot).map_or(0, |product| product.point);
            let what = world.slot_name(slot);
            return fail(FaultKind::BeingRead { what, by: world.point(by) });
        }
        if marks & LOADED != 0 {
            self.used(slot);
        }
        Ok(())
    }

    fn in_flight_fault(&self, world: &World<'_, '_>, slot: Slot) -> FaultKind {
        let by = self.product_of(slot).map_or(0, |product| product.point);
        FaultKind::InFlight { what: world.slot_name(slot), by: world.point(by) }
    }

    fn product_of(&self, slot: Slot) -> Option<&Product> {
        self.products.iter().rev().find(|product| product.uses(slot))
    }

    /// Makes a slot poison in the live lanes, or in all.
    pub(super) fn spoil(&mut self, slot: Slot, lanes: u64) {
        self.poison[slot as usize] |= lanes;
    }

    /// A row without judging it: for what has been judged before.
    pub(super) fn row(&self, slot: Slot) -> &Row<L> {
        &self.slots[slot as usize]
    }

    /// The result of an operation in flight arrives.
    pub(super) fn arrive(&mut self, slot: Slot, row: Row<L>) {
        self.slots[slot as usize] = row;
        self.poison[slot as usize] = 0;
    }

    /// Reads a flag; poison in a live lane is an error.
    pub(super) fn flag(&self, world: &World<'_, '_>, flag: Flag, live: u64) -> Exec<u64> {
        let bad = self.flag_poison[flag as usize] & live;
        if bad != 0 {
            let lane = bad.trailing_zeros() as usize;
            return fail_at(lane, FaultKind::PoisonRegister(world.flag_name(flag)));
        }
        Ok(self.flags[flag as usize])
    }

    /// Reads a flag with its poison.
    pub(super) fn flag_any(&self, flag: Flag) -> (u64, u64) {
        (self.flags[flag as usize], self.flag_poison[flag as usize])
    }

    /// Writes the live lanes of a flag, poison included.
    pub(super) fn set_flag(&mut self, flag: Flag, (value, poison): (u64, u64)) {
        let live = self.active;
        let flag = flag as usize;
        self.flags[flag] = (self.flags[flag] & !live) | (value & live);
        self.flag_poison[flag] = (self.flag_poison[flag] & !live) | (poison & live);
    }

    /// Fails unless all lanes are live.
    pub(super) fn converged(&self) -> Exec {
        if self.active == Self::FULL {
            Ok(())
        } else {
            fail(FaultKind::Divergent("lanes of the warp"))
        }
    }

    /// A global load begins; its results count as in flight until one is used.
    pub(super) fn loads(&mut self, dst: &[Slot], bytes: u64) {
        let mut slots = [Slot::MAX; 4];
        for (to, &slot) in slots.iter_mut().zip(dst) {
            *to = slot;
            self.marks[slot as usize] |= LOADED;
        }
        self.loading.push((slots, bytes));
        self.in_flight += bytes;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    fn used(&mut self, slot: Slot) {
        if let Some(at) = self.loading.iter().position(|(slots, _)| slots.contains(&slot)) {
            let (slots, bytes) = self.loading.swap_remove(at);
            self.in_flight -= bytes;
            for slot in slots.into_iter().filter(|&slot| slot != Slot::MAX) {
                self.marks[slot as usize] &= !LOADED;
            }
        }
    }

    /// Bytes of asynchronous copies begin or end to be in flight.
    pub(super) fn copies_bytes(&mut self, begin: u64, end: u64) {
        self.in_flight = (self.in_flight + begin).saturating_sub(end);
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    /// Who accesses memory now.
    pub(super) fn observer(&self, point: u32) -> Observer<'_> {
        Observer {
            unit: self.unit,
            entity: self.entity,
            epoch: self.epoch,
            point,
            clock: &self.clock,
            some: self.some.as_ref(),
        }
    }

    /// Lanes learn what a clock knows.
    pub(super) fn learn(&mut self, lanes: u64, clock: &Clock) {
        if lanes == Self::FULL {
            self.clock.join(clock);
            return;
        }
        match &mut self.some {
            Some((mask, some)) => {
                *mask |= lanes;
                some.join(clock);
            }
            None => self.some = Some((lanes, clock.clone())),
        }
    }

    /// What a release by these lanes publishes: what they have done and seen. Later accesses are of
    /// a later epoch.
    pub(super) fn publish(&mut self, lanes: u64) -> Clock {
        let mut clock = self.clock.clone();
        if let Some((mask, some)) = &self.some
            && mask & lanes == lanes
        {
            clock.join(some);
        }
        let own = &mut clock.own[usize::from(self.entity)];
        if lanes == Self::FULL {
            own.full = self.epoch;
        } else {
            (own.part, own.lanes) = (self.epoch, lanes);
        }
        self.epoch += 1;
        clock
    }

    /// The lanes of the warp synchronise.
    pub(super) fn synchronise(&mut self) {
        self.clock.own[usize::from(self.entity)].full = self.epoch;
        self.epoch += 1;
        if let Some((_, some)) = self.some.take() {
            self.clock.join(&some);
        }
    }
}
