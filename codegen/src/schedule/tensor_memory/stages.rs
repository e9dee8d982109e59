//! What a stage holds: a k-tile of codes and of x, in a block of shared memory each, one stage after another.
//!
//! - codes: the chunks of the k-tile, each with 16 bytes of each of 128 rows, row by row. Eight rows are a core matrix of the
//!   instruction;
//! - x: a line of 128 bytes of each token, swizzled.

use super::Block;
use crate::ir::{
    Address, BarrierRef, Builder, Cache, Extent, Op, Operand, SharedId, SharedTile, Swizzle,
    TensorId, TensorMap, TmemOperand, Word,
};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::chunk::{chunk_words, tile_words};
use crate::schedule::mapping::MainLoop;

/// The alignment at which the swizzle of lines begins anew, in bytes.
const SWIZZLE_BYTES: u32 = 8 * SHARED_BYTES;
/// Words of 16 bytes, of a line, and of eight rows of 16 bytes.
const VECTOR: u32 = 4;
const LINE: u32 = SHARED_BYTES / 4;
const CORE: u32 = 8 * VECTOR;

/// The stages.
pub(super) struct Stages {
    pub(super) codes: SharedId,
    x: SharedId,
    codes_map: TensorId,
    x_map: TensorId,
    /// 32-bit words of a stage.
    code_words: u32,
    x_words: u32,
}

/// 32-bit words of codes of a stage, and of x for so many tokens.
pub(super) fn words(main: &MainLoop<'_>, tokens: u32) -> [u32; 2] {
    let x = main.problem.input.bytes(main.k_tile()) / 4 * tokens;
    [main.k_tile_chunks() * chunk_words(main.problem), x]
}

impl Stages {
    pub(super) fn declare(b: &mut Builder, block: &Block<'_>) -> Self {
        let (main, tile, io) = (block.main, block.tile, block.io);
        let (problem, fixed) = (main.problem, Extent::Constant);
        let [code_words, x_words] = words(main, tile.tokens);
        let stages = |b: &mut Builder, name: &str, words: u32, layout: &str| {
            let layout = format!("{} stages of {layout}", tile.stages);
            b.shared_block(name, Word::U32, tile.stages * words, &layout, SWIZZLE_BYTES, None)
        };
        let codes = stages(b, "w_stages", code_words, "codes [16 bytes of k, row, chunk]");
        let x = stages(b, "x_stages", x_words, "x [128 bytes of k, token], swizzled");
        let (of_chunk, of_tile) = (chunk_words(problem), tile_words(problem));
        let lines = of_chunk / LINE;
        let codes_map = b.tensor(TensorMap {
            name: "w_map".to_owned(),
            buffer: io.codes,
            extents: [LINE, lines, of_tile / of_chunk, problem.row_tiles()].map(fixed).to_vec(),
            strides: [1, LINE, of_chunk, of_tile].map(fixed).to_vec(),
            tile: vec![LINE, lines, main.k_tile_chunks(), 1],
            swizzle: Swizzle::None,
            cache: Cache::Default,
        });
        let columns = problem.input.words(problem.input.columns);
        let x_map = b.tensor(TensorMap {
            name: "x_map".to_owned(),
            buffer: io.x,
            extents: vec![fixed(columns), Extent::Parameter(io.m)],
            strides: vec![fixed(1), fixed(columns)],
            tile: vec![problem.input.words(main.k_tile()), tile.tokens],
            swizzle: Swizzle::B128,
            cache: Cache::Default,
        });
        Self { codes, x, codes_map, x_map, code_words, x_words }
    }

    /// Bytes of a stage.
    pub(super) const fn bytes(&self) -> u32 {
        4 * (self.code_words + self.x_words)
    }

    /// Starts the copies of a k-tile to a stage. What is beyond K or M is 0.
    pub(super) fn copy(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        (k_tile, stage): (Operand, Operand),
        barrier: BarrierRef,
    ) {
        let (main, none) = (block.main, Operand::U32(0));
        let to = Address::new(self.codes, b.mul(stage, self.code_words));
        let chunk = b.mul(k_tile, main.k_tile_chunks());
        let at = vec![none, none, chunk, block.row_block];
        b.push(Op::TensorLoad { to, map: self.codes_map, at, barrier, multicast: None });
        let to = Address::new(self.x, b.mul(stage, self.x_words));
        let column = b.mul(k_tile, main.problem.input.words(main.k_tile()));
        let at = vec![column, b.mul(block.token_block, block.tile.tokens)];
        b.push(Op::TensorLoad { to, map: self.x_map, at, barrier, multicast: None });
    }

    /// A and B of a step.
    pub(super) fn operands(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        (stage, step): (Operand, u32),
    ) -> (TmemOperand, SharedTile) {
        let main = block.main;
        let of_chunk = chunk_words(main.problem);
        // A step of A is the chunks of its columns.
        let chunks = main.step() / main.problem.plan.native.columns;
        let codes = SharedTile {
            block: self.codes,
            index: b.mul(stage, self.code_words),
            offset: step * chunks * of_chunk,
            leading: 4 * of_chunk,
            stride: 4 * CORE,
            swizzle: Swizzle::None,
        };
        let x = SharedTile {
            block: self.x,
            index: b.mul(stage, self.x_words),
            offset: step * main.problem.input.bytes(main.step()) / 4,
            leading: 4 * VECTOR,
            stride: SWIZZLE_BYTES,
            swizzle: Swizzle::B128,
        };
        (TmemOperand::Shared(codes), x)
    }
}
