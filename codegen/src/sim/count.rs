//! What a run cost: the numbers by which a schedule is judged without hardware.

use std::fmt;

use super::Class;
use super::fault::point;
use crate::ir::Kernel;

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
    pub instructions: Vec<(Class, u64)>,
    /// Bytes of global loads and copies that a block had outstanding at most, if its warps run
    /// side by side.
    pub bytes_in_flight: u64,
    /// Accesses to memory, by program point.
    pub accesses: Vec<Access>,
}

/// The accesses of one program point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number, operation and comment of the statement.
    pub point: String,
    /// Warp instructions.
    pub runs: u64,
    /// Bytes that lanes asked for.
    pub bytes: u64,
    /// Global memory: sectors of 32 bytes that were touched, and the fewest that hold the bytes.
    pub sectors: Option<[u64; 2]>,
    /// Shared memory: rounds of all banks that were needed, and the fewest that move the bytes.
    pub rounds: Option<[u64; 2]>,
}

impl Report {
    /// Warp instructions of a class.
    pub fn count(&self, class: Class) -> u64 {
        self.instructions.iter().find(|(of, _)| *of == class).map_or(0, |(_, count)| *count)
    }

    /// All warp instructions.
    pub fn instructions(&self) -> u64 {
        self.instructions.iter().map(|(_, count)| count).sum()
    }

    /// Rounds of shared memory beyond the fewest: bank conflicts.
    pub fn conflicts(&self) -> u64 {
        self.accesses
            .iter()
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
        writeln!(f, "shared memory: {} rounds lost to bank conflicts", self.conflicts())?;
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

/// Counts while they are made.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) classes: [u64; Class::ALL.len()],
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

    /// One warp instruction that reads or writes `width` bytes of global memory at each byte address.
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

    /// One warp instruction on shared memory. A round serves one 4-byte word of each bank to any
    /// number of lanes. Lanes are served in parts of the warp that would fill all banks once, by
    /// their numbers, whichever of them take part (AMD, Composable Kernel's documentation, "LDS bank
    /// conflicts": 16 bytes are written by lanes 0 to 7, then 8 to 15, and so on).
    pub(super) fn shared(
        &mut self,
        point: u32,
        width: u32,
        banks: u32,
        bytes: impl Iterator<Item = (usize, u32)>,
    ) {
        let per_lane = width.div_ceil(4);
        let together = (banks / per_lane).max(1) as usize;
        let mut starts = [(0, 0u32); 64];
        let mut count = 0;
        for (lane, byte) in bytes {
            starts[count] = (lane / together, byte / 4);
            count += 1;
        }
        let point = &mut self.points[point as usize];
        for lanes in starts[..count].chunk_by(|(one, _), (next, _)| one == next) {
            point.rounds[0] += u64::from(rounds(lanes, per_lane, banks));
            point.rounds[1] += 1;
        }
        point.runs += 1;
        point.bytes += count as u64 * u64::from(width);
    }

    /// An asynchronous copy of a whole range.
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

    pub(super) fn accesses(&self, kernel: &Kernel) -> Vec<Access> {
        let numbered = self.points.iter().enumerate().filter(|(_, tally)| tally.runs > 0);
        numbered
            .map(|(number, tally)| Access {
                point: point(kernel, number as u32).to_string(),
                runs: tally.runs,
                bytes: tally.bytes,
                sectors: (tally.sectors[0] > 0).then_some(tally.sectors),
                rounds: (tally.rounds[0] > 0).then_some(tally.rounds),
            })
            .collect()
    }
}

/// Rounds that lanes need whose words start there: the most distinct words in one bank.
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
            tally.shared(0, width, 32, lanes(stride));
            assert_eq!(tally.points[0].rounds, [took, least], "width {width} stride {stride}");
        }
        // Of lanes that are served together every fourth, all in the same banks.
        let mut tally = Tally::new(1);
        tally.shared(0, 16, 32, (0..32).step_by(4).map(|lane| (lane, 128 * lane as u32)));
        assert_eq!(tally.points[0].rounds, [8, 4]);
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
