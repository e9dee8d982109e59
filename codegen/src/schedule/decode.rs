//! Decode products: y[M <= 16, N] = x w^T, bound by reading the weights once.
//!
//! In: a [`Problem`] and a [`DecodeTile`]. Out: a kernel, not yet verified.
//!
//! The weights are the A operand of the product, decoded in registers, so that y^T comes out with
//! tokens as columns. A block owns `row_tiles` tiles of 16 rows; its warps split K by whole groups
//! and add up in shared memory. A warp keeps one group's weights in flight: each piece is loaded
//! again, for the next group, as soon as it is decoded. x comes in 16-byte copies through a ring
//! of each warp's own, so that nobody waits for another warp before the end. Scales multiply the
//! sums of a group in f32; zero points go into the constants with which decoding ends.
//!
//! With `splits` > 1 the blocks of one row range split K too: each leaves its sums in a slot of its
//! own, and the last to arrive adds the slots in order.

mod epilogue;
mod ring;

use crate::ir::{
    Addend, Address, Binary, Builder, Cache, Extent, Kernel, Launch, Op, Operand, Reg, Side,
    Special, Type, Uniformity, Width,
};
use crate::target::Feature;

use super::dequantise::{Zeros, dequantise, takes_zeros, writable};
use super::io::Io;
use super::problem::{Problem, Unscheduled};
use ring::Ring;

/// The free choices of a decode kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeTile {
    /// Rows of x at most: 1, 2, 4, 8 or 16.
    pub tokens: u32,
    /// Tiles of 16 rows of w a block.
    pub row_tiles: u32,
    /// Warps a block.
    pub warps: u32,
    /// Blocks that share a multiprocessor; bounds the registers.
    pub min_blocks: u32,
    /// Groups of x in a warp's ring: a power of two from 2 on.
    pub stages: u32,
    /// Blocks that split K.
    pub splits: u32,
    /// May start before the kernel before it has ended.
    pub programmatic: bool,
}

impl DecodeTile {
    /// The tile for a number of tokens, from measurements on an H200
    /// (docs/add-a-schedule.md).
    ///
    /// # Errors
    /// If there are more tokens than this schedule takes.
    pub fn choose(problem: &Problem, tokens: u32) -> Result<Self, Unscheduled> {
        if !(1..=16).contains(&tokens) {
            let rule = "expected 1 to 16 in a decode product";
            return Err(Unscheduled::Shape { what: "M", value: tokens, rule });
        }
        let target = problem.target();
        let unfit = || Unscheduled::Tile(format!("no block of a decode product fits {target}"));
        let gpu = target.gpu.ok_or_else(unfit)?;
        // Few rows: a tile a block, so that all processors have work. Many tokens: x, which every
        // block reads, is read by fewer blocks.
        let row_tiles = match (problem.row_tiles(), tokens) {
            (..=256, ..=4) => 1,
            (512.., 5..=8) => 4,
            _ => 2,
        };
        let of = |warps, min_blocks| Self {
            tokens: tokens.next_power_of_two(),
            row_tiles,
            warps,
            min_blocks,
            stages: 2,
            splits: 1,
            programmatic: target.has(Feature::GridDependency),
        };
        let fits = |tile: &Self| {
            let threads = tile.warps * gpu.warp * tile.min_blocks;
            let bytes = tile.shared_bytes(problem);
            let registers = (gpu.registers / threads.max(1)) & !7;
            threads <= gpu.processor_threads
                && bytes <= gpu.block_shared
                && (bytes + gpu.reserved_shared) * tile.min_blocks <= gpu.processor_shared
                && registers >= tile.registers(problem)
        };
        // As many warps as there are loads to keep in flight; of equals, larger blocks.
        // A multiprocessor deals a block's warps out to its four parts, which share no registers.
        let warps = [16, 12, 8, 4, 2, 1].into_iter().filter(|warps| *warps <= problem.groups());
        let tiles = warps.flat_map(|warps| (1..=8).map(move |blocks| of(warps, blocks)));
        let resident = |tile: &Self| (tile.warps * tile.min_blocks).min(32);
        let best = tiles
            .filter(fits)
            .reduce(|best, tile| if resident(&tile) > resident(&best) { tile } else { best });
        best.ok_or_else(unfit)
    }

    /// Registers of a thread without which the assembler spills, as it reported them.
    fn registers(&self, problem: &Problem) -> u32 {
        let zeros = if problem.zero { 8 } else { 0 };
        let more_tokens = self.tokens.div_ceil(TOKEN_TILE).saturating_sub(1) * 40;
        let more_rows = self.row_tiles.saturating_sub(2) * 32;
        64 + zeros + more_tokens + more_rows
    }

    /// Shared memory of a block in bytes: the rings, or the sums that later lie over them.
    fn shared_bytes(&self, problem: &Problem) -> u32 {
        let ring = self.warps * self.stages * self.tokens * problem.group * 2;
        ring.max(self.warps * self.tokens * epilogue::pitch(self.row_tiles) * 4) + problem.group * 2
    }

    fn check(&self, problem: &Problem) -> Result<(), Unscheduled> {
        let rules = [
            (matches!(self.tokens, 1 | 2 | 4 | 8 | 16), "tokens are 1, 2, 4, 8 or 16"),
            ((1..=8).contains(&self.row_tiles), "a block has 1 to 8 tiles of rows"),
            (self.warps > 0 && self.min_blocks > 0, "there is at least a warp and a block"),
            (problem.group.is_power_of_two(), "groups of a power of two columns"),
            (
                self.stages.is_power_of_two() && (2..=16).contains(&self.stages),
                "stages are 2, 4, 8 or 16",
            ),
            (
                (1..=problem.groups()).contains(&self.splits),
                "K is split into at most as many parts as it has groups",
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Unscheduled::Tile(format!("{self:?}: {rule}"))),
            None => Ok(()),
        }
    }

    /// The free choices by name.
    pub(super) fn parameters(&self) -> Vec<(&'static str, u64)> {
        let Self { tokens, row_tiles, warps, min_blocks, stages, splits, programmatic } = *self;
        let programmatic = u32::from(programmatic);
        let all = [
            ("tokens", tokens),
            ("row_tiles", row_tiles),
            ("warps", warps),
            ("min_blocks", min_blocks),
            ("stages", stages),
            ("splits", splits),
            ("programmatic", programmatic),
        ];
        all.map(|(name, value)| (name, value.into())).to_vec()
    }

    /// The tile of these choices.
    pub(super) fn read(of: impl Fn(&str) -> Result<u32, Unscheduled>) -> Result<Self, Unscheduled> {
        Ok(Self {
            tokens: of("tokens")?,
            row_tiles: of("row_tiles")?,
            warps: of("warps")?,
            min_blocks: of("min_blocks")?,
            stages: of("stages")?,
            splits: of("splits")?,
            programmatic: of("programmatic")? != 0,
        })
    }

    /// Its part of a kernel's name.
    fn name(&self) -> String {
        let Self { tokens, row_tiles, warps, min_blocks, stages, splits, programmatic } = self;
        let split = if *splits > 1 { format!("k{splits}") } else { String::new() };
        let early = if *programmatic { "p" } else { "" };
        let rows = 16 * row_tiles;
        format!("decode_m{tokens}r{rows}w{warps}b{min_blocks}s{stages}{split}{early}")
    }
}

/// Columns of a lane's B and D: tokens come in eights.
const TOKEN_TILE: u32 = 8;

/// Everything that the parts of the kernel share.
struct Decode<'p> {
    problem: &'p Problem,
    tile: DecodeTile,
    io: Io,
    lane: Operand,
    warp: Operand,
    /// Number of the block along the rows.
    block: Operand,
    /// Rows of x, at launch.
    m: Operand,
    /// Per tile of rows, this lane's first word of codes.
    codes: Vec<Operand>,
    /// Per tile of rows, this lane's first pair of scales.
    scales: Vec<Operand>,
}

/// What a warp holds of one group while it is on its way.
struct InFlight {
    /// Per tile and chunk, the codes.
    codes: Vec<Vec<Vec<Reg>>>,
    /// Per tile, the scales of rows g and g + 8.
    scales: Vec<Vec<Reg>>,
    /// Per tile, the zero points of the same.
    zeros: Vec<Vec<Reg>>,
}

/// Writes the kernel.
///
/// # Errors
/// What the schedule does not take.
pub fn decode(problem: &Problem, tile: DecodeTile) -> Result<Kernel, Unscheduled> {
    tile.check(problem)?;
    let sequence = &problem.plan.dequant.stages[0];
    if !writable(sequence) || problem.zero && !takes_zeros(sequence) {
        let what = format!("codes decoded by {}", sequence.template);
        return Err(Unscheduled::Scheme { target: problem.target().name, what });
    }
    let blocks = problem.row_tiles().div_ceil(tile.row_tiles);
    let grid = [blocks, tile.splits, 1].map(Extent::Constant);
    let warp = problem.target().gpu.map_or(32, |gpu| gpu.warp);
    let (threads, min_blocks) = (tile.warps * warp, tile.min_blocks);
    let launch = Launch { grid, threads, min_blocks, cluster: 1, programmatic: tile.programmatic };
    let name = problem.kernel_name(&tile.name());
    let summary = format!(
        "y[m <= {}, {}] = x[m, {}] w^T; codes by {}.\nA block owns {} rows of w; {} warps split K.",
        tile.tokens,
        problem.n,
        problem.k,
        problem.plan.dequant,
        16 * tile.row_tiles,
        tile.warps,
    );
    let mut b = Builder::new(&name, &summary, problem.target(), launch);
    let this = Decode::start(&mut b, problem, tile);
    this.write(&mut b);
    Ok(b.finish())
}

impl<'p> Decode<'p> {
    fn start(b: &mut Builder, problem: &'p Problem, tile: DecodeTile) -> Self {
        let io = Io::declare(b, problem);
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let block = b.special(Special::Block(0));
        let m = b.argument(io.m);
        let mut this =
            Self { problem, tile, io, lane, warp, block, m, codes: Vec::new(), scales: Vec::new() };
        this.place_tiles(b);
        this
    }

    /// Where this lane's codes and scales of each tile begin. Tiles that follow one another are a
    /// constant apart; where the last block is ragged, the tiles beyond the last are computed again
    /// and not stored.
    fn place_tiles(&mut self, b: &mut Builder) {
        let (problem, tile) = (self.problem, self.tile);
        let rows = problem.plan.native.rows;
        let first = b.mul(self.block, tile.row_tiles);
        let ragged = !problem.row_tiles().is_multiple_of(tile.row_tiles);
        b.comment("this lane's codes, and the scales of its rows g and g + 8");
        let lane_words = b.mul(self.lane, 4u32);
        let row = b.shr(self.lane, 2u32);
        let row = b.mul(row, 2u32);
        for r in 0..if ragged { tile.row_tiles } else { 1 } {
            let number = b.add(first, r);
            let number = if ragged {
                b.binary(Binary::Min, number, problem.row_tiles() - 1)
            } else {
                number
            };
            let codes = b.mad(number, problem.chunks() * 4 * b.warp_size(), lane_words);
            let scales = b.mad(number, problem.groups() * rows, row);
            self.codes.push(codes);
            self.scales.push(scales);
        }
    }

    /// A tile's start, and the constant from there.
    fn tile_start(starts: &[Operand], tile: usize, apart: u32) -> (Operand, u32) {
        match starts {
            [first] => (*first, tile as u32 * apart),
            starts => (starts[tile], 0),
        }
    }

    fn write(&self, b: &mut Builder) {
        let ring = Ring::declare(b, self);
        let (start, end) = self.groups_of_warp(b);

        b.comment("weights of the first group: constant, so before earlier kernels end");
        let flight = self.in_flight(b);
        // Also where a warp has no group: `start` is a group that is there.
        self.load(b, &flight, start);
        if self.tile.programmatic {
            b.push(Op::GridWait);
            b.push(Op::GridLaunch);
        }
        b.comment("x of the first groups");
        ring.fill(b, self, start, end);

        let sums = self.accumulators(b);
        b.for_each(start, end, 1u32, "group", |b, group| {
            let x = ring.next(b, self, group, end);
            let following = b.add(group, 1u32);
            let more = b.less(following, end);
            let parts = self.products(b, &x, &flight, following, more);
            self.scale(b, &sums, &parts, &flight);
            b.when(more, |b| self.load_scales(b, &flight, following));
        });

        epilogue::write(b, self, &sums, &ring);
    }

    /// Whole groups, as evenly as they go, over the warps of all blocks that split K.
    fn groups_of_warp(&self, b: &mut Builder) -> (Operand, Operand) {
        let parts = self.tile.splits * self.tile.warps;
        let groups = self.problem.groups();
        b.comment("this warp's groups of columns");
        let part = if self.tile.splits > 1 {
            let split = b.special(Special::Block(1));
            b.mad(split, self.tile.warps, self.warp)
        } else {
            self.warp
        };
        let share = b.mul(part, groups);
        let start = b.div(share, parts);
        let share = b.add(share, groups);
        let end = b.div(share, parts);
        (start, end)
    }

    fn in_flight(&self, b: &mut Builder) -> InFlight {
        let (tiles, chunks) = (self.tile.row_tiles, self.problem.group_chunks());
        let codes = |b: &mut Builder| b.array("codes", Type::U32, 4, Uniformity::Varying);
        let pair = |b: &mut Builder, name| b.array(name, Type::U32, 1, Uniformity::Varying);
        let codes = (0..tiles).map(|_| (0..chunks).map(|_| codes(b)).collect()).collect();
        let scales = (0..tiles).map(|_| pair(b, "scales")).collect();
        let zeros = if self.io.zeros.is_some() { tiles } else { 0 };
        let zeros = (0..zeros).map(|_| pair(b, "zeros")).collect();
        InFlight { codes, scales, zeros }
    }

    fn load(&self, b: &mut Builder, flight: &InFlight, group: Operand) {
        for tile in 0..flight.codes.len() {
            for chunk in 0..flight.codes[tile].len() {
                self.load_codes(b, flight, tile, chunk, group);
            }
        }
        self.load_scales(b, flight, group);
    }

    /// One chunk of one tile: 16 bytes a lane, side by side.
    fn load_codes(
        &self,
        b: &mut Builder,
        flight: &InFlight,
        tile: usize,
        chunk: usize,
        group: Operand,
    ) {
        let (words, chunks) = (b.warp_size() * 4, self.problem.chunks());
        let (start, ahead) = Self::tile_start(&self.codes, tile, chunks * words);
        let at = b.mad(group, self.problem.group_chunks() * words, start);
        let from = Address::new(self.io.codes, at).plus(ahead + chunk as u32 * words);
        let dst = &flight.codes[tile][chunk];
        if chunks.is_multiple_of(self.problem.group_chunks()) {
            b.load_into(dst, from, Width::B128, None, Cache::Stream);
        } else {
            // The last group is short: its missing chunks meet zeros of x, whatever they are.
            let number = b.mad(group, self.problem.group_chunks(), chunk as u32);
            let there = b.less(number, chunks);
            let mask = crate::ir::Mask::or_zero(there);
            b.load_into(dst, from, Width::B128, Some(mask), Cache::Stream);
        }
    }

    /// Rows g and g + 8 of each tile: one word a lane.
    fn load_scales(&self, b: &mut Builder, flight: &InFlight, group: Operand) {
        let rows = self.problem.plan.native.rows;
        for tile in 0..flight.scales.len() {
            let apart = self.problem.groups() * rows;
            let (start, ahead) = Self::tile_start(&self.scales, tile, apart);
            let at = b.mad(group, rows, start);
            let from = Address::new(self.io.scales, at).plus(ahead);
            b.load_into(&flight.scales[tile], from, Width::B32, None, Cache::Constant);
            if let (Some(zeros), Some(dst)) = (self.io.zeros, flight.zeros.get(tile)) {
                let from = Address::new(zeros, at).plus(ahead);
                b.load_into(dst, from, Width::B32, None, Cache::Constant);
            }
        }
    }

    fn token_tiles(&self) -> u32 {
        self.tile.tokens.div_ceil(TOKEN_TILE)
    }

    /// Registers of D that hold tokens: one column of two where there is one token.
    fn columns(&self) -> &'static [usize] {
        if self.tile.tokens == 1 { &[0, 2] } else { &[0, 1, 2, 3] }
    }

    /// Per tile of rows and of tokens, the sums over this warp's groups.
    fn accumulators(&self, b: &mut Builder) -> Vec<Vec<Vec<Reg>>> {
        let tokens = self.token_tiles();
        (0..self.tile.row_tiles).map(|_| (0..tokens).map(|_| b.zeros("sum", 4)).collect()).collect()
    }

    /// The products of one group, per tile of rows and of tokens. Each piece of codes is loaded
    /// again, for the group that follows, as soon as it is decoded.
    fn products(
        &self,
        b: &mut Builder,
        x: &ring::Stage,
        flight: &InFlight,
        following: Operand,
        more: Operand,
    ) -> Vec<Vec<Vec<Reg>>> {
        let op = self.problem.product;
        let sequence = &self.problem.plan.dequant.stages[0];
        let (tiles, tokens) = (self.tile.row_tiles as usize, self.token_tiles());
        let parts: Vec<Vec<Vec<Reg>>> =
            (0..tiles).map(|_| (0..tokens).map(|_| b.fragment(Type::F32, 4)).collect()).collect();
        for chunk in 0..self.problem.group_chunks() as usize {
            b.comment(&format!("columns {} on", chunk as u32 * self.problem.plan.native.columns));
            let fragments = x.fragments(b, self, chunk as u32);
            for (tile, parts) in parts.iter().enumerate() {
                let half = self.problem.activation;
                let zeros = flight.zeros.get(tile);
                let mut zeros = zeros.map(|zeros| Zeros::of_pair(b, half, zeros[0]));
                // A step's A is used as soon as its registers are there: few live at a time.
                let (mut registers, mut step) = (Vec::new(), 0);
                for word in &flight.codes[tile][chunk] {
                    registers.extend(dequantise(b, sequence, *word, zeros.as_mut()));
                    while registers.len() >= 4 {
                        let a: Vec<Reg> = registers.drain(..4).collect();
                        for (part, fragments) in parts.iter().zip(&fragments) {
                            let c = match (chunk, step) {
                                (0, 0) => Addend::Zero,
                                _ => Addend::Registers(part.clone()),
                            };
                            b.matrix(op, part, &a, &fragments[step], c);
                        }
                        step += 1;
                    }
                }
                b.when(more, |b| self.load_codes(b, flight, tile, chunk, following));
            }
        }
        parts
    }

    /// sums += scale * parts.
    fn scale(
        &self,
        b: &mut Builder,
        sums: &[Vec<Vec<Reg>>],
        parts: &[Vec<Vec<Reg>>],
        flight: &InFlight,
    ) {
        b.comment("the group's scales, on its sums");
        for ((sums, parts), scales) in sums.iter().zip(parts).zip(&flight.scales) {
            // Registers 0 and 1 of D are of row g, 2 and 3 of row g + 8.
            let scales = [Side::Low, Side::High]
                .map(|side| b.half_to_f32(self.problem.scale, side, scales[0]));
            for (sum, part) in sums.iter().zip(parts) {
                for &at in self.columns() {
                    b.accumulate(sum[at], scales[at / 2], part[at]);
                }
            }
        }
    }
}
