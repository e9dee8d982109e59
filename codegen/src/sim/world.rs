//! What a warp touches besides its registers: the blocks of its unit, global memory, counts, and
//! the names that an error needs.

use std::collections::HashMap;

use super::Options;
use super::clock::{ALL_LANES, Clock, Record};
use super::count::{Banks, Tally};
use super::fault::{self, FaultKind, Other, Place, Point};
use super::global::{Memory, Party, Published};
use super::mbarrier::{Flight, Mbarrier};
use super::program::{Array, Flag, Program, Slot};
use super::shared::{Clash, Shared};
use crate::ir::{Kernel, SharedMap};

/// What all units of a launch have in common.
pub(super) struct Setting<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) program: &'a Program,
    pub(super) map: &'a SharedMap,
    pub(super) parameters: &'a [u32],
    pub(super) grid: [u32; 3],
    pub(super) options: &'a Options,
    pub(super) banks: Banks,
    /// Neighbouring lanes that exchange registers.
    pub(super) neighbours: u32,
    pub(super) warps: usize,
    /// mbarriers of a block.
    pub(super) mbarriers: usize,
    /// Blocks of a unit: a cluster.
    pub(super) cluster: usize,
    pub(super) shared_grain: u32,
}

/// One unit's world.
pub(super) struct World<'a, 'm> {
    pub(super) set: &'a Setting<'a>,
    pub(super) unit: u32,
    pub(super) blocks: Vec<Block>,
    pub(super) memory: Memory<'m>,
    pub(super) tally: Tally,
    pub(super) cluster: Gathering,
    /// Values that were promised to be uniform, by point and visit.
    pub(super) uniform: HashMap<(usize, u32, u32), u32>,
    /// Per warp of the unit: the epochs of its async-proxy fences, and their lanes.
    pub(super) proxy_fences: Vec<Vec<(u32, u64)>>,
}

/// A block of the unit.
pub(super) struct Block {
    pub(super) shared: Shared,
    pub(super) mbarriers: Vec<Mbarrier>,
    pub(super) barrier: Gathering,
    pub(super) named: Vec<Gathering>,
    pub(super) flights: Vec<Flight>,
    pub(super) published: Published,
}

/// Warps that wait for each other.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Warps that came.
    pub(super) came: usize,
    /// Warps that are expected, as the first said.
    pub(super) expected: usize,
    pub(super) point: u32,
    pub(super) clock: Clock,
    /// What those that waited learn.
    pub(super) done: Clock,
    pub(super) generation: u32,
}

impl Setting<'_> {
    /// Entities of a unit: warps, the engines of the mbarriers, the earlier grid.
    pub(super) fn entities(&self) -> usize {
        self.cluster * (self.warps + self.mbarriers) + 1
    }

    /// The entity that stands for the grid before this one.
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

impl<'a> World<'a, '_> {
    pub(super) fn slot_name(&self, slot: Slot) -> String {
        self.set.program.slot_names.get(slot as usize).cloned().unwrap_or_default()
    }

    pub(super) fn flag_name(&self, flag: Flag) -> String {
        self.set.program.flag_names.get(flag as usize).cloned().unwrap_or_default()
    }

    pub(super) fn point(&self, number: u32) -> Point {
        fault::point(self.set.kernel, number)
    }

    /// The number of a block of the unit in its grid.
    pub(super) fn block_number(&self, block: usize) -> u32 {
        self.unit * self.set.cluster as u32 + block as u32
    }

    pub(super) fn party(&self, block: usize) -> Party {
        Party { unit: self.unit, block: self.block_number(block) }
    }

    /// An array's name and the bytes of its word.
    fn array(&self, array: Array) -> (&'a str, u64) {
        let kernel = self.set.kernel;
        match array {
            Array::Global(id) => {
                let buffer = &kernel.buffers[id as usize];
                (&buffer.name, u64::from(buffer.word.bytes()))
            }
            Array::Shared(id) => {
                let block = &kernel.shared[id as usize];
                (&block.name, u64::from(block.word.bytes()))
            }
        }
    }

    /// The place at a byte of a buffer, or of shared memory.
    pub(super) fn place(&self, array: Array, byte: u64) -> Place {
        let (name, word) = self.array(array);
        let start = match array {
            Array::Global(_) => 0,
            Array::Shared(id) => u64::from(self.set.map.blocks[id as usize]),
        };
        Place { array: name.to_owned(), word: byte.saturating_sub(start) / word }
    }

    /// Who made an access.
    pub(super) fn other(&self, record: &Record, wrote: bool) -> Other {
        let (warps, cluster) = (self.set.warps, self.set.cluster);
        let entity = usize::from(record.entity);
        let who = if entity < warps * cluster {
            let block = record.unit * cluster as u32 + (entity / warps) as u32;
            let [x, y, z] = self.set.coordinates(block);
            let lane = match record.lane {
                ALL_LANES => "several lanes".to_owned(),
                lane => format!("lane {lane}"),
            };
            format!("block ({x}, {y}, {z}) warp {} {lane}", entity % warps)
        } else {
            let mbarrier = (entity - warps * cluster) % self.set.mbarriers.max(1);
            format!("the copy that {} counts", self.mbarrier_name(mbarrier))
        };
        Other { point: self.point(record.point), wrote, who }
    }

    /// `name[index]` of an mbarrier of a block, by its flat number.
    pub(super) fn mbarrier_name(&self, number: usize) -> String {
        let mut rest = number;
        for array in &self.set.kernel.barriers {
            if rest < array.len as usize {
                return format!("{}[{rest}]", array.name);
            }
            rest -= array.len as usize;
        }
        format!("mbarrier {number}")
    }

    /// What a clash means.
    pub(super) fn clash(&self, clash: Clash, array: Array, byte: u64, writes: bool) -> FaultKind {
        let place = self.place(array, byte);
        match clash {
            Clash::Poison => FaultKind::PoisonMemory(place),
            Clash::Overwritten(by) => {
                let by = self.set.kernel.shared.get(usize::from(by));
                FaultKind::Overwritten(place, by.map_or(String::new(), |block| block.name.clone()))
            }
            Clash::InFlight(by) => {
                FaultKind::InFlight { what: place.to_string(), by: self.point(by) }
            }
            Clash::BeingRead(by) => {
                FaultKind::BeingRead { what: place.to_string(), by: self.point(by) }
            }
            Clash::Write(record) => {
                FaultKind::Race { place, writes, other: self.other(&record, true) }
            }
            Clash::Read(record) => {
                FaultKind::Race { place, writes, other: self.other(&record, false) }
            }
        }
    }
}
