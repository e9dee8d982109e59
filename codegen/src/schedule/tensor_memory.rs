//! Products for any M on tensor memory: y[M, N] = x w^T + bias in tiles of 128 rows of w and a few tokens.
//!
//! In: a [`MainLoop`] whose instruction scales its operands, and a [`TmemTile`]. Out: a kernel, not yet verified.
//!
//! The weights are operand A and x is operand B, both read from shared memory as they are stored, so that D is y^T with
//! tokens as columns of tensor memory. A block has three programs, which meet in a ring of stages, a k-tile each:
//!
//! | warps | before | does | after |
//! |---|---|---|---|
//! | 4: the producer, one thread | waits for `empty` | starts tensor copies of codes and of x (`stages`) | the copies arrive at `full` |
//! | 0 to 3 | wait for `empty` | load the k-tile's scales, and store them to tensor memory (`scales`) | one lane a warp arrives at `full` |
//! | 5: one thread | waits for `full` | starts a product for each step of the k-tile | the products' end arrives at `empty` |
//!
//! Warps 0 to 3, which reach all lanes of tensor memory, then load D and write y. The native layout of codes is such that a
//! chunk of a tile of rows is, as a copy leaves it, what the instruction reads without a swizzle
//! ([`plan::native`](crate::plan::native)). Scales go through registers: rows 32 c + l of w and of x belong to lane l of
//! column c, in all four quarters of the lanes, and each warp writes its own.

mod scales;
mod shape;
mod stages;

use crate::ir::{
    Address, BarrierRef, Builder, Extent, Kernel, LaunchConfig, MatrixOp, Op, Operand, Reg,
    SharedId, Special, TmemAddress, TmemOp, Type, Width, Word,
};

use super::buffers::ProductBuffers;
use super::constants::{Constants, RowRange};
use super::epilogue::{AccumulatorFragment, Epilogue};
use super::mapping::{KRange, MainLoop};
use super::participants::Participants;
use super::rows::TokenRows;
use super::stack::Matrix;
use super::warp_group::ring::Ring;
use scales::Scales;
use stages::Stages;

pub use shape::TmemTile;

/// Rows of w of a block: those of the instruction.
const ROWS: u32 = crate::target::TMEM_LANES;
/// The warps that have the scales and write y.
const SCALE_WARPS: u32 = 4;
/// The warp whose first thread copies, and the one whose first thread multiplies.
const COPY_WARP: u32 = SCALE_WARPS;
const PRODUCT_WARP: u32 = SCALE_WARPS + 1;
/// Warps of a block.
const WARPS: u32 = PRODUCT_WARP + 1;
/// The barrier of the warps that write y.
const BARRIER: u32 = 1;

/// Everything that the parts of the kernel share.
struct Block<'p> {
    main: &'p MainLoop<'p>,
    op: &'static MatrixOp,
    tile: TmemTile,
    io: ProductBuffers,
    /// The block's number along the tokens, along the rows of w, and among those that split K.
    token_block: Operand,
    row_block: Operand,
    split: Operand,
    /// M.
    m: Operand,
    /// The address of the block's columns: of D, then of the scales of each stage.
    columns: Operand,
}

/// Writes the kernel; the choices are valid.
fn write(main: &MainLoop<'_>, op: &'static MatrixOp, tile: TmemTile) -> Kernel {
    let problem = main.problem;
    let launch = LaunchConfig {
        grid: [Extent::Constant(1); 3],
        threads: WARPS * problem.target().gpu.map_or(32, |gpu| gpu.warp),
        min_blocks: 1,
        cluster: 1,
        programmatic: tile.programmatic,
    };
    let name = problem.kernel_name(&tile.label());
    let summary = format!(
        "y[m, {}] = x[m, {}] w^T by {}.\n\
         A block has {ROWS} rows of w and {} tokens, and its sums in tensor memory.",
        problem.n, problem.k, op.name, tile.tokens,
    );
    let mut b = Builder::new(&name, &summary, problem.target(), launch);
    let io = ProductBuffers::declare(&mut b, problem, tile.tokens);
    let fixed = Extent::Constant;
    let row_blocks = fixed(problem.row_tiles());
    b.grid([Extent::CeilDiv(io.m, tile.tokens), row_blocks, fixed(tile.splits)]);
    b.tmem_columns(tile.columns(main));
    let [token_block, row_block] = [0, 1].map(|axis| b.special(Special::Block(axis)));
    let split = if tile.splits > 1 { b.special(Special::Block(2)) } else { 0u32.into() };
    let m = b.argument(io.m);
    let columns = 0u32.into();
    let block = Block { main, op, tile, io, token_block, row_block, split, m, columns };
    block.write(&mut b);
    b.finish()
}

impl Block<'_> {
    fn write(self, b: &mut Builder) {
        let stages = Stages::declare(b, &self);
        // The producer's announcement, and a lane of each warp that has written scales.
        let ring = Ring::declare(b, (self.tile.stages, 1 + SCALE_WARPS, (1, 1)));
        let array = b.barriers("done", 1);
        let done = BarrierRef { array, index: 0u32.into() };
        let at = b.shared("columns", Word::U32, 4, "the address of the block's tensor memory");
        let (thread, warp) = (b.special(Special::Thread), b.special(Special::Warp));
        let first = b.equal(thread, 0u32);
        // The ring's fence is for all mbarriers of the thread that initialises them.
        b.when(first, |b| b.push(Op::MbarrierInit { barrier: done, arrivals: 1 }));
        ring.initialise(b);
        let allocates = b.equal(warp, 0u32);
        b.when(allocates, |b| b.tmem_allocate(Address::new(at, 0u32)));
        b.barrier();
        if self.tile.programmatic {
            // A kernel that starts now finds the columns taken, and does not wait for what this one has not allocated.
            b.push(Op::GridLaunch);
        }
        let columns = b.load(Address::new(at, 0u32), Width::B32)[0].into();
        let block = Self { columns, ..self };
        let of_block = block.k_tiles(b);
        let lane = b.special(Special::Lane);
        let leads = b.equal(lane, 0u32);
        let own = b.role("scales and y", 0..SCALE_WARPS, None, |b| {
            let constants = block.constants(b);
            Scales::new(b, &block, (lane, warp)).write(b, (&ring, of_block), leads);
            block.finish(b, (constants, done, stages.codes), (thread, warp));
            let frees = b.equal(warp, 0u32);
            b.when(frees, |b| {
                b.tmem(TmemOp::FenceAfter);
                b.tmem(TmemOp::Free { base: columns });
            });
        });
        let copies = b.role("copies", COPY_WARP..PRODUCT_WARP, None, |b| {
            b.when(leads, |b| block.copy(b, (&ring, &stages), of_block));
        });
        let products = b.role("products", PRODUCT_WARP..WARPS, None, |b| {
            b.when(leads, |b| block.multiply(b, (&ring, &stages), of_block, done));
        });
        b.roles(vec![own, copies, products]);
    }

    /// The block's k-tiles.
    fn k_tiles(&self, b: &mut Builder) -> KRange {
        KRange::part(b, self.split, self.tile.splits, self.main.k_iters())
    }

    /// The program of the thread that copies.
    fn copy(
        &self,
        b: &mut Builder,
        (ring, stages): (&Ring, &Stages),
        KRange { start, end }: KRange,
    ) {
        if self.tile.programmatic {
            b.push(Op::GridWait);
        }
        let cursor = ring.cursor(b);
        b.for_each(start, end, 1u32, "k_tile", |b, k_tile| {
            let phase = cursor.phase();
            ring.acquire(b, phase);
            let barrier = ring.expect(b, phase, stages.bytes());
            stages.copy(b, self, (k_tile, phase.stage), barrier);
            let next = ring.after(b, phase);
            cursor.move_to(b, next);
        });
    }

    /// The program of the thread that multiplies.
    fn multiply(
        &self,
        b: &mut Builder,
        (ring, stages): (&Ring, &Stages),
        KRange { start, end }: KRange,
        done: BarrierRef,
    ) {
        let d = TmemAddress::new(self.columns);
        let cursor = ring.cursor(b);
        b.for_each(start, end, 1u32, "k_tile", |b, k_tile| {
            let phase = cursor.phase();
            ring.wait(b, phase);
            b.tmem(TmemOp::FenceAfter);
            let later = b.less(start, k_tile);
            for step in 0..self.steps() {
                let adds = if step == 0 { later } else { true.into() };
                let operands = stages.operands(b, self, (phase.stage, step));
                let of_step = scales::of_step(b, self, (phase.stage, step));
                b.tmem_product((self.op, self.tile.tokens), (d, adds), operands, of_step);
            }
            b.tmem_commit(ring.end_of_reads(phase));
            let next = ring.after(b, phase);
            cursor.move_to(b, next);
        });
        b.tmem_commit(done);
    }

    /// Steps of the product in a k-tile.
    fn steps(&self) -> u32 {
        self.main.k_tile() / self.main.step()
    }

    /// The warps that write y.
    fn writers() -> Participants {
        Participants { warps: SCALE_WARPS, named_barrier: Some(BARRIER) }
    }

    /// Starts the copies of the epilogue's constants.
    fn constants(&self, b: &mut Builder) -> Constants {
        let problem = self.main.problem;
        let constants = Constants::declare(b, problem, ROWS, self.tile.tokens);
        let of_rows = RowRange {
            first: b.mul(self.row_block, ROWS),
            count: ROWS,
            end: problem.n,
            matrix: Matrix::SINGLE,
            of_tile: problem.plan.native.rows,
        };
        constants.copy_rows(b, &self.io, of_rows, Self::writers());
        if self.tile.programmatic {
            b.push(Op::GridWait);
        }
        let rows = self.token_rows();
        let first = rows.number(b, 0u32.into());
        constants.copy_tokens(b, &self.io, (first, &rows), Self::writers());
        b.copy_commit();
        constants
    }

    fn token_rows(&self) -> TokenRows {
        TokenRows::single(self.token_block, self.tile.tokens, self.m)
    }

    /// Loads the sums when all products are complete, and writes y.
    fn finish(
        &self,
        b: &mut Builder,
        (constants, done, codes): (Constants, BarrierRef, SharedId),
        (thread, warp): (Operand, Operand),
    ) {
        let (main, tokens) = (self.main, self.tile.tokens);
        b.comment("the sums");
        b.push(Op::MbarrierWait { barrier: done, parity: 0u32.into() });
        b.tmem(TmemOp::FenceAfter);
        let lanes = b.shl(warp, 21u32);
        let own = b.add(self.columns, lanes);
        let sums = b.array("sum", Type::F32, tokens, crate::ir::Uniformity::Varying);
        for (part, dst) in sums.chunks(LOAD as usize).enumerate() {
            let from = TmemAddress::new(own).plus(part as u32 * LOAD);
            b.tmem(TmemOp::Load { dst: dst.to_vec(), from });
        }
        b.tmem(TmemOp::WaitLoads);
        b.tmem(TmemOp::FenceBefore);
        b.copy_wait(0);
        let of_tile = main.token_tile() as usize;
        let sums: Vec<Vec<Reg>> = sums.chunks(of_tile).map(<[Reg]>::to_vec).collect();
        let registers: Vec<usize> = (0..of_tile).collect();
        let held = AccumulatorFragment {
            sums: &[sums],
            registers: &registers,
            part: 0u32.into(),
            first_row: 0u32.into(),
            lane: thread,
        };
        let token_blocks =
            if self.tile.splits > 1 { b.special(Special::Blocks(0)) } else { 1u32.into() };
        let epilogue = Epilogue {
            main,
            io: self.io,
            constants,
            rows: ROWS,
            tokens,
            parts: 1,
            splits: self.tile.splits,
            at_once: if main.problem.n.is_multiple_of(4) { 4 } else { 1 },
            participants: Self::writers(),
            token_rows: self.token_rows(),
            row_block: (self.row_block, main.problem.row_tiles()),
            token_block: (self.token_block, token_blocks, Extent::CeilDiv(self.io.m, tokens)),
            split: self.split,
            experts: None,
        };
        // No copy and no product uses the stages any more.
        let over = self.tile.sums_take_codes(main).then_some(codes);
        epilogue.write(b, &held, over);
    }
}

/// Columns that a load from tensor memory brings.
const LOAD: u32 = 32;
