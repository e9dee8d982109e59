//! Tensor memory of a block, and the products and copies in flight to it.
//!
//! Its cells are words, checked for races as those of shared memory are, with two differences. The accesses of a warp are
//! an entity of their own ([`LaunchContext::tmem_entity`]): others see them only after a [`TmemOp::FenceBefore`] of the lanes that
//! made them, which puts them into what these publish. And an access sees what its lanes had seen at their last
//! [`TmemOp::FenceAfter`], not what they have seen since. What products and copies have written and read is a third entity's
//! ([`LaunchContext::tmem_engine`]), which the arrivals of their commits publish.
//!
//! Start here: the state of a block and of a warp. `operations` has what warps execute, `finish` what the hardware completes.
//! Products and copies are computed when the arrival of their commit lands, in the order of their start: a commit's
//! arrival lands when no warp can run without one.

mod finish;
mod operations;

use std::collections::VecDeque;
use std::ops::Range;

use super::clock::{Clock, SeenEpochs};
use super::program::RegSlot;
use super::shared::SharedMemory;
use super::state::LaunchContext;
use crate::ir::MatrixOp;
use crate::target::{TMEM_COLUMNS, TMEM_LANES, TMEM_WARP_LANES};

pub(super) use finish::{Failed, land};

/// Tensor memory of a block.
pub(super) struct TensorMemory {
    cells: SharedMemory,
    /// The first column of the allocation, and the number of the warp that made it.
    allocated: Option<(u32, u32)>,
    pub(super) freed: bool,
    /// What was started and not yet committed.
    started: Vec<InFlight>,
    /// What was committed, by commits, oldest first.
    commits: VecDeque<Commit>,
    /// The results of products that the threads which started them may add to without a wait.
    accumulators: Vec<Accumulator>,
    /// The columns that copies have written, for the threads that started them: their products need no wait.
    copies: Vec<Accumulator>,
    /// Per warp, how many commits of its products and copies have landed.
    landed: Vec<u32>,
}

/// A product or copy in flight.
struct InFlight {
    /// The warp's entity and the lane that started it.
    by: (u16, u8),
    point: u32,
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

/// Columns that operations of a thread write, in an order that the hardware keeps.
struct Accumulator {
    columns: Range<u32>,
    by: (u16, u8),
    /// The product; `None` of a copy.
    op: Option<&'static MatrixOp>,
}

/// An arrival that waits for products and copies.
struct Commit {
    by: (u16, u8),
    point: u32,
    mbarrier: usize,
    work: Vec<InFlight>,
    /// What the arrival publishes.
    clock: Clock,
}

/// What a warp has in flight, and what its accesses to tensor memory see.
pub(super) struct WarpTmem {
    epoch: u32,
    seen: Clock,
    seen_by_part: Option<(u64, Clock)>,
    fenced: Option<FencedLanes>,
    loads: Vec<Load>,
    stores: Vec<Store>,
}

/// The last fence before a barrier or arrival: the accesses up to an epoch of an entity, of some lanes.
#[derive(Clone, Copy)]
struct FencedLanes {
    entity: u16,
    epoch: u32,
    lanes: u64,
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
            copies: Vec::new(),
            landed: vec![0; context.warps * context.cluster],
        })
    }

    /// Whether a commit waits to land.
    pub(super) fn has_commits(&self) -> bool {
        !self.commits.is_empty()
    }

    /// The point of an operation that has not landed.
    pub(super) fn unfinished(&self) -> Option<u32> {
        let started = self.started.first().map(|work| work.point);
        started.or(self.commits.front().map(|commit| commit.point))
    }

    /// Whether the block holds columns that nothing has freed.
    pub(super) fn holds_columns(&self) -> bool {
        self.allocated.is_some() && !self.freed
    }

    fn in_flight(&self) -> impl Iterator<Item = &InFlight> {
        self.commits.iter().flat_map(|commit| &commit.work).chain(&self.started)
    }

    /// Whether the last writes of all of these columns are copies of a thread.
    fn copied_by(&self, by: (u16, u8), columns: &Range<u32>) -> bool {
        let covers = |column: u32| {
            self.copies.iter().any(|copy| copy.by == by && copy.columns.contains(&column))
        };
        columns.clone().all(covers)
    }

    /// Something else writes the columns: they hold no accumulators and no copies any more.
    fn forget(&mut self, columns: &Range<u32>) {
        self.accumulators.retain(|of| !overlap(&of.columns, columns));
        self.copies.retain(|of| !overlap(&of.columns, columns));
    }

    fn words(&self, (start, bytes): (u32, u32)) -> Vec<u32> {
        let bytes = &self.cells.bytes[start as usize..(start + bytes) as usize];
        let word = |of: &[u8]| u32::from_le_bytes([of[0], of[1], of[2], of[3]]);
        bytes.chunks_exact(4).map(word).collect()
    }
}

impl WarpTmem {
    pub(super) fn new(seen: Clock) -> Self {
        Self {
            epoch: 1,
            seen,
            seen_by_part: None,
            fenced: None,
            loads: Vec::new(),
            stores: Vec::new(),
        }
    }

    /// Adds what these lanes may publish to what they have seen; `full` is the mask of all.
    pub(super) fn publish(&self, clock: &mut Clock, (lanes, full): (u64, u64)) {
        let Some(FencedLanes { entity, epoch, lanes: fenced }) = self.fenced else { return };
        clock.own[usize::from(entity)].join(&match fenced & lanes {
            all if all == full => SeenEpochs { full: epoch, ..SeenEpochs::default() },
            lanes => SeenEpochs { full: 0, part: epoch, lanes },
        });
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
