//! A consumer whose operands are not swapped: x is operand A and w is operand B, both in shared memory.
//!
//! D has tokens as rows, so that a lane has the sums of two tokens of a product, and two scales of x a k-tile where lanes have
//! one for every column of swapped operands. All rows of w of a block share their scale; with a gate those of each of its two
//! matrices, half of the rows. Codes are multiplied as they are
//! stored: eight rows of 64 bytes are a core matrix in the native layout (`plan::native`).
//!
//! A warp group multiplies one tile of 64 tokens after another. It waits for the products of a k-tile and adds them,
//! multiplied by their scales, to its sums; other groups multiply meanwhile.

use super::pairs::Pairs;
use super::params::ScaleOfRows;
use super::ring::{Cursor, Ring};
use super::stage::{LINE, StagedArray, Stages};
use super::weights::WarpRows;
use super::{Block, ping_pong, store_tokens};
use crate::ir::{
    Accumulator, Address, Builder, Cache, MatrixOperand, Op, Operand, Reg, SharedTile, Special,
    Type, Width,
};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::chunk::chunk_words;
use crate::schedule::lanes::LaneMap;
use crate::schedule::mapping::KRange;

/// Rows of a core matrix.
const CORE_ROWS: u32 = 8;
/// Bytes of a row of codes in a stage: those of a chunk.
const ROW_BYTES: u32 = SHARED_BYTES / 2;

/// The program of the consumers' warps; of one tile with the cursor of a block that has several, and a warp group that has
/// tiles of its own.
pub(super) fn consume(
    b: &mut Builder,
    block: &Block<'_>,
    (ring, stages, KRange { start, end }): (&Ring, &Stages, KRange),
    (cursor, own): (Option<Cursor>, Option<ping_pong::Group>),
) {
    let (Some(lanes), Some(x_scales), [codes]) =
        (LaneMap::new(block.product), &stages.x_scales, &stages.codes[..])
    else {
        return;
    };
    let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
    let (group, in_group) = (b.div(warp, block.group_warps()), b.rem(warp, block.group_warps()));
    let rows = WarpRows { group, warp: in_group, lane, first: 0u32.into() };
    let tiles = block.tile.row_tiles;
    let of_tile = block.product.shape[0];
    let first_token = match own {
        Some(_) => 0u32.into(),
        None => b.mul(group, tiles * of_tile),
    };
    let first_lane = b.equal(lane, 0u32);
    let count = block.product.registers(b.warp_size())[2];
    let totals: Vec<Vec<Reg>> = (0..tiles).map(|_| b.zeros("sum", count)).collect();
    let segment = b.zeros("of_segment", count);
    let scales = TokenScales::declare(b, x_scales, (&rows, &lanes), first_token);
    let native = b.mul(block.row_block, block.tiles_of_matrix());
    let matrices = block.matrices(b).into_iter();
    let of_rows: Vec<ScaleOfRows> =
        matrices.filter_map(|matrix| ScaleOfRows::of_tile(b, block, (native, matrix))).collect();
    // The matrix of a row of w of the product.
    let of_matrix = block.rows_of_y() as usize;
    let pairs = Pairs::load(b, block, &rows);
    let cursor = cursor.unwrap_or_else(|| ring.cursor(b));
    for scale in &of_rows {
        scale.begin(b, block.main, start);
    }
    if let Some(own) = own {
        own.begin(b);
    }
    b.for_each(start, end, 1u32, "number", |b, k_tile| {
        let phase = cursor.phase();
        let next = ring.after(b, phase);
        ring.wait(b, phase);
        if let Some(own) = own {
            let later = b.add(k_tile, 1u32);
            let last = b.equal(later, end);
            b.when(last, |b| own.end(b, first_lane));
        }
        let of_rows: Vec<Operand> =
            of_rows.iter().map(|scale| scale.scales(b, block.main, k_tile)[0]).collect();
        let x = stages.x.of_stage(b, phase.stage).index;
        let x = b.mad(first_token, LINE, x);
        let w = codes.array.of_stage(b, phase.stage).index;
        for (tile, total) in (0..).zip(&totals) {
            multiply(b, block, ([&stages.x, &codes.array], [x, w]), (tile, &segment));
            let of_tokens = scales.load(b, (phase.stage, tile * of_tile));
            let scales = of_tokens.map(|scale| match &of_rows[..] {
                [] => vec![scale],
                of_rows => of_rows.iter().map(|&of_rows| b.mul_f32(scale, of_rows)).collect(),
            });
            b.push(Op::MatrixWait { pending: 0 });
            if tile + 1 == tiles {
                b.comment("the stage has been read");
                ring.release(b, phase.stage, first_lane);
            }
            for ((&sum, &part), &[token, row]) in total.iter().zip(&segment).zip(&lanes.d.registers)
            {
                let row = lanes.d.tokens[row] as usize;
                let scales = &scales[token];
                b.accumulate(sum, scales[(row / of_matrix).min(scales.len() - 1)], part);
            }
        }
        cursor.move_to(b, next);
    });
    if !block.has_tiles() {
        b.comment("all consumers have read the stages");
        block.consumers().wait(b);
    }
    if let Some(pairs) = &pairs {
        pairs.exchange(b, block, &rows);
    }
    let of = (&rows, &lanes, first_token);
    store_tokens::store(b, (block, stages), (of, pairs.as_ref()), &totals);
}

/// The products of a k-tile and a tile of tokens: `d = x w^T`. `x` and `w` are the first words of the stage, of the warp group
/// and of all rows.
fn multiply(
    b: &mut Builder,
    block: &Block<'_>,
    (arrays, [x, w]): ([&StagedArray; 2], [Operand; 2]),
    (tile, d): (u32, &[Reg]),
) {
    let (main, tokens) = (block.main, block.product.shape[0]);
    let step_bytes = main.problem.input.bytes(main.step());
    b.push(Op::MatrixFence);
    for step in 0..main.k_tile() / main.step() {
        let bytes = step * step_bytes;
        let a = SharedTile {
            block: arrays[0].block,
            index: x,
            offset: tile * tokens * LINE + bytes / 4,
            leading: 16,
            stride: CORE_ROWS * SHARED_BYTES,
            swizzle: arrays[0].swizzle,
        };
        let chunk = block.native_tiles() * chunk_words(main.problem);
        let b_tile = SharedTile {
            block: arrays[1].block,
            index: w,
            offset: bytes / ROW_BYTES * chunk + bytes % ROW_BYTES / 4,
            leading: 16,
            stride: CORE_ROWS * ROW_BYTES,
            swizzle: arrays[1].swizzle,
        };
        let c = match step {
            0 => Accumulator::Zero,
            _ => Accumulator::Registers(d.to_vec()),
        };
        b.push(Op::Matrix {
            op: block.product,
            d: d.to_vec(),
            a: MatrixOperand::Shared(a),
            b: MatrixOperand::Shared(b_tile),
            c,
            scales: None,
        });
    }
    b.push(Op::MatrixCommit);
}

/// The scales of x of a lane's two tokens of a tile.
struct TokenScales<'s> {
    array: &'s StagedArray,
    /// The lane's first token in the block, of the first tile.
    token: Operand,
    /// The distance of the two.
    apart: u32,
}

impl<'s> TokenScales<'s> {
    fn declare(
        b: &mut Builder,
        array: &'s StagedArray,
        (rows, lanes): (&WarpRows, &LaneMap),
        first_token: Operand,
    ) -> Self {
        let thread = b.mad(rows.warp, b.warp_size(), rows.lane);
        let token = lanes.d.rows.first.of(b, thread);
        let token = b.add(first_token, token);
        Self { array, token, apart: lanes.d.rows.stride }
    }

    /// Those of a tile that begins this number of tokens after the first one.
    fn load(&self, b: &mut Builder, (stage, further): (Operand, u32)) -> [Operand; 2] {
        let first = self.array.of_stage(b, stage).index;
        let first = Address::new(self.array.block, b.add(first, self.token)).plus(further);
        [0, self.apart].map(|apart| {
            b.load_as(Type::F32, first.plus(apart), Width::B32, None, Cache::Default)[0].into()
        })
    }
}
