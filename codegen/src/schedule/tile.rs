//! Products of any number of tokens: y[M, N] = x w^T + bias in tiles of rows and tokens.
//!
//! In: a [`Problem`] and a [`TileShape`]. Out: a kernel, not yet verified.
//!
//! The weights are the A operand, decoded in registers, so that y^T comes out with tokens as
//! columns. A block owns `rows` rows of w and `tokens` rows of x and walks along K, a group at a
//! time; a ring in shared memory (`ring`) has the next groups under way. A warp decodes its own
//! rows of a group once, then meets the tiles of tokens one after the other: the sums of a group of
//! one tile are complete before the next begins, so that only they need registers beside the result.
//!
//! Scales multiply those sums in f32. On the weights they would cost 4 packed multiplies a step of
//! 16 columns, that is 32 a group of 128 and tile of rows, against half the tokens on the sums: as
//! many at 64 tokens, fewer below. And on the weights each product would be rounded to 16 bits.
//!
//! Blocks that share rows of w are neighbours in the grid, so that w comes from memory once.

mod ring;
mod shape;

use crate::ir::{Addend, Builder, Extent, Kernel, Launch, Op, Operand, Reg, Side, Special, Type};

use super::dequantise::{Zeros, steps, takes_zeros, writable};
use super::io::Io;
use super::problem::{Problem, Unscheduled};
use super::results::{Held, Results};
use ring::{Ring, Stage};

pub use shape::TileShape;

/// Everything that the parts of the kernel share.
struct Tile<'p> {
    problem: &'p Problem,
    shape: TileShape,
    io: Io,
    lane: Operand,
    warp: Operand,
    /// Number of the block along the tokens.
    token_block: Operand,
    /// Number of the block along the rows.
    row_block: Operand,
    /// Number of the block among those that split K.
    split: Operand,
    /// Rows of x, at launch.
    m: Operand,
}

/// A warp's weights of one group.
struct Decoded {
    /// Per tile of rows and step of 16 columns, A.
    a: Vec<Vec<Vec<Reg>>>,
    /// Per tile of rows, the scales of rows g and g + 8.
    scales: Vec<[Operand; 2]>,
}

/// Writes the kernel.
///
/// # Errors
/// What the schedule does not take.
pub fn tile(problem: &Problem, shape: TileShape) -> Result<Kernel, Unscheduled> {
    shape.check(problem)?;
    let sequence = &problem.plan.dequant.stages[0];
    if !writable(sequence) || problem.zero && !takes_zeros(sequence) {
        let what = format!("codes decoded by {}", sequence.template);
        return Err(Unscheduled::Scheme { target: problem.target().name, what });
    }
    let warp = problem.target().gpu.map_or(32, |gpu| gpu.warp);
    let launch = Launch {
        grid: [Extent::Constant(1); 3],
        threads: shape.warps * warp,
        min_blocks: shape.min_blocks,
        cluster: 1,
        programmatic: shape.programmatic,
    };
    let name = problem.kernel_name(&shape.name());
    let summary = format!(
        "y[m, {}] = x[m, {}] w^T; codes by {}.\n\
         A block owns {} rows of w and {} tokens; its {} warps share out the rows.\n\
         m is at most {}: what is numbered stays below 2^32.",
        problem.n,
        problem.k,
        problem.plan.dequant,
        shape.rows,
        shape.tokens,
        shape.warps,
        shape.most_tokens(problem),
    );
    let mut b = Builder::new(&name, &summary, problem.target(), launch);
    let this = Tile::start(&mut b, problem, shape);
    this.write(&mut b);
    Ok(b.finish())
}

impl<'p> Tile<'p> {
    fn start(b: &mut Builder, problem: &'p Problem, shape: TileShape) -> Self {
        let io = Io::declare(b, problem);
        let token_blocks = Extent::CeilDiv(io.m, shape.tokens);
        let fixed = Extent::Constant;
        b.grid([token_blocks, fixed(shape.row_blocks(problem)), fixed(shape.splits)]);
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let token_block = b.special(Special::Block(0));
        let row_block = b.special(Special::Block(1));
        let split = if shape.splits > 1 { b.special(Special::Block(2)) } else { 0u32.into() };
        let m = b.argument(io.m);
        Self { problem, shape, io, lane, warp, token_block, row_block, split, m }
    }

    fn write(&self, b: &mut Builder) {
        if self.shape.programmatic {
            b.push(Op::GridLaunch);
        }
        let (start, end) = self.groups_of_block(b);
        let ring = Ring::declare(b, self);
        ring.fill(b, self, start, end);
        let sums = self.accumulators(b);
        let rows = self.shape.row_tiles(self.problem) * self.problem.plan.native.rows;
        let held = Held {
            sums: &sums,
            registers: &[0, 1, 2, 3],
            part: 0u32.into(),
            first_row: b.mul(self.warp, rows),
            lane: self.lane,
        };
        let results = self.results(b);
        results.begin(b, &held);
        b.for_each(start, end, 1u32, "group", |b, group| {
            let stage = ring.next(b, self, group, end);
            let decoded = self.decode(b, &stage);
            self.multiply(b, &stage, &decoded, &sums);
        });
        b.comment("every warp is done with the ring");
        b.push(Op::CopyWait { pending: 0 });
        b.barrier();
        results.write(b, &held, Some(ring.block()));
    }

    /// Whole groups, as evenly as they go, over the blocks that split K.
    fn groups_of_block(&self, b: &mut Builder) -> (Operand, Operand) {
        let (groups, splits) = (self.problem.groups(), self.shape.splits);
        b.comment("this block's groups of columns");
        let share = b.mul(self.split, groups);
        let start = b.div(share, splits);
        let share = b.add(share, groups);
        let end = b.div(share, splits);
        (start, end)
    }

    fn token_tiles(&self) -> u32 {
        self.shape.tokens / self.problem.token_tile()
    }

    /// Per tile of rows and of tokens, the sums over this block's groups.
    fn accumulators(&self, b: &mut Builder) -> Vec<Vec<Vec<Reg>>> {
        let (rows, tokens) = (self.shape.row_tiles(self.problem), self.token_tiles());
        (0..rows).map(|_| (0..tokens).map(|_| b.zeros("sum", 4)).collect()).collect()
    }

    /// Decodes this warp's rows of a group.
    fn decode(&self, b: &mut Builder, stage: &Stage) -> Decoded {
        let (problem, sequence) = (self.problem, &self.problem.plan.dequant.stages[0]);
        let mut decoded = Decoded { a: Vec::new(), scales: Vec::new() };
        b.comment("decode this warp's rows");
        for tile in 0..self.shape.row_tiles(problem) {
            let words = stage.codes(b, self, tile);
            let zeros = stage.zeros(b, self, tile);
            let mut zeros = zeros.map(|word| Zeros::of_pair(b, problem.activation, word));
            let mut a = Vec::new();
            steps(b, sequence, &words, zeros.as_mut(), |_, _, registers| a.push(registers));
            decoded.a.push(a);
            let pair = stage.scales(b, self, tile);
            let side = |b: &mut Builder, side| b.half_to_f32(problem.scale, side, pair);
            decoded.scales.push([side(b, Side::Low), side(b, Side::High)]);
        }
        decoded
    }

    /// sums += scale * (w x) of one group.
    fn multiply(&self, b: &mut Builder, stage: &Stage, decoded: &Decoded, sums: &[Vec<Vec<Reg>>]) {
        let op = self.problem.product;
        let together = self.shape.together(self.problem);
        for first in (0..self.token_tiles()).step_by(together as usize) {
            b.comment(&format!("tokens {} on", first * self.problem.token_tile()));
            let tiles: Vec<u32> = (first..self.token_tiles()).take(together as usize).collect();
            let x: Vec<Vec<Reg>> = tiles.iter().map(|&tile| stage.x(b, self, tile)).collect();
            let part = |b: &mut Builder| b.fragment(Type::F32, 4);
            let parts: Vec<Vec<Vec<Reg>>> =
                tiles.iter().map(|_| decoded.a.iter().map(|_| part(b)).collect()).collect();
            // Step by step over all of them: neighbours do not wait for each other.
            for step in 0..decoded.a.first().map_or(0, Vec::len) {
                for (parts, x) in parts.iter().zip(&x) {
                    for (part, a) in parts.iter().zip(&decoded.a) {
                        let c = match step {
                            0 => Addend::Zero,
                            _ => Addend::Registers(part.clone()),
                        };
                        b.matrix(op, part, &a[step], &x[2 * step..2 * step + 2], c);
                    }
                }
            }
            for (&tile, parts) in tiles.iter().zip(&parts) {
                for ((part, scales), sums) in parts.iter().zip(&decoded.scales).zip(sums) {
                    // Registers 0 and 1 of D are of row g, 2 and 3 of row g + 8.
                    for (at, &sum) in sums[tile as usize].iter().enumerate() {
                        b.accumulate(sum, scales[at / 2], part[at]);
                    }
                }
            }
        }
    }

    fn results(&self, b: &mut Builder) -> Results<'p> {
        let (problem, shape) = (self.problem, self.shape);
        let token_blocks =
            if shape.splits > 1 { b.special(Special::Blocks(0)) } else { 1u32.into() };
        Results {
            problem,
            io: self.io,
            rows: shape.rows,
            tokens: shape.tokens,
            parts: 1,
            splits: shape.splits,
            // Four results of 16 bits are 8 bytes, if rows of y begin at such.
            at_once: if problem.n.is_multiple_of(4) { 4 } else { 1 },
            warps: shape.warps,
            m: self.m,
            row_block: (self.row_block, shape.row_blocks(problem)),
            token_block: (self.token_block, token_blocks, Extent::CeilDiv(self.io.m, shape.tokens)),
            split: self.split,
        }
    }
}
