//! Scales of x that change along K, in the ring, by token: f32, or words of codes for an instruction that
//! scales.

use super::Tile;
use super::copies::Copies;
use crate::ir::{Address, Builder, Cache, MatrixScale, Operand, SharedId, Type, Width};
use crate::schedule::dequantise::in_register;
use crate::schedule::problem::Problem;
use crate::schedule::tile::TileShape;

/// `[token][group of the turn]`.
pub(super) struct InputScales {
    columns: u32,
    /// What this thread copies.
    copies: Copies,
    /// Where its first piece goes in a stage.
    to: Operand,
    /// Where this lane reads the first tile of tokens.
    at: Operand,
    /// Where a word of codes has the lane's, in bits.
    block: Option<Operand>,
}

impl InputScales {
    fn columns(problem: &Problem) -> Option<u32> {
        problem.input.scale?.columns()
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
        let copies = Copies::deal(b, (buffer, piece), all, (thread, threads), |b, number| {
            let token = b.div(number, pieces);
            let token = b.mad(tile.token_block, shape.tokens, token);
            let there = b.less(token, tile.m);
            let in_token = b.rem(number, pieces);
            let in_token = b.mul(in_token, piece);
            (b.mad(token, groups, in_token), Some(there))
        });
        let to = b.mad(thread, piece, first);
        let scaled = problem.scaled();
        let token = scaled.map_or(&problem.lanes.d.token, |scaled| &scaled.rows.first);
        let token = token.of(b, tile.lane);
        let at = b.mad(token, of_turn, first);
        let block = scaled.map(|scaled| {
            let block = scaled.block.of(b, tile.lane);
            b.mul(block, 8u32)
        });
        Some(Self { columns, copies, to, at, block })
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
        self.copies.start(b, Address::new(block, to), group);
    }

    /// The scales of this lane's tokens of a tile in a run.
    pub(super) fn read(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        (token_tile, run): (u32, u32),
    ) -> Option<Vec<Operand>> {
        let problem = tile.problem;
        if self.block.is_some() {
            return None;
        }
        let of_turn = Self::of_turn(problem, self.columns);
        let group = run * problem.run() / self.columns.min(problem.turn);
        let at = b.add(self.at, stage);
        let of_token = |token: &u32| {
            let token = token_tile * problem.token_tile() + token;
            let from = Address::new(block, at).plus(token * of_turn + group);
            b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0].into()
        };
        Some(problem.lanes.d.tokens.iter().map(of_token).collect())
    }

    /// The code of this lane's token of a tile and its block of a step.
    pub(super) fn code(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        (token_tile, step): (u32, u32),
    ) -> Option<MatrixScale> {
        let (own, problem) = (self.block?, tile.problem);
        let at = b.add(self.at, stage);
        let token = token_tile * problem.token_tile() * Self::of_turn(problem, self.columns);
        let word = b.load(Address::new(block, at).plus(token + step), Width::B32)[0];
        let code = b.shr(word, own);
        Some(MatrixScale { from: in_register(b, code), byte: 0 })
    }
}
