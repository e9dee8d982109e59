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
//! FP8 in blocks may keep the order of its operands (`unswapped`, `store_tokens`): x is operand A and w is operand B, so that a lane
//! has the sums of two tokens, and two scales of x a k-tile instead of one for every column.
//!
//! Two blocks of a cluster may copy x for both (`multicast`): each waits until the warps of both have read a stage.
//!
//! `ring` is that order, `stage` what a stage holds, `weights` and `params` what a consumer reads of w, `sums`
//! where products add up (`token_scales`: with scales of x along K), `exchange` how two blocks share out K, and `store`
//! the way from sums to y (`y_lines`: its lines in shared memory; `gates`: those of expert layers; `hidden_operand`: to what the second
//! product of a layer reads of h). A block that persists (`persistent`, and in every expert layer) has one tile after another
//! (`tiles`), or two warp groups are in ping-pong (`ping_pong`); in an expert layer each has the matrix of its expert and its slots (`pairs`); rows of x that are not neighbours are copied by all lanes of the producer (`gather`). Tensor copies keep the order of columns and swizzle lines of 128 bytes; the native layout is made so that `ldmatrix` of its 16-byte vectors gives fragments of A with x in that
//! order (`plan::native`). What is beyond M, N or K is zero in every copy, and not stored.

mod consumer;
mod exchange;
mod gates;
mod gather;
mod hidden_operand;
mod limits;
mod model;
mod pairs;
mod params;
mod ping_pong;
mod planes;
mod producer;
pub(super) mod ring;
mod shape;
mod stage;
mod store;
mod store_tokens;
mod sums;
mod tiles;
mod token_scales;
mod unswapped;
mod weights;
mod y_lines;

use crate::ir::{Builder, Extent, Kernel, LaunchConfig, MatrixOp, Op, Operand, Special};

use super::buffers::ProductBuffers;
use super::epilogue::gated;
use super::mapping::{KRange, MainLoop};
use super::participants::Participants;
use super::rows::TokenRows;
use super::stack::Matrix;
use super::table::Table;
use super::unscheduled::Unscheduled;
use super::weights_prefetch::WeightsPrefetch;
use ping_pong::PingPong;
use ring::{Cursor, Ring};
use stage::Stages;
use tiles::{Tile, Tiles};

pub(super) use limits::suits;
pub use shape::WarpGroupTile;

/// Everything that the parts of the kernel share.
#[derive(Clone, Copy)]
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
    /// The tokens.
    rows: TokenRows,
    /// The matrix; in an expert layer the first of those of the block's expert that it multiplies, which is known only
    /// where its token block is in use.
    matrix: Matrix,
}

/// Writes the kernel; the choices are valid.
fn write(
    main: &MainLoop<'_>,
    product: &'static MatrixOp,
    tile: WarpGroupTile,
) -> Result<Kernel, Unscheduled> {
    let problem = main.problem;
    let launch = LaunchConfig {
        grid: [Extent::Constant(1); 3],
        threads: tile.threads(main),
        min_blocks: 1,
        cluster: tile.cluster(),
        programmatic: tile.programmatic,
    };
    let name = problem.kernel_name(&tile.label());
    let summary = format!(
        "y[m, {}] = x[m, {}] w^T; codes by {}.\n\
         A tile has {} rows of w and {} tokens; {} warp groups multiply, one copies.",
        problem.n,
        problem.k,
        problem.plan.dequant,
        tile.rows(),
        tile.tokens,
        tile.groups,
    );
    let mut b = Builder::new(&name, &summary, problem.target(), launch);
    let io = ProductBuffers::declare(&mut b, problem, tile.tokens);
    if tile.persists(problem) {
        let none = 0u32.into();
        let block = Block {
            main,
            product,
            tile,
            io,
            token_block: none,
            row_block: none,
            part: none,
            rows: TokenRows::single(none, tile.tokens, none),
            matrix: Matrix::SINGLE,
        };
        block.write_tiles(&mut b);
        return Ok(b.finish());
    }
    let fixed = Extent::Constant;
    let rows = fixed(tile.row_blocks(problem) * tile.splits);
    b.grid([rows, Extent::CeilDiv(io.m, tile.tokens), fixed(1)]);
    let [row_block, token_block] = [0, 1].map(|axis| b.special(Special::Block(axis)));
    // The blocks of a cluster are neighbours.
    let (row_block, part) = (b.div(row_block, tile.splits), b.rem(row_block, tile.splits));
    // No block asks these rows for M.
    let (rows, matrix) = (TokenRows::single(token_block, tile.tokens, 0u32.into()), Matrix::SINGLE);
    let block = Block { main, product, tile, io, token_block, row_block, part, rows, matrix };
    block.write(&mut b);
    Ok(b.finish())
}

impl Block<'_> {
    fn write(&self, b: &mut Builder) {
        if self.tile.programmatic {
            b.push(Op::GridLaunch);
        }
        let (stages, ring, (table, _)) = self.declare(b);
        let of_part = self.stages_of_part(b);
        let consumers = |b: &mut Builder| {
            self.consume(b, (&ring, &stages, of_part), (None, None, table));
            exchange::meet_cluster(b, &self.tile);
        };
        self.roles(b, consumers, |b| producer::produce(b, self, (&ring, &stages, of_part)));
    }

    /// Writes a kernel whose blocks have one tile after another.
    fn write_tiles(&self, b: &mut Builder) {
        let (stages, ring, (table, ping_pong)) = self.declare(b);
        let WarpGroupTile { tokens, programmatic, multicast, .. } = self.tile;
        let problem = self.main.problem;
        let row_blocks = self.tile.row_blocks(self.main.problem);
        let tiles = match self.main.problem.stack.zip(self.io.order) {
            Some(experts) => {
                let threads = (self.consumer_warps() + self.group_warps()) * b.warp_size();
                let rows = self.native_tiles();
                let prefetch =
                    WeightsPrefetch::new(self.main.problem, &self.io, (rows, threads, 1));
                let zeros = experts.0.gate.is_some() && problem.operand_of_y.is_none();
                Tiles::of_stack(b, experts, (row_blocks, zeros), (programmatic, prefetch))
            }
            None => {
                let blocks = (row_blocks, multicast);
                Tiles::of_matrix(b, (self.io.m, tokens), blocks, programmatic)
            }
        };
        let of_tile = self.stages_of_part(b);
        let by = self.consumers();
        let consumers = |b: &mut Builder| {
            let cursor = ring.cursor(b);
            let group = ping_pong.map(|both| both.of_group(b, self.group_warps()));
            tiles.each(b, |b, tile| {
                let own = |b: &mut Builder| {
                    let block = self.of_tile(b, tile);
                    block.consume(b, (&ring, &stages, of_tile), (Some(cursor), group, table));
                };
                let work = |b: &mut Builder| match group {
                    None => own(b),
                    Some(group) => {
                        group.take(b, (&ring, cursor, self.tile.k_stages(self.main)), own)
                    }
                };
                match &tile.routed {
                    None => work(b),
                    Some(_) if problem.operand_of_y.is_some() => work(b),
                    Some(routed) => routed.if_in_use(b, work, |b| {
                        gated::zeros(b, (self.main, &self.io), routed, (self.tile.rows(), by));
                    }),
                }
            });
            store::finish(b, self);
            exchange::meet_cluster(b, &self.tile);
        };
        self.roles(b, consumers, |b| {
            producer::produce_tiles(b, self, (&ring, &stages, of_tile), &tiles);
            exchange::meet_cluster(b, &self.tile);
        });
    }

    /// The program of the consumers' warps for a tile.
    fn consume(
        &self,
        b: &mut Builder,
        of: (&Ring, &Stages, KRange),
        (cursor, group, table): (Option<Cursor>, Option<ping_pong::Group>, Option<Table>),
    ) {
        match self.tile.unswapped {
            true => unswapped::consume(b, self, of, (cursor, group)),
            false => consumer::consume(b, self, of, (cursor, table)),
        }
    }

    /// The block with one of its tiles.
    fn of_tile(&self, b: &mut Builder, tile: &Tile) -> Self {
        let Tile { token_block, row_block, routed } = tile;
        let tokens = self.tile.tokens;
        let (rows, matrix) = match routed {
            Some(routed) => (routed.rows(b, tokens), routed.matrix(b)),
            None => (TokenRows::single(*token_block, tokens, 0u32.into()), Matrix::SINGLE),
        };
        Self { token_block: *token_block, row_block: *row_block, rows, matrix, ..*self }
    }

    /// Declares and initialises what both roles use.
    fn declare(&self, b: &mut Builder) -> (Stages, Ring, (Option<Table>, Option<PingPong>)) {
        let stages = Stages::declare(b, self);
        let writers = 1 + gather::warps(self).unwrap_or(0);
        let warps = if self.is_ping_pong() { self.group_warps() } else { self.consumer_warps() };
        let ring = Ring::declare(b, (self.tile.stages, writers, (warps, self.tile.multicast)));
        let table = Table::declare(b, &self.main.problem.plan.dequant);
        let ping_pong = PingPong::declare(b, self);
        if let Some(both) = ping_pong {
            both.initialise(b, self.group_warps());
        }
        ring.initialise(b);
        match self.tile.multicast {
            1 => b.barrier(),
            // Copies and arrivals of the other block follow.
            _ => b.cluster_barrier(),
        }
        (stages, ring, (table, ping_pong))
    }

    fn roles(
        &self,
        b: &mut Builder,
        consume: impl FnOnce(&mut Builder),
        produce: impl FnOnce(&mut Builder),
    ) {
        let warps = self.consumer_warps();
        let [most, fewest] = self.tile.registers(self.main.problem);
        let consumers = b.role("consumers", 0..warps, most, consume);
        let producer = b.role("producer", warps..warps + self.group_warps(), fewest, produce);
        b.roles(vec![consumers, producer]);
    }

    /// Whether each warp group has tiles of its own.
    fn is_ping_pong(&self) -> bool {
        self.tile.is_ping_pong(self.main.problem)
    }

    /// Whether a block has one tile after another.
    fn has_tiles(&self) -> bool {
        self.tile.persists(self.main.problem)
    }

    /// Whether the kernel waits for earlier ones after its first weights: a block with tiles has waited already.
    fn waits(&self) -> bool {
        self.tile.programmatic && !self.has_tiles()
    }

    /// The stages of this block's part of K.
    fn stages_of_part(&self, b: &mut Builder) -> KRange {
        KRange::part(b, self.part, self.tile.splits, self.tile.k_stages(self.main))
    }

    /// Stages that a consumer holds at once.
    fn held_stages(&self) -> u32 {
        if self.tile.unswapped { 2 } else { consumer::Batches::new(self).held() }
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

    /// The warps that multiply, with their barrier: 0 is the block's, those after it are the groups'.
    fn consumers(&self) -> Participants {
        let named_barrier = Some(self.tile.groups + 1);
        Participants { warps: self.consumer_warps(), named_barrier }
    }

    /// Tiles of rows of the native layout in a block.
    fn native_tiles(&self) -> u32 {
        self.tile.rows() / self.main.problem.plan.native.rows
    }

    /// Matrices that the block multiplies: of each as many native tiles, one matrix after another.
    fn together(&self) -> u32 {
        self.main.problem.together()
    }

    /// The numbers in the stack of the matrices that the block multiplies; `None` of a single matrix.
    fn matrices(&self, b: &mut Builder) -> Vec<Option<Operand>> {
        let matrix = |shard| self.matrix.number.map(|first| b.add(first, shard));
        (0..self.together()).map(matrix).collect()
    }

    /// Native tiles of each matrix.
    fn tiles_of_matrix(&self) -> u32 {
        self.native_tiles() / self.together()
    }

    /// Tiles of rows of a warp group of one matrix.
    fn own_tiles(&self) -> u32 {
        self.tile.row_tiles / self.together()
    }

    /// The distance of a warp's tiles of rows in native tiles: those of a warp group, or of a matrix.
    fn tiles_apart(&self) -> u32 {
        if self.together() > 1 { self.tiles_of_matrix() } else { self.group_warps() }
    }

    /// Rows of y of a block.
    fn rows_of_y(&self) -> u32 {
        self.tile.rows() / self.together()
    }
}
