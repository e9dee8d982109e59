//! Operations on tensor memory as warps execute them.

use std::ops::Range;

use super::{
    Accumulator, Commit, FencedLanes, InFlight, InFlightKind, Load, Place, Product, ProductOperand,
    ScaleWords, Store, TensorMemory, scale_places,
};
use crate::ir::{
    Address, BarrierRef, MatrixOp, Operand, Reg, SharedId, SharedTile, Space, TmemAddress, TmemOp,
    TmemOperand, TmemScale,
};
use crate::sim::clock::{ALL_LANES, Observer};
use crate::sim::fault::{FaultKind, MemoryLocation};
use crate::sim::lanes::Row;
use crate::sim::misuse::TmemMisuse;
use crate::sim::shared::{AccessConflict, SharedMemory};
use crate::sim::state::UnitState;
use crate::sim::warp::{StepResult, WRITTEN_IN_FLIGHT, Warp, fail, fail_at, lanes_of};
use crate::target::{TMEM_COLUMNS, TMEM_LANES, TMEM_WARP_LANES};

impl<const L: usize> Warp<L> {
    pub(in crate::sim) fn tmem_op(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        op: &TmemOp,
    ) -> StepResult {
        match op {
            TmemOp::Allocate { to } => self.tmem_allocate(state, point, to),
            TmemOp::Free { base } => self.tmem_free(state, point, *base),
            TmemOp::Load { dst, from } => self.tmem_load(state, point, dst, from),
            TmemOp::Store { to, values } => self.tmem_store(state, point, to, values),
            TmemOp::WaitLoads => self.tmem_wait_loads(state),
            TmemOp::WaitStores => self.tmem_wait_stores(state),
            TmemOp::Copy { to, from } => self.tmem_copy(state, point, to, from),
            TmemOp::Product { op, n, d, a, b, adds, scales } => {
                self.tmem_product(state, point, (op, *n), (d, *adds), (a, b), scales.as_ref())
            }
            TmemOp::Commit { barrier } => self.tmem_commit(state, point, barrier),
            TmemOp::FenceBefore => {
                self.tmem_fence_before(state);
                Ok(())
            }
            TmemOp::FenceAfter => {
                self.tmem_fence_after();
                Ok(())
            }
        }
    }

    /// The warp as the maker of an access to tensor memory, with the entity of these.
    fn tmem_observer(&self, entity: u16, point: u32) -> Observer<'_> {
        Observer {
            unit: self.unit,
            entity,
            epoch: self.tmem.epoch,
            point,
            clock: &self.tmem.seen,
            partial: self.tmem.seen_by_part.as_ref(),
        }
    }

    /// The warp's completed accesses are before its next ones.
    fn tmem_next_epoch(&mut self, state: &UnitState<'_, '_>) {
        let entity = usize::from(state.context.tmem_entity(self.entity));
        self.tmem.seen.own[entity].full = self.tmem.epoch;
        self.tmem.epoch += 1;
    }

    /// The accesses of the live lanes may be published: by each of them its own, by others when the warp has synchronised.
    fn tmem_fence_before(&mut self, state: &UnitState<'_, '_>) {
        let entity = state.context.tmem_entity(self.entity);
        self.tmem.fenced = Some(FencedLanes { entity, epoch: self.tmem.epoch, lanes: self.active });
        self.tmem.epoch += 1;
    }

    /// Later accesses of the live lanes see what these have seen.
    fn tmem_fence_after(&mut self) {
        if self.active == Self::FULL {
            self.tmem.seen.join(&self.clock);
            self.tmem.seen_by_part = self.partial.clone();
            return;
        }
        let mut seen = self.clock.clone();
        if let Some((lanes, partial)) = &self.partial
            && lanes & self.active == self.active
        {
            seen.join(partial);
        }
        match &mut self.tmem.seen_by_part {
            Some((lanes, known)) if *lanes == self.active => known.join(&seen),
            other => *other = Some((self.active, seen)),
        }
    }

    fn tmem_of<'s>(&self, state: &'s mut UnitState<'_, '_>) -> StepResult<&'s mut TensorMemory> {
        match &mut state.blocks[self.block].tmem {
            Some(tmem) => Ok(tmem),
            None => fail(FaultKind::Tmem(TmemMisuse::NotAllocated)),
        }
    }

    fn tmem_allocate(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        to: &Address,
    ) -> StepResult {
        self.converged()?;
        let columns = state.context.kernel.tmem_columns;
        let number = self.number;
        // The last columns: an address is no number that a program could assume.
        let first = TMEM_COLUMNS.saturating_sub(columns);
        let tmem = self.tmem_of(state)?;
        if tmem.allocated.is_some() {
            return fail(FaultKind::Tmem(TmemMisuse::AllocatedTwice));
        }
        tmem.allocated = Some((first, number));
        // One write of the warp, by its first lane here.
        let start = self.resolve(state, to, (4, 4), 1)?[0];
        self.write_bytes(state, point, to.space, 0, start, &first.to_le_bytes())
    }

    fn tmem_free(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        base: Operand,
    ) -> StepResult {
        self.converged()?;
        let base = self.read(state, base, Self::FULL)?[0];
        let columns = state.context.kernel.tmem_columns;
        let number = self.number;
        let tmem = self.tmem_of(state)?;
        let misuse = match tmem.allocated {
            None => Some(TmemMisuse::NotAllocated),
            Some(_) if tmem.freed => Some(TmemMisuse::NotAllocated),
            Some((_, by)) if by != number => Some(TmemMisuse::OtherWarp(by)),
            Some((first, _)) if first != base => Some(TmemMisuse::Address(base)),
            Some(_) => None,
        };
        if let Some(misuse) = misuse {
            return fail(FaultKind::Tmem(misuse));
        }
        tmem.freed = true;
        // Nothing may be in flight there, and every access has to be before this one.
        let all = Place { lanes: 0..TMEM_LANES, columns: base..base + columns };
        self.tmem_start_write(state, point, &all, usize::from(ALL_LANES))
    }

    /// The columns at an address, in lanes of which it has to name the first.
    fn tmem_place(
        &mut self,
        state: &mut UnitState<'_, '_>,
        address: &TmemAddress,
        columns: u32,
        lanes: Range<u32>,
    ) -> StepResult<Place> {
        let live = self.active;
        let row = self.read(state, address.base, live)?;
        let first = lanes_of(live).next().unwrap_or(0);
        if let Some(lane) = lanes_of(live).find(|&lane| row[lane] != row[first]) {
            return fail_at(lane, FaultKind::NotUniform("warp", row[first], row[lane]));
        }
        let (lane, column) = (row[first] >> 16, row[first] & 0xffff);
        let all = state.context.kernel.tmem_columns;
        let tmem = self.tmem_of(state)?;
        let Some((begin, _)) = tmem.allocated.filter(|_| !tmem.freed) else {
            return fail(FaultKind::Tmem(TmemMisuse::NotAllocated));
        };
        let columns = column + address.column..column + address.column + columns;
        if columns.start < begin || columns.end > begin + all {
            let (first, end) = (columns.start, columns.end);
            return fail(FaultKind::Tmem(TmemMisuse::Columns { first, end, begin, all }));
        }
        if lane != lanes.start {
            return fail(FaultKind::Tmem(TmemMisuse::Lanes { lane, own: lanes.start }));
        }
        Ok(Place { lanes, columns })
    }

    /// The place of a warp's load or store: the lanes that it has.
    fn tmem_own_lanes(
        &mut self,
        state: &mut UnitState<'_, '_>,
        address: &TmemAddress,
        columns: usize,
    ) -> StepResult<Place> {
        self.converged()?;
        let own = TMEM_WARP_LANES * (self.number % 4);
        self.tmem_place(state, address, columns as u32, own..own + TMEM_WARP_LANES)
    }

    /// The place of all lanes at an address.
    fn tmem_all_lanes(
        &mut self,
        state: &mut UnitState<'_, '_>,
        address: &TmemAddress,
        columns: u32,
    ) -> StepResult<Place> {
        self.tmem_place(state, address, columns, 0..TMEM_LANES)
    }

    fn tmem_load(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        dst: &[Reg],
        from: &TmemAddress,
    ) -> StepResult {
        let from = self.tmem_own_lanes(state, from, dst.len())?;
        self.tmem_start_read(state, point, &from, usize::from(ALL_LANES))?;
        let tmem = self.tmem_of(state)?;
        let rows = from.ranges().map(|range| tmem.words(range)).collect();
        for &reg in dst {
            // What the register held is lost.
            self.write(state, reg, [0; L])?;
            let slot = state.slot(reg);
            self.set_poison(slot, Self::FULL);
            self.marks[slot as usize] |= WRITTEN_IN_FLIGHT;
        }
        let slots = dst.iter().map(|&reg| state.slot(reg)).collect();
        self.tmem.loads.push(Load { point, slots, rows, from });
        Ok(())
    }

    fn tmem_wait_loads(&mut self, state: &mut UnitState<'_, '_>) -> StepResult {
        self.converged()?;
        for Load { point, slots, rows, from } in std::mem::take(&mut self.tmem.loads) {
            for (column, &slot) in slots.iter().enumerate() {
                let row: Row<L> = std::array::from_fn(|lane| rows[lane][column]);
                self.marks[slot as usize] &= !WRITTEN_IN_FLIGHT;
                self.arrive(slot, row);
            }
            let entity = state.context.tmem_entity(self.entity);
            let tmem = self.tmem_of(state)?;
            for range in from.ranges() {
                tmem.cells.end_read(&self.tmem_observer(entity, point), ALL_LANES, range);
            }
        }
        self.tmem_next_epoch(state);
        Ok(())
    }

    fn tmem_store(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        to: &TmemAddress,
        values: &[Operand],
    ) -> StepResult {
        let to = self.tmem_own_lanes(state, to, values.len())?;
        let mut words = vec![Vec::with_capacity(values.len()); L];
        for &value in values {
            let row = self.read(state, value, Self::FULL)?;
            for (of_lane, word) in words.iter_mut().zip(row) {
                of_lane.push(word);
            }
        }
        self.tmem_start_write(state, point, &to, usize::from(ALL_LANES))?;
        self.tmem.stores.push(Store { point, to, words });
        Ok(())
    }

    fn tmem_wait_stores(&mut self, state: &mut UnitState<'_, '_>) -> StepResult {
        self.converged()?;
        for Store { point, to, words } in std::mem::take(&mut self.tmem.stores) {
            let entity = state.context.tmem_entity(self.entity);
            let record = self.tmem_observer(entity, point).record(ALL_LANES);
            let tmem = self.tmem_of(state)?;
            for ((start, _), words) in to.ranges().zip(words) {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                tmem.cells.land(start, &bytes, record, 0);
            }
        }
        self.tmem_next_epoch(state);
        Ok(())
    }

    /// Starts a read of cells by the warp.
    fn tmem_start_read(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        place: &Place,
        lane: usize,
    ) -> StepResult {
        self.tmem_start(state, point, (place, false), lane, |cells, who, range| {
            cells.start_read(who, lane as u8, range, 0)
        })
    }

    /// Starts a write of cells by the warp, whose accumulators are lost.
    fn tmem_start_write(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        place: &Place,
        lane: usize,
    ) -> StepResult {
        self.tmem_of(state)?.forget(&place.columns);
        self.tmem_start(state, point, (place, true), lane, |cells, who, range| {
            cells.start_write(who, lane as u8, range)
        })
    }

    fn tmem_start(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (place, writes): (&Place, bool),
        lane: usize,
        start: impl Fn(&mut SharedMemory, &Observer<'_>, (u32, u32)) -> Result<(), AccessConflict>,
    ) -> StepResult {
        let entity = state.context.tmem_entity(self.entity);
        let who = self.tmem_observer(entity, point);
        let tmem = self.tmem_of(state)?;
        for (number, range) in place.lanes.clone().zip(place.ranges()) {
            if let Err(conflict) = start(&mut tmem.cells, &who, range) {
                let columns = &place.columns;
                let array = format!("tensor memory, lane {number}, from column");
                let location = MemoryLocation { array, word: columns.start.into() };
                let kind = state.conflict_at(conflict, location, writes);
                let reported = if lane == usize::from(ALL_LANES) { 0 } else { lane };
                return fail_at(reported, kind);
            }
        }
        Ok(())
    }

    /// The one thread that executes an operation.
    fn tmem_thread(&self) -> StepResult<usize> {
        match self.active.count_ones() {
            1 => Ok(self.active.trailing_zeros() as usize),
            threads => fail(FaultKind::Tmem(TmemMisuse::Threads(threads))),
        }
    }

    fn tmem_copy(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        to: &TmemAddress,
        from: &Address,
    ) -> StepResult {
        let lane = self.tmem_thread()?;
        let to = self.tmem_all_lanes(state, to, 4)?;
        let Space::Shared(SharedId(owner)) = from.space else {
            return fail(FaultKind::Unsupported("a copy to tensor memory from global memory"));
        };
        let start = self.resolve(state, from, (512, 16), self.active)?[lane] as u32;
        self.start_async_read(state, point, (from.space, owner), lane, (start, 512))?;
        self.tmem_start_write(state, point, &to, lane)?;
        let (by, to) = ((self.entity, lane as u8), to.columns);
        let tmem = self.tmem_of(state)?;
        tmem.copies.push(Accumulator { columns: to.clone(), by, op: None });
        let what = InFlightKind::Copy { to, from: start };
        tmem.started.push(InFlight { by, point, what });
        Ok(())
    }

    fn tmem_product(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (op, n): (&'static MatrixOp, u32),
        (d, adds): (&TmemAddress, Operand),
        (a, b): (&TmemOperand, &SharedTile),
        scales: Option<&[TmemScale; 2]>,
    ) -> StepResult {
        let lane = self.tmem_thread()?;
        let by = (self.entity, lane as u8);
        let adds = self.flag(state, adds, self.active)? >> lane & 1 == 1;
        let d = self.tmem_all_lanes(state, d, n)?;
        self.tmem_accumulator(state, point, (op, &d, adds), by)?;
        let bytes = |bits: u32| op.shape[2] * bits / 8;
        let a = match a {
            TmemOperand::Shared(tile) => {
                let of = (0, TMEM_LANES);
                let bytes = bytes(op.a.bits());
                ProductOperand::Shared(self.start_tile_read(state, point, tile, of, bytes, by.1)?)
            }
            TmemOperand::Tmem(at) => {
                let place = self.tmem_all_lanes(state, at, op.a_columns())?;
                self.tmem_read_operand(state, point, &place, by)?;
                ProductOperand::Tmem(place.columns)
            }
        };
        let b = self.start_tile_read(state, point, b, (0, n), bytes(op.b.bits()), by.1)?;
        let scales = match scales {
            None => None,
            Some([of_a, of_b]) => {
                let of_a = self.tmem_scales(state, point, (of_a, TMEM_LANES), by)?;
                Some([of_a, self.tmem_scales(state, point, (of_b, n), by)?])
            }
        };
        let what = InFlightKind::Product(Product { op, n, d: d.columns, adds, a, b, scales });
        self.tmem_of(state)?.started.push(InFlight { by, point, what });
        Ok(())
    }

    /// Starts the write of D. The thread that started the last product of the same instruction and D needs no wait for it.
    fn tmem_accumulator(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (op, d, adds): (&'static MatrixOp, &Place, bool),
        by: (u16, u8),
    ) -> StepResult {
        let lane = usize::from(by.1);
        let same = |of: &Accumulator| of.columns == d.columns && of.by == by && of.op == Some(op);
        if self.tmem_of(state)?.accumulators.iter().any(same) {
            return self.tmem_start(state, point, (d, true), lane, |cells, who, range| {
                cells.start_next_write(who, by.1, range)
            });
        }
        if adds {
            self.tmem_start(state, point, (d, false), lane, |cells, who, range| {
                cells.read(who, by.1, range, 0)
            })?;
        }
        self.tmem_start_write(state, point, d, lane)?;
        let columns = d.columns.clone();
        self.tmem_of(state)?.accumulators.push(Accumulator { columns, by, op: Some(op) });
        Ok(())
    }

    /// Starts the read of an operand; of what copies of the same thread have written or are still writing, without a wait.
    fn tmem_read_operand(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        place: &Place,
        by: (u16, u8),
    ) -> StepResult {
        if self.tmem_of(state)?.copied_by(by, &place.columns) {
            let lane = usize::from(by.1);
            return self.tmem_start(state, point, (place, false), lane, |cells, who, range| {
                cells.start_later_read(who, range);
                Ok(())
            });
        }
        self.tmem_start_read(state, point, place, usize::from(by.1))
    }

    fn tmem_scales(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (scale, rows): (&TmemScale, u32),
        by: (u16, u8),
    ) -> StepResult<ScaleWords> {
        let place = self.tmem_all_lanes(state, &scale.at, rows.div_ceil(TMEM_WARP_LANES))?;
        for place in scale_places(&place.columns, rows) {
            self.tmem_read_operand(state, point, &place, by)?;
        }
        Ok(ScaleWords { columns: place.columns, rows, byte: scale.byte })
    }

    fn tmem_commit(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        barrier: &BarrierRef,
    ) -> StepResult {
        let lane = self.tmem_thread()?;
        let mbarrier = self.mbarriers(state, barrier)?[lane];
        self.check_initialised(state, (self.block, mbarrier), lane, true)?;
        self.tmem_fence_before(state);
        let clock = self.publish(self.active);
        let by = (self.entity, lane as u8);
        let tmem = self.tmem_of(state)?;
        let (work, rest) =
            std::mem::take(&mut tmem.started).into_iter().partition(|work| work.by == by);
        tmem.started = rest;
        tmem.commits.push_back(Commit { by, point, mbarrier, work, clock });
        Ok(())
    }
}
