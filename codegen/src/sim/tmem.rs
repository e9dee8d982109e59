//! Tensor memory of a block, and the products and copies in flight to it.
//!
//! Its cells are words, checked for races as those of shared memory are, with two differences. The accesses of a warp are
//! an entity of their own ([`LaunchContext::tmem_entity`]): others see them only after a [`TmemOp::FenceBefore`], which
//! puts them into what the warp publishes. And an access sees what the warp had seen at its last
//! [`TmemOp::FenceAfter`], not what it has seen since.
//!
//! Products and copies are computed when the arrival of their commit lands, in the order of their start: a commit's
//! arrival lands when no warp can run without one.

use std::collections::VecDeque;
use std::ops::Range;

use super::clock::{ALL_LANES, AccessRecord, Clock, Observer};
use super::fault::{FaultKind, MemoryLocation};
use super::lanes::Row;
use super::matrix::{elements, summed};
use super::misuse::TmemMisuse;
use super::program::RegSlot;
use super::shared::{AccessConflict, SharedMemory};
use super::state::{LaunchContext, UnitState};
use super::warp::{StepResult, WRITTEN_IN_FLIGHT, Warp, fail, fail_at, lanes_of};
use crate::ir::{
    Address, BarrierRef, Element, MatrixOp, Operand, Reg, Scaling, SharedId, SharedTile, Space,
    TmemAddress, TmemOp, TmemOperand, TmemScale,
};
use crate::target::{ScaleCode, TMEM_COLUMNS, TMEM_LANES, TMEM_WARP_LANES};

/// Tensor memory of a block.
pub(super) struct TensorMemory {
    cells: SharedMemory,
    /// The first column of the allocation, and the number of the warp that made it.
    allocated: Option<(u32, u32)>,
    pub(super) freed: bool,
    /// What was started and not yet committed.
    pub(super) started: Vec<InFlight>,
    /// What was committed, by commits, oldest first.
    commits: VecDeque<Commit>,
    /// The results of products that the threads which started them may add to without a wait.
    accumulators: Vec<Accumulator>,
    /// What the landed commits of each thread have completed: its next commits track that too.
    completed: Vec<((u16, u8), Clock)>,
}

/// A product or copy in flight.
pub(super) struct InFlight {
    /// The warp's entity and the lane that started it.
    by: (u16, u8),
    pub(super) point: u32,
    what: InFlightKind,
}

enum InFlightKind {
    /// The four columns, and 32 rows of 16 bytes in shared memory.
    Copy {
        to: Range<u32>,
        from: u32,
    },
    Product(Product),
}

struct Product {
    op: &'static MatrixOp,
    n: u32,
    d: Range<u32>,
    adds: bool,
    a: ProductOperand,
    b: Vec<(u32, u32)>,
    scales: Option<[ScaleWords; 2]>,
}

/// A: 16-byte segments of shared memory row by row, or columns.
enum ProductOperand {
    Shared(Vec<(u32, u32)>),
    Tmem(Range<u32>),
}

/// Scales of so many rows.
struct ScaleWords {
    columns: Range<u32>,
    rows: u32,
    byte: u8,
}

/// The result of a product.
struct Accumulator {
    columns: Range<u32>,
    by: (u16, u8),
}

/// An arrival that waits for products and copies.
struct Commit {
    by: (u16, u8),
    mbarrier: usize,
    work: Vec<InFlight>,
    /// What the arrival publishes, and the epochs of the warp's accesses and of its accesses to tensor memory.
    clock: Clock,
    epochs: [u32; 2],
}

/// What a warp has in flight, and what its accesses to tensor memory see.
pub(super) struct WarpTmem {
    epoch: u32,
    seen: Clock,
    seen_by_part: Option<(u64, Clock)>,
    loads: Vec<Load>,
    stores: Vec<Store>,
}

struct Load {
    point: u32,
    slots: Vec<RegSlot>,
    rows: Vec<Vec<u32>>,
    from: Place,
}

struct Store {
    point: u32,
    to: Place,
    /// Words by lane, then column.
    words: Vec<Vec<u32>>,
}

/// Columns of some lanes.
#[derive(Clone)]
struct Place {
    lanes: Range<u32>,
    columns: Range<u32>,
}

impl Place {
    /// The bytes of each lane's columns.
    fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (first, words) = (self.columns.start, self.columns.len() as u32);
        self.lanes.clone().map(move |lane| (cell(lane, first), 4 * words))
    }
}

/// The byte of a cell.
const fn cell(lane: u32, column: u32) -> u32 {
    4 * (lane * TMEM_COLUMNS + column)
}

fn overlap(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}

impl TensorMemory {
    /// Tensor memory without an allocation; `None` if the kernel has none.
    pub(super) fn new(context: &LaunchContext<'_>) -> Option<Self> {
        let bytes = 4 * TMEM_LANES * TMEM_COLUMNS;
        (context.kernel.tmem_columns > 0).then(|| Self {
            cells: SharedMemory::of_bytes(bytes, 2, context.entities()),
            allocated: None,
            freed: false,
            started: Vec::new(),
            commits: VecDeque::new(),
            accumulators: Vec::new(),
            completed: Vec::new(),
        })
    }

    /// Whether a commit waits to land.
    pub(super) fn has_commits(&self) -> bool {
        !self.commits.is_empty()
    }

    /// Whether the block holds columns that nothing has freed.
    pub(super) fn holds_columns(&self) -> bool {
        self.allocated.is_some() && !self.freed
    }

    fn in_flight(&self) -> impl Iterator<Item = &InFlight> {
        self.commits.iter().flat_map(|commit| &commit.work).chain(&self.started)
    }

    /// Whether a copy in flight by a thread writes all of these columns.
    fn copied_by(&self, by: (u16, u8), columns: &Range<u32>) -> bool {
        let covers = |column: u32| {
            self.in_flight().any(|work| match &work.what {
                InFlightKind::Copy { to, .. } => work.by == by && to.contains(&column),
                InFlightKind::Product(_) => false,
            })
        };
        columns.clone().all(covers)
    }

    /// The columns hold no accumulators any more.
    fn forget(&mut self, columns: &Range<u32>) {
        self.accumulators.retain(|of| !overlap(&of.columns, columns));
    }

    fn words(&self, (start, bytes): (u32, u32)) -> Vec<u32> {
        let bytes = &self.cells.bytes[start as usize..(start + bytes) as usize];
        let word = |of: &[u8]| u32::from_le_bytes([of[0], of[1], of[2], of[3]]);
        bytes.chunks_exact(4).map(word).collect()
    }
}

impl WarpTmem {
    pub(super) fn new(seen: Clock) -> Self {
        Self { epoch: 1, seen, seen_by_part: None, loads: Vec::new(), stores: Vec::new() }
    }

    /// The point of the load in flight that writes a slot.
    pub(super) fn load_of(&self, slot: RegSlot) -> Option<u32> {
        self.loads.iter().find(|load| load.slots.contains(&slot)).map(|load| load.point)
    }

    /// The point of an operation that nothing waited for.
    pub(super) fn unfinished(&self) -> Option<u32> {
        let loads = self.loads.iter().map(|load| load.point);
        loads.chain(self.stores.iter().map(|store| store.point)).next()
    }
}

impl<const L: usize> Warp<L> {
    pub(super) fn tmem_op(
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
            TmemOp::Commit { barrier } => self.tmem_commit(state, barrier),
            TmemOp::FenceBefore => {
                self.tmem_fence_before(state);
                Ok(())
            }
            TmemOp::FenceAfter => {
                self.tmem.seen.join(&self.clock);
                self.tmem.seen_by_part = self.partial.clone();
                Ok(())
            }
        }
    }

    /// The warp as the maker of an access to tensor memory.
    fn tmem_observer(&self, state: &UnitState<'_, '_>, point: u32) -> Observer<'_> {
        Observer {
            unit: self.unit,
            entity: state.context.tmem_entity(self.entity),
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

    fn tmem_fence_before(&mut self, state: &UnitState<'_, '_>) {
        let entity = usize::from(state.context.tmem_entity(self.entity));
        self.clock.own[entity].full = self.tmem.epoch;
        self.tmem_next_epoch(state);
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

    /// The columns at an address, and the lane that it names.
    fn tmem_place(
        &mut self,
        state: &mut UnitState<'_, '_>,
        address: &TmemAddress,
        columns: u32,
    ) -> StepResult<(u32, Range<u32>)> {
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
        Ok((lane, columns))
    }

    /// The place of a warp's load or store: the lanes that it has.
    fn tmem_own_lanes(
        &mut self,
        state: &mut UnitState<'_, '_>,
        address: &TmemAddress,
        columns: usize,
    ) -> StepResult<Place> {
        self.converged()?;
        let (lane, columns) = self.tmem_place(state, address, columns as u32)?;
        let own = TMEM_WARP_LANES * (self.number % 4);
        if lane != own {
            return fail(FaultKind::Tmem(TmemMisuse::Lanes { lane, own }));
        }
        Ok(Place { lanes: own..own + TMEM_WARP_LANES, columns })
    }

    /// The place of all lanes at an address.
    fn tmem_all_lanes(
        &mut self,
        state: &mut UnitState<'_, '_>,
        address: &TmemAddress,
        columns: u32,
    ) -> StepResult<Place> {
        let (lane, columns) = self.tmem_place(state, address, columns)?;
        if lane != 0 {
            return fail(FaultKind::Tmem(TmemMisuse::Lanes { lane, own: 0 }));
        }
        Ok(Place { lanes: 0..TMEM_LANES, columns })
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
            let who = self.tmem_observer(state, point);
            let (unit, entity, epoch) = (who.unit, who.entity, who.epoch);
            let Some(tmem) = &mut state.blocks[self.block].tmem else { continue };
            let clock = &self.tmem.seen;
            let who = Observer { unit, entity, epoch, point, clock, partial: None };
            for range in from.ranges() {
                tmem.cells.end_read(&who, ALL_LANES, range);
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
            let record = self.tmem_observer(state, point).record(ALL_LANES);
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
        let Some(tmem) = &mut state.blocks[self.block].tmem else {
            return fail(FaultKind::Tmem(TmemMisuse::NotAllocated));
        };
        let (unit, epoch) = (self.unit, self.tmem.epoch);
        let (clock, partial) = (&self.tmem.seen, self.tmem.seen_by_part.as_ref());
        let who = Observer { unit, entity, epoch, point, clock, partial };
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
        let what = InFlightKind::Copy { to, from: start };
        self.tmem_of(state)?.started.push(InFlight { by, point, what });
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
        self.tmem_accumulator(state, point, (&d, adds), by)?;
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

    /// Starts the write of D. The thread that started the last product with the same D needs no wait for it.
    fn tmem_accumulator(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (d, adds): (&Place, bool),
        by: (u16, u8),
    ) -> StepResult {
        let lane = usize::from(by.1);
        let same = |of: &Accumulator| of.columns == d.columns && of.by == by;
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
        self.tmem_of(state)?.accumulators.push(Accumulator { columns, by });
        Ok(())
    }

    /// Starts the read of an operand, which a copy of the same thread may still be writing.
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

    fn tmem_commit(&mut self, state: &mut UnitState<'_, '_>, barrier: &BarrierRef) -> StepResult {
        let lane = self.tmem_thread()?;
        let mbarrier = self.mbarriers(state, barrier)?[lane];
        self.check_initialised(state, (self.block, mbarrier), lane, true)?;
        let epochs = [self.epoch, self.tmem.epoch];
        self.tmem_fence_before(state);
        let clock = self.publish(self.active);
        let by = (self.entity, lane as u8);
        let tmem = self.tmem_of(state)?;
        let (work, rest) =
            std::mem::take(&mut tmem.started).into_iter().partition(|work| work.by == by);
        tmem.started = rest;
        tmem.commits.push_back(Commit { by, mbarrier, work, clock, epochs });
        Ok(())
    }
}

/// The cells of scales: all quarters of the lanes, and of the last column the lanes that have rows.
fn scale_places(columns: &Range<u32>, rows: u32) -> Vec<Place> {
    let mut places = Vec::new();
    for (number, column) in columns.clone().enumerate() {
        let left = (rows - TMEM_WARP_LANES * number as u32).min(TMEM_WARP_LANES);
        for quarter in 0..TMEM_LANES / TMEM_WARP_LANES {
            let first = TMEM_WARP_LANES * quarter;
            places.push(Place { lanes: first..first + left, columns: column..column + 1 });
        }
    }
    places
}

/// Completes the oldest commit of a block: its work, in order, and its arrival.
pub(super) fn land(state: &mut UnitState<'_, '_>, block: usize) -> Result<(), FaultKind> {
    let Some(tmem) = &mut state.blocks[block].tmem else { return Ok(()) };
    let Some(commit) = tmem.commits.pop_front() else { return Ok(()) };
    let engine = state.context.engine(block, commit.mbarrier);
    let epoch = state.blocks[block].mbarriers[commit.mbarrier].phase + 1;
    for work in &commit.work {
        let record = AccessRecord {
            epoch,
            unit: state.unit,
            point: work.point,
            entity: engine,
            lane: ALL_LANES,
            atomic: false,
        };
        finish(state, block, work, record, &commit)?;
    }
    let mut clock = commit.clock;
    if let Some(tmem) = &mut state.blocks[block].tmem {
        let known = tmem.completed.iter().position(|(by, _)| *by == commit.by);
        let at = known.unwrap_or_else(|| {
            tmem.completed.push((commit.by, Clock::new(clock.own.len())));
            tmem.completed.len() - 1
        });
        let completed = &mut tmem.completed[at].1;
        completed.own[usize::from(engine)].full = epoch;
        clock.join(completed);
    }
    state.blocks[block].mbarriers[commit.mbarrier].arrive(&clock, engine);
    Ok(())
}

fn finish(
    state: &mut UnitState<'_, '_>,
    block: usize,
    work: &InFlight,
    record: AccessRecord,
    commit: &Commit,
) -> Result<(), FaultKind> {
    let [of_warp, of_tmem] = commit.epochs;
    let (unit, point) = (state.unit, work.point);
    let truncate = state.context.options.truncate_fp8;
    let tmem_entity = state.context.tmem_entity(work.by.0);
    let at = &mut state.blocks[block];
    let Some(tmem) = &mut at.tmem else { return Ok(()) };
    let who = |entity: u16, epoch: u32| Observer {
        unit,
        entity,
        epoch,
        point,
        clock: &commit.clock,
        partial: None,
    };
    let (reader, tmem_reader) = (who(work.by.0, of_warp), who(tmem_entity, of_tmem));
    let lane = work.by.1;
    let mut shared = |segments: &[(u32, u32)]| {
        let mut all = Vec::new();
        for &(start, len) in segments {
            all.extend_from_slice(&at.shared.bytes[start as usize..(start + len) as usize]);
            at.shared.end_read(&reader, lane, (start, len));
        }
        all
    };
    match &work.what {
        InFlightKind::Copy { to, from } => {
            let bytes = shared(&[(*from, 512)]);
            for lane in 0..TMEM_LANES {
                let row = 16 * (lane % TMEM_WARP_LANES) as usize;
                tmem.cells.land(cell(lane, to.start), &bytes[row..row + 16], record, 0);
            }
        }
        InFlightKind::Product(of) => {
            let (op, k) = (of.op, of.op.shape[2]);
            let a = match &of.a {
                ProductOperand::Shared(segments) => elements(op.a, &shared(segments)),
                ProductOperand::Tmem(columns) => {
                    let place = Place { lanes: 0..TMEM_LANES, columns: columns.clone() };
                    let mut bytes = Vec::new();
                    for range in place.ranges() {
                        let words = tmem.words(range);
                        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                        tmem.cells.end_read(&tmem_reader, lane, range);
                    }
                    elements(op.a, &bytes)
                }
            };
            let b = elements(op.b, &shared(&of.b));
            let [mut a, mut b] = [a, b];
            if let (Some(scaling), Some([of_a, of_b])) = (op.scaling, &of.scales) {
                scale(tmem, (&mut a, k), scaling, of_a, (&tmem_reader, lane))?;
                scale(tmem, (&mut b, k), scaling, of_b, (&tmem_reader, lane))?;
            }
            let k = k as usize;
            for row in 0..TMEM_LANES {
                let range = (cell(row, of.d.start), 4 * of.n);
                let old = of.adds.then(|| tmem.words(range));
                let a = &a[row as usize * k..][..k];
                let sums = (0..of.n as usize).map(|column| {
                    let products = a.iter().zip(&b[column * k..][..k]).map(|(a, b)| a * b);
                    let addend = old.as_ref().map(|old| old[column]);
                    let fp8 = op.a == Element::E4m3;
                    let cut = truncate && fp8 && op.scaling.is_none();
                    summed(products, addend, op.d, cut)
                });
                let bytes: Vec<u8> = sums.flat_map(u32::to_le_bytes).collect();
                tmem.cells.land(range.0, &bytes, record, 0);
            }
            let writes = |work: &InFlight| match &work.what {
                InFlightKind::Product(later) => later.d == of.d,
                InFlightKind::Copy { .. } => false,
            };
            // This product has left its commit's list already, or is the one that is compared with itself.
            let behind = commit.work.iter().skip_while(|other| !std::ptr::eq(*other, work)).skip(1);
            if behind.chain(tmem.in_flight()).any(writes) {
                let place = Place { lanes: 0..TMEM_LANES, columns: of.d.clone() };
                for range in place.ranges() {
                    tmem.cells.resume_write(range);
                }
            }
        }
    }
    Ok(())
}

/// Multiplies the elements of an operand, row by row, by their scales.
fn scale(
    tmem: &mut TensorMemory,
    (elements, k): (&mut [f64], u32),
    scaling: Scaling,
    scales: &ScaleWords,
    (who, lane): (&Observer<'_>, u8),
) -> Result<(), FaultKind> {
    let number = scaling.code.number();
    for row in 0..scales.rows {
        let column = scales.columns.start + row / TMEM_WARP_LANES;
        let lanes = (0..TMEM_LANES / TMEM_WARP_LANES)
            .map(|quarter| TMEM_WARP_LANES * quarter + row % TMEM_WARP_LANES);
        let words: Vec<u32> = lanes.map(|lane| tmem.words((cell(lane, column), 4))[0]).collect();
        if words.iter().any(|word| *word != words[0]) {
            return Err(FaultKind::Tmem(TmemMisuse::ScaleCopies { row, column }));
        }
        let of_row = &mut elements[(row * k) as usize..((row + 1) * k) as usize];
        for (block, elements) in of_row.chunks_mut(scaling.columns as usize).enumerate() {
            let code = words[0] >> (8 * (u32::from(scales.byte) + block as u32)) & 0xff;
            // What the instruction takes a set top bit for is not specified.
            if scaling.code == ScaleCode::UnsignedE4m3 && code & 0x80 > 0 {
                let what = "a scale of unsigned e4m3 with its top bit set";
                return Err(FaultKind::Unsupported(what));
            }
            let scale = number.decode(code);
            elements.iter_mut().for_each(|element| *element *= scale);
        }
    }
    for place in scale_places(&scales.columns, scales.rows) {
        for range in place.ranges() {
            tmem.cells.end_read(who, lane, range);
        }
    }
    Ok(())
}
