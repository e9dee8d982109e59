//! Decode products: y[M <= 16, N] = x w^T + bias, bound by reading the weights once.
//!
//! In: a [`Problem`] and a [`DecodeTile`]. Out: a kernel, not yet verified.
//!
//! The weights are the A operand of the product, decoded in registers, so that y^T comes out with
//! tokens as columns. A block owns `row_tiles` tiles of 16 rows; its warps split K by whole groups
//! and add up in shared memory. A warp has one group in registers, weights and x: it works through
//! it, asks for all of the next one at once, and other warps work while that is under way. The first
//! weights are asked for before the grid wait. x is small and comes from the second cache; no warp
//! waits for another before the end. Scales multiply the sums of a group in f32; zero points go into
//! the constants with which decoding ends.
//!
//! That the loads stand together at the end of the turn is no accident: behind a branch the
//! assembler cannot sink them to where they are needed.
//!
//! With `splits` > 1 the blocks of one row range split K too: see `results`.

mod activation;
mod choice;

use crate::ir::{
    Addend, Address, Binary, Builder, Cache, Extent, Kernel, Launch, Mask, Op, Operand, Reg, Side,
    Special, Type, Uniformity, Width,
};

use super::dequantise::{Zeros, steps, takes_zeros, writable};
use super::io::Io;
use super::problem::{Problem, Unscheduled};
use super::results::{Held, Results};
use activation::Activation;

pub use choice::DecodeTile;

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
        let row = b.div(self.lane, problem.row_lanes());
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
        if self.tile.programmatic {
            b.push(Op::GridLaunch);
        }
        let (start, end) = self.groups_of_warp(b);
        b.comment("weights of the first group: constant, so before earlier kernels end");
        let flight = self.in_flight(b);
        let some = b.less(start, end);
        self.load(b, &flight, start, some);
        let x = Activation::place(b, self);
        let sums = self.accumulators(b);
        let held = Held {
            sums: &sums,
            registers: self.columns(),
            part: self.warp,
            first_row: 0u32.into(),
            lane: self.lane,
        };
        if self.problem.bias {
            self.results(b).begin(b, &held);
        }
        if self.tile.programmatic {
            b.push(Op::GridWait);
        }
        let words = Activation::in_flight(b, self);
        x.load(b, self, &words, start, some);
        b.for_each(start, end, 1u32, "group", |b, group| {
            let parts = self.products(b, &words, &flight);
            self.scale(b, &sums, &parts, &flight);
            let following = b.add(group, 1u32);
            let more = b.less(following, end);
            b.comment("all of the next group");
            b.when(more, |b| {
                self.load(b, &flight, following, true.into());
                x.load(b, self, &words, following, true.into());
            });
        });
        self.results(b).write(b, &held, None);
    }

    fn results(&self, b: &mut Builder) -> Results<'p> {
        let (problem, tile) = (self.problem, self.tile);
        let split = if tile.splits > 1 { b.special(Special::Block(1)) } else { 0u32.into() };
        Results {
            problem,
            io: self.io,
            rows: tile.row_tiles * problem.plan.native.rows,
            tokens: tile.tokens,
            parts: tile.warps,
            splits: tile.splits,
            at_once: 1,
            warps: tile.warps,
            m: self.m,
            row_block: (self.block, problem.row_tiles().div_ceil(tile.row_tiles)),
            token_block: (0u32.into(), 1u32.into(), Extent::Constant(1)),
            split,
        }
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

    /// Loads a group's codes, scales and zero points, where there is such a group.
    fn load(&self, b: &mut Builder, flight: &InFlight, group: Operand, there: Operand) {
        for tile in 0..flight.codes.len() {
            for chunk in 0..flight.codes[tile].len() {
                self.load_codes(b, flight, [tile, chunk], group, there);
            }
        }
        self.load_scales(b, flight, group, there);
    }

    /// One chunk of one tile: 16 bytes a lane, side by side.
    fn load_codes(
        &self,
        b: &mut Builder,
        flight: &InFlight,
        [tile, chunk]: [usize; 2],
        group: Operand,
        there: Operand,
    ) {
        let (words, chunks) = (b.warp_size() * 4, self.problem.chunks());
        let (start, ahead) = Self::tile_start(&self.codes, tile, chunks * words);
        let at = b.mad(group, self.problem.group_chunks() * words, start);
        let from = Address::new(self.io.codes, at).plus(ahead + chunk as u32 * words);
        let mask = if chunks.is_multiple_of(self.problem.group_chunks()) {
            there
        } else {
            // The last group is short: its missing chunks meet zeros of x, whatever they are.
            let number = b.mad(group, self.problem.group_chunks(), chunk as u32);
            let inside = b.less(number, chunks);
            b.both(there, inside)
        };
        let dst = &flight.codes[tile][chunk];
        b.load_into(dst, from, Width::B128, masked(mask), Cache::Stream);
    }

    /// Rows g and g + 8 of each tile: one word a lane.
    fn load_scales(&self, b: &mut Builder, flight: &InFlight, group: Operand, there: Operand) {
        let rows = self.problem.plan.native.rows;
        for tile in 0..flight.scales.len() {
            let apart = self.problem.groups() * rows;
            let (start, ahead) = Self::tile_start(&self.scales, tile, apart);
            let at = b.mad(group, rows, start);
            let buffers = [Some(self.io.scales), self.io.zeros];
            let registers = [flight.scales.get(tile), flight.zeros.get(tile)];
            for (buffer, dst) in buffers.into_iter().flatten().zip(registers.into_iter().flatten())
            {
                let from = Address::new(buffer, at).plus(ahead);
                b.load_into(dst, from, Width::B32, masked(there), Cache::Default);
            }
        }
    }

    fn token_tiles(&self) -> u32 {
        self.tile.tokens.div_ceil(self.problem.token_tile())
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

    /// The products of one group, per tile of rows and of tokens.
    fn products(&self, b: &mut Builder, x: &[Vec<Reg>], flight: &InFlight) -> Vec<Vec<Vec<Reg>>> {
        let op = self.problem.product;
        let sequence = &self.problem.plan.dequant.stages[0];
        let mut all = Vec::new();
        for (tile, chunks) in flight.codes.iter().enumerate() {
            let parts: Vec<Vec<Reg>> = x.iter().map(|_| b.fragment(Type::F32, 4)).collect();
            let zeros = flight.zeros.get(tile);
            let mut zeros = zeros.map(|zeros| Zeros::of_pair(b, self.problem.activation, zeros[0]));
            steps(b, sequence, &chunks.concat(), zeros.as_mut(), |b, step, a| {
                for (part, x) in parts.iter().zip(x) {
                    let c = match step {
                        0 => Addend::Zero,
                        _ => Addend::Registers(part.clone()),
                    };
                    b.matrix(op, part, &a, &x[2 * step..2 * step + 2], c);
                }
            });
            all.push(parts);
        }
        all
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

/// A mask, unless it is always true.
fn masked(there: Operand) -> Option<Mask> {
    (there != Operand::Pred(true)).then(|| Mask::or_zero(there))
}
