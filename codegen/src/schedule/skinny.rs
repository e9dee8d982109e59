//! Skinny products: y[M <= 16, N] = x w^T + bias, bound by reading the weights once.
//!
//! In: a [`MainLoop`] and a [`SkinnyTile`]. Out: a kernel, not yet verified.
//!
//! The weights are the A operand of the product, dequantised in registers, so that D is y^T with tokens
//! as columns. A block computes `row_tiles` tiles of 16 rows; its warps split K by whole k-tiles and add
//! their sums in shared memory. A warp has one k-tile of weights and x in registers: it multiplies that
//! k-tile, then issues all loads of the next one, while other warps work. The first weights are loaded
//! before the grid wait (prefetch). x is small and is read from L2; no warp waits for another before the
//! epilogue, unless the block makes its operand of x itself (`own_operand`). Scales multiply the sums of a
//! segment in f32 (`sums`), or the weights during dequantisation; zero points that are small integers are folded
//! into the constants of the last dequantisation steps. With one or two tokens scales that take several
//! operations for each weight multiply sums instead (`group_columns`).
//!
//! The loads are grouped behind a branch, past which the assembler cannot sink them to their uses. They
//! are at the end of the k-tile, or, where dequantisation takes long, after the last use of each tile's
//! codes ([`SkinnyTile::interleaved`]).
//!
//! With `splits` > 1 several blocks share the K of one range of rows: see `epilogue`. A block of an expert layer's second
//! product may have all experts of a token, which its warps share out: see `combined`; where pairs are not sorted, a block may find
//! those of one expert by itself: see `pair_group`.

mod activation;
mod choice;
mod early_weights;
mod group_columns;
mod own_operand;
mod params;
mod weights;

use quantloom_dsl::experts::OperandOf;

use crate::ir::{Builder, Extent, Kernel, LaunchConfig, Op, Operand, Reg, Special};
use crate::target::Class;

use super::activation::ActivationProblem;
use super::buffers::ProductBuffers;
use super::combined::{CombinedBlock, ExpertsOfToken};
use super::constants::{Constants, RowRange};
use super::dequantise::{ByRow, StepOfA, steps};
use super::epilogue::{AccumulatorFragment, Epilogue, gated};
use super::lanes::Tokens;
use super::mapping::{KRange, MainLoop};
use super::pair_group::PairSearch;
use super::participants::Participants;
use super::problem::Problem;
use super::routed_block::RoutedBlock;
use super::rows::TokenRows;
use super::stack::{GuessedMatrix, Matrix};
use super::sums::{SegmentScales, Summing};
use super::table::Table;
use super::unscheduled::Unscheduled;
use super::weights_prefetch::WeightsPrefetch;
use activation::Activation;
use early_weights::{EarlyWeights, FirstWeights};
use group_columns::GroupColumns;
use own_operand::OwnOperand;
use params::TileParams;
use weights::{InFlight, LaneWeights, masked};

pub use choice::SkinnyTile;

/// Everything that the parts of the kernel share.
struct Skinny<'p> {
    main: &'p MainLoop<'p>,
    /// The lane's part of the fragment of x.
    x_fragment: &'p Tokens,
    tile: SkinnyTile,
    /// The columns of D that have groups, if any do.
    groups: Option<GroupColumns>,
    io: ProductBuffers,
    /// The operand of x, if the block makes it.
    operand: Option<&'p ActivationProblem>,
    lane: Operand,
    warp: Operand,
    place: Place,
    weights: LaneWeights<'p>,
    /// The first weights, where a guess has loaded them before.
    early: Option<FirstWeights>,
}

/// Writes the kernel; the choices are valid.
///
/// # Errors
/// An instruction that does not read x from registers.
fn skinny(main: &MainLoop<'_>, tile: SkinnyTile) -> Result<Kernel, Unscheduled> {
    let x_fragment = main.x_fragment()?;
    let blocks = main.problem.grid_row_tiles().div_ceil(tile.row_tiles);
    let grid = [blocks, tile.splits, 1].map(Extent::Constant);
    let warp = main.problem.target().gpu.map_or(32, |gpu| gpu.warp);
    let (threads, min_blocks) = (tile.warps * warp, tile.min_blocks);
    let launch =
        LaunchConfig { grid, threads, min_blocks, cluster: 1, programmatic: tile.programmatic };
    let operand = tile.makes_operand.0.then(|| own_operand::problem(main, &tile)).flatten();
    let of_x = operand.as_ref().map_or(String::new(), |operand| format!("x_{}", operand.own));
    let name = main.problem.kernel_name(&(tile.label() + &of_x));
    let summary = format!(
        "y[m <= {}, {}] = x[m, {}] w^T; codes by {}.\nA block owns {} rows of w; {} warps split K{}.",
        tile.tokens,
        main.problem.n,
        main.problem.k,
        main.problem.plan.dequant,
        16 * tile.row_tiles,
        tile.warps_of_matrix(main.problem),
        if tile.matrices(main.problem) > 1 { " of each expert" } else { "" },
    );
    let mut b = Builder::new(&name, &summary, main.problem.target(), launch);
    let given = operand.as_ref().and_then(|_| main.problem.of_given_x());
    let io = ProductBuffers::declare(&mut b, given.as_ref().unwrap_or(main.problem), tile.tokens);
    let read = (io, operand.as_ref());
    match main.problem.stack.zip(io.order) {
        None => {
            let place = |b: &mut Builder, _| Place::single(b, (&io, tile));
            Skinny::start(&mut b, (main, x_fragment), (tile, read), (place, None)).write(&mut b);
        }
        Some(experts) if experts.0.combined => {
            let place = ((io.m, main.problem.n), blocks);
            let block = CombinedBlock::begin(&mut b, experts, place);
            let early = tile.guesses(main.problem).then(|| {
                let warp = b.special(Special::Warp);
                let pair = Place::pair_of_warp(&mut b, (main, tile), block, warp);
                let guess = block.guess(&mut b, pair);
                tile.load_early(&mut b, main, &io, block.row_block, guess)
            });
            if tile.programmatic {
                b.push(Op::GridWait);
                b.push(Op::GridLaunch);
            }
            let place = |b: &mut Builder, warp| Place::combined(b, (main, tile), block, warp);
            Skinny::start(&mut b, (main, x_fragment), (tile, read), (place, early)).write(&mut b);
        }
        Some(experts) => {
            let shape = (blocks, tile.splits);
            let prefetch =
                WeightsPrefetch::new(main.problem, &io, (tile.row_tiles, threads, min_blocks));
            let programmatic = (tile.programmatic, prefetch);
            let block = RoutedBlock::begin(&mut b, experts, shape, programmatic);
            let block = match tile.groups_pairs.0 {
                true => block.grouping(&mut b, tile.tokens),
                false => block,
            };
            let zeros = |b: &mut Builder| {
                let rows = tile.row_tiles * main.problem.plan.native.rows;
                gated::zeros(b, (main, &io), &block, (rows, Participants::block(tile.warps)));
            };
            let write = |b: &mut Builder, matrix| {
                let place = |b: &mut Builder, _| Place::routed(b, tile, (&block, matrix));
                Skinny::start(b, (main, x_fragment), (tile, read), (place, None)).write(b);
            };
            block.when_in_use(&mut b, write, zeros);
        }
    }
    Ok(b.finish())
}

impl SkinnyTile {
    /// Whether blocks that add a token's experts guess these: measured on Hopper, and where each row of h is written, also that of a
    /// pair without an expert here, which is read before the expert is known. Operands that differ by expert have no such rows.
    fn guesses(&self, problem: &Problem) -> bool {
        let all_written = problem.stack.is_some_and(|stack| stack.operand == OperandOf::Row);
        self.programmatic && all_written && problem.target().class == Class::Hopper
    }

    /// Loads the first weights of a guessed matrix, for a block with this number along the rows of w.
    fn load_early<'p>(
        self,
        b: &mut Builder,
        main: &'p MainLoop<'p>,
        io: &ProductBuffers,
        block: Operand,
        guess: GuessedMatrix,
    ) -> EarlyWeights<'p> {
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let k_tiles = self.k_tiles_of_warp(b, main, (warp, 0u32.into()));
        EarlyWeights::load(b, (main, self), (io, lane), (block, guess), k_tiles)
    }

    /// The k-tiles of a warp: whole ones, distributed evenly over the warps that multiply its matrix, of all blocks
    /// that split K.
    fn k_tiles_of_warp(
        self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        (warp, split): (Operand, Operand),
    ) -> KRange {
        let warps = self.warps_of_matrix(main.problem);
        let warp = if self.matrices(main.problem) > 1 { b.rem(warp, warps) } else { warp };
        let part = b.mad(split, warps, warp);
        KRange::part(b, part, self.splits * warps, main.k_iters())
    }
}

/// The sums over a warp's k-tiles.
enum Sums {
    /// Per tile of rows and of tokens, as D has them.
    OfTokens(Vec<Vec<Vec<Reg>>>),
    /// Where columns of D have groups.
    OfGroups {
        groups: GroupColumns,
        /// A fragment of ones, if sums of x are needed.
        ones: Option<Vec<Reg>>,
        /// Per tile of rows, one for each row of a lane.
        sums: Vec<Vec<Reg>>,
    },
}

/// Where the work of a warp is.
struct Place {
    /// The block's number along the rows of w.
    block: Operand,
    /// The block's number among those that split K; `None` if not known yet.
    split: Option<Operand>,
    /// The number of the block's tile of y along the tokens, and the number of such tiles.
    token_block: (Operand, Operand, Extent),
    /// The tokens of the warp: of all warps the same, unless the block combines experts.
    rows: TokenRows,
    /// The block's token, if it combines its experts, and whether the expert of this warp is here.
    combined: Option<(CombinedBlock, Operand)>,
    /// The search for the block's tokens, if it has to find them.
    search: Option<PairSearch>,
    matrix: Matrix,
}

impl Place {
    /// In a product with a single matrix.
    fn single(b: &mut Builder, (io, tile): (&ProductBuffers, SkinnyTile)) -> Self {
        let block = b.special(Special::Block(0));
        let m = b.argument(io.m);
        Self {
            block,
            split: None,
            token_block: (0u32.into(), 1u32.into(), Extent::Constant(1)),
            rows: TokenRows::single(0u32.into(), tile.tokens, m),
            combined: None,
            search: None,
            matrix: Matrix::SINGLE,
        }
    }

    /// In a block of an expert layer.
    fn routed(b: &mut Builder, tile: SkinnyTile, (block, matrix): (&RoutedBlock, Matrix)) -> Self {
        Self {
            block: block.row_block,
            split: Some(block.split),
            token_block: block.y_block(b),
            rows: block.rows(b, tile.tokens),
            combined: None,
            search: block.search(),
            matrix,
        }
    }

    /// The pair of a warp of a block that combines the experts of a token.
    fn pair_of_warp(
        b: &mut Builder,
        (main, tile): (&MainLoop<'_>, SkinnyTile),
        block: CombinedBlock,
        warp: Operand,
    ) -> Operand {
        b.comment("this warp's expert of the token");
        let choice = b.div(warp, tile.warps_of_matrix(main.problem));
        block.pair(b, choice)
    }

    /// In a block that combines the experts of a token.
    fn combined(
        b: &mut Builder,
        (main, tile): (&MainLoop<'_>, SkinnyTile),
        block: CombinedBlock,
        warp: Operand,
    ) -> Self {
        let pair = Self::pair_of_warp(b, (main, tile), block, warp);
        let (here, matrix) = block.expert(b, pair, true.into());
        Self {
            block: block.row_block,
            split: Some(0u32.into()),
            token_block: (0u32.into(), 1u32.into(), Extent::Constant(1)),
            rows: block.rows_of_pair(pair, tile.tokens),
            combined: Some((block, here)),
            search: None,
            matrix,
        }
    }
}

impl<'p> Skinny<'p> {
    /// The parts of a block, whose place may differ between its warps: `place` gets the warp's number. Its first weights may be on
    /// their way.
    fn start(
        b: &mut Builder,
        (main, x_fragment): (&'p MainLoop<'p>, &'p Tokens),
        (tile, (io, operand)): (SkinnyTile, (ProductBuffers, Option<&'p ActivationProblem>)),
        (place, early): (impl FnOnce(&mut Builder, Operand) -> Place, Option<EarlyWeights<'p>>),
    ) -> Self {
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let place = place(b, warp);
        let groups = GroupColumns::of(main, tile.tokens);
        let (weights, early) = match early {
            Some(early) => {
                let (weights, first) = early.of(b, place.matrix);
                (weights, Some(first))
            }
            None => {
                let at = (place.block, place.matrix);
                (LaneWeights::place(b, (main, tile), (&io, lane), at), None)
            }
        };
        Self { main, x_fragment, tile, groups, io, operand, lane, warp, place, weights, early }
    }

    fn write(&self, b: &mut Builder) {
        if self.waits() {
            b.push(Op::GridLaunch);
        }
        let of_warp = self.k_tiles(b);
        let loaded;
        let (flight, some) = match &self.early {
            Some(FirstWeights { flight, exists, .. }) => (flight, *exists),
            None => {
                b.comment("weights of the first k-tile: constant, so before earlier kernels end");
                loaded = self.weights.in_flight(b);
                let some = b.less(of_warp.start, of_warp.end);
                self.weights.load(b, &loaded, of_warp.start, some);
                (&loaded, some)
            }
        };
        let multiply = |b: &mut Builder| self.write_product(b, flight, (of_warp, some));
        match self.place.search {
            Some(search) => {
                // The weights are on their way meanwhile.
                let found = search.run(b, self.participants());
                b.when(found, multiply);
            }
            None => multiply(b),
        }
    }

    /// What follows the loads of the first k-tile's weights, of the warp's k-tiles from `start` to `end`, if there are `some`.
    fn write_product(
        &self,
        b: &mut Builder,
        flight: &InFlight,
        (KRange { start, end }, some): (KRange, Operand),
    ) {
        let programmatic = self.waits();
        let (rows, tokens) = (self.rows(), self.tile.tokens);
        let added = self.tile.matrices(self.main.problem);
        let constants = Constants::declare(b, self.main.problem, added * rows, added * tokens);
        let first = b.mul(self.place.block, rows);
        let of_rows = RowRange {
            first,
            count: rows,
            end: self.main.problem.n,
            matrix: self.place.matrix,
            of_tile: self.main.problem.plan.native.rows,
        };
        if self.place.combined.is_none() {
            constants.copy_rows(b, &self.io, of_rows, self.participants());
        }
        let table = Table::declare(b, &self.main.problem.plan.dequant);
        if table.is_some() {
            self.participants().wait(b);
        }
        let own = self.operand.map(|problem| OwnOperand::declare(b, self, problem, &constants));
        let x = Activation::place(b, self, own.as_ref());
        let summing = Summing::declare(b, self.main);
        let sums = match self.groups {
            Some(groups) => Sums::OfGroups {
                groups,
                ones: self.main.problem.correction.map(|_| self.ones(b)),
                sums: groups.accumulators(b, self),
            },
            None => Sums::OfTokens(self.accumulators(b)),
        };
        if programmatic {
            b.push(Op::GridWait);
        }
        let copy = |b: &mut Builder| self.copy_after_wait(b, &constants, of_rows);
        let copied = self.early.is_none().then(|| copy(b));
        if let Some(own) = own {
            own.make(b, self);
        }
        let words = x.in_flight(b, self);
        x.load(b, self, &words, start, some);
        // Where weights are on their way already, nothing that needs the expert comes before x.
        let experts = copied.unwrap_or_else(|| copy(b));
        if let Some(early) = &self.early {
            let some = b.less(start, end);
            b.when(early.wrong, |b| self.weights.load(b, flight, start, some));
        }
        b.for_each(start, end, 1u32, "k_tile", |b, k_tile| {
            let following = b.add(k_tile, 1u32);
            let more = b.less(following, end);
            let used = |b: &mut Builder, tile| {
                if self.tile.interleaved {
                    b.when(more, |b| {
                        self.weights.load_tile(b, flight, tile, following, true.into())
                    });
                }
            };
            match &sums {
                Sums::OfTokens(sums) => {
                    self.multiply(b, (&summing, table), sums, (&x, &words), flight, used);
                }
                Sums::OfGroups { ones, sums, .. } => {
                    let ones = ones.as_deref();
                    self.multiply_groups(b, (ones, table), sums, &words, flight, used);
                }
            }
            b.comment("what is left of the next k-tile");
            b.when(more, |b| {
                if !self.tile.interleaved {
                    self.weights.load(b, flight, following, true.into());
                }
                x.load(b, self, &words, following, true.into());
            });
        });
        b.copy_wait(0);
        let sums = match sums {
            Sums::OfTokens(sums) => sums,
            Sums::OfGroups { groups, sums, .. } => groups.of_tokens(b, self, &sums),
        };
        let held = AccumulatorFragment {
            sums: &sums,
            registers: &self.columns(),
            part: self.warp,
            first_row: 0u32.into(),
            lane: self.lane,
        };
        self.epilogue(b, constants, experts).write(b, &held, None);
    }

    /// Starts the copies of the block's constants that depend on earlier kernels.
    fn copy_after_wait(
        &self,
        b: &mut Builder,
        constants: &Constants,
        rows: RowRange,
    ) -> Option<ExpertsOfToken> {
        let by = self.participants();
        match self.place.combined {
            Some((block, _)) => {
                block.copy_constants(b, (constants, &self.io), (rows, self.tile.tokens), by);
                Some(block.copy_experts(b, by))
            }
            None => {
                let first = self.place.rows.number(b, 0u32.into());
                constants.copy_tokens(b, &self.io, (first, &self.place.rows), by);
                None
            }
        }
    }

    /// Whether the kernel waits for earlier ones after its first weights: a block of an expert layer has waited already.
    fn waits(&self) -> bool {
        self.tile.programmatic && self.main.problem.stack.is_none()
    }

    /// Rows of a block.
    fn rows(&self) -> u32 {
        self.tile.row_tiles * self.main.problem.plan.native.rows
    }

    fn epilogue(
        &self,
        b: &mut Builder,
        constants: Constants,
        experts: Option<ExpertsOfToken>,
    ) -> Epilogue<'p> {
        let (main, tile) = (self.main, self.tile);
        let split = self.split(b);
        let token_rows = match self.place.combined {
            Some((block, _)) => block.row_of_y(b, tile.tokens),
            None => self.place.rows,
        };
        Epilogue {
            main,
            io: self.io,
            constants,
            rows: self.rows(),
            tokens: tile.tokens,
            parts: tile.warps,
            splits: tile.splits,
            at_once: 1,
            participants: self.participants(),
            token_rows,
            row_block: (self.place.block, main.problem.grid_row_tiles().div_ceil(tile.row_tiles)),
            token_block: self.place.token_block,
            split,
            experts,
        }
    }

    /// The block's number among those that split K.
    fn split(&self, b: &mut Builder) -> Operand {
        match self.place.split {
            Some(split) => split,
            None if self.tile.splits > 1 => b.special(Special::Block(1)),
            None => 0u32.into(),
        }
    }

    /// All warps of the block.
    fn participants(&self) -> Participants {
        Participants::block(self.tile.warps)
    }

    /// The k-tiles of this warp; none where its expert is not here.
    fn k_tiles(&self, b: &mut Builder) -> KRange {
        let of_warp = match &self.early {
            Some(early) => early.k_tiles,
            None => {
                b.comment("this warp's k-tiles");
                let split = self.split(b);
                self.tile.k_tiles_of_warp(b, self.main, (self.warp, split))
            }
        };
        match self.place.combined {
            Some((_, here)) => {
                let KRange { start, end } = of_warp;
                KRange { start, end: b.select(here, end, start) }
            }
            None => of_warp,
        }
    }

    fn token_tiles(&self) -> u32 {
        self.tile.tokens.div_ceil(self.main.token_tile())
    }

    /// Registers of D that hold tokens; for one token only those of a lane's first token.
    fn columns(&self) -> Vec<usize> {
        let d = &self.main.lanes().d;
        let held = |&register: &usize| d.tokens[d.registers[register][1]] < self.tile.tokens;
        (0..d.registers.len()).filter(held).collect()
    }

    /// Per tile of rows and of tokens, the sums over this warp's k-tiles.
    fn accumulators(&self, b: &mut Builder) -> Vec<Vec<Vec<Reg>>> {
        let (tokens, registers) = (self.token_tiles(), self.main.lanes().d.registers.len() as u32);
        let mut of_tile = |_| (0..tokens).map(|_| b.zeros("sum", registers)).collect();
        (0..self.tile.row_tiles).map(&mut of_tile).collect()
    }

    /// Adds the products of the loaded k-tile to the sums; calls `used` after each tile of rows.
    fn multiply(
        &self,
        b: &mut Builder,
        (summing, table): (&Summing<'_>, Option<Table>),
        sums: &[Vec<Vec<Reg>>],
        (x, words): (&Activation, &activation::InFlight),
        flight: &InFlight,
        mut used: impl FnMut(&mut Builder, usize),
    ) {
        let (main, segment_steps) = (self.main, self.main.segment_steps() as usize);
        let (of_step, columns) = (main.step_registers() as usize, self.columns());
        let of_x: Vec<_> = words.x.iter().map(|x| summing.of_x(b, x)).collect();
        let x_codes: Vec<_> =
            (0..words.x.len()).map(|tokens| x.codes(b, self, words, tokens)).collect();
        for (tile, (chunks, sums)) in flight.codes.iter().zip(sums).enumerate() {
            let numbers = TileParams { skinny: self, flight, tile };
            let mut by_row = ByRow { zeros: numbers.zeros(b), scales: numbers.of_weights(b) };
            let codes = numbers.of_product(b);
            let mut parts: Vec<Vec<Reg>> = Vec::new();
            steps(b, (main, table), chunks, &mut by_row, |b, StepOfA { step, before, a }| {
                let (segment, first) = (before / segment_steps, before % segment_steps == 0);
                if first {
                    parts = sums.iter().map(|sums| summing.part_of(b, sums)).collect();
                }
                for ((part, x), x_codes) in parts.iter().zip(&words.x).zip(&x_codes) {
                    let x = &x[of_step * step..of_step * (step + 1)];
                    let scales = codes.get(step).zip(x_codes.get(step));
                    let scales = scales.map(|(&of_w, &of_x)| [of_w, of_x]);
                    summing.step(b, part, (&a, x), scales, first);
                }
                if (before + 1) % segment_steps > 0 {
                    return;
                }
                let scales = numbers.scales(b, segment as u32);
                for (tokens, (part, sums)) in parts.iter().zip(sums).enumerate() {
                    let tokens_of = x.scales(self, words, tokens, segment as u32);
                    let scales = SegmentScales { tokens: tokens_of, ..scales.clone() };
                    let of_x = of_x[tokens].get(segment);
                    summing.add(b, sums, (part, of_x), &scales, &columns);
                }
            });
            used(b, tile);
        }
    }
}
