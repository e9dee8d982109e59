//! Shared memory of one block: its bytes, and for each cell the last write and the last reads.
//!
//! A *cell* is the narrowest access of the kernel (1 to 4 bytes), so that every access covers whole
//! cells and races are found exactly. A cell that was never written is poison.

use super::clock::{ALL_LANES, AccessRecord, Observer};
use crate::ir::{Kernel, SharedMap};

/// Shared memory of one block.
#[derive(Debug)]
pub(super) struct SharedMemory {
    pub(super) bytes: Vec<u8>,
    /// log2 of a cell's bytes.
    cell_log2: u32,
    writes: Vec<AccessRecord>,
    /// The shared block through which the cell was written.
    owners: Vec<u16>,
    /// Per entity, the last read of each cell; empty until the entity first reads.
    reads: Vec<Vec<LastRead>>,
    /// Asynchronous operations in flight on each cell: [`WRITING`], or the number of readers.
    busy: Vec<u16>,
    /// The program point that started the last of them.
    started: Vec<u32>,
    /// Start and length in bytes of each shared block.
    pub(super) blocks: Vec<(u32, u32)>,
}

/// An asynchronous operation is writing the cell.
const WRITING: u16 = 0x8000;

#[derive(Clone, Copy, Debug, Default)]
struct LastRead {
    epoch: u32,
    point: u32,
    lane: u8,
}

/// Why an access is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessConflict {
    /// The memory was never written.
    Poison,
    /// The last write was through this other shared block.
    Overwritten(u16),
    /// An asynchronous operation, started at this point, is writing it.
    InFlight(u32),
    /// An asynchronous operation, started at this point, is reading it.
    BeingRead(u32),
    /// An unordered write.
    Write(AccessRecord),
    /// An unordered read.
    Read(AccessRecord),
}

impl SharedMemory {
    pub(super) fn new(kernel: &Kernel, map: &SharedMap, cell_log2: u32, entities: usize) -> Self {
        let starts = map.blocks.iter().zip(&kernel.shared);
        let blocks = starts.map(|(&start, block)| (start, block.bytes())).collect();
        Self { blocks, ..Self::of_bytes(map.bytes, cell_log2, entities) }
    }

    /// Memory of one array, of so many bytes.
    pub(super) fn of_bytes(bytes: u32, cell_log2: u32, entities: usize) -> Self {
        let cells = (bytes >> cell_log2) as usize + 1;
        Self {
            bytes: vec![0; bytes as usize],
            cell_log2,
            writes: vec![AccessRecord::default(); cells],
            owners: vec![0; cells],
            reads: vec![Vec::new(); entities],
            busy: vec![0; cells],
            started: vec![0; cells],
            blocks: vec![(0, bytes)],
        }
    }

    fn cells(&self, start: u32, bytes: u32) -> std::ops::Range<usize> {
        (start >> self.cell_log2) as usize..((start + bytes).div_ceil(1 << self.cell_log2)) as usize
    }

    /// Checks and records a read of bytes by a lane, through a shared block.
    pub(super) fn read(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
        owner: u16,
    ) -> Result<(), AccessConflict> {
        let cells = self.cells(start, bytes);
        for cell in cells.clone() {
            if self.busy[cell] & WRITING != 0 {
                return Err(AccessConflict::InFlight(self.started[cell]));
            }
            let written = &self.writes[cell];
            if written.epoch == 0 {
                return Err(AccessConflict::Poison);
            }
            if self.owners[cell] != owner {
                return Err(AccessConflict::Overwritten(self.owners[cell]));
            }
            if !who.follows(lane, written) {
                return Err(AccessConflict::Write(*written));
            }
        }
        let all = self.writes.len();
        let reads = &mut self.reads[usize::from(who.entity)];
        if reads.is_empty() {
            reads.resize(all, LastRead::default());
        }
        for read in &mut reads[cells] {
            let shared = read.epoch == who.epoch && read.lane != lane;
            let lane = if shared { ALL_LANES } else { lane };
            *read = LastRead { epoch: who.epoch, point: who.point, lane };
        }
        Ok(())
    }

    /// Checks and records a write of bytes by a lane, through a shared block.
    pub(super) fn write(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
        owner: u16,
    ) -> Result<(), AccessConflict> {
        for cell in self.cells(start, bytes) {
            self.may_write(who, lane, cell)?;
            self.writes[cell] = who.record(lane);
            self.owners[cell] = owner;
        }
        Ok(())
    }

    fn may_write(&self, who: &Observer<'_>, lane: u8, cell: usize) -> Result<(), AccessConflict> {
        match self.busy[cell] {
            0 => {}
            busy if busy & WRITING != 0 => {
                return Err(AccessConflict::InFlight(self.started[cell]));
            }
            _ => return Err(AccessConflict::BeingRead(self.started[cell])),
        }
        if !who.follows(lane, &self.writes[cell]) {
            return Err(AccessConflict::Write(self.writes[cell]));
        }
        self.may_replace(who, lane, cell)
    }

    /// Whether all reads of a cell are before what the lane does now.
    fn may_replace(&self, who: &Observer<'_>, lane: u8, cell: usize) -> Result<(), AccessConflict> {
        for (entity, reads) in self.reads.iter().enumerate() {
            let Some(read) = reads.get(cell) else { continue };
            let record = AccessRecord {
                epoch: read.epoch,
                unit: who.unit,
                point: read.point,
                entity: entity as u16,
                lane: read.lane,
                atomic: false,
            };
            if !who.follows(lane, &record) {
                return Err(AccessConflict::Read(record));
            }
        }
        Ok(())
    }

    /// Checks and records an atomic access of a word; atomic accesses do not race with each other.
    pub(super) fn atomic(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
        (owner, writes): (u16, bool),
    ) -> Result<(), AccessConflict> {
        for cell in self.cells(start, bytes) {
            let last = self.writes[cell];
            if last.epoch == 0 {
                return Err(AccessConflict::Poison);
            }
            if last.atomic {
                if writes {
                    self.writes[cell] = AccessRecord { atomic: true, ..who.record(lane) };
                }
                continue;
            }
            if writes {
                self.may_write(who, lane, cell)?;
                self.writes[cell] = AccessRecord { atomic: true, ..who.record(lane) };
                self.owners[cell] = owner;
            } else if !who.follows(lane, &last) {
                return Err(AccessConflict::Write(last));
            }
        }
        Ok(())
    }

    /// Checks and starts an asynchronous write of the bytes.
    pub(super) fn start_write(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
    ) -> Result<(), AccessConflict> {
        for cell in self.cells(start, bytes) {
            self.may_write(who, lane, cell)?;
            self.busy[cell] |= WRITING;
            self.started[cell] = who.point;
        }
        Ok(())
    }

    /// Starts an asynchronous write that comes after the writes before it, in flight or not, as the hardware orders them.
    pub(super) fn start_next_write(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
    ) -> Result<(), AccessConflict> {
        for cell in self.cells(start, bytes) {
            if self.busy[cell] & !WRITING != 0 {
                return Err(AccessConflict::BeingRead(self.started[cell]));
            }
            self.may_replace(who, lane, cell)?;
            self.busy[cell] |= WRITING;
            self.started[cell] = who.point;
        }
        Ok(())
    }

    /// Another asynchronous write of the bytes is in flight, which was started before the last one completed.
    pub(super) fn resume_write(&mut self, (start, bytes): (u32, u32)) {
        for cell in self.cells(start, bytes) {
            self.busy[cell] |= WRITING;
        }
    }

    /// Starts an asynchronous read that comes after the write in flight, as the hardware orders them.
    pub(super) fn start_later_read(&mut self, who: &Observer<'_>, (start, bytes): (u32, u32)) {
        for cell in self.cells(start, bytes) {
            self.busy[cell] += 1;
            self.started[cell] = who.point;
        }
    }

    /// Completes an asynchronous write, with this record as its access.
    pub(super) fn land(&mut self, start: u32, data: &[u8], record: AccessRecord, owner: u16) {
        for cell in self.cells(start, data.len() as u32) {
            self.busy[cell] &= !WRITING;
            self.writes[cell] = record;
            self.owners[cell] = owner;
        }
        self.bytes[start as usize..start as usize + data.len()].copy_from_slice(data);
    }

    /// Checks and starts an asynchronous read of the bytes.
    pub(super) fn start_read(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        bytes: (u32, u32),
        owner: u16,
    ) -> Result<(), AccessConflict> {
        self.read(who, lane, bytes, owner)?;
        for cell in self.cells(bytes.0, bytes.1) {
            self.busy[cell] += 1;
            self.started[cell] = who.point;
        }
        Ok(())
    }

    /// Completes an asynchronous read, as a read by the lane.
    pub(super) fn end_read(&mut self, who: &Observer<'_>, lane: u8, (start, bytes): (u32, u32)) {
        let (cells, all) = (self.cells(start, bytes), self.writes.len());
        let reads = &mut self.reads[usize::from(who.entity)];
        if reads.is_empty() {
            reads.resize(all, LastRead::default());
        }
        for cell in cells {
            self.busy[cell] = self.busy[cell].saturating_sub(1);
            reads[cell] = LastRead { epoch: who.epoch, point: who.point, lane };
        }
    }

    /// The last write of each cell of the bytes.
    pub(super) fn written(&self, start: u32, bytes: u32) -> &[AccessRecord] {
        &self.writes[self.cells(start, bytes)]
    }
}
