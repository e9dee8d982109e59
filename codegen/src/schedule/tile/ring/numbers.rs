//! The numbers of groups in the ring: of w by warp, of x by token.

use super::{Tile, inside};
use crate::ir::{Address, BufferId, Builder, Cache, Operand, Reg, SharedId, Type, Width};
use crate::schedule::chunk::width;
use crate::schedule::dequantise;
use crate::schedule::grouped::Grouped;
use crate::schedule::problem::{InputScale, Problem};
use crate::schedule::sums::RunScales;
use crate::schedule::tile::TileShape;

/// Scales, zero points and addends of w, as far as there are any.
pub(super) struct Numbers(Vec<Kind>);

/// One kind of them.
struct Kind {
    of: Grouped,
    buffer: BufferId,
    /// Words of a copy.
    piece: u32,
    /// What this lane copies: the first word of turn 0, and whether there is one.
    copies: Vec<(Operand, Operand)>,
    /// Where this lane copies to in a stage.
    to: Operand,
    /// Where it reads the first tile of rows.
    at: Operand,
    shift: Option<Operand>,
}

impl Numbers {
    fn kinds(problem: &Problem) -> impl Iterator<Item = Grouped> {
        [problem.scale, problem.zero, problem.addend].into_iter().flatten()
    }

    fn warp_words(of: &Grouped, shape: TileShape, problem: &Problem) -> u32 {
        (shape.row_tiles(problem) * of.tile_words(problem)).next_multiple_of(4)
    }

    /// Words of a stage.
    pub(super) fn words(shape: TileShape, problem: &Problem) -> u32 {
        Self::kinds(problem).map(|of| shape.warps * Self::warp_words(&of, shape, problem)).sum()
    }

    pub(super) fn declare(
        b: &mut Builder,
        tile: &Tile<'_>,
        first_tile: Operand,
        first: u32,
    ) -> Self {
        let (problem, shape, io) = (tile.problem, tile.shape, tile.io);
        let buffers = [io.scale, io.zero, io.addend].into_iter().flatten();
        let mut first = first;
        b.comment("numbers of groups: what this lane copies, and what it reads");
        let kinds = Self::kinds(problem).zip(buffers).map(|(of, buffer)| {
            let tile_words = of.tile_words(problem);
            // Numbers that several rows share begin anywhere.
            let piece = if of.rows > 1 { 1 } else { 4 };
            let (pieces, warp) = (tile_words / piece, b.warp_size());
            let all = shape.row_tiles(problem) * pieces;
            let copies = (0..all).step_by(warp as usize).map(|round| {
                let number = b.add(tile.lane, round);
                let there = if round + warp <= all { true.into() } else { b.less(number, all) };
                let of_tile = b.div(number, pieces);
                let of_tile = b.add(first_tile, of_tile);
                let of_tile = inside(b, tile, of_tile);
                let word = of.tile_word(b, problem, of_tile);
                let in_tile = b.rem(number, pieces);
                (b.mad(in_tile, piece, word), there)
            });
            let copies = copies.collect();
            let warp_words = Self::warp_words(&of, shape, problem);
            let of_warp = b.mad(tile.warp, warp_words, first);
            let lane_word = of.lane_word(b, problem, tile.lane);
            let kind = Kind {
                of,
                buffer,
                piece,
                copies,
                to: b.mad(tile.lane, piece, of_warp),
                at: b.add(of_warp, lane_word),
                shift: of.lane_shift(b, problem, tile.lane),
            };
            first += shape.warps * warp_words;
            kind
        });
        Self(kinds.collect())
    }

    /// Starts the copies of a turn.
    pub(super) fn copy(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        turn: Operand,
        stage: Operand,
    ) {
        for kind in &self.0 {
            let to = b.add(kind.to, stage);
            let turn = kind.of.turn_word(b, tile.problem, turn);
            for (round, &(from, there)) in (0..).zip(&kind.copies) {
                let from = b.add(from, turn);
                let to = Address::new(block, to).plus(round * b.warp_size() * kind.piece);
                let copy = |b: &mut Builder| {
                    b.copy_async(to, Address::new(kind.buffer, from), width(kind.piece), None);
                };
                if there == Operand::Pred(true) { copy(b) } else { b.when(there, copy) }
            }
        }
    }

    /// The words that a lane reads of a tile of rows.
    fn read(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        (block, stage): (SharedId, Operand),
        (buffer, row_tile): (Option<BufferId>, u32),
    ) -> Option<(&Kind, Vec<Reg>)> {
        let kind = self.0.iter().find(|kind| Some(kind.buffer) == buffer)?;
        let at = b.add(kind.at, stage);
        let from = Address::new(block, at).plus(row_tile * kind.of.tile_words(tile.problem));
        let words = kind.of.lane_words(tile.problem);
        let pieces = (0..words).step_by(kind.piece as usize);
        let load = |piece: u32| b.load(from.plus(piece), width((words - piece).min(kind.piece)));
        let words = pieces.flat_map(load).collect();
        Some((kind, words))
    }

    pub(super) fn zeros(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        row_tile: u32,
    ) -> Vec<Reg> {
        let words = self.read(b, tile, (block, stage), (tile.io.zero, row_tile));
        words.map(|(_, words)| words).unwrap_or_default()
    }

    /// What multiplies the sums of a tile of rows, as it lies in the stage.
    pub(super) fn scales(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        row_tile: u32,
    ) -> Scales<'_> {
        let mut read = |buffer| self.read(b, tile, (block, stage), (buffer, row_tile));
        Scales { scale: read(tile.io.scale), addend: read(tile.io.addend) }
    }
}

/// Words of the scales and addends of a tile of rows in a turn, if it has such.
pub(in crate::schedule::tile) struct Scales<'r> {
    scale: Option<(&'r Kind, Vec<Reg>)>,
    addend: Option<(&'r Kind, Vec<Reg>)>,
}

impl Scales<'_> {
    /// What the decoding of the turn multiplies with, if it does.
    pub(in crate::schedule::tile) fn of_weights(
        &self,
        b: &mut Builder,
        problem: &Problem,
    ) -> Option<dequantise::Scales> {
        let (kind, words) = self.scale.as_ref()?;
        kind.of.of_weights(b, problem, (words, kind.shift))
    }

    /// Those of a run, as numbers.
    pub(in crate::schedule::tile) fn of_run(
        &self,
        b: &mut Builder,
        problem: &Problem,
        run: u32,
    ) -> RunScales {
        let mut values = |read: &Option<(&Kind, Vec<Reg>)>, exponent| {
            let (kind, words) = read.as_ref()?;
            let group = kind.of.of_run(problem, run);
            Some(kind.of.values(b, (words, kind.shift), group, exponent))
        };
        let rows =
            if problem.scales_runs() { values(&self.scale, problem.exponent()) } else { None };
        RunScales { rows, tokens: None, addend: values(&self.addend, 0) }
    }
}

/// Scales of x that change along K: `[token][group of the turn]`.
pub(super) struct InputScales {
    buffer: BufferId,
    columns: u32,
    /// Words of a copy.
    piece: u32,
    /// What this thread copies: the first scale of turn 0, whether its token is there, and whether
    /// there is anything to copy.
    copies: Vec<[Operand; 3]>,
    /// Where this thread copies to in a stage.
    to: Operand,
    /// Where this lane reads the first tile of tokens.
    at: Operand,
}

impl InputScales {
    fn columns(problem: &Problem) -> Option<u32> {
        match problem.input.scale {
            Some(InputScale::Columns(columns)) => Some(columns),
            Some(InputScale::Row) | None => None,
        }
    }

    /// Scales of a token in a turn.
    fn of_turn(problem: &Problem, columns: u32) -> u32 {
        (problem.turn / columns).max(1)
    }

    /// Words of a stage.
    pub(super) fn words(shape: TileShape, problem: &Problem) -> u32 {
        Self::columns(problem).map_or(0, |columns| {
            (shape.tokens * Self::of_turn(problem, columns)).next_multiple_of(4)
        })
    }

    pub(super) fn declare(b: &mut Builder, tile: &Tile<'_>, first: u32) -> Option<Self> {
        let (problem, shape) = (tile.problem, tile.shape);
        let (columns, buffer) = (Self::columns(problem)?, tile.io.x_scale?);
        let (of_turn, groups) = (Self::of_turn(problem, columns), problem.input_groups()?);
        let piece = of_turn.min(4);
        let (pieces, threads) = (of_turn / piece, shape.warps * b.warp_size());
        let all = shape.tokens * pieces;
        b.comment("scales of x: what this thread copies, and what this lane reads");
        let thread = b.mad(tile.warp, b.warp_size(), tile.lane);
        let copies = (0..all).step_by(threads as usize).map(|round| {
            let number = b.add(thread, round);
            let inside = if round + threads <= all { true.into() } else { b.less(number, all) };
            let token = b.div(number, pieces);
            let token = b.mad(tile.token_block, shape.tokens, token);
            let there = b.less(token, tile.m);
            let in_token = b.rem(number, pieces);
            let in_token = b.mul(in_token, piece);
            [b.mad(token, groups, in_token), there, inside]
        });
        let copies = copies.collect();
        let to = b.mad(thread, piece, first);
        let token = b.rem(tile.lane, problem.row_lanes());
        let token = b.mul(token, 2u32);
        let at = b.mad(token, of_turn, first);
        Some(Self { buffer, columns, piece, copies, to, at })
    }

    /// Starts the copies of a turn.
    pub(super) fn copy(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        turn: Operand,
        stage: Operand,
    ) {
        let problem = tile.problem;
        let to = b.add(self.to, stage);
        let group = b.div(turn, (self.columns / problem.turn).max(1));
        let group = b.mul(group, Self::of_turn(problem, self.columns));
        let threads = tile.shape.warps * b.warp_size();
        for (round, &[from, there, inside]) in (0..).zip(&self.copies) {
            let from = b.add(from, group);
            let to = Address::new(block, to).plus(round * threads * self.piece);
            let copy = |b: &mut Builder| {
                b.copy_async(to, Address::new(self.buffer, from), width(self.piece), Some(there));
            };
            if inside == Operand::Pred(true) { copy(b) } else { b.when(inside, copy) }
        }
    }

    /// The scales of this lane's two tokens of a tile in a run.
    pub(super) fn read(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        (token_tile, run): (u32, u32),
    ) -> [Operand; 2] {
        let problem = tile.problem;
        let of_turn = Self::of_turn(problem, self.columns);
        let group = run * problem.run() / self.columns.min(problem.turn);
        let at = b.add(self.at, stage);
        [0, 1].map(|token| {
            let token = token_tile * problem.token_tile() + token;
            let from = Address::new(block, at).plus(token * of_turn + group);
            b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0].into()
        })
    }
}
