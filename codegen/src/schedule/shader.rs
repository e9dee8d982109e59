//! Products without matrix instructions, for any M: y[M, N] = x w^T + bias with scalar arithmetic per lane.
//!
//! In: a [`MainLoop`] and a [`ShaderTile`]. Out: a kernel, not yet verified.
//!
//! A lane computes one row of w in each of its tiles of 16 rows, for some tokens. It loads its codes of a
//! chunk of columns at once (the words of 16 lanes are adjacent), dequantises them in registers and
//! multiplies them with x. All lanes of a tile read the same x, in vectors of 16 bytes from the cache: f32,
//! with one fused multiply-add per weight and token, or bytes, four per dot product. Columns that share
//! their parameters are summed separately. A block has groups of 16 lanes, which have different rows or
//! different chunks of K. They add their sums in shared memory, from which threads store neighbouring
//! rows of y together.
//!
//! The kernel needs nothing but barriers: no lockstep of lanes, no order of blocks. On targets with
//! shuffles, neighbouring lanes add the parts of K together.
//! `decode` writes a plan's sequences, `params` reads group parameters, `results` is the epilogue.

mod choice;
mod decode;
mod params;
mod results;

use crate::ir::{
    Address, Binary, Builder, Cache, Extent, Kernel, LaunchConfig, Operand, Reg, Special, Ternary,
    Type, Unary, Uniformity, Width,
};

use self::params::{OfKTile, Params};
use super::buffers::ProductBuffers;
use super::chunk::{chunk_words, loads, planes, tile_words, width};
use super::epilogue::gated;
use super::input::InputScale;
use super::mapping::MainLoop;
use super::participants::Participants;
use super::routed_block::RoutedBlock;
use super::rows::TokenRows;
use super::stack::Matrix;
use super::table::Table;

pub use choice::ShaderTile;
pub(super) use decode::writable;

/// Columns of x that a lane loads at once.
const VECTOR: u32 = 4;
/// Ones in four bytes.
const ONES: u32 = 0x0101_0101;

/// Writes the kernel; the choices are valid.
fn shader(main: &MainLoop<'_>, tile: ShaderTile) -> Kernel {
    let rows = main.problem.grid_row_tiles().div_ceil(tile.row_tiles * tile.groups);
    let threads = tile.threads(main);
    let grid = [Extent::Constant(1); 3];
    let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic: false };
    let name = main.problem.kernel_name(&tile.label());
    let summary = format!(
        "y[m, {}] = x[m, {}] w^T; codes by {}.\nA block owns {} rows of w and {} of x; {} groups of \
         lanes split K.",
        main.problem.n,
        main.problem.k,
        main.problem.plan.dequant,
        tile.rows(main),
        tile.tokens,
        tile.parts,
    );
    let mut b = Builder::new(&name, &summary, main.problem.target(), launch);
    let io = ProductBuffers::declare(&mut b, main.problem, tile.tokens);
    match main.problem.stack.zip(io.order) {
        None => {
            let one = Extent::Constant(1);
            b.grid([Extent::Constant(rows), Extent::CeilDiv(io.m, tile.tokens), one]);
            Shader::start(&mut b, main, (tile, io)).write(&mut b);
        }
        Some(experts) => {
            let block = RoutedBlock::begin(&mut b, experts, (rows, 1), (false, None));
            let zeros = |b: &mut Builder| {
                let warps = Participants::block(tile.groups * tile.parts);
                gated::zeros(b, (main, &io), &block, (tile.rows(main), warps));
            };
            let write = |b: &mut Builder, matrix| {
                Shader::start_routed(b, main, (tile, io), (&block, matrix)).write(b);
            };
            block.when_in_use(&mut b, write, zeros);
        }
    }
    b.finish()
}

/// Everything that the parts of the kernel share.
struct Shader<'p> {
    main: &'p MainLoop<'p>,
    tile: ShaderTile,
    io: ProductBuffers,
    lane: Operand,
    /// This group of lanes' number among those that split K, and among the block's tiles of rows.
    part: Operand,
    group: Operand,
    /// The block's number along the rows of w; `None` if the epilogue reads it again.
    row_block_known: Option<Operand>,
    /// The tokens.
    rows: TokenRows,
    /// The matrix.
    matrix: Matrix,
    /// The lane's tiles of rows.
    tiles: Vec<RowTile>,
    /// Per token, its row of x; for tokens that do not exist, that of another one.
    tokens: Vec<Operand>,
}

/// A tile of rows of a lane.
struct RowTile {
    /// Its number; for tiles beyond the last, that of the last.
    number: Operand,
    /// Its matrix, and the first word of that matrix's codes.
    matrix: Matrix,
    codes: Operand,
}

/// The sums of a segment before they are scaled: per tile of rows and token; and, if there is a
/// zero-point correction, the sum of x per token.
struct Segment {
    parts: Vec<Vec<Reg>>,
    of_x: Vec<Reg>,
}

impl<'p> Shader<'p> {
    fn start(
        b: &mut Builder,
        main: &'p MainLoop<'p>,
        (tile, io): (ShaderTile, ProductBuffers),
    ) -> Self {
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let (row_block, token_block) = (b.special(Special::Block(0)), b.special(Special::Block(1)));
        let m = b.argument(io.m);
        let rows = TokenRows::single(token_block, tile.tokens, m);
        Self::place(b, (main, tile, io), (lane, warp), (row_block, None), (rows, Matrix::SINGLE))
    }

    /// [`Self::start`] for a block of an expert layer.
    fn start_routed(
        b: &mut Builder,
        main: &'p MainLoop<'p>,
        (tile, io): (ShaderTile, ProductBuffers),
        (block, matrix): (&RoutedBlock, Matrix),
    ) -> Self {
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        let (row_block, rows) = (block.row_block, block.rows(b, tile.tokens));
        let known = Some(row_block);
        Self::place(b, (main, tile, io), (lane, warp), (row_block, known), (rows, matrix))
    }

    /// Finds the block's tiles of rows and its rows of x.
    fn place(
        b: &mut Builder,
        (main, tile, io): (&'p MainLoop<'p>, ShaderTile, ProductBuffers),
        (lane, warp): (Operand, Operand),
        (row_block, row_block_known): (Operand, Option<Operand>),
        (rows, matrix): (TokenRows, Matrix),
    ) -> Self {
        b.comment("neighbouring groups of lanes have neighbouring chunks of K");
        let (part, group) = (b.rem(warp, tile.parts), b.div(warp, tile.parts));
        let first = b.mad(row_block, tile.groups, group);
        let first = b.mul(first, tile.row_tiles);
        let last = main.problem.row_tiles() - 1;
        let ragged = !main.problem.grid_row_tiles().is_multiple_of(tile.row_tiles * tile.groups);
        let tiles = (0..tile.row_tiles).map(|at| {
            let number = b.add(first, at);
            let (number, matrix) = matrix.tile(b, number);
            let number = if ragged { b.binary(Binary::Min, number, last) } else { number };
            let codes = tile_words(main.problem) * main.problem.row_tiles();
            RowTile { number, matrix, codes: matrix.first_word(b, codes) }
        });
        let tiles = tiles.collect();
        let first = rows.number(b, 0u32.into());
        let readable = rows.readable(b, tile.tokens);
        let tokens = (0..tile.tokens).map(|at| {
            let number = b.add(first, at);
            readable.row(b, number)
        });
        let tokens = tokens.collect();
        Self { main, tile, io, lane, part, group, row_block_known, rows, matrix, tiles, tokens }
    }

    fn write(&self, b: &mut Builder) {
        let main = self.main;
        let sums = self.sums(b);
        let table = Table::declare(b, &main.problem.plan.dequant);
        if table.is_some() {
            b.barrier();
        }
        let [scale, correction] =
            [(main.problem.scale, self.io.scale), (main.problem.correction, self.io.correction)]
                .map(|(of, buffer)| {
                    Some(Params::new(b, main, (of?, buffer?), (&self.tiles, self.lane)))
                });
        let x_rows: Vec<Operand> =
            self.tokens.iter().map(|token| b.mul(*token, main.problem.input.columns)).collect();
        let x_scales: Option<Vec<Operand>> = self.x_groups().map(|_| {
            let groups = main.problem.input.groups().unwrap_or(1);
            self.tokens.iter().map(|token| b.mul(*token, groups)).collect()
        });
        // If all columns share all parameters, they are one segment.
        let whole = main.problem.plan.scale.segment.is_none().then(|| self.segment(b));
        let chunks = main.problem.chunks();
        let of_k_tile = |b: &mut Builder, k_tile: Operand| {
            [&scale, &correction].map(|numbers| Some(numbers.as_ref()?.load(b, main, k_tile)))
        };
        let rows = x_scales.as_deref();
        b.for_each(self.part, chunks, self.tile.parts, "chunk", |b, chunk| {
            let numbers = if whole.is_none() { of_k_tile(b, chunk) } else { [None, None] };
            let weights: Vec<Vec<Operand>> = self
                .tiles
                .iter()
                .map(|tile| {
                    let words = self.load_codes(b, tile, chunk);
                    decode::decode(b, (&main.problem.plan.dequant, table), &words)
                })
                .collect();
            let first = b.mul(chunk, main.problem.plan.native.columns);
            let x: Vec<Operand> = x_rows.iter().map(|row| b.add(*row, first)).collect();
            match &whole {
                Some(segment) => {
                    let columns = 0..main.problem.plan.native.columns;
                    self.multiply(b, segment, &weights, &x, columns);
                }
                None => {
                    let columns = main.segment();
                    for segment in 0..main.problem.plan.native.columns / columns {
                        let sum = self.segment(b);
                        let first = segment * columns;
                        self.multiply(b, &sum, &weights, &x, first..first + columns);
                        self.close(b, &sums, &sum, (&numbers, rows), (chunk, segment));
                    }
                }
            }
        });
        if let Some(segment) = &whole {
            let numbers = of_k_tile(b, 0u32.into());
            self.close(b, &sums, segment, (&numbers, rows), (0u32.into(), 0));
        }
        self.results(b, &sums);
    }

    /// Columns that share a scale of x; `None` if all do.
    fn x_groups(&self) -> Option<u32> {
        match self.main.problem.input.scale? {
            InputScale::Row => None,
            InputScale::Columns(columns) => Some(columns),
        }
    }

    /// Zeroed sums, per tile of rows and token.
    fn sums(&self, b: &mut Builder) -> Vec<Vec<Reg>> {
        (0..self.tile.row_tiles).map(|_| b.zeros("sum", self.tile.tokens)).collect()
    }

    /// Zeroed sums of a segment.
    fn segment(&self, b: &mut Builder) -> Segment {
        let integers = self.main.problem.sums_integers();
        let (ty, zero): (Type, Operand) =
            if integers { (Type::U32, 0u32.into()) } else { (Type::F32, 0.0f32.into()) };
        let mut of = |name: &str| {
            let regs = b.array(name, ty, self.tile.tokens, Uniformity::Varying);
            regs.iter().for_each(|reg| b.set(*reg, zero));
            regs
        };
        let parts = (0..self.tile.row_tiles).map(|_| of("part")).collect();
        let of_x = if self.main.problem.correction.is_some() { of("of_x") } else { Vec::new() };
        Segment { parts, of_x }
    }

    /// Loads a lane's words of codes of a chunk, plane by plane.
    fn load_codes(&self, b: &mut Builder, tile: &RowTile, chunk: Operand) -> Vec<Reg> {
        let main = self.main;
        let start = b.mul(tile.number, tile_words(main.problem));
        let start = b.mad(chunk, chunk_words(main.problem), start);
        let start = b.add(start, tile.codes);
        let mut all = Vec::new();
        for (first, words) in planes(main.problem) {
            let at = b.mad(self.lane, words, start);
            for (vector, words) in loads(words) {
                let from = Address::new(self.io.codes, at).plus(first + vector);
                all.extend(b.load_as(Type::U32, from, width(words), None, Cache::Constant));
            }
        }
        all
    }

    /// segment += weights x, for some columns of the chunk.
    fn multiply(
        &self,
        b: &mut Builder,
        segment: &Segment,
        weights: &[Vec<Operand>],
        x: &[Operand],
        columns: std::ops::Range<u32>,
    ) {
        let integers = self.main.problem.sums_integers();
        // Four columns are four registers of f32, or one of bytes.
        let at_once = if integers { VECTOR * VECTOR } else { VECTOR };
        let at_once = at_once.min(columns.end - columns.start);
        for first in columns.step_by(at_once as usize) {
            for (token, start) in x.iter().enumerate() {
                let (ty, each, width) = match (integers, at_once) {
                    (false, 1) => (Type::F32, 1, Width::B32),
                    (false, 2) => (Type::F32, 1, Width::B64),
                    (false, _) => (Type::F32, 1, Width::B128),
                    (true, 16) => (Type::U32, VECTOR, Width::B128),
                    (true, 8) => (Type::U32, VECTOR, Width::B64),
                    (true, _) => (Type::U32, VECTOR, Width::B32),
                };
                let from = Address::new(self.io.x, *start).plus(first);
                let words = b.load_as(ty, from, width, None, Cache::Default);
                for (at, x) in (first / each..).zip(words) {
                    for (weights, parts) in weights.iter().zip(&segment.parts) {
                        self.accumulate(b, parts[token], weights[at as usize], x);
                    }
                    match (segment.of_x.get(token), integers) {
                        (None, _) => {}
                        (Some(sum), true) => self.accumulate(b, *sum, ONES.into(), x),
                        (Some(sum), false) => {
                            let total = b.add_f32(*sum, x);
                            b.set(*sum, total);
                        }
                    }
                }
            }
        }
    }

    /// sum += weight x, for one column or four bytes.
    fn accumulate(&self, b: &mut Builder, sum: Reg, weight: Operand, x: Reg) {
        if self.main.problem.sums_integers() {
            let dot = Ternary::Dot4 { a_signed: true, b_signed: true };
            let total = b.ternary(dot, weight, x, sum);
            b.set(sum, total);
        } else {
            b.accumulate(sum, weight, x);
        }
    }

    /// sums += segment, scaled, plus the correction of each row.
    fn close(
        &self,
        b: &mut Builder,
        sums: &[Vec<Reg>],
        segment: &Segment,
        ([scale, correction], x_rows): (&[Option<OfKTile<'_>>; 2], Option<&[Operand]>),
        (chunk, number): (Operand, u32),
    ) {
        let float = |b: &mut Builder, sum: Reg| match self.main.problem.sums_integers() {
            true => b.unary(Unary::F32FromS32, sum),
            false => sum.into(),
        };
        let of_tokens: Option<Vec<Operand>> = x_rows.zip(self.io.x_scale).map(|(rows, buffer)| {
            let group = self.x_group(b, chunk, number);
            let mut load = |row: &Operand| {
                let at = b.add(*row, group);
                let from = Address::new(buffer, at);
                b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0].into()
            };
            rows.iter().map(&mut load).collect()
        });
        for (tile, (sums, parts)) in sums.iter().zip(&segment.parts).enumerate() {
            let [scale, correction] = [scale, correction]
                .map(|numbers| Some(numbers.as_ref()?.value(b, self.main, (tile, number))));
            for (token, (sum, part)) in sums.iter().zip(parts).enumerate() {
                let of_token = of_tokens.as_ref().map(|scales| scales[token]);
                let with_token = |b: &mut Builder, number: Operand| match of_token {
                    Some(of_token) => b.mul_f32(number, of_token),
                    None => number,
                };
                let part = float(b, *part);
                let factor = match (scale, of_token) {
                    (Some(scale), _) => Some(with_token(b, scale)),
                    (None, of_token) => of_token,
                };
                match factor {
                    Some(factor) => b.accumulate(*sum, factor, part),
                    None => {
                        let total = b.add_f32(*sum, part);
                        b.set(*sum, total);
                    }
                }
                if let Some(correction) = correction {
                    let (correction, of_x) =
                        (with_token(b, correction), float(b, segment.of_x[token]));
                    b.accumulate(*sum, correction, of_x);
                }
            }
        }
    }

    /// The number of the scale of x for a segment of a chunk, within a row.
    fn x_group(&self, b: &mut Builder, chunk: Operand, segment: u32) -> Operand {
        let (own, columns) = (self.main.problem.plan.native.columns, self.x_groups().unwrap_or(1));
        if columns >= own {
            return b.div(chunk, columns / own);
        }
        let group = b.mul(chunk, own / columns);
        b.add(group, segment * self.main.segment() / columns)
    }
}
