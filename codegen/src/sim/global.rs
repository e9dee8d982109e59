//! Global memory of a launch: all blocks share the read-only buffers; stores to write-once buffers
//! are recorded and merged after the run; each access to a workspace is checked for races, like
//! those to shared memory, across blocks.

use super::argument::Contents;
use super::clock::{AccessRecord, Clock, Observer};
use super::shared::AccessConflict;
use crate::ir::{Access, Scope};

/// A store to a write-once buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputStore {
    pub(super) buffer: u32,
    pub(super) byte: u64,
    pub(super) data: [u8; 16],
    pub(super) bytes: u8,
    pub(super) lane: u8,
    pub(super) warp: u16,
    pub(super) block: u32,
    pub(super) point: u32,
}

/// Global memory as the blocks of one unit see it.
pub(super) struct GlobalMemory<'a> {
    pub(super) access: &'a [Access],
    pub(super) contents: &'a [Contents],
    pub(super) workspaces: &'a mut [Option<Workspace>],
    pub(super) stored: Vec<OutputStore>,
}

/// A buffer that blocks read and write.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) contents: Contents,
    cell_log2: u32,
    writes: Vec<AccessRecord>,
    /// Accesses since the last write.
    reads: Vec<Vec<AccessRecord>>,
    /// The clocks that releases published, by word.
    pub(super) published: ReleasedClocks,
}

impl Workspace {
    pub(super) fn new(contents: Contents, cell_log2: u32) -> Self {
        let cells = (contents.bytes.len() >> cell_log2) + 1;
        Self {
            contents,
            cell_log2,
            writes: vec![AccessRecord::default(); cells],
            reads: vec![Vec::new(); cells],
            published: ReleasedClocks::default(),
        }
    }

    fn cells(&self, start: u64, bytes: u64) -> std::ops::Range<usize> {
        (start >> self.cell_log2) as usize..(start + bytes).div_ceil(1 << self.cell_log2) as usize
    }

    pub(super) fn read(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        start: u64,
        bytes: u64,
    ) -> Result<(), AccessConflict> {
        if !self.contents.known(start as usize, bytes as usize) {
            return Err(AccessConflict::Poison);
        }
        for cell in self.cells(start, bytes) {
            let written = self.writes[cell];
            if !who.follows(lane, &written) {
                return Err(AccessConflict::Write(written));
            }
            let record = who.record(lane);
            let reads = &mut self.reads[cell];
            match reads.iter_mut().find(|old| {
                old.unit == record.unit && old.entity == record.entity && old.lane == lane
            }) {
                Some(old) => *old = record,
                None => reads.push(record),
            }
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        start: u64,
        data: &[u8],
    ) -> Result<(), AccessConflict> {
        for cell in self.cells(start, data.len() as u64) {
            self.may_write(who, lane, cell)?;
            self.writes[cell] = who.record(lane);
            self.reads[cell].clear();
        }
        self.contents.set(start as usize, data);
        Ok(())
    }

    fn may_write(&self, who: &Observer<'_>, lane: u8, cell: usize) -> Result<(), AccessConflict> {
        if !who.follows(lane, &self.writes[cell]) {
            return Err(AccessConflict::Write(self.writes[cell]));
        }
        match self.reads[cell].iter().find(|read| !read.atomic && !who.follows(lane, read)) {
            Some(read) => Err(AccessConflict::Read(*read)),
            None => Ok(()),
        }
    }

    /// Checks an atomic access of a word.
    pub(super) fn atomic(
        &mut self,
        who: &Observer<'_>,
        lane: u8,
        start: u64,
        writes: bool,
    ) -> Result<(), AccessConflict> {
        if !self.contents.known(start as usize, 4) {
            return Err(AccessConflict::Poison);
        }
        for cell in self.cells(start, 4) {
            if !self.writes[cell].atomic {
                if writes {
                    self.may_write(who, lane, cell)?;
                } else if !who.follows(lane, &self.writes[cell]) {
                    return Err(AccessConflict::Write(self.writes[cell]));
                }
            }
            if writes {
                self.writes[cell] = AccessRecord { atomic: true, ..who.record(lane) };
                self.reads[cell].clear();
            }
        }
        Ok(())
    }
}

/// The clocks that releases published on the words of one array.
#[derive(Debug, Default)]
pub(super) struct ReleasedClocks {
    entries: Vec<ReleasedClock>,
}

#[derive(Debug)]
struct ReleasedClock {
    word: u64,
    scope: Scope,
    unit: u32,
    block: u32,
    clock: Clock,
}

/// The block that releases or acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agent {
    pub(super) unit: u32,
    pub(super) block: u32,
}

impl ReleasedClocks {
    /// Adds the clock of a release that writes the word.
    pub(super) fn release(&mut self, word: u64, by: Agent, scope: Scope, clock: &Clock) {
        let same = |entry: &&mut ReleasedClock| {
            (entry.word, entry.scope, entry.unit, entry.block) == (word, scope, by.unit, by.block)
        };
        match self.entries.iter_mut().find(same) {
            Some(entry) => entry.clock.join(clock),
            None => self.entries.push(ReleasedClock {
                word,
                scope,
                unit: by.unit,
                block: by.block,
                clock: clock.clone(),
            }),
        }
    }

    /// Joins into `clock` what an acquire that reads the word sees.
    pub(super) fn acquire(&self, word: u64, by: Agent, scope: Scope, clock: &mut Clock) {
        for entry in self.entries.iter().filter(|entry| entry.word == word) {
            let needed = match entry {
                same if (same.unit, same.block) == (by.unit, by.block) => Scope::Block,
                near if near.unit == by.unit => Scope::Cluster,
                _ => Scope::Device,
            };
            if rank(entry.scope) < rank(needed) || rank(scope) < rank(needed) {
                continue;
            }
            if entry.unit == by.unit {
                clock.join(&entry.clock);
            } else {
                clock.join_foreign(by.unit, entry.unit, &entry.clock);
            }
        }
    }
}

fn rank(scope: Scope) -> u32 {
    match scope {
        Scope::Block => 0,
        Scope::Cluster => 1,
        Scope::Device => 2,
    }
}
