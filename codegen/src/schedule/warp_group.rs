//! Products for any M on warp-group instructions: y[M, N] = x w^T + bias in tiles of rows and tokens.
//!
//! In: a [`MainLoop`] and a [`WarpGroupTile`]. Out: a kernel, not yet verified.
//!
//! The weights are operand A, dequantised in registers, and x is operand B, which the instruction reads from
//! shared memory, so that D is y^T with tokens as columns. A block has *consumers*, warp groups that
//! dequantise and multiply 64 rows of w or more each, and a *producer*, a warp group of which one thread
//! copies. Both meet in a ring of stages, a k-tile each or half of one:
//!
//! | | producer | consumer |
//! |---|---|---|
//! | before | waits for `empty` | waits for `full` |
//! | does | expects the bytes of a stage, starts its tensor copies (`producer`) | loads words, dequantises, multiplies (`consumer`) |
//! | after | the copies arrive at `full` | one lane a warp arrives at `empty` |
//!
//! `ring` is that order, `stage` what a stage holds, `weights` and `params` what a consumer reads of w, `sums`
//! where products add up (`token_scales`: with scales of x along K), `exchange` how two blocks share out K, and `store`
//! the way from sums to y. Tensor copies keep the order of columns and swizzle lines of 128 bytes; the native layout is made so that `ldmatrix` of its 16-byte vectors gives fragments of A with x in that
//! order (`plan::native`). What is beyond M, N or K is zero in every copy, and not stored.

mod consumer;
mod exchange;
mod model;
mod params;
mod producer;
mod ring;
mod shape;
mod stage;
mod store;
mod sums;
mod token_scales;
mod weights;

use crate::ir::{Builder, Extent, Kernel, Launch, MatrixOp, Op, Operand, Special};

use super::buffers::ProductBuffers;
use super::mapping::MainLoop;
use super::table::Table;
use super::unscheduled::Unscheduled;
use ring::Ring;
use stage::Stages;

pub use shape::WarpGroupTile;

/// Everything that the parts of the kernel share.
struct Block<'p> {
    /// The problem, and the lane map of a warp's rows: a warp of a group holds A as it holds A of the plan's
    /// own instruction.
    main: &'p MainLoop<'p>,
    /// The warp-group instruction.
    product: &'static MatrixOp,
    tile: WarpGroupTile,
    io: ProductBuffers,
    /// The block's number along the tokens.
    token_block: Operand,
    /// The block's number along the rows of w.
    row_block: Operand,
    /// The block's number among those that split K: its number in the cluster.
    part: Operand,
}

/// Writes the kernel; the choices are valid.
fn write(
    main: &MainLoop<'_>,
    product: &'static MatrixOp,
    tile: WarpGroupTile,
) -> Result<Kernel, Unscheduled> {
    let problem = main.problem;
    let launch = Launch {
        grid: [Extent::Constant(1); 3],
        threads: tile.threads(main),
        min_blocks: 1,
        cluster: tile.splits,
        programmatic: tile.programmatic,
    };
    let name = problem.kernel_name(&tile.label());
    let summary = format!(
        "y[m, {}] = x[m, {}] w^T; codes by {}.\n\
         A block owns {} rows of w and {} tokens; {} warp groups multiply, one copies.",
        problem.n,
        problem.k,
        problem.plan.dequant,
        tile.rows(),
        tile.tokens,
        tile.groups,
    );
    let mut b = Builder::new(&name, &summary, problem.target(), launch);
    let io = ProductBuffers::declare(&mut b, problem, tile.tokens);
    let fixed = Extent::Constant;
    let rows = fixed(tile.row_blocks(problem) * tile.splits);
    b.grid([rows, Extent::CeilDiv(io.m, tile.tokens), fixed(1)]);
    let [row_block, token_block] = [0, 1].map(|axis| b.special(Special::Block(axis)));
    // The blocks of a cluster are neighbours.
    let (row_block, part) = (b.div(row_block, tile.splits), b.rem(row_block, tile.splits));
    Block { main, product, tile, io, token_block, row_block, part }.write(&mut b);
    Ok(b.finish())
}

impl Block<'_> {
    fn write(&self, b: &mut Builder) {
        if self.tile.programmatic {
            b.push(Op::GridLaunch);
        }
        let stages = Stages::declare(b, self);
        let ring = Ring::declare(b, (self.tile.stages, self.consumer_warps()));
        let table = Table::declare(b, &self.main.problem.plan.dequant);
        ring.initialise(b);
        b.barrier();
        let of_part = self.stages_of_part(b);
        let warps = self.consumer_warps();
        let [most, fewest] = self.tile.registers();
        let consumers = b.role("consumers", 0..warps, most, |b| {
            consumer::consume(b, self, (&ring, &stages, of_part), table);
        });
        let producer = b.role("producer", warps..warps + self.group_warps(), fewest, |b| {
            producer::produce(b, self, (&ring, &stages, of_part));
        });
        b.roles(vec![consumers, producer]);
    }

    /// The first stage of this block's part of K, and the one after the last.
    fn stages_of_part(&self, b: &mut Builder) -> (Operand, Operand) {
        let (all, splits) = (self.tile.k_stages(self.main), self.tile.splits);
        let share = b.mul(self.part, all);
        let start = b.div(share, splits);
        let share = b.add(share, all);
        (start, b.div(share, splits))
    }

    /// Chunks of codes of a stage.
    fn stage_chunks(&self) -> u32 {
        self.main.k_tile_chunks() / self.tile.parts
    }

    /// Warps of a warp group.
    fn group_warps(&self) -> u32 {
        self.main.problem.target().gpu.and_then(|gpu| gpu.warp_group).unwrap_or(1)
    }

    /// Warps that multiply.
    fn consumer_warps(&self) -> u32 {
        self.tile.groups * self.group_warps()
    }

    /// Tiles of rows of the native layout in a block.
    fn native_tiles(&self) -> u32 {
        self.tile.rows() / self.main.problem.plan.native.rows
    }
}
