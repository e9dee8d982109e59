//! Scales of both operands: from the buffers to tensor memory, through registers.
//!
//! After the columns of D each stage has those of its scales: for each word of a row's scales of a k-tile four columns of
//! w, 32 rows a column; then for each word four of x. (PTX aligns no columns of scales; other software begins at multiples of four.)

use super::{Block, ROWS};
use crate::ir::{Address, Builder, Cache, Mask, Op, Operand, TmemAddress, TmemOp, TmemScale, Type};
use crate::schedule::chunk::width;
use crate::schedule::mapping::{KRange, MainLoop};
use crate::schedule::warp_group::ring::Ring;
use crate::target::TMEM_WARP_LANES;

/// Columns of a word of scales of so many rows.
fn columns(rows: u32) -> u32 {
    rows.div_ceil(TMEM_WARP_LANES)
}

/// Columns of a word of scales of the most rows.
const WORD_COLUMNS: u32 = ROWS / TMEM_WARP_LANES;

/// Words of a row's scales of a k-tile: of both operands as many.
fn row_words(main: &MainLoop<'_>) -> u32 {
    let codes = main.scaled().map_or(0, |scaled| scaled.blocks) * main.k_tile() / main.step();
    codes.div_ceil(4)
}

/// Columns of tensor memory of the scales of a stage.
pub(super) fn stage_columns(main: &MainLoop<'_>) -> u32 {
    2 * row_words(main) * WORD_COLUMNS
}

/// Where the scales of a stage begin: those of w, and those of x.
fn of_stage(b: &mut Builder, block: &Block<'_>, stage: Operand) -> [TmemAddress; 2] {
    let of_d = TmemAddress::new(block.columns).plus(block.tile.tokens);
    let base = b.mad(stage, stage_columns(block.main), of_d.base);
    let w = TmemAddress { base, ..of_d };
    [w, w.plus(row_words(block.main) * WORD_COLUMNS)]
}

/// The scales of A and B of a step.
pub(super) fn of_step(
    b: &mut Builder,
    block: &Block<'_>,
    (stage, step): (Operand, u32),
) -> Option<[TmemScale; 2]> {
    let (word, byte) = block.main.scaled()?.of_step(step);
    let [w, x] = of_stage(b, block, stage);
    Some([w, x].map(|at| TmemScale { at: at.plus(word * WORD_COLUMNS), byte }))
}

/// The program that brings scales into tensor memory, of one warp.
pub(super) struct Scales<'b, 'p> {
    block: &'b Block<'p>,
    /// The first words of this lane's rows of w in the buffer, and of its tokens, with whether they exist.
    w: Vec<Operand>,
    x: Vec<(Operand, Operand)>,
    /// The first lane of the warp as it is added to an address.
    lanes: Operand,
}

impl<'b, 'p> Scales<'b, 'p> {
    pub(super) fn new(
        b: &mut Builder,
        block: &'b Block<'p>,
        (lane, warp): (Operand, Operand),
    ) -> Self {
        let (main, tokens) = (block.main, block.tile.tokens);
        let mut rows = |count: u32| {
            let row = |column: u32| b.add(lane, column * TMEM_WARP_LANES);
            (0..columns(count)).map(row).collect::<Vec<Operand>>()
        };
        let (rows_of_w, rows_of_x) = (rows(ROWS), rows(tokens));
        let w = main.problem.scale.map_or(Vec::new(), |of| {
            let first = of.tile_word(b, main.problem, block.row_block);
            let word = |row: Operand| {
                let word = of.lane_word(b, main, row);
                b.add(first, word)
            };
            rows_of_w.into_iter().map(word).collect()
        });
        let groups = main.problem.input.groups().unwrap_or(1);
        let first = b.mul(block.token_block, tokens);
        let token = |row: Operand| {
            let row = b.add(first, row);
            let exists = b.less(row, block.m);
            (b.mul(row, groups), exists)
        };
        let x = rows_of_x.into_iter().map(token).collect();
        Self { block, w, x, lanes: b.shl(warp, 21u32) }
    }

    /// Writes those of each k-tile to its stage.
    pub(super) fn write(
        &self,
        b: &mut Builder,
        (ring, KRange { start, end }): (&Ring, KRange),
        leads: Operand,
    ) {
        let cursor = ring.cursor(b);
        b.for_each(start, end, 1u32, "k_tile", |b, k_tile| {
            let phase = cursor.phase();
            let values = self.load(b, k_tile);
            ring.acquire(b, phase);
            b.tmem(TmemOp::FenceAfter);
            for (to, words) in of_stage(b, self.block, phase.stage).into_iter().zip(values) {
                let to = TmemAddress { base: b.add(to.base, self.lanes), ..to };
                for (word, values) in (0..).zip(words) {
                    b.tmem(TmemOp::Store { to: to.plus(word * WORD_COLUMNS), values });
                }
            }
            b.tmem(TmemOp::WaitStores);
            b.tmem(TmemOp::FenceBefore);
            b.push(Op::WarpSync);
            let barrier = ring.arrival(phase);
            b.when(leads, |b| b.push(Op::MbarrierArrive { barrier, expect: None }));
            let next = ring.after(b, phase);
            cursor.move_to(b, next);
        });
    }

    /// Loads this lane's words of a k-tile: of w and of x, word by word, of all its rows.
    fn load(&self, b: &mut Builder, k_tile: Operand) -> [Vec<Vec<Operand>>; 2] {
        let Block { main, io, .. } = self.block;
        let words = row_words(main);
        let w = match (main.problem.scale, io.scale) {
            (Some(of), Some(buffer)) => {
                let of_k_tile = of.k_tile_word(b, main, k_tile);
                let row = |&first: &Operand| {
                    let from = Address::new(buffer, b.add(first, of_k_tile));
                    b.load_as(Type::U32, from, width(words), None, Cache::Constant)
                };
                self.w.iter().map(row).collect()
            }
            _ => Vec::new(),
        };
        let x = io.x_scale.map_or(Vec::new(), |buffer| {
            let of_k_tile = b.mul(k_tile, words);
            let row = |&(first, exists): &(Operand, Operand)| {
                let from = Address::new(buffer, b.add(first, of_k_tile));
                let mask = Some(Mask::or_zero(exists));
                b.load_as(Type::U32, from, width(words), mask, Cache::Default)
            };
            self.x.iter().map(row).collect()
        });
        [w, x].map(|rows: Vec<Vec<_>>| {
            let word = |word| rows.iter().map(|row| Operand::Reg(row[word])).collect();
            (0..words as usize).map(word).collect()
        })
    }
}
