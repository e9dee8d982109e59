//! A block's ring of stages in shared memory, filled by asynchronous copies of later k-tiles.
//!
//! A stage holds x as `[row of 128 bytes][token][vector]` with vectors of 16 or 8 bytes, then each warp's
//! codes in the native layout, then each warp's group parameters in the native layout (`params`), then
//! scales of x (`input_scales`). Vectors of x are swizzled so that lanes that read together use all banks:
//! the four lanes of a token read adjacent parts of 8, 16 or 32 bytes, of two or four tokens at once, or
//! one such part of each token of a tile. Codes and group parameters are read by the warp that copied
//! them.

mod copies;
mod input_scales;
mod params;
mod swizzle;

use super::Tile;
use super::pipeline::Pipeline;
use super::stage_layout::{StageLayout, StageParts};
use crate::ir::{Address, Binary, Builder, MatrixScale, Op, Operand, Reg, SharedId, Width, Word};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::chunk::{chunk_words, loads, planes, tile_words, width};
use crate::schedule::epilogue::Epilogue;
use crate::schedule::mapping::MainLoop;
use crate::schedule::tile::TileShape;
use input_scales::InputScales;
use params::Params;
use swizzle::TokenSwizzle;

pub(super) use params::Scales;

/// Words of a vector of codes; also of x, unless lanes that read together would use only half of each.
const WORDS: u32 = 4;
/// Words of a row of x in shared memory: all banks.
const ROW: u32 = SHARED_BYTES / 4;

/// The swizzle of x, if the main loop reads x from registers.
pub(super) fn swizzle(main: &MainLoop<'_>) -> Option<TokenSwizzle> {
    main.x_fragment().ok().map(|x_fragment| TokenSwizzle::new(main, x_fragment))
}

/// The layout of a stage.
fn stage_layout(shape: TileShape, main: &MainLoop<'_>) -> StageLayout {
    StageLayout::new(StageParts {
        x: main.problem.input.bytes(main.k_tile()) / 4 * shape.tokens,
        row_tiles: shape.warps * shape.row_tiles(main),
        tile_codes: main.k_tile_chunks() * chunk_words(main.problem),
        params: Params::words(shape, main),
        x_scales: InputScales::words(shape, main),
    })
}

/// Words of a block's shared memory: the ring, which the sums overwrite at the end.
pub(super) fn words(shape: TileShape, main: &MainLoop<'_>) -> u32 {
    let ring = shape.stages * stage_layout(shape, main).words;
    ring.max(Epilogue::words(shape.rows, shape.tokens, 1))
}

/// What a block copies into its stages, and where a lane reads it.
pub(super) struct Ring {
    block: SharedId,
    layout: StageLayout,
    pipeline: Pipeline,
    /// This thread's part of x: its destinations, after which the swizzle repeats; its first word, or in an
    /// expert layer the first word of each of its rows; that word's column in the k-tile; and for each of
    /// its rows whether the row exists.
    x_to: Vec<Operand>,
    x_from: Vec<Operand>,
    x_column: Operand,
    x_rows: Vec<Operand>,
    /// Distance of this thread's consecutive rows.
    x_step: u32,
    /// Per tile of rows, the first word of codes that this lane copies.
    codes_from: Vec<Operand>,
    /// This lane's first vector of codes in a stage.
    codes_to: Operand,
    /// Per plane, this lane's first word in a stage.
    codes_at: Vec<Operand>,
    params: Params,
    x_scales: Option<InputScales>,
    /// Where this lane's words of a row of x are in the first tile of tokens.
    x_at: Vec<Operand>,
    swizzle: TokenSwizzle,
}

/// A k-tile in shared memory.
pub(super) struct Stage<'r> {
    ring: &'r Ring,
    /// Its first word.
    start: Operand,
    x: Vec<Operand>,
    codes: Vec<Operand>,
}

impl Ring {
    pub(super) fn declare(b: &mut Builder, tile: &Tile<'_>) -> Self {
        let (main, shape) = (tile.main, tile.shape);
        let stage = stage_layout(shape, main);
        let layout = format!(
            "{} stages of x [vector, token, row], swizzled, then codes and numbers of each warp",
            shape.stages
        );
        let block = b.shared_block("ring", Word::U32, words(shape, main), &layout, 128, None);
        let ring = (shape.stages, stage.words);
        let pipeline = Pipeline::declare(b, ring, tile.participants());

        b.comment("x: the vectors that this thread copies");
        let swizzle = TokenSwizzle::new(main, tile.x_fragment);
        let (vectors, row_vectors) = (swizzle.vectors(main), ROW / swizzle.vector);
        let threads = tile.participants().threads(b);
        let thread = b.mad(tile.warp, b.warp_size(), tile.lane);
        let x_step = swizzle.apart(main, threads).unwrap_or(shape.tokens);
        // Consecutive threads copy the vectors of one row of 128 bytes, of as many tokens as all banks
        // hold; then those of the next row.
        let in_row = b.rem(thread, row_vectors);
        let rest = b.div(thread, row_vectors);
        let (token, rest) = (b.rem(rest, swizzle.rows), b.div(rest, swizzle.rows));
        let (of_row, rest) =
            (b.rem(rest, vectors / row_vectors), b.div(rest, vectors / row_vectors));
        let row = b.mad(rest, swizzle.rows, token);
        let vector = b.mad(of_row, row_vectors, in_row);
        let firsts = (0..swizzle.period().min(shape.tokens)).step_by(x_step as usize);
        let x_to = firsts.map(|first| {
            let row = b.add(row, first);
            let place = swizzle.place(b, in_row, row);
            let to = b.mad(of_row, shape.tokens, row);
            let to = b.mul(to, ROW);
            b.mad(place, swizzle.vector, to)
        });
        let x_to = x_to.collect();
        let token = tile.rows.number(b, row);
        let x_column = b.mul(vector, swizzle.vector * 4 / main.problem.input.word().bytes());
        let columns = main.problem.input.words(main.problem.input.columns);
        let mut x_from = Vec::new();
        if main.problem.stack.is_none() {
            x_from.push(b.mad(token, columns, x_column));
        }
        let x_rows = (0..shape.tokens / x_step).map(|i| {
            let number = b.add(token, i * x_step);
            let token = tile.rows.token(b, number, true.into());
            let exists = tile.rows.exists(b, token);
            if main.problem.stack.is_some() {
                let row = tile.rows.x_row(b, token, exists);
                x_from.push(b.mad(row, columns, x_column));
            }
            exists
        });
        let x_rows = x_rows.collect();

        b.comment("codes: what this lane copies, and what it reads");
        let tiles = shape.row_tiles(main);
        let first = b.mul(tile.row_block, shape.warps * tiles);
        let first = b.mad(tile.warp, tiles, first);
        let lane_words = b.mul(tile.lane, WORDS);
        let codes_from = (0..tiles).map(|r| {
            let number = b.add(first, r);
            let (number, matrix) = tile.matrix.tile(b, number);
            let number = inside(b, tile, number);
            let word = b.mad(number, tile_words(main.problem), lane_words);
            let matrix = matrix.first_word(b, tile_words(main.problem) * main.problem.row_tiles());
            b.add(word, matrix)
        });
        let codes_from = codes_from.collect();
        let of_warp = b.mad(tile.warp, tiles * stage.tile_codes, stage.codes);
        let codes_to = b.add(of_warp, lane_words);
        let holder = main.lanes().a.holder.of(b, tile.lane);
        let codes_at = planes(main.problem).map(|(first, words)| {
            let at = b.mad(holder, words, of_warp);
            b.add(at, first)
        });
        let codes_at = codes_at.collect();
        let params = Params::declare(b, tile, first, stage.params);
        let x_scales = InputScales::declare(b, tile, stage.x_scales);

        b.comment("x: what this lane reads");
        let row = tile.x_fragment.token.of(b, tile.lane);
        let in_row = tile.x_fragment.part.of(b, tile.lane);
        let at_row = b.mul(row, ROW);
        let lane_words = main.problem.input.bytes(main.lane_columns()) / 4;
        let segment_starts = (0..ROW).step_by((main.row_lanes() * lane_words) as usize);
        let firsts = segment_starts.flat_map(|first| {
            (0..lane_words).step_by(swizzle.words as usize).map(move |word| first + word)
        });
        let x_at = firsts.map(|first| {
            let word = b.mad(in_row, lane_words, first);
            let (vector, in_vector) = (b.div(word, swizzle.vector), b.rem(word, swizzle.vector));
            let place = swizzle.place(b, vector, row);
            let at = b.mad(place, swizzle.vector, in_vector);
            b.add(at, at_row)
        });
        let x_at = x_at.collect();
        Self {
            block,
            layout: stage,
            pipeline,
            x_to,
            x_from,
            x_column,
            x_rows,
            x_step,
            codes_from,
            codes_to,
            codes_at,
            params,
            x_scales,
            x_at,
            swizzle,
        }
    }

    pub(super) const fn block(&self) -> SharedId {
        self.block
    }

    /// Starts the copies of all stages but one: weights first, which no earlier kernel writes.
    pub(super) fn fill(&self, b: &mut Builder, tile: &Tile<'_>, start: Operand, end: Operand) {
        let ahead: Vec<u32> = (0..self.pipeline.ahead()).collect();
        b.comment("the first k-tiles: weights, then x");
        for &ahead in &ahead {
            let k_tile = b.add(start, ahead);
            let there = b.less(k_tile, end);
            let stage = self.pipeline.first(ahead);
            b.when(there, |b| self.copy_weights(b, tile, k_tile, stage));
        }
        if tile.waits() {
            b.push(Op::GridWait);
        }
        for &ahead in &ahead {
            let k_tile = b.add(start, ahead);
            let there = b.less(k_tile, end);
            let stage = self.pipeline.first(ahead);
            b.when(there, |b| self.copy_x(b, tile, k_tile, stage));
            b.copy_commit();
        }
    }

    /// Waits for a k-tile, and starts the copies of a later one.
    pub(super) fn next(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        k_tile: Operand,
        end: Operand,
    ) -> Stage<'_> {
        self.pipeline.wait(b);
        let free = self.pipeline.acquire(b);
        let later = b.add(k_tile, self.pipeline.ahead());
        let there = b.less(later, end);
        b.when(there, |b| {
            self.copy_weights(b, tile, later, free);
            self.copy_x(b, tile, later, free);
        });
        b.copy_commit();

        let start = self.pipeline.start(b);
        let at = |b: &mut Builder, places: &[Operand]| -> Vec<Operand> {
            places.iter().map(|&at| b.add(at, start)).collect()
        };
        let (x, codes) = (at(b, &self.x_at), at(b, &self.codes_at));
        self.pipeline.release(b);
        Stage { ring: self, start, x, codes }
    }

    /// Waits until the ring is no longer in use.
    pub(super) fn finish(&self, b: &mut Builder) {
        self.pipeline.finish(b);
    }

    fn copy_x(&self, b: &mut Builder, tile: &Tile<'_>, k_tile: Operand, stage: Operand) {
        let main = tile.main;
        let columns = main.problem.input.words(main.problem.input.columns);
        let k_tile_words = main.problem.input.words(main.k_tile());
        let to: Vec<Operand> = self.x_to.iter().map(|&to| b.add(to, stage)).collect();
        let from: Vec<Operand> =
            self.x_from.iter().map(|&from| b.mad(k_tile, k_tile_words, from)).collect();
        // The last k-tile may end within a row, at a multiple of a vector: zeros beyond.
        let column_is = (!columns.is_multiple_of(k_tile_words)).then(|| {
            let column = b.mad(k_tile, k_tile_words, self.x_column);
            b.less(column, columns)
        });
        for (i, &row_is) in (0..).zip(&self.x_rows) {
            let mask = column_is.map_or(row_is, |column_is| b.both(row_is, column_is));
            let place = i % to.len() as u32;
            let to = Address::new(self.block, to[place as usize]);
            let to = to.plus((i - place) * self.x_step * ROW);
            // Rows of a single matrix's tokens are a constant distance apart.
            let from = match from[..] {
                [first] => Address::new(tile.io.x, first).plus(i * self.x_step * columns),
                _ => Address::new(tile.io.x, from[i as usize]),
            };
            b.copy_async(to, from, width(self.swizzle.vector), Some(mask));
        }
        if let Some(scales) = &self.x_scales {
            scales.copy(b, tile, self.block, k_tile, stage);
        }
    }

    fn copy_weights(&self, b: &mut Builder, tile: &Tile<'_>, k_tile: Operand, stage: Operand) {
        let main = tile.main;
        let at_once = b.warp_size() * WORDS;
        let to = b.add(self.codes_to, stage);
        let first = b.mul(k_tile, self.layout.tile_codes);
        let own = b.mul(tile.lane, WORDS);
        for (r, &from) in (0..).zip(&self.codes_from) {
            let from = b.add(from, first);
            for word in (0..self.layout.tile_codes).step_by(at_once as usize) {
                // A stage's last vectors may be fewer than lanes, and the last k-tile may be short:
                // missing vectors are zero.
                let there = (!tile_words(main.problem).is_multiple_of(self.layout.tile_codes))
                    .then(|| {
                        let number = b.add(first, own);
                        let number = b.add(number, word);
                        b.less(number, tile_words(main.problem))
                    });
                let to = Address::new(self.block, to).plus(r * self.layout.tile_codes + word);
                let from = Address::new(tile.io.codes, from).plus(word);
                let copy = |b: &mut Builder| b.copy_async(to, from, Width::B128, there);
                if word + at_once <= self.layout.tile_codes {
                    copy(b);
                } else {
                    let inside = b.less(own, self.layout.tile_codes - word);
                    b.when(inside, copy);
                }
            }
        }
        self.params.copy(b, tile, self.block, k_tile, stage);
    }
}

/// A tile of rows that exists: beyond the last tile, the last one, whose results are computed again and
/// not stored.
fn inside(b: &mut Builder, tile: &Tile<'_>, number: Operand) -> Operand {
    let problem = tile.main.problem;
    if problem.grid_row_tiles().is_multiple_of(tile.shape.rows / problem.plan.native.rows) {
        return number;
    }
    b.binary(Binary::Min, number, problem.row_tiles() - 1)
}

impl Stage<'_> {
    /// The factors of the sums of each segment, for this lane's rows of a tile.
    pub(super) fn scales(&self, b: &mut Builder, tile: &Tile<'_>, row_tile: u32) -> Scales<'_> {
        self.ring.params.scales(b, tile, self.ring.block, self.start, row_tile)
    }

    /// The words with the zero points of a tile, and this lane's shift in them.
    pub(super) fn zeros(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        row_tile: u32,
    ) -> (Vec<Reg>, Option<Operand>) {
        self.ring.params.zeros(b, tile, self.ring.block, self.start, row_tile)
    }

    /// The scales of this lane's tokens of a tile in a segment, if x has scales along K.
    pub(super) fn x_scales(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        token_tile: u32,
        segment: u32,
    ) -> Option<Vec<Operand>> {
        let scales = self.ring.x_scales.as_ref()?;
        scales.read(b, tile, self.ring.block, self.start, (token_tile, segment))
    }

    /// The scales of x of a tile of tokens and a step of the k-tile, for an instruction that scales; `read` is the word of
    /// the step before.
    pub(super) fn x_code(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        of: (u32, u32),
        read: &mut Option<(u32, Reg)>,
    ) -> Option<MatrixScale> {
        let scales = self.ring.x_scales.as_ref()?;
        scales.code(b, tile, (self.ring.block, self.start), of, read)
    }

    /// This lane's codes of a tile of rows, per chunk.
    pub(super) fn codes(&self, b: &mut Builder, tile: &Tile<'_>, row_tile: u32) -> Vec<Vec<Reg>> {
        let main = tile.main;
        let tile_first = row_tile * self.ring.layout.tile_codes;
        let chunk = |chunk: u32| {
            let first = tile_first + chunk * chunk_words(main.problem);
            let mut all = Vec::new();
            for ((_, words), &at) in planes(main.problem).zip(&self.codes) {
                for (vector, words) in loads(words) {
                    let from = Address::new(self.ring.block, at).plus(first + vector);
                    all.extend(b.load(from, width(words)));
                }
            }
            all
        };
        (0..main.k_tile_chunks()).map(chunk).collect()
    }

    /// B of a tile of tokens in a segment: its words, step by step.
    pub(super) fn x(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        (token_tile, segment): (u32, u32),
    ) -> Vec<Reg> {
        let (main, shape) = (tile.main, tile.shape);
        let at_once = self.ring.swizzle.words;
        let count = main.step_registers() * main.segment_steps() / at_once;
        let of_row = self.x.len() as u32;
        let load = |load: u32| {
            let row = load / of_row * shape.tokens + token_tile * main.token_tile();
            let at = self.x[(load % of_row) as usize];
            b.load(Address::new(self.ring.block, at).plus(row * ROW), width(at_once))
        };
        (segment * count..(segment + 1) * count).flat_map(load).collect()
    }
}
