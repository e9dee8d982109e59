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
mod group_columns;
mod own_operand;
mod params;

use crate::ir::{
    Address, Binary, Builder, Cache, Extent, Kernel, LaunchConfig, Mask, Op, Operand, Reg, Special,
    Type, Uniformity,
};

use super::activation::ActivationProblem;
use super::buffers::ProductBuffers;
use super::chunk::{chunk_words, loads, planes, tile_words, width};
use super::combined::{CombinedBlock, ExpertsOfToken};
use super::constants::{Constants, RowRange};
use super::dequantise::{ByRow, StepOfA, steps};
use super::epilogue::{AccumulatorFragment, Epilogue, gated};
use super::lanes::Tokens;
use super::mapping::MainLoop;
use super::pair_group::PairSearch;
use super::participants::Participants;
use super::routed_block::RoutedBlock;
use super::rows::TokenRows;
use super::stack::Matrix;
use super::sums::{SegmentScales, Summing};
use super::table::Table;
use super::unscheduled::Unscheduled;
use super::weights_prefetch::WeightsPrefetch;
use activation::Activation;
use group_columns::GroupColumns;
use own_operand::OwnOperand;
use params::{LaneParams, TileParams};

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
    /// Per tile of rows, this lane's first word of codes of each plane.
    codes: Vec<Vec<Operand>>,
    /// The group parameters that the product has: scales, zero points, corrections.
    params: Vec<LaneParams>,
}

/// The registers for one k-tile, filled by loads in flight.
struct InFlight {
    /// Per tile and chunk, the codes, plane by plane.
    codes: Vec<Vec<Vec<Reg>>>,
    /// Per group parameter and tile, the words of its values.
    params: Vec<Vec<Vec<Reg>>>,
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
            Skinny::start(&mut b, (main, x_fragment), (tile, read), place).write(&mut b);
        }
        Some(experts) if experts.0.combined => {
            let place = ((io.m, main.problem.n), blocks);
            let block = CombinedBlock::begin(&mut b, experts, place, tile.programmatic);
            let place = |b: &mut Builder, warp| Place::combined(b, (main, tile), block, warp);
            Skinny::start(&mut b, (main, x_fragment), (tile, read), place).write(&mut b);
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
                Skinny::start(b, (main, x_fragment), (tile, read), place).write(b);
            };
            block.when_in_use(&mut b, write, zeros);
        }
    }
    Ok(b.finish())
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

    /// In a block that combines the experts of a token.
    fn combined(
        b: &mut Builder,
        (main, tile): (&MainLoop<'_>, SkinnyTile),
        block: CombinedBlock,
        warp: Operand,
    ) -> Self {
        b.comment("this warp's expert of the token");
        let choice = b.div(warp, tile.warps_of_matrix(main.problem));
        let pair = block.pair(b, choice);
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
    /// The parts of a block, whose place may differ between its warps: `place` gets the warp's number.
    fn start(
        b: &mut Builder,
        (main, x_fragment): (&'p MainLoop<'p>, &'p Tokens),
        (tile, (io, operand)): (SkinnyTile, (ProductBuffers, Option<&'p ActivationProblem>)),
        place: impl FnOnce(&mut Builder, Operand) -> Place,
    ) -> Self {
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let place = place(b, warp);
        let (codes, params) = (Vec::new(), Vec::new());
        let groups = GroupColumns::of(main, tile.tokens);
        let mut this =
            Self { main, x_fragment, tile, groups, io, operand, lane, warp, place, codes, params };
        this.place_tiles(b);
        this
    }

    /// Computes where this lane's codes and group parameters of each tile begin. The distance of
    /// consecutive tiles of one matrix is a constant; in a ragged last block, tiles beyond the last are
    /// computed again and not stored.
    fn place_tiles(&mut self, b: &mut Builder) {
        let (main, tile) = (self.main, self.tile);
        let first = b.mul(self.place.block, tile.row_tiles);
        let ragged = !main.problem.grid_row_tiles().is_multiple_of(tile.row_tiles);
        b.comment("this lane's codes, and the numbers of its rows");
        let apart = ragged || self.place.matrix.together > 1;
        let tiles = if apart { tile.row_tiles } else { 1 };
        let numbers = (0..tiles).map(|r| {
            let number = b.add(first, r);
            let (number, matrix) = self.place.matrix.tile(b, number);
            let number = if ragged {
                b.binary(Binary::Min, number, main.problem.row_tiles() - 1)
            } else {
                number
            };
            (number, matrix)
        });
        let numbers: Vec<(Operand, Matrix)> = numbers.collect();
        let holder = main.lanes().a.holder.of(b, self.lane);
        let lanes = planes(main.problem).map(|(_, words)| b.mul(holder, words));
        let lanes: Vec<Operand> = lanes.collect();
        let matrix_words = tile_words(main.problem) * main.problem.row_tiles();
        let place = |(number, matrix): &(Operand, Matrix)| {
            let matrix = matrix.first_word(b, matrix_words);
            let place = |lane: &Operand| {
                let word = b.mad(*number, tile_words(main.problem), *lane);
                b.add(word, matrix)
            };
            lanes.iter().map(place).collect()
        };
        self.codes = numbers.iter().map(place).collect();
        for (of, buffer) in self.io.group_params(main.problem) {
            let own = of.lane_word(b, main, self.lane);
            // Tiles that share a number have no constant distance.
            let further = if of.rows > 1 && !apart { tile.row_tiles } else { 1 };
            let tiles = numbers.iter().flat_map(|&number| (0..further).map(move |r| (number, r)));
            let tiles = tiles.map(|((number, matrix), r)| {
                let number = b.add(number, r);
                let word = of.tile_word(b, main.problem, number);
                let word = b.add(word, own);
                let matrix = matrix.first_word(b, of.matrix_words(main.problem));
                b.add(word, matrix)
            });
            let tiles = tiles.collect();
            let shift = of.lane_shift(b, main, self.lane);
            self.params.push(LaneParams { of, buffer, tiles, shift });
        }
    }

    /// The start of a tile, and the constant offset from there.
    fn tile_start<T: Copy>(starts: &[T], tile: usize, apart: u32) -> (T, u32) {
        match starts {
            [first] => (*first, tile as u32 * apart),
            starts => (starts[tile], 0),
        }
    }

    fn write(&self, b: &mut Builder) {
        if self.waits() {
            b.push(Op::GridLaunch);
        }
        let (start, end) = self.k_tiles_of_warp(b);
        b.comment("weights of the first k-tile: constant, so before earlier kernels end");
        let flight = self.in_flight(b);
        let some = b.less(start, end);
        self.load(b, &flight, start, some);
        let multiply = |b: &mut Builder| self.write_product(b, &flight, (start, end, some));
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
        (start, end, some): (Operand, Operand, Operand),
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
        let experts = match self.place.combined {
            Some((block, _)) => {
                let of = (&constants, &self.io);
                block.copy_constants(b, of, (of_rows, tokens), self.participants());
                Some(block.copy_experts(b, self.participants()))
            }
            None => {
                let first = self.place.rows.number(b, 0u32.into());
                constants.copy_tokens(b, &self.io, (first, &self.place.rows), self.participants());
                None
            }
        };
        if let Some(own) = own {
            own.make(b, self);
        }
        let words = x.in_flight(b, self);
        x.load(b, self, &words, start, some);
        b.for_each(start, end, 1u32, "k_tile", |b, k_tile| {
            let following = b.add(k_tile, 1u32);
            let more = b.less(following, end);
            let used = |b: &mut Builder, tile| {
                if self.tile.interleaved {
                    b.when(more, |b| self.load_tile(b, flight, tile, following, true.into()));
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
                    self.load(b, flight, following, true.into());
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

    /// The k-tiles of this warp: whole ones, distributed evenly over the warps that multiply its matrix, of all blocks
    /// that split K.
    fn k_tiles_of_warp(&self, b: &mut Builder) -> (Operand, Operand) {
        let warps = self.tile.warps_of_matrix(self.main.problem);
        let parts = self.tile.splits * warps;
        let k_iters = self.main.k_iters();
        b.comment("this warp's k-tiles");
        let split = self.split(b);
        let warp = if self.place.combined.is_some() { b.rem(self.warp, warps) } else { self.warp };
        let part = b.mad(split, warps, warp);
        let share = b.mul(part, k_iters);
        let start = b.div(share, parts);
        let share = b.add(share, k_iters);
        let end = b.div(share, parts);
        let end = match self.place.combined {
            Some((_, here)) => b.select(here, end, start),
            None => end,
        };
        (start, end)
    }

    fn in_flight(&self, b: &mut Builder) -> InFlight {
        let (tiles, chunks) = (self.tile.row_tiles, self.main.k_tile_chunks());
        let words = self.main.problem.lane_words();
        let codes = |b: &mut Builder| b.array("codes", Type::U32, words, Uniformity::Varying);
        let codes = (0..tiles).map(|_| (0..chunks).map(|_| codes(b)).collect()).collect();
        let mut numbers = |of: &LaneParams| {
            let words = of.of.lane_words(self.main);
            let tile = |_| b.array("numbers", Type::U32, words, Uniformity::Varying);
            (0..tiles).map(tile).collect()
        };
        let params = self.params.iter().map(&mut numbers).collect();
        InFlight { codes, params }
    }

    /// Loads the codes and group parameters of a k-tile, if the k-tile exists.
    fn load(&self, b: &mut Builder, flight: &InFlight, k_tile: Operand, there: Operand) {
        for tile in 0..flight.codes.len() {
            self.load_tile(b, flight, tile, k_tile, there);
        }
    }

    /// [`Self::load`] for one tile of rows.
    fn load_tile(
        &self,
        b: &mut Builder,
        flight: &InFlight,
        tile: usize,
        k_tile: Operand,
        there: Operand,
    ) {
        for (chunk, words) in (0..).zip(&flight.codes[tile]) {
            self.load_codes(b, words, (tile, chunk), k_tile, there);
        }
        for (of, tiles) in self.params.iter().zip(&flight.params) {
            of.load(b, self, (tile, &tiles[tile]), k_tile, there);
        }
    }

    /// Loads one chunk of one tile: of each plane, this lane's words.
    fn load_codes(
        &self,
        b: &mut Builder,
        words: &[Reg],
        (tile, chunk): (usize, u32),
        k_tile: Operand,
        there: Operand,
    ) {
        let (main, chunks) = (self.main, self.main.problem.chunks());
        let (starts, ahead) = match &self.codes[..] {
            [first] => (first, tile as u32 * tile_words(main.problem)),
            starts => (&starts[tile], 0),
        };
        let mask = if chunks.is_multiple_of(main.k_tile_chunks()) {
            there
        } else {
            // The last k-tile is short: missing chunks are multiplied with zeros of x.
            let number = b.mad(k_tile, main.k_tile_chunks(), chunk);
            let inside = b.less(number, chunks);
            b.both(there, inside)
        };
        let mut words = words;
        for ((first, plane), start) in planes(main.problem).zip(starts) {
            let at = b.mad(k_tile, main.k_tile_chunks() * chunk_words(main.problem), *start);
            let from = Address::new(self.io.codes, at);
            let from = from.plus(ahead + chunk * chunk_words(main.problem) + first);
            for (vector, count) in loads(plane) {
                let (own, after) = words.split_at(count as usize);
                b.load_into(own, from.plus(vector), width(count), masked(mask), Cache::Stream);
                words = after;
            }
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

/// A mask, unless it is always true.
fn masked(there: Operand) -> Option<Mask> {
    (there != Operand::Pred(true)).then(|| Mask::or_zero(there))
}
