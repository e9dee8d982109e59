//! Scales of x that change along K, in the ring: f32, or words of scale codes for an instruction that
//! scales. The scales of one group are adjacent, since lanes read those of neighbouring tokens; the pitch
//! of the groups spreads the stores of neighbouring threads (the groups of one token) over the banks.

use super::Tile;
use super::copies::Copies;
use crate::ir::{Address, Builder, Cache, MatrixScale, Operand, Reg, SharedId, Type, Width};
use crate::schedule::dequantise::in_register;
use crate::schedule::mapping::MainLoop;
use crate::schedule::tile::TileShape;

/// Scales of x of a stage: `[group of the k-tile][token]`.
pub(super) struct InputScales {
    columns: u32,
    /// Words from one group to the next.
    pitch: u32,
    /// What this thread copies.
    copies: Copies,
    /// The stage's word for this thread's first vector.
    to: Operand,
    /// Where this lane reads the first tile of tokens.
    at: Operand,
    /// The first bit of the lane's scale codes in a word of codes.
    block: Option<Operand>,
}

impl InputScales {
    fn columns(main: &MainLoop<'_>) -> Option<u32> {
        main.problem.input.scale?.columns()
    }

    /// Scales of a token in a k-tile.
    fn of_k_tile(main: &MainLoop<'_>, columns: u32) -> u32 {
        (main.k_tile() / columns).max(1)
    }

    /// Words from one group to the next: an odd multiple of a group's share of the banks.
    fn pitch(shape: TileShape, main: &MainLoop<'_>, columns: u32) -> u32 {
        let banks = main.problem.target().gpu.map_or(1, |gpu| gpu.banks);
        let share = (banks / Self::of_k_tile(main, columns)).max(1);
        (shape.tokens.div_ceil(share) | 1) * share
    }

    /// Words of a stage.
    pub(super) fn words(shape: TileShape, main: &MainLoop<'_>) -> u32 {
        Self::columns(main).map_or(0, |columns| {
            let pitch = Self::pitch(shape, main, columns);
            let others = Self::of_k_tile(main, columns) - 1;
            (others * pitch + shape.tokens).next_multiple_of(4)
        })
    }

    pub(super) fn declare(b: &mut Builder, tile: &Tile<'_>, first: u32) -> Option<Self> {
        let (main, shape) = (tile.main, tile.shape);
        let (columns, buffer) = (Self::columns(main)?, tile.io.x_scale?);
        let (of_k_tile, groups) = (Self::of_k_tile(main, columns), main.problem.input.groups()?);
        let pitch = Self::pitch(shape, main, columns);
        let (all, threads) = (shape.tokens * of_k_tile, tile.participants().threads(b));
        b.comment("scales of x: what this thread copies, and what this lane reads");
        let thread = b.mad(tile.warp, b.warp_size(), tile.lane);
        // The groups of a k-tile are a power of two, at most a warp.
        let rounds = (all, threads / of_k_tile);
        let copies = Copies::deal(b, (buffer, 1), rounds, (thread, threads), |b, number| {
            let in_block = b.div(number, of_k_tile);
            let number_of_token = tile.rows.number(b, in_block);
            // Threads without a vector of the last round ask for tokens beyond the block's.
            let certain = all.is_multiple_of(threads);
            let token = tile.rows.token_of(b, (number_of_token, in_block), certain);
            let there = tile.rows.exists(b, token);
            let group = b.rem(number, of_k_tile);
            let row = tile.rows.x_row(b, token, there);
            (b.mad(row, groups, group), Some(there))
        });
        let (token, group) = (b.div(thread, of_k_tile), b.rem(thread, of_k_tile));
        let to = b.add(token, first);
        let to = b.mad(group, pitch, to);
        let scaled = main.scaled();
        let token = scaled.map_or(&main.lanes().d.token, |scaled| &scaled.token);
        let token = token.of(b, tile.lane);
        let at = b.add(token, first);
        let block = scaled.map(|scaled| {
            let block = scaled.block.of(b, tile.lane);
            b.mul(block, 8u32)
        });
        Some(Self { columns, pitch, copies, to, at, block })
    }

    /// Starts the copies of a k-tile.
    pub(super) fn copy(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        k_tile: Operand,
        stage: Operand,
    ) {
        let main = tile.main;
        let to = b.add(self.to, stage);
        let group = b.div(k_tile, (self.columns / main.k_tile()).max(1));
        let group = b.mul(group, Self::of_k_tile(main, self.columns));
        self.copies.start(b, Address::new(block, to), group);
    }

    /// The scales of this lane's tokens of a tile in a segment.
    pub(super) fn read(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        block: SharedId,
        stage: Operand,
        (token_tile, segment): (u32, u32),
    ) -> Option<Vec<Operand>> {
        let main = tile.main;
        if self.block.is_some() {
            return None;
        }
        let group = segment * main.segment() / self.columns.min(main.k_tile());
        let at = b.add(self.at, stage);
        let of_token = |token: &u32| {
            let token = token_tile * main.token_tile() + token;
            let from = Address::new(block, at).plus(group * self.pitch + token);
            b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0].into()
        };
        Some(main.lanes().d.tokens.iter().map(of_token).collect())
    }

    /// The scale codes of this lane's token of a tile and its blocks in a step. `read` is the word that the step before
    /// has read, with its number, which several steps may share.
    pub(super) fn code(
        &self,
        b: &mut Builder,
        tile: &Tile<'_>,
        (block, stage): (SharedId, Operand),
        (token_tile, step): (u32, u32),
        read: &mut Option<(u32, Reg)>,
    ) -> Option<MatrixScale> {
        let (own, main) = (self.block?, tile.main);
        let (word, byte) = main.scaled()?.of_step(step);
        let from = match *read {
            Some((number, from)) if number == word => from,
            _ => {
                let at = b.add(self.at, stage);
                let token = token_tile * main.token_tile();
                let from = Address::new(block, at).plus(word * self.pitch + token);
                let codes = b.load(from, Width::B32)[0];
                let codes = b.shr(codes, own);
                in_register(b, codes)
            }
        };
        *read = Some((word, from));
        Some(MatrixScale { from, byte })
    }
}
