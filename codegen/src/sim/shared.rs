//! Shared memory of one block: its bytes, and for each cell who wrote and who read it last.
//!
//! A *cell* is the narrowest access of the kernel (1 to 4 bytes), so that every access covers whole
//! cells and its order is judged exactly. A cell without a writer is poison.

use super::clock::{ALL_LANES, Observer, Record};
use crate::ir::{Kernel, SharedMap};

/// Data of one block.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bytes: Vec<u8>,
    /// log2 of a cell's bytes.
    grain: u32,
    writes: Vec<Record>,
    /// The shared block through which the cell was written.
    owners: Vec<u16>,
    /// Per entity, when it last read: made when it first reads.
    reads: Vec<Vec<Read>>,
    /// Asynchronous operations under way: [`WRITING`], or a number of readers.
    busy: Vec<u8>,
    /// Where the last of them was started.
    started: Vec<u32>,
    /// Start and length in bytes of each shared block.
    pub(super) blocks: Vec<(u32, u32)>,
}

/// A cell is being written asynchronously.
const WRITING: u8 = 0x80;

#[derive(Clone, Copy, Debug, Default)]
struct Read {
    epoch: u32,
    point: u32,
    lane: u8,
}

/// Why an access may not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clash {
    /// Nothing wrote it.
    Poison,
    /// Written through this other block since.
    Overwritten(u16),
    /// An asynchronous operation, started at this point, is writing it.
    InFlight(u32),
    /// An asynchronous operation, started at this point, is reading it.
    BeingRead(u32),
    /// An unordered write.
    Write(Record),
    /// An unordered read.
    Read(Record),
}

impl Shared {
    pub(super) fn new(kernel: &Kernel, map: &SharedMap, grain: u32, entities: usize) -> Self {
        let cells = (map.bytes >> grain) as usize + 1;
        Self {
            bytes: vec![0; map.bytes as usize],
            grain,
            writes: vec![Record::default(); cells],
            owners: vec![0; cells],
            reads: vec![Vec::new(); entities],
            busy: vec![0; cells],
            started: vec![0; cells],
            blocks: map
                .blocks
                .iter()
                .zip(&kernel.shared)
                .map(|(&start, block)| (start, block.bytes()))
                .collect(),
        }
    }

    fn cells(&self, start: u32, bytes: u32) -> std::ops::Range<usize> {
        (start >> self.grain) as usize..((start + bytes).div_ceil(1 << self.grain)) as usize
    }

    /// Judges and notes a read of bytes by a lane, through a shared block.
    pub(super) fn read(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
        owner: u16,
    ) -> Result<(), Clash> {
        let cells = self.cells(start, bytes);
        for cell in cells.clone() {
            if self.busy[cell] & WRITING != 0 {
                return Err(Clash::InFlight(self.started[cell]));
            }
            let written = &self.writes[cell];
            if written.epoch == 0 {
                return Err(Clash::Poison);
            }
            if self.owners[cell] != owner {
                return Err(Clash::Overwritten(self.owners[cell]));
            }
            if !who.follows(lane, written) {
                return Err(Clash::Write(*written));
            }
        }
        let all = self.writes.len();
        let reads = &mut self.reads[usize::from(who.entity)];
        if reads.is_empty() {
            reads.resize(all, Read::default());
        }
        for read in &mut reads[cells] {
            let shared = read.epoch == who.epoch && read.lane != lane;
            let lane = if shared { ALL_LANES } else { lane };
            *read = Read { epoch: who.epoch, point: who.point, lane };
        }
        Ok(())
    }

    /// Judges and notes a write of bytes by a lane, through a shared block.
    pub(super) fn write(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
        owner: u16,
    ) -> Result<(), Clash> {
        for cell in self.cells(start, bytes) {
            self.may_write(who, lane, cell)?;
            self.writes[cell] = who.record(lane);
            self.owners[cell] = owner;
        }
        Ok(())
    }

    fn may_write(&self, who: &Observer<'_>, lane: u8, cell: usize) -> Result<(), Clash> {
        match self.busy[cell] {
            0 => {}
            busy if busy & WRITING != 0 => return Err(Clash::InFlight(self.started[cell])),
            _ => return Err(Clash::BeingRead(self.started[cell])),
        }
        if !who.follows(lane, &self.writes[cell]) {
            return Err(Clash::Write(self.writes[cell]));
        }
        for (entity, reads) in self.reads.iter().enumerate() {
            let Some(read) = reads.get(cell) else { continue };
            let record = Record {
                epoch: read.epoch,
                unit: who.unit,
                point: read.point,
                entity: entity as u16,
                lane: read.lane,
                atomic: false,
            };
            if !who.follows(lane, &record) {
                return Err(Clash::Read(record));
            }
        }
        Ok(())
    }

    /// Judges a read and write of a word by an atomic operation, which is ordered with other ones.
    pub(super) fn atomic(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
        (owner, writes): (u16, bool),
    ) -> Result<(), Clash> {
        for cell in self.cells(start, bytes) {
            let last = self.writes[cell];
            if last.epoch == 0 {
                return Err(Clash::Poison);
            }
            if last.atomic {
                if writes {
                    self.writes[cell] = Record { atomic: true, ..who.record(lane) };
                }
                continue;
            }
            if writes {
                self.may_write(who, lane, cell)?;
                self.writes[cell] = Record { atomic: true, ..who.record(lane) };
                self.owners[cell] = owner;
            } else if !who.follows(lane, &last) {
                return Err(Clash::Write(last));
            }
        }
        Ok(())
    }

    /// An asynchronous write of the bytes starts: it must be free to write from now on.
    pub(super) fn start_write(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        (start, bytes): (u32, u32),
    ) -> Result<(), Clash> {
        for cell in self.cells(start, bytes) {
            self.may_write(who, lane, cell)?;
            self.busy[cell] |= WRITING;
            self.started[cell] = who.point;
        }
        Ok(())
    }

    /// The write lands, as an access of this record.
    pub(super) fn land(&mut self, start: u32, data: &[u8], record: Record, owner: u16) {
        for cell in self.cells(start, data.len() as u32) {
            self.busy[cell] &= !WRITING;
            self.writes[cell] = record;
            self.owners[cell] = owner;
        }
        self.bytes[start as usize..start as usize + data.len()].copy_from_slice(data);
    }

    /// An asynchronous read of the bytes starts.
    pub(super) fn start_read(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        bytes: (u32, u32),
        owner: u16,
    ) -> Result<(), Clash> {
        self.read(who, lane, bytes, owner)?;
        for cell in self.cells(bytes.0, bytes.1) {
            self.busy[cell] += 1;
            self.started[cell] = who.point;
        }
        Ok(())
    }

    /// It is done, which the lane now knows.
    pub(super) fn end_read(&mut self, who: &Observer<'_>, lane: u8, (start, bytes): (u32, u32)) {
        for cell in self.cells(start, bytes) {
            self.busy[cell] = self.busy[cell].saturating_sub(1);
            if let Some(read) = self.reads[usize::from(who.entity)].get_mut(cell) {
                *read = Read { epoch: who.epoch, point: who.point, lane };
            }
        }
    }

    /// The last writes of the bytes.
    pub(super) fn written(&self, start: u32, bytes: u32) -> &[Record] {
        &self.writes[self.cells(start, bytes)]
    }
}
