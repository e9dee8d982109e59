//! One warp: its registers with their poison, its masks, and its vector clock.

use std::collections::HashMap;

use super::clock::{Clock, Observer};
use super::copies::{BulkStore, LaneCopy};
use super::fault::FaultKind;
use super::lanes::Row;
use super::matrix::InFlightMatrixOp;
use super::program::{Program, RegSlot};
use super::state::UnitState;
use super::tmem::WarpTmem;
use crate::ir::{Operand, Reg, Scope};

/// Why a step fails. The unit adds the program point, block and warp.
#[derive(Debug)]
pub(super) struct StepError {
    pub(super) lane: Option<u32>,
    pub(super) kind: FaultKind,
}

/// The result of a step or of a part of one.
pub(super) type StepResult<T = ()> = Result<T, Box<StepError>>;

/// A failure of the whole warp.
pub(super) fn fail<T>(kind: FaultKind) -> StepResult<T> {
    Err(Box::new(StepError { lane: None, kind }))
}

/// A failure of a lane.
pub(super) fn fail_at<T>(lane: usize, kind: FaultKind) -> StepResult<T> {
    Err(Box::new(StepError { lane: Some(lane as u32), kind }))
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

/// Whether a warp can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpState {
    /// The warp can run, or can test an mbarrier again.
    Ready,
    /// The warp waits for this generation of a barrier to complete.
    AtBarrier { which: BarrierKind, generation: u32 },
    /// The warp has ended.
    Done,
}

/// A barrier of warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BarrierKind {
    Block,
    Named(u32),
    Cluster,
}

/// The masks to restore at the end of an `If` or loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlFrame {
    /// Live lanes outside.
    pub(super) outside: u64,
    /// Lanes of the other side of an `If`.
    pub(super) other: u64,
}

/// Mark: a matrix operation in flight writes the register.
pub(super) const WRITTEN_IN_FLIGHT: u8 = 1;
/// Mark: a matrix operation in flight reads the register.
pub(super) const READ_IN_FLIGHT: u8 = 2;
/// Mark: the register was written since the last matrix fence.
pub(super) const UNFENCED: u8 = 4;
/// Mark: the register is the result of a load, and nothing has used it yet.
const LOAD_PENDING: u8 = 8;

/// A warp of `L` lanes.
pub(super) struct Warp<const L: usize> {
    /// Number of the warp in its block.
    pub(super) number: u32,
    /// Number of the block in its unit.
    pub(super) block: usize,
    pub(super) entity: u16,
    pub(super) unit: u32,
    pub(super) at: usize,
    pub(super) active: u64,
    pub(super) stack: Vec<ControlFrame>,
    pub(super) state: WarpState,
    pub(super) ran: u64,

    /// The ends and steps of the `For` loops that the warp is in, the innermost last.
    pub(super) bounds: Vec<[Row<L>; 2]>,

    slots: Vec<Row<L>>,
    poison: Vec<u64>,
    pub(super) marks: Vec<u8>,
    pub(super) flags: Vec<u64>,
    flag_poison: Vec<u64>,
    tracks: bool,

    pub(super) epoch: u32,
    pub(super) clock: Clock,
    /// A clock of which only the lanes of the mask have seen the events.
    pub(super) partial: Option<(u64, Clock)>,
    /// The clock that relaxed atomics after the last fence release, with its lanes and scope.
    pub(super) fenced: Option<(u64, Scope, Clock)>,
    /// The clock that a fence acquires, from the words that relaxed atomics have read.
    pub(super) read_relaxed: Option<(u64, Clock)>,

    pub(super) copies: Vec<LaneCopy>,
    pub(super) copy_groups: [u32; 64],
    pub(super) bulk_stores: Vec<BulkStore>,
    pub(super) bulk_groups: [u32; 64],
    pub(super) matrix_ops: Vec<InFlightMatrixOp>,
    pub(super) matrix_group: u32,
    pub(super) tmem: WarpTmem,
    /// Hash of the warp-group operations so far; equal in all warps of a group.
    pub(super) group_op_hash: u64,

    /// How often the warp has executed each promise of uniformity, by program point.
    pub(super) visits: HashMap<u32, u32>,
    loading: Vec<([RegSlot; 4], u64)>,
    in_flight: u64,
    pub(super) most_in_flight: u64,
}

impl<const L: usize> Warp<L> {
    /// All lanes.
    pub(super) const FULL: u64 = if L == 64 { !0 } else { (1 << L) - 1 };

    pub(super) fn new(
        program: &Program<'_>,
        clock: Clock,
        (unit, block, number, entity): (u32, usize, u32, u16),
    ) -> Self {
        let (slots, flags) = (program.slots as usize, program.flags as usize);
        Self {
            number,
            block,
            entity,
            unit,
            at: 0,
            active: Self::FULL,
            stack: Vec::new(),
            state: WarpState::Ready,
            ran: 0,
            bounds: Vec::new(),
            slots: vec![[0; L]; slots],
            poison: vec![!0; slots],
            marks: vec![0; slots],
            flags: vec![0; flags],
            flag_poison: vec![!0; flags],
            tracks: program.matrix_groups,
            epoch: 1,
            tmem: WarpTmem::new(clock.clone()),
            clock,
            partial: None,
            fenced: None,
            read_relaxed: None,
            copies: Vec::new(),
            copy_groups: [0; 64],
            bulk_stores: Vec::new(),
            bulk_groups: [0; 64],
            matrix_ops: Vec::new(),
            matrix_group: 0,
            group_op_hash: 0,
            visits: HashMap::new(),
            loading: Vec::new(),
            in_flight: 0,
            most_in_flight: 0,
        }
    }

    /// Reads an operand; poison in a live lane is an error.
    pub(super) fn read(
        &mut self,
        state: &UnitState<'_, '_>,
        operand: impl Into<Operand>,
        live: u64,
    ) -> StepResult<Row<L>> {
        let operand = operand.into();
        let Some(reg) = operand.reg() else { return Ok([bits(operand); L]) };
        let slot = state.slot(reg);
        let at = slot as usize;
        let bad = self.poison[at] & live;
        if bad != 0 {
            let lane = bad.trailing_zeros() as usize;
            if self.marks[at] & WRITTEN_IN_FLIGHT != 0 {
                return fail_at(lane, self.in_flight_fault(state, reg));
            }
            return fail_at(lane, FaultKind::PoisonRegister(state.name(reg)));
        }
        if self.marks[at] & LOAD_PENDING != 0 {
            self.mark_used(slot);
        }
        Ok(self.slots[at])
    }

    /// Reads an operand together with its poison, for operations that may copy poison.
    pub(super) fn read_any(
        &mut self,
        state: &UnitState<'_, '_>,
        operand: Operand,
    ) -> StepResult<(Row<L>, u64)> {
        let Some(reg) = operand.reg() else { return Ok(([bits(operand); L], 0)) };
        let slot = state.slot(reg);
        let at = slot as usize;
        if self.marks[at] & WRITTEN_IN_FLIGHT != 0 {
            return fail(self.in_flight_fault(state, reg));
        }
        if self.marks[at] & LOAD_PENDING != 0 {
            self.mark_used(slot);
        }
        Ok((self.slots[at], self.poison[at]))
    }

    /// Writes the live lanes of a register.
    pub(super) fn write(&mut self, state: &UnitState<'_, '_>, reg: Reg, row: Row<L>) -> StepResult {
        self.write_any(state, reg, (row, 0))
    }

    /// Writes the live lanes of a register, poison included.
    pub(super) fn write_any(
        &mut self,
        state: &UnitState<'_, '_>,
        reg: Reg,
        (row, poison): (Row<L>, u64),
    ) -> StepResult {
        let slot = state.slot(reg);
        let at = slot as usize;
        if self.marks[at] != 0 {
            self.overwritten(state, reg)?;
        }
        if self.tracks {
            self.marks[at] |= UNFENCED;
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

    fn overwritten(&mut self, state: &UnitState<'_, '_>, reg: Reg) -> StepResult {
        let slot = state.slot(reg);
        let marks = self.marks[slot as usize];
        if marks & WRITTEN_IN_FLIGHT != 0 {
            return fail(self.in_flight_fault(state, reg));
        }
        if marks & READ_IN_FLIGHT != 0 {
            let by = self.matrix_op_of(slot).map_or(0, |op| op.point);
            let what = state.name(reg);
            return fail(FaultKind::BeingRead { what, by: state.point(by) });
        }
        if marks & LOAD_PENDING != 0 {
            self.mark_used(slot);
        }
        Ok(())
    }

    fn in_flight_fault(&self, state: &UnitState<'_, '_>, reg: Reg) -> FaultKind {
        let slot = state.slot(reg);
        let by = self.matrix_op_of(slot).map(|op| op.point).or(self.tmem.load_of(slot));
        let by = by.unwrap_or(0);
        FaultKind::InFlight { what: state.name(reg), by: state.point(by) }
    }

    fn matrix_op_of(&self, slot: RegSlot) -> Option<&InFlightMatrixOp> {
        self.matrix_ops.iter().rev().find(|op| op.uses(slot))
    }

    /// Makes a slot poison in these lanes.
    pub(super) fn set_poison(&mut self, slot: RegSlot, lanes: u64) {
        self.poison[slot as usize] |= lanes;
    }

    /// A slot's row without a check for poison.
    pub(super) fn row(&self, slot: RegSlot) -> &Row<L> {
        &self.slots[slot as usize]
    }

    /// Writes the result of an operation that was in flight.
    pub(super) fn arrive(&mut self, slot: RegSlot, row: Row<L>) {
        self.slots[slot as usize] = row;
        self.poison[slot as usize] = 0;
    }

    /// Reads a predicate; poison in a live lane is an error.
    pub(super) fn flag(
        &self,
        state: &UnitState<'_, '_>,
        operand: Operand,
        live: u64,
    ) -> StepResult<u64> {
        let (value, poison) = self.flag_any(state, operand);
        match (operand.reg(), poison & live) {
            (Some(reg), bad @ 1..) => {
                let lane = bad.trailing_zeros() as usize;
                fail_at(lane, FaultKind::PoisonRegister(state.name(reg)))
            }
            _ => Ok(value),
        }
    }

    /// Reads a predicate with its poison.
    pub(super) fn flag_any(&self, state: &UnitState<'_, '_>, operand: Operand) -> (u64, u64) {
        let Some(reg) = operand.reg() else {
            return (if bits(operand) == 0 { 0 } else { !0 }, 0);
        };
        let flag = state.slot(reg) as usize;
        (self.flags[flag], self.flag_poison[flag])
    }

    /// Writes the live lanes of a predicate register, poison included.
    pub(super) fn set_flag(
        &mut self,
        state: &UnitState<'_, '_>,
        reg: Reg,
        (value, poison): (u64, u64),
    ) {
        let live = self.active;
        let flag = state.slot(reg) as usize;
        self.flags[flag] = (self.flags[flag] & !live) | (value & live);
        self.flag_poison[flag] = (self.flag_poison[flag] & !live) | (poison & live);
    }

    /// Fails unless all lanes are live.
    pub(super) fn converged(&self) -> StepResult {
        if self.active == Self::FULL {
            Ok(())
        } else {
            fail(FaultKind::Divergent("lanes of the warp"))
        }
    }

    /// Notes a global load; its bytes count as in flight until one of its results is used.
    pub(super) fn loads(&mut self, state: &UnitState<'_, '_>, dst: &[Reg], bytes: u64) {
        let mut slots = [RegSlot::MAX; 4];
        for (to, &reg) in slots.iter_mut().zip(dst) {
            *to = state.slot(reg);
            self.marks[*to as usize] |= LOAD_PENDING;
        }
        self.loading.push((slots, bytes));
        self.in_flight += bytes;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    fn mark_used(&mut self, slot: RegSlot) {
        if let Some(at) = self.loading.iter().position(|(slots, _)| slots.contains(&slot)) {
            let (slots, bytes) = self.loading.swap_remove(at);
            self.in_flight -= bytes;
            for slot in slots.into_iter().filter(|&slot| slot != RegSlot::MAX) {
                self.marks[slot as usize] &= !LOAD_PENDING;
            }
        }
    }

    /// Counts the bytes of asynchronous copies that start and that complete.
    pub(super) fn copies_bytes(&mut self, begin: u64, end: u64) {
        self.in_flight = (self.in_flight + begin).saturating_sub(end);
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    /// The warp as the maker of an access at a program point.
    pub(super) fn observer(&self, point: u32) -> Observer<'_> {
        Observer {
            unit: self.unit,
            entity: self.entity,
            epoch: self.epoch,
            point,
            clock: &self.clock,
            partial: self.partial.as_ref(),
        }
    }

    /// Joins a clock into what these lanes have seen.
    pub(super) fn learn(&mut self, lanes: u64, clock: &Clock) {
        if lanes == Self::FULL {
            self.clock.join(clock);
            return;
        }
        match &mut self.partial {
            Some((mask, partial)) => {
                *mask |= lanes;
                partial.join(clock);
            }
            None => self.partial = Some((lanes, clock.clone())),
        }
    }

    /// The clock that a release by these lanes publishes: their accesses, and all that they have
    /// seen. Starts a new epoch.
    pub(super) fn publish(&mut self, lanes: u64) -> Clock {
        let mut clock = self.clock.clone();
        if let Some((mask, partial)) = &self.partial
            && mask & lanes == lanes
        {
            clock.join(partial);
        }
        self.tmem.publish(&mut clock, (lanes, Self::FULL));
        let own = &mut clock.own[usize::from(self.entity)];
        if lanes == Self::FULL {
            own.full = self.epoch;
        } else {
            (own.part, own.lanes) = (self.epoch, lanes);
        }
        self.epoch += 1;
        clock
    }

    /// Synchronises the lanes of the warp: each has now seen the accesses of all.
    pub(super) fn synchronise(&mut self) {
        self.clock.own[usize::from(self.entity)].full = self.epoch;
        self.epoch += 1;
        self.tmem.publish(&mut self.clock, (Self::FULL, Self::FULL));
        if let Some((_, partial)) = self.partial.take() {
            self.clock.join(&partial);
        }
    }
}

/// The bits of a constant; a register has none.
fn bits(constant: Operand) -> u32 {
    match constant {
        Operand::Reg(_) => 0,
        Operand::U32(bits) => bits,
        Operand::F32(value) => value.to_bits(),
        Operand::Pred(value) => value.into(),
    }
}
