//! State outside of a warp's registers: the blocks of its unit, global memory and counts; and the
//! names for error messages.

use std::collections::HashMap;

use super::SimulationOptions;
use super::clock::{ALL_LANES, AccessRecord, Clock};
use super::count::{Banks, Tally};
use super::fault::{self, ConflictingAccess, FaultKind, MemoryLocation, ProgramPoint};
use super::global::{Agent, GlobalMemory, ReleasedClocks};
use super::mbarrier::{InFlightCopy, Mbarrier};
use super::program::{Program, RegSlot};
use super::shared::{AccessConflict, SharedMemory};
use super::tmem::TensorMemory;
use crate::ir::{BufferId, Kernel, Reg, SharedId, SharedMap, Space, Type};

/// What all units of a launch have in common.
pub(super) struct LaunchContext<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) program: &'a Program<'a>,
    pub(super) map: &'a SharedMap,
    pub(super) parameters: &'a [u32],
    pub(super) grid: [u32; 3],
    pub(super) options: &'a SimulationOptions,
    pub(super) banks: Banks,
    /// Number of neighbouring lanes between which shuffles work.
    pub(super) shuffle_lanes: u32,
    /// Warps of a block.
    pub(super) warps: usize,
    /// mbarriers of a block.
    pub(super) mbarriers: usize,
    /// Blocks of a unit: a cluster.
    pub(super) cluster: usize,
    /// log2 of the bytes of a shared-memory cell.
    pub(super) shared_cell_log2: u32,
}

/// State of one unit: the blocks of a cluster, and what they share.
pub(super) struct UnitState<'a, 'm> {
    pub(super) context: &'a LaunchContext<'a>,
    pub(super) unit: u32,
    pub(super) blocks: Vec<Block>,
    pub(super) memory: GlobalMemory<'m>,
    pub(super) tally: Tally,
    pub(super) cluster: Rendezvous,
    /// Values that the program promises to be uniform, by block, point and visit.
    pub(super) uniform: HashMap<(usize, u32, u32), u32>,
    /// Per warp of the unit: the epochs of its async-proxy fences, and their lanes.
    pub(super) proxy_fences: Vec<Vec<(u32, u64)>>,
}

/// A block of the unit.
pub(super) struct Block {
    pub(super) shared: SharedMemory,
    pub(super) mbarriers: Vec<Mbarrier>,
    pub(super) barrier: Rendezvous,
    pub(super) named: Vec<Rendezvous>,
    pub(super) copies_in_flight: Vec<InFlightCopy>,
    /// Reads of its shared memory, and arrivals at its mbarriers, by other blocks of the cluster.
    pub(super) used_by_others: Vec<AccessRecord>,
    pub(super) published: ReleasedClocks,
    /// Tensor memory, if the kernel has some.
    pub(super) tmem: Option<TensorMemory>,
}

/// A barrier's state: the warps that wait for each other.
#[derive(Debug, Default)]
pub(super) struct Rendezvous {
    /// Warps that arrived.
    pub(super) arrived: usize,
    /// Warps that must arrive, as the first arrival states.
    pub(super) expected: usize,
    pub(super) point: u32,
    pub(super) clock: Clock,
    /// What a waiting warp has seen after the barrier.
    pub(super) done: Clock,
    pub(super) generation: u32,
}

impl LaunchContext<'_> {
    /// Entities of a unit: warps, the engines of the mbarriers, the warps' accesses to tensor memory and what they have
    /// started there, the earlier grid.
    pub(super) fn entities(&self) -> usize {
        let tmem = if self.kernel.tmem_columns > 0 { 2 * self.warps } else { 0 };
        self.cluster * (self.warps + self.mbarriers + tmem) + 1
    }

    /// The entity of a warp's accesses to tensor memory.
    pub(super) fn tmem_entity(&self, warp: u16) -> u16 {
        (self.cluster * (self.warps + self.mbarriers)) as u16 + warp
    }

    /// The entity of the products and copies that a warp has started, once they are complete.
    pub(super) fn tmem_engine(&self, warp: u16) -> u16 {
        self.tmem_entity(warp) + (self.cluster * self.warps) as u16
    }

    /// The entity of the grid before this one.
    pub(super) fn grid_entity(&self) -> u16 {
        (self.entities() - 1) as u16
    }

    /// The engine of an mbarrier of a block of the unit.
    pub(super) fn engine(&self, block: usize, mbarrier: usize) -> u16 {
        (self.cluster * self.warps + block * self.mbarriers + mbarrier) as u16
    }

    /// Coordinates of a block of the grid.
    pub(super) fn coordinates(&self, block: u32) -> [u32; 3] {
        let [x, y, _] = self.grid;
        [block % x, block / x % y, block / (x * y)]
    }
}

impl<'a> UnitState<'a, '_> {
    /// The slot of a 32-bit register, the flag of a predicate register.
    pub(super) fn slot(&self, reg: Reg) -> RegSlot {
        self.context.program.bases[reg.id.0 as usize] + reg.at
    }

    /// Whether the register is a predicate.
    pub(super) fn is_flag(&self, reg: Reg) -> bool {
        self.context.kernel.registers[reg.id.0 as usize].ty == Type::Pred
    }

    pub(super) fn name(&self, reg: Reg) -> String {
        self.context.kernel.reg(reg)
    }

    pub(super) fn point(&self, number: u32) -> ProgramPoint {
        fault::point(self.context.kernel, number)
    }

    /// The number of a block of the unit in its grid.
    pub(super) fn block_number(&self, block: usize) -> u32 {
        self.unit * self.context.cluster as u32 + block as u32
    }

    pub(super) fn agent(&self, block: usize) -> Agent {
        Agent { unit: self.unit, block: self.block_number(block) }
    }

    /// An array's name and the bytes of its word.
    pub(super) fn array(&self, array: Space) -> (&'a str, u64) {
        let kernel = self.context.kernel;
        match array {
            Space::Global(BufferId(id)) => {
                let buffer = &kernel.buffers[id as usize];
                (&buffer.name, u64::from(buffer.word.bytes()))
            }
            Space::Shared(SharedId(id)) => {
                let block = &kernel.shared[id as usize];
                (&block.name, u64::from(block.word.bytes()))
            }
        }
    }

    /// The location of a byte, counted from the start of the buffer or of shared memory.
    pub(super) fn location(&self, array: Space, byte: u64) -> MemoryLocation {
        let (name, word) = self.array(array);
        let start = match array {
            Space::Global(_) => 0,
            Space::Shared(SharedId(id)) => u64::from(self.context.map.blocks[id as usize]),
        };
        MemoryLocation { array: name.to_owned(), word: byte.saturating_sub(start) / word }
    }

    /// Names a recorded access for a message.
    pub(super) fn conflicting_access(
        &self,
        record: &AccessRecord,
        wrote: bool,
    ) -> ConflictingAccess {
        let (warps, cluster) = (self.context.warps, self.context.cluster);
        let first_of_tmem = usize::from(self.context.tmem_entity(0));
        let entity = match usize::from(record.entity) {
            entity if entity >= first_of_tmem => (entity - first_of_tmem) % (warps * cluster),
            entity => entity,
        };
        let who = if entity < warps * cluster {
            let block = record.unit * cluster as u32 + (entity / warps) as u32;
            let [x, y, z] = self.context.coordinates(block);
            let lane = match record.lane {
                ALL_LANES => "several lanes".to_owned(),
                lane => format!("lane {lane}"),
            };
            format!("block ({x}, {y}, {z}) warp {} {lane}", entity % warps)
        } else {
            let mbarrier = (entity - warps * cluster) % self.context.mbarriers.max(1);
            format!("the asynchronous operation counted by {}", self.mbarrier_name(mbarrier))
        };
        ConflictingAccess { point: self.point(record.point), wrote, who }
    }

    /// `name[index]` of an mbarrier of a block, by its flat number.
    pub(super) fn mbarrier_name(&self, number: usize) -> String {
        let mut rest = number;
        for array in &self.context.kernel.barriers {
            if rest < array.len as usize {
                return format!("{}[{rest}]", array.name);
            }
            rest -= array.len as usize;
        }
        format!("mbarrier {number}")
    }

    /// The fault that a conflict is.
    pub(super) fn conflict(
        &self,
        conflict: AccessConflict,
        array: Space,
        byte: u64,
        writes: bool,
    ) -> FaultKind {
        self.conflict_at(conflict, self.location(array, byte), writes)
    }

    /// The fault that a conflict at a location is.
    pub(super) fn conflict_at(
        &self,
        conflict: AccessConflict,
        location: MemoryLocation,
        writes: bool,
    ) -> FaultKind {
        match conflict {
            AccessConflict::Poison => FaultKind::PoisonMemory(location),
            AccessConflict::Overwritten(by) => {
                let by = self.context.kernel.shared.get(usize::from(by));
                FaultKind::Overwritten(
                    location,
                    by.map_or(String::new(), |block| block.name.clone()),
                )
            }
            AccessConflict::InFlight(by) => {
                FaultKind::InFlight { what: location.to_string(), by: self.point(by) }
            }
            AccessConflict::BeingRead(by) => {
                FaultKind::BeingRead { what: location.to_string(), by: self.point(by) }
            }
            AccessConflict::Write(record) => {
                FaultKind::Race { location, writes, other: self.conflicting_access(&record, true) }
            }
            AccessConflict::Read(record) => {
                FaultKind::Race { location, writes, other: self.conflicting_access(&record, false) }
            }
        }
    }
}
