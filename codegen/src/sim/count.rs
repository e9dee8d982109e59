//! Counts of a run: instructions, bytes, sectors and bank conflicts.

use std::fmt;

use super::InstructionClass;
use super::fault::{loaded, point};
use crate::ir::{Kernel, LOOKUP_TABLE};
use crate::target::Gpu;

/// Counts of a run, over all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kernel.
    pub kernel: String,
    /// Its target.
    pub target: &'static str,
    /// Blocks of the grid.
    pub blocks: u64,
    /// Warps of a block.
    pub warps: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Warp instructions by class.
    pub instructions: Vec<(InstructionClass, u64)>,
    /// The most bytes of global loads and copies that a block has in flight, if its warps run in
    /// parallel.
    pub bytes_in_flight: u64,
    /// Accesses to memory, by program point.
    pub accesses: Vec<AccessCount>,
}

/// The accesses of one program point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessCount {
    /// Number, operation and comment of the statement.
    pub point: String,
    /// Warp instructions.
    pub runs: u64,
    /// Bytes that lanes asked for.
    pub bytes: u64,
    /// Global memory: the 32-byte sectors that were accessed, and the fewest that hold the bytes.
    pub sectors: Option<[u64; 2]>,
    /// Shared memory: the rounds that the accesses took, and the fewest possible: one for each part
    /// of a warp that is served together.
    pub rounds: Option<[u64; 2]>,
    /// Whether the access is a lookup by code in a table of values: no layout of the table avoids
    /// bank conflicts.
    pub table_lookup: bool,
}

impl Report {
    /// Warp instructions of a class.
    pub fn count(&self, class: InstructionClass) -> u64 {
        self.instructions.iter().find(|(of, _)| *of == class).map_or(0, |(_, count)| *count)
    }

    /// All warp instructions.
    pub fn instructions(&self) -> u64 {
        self.instructions.iter().map(|(_, count)| count).sum()
    }

    /// Bank conflicts: rounds of shared memory beyond the fewest possible. Table lookups, whose
    /// addresses depend on the codes, are not counted.
    pub fn conflicts(&self) -> u64 {
        self.accesses
            .iter()
            .filter(|access| !access.table_lookup)
            .filter_map(|access| access.rounds)
            .map(|[took, least]| took - least)
            .sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {} for {}", self.kernel, self.target)?;
        writeln!(
            f,
            "{} blocks of {} warps, {} bytes of shared memory a block",
            self.blocks, self.warps, self.shared_bytes
        )?;
        writeln!(f, "warp instructions: {}", self.instructions())?;
        for (class, count) in self.instructions.iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "  {:<16}{count:>10}", class.name())?;
        }
        writeln!(f, "bytes of global loads in flight: {} a block", self.bytes_in_flight)?;
        writeln!(f, "shared-memory bank conflicts: {} extra rounds", self.conflicts())?;
        writeln!(f, "accesses:       runs     bytes  32-byte sectors  bank rounds (least)")?;
        for access in &self.accesses {
            let pair = |pair: Option<[u64; 2]>| match pair {
                Some([took, least]) => format!("{took} ({least})"),
                None => "-".to_owned(),
            };
            writeln!(
                f,
                "{:>20}{:>10}{:>17}{:>13}  {}",
                access.runs,
                access.bytes,
                pair(access.sectors),
                pair(access.rounds),
                access.point
            )?;
        }
        Ok(())
    }
}

/// How a chip's shared memory serves the lanes of a warp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Banks {
    count: u32,
    /// For 16-byte reads: the position in the serving order of each four neighbours of 32 lanes.
    serving_order: [u8; 8],
}

impl Banks {
    pub(super) fn new(gpu: &Gpu) -> Self {
        let mut serving_order = [0; 8];
        for (position, four) in (0..).zip(gpu.wide_read_order) {
            serving_order[usize::from(four)] = position;
        }
        Self { count: gpu.banks, serving_order }
    }

    /// A lane's position in the serving order of 16-byte reads.
    fn served(&self, lane: usize) -> usize {
        lane / 32 * 32 + 4 * usize::from(self.serving_order[lane / 4 % 8]) + lane % 4
    }
}

/// The running counts of a unit.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) classes: [u64; InstructionClass::ALL.len()],
    pub(super) points: Vec<PointTally>,
    pub(super) bytes_in_flight: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PointTally {
    runs: u64,
    bytes: u64,
    sectors: [u64; 2],
    rounds: [u64; 2],
}

impl Tally {
    pub(super) fn new(points: usize) -> Self {
        Self { points: vec![PointTally::default(); points], ..Self::default() }
    }

    /// One warp instruction that reads or writes `width` bytes of global memory at each byte
    /// address.
    pub(super) fn global(&mut self, point: u32, width: u32, bytes: impl Iterator<Item = u64>) {
        let mut sectors = [0u64; 64];
        let mut count = 0;
        for byte in bytes {
            sectors[count] = byte / 32;
            count += 1;
        }
        let sectors = &mut sectors[..count];
        if !sectors.is_sorted() {
            sectors.sort_unstable();
        }
        let distinct = sectors.chunk_by(|a, b| a == b).count() as u64;
        let asked = count as u64 * u64::from(width);
        let point = &mut self.points[point as usize];
        point.runs += 1;
        point.bytes += asked;
        point.sectors[0] += distinct;
        point.sectors[1] += asked.div_ceil(32).min(distinct);
    }

    /// One warp instruction on shared memory.
    pub(super) fn shared(
        &mut self,
        point: u32,
        (width, reads): (u32, bool),
        banks: &Banks,
        bytes: impl Iterator<Item = (usize, u32)>,
    ) {
        let count = self.rounds(point, (width, reads), banks, bytes);
        let point = &mut self.points[point as usize];
        point.runs += 1;
        point.bytes += u64::from(count * width);
    }

    /// Adds the rounds of shared memory of a warp instruction, and returns the number of its lanes.
    /// A round serves one 4-byte word of each bank to any number of lanes. The warp is served in
    /// parts of as many lanes as fill all banks once, in the order of their numbers (or of
    /// [`Banks`]), whether all of these lanes take part or not.
    pub(super) fn rounds(
        &mut self,
        point: u32,
        (width, reads): (u32, bool),
        banks: &Banks,
        bytes: impl Iterator<Item = (usize, u32)>,
    ) -> u32 {
        let per_lane = width.div_ceil(4);
        let together = (banks.count / per_lane).max(1) as usize;
        let mut starts = [(0, 0u32); 64];
        let mut count = 0;
        for (lane, byte) in bytes {
            let position = if reads && width == 16 { banks.served(lane) } else { lane };
            starts[count] = (position / together, byte / 4);
            count += 1;
        }
        let starts = &mut starts[..count];
        starts.sort_by_key(|(part, _)| *part);
        let point = &mut self.points[point as usize];
        for lanes in starts.chunk_by(|(one, _), (next, _)| one == next) {
            point.rounds[0] += u64::from(rounds(lanes, per_lane, banks.count));
            point.rounds[1] += 1;
        }
        count as u32
    }

    /// Counts an asynchronous copy of a contiguous range.
    pub(super) fn range(&mut self, point: u32, bytes: u64) {
        let point = &mut self.points[point as usize];
        point.runs += 1;
        point.bytes += bytes;
        point.sectors = point.sectors.map(|sectors| sectors + bytes.div_ceil(32));
    }

    pub(super) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.classes.iter_mut().zip(other.classes) {
            *mine += theirs;
        }
        for (mine, theirs) in self.points.iter_mut().zip(&other.points) {
            mine.runs += theirs.runs;
            mine.bytes += theirs.bytes;
            for side in 0..2 {
                mine.sectors[side] += theirs.sectors[side];
                mine.rounds[side] += theirs.rounds[side];
            }
        }
        self.bytes_in_flight = self.bytes_in_flight.max(other.bytes_in_flight);
    }

    pub(super) fn accesses(&self, kernel: &Kernel) -> Vec<AccessCount> {
        let numbered = self.points.iter().enumerate().filter(|(_, tally)| tally.runs > 0);
        numbered
            .map(|(number, tally)| AccessCount {
                point: point(kernel, number as u32).to_string(),
                runs: tally.runs,
                bytes: tally.bytes,
                sectors: (tally.sectors[0] > 0).then_some(tally.sectors),
                rounds: (tally.rounds[0] > 0).then_some(tally.rounds),
                table_lookup: loaded(kernel, number as u32)
                    .is_some_and(|of| of.name == LOOKUP_TABLE),
            })
            .collect()
    }
}

/// Rounds for lanes whose accesses start at these words: the most distinct words in one bank.
fn rounds(lanes: &[(usize, u32)], per_lane: u32, banks: u32) -> u32 {
    let mut seen = [0u32; 64];
    let mut used = [0u8; 64];
    let mut words = [0u32; 64];
    let mut count = 0;
    for &(_, start) in lanes {
        for word in start..start + per_lane {
            words[count] = word;
            count += 1;
        }
    }
    let words = &mut words[..count];
    if !words.is_sorted() {
        words.sort_unstable();
    }
    for &word in words.iter() {
        let bank = (word % banks) as usize;
        // Sorted: a repeated word of a bank follows itself.
        if used[bank] == 0 || seen[bank] != word {
            (seen[bank], used[bank]) = (word, used[bank] + 1);
        }
    }
    u32::from(used.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANKS: Banks = Banks { count: 32, serving_order: [0, 1, 2, 3, 4, 5, 6, 7] };

    #[test]
    fn bank_rounds() {
        let lanes = |stride: u32| (0..32).map(move |lane| (lane as usize, lane * stride));
        for (width, stride, took, least) in [
            (4, 4, 1, 1),
            (4, 0, 1, 1),
            (4, 8, 2, 1),
            (4, 128, 32, 1),
            (4, 132, 1, 1),
            (16, 16, 4, 4),
            (16, 128, 32, 4),
            (16, 144, 4, 4),
            (8, 8, 2, 2),
            (2, 2, 1, 1),
        ] {
            let mut tally = Tally::new(1);
            tally.shared(0, (width, true), &BANKS, lanes(stride));
            assert_eq!(tally.points[0].rounds, [took, least], "width {width} stride {stride}");
        }
        // Every fourth lane takes part, and all use the same banks.
        let mut tally = Tally::new(1);
        let lanes = (0..32).step_by(4).map(|lane| (lane, 128 * lane as u32));
        tally.shared(0, (16, true), &BANKS, lanes);
        assert_eq!(tally.points[0].rounds, [8, 4]);
    }

    /// Lanes 0 to 3 and 20 to 23 read from the same banks: a chip that serves them together needs
    /// one more round for reads, and none for writes.
    #[test]
    fn bank_rounds_of_reads() {
        let lanes = || {
            [0, 1, 2, 3, 20, 21, 22, 23]
                .map(|lane| (lane, lane as u32 % 4 * 16 + 512 * (lane as u32 / 20)))
                .into_iter()
        };
        let crossed = Banks { serving_order: [0, 2, 4, 6, 3, 1, 7, 5], ..BANKS };
        for (banks, reads, rounds) in
            [(BANKS, true, [2, 2]), (crossed, true, [2, 1]), (crossed, false, [2, 2])]
        {
            let mut tally = Tally::new(1);
            tally.shared(0, (16, reads), &banks, lanes());
            assert_eq!(tally.points[0].rounds, rounds, "{banks:?}");
        }
        let gfx942 = crate::target::target("gfx942").unwrap().gpu.unwrap();
        assert_eq!(Banks::new(gfx942).serving_order, crossed.serving_order);
    }

    #[test]
    fn sectors() {
        for (width, stride, took, least) in
            [(16, 16, 16, 16), (4, 4, 4, 4), (4, 64, 32, 4), (2, 0, 1, 1), (16, 48, 32, 16)]
        {
            let mut tally = Tally::new(1);
            tally.global(0, width, (0..32).map(|lane| lane * stride));
            assert_eq!(tally.points[0].sectors, [took, least], "width {width} stride {stride}");
        }
    }
}
