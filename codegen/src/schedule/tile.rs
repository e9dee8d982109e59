//! Products for any M: y[M, N] = x w^T + bias in tiles of rows and tokens.
//!
//! In: a [`MainLoop`] and a [`TileShape`]. Out: a kernel, not yet verified.
//!
//! The weights are the A operand, dequantised in registers, so that D is y^T with tokens as columns. A
//! block computes `rows` rows of w by `tokens` rows of x. Its main loop runs over k-tiles; a multistage
//! pipeline in shared memory (`ring`) copies later k-tiles meanwhile. A warp dequantises its own rows of a
//! k-tile once, then multiplies them with one tile of tokens after another: the sums of a segment of one
//! tile are complete before the next tile starts, so that only they need registers besides the
//! accumulators.
//!
//! Scales multiply those sums in f32. On the weights they would cost 4 packed multiplications per step of
//! 16 columns, that is 32 per group of 128 and tile of rows, against one per two tokens on the sums: as
//! many at 64 tokens, fewer below. And products of scaled weights would be rounded to 16 bits.
//!
//! Blocks that share rows of w are adjacent in the grid, so that w is read from memory once. If there are
//! more blocks of rows than the grid's second axis allows, rows are the first axis: such products have few
//! tokens, since elements of y are indexed with 32 bits.

mod pipeline;
mod ring;
mod shape;
mod stage_layout;

use std::collections::BTreeMap;

use crate::ir::{Builder, Extent, Kernel, LaunchConfig, MatrixScale, Op, Operand, Reg, Special};

use super::buffers::ProductBuffers;
use super::constants::{Constants, RowRange};
use super::dequantise::{ByRow, Zeros, steps};
use super::epilogue::{AccumulatorFragment, Epilogue, gated};
use super::interface::Schedule;
use super::lanes::Tokens;
use super::mapping::{KRange, MainLoop};
use super::participants::Participants;
use super::routed_block::RoutedBlock;
use super::rows::TokenRows;
use super::stack::Matrix;
use super::sums::{SegmentScales, Summing};
use super::table::Table;
use super::unscheduled::Unscheduled;
use super::weights_prefetch::WeightsPrefetch;
use ring::{Ring, Scales, Stage};

pub use shape::TileShape;

/// Everything that the parts of the kernel share.
struct Tile<'p> {
    main: &'p MainLoop<'p>,
    /// The lane's part of the fragment of x.
    x_fragment: &'p Tokens,
    shape: TileShape,
    io: ProductBuffers,
    lane: Operand,
    warp: Operand,
    /// The number of the block's tile of y along the tokens; the number of such tiles is known where K is
    /// split.
    token_block: Operand,
    token_blocks: Option<(Operand, Extent)>,
    /// The tokens.
    rows: TokenRows,
    /// The block's number along the rows of w.
    row_block: Operand,
    /// The matrix.
    matrix: Matrix,
    /// The block's number among those that split K.
    split: Operand,
}

/// A warp's dequantised weights of one k-tile.
struct Decoded<'r> {
    /// Per tile of rows and step of the product, A.
    a: Vec<Vec<Vec<Reg>>>,
    /// Per tile of rows, the factors of the sums.
    scales: Vec<Scales<'r>>,
    /// Per tile of rows and step, the scales of A, for an instruction that scales.
    codes: Vec<Vec<MatrixScale>>,
}

/// Writes the kernel; the choices are valid.
///
/// # Errors
/// An instruction that does not read x from registers.
fn tile(main: &MainLoop<'_>, shape: TileShape) -> Result<Kernel, Unscheduled> {
    let x_fragment = main.x_fragment()?;
    let warp = main.problem.target().gpu.map_or(32, |gpu| gpu.warp);
    let launch = LaunchConfig {
        grid: [Extent::Constant(1); 3],
        threads: shape.warps * warp,
        min_blocks: shape.min_blocks,
        cluster: 1,
        programmatic: shape.programmatic,
    };
    let name = main.problem.kernel_name(&shape.label());
    let summary = format!(
        "y[m, {}] = x[m, {}] w^T; codes by {}.\n\
         A block owns {} rows of w and {} tokens; its {} warps share out the rows.\n\
         m is at most {}: what is numbered stays below 2^32.",
        main.problem.n,
        main.problem.k,
        main.problem.plan.dequant,
        shape.rows,
        shape.tokens,
        shape.warps,
        shape.most_tokens(main.problem),
    );
    let [threads, at_once] = [launch.threads, launch.min_blocks];
    let mut b = Builder::new(&name, &summary, main.problem.target(), launch);
    let io = ProductBuffers::declare(&mut b, main.problem, shape.tokens);
    match main.problem.stack.zip(io.order) {
        None => Tile::start(&mut b, (main, x_fragment), (shape, io)).write(&mut b),
        Some(experts) => {
            let grid = (shape.row_blocks(main.problem), shape.splits);
            let prefetch = WeightsPrefetch::new(
                main.problem,
                &io,
                (shape.rows / main.problem.plan.native.rows, threads, at_once),
            );
            let programmatic = (shape.programmatic, prefetch);
            let block = RoutedBlock::begin(&mut b, experts, grid, programmatic);
            let zeros = |b: &mut Builder| {
                let warps = Participants::block(shape.warps);
                gated::zeros(b, (main, &io), &block, (shape.rows, warps));
            };
            let write = |b: &mut Builder, matrix| {
                let main = (main, x_fragment);
                Tile::start_routed(b, main, (shape, io), (&block, matrix)).write(b);
            };
            block.when_in_use(&mut b, write, zeros);
        }
    }
    Ok(b.finish())
}

impl<'p> Tile<'p> {
    fn start(
        b: &mut Builder,
        (main, x_fragment): (&'p MainLoop<'p>, &'p Tokens),
        (shape, io): (TileShape, ProductBuffers),
    ) -> Self {
        let token_blocks = Extent::CeilDiv(io.m, shape.tokens);
        let fixed = Extent::Constant;
        let rows_first = shape.rows_first(main);
        let mut blocks = [token_blocks, fixed(shape.row_blocks(main.problem))];
        if rows_first {
            blocks.reverse();
        }
        b.grid([blocks[0], blocks[1], fixed(shape.splits)]);
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let [token_block, row_block] =
            if rows_first { [1, 0] } else { [0, 1] }.map(|axis| b.special(Special::Block(axis)));
        let split = if shape.splits > 1 { b.special(Special::Block(2)) } else { 0u32.into() };
        let m = b.argument(io.m);
        let rows = TokenRows::single(token_block, shape.tokens, m);
        let (token_blocks, matrix) = (None, Matrix::SINGLE);
        Self {
            main,
            x_fragment,
            shape,
            io,
            lane,
            warp,
            token_block,
            token_blocks,
            rows,
            row_block,
            matrix,
            split,
        }
    }

    /// [`Self::start`] for a block of an expert layer.
    fn start_routed(
        b: &mut Builder,
        (main, x_fragment): (&'p MainLoop<'p>, &'p Tokens),
        (shape, io): (TileShape, ProductBuffers),
        (block, matrix): (&RoutedBlock, Matrix),
    ) -> Self {
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let (token_block, count, extent) = block.y_block(b);
        Self {
            main,
            x_fragment,
            shape,
            io,
            lane,
            warp,
            token_block,
            token_blocks: Some((count, extent)),
            rows: block.rows(b, shape.tokens),
            row_block: block.row_block,
            matrix,
            split: block.split,
        }
    }

    /// Whether the kernel waits for earlier ones after its first weights: a block of an expert layer has
    /// waited already.
    fn waits(&self) -> bool {
        self.shape.programmatic && self.main.problem.stack.is_none()
    }

    fn write(&self, b: &mut Builder) {
        if self.waits() {
            b.push(Op::GridLaunch);
        }
        let KRange { start, end } = self.k_tiles_of_block(b);
        let ring = Ring::declare(b, self);
        let constants =
            Constants::declare(b, self.main.problem, self.shape.rows, self.shape.tokens);
        let first = b.mul(self.row_block, self.shape.rows);
        let of_rows = RowRange {
            first,
            count: self.shape.rows,
            end: self.main.problem.n,
            matrix: self.matrix,
            of_tile: self.main.problem.plan.native.rows,
        };
        constants.copy_rows(b, &self.io, of_rows, self.participants());
        // The ring has a barrier before anything is dequantised.
        let table = Table::declare(b, &self.main.problem.plan.dequant);
        ring.fill(b, self, start, end);
        let first = self.rows.number(b, 0u32.into());
        constants.copy_tokens(b, &self.io, (first, &self.rows), self.participants());
        let summing = Summing::declare(b, self.main);
        let sums = self.accumulators(b);
        b.for_each(start, end, 1u32, "k_tile", |b, k_tile| {
            let stage = ring.next(b, self, k_tile, end);
            let decoded = self.decode(b, &stage, table);
            self.multiply(b, &summing, &stage, &decoded, &sums);
        });
        b.comment("every warp is done with the ring");
        ring.finish(b);
        let rows = self.shape.row_tiles(self.main) * self.main.problem.plan.native.rows;
        let held = AccumulatorFragment {
            sums: &sums,
            registers: &self.registers(),
            part: 0u32.into(),
            first_row: b.mul(self.warp, rows),
            lane: self.lane,
        };
        self.epilogue(b, constants).write(b, &held, Some(ring.block()));
    }

    /// All warps of the block.
    fn participants(&self) -> Participants {
        Participants::block(self.shape.warps)
    }

    /// The k-tiles of this block: whole ones, distributed evenly over the blocks that split K.
    fn k_tiles_of_block(&self, b: &mut Builder) -> KRange {
        b.comment("this block's k-tiles");
        KRange::part(b, self.split, self.shape.splits, self.main.k_iters())
    }

    fn token_tiles(&self) -> u32 {
        self.shape.tokens / self.main.token_tile()
    }

    /// Per tile of rows and of tokens, the sums over this block's k-tiles.
    fn accumulators(&self, b: &mut Builder) -> Vec<Vec<Vec<Reg>>> {
        let (rows, tokens) = (self.shape.row_tiles(self.main), self.token_tiles());
        let registers = self.main.lanes().d.registers.len() as u32;
        let mut of_tile = |_| (0..tokens).map(|_| b.zeros("sum", registers)).collect();
        (0..rows).map(&mut of_tile).collect()
    }

    /// Registers of D: all of them.
    fn registers(&self) -> Vec<usize> {
        (0..self.main.lanes().d.registers.len()).collect()
    }

    /// Dequantises this warp's rows of a k-tile.
    fn decode<'r>(
        &self,
        b: &mut Builder,
        stage: &'r Stage<'_>,
        table: Option<Table>,
    ) -> Decoded<'r> {
        let main = self.main;
        let segments = main.k_tile() / main.segment();
        let mut decoded = Decoded { a: Vec::new(), scales: Vec::new(), codes: Vec::new() };
        b.comment("decode this warp's rows");
        for tile in 0..self.shape.row_tiles(main) {
            let chunks = stage.codes(b, self, tile);
            let zeros = main.problem.half().zip(main.problem.zero).map(|(half, of)| {
                let (words, shift) = stage.zeros(b, self, tile);
                let rows = main.rows(&of).len;
                let segment =
                    |segment| of.twice(b, rows, (&words, shift), of.of_segment(main, segment));
                let segments = (0..segments).map(segment).collect();
                Zeros::new(half, main, segments)
            });
            let mut a = BTreeMap::new();
            let numbers = stage.scales(b, self, tile);
            let mut by_row = ByRow { zeros, scales: numbers.of_weights(b, main) };
            steps(b, (main, table), &chunks, &mut by_row, |_, of| {
                a.insert(of.step, of.a);
            });
            decoded.a.push(a.into_values().collect());
            decoded.codes.push(numbers.of_product(b, main));
            decoded.scales.push(numbers);
        }
        decoded
    }

    /// sums += scale * (w x) of one k-tile, segment by segment.
    fn multiply(
        &self,
        b: &mut Builder,
        summing: &Summing<'_>,
        stage: &Stage,
        decoded: &Decoded<'_>,
        sums: &[Vec<Vec<Reg>>],
    ) {
        let together = self.shape.together(self.main);
        let segment_steps = self.main.segment_steps() as usize;
        let of_step = self.main.step_registers() as usize;
        let registers = self.registers();
        let segments = self.main.k_tile() / self.main.segment();
        let in_turn = self.shape.segments_in_turn(self.main);
        // Segment by segment, so that only one segment's x and scales need registers.
        for segment in 0..segments {
            let of_segment = |scales: &Scales<'_>| scales.of_segment(b, self.main, segment);
            let scales: Vec<SegmentScales> = decoded.scales.iter().map(of_segment).collect();
            for first in (0..self.token_tiles()).step_by(together as usize) {
                if in_turn {
                    b.push(Op::SchedulingBarrier);
                }
                b.comment(&format!(
                    "segment {segment}, tokens {} on",
                    first * self.main.token_tile()
                ));
                let tiles: Vec<u32> = (first..self.token_tiles()).take(together as usize).collect();
                let x: Vec<Vec<Reg>> =
                    tiles.iter().map(|&tile| stage.x(b, self, (tile, segment))).collect();
                let of_x: Vec<_> = x.iter().map(|x| summing.of_x(b, x)).collect();
                let of_tile = |&tile: &u32| {
                    sums.iter().map(|sums| summing.part_of(b, &sums[tile as usize])).collect()
                };
                let parts: Vec<Vec<Vec<Reg>>> = tiles.iter().map(of_tile).collect();
                let mut codes_of_x = vec![None; tiles.len()];
                // All tiles step by step, so that consecutive instructions are independent.
                for step in 0..segment_steps {
                    let at = segment as usize * segment_steps + step;
                    let of_tokens = parts.iter().zip(&x).zip(&tiles).zip(&mut codes_of_x);
                    for (((parts, x), &tile), codes) in of_tokens {
                        let x = &x[of_step * step..of_step * (step + 1)];
                        let code = stage.x_code(b, self, (tile, at as u32), codes);
                        let of_tiles = parts.iter().zip(&decoded.a).zip(&decoded.codes);
                        for ((part, a), codes) in of_tiles {
                            let scales = codes.get(at).zip(code);
                            let scales = scales.map(|(&of_w, of_x)| [of_w, of_x]);
                            summing.step(b, part, (&a[at], x), scales, step == 0);
                        }
                    }
                }
                for ((&tile, parts), of_x) in tiles.iter().zip(&parts).zip(&of_x) {
                    let tokens = stage.x_scales(b, self, tile, segment);
                    for ((part, scales), sums) in parts.iter().zip(&scales).zip(sums) {
                        let scales = SegmentScales { tokens: tokens.clone(), ..scales.clone() };
                        let part = (&part[..], of_x.first());
                        summing.add(b, &sums[tile as usize], part, &scales, &registers);
                    }
                }
            }
        }
    }

    fn epilogue(&self, b: &mut Builder, constants: Constants) -> Epilogue<'p> {
        let (main, shape) = (self.main, self.shape);
        let (token_blocks, extent) = match self.token_blocks {
            Some(known) => known,
            None => {
                let count =
                    if shape.splits > 1 { b.special(Special::Blocks(0)) } else { 1u32.into() };
                (count, Extent::CeilDiv(self.io.m, shape.tokens))
            }
        };
        Epilogue {
            main,
            io: self.io,
            constants,
            rows: shape.rows,
            tokens: shape.tokens,
            parts: 1,
            splits: shape.splits,
            // Four 16-bit results are 8 bytes, if rows of y are aligned to 8 bytes.
            at_once: if main.problem.n.is_multiple_of(4) { 4 } else { 1 },
            participants: self.participants(),
            token_rows: self.rows,
            row_block: (self.row_block, shape.row_blocks(main.problem)),
            token_block: (self.token_block, token_blocks, extent),
            split: self.split,
            experts: None,
        }
    }
}
