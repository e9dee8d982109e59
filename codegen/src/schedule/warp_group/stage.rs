//! What a stage holds, and the tensor maps from which it is filled.
//!
//! A stage is a k-tile, or half of one, of x and of codes, and a k-tile of each group parameter, in a block of shared memory each, one stage
//! after another:
//! - x: for each 64 columns of 16 bits, lines of 128 bytes, one a token, swizzled: operand B. With multicast the other
//!   block of the cluster copies half of them;
//! - codes: of each chunk the native tiles of the block's rows, lines of 128 bytes, swizzled; bytes that products read as rows in lines of
//!   64 bytes, those of a row. Planes of fewer than 16 bytes a lane have arrays of their own, without a swizzle;
//! - parameters: the words of each native tile, as they are;
//! - scales of x that change along K: of each token that of the k-tile's columns.
//!
//! Codes and parameters of an expert layer come from the block's matrix of the stack: maps have the matrices as their
//! last dimension. With a gate half of the tiles of rows are those of gate, and after them those of up; where operands are not
//! swapped so in each chunk, so that they are the rows of one operand B.

use super::shape::VECTOR_WORDS;
use super::{Block, gather};
use crate::ir::{
    Address, BarrierRef, Builder, Cache, Extent, Op, Operand, SharedId, Special, Swizzle, TensorId,
    TensorMap, Word,
};
use crate::plan::native::SHARED_BYTES;
use crate::schedule::byte_fragments::ByteFragments;
use crate::schedule::chunk::{chunk_words, planes, tile_words};
use crate::schedule::group_params::GroupParams;
use crate::schedule::input::{InputScale, TOKEN_TILE};
use crate::schedule::mapping::MainLoop;
use crate::schedule::order::OrderArray;
use crate::schedule::problem::Problem;
use crate::schedule::stack::Stack;
use crate::schedule::weights_prefetch::is_read_once;

/// Words of a line of 128 bytes.
pub(super) const LINE: u32 = SHARED_BYTES / 4;
/// The alignment at which the swizzle of lines begins anew, in bytes.
const SWIZZLE_BYTES: u32 = 8 * SHARED_BYTES;

/// An array of shared memory with a slice per stage: x, codes, a group parameter, scales of x.
pub(super) struct StagedArray {
    pub(super) block: SharedId,
    /// 32-bit words of a stage.
    pub(super) words: u32,
    /// The map of tensor copies; `None` if lanes copy.
    map: Option<TensorId>,
    /// Bytes of a stage that tensor copies fill.
    bytes: u32,
    /// Copies of a matrix that fill a stage, one after another: of the codes' chunks, or one.
    copies: u32,
    /// The permutation of its lines.
    pub(super) swizzle: Swizzle,
}

/// Planes of codes with an array of their own: all of 16 bytes a lane, or a narrower one.
pub(super) struct StagedPlanes {
    pub(super) array: StagedArray,
    /// The first line of a chunk of a native tile.
    first_line: u32,
    /// Words of a lane in a plane.
    pub(super) of_lane: u32,
    /// Words of a chunk of a native tile.
    pub(super) words: u32,
}

/// A group parameter's array.
pub(super) struct StagedParam {
    pub(super) of: GroupParams,
    pub(super) array: StagedArray,
}

/// All arrays of the stages.
pub(super) struct Stages {
    pub(super) x: StagedArray,
    pub(super) codes: Vec<StagedPlanes>,
    pub(super) params: Vec<StagedParam>,
    /// The scales of x that change along K.
    pub(super) x_scales: Option<StagedArray>,
}

/// 32-bit words of the slices of a stage.
struct Words {
    x: u32,
    /// Of each array of planes of codes.
    codes: Vec<u32>,
    /// Of each group parameter.
    params: Vec<u32>,
    x_scales: Option<u32>,
}

/// Of each array of planes of codes, the first word in a chunk of a native tile, the words there, and those of a lane in a plane.
fn arrays_of_planes(problem: &Problem) -> Vec<(u32, u32, u32)> {
    let all = planes(problem);
    if all.clone().all(|(_, of_lane)| of_lane == VECTOR_WORDS) {
        return vec![(0, chunk_words(problem), VECTOR_WORDS)];
    }
    let lanes = problem.plan.native.lanes;
    all.map(|(first, of_lane)| (first, of_lane * lanes, of_lane)).collect()
}

/// The group parameters that a stage holds, in the order of [`Stages::params`]: those of single rows.
pub(super) fn kinds(main: &MainLoop<'_>) -> impl Iterator<Item = GroupParams> {
    main.problem.group_params().map(|(_, of)| of).filter(|of| of.rows == 1)
}

/// Groups of columns of x with a scale each, if k-tiles have scales.
pub(super) fn groups_of_x(main: &MainLoop<'_>) -> Option<u32> {
    let input = &main.problem.input;
    input.scale.and_then(InputScale::columns).and(input.groups())
}

impl Words {
    /// For so many tokens and native tiles, in equal parts those of each matrix; a k-tile is `parts` stages.
    fn of(main: &MainLoop<'_>, (tokens, parts): (u32, u32), tiles: u32) -> Self {
        let x = main.problem.input.bytes(main.k_tile() / parts) / 4 * tokens;
        let chunks = tiles * main.k_tile_chunks() / parts;
        let codes = arrays_of_planes(main.problem).into_iter().map(|(_, words, _)| chunks * words);
        // Boxes begin at lines.
        let together = main.problem.together();
        let param = |of: GroupParams| {
            together * (tiles / together * of.tile_words(main.problem)).next_multiple_of(LINE)
        };
        let params = kinds(main).map(param).collect();
        Self {
            x,
            codes: codes.collect(),
            params,
            x_scales: groups_of_x(main).map(|_| tokens.next_multiple_of(LINE)),
        }
    }
}

/// Bytes of shared memory of so many stages, and of what comes after them: y, which takes the place of x if there is
/// room, and the sums that blocks exchange, which take that of the first planes of codes.
pub(super) fn ring_bytes(
    main: &MainLoop<'_>,
    (stages, tile): (u32, (u32, u32)),
    tiles: u32,
    (persists, y, exchange): (bool, u32, u32),
) -> u32 {
    let Words { x, codes, params, x_scales } = Words::of(main, tile, tiles);
    let stage = x + codes.iter().chain(&params).sum::<u32>() + x_scales.unwrap_or(0);
    let first = codes.first().copied().unwrap_or(0);
    // A block that persists has the copies of its next tile in its ring.
    let beyond = |words: u32, part: u32| if persists || words > stages * part { words } else { 0 };
    4 * (stages * stage + beyond(y, x) + beyond(exchange, first))
}

impl Stages {
    pub(super) fn declare(b: &mut Builder, block: &Block<'_>) -> Self {
        let (main, tile, io) = (block.main, block.tile, block.io);
        let (problem, tiles) = (main.problem, block.native_tiles());
        let fixed = Extent::Constant;
        let Words { x: x_words, codes: code_words, params: param_words, x_scales } =
            Words::of(main, (tile.tokens, tile.parts), tiles);
        let shared = |b: &mut Builder, name: &str, words: u32, layout: &str, align: u32| {
            let layout = format!("{} stages of {layout}", tile.stages);
            b.shared_block(name, Word::U32, tile.stages * words, &layout, align, None)
        };

        let columns = problem.input.words(problem.input.columns);
        let map = gather::warps(block).is_none().then(|| {
            let rows = io.order.map_or(Extent::Parameter(io.m), OrderArray::all_slots);
            b.tensor(TensorMap {
                name: "x_map".to_owned(),
                buffer: io.x,
                extents: vec![fixed(columns), rows],
                strides: vec![fixed(1), fixed(columns)],
                tile: vec![problem.input.words(line_columns(main)), tile.tokens / tile.multicast],
                swizzle: Swizzle::B128,
                cache: Cache::Default,
            })
        });
        let layout = "x [column in the line, token, line], swizzled";
        let ring = shared(b, "x_stages", x_words, layout, SWIZZLE_BYTES);
        let bytes = if map.is_some() { 4 * x_words } else { 0 };
        let swizzle = Swizzle::B128;
        let x = StagedArray { block: ring, words: x_words, map, bytes, copies: 1, swizzle };

        // Of a stack, a box is of one matrix.
        let (matrices, own) = (problem.stack.map(Stack::matrices), block.tiles_of_matrix());
        let of_stack = |dense: &[u32], one: u32| {
            dense.iter().copied().chain(matrices.map(|_| one)).collect::<Vec<u32>>()
        };
        let extents = |dense: &[u32]| {
            of_stack(dense, matrices.unwrap_or(1)).into_iter().map(fixed).collect::<Vec<_>>()
        };
        let strides = |dense: &[u32], matrix: u32| {
            of_stack(dense, matrix).into_iter().map(fixed).collect::<Vec<_>>()
        };
        let (of_chunk, of_tile) = (chunk_words(problem), tile_words(problem));
        let by_chunk = tile.unswapped && block.together() > 1;
        let copies = if by_chunk { block.stage_chunks() } else { 1 };
        let cache = if is_read_once(problem, tile.tokens) { Cache::Stream } else { Cache::Default };
        let planes = arrays_of_planes(problem).into_iter().zip(code_words).enumerate();
        let codes = planes.map(|(number, ((first, words, of_lane), of_stage))| {
            let (line, swizzle) = match problem.input.fragments {
                _ if of_lane < VECTOR_WORDS => (LINE, Swizzle::None),
                Some(ByteFragments::Rows) => (LINE / 2, Swizzle::B64),
                _ => (LINE, Swizzle::B128),
            };
            let named = |name: &str| match number {
                0 => format!("w_{name}"),
                _ => format!("w{number}_{name}"),
            };
            let map = b.tensor(TensorMap {
                name: named("map"),
                buffer: io.codes,
                extents: extents(&[line, of_chunk / line, problem.row_tiles(), of_tile / of_chunk]),
                strides: strides(&[1, line, of_tile, of_chunk], of_tile * problem.row_tiles()),
                tile: of_stack(&[line, words / line, own, block.stage_chunks() / copies], 1),
                swizzle,
                cache,
            });
            let order = "codes [word of the line, line, tile of rows, chunk]";
            let layout = match swizzle {
                Swizzle::None => order.to_owned(),
                _ => format!("{order}, swizzled"),
            };
            let ring = shared(b, &named("stages"), of_stage, &layout, SWIZZLE_BYTES);
            let (map, bytes) = (Some(map), 4 * of_stage);
            let array = StagedArray { block: ring, words: of_stage, map, bytes, copies, swizzle };
            StagedPlanes { array, first_line: first / line, of_lane, words }
        });
        let codes = codes.collect();

        let params = io.group_params(problem).filter(|(of, _)| of.rows == 1);
        let params = params.zip(param_words).enumerate();
        let params = params.map(|(number, ((of, buffer), words))| {
            let tile_words = of.tile_words(problem);
            let [rows, of_row] = of.words(problem);
            let map = b.tensor(TensorMap {
                name: format!("param{number}_map"),
                buffer,
                extents: extents(&[tile_words, of_row / tile_words, rows]),
                strides: strides(&[1, tile_words, of_row], of_row * rows),
                tile: of_stack(&[tile_words, 1, own], 1),
                swizzle: Swizzle::None,
                cache: Cache::Default,
            });
            let name = format!("param{number}_stages");
            let ring = shared(b, &name, words, "words [word, tile of rows]", SHARED_BYTES);
            let bytes = 4 * tiles * tile_words;
            let (map, swizzle) = (Some(map), Swizzle::None);
            let array = StagedArray { block: ring, words, map, bytes, copies: 1, swizzle };
            StagedParam { of, array }
        });
        let params = params.collect();
        let x_scales = x_scales.zip(io.x_scale).zip(groups_of_x(main));
        let x_scales = x_scales.map(|((words, buffer), groups)| {
            let gathered = x.map.is_none();
            let map = (!gathered).then(|| {
                let tiles = match io.order {
                    None => Extent::CeilDiv(io.m, TOKEN_TILE),
                    Some(order) => Extent::times(order.token_blocks, order.slots / TOKEN_TILE),
                };
                b.tensor(TensorMap {
                    name: "x_scale_map".to_owned(),
                    buffer,
                    extents: vec![fixed(TOKEN_TILE), fixed(groups), tiles],
                    strides: vec![fixed(1), fixed(TOKEN_TILE), fixed(groups * TOKEN_TILE)],
                    tile: vec![tile.tokens.min(TOKEN_TILE), 1, tile.tokens.div_ceil(TOKEN_TILE)],
                    swizzle: Swizzle::None,
                    cache: Cache::Default,
                })
            });
            let ring = shared(b, "x_scale_stages", words, "f32 [token]", SHARED_BYTES);
            let bytes = if gathered { 0 } else { 4 * tile.tokens };
            StagedArray { block: ring, words, map, bytes, copies: 1, swizzle: Swizzle::None }
        });
        Self { x, codes, params, x_scales }
    }

    /// Bytes that the copies of a stage bring.
    pub(super) fn bytes(&self) -> u32 {
        let params = self.params.iter().map(|param| &param.array);
        let codes = self.codes.iter().map(|planes| &planes.array);
        let all = [&self.x].into_iter().chain(codes).chain(params).chain(&self.x_scales);
        all.map(|array| array.bytes).sum()
    }

    /// Starts the copies of the weights of stage `number` of all of K.
    pub(super) fn copy_weights(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        (number, stage): (Operand, Operand),
        barrier: BarrierRef,
    ) {
        let main = block.main;
        let first_tile = b.mul(block.row_block, block.tiles_of_matrix());
        let chunk = b.mul(number, block.stage_chunks());
        let together = block.together();
        let matrices = block.matrices(b);
        let copy = |b: &mut Builder, array: &StagedArray, number: u32, at: &[Operand]| {
            let words = array.words / array.copies;
            for (shard, matrix) in (0..together).zip(&matrices) {
                let at = at.iter().copied().chain(*matrix).collect();
                let offset = number * words + shard * (words / together);
                array.copy(b, (at, stage, offset), barrier);
            }
        };
        for StagedPlanes { array, first_line, .. } in &self.codes {
            for number in 0..array.copies {
                let chunk = b.add(chunk, number * (block.stage_chunks() / array.copies));
                copy(b, array, number, &[0u32.into(), (*first_line).into(), first_tile, chunk]);
            }
        }
        for StagedParam { of, array, .. } in &self.params {
            let group = b.div(number, (of.columns / main.k_tile()).max(1) * block.tile.parts);
            copy(b, array, 0, &[0u32.into(), group, first_tile]);
        }
    }

    /// Starts the copies of x of stage `number` of all of K.
    pub(super) fn copy_x(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        (number, stage): (Operand, Operand),
        barrier: BarrierRef,
    ) {
        let (main, input) = (block.main, &block.main.problem.input);
        if self.x.map.is_none() {
            return;
        }
        let token = b.mul(block.token_block, block.tile.tokens);
        // The tokens that this block copies, of those of all blocks that share them.
        let share = block.tile.tokens / block.tile.multicast;
        let (own, blocks): (Operand, _) = match block.tile.multicast {
            1 => (0u32.into(), None),
            blocks => {
                let rank = b.special(Special::ClusterBlock);
                (b.mul(rank, share), Some(Operand::U32((1 << blocks) - 1)))
            }
        };
        let (own_token, place) = (b.add(token, own), b.mul(own, LINE));
        let columns = main.k_tile() / block.tile.parts;
        for line in 0..columns / line_columns(main) {
            let first = input.words(line * line_columns(main));
            let column = b.mad(number, input.words(columns), first);
            let offset = line * block.tile.tokens * LINE;
            let to = self.x.of_stage(b, stage).plus(offset);
            let to = Address { index: b.add(to.index, place), ..to };
            self.x.copy_to(b, (vec![column, own_token], to), (barrier, blocks));
        }
        if let Some(scales) = &self.x_scales {
            let group = group_of_x(b, main, number);
            let (tile, first) = (b.div(token, TOKEN_TILE), b.rem(token, TOKEN_TILE));
            scales.copy(b, (vec![first, group, tile], stage, 0), barrier);
        }
    }
}

/// The group of columns of x that contains k-tile `number`.
pub(super) fn group_of_x(b: &mut Builder, main: &MainLoop<'_>, number: Operand) -> Operand {
    let columns = main.problem.input.scale.and_then(InputScale::columns).unwrap_or(1);
    b.div(number, (columns / main.k_tile()).max(1))
}

/// Columns of x in a line.
pub(super) fn line_columns(main: &MainLoop<'_>) -> u32 {
    SHARED_BYTES * 8 / main.problem.input.operand.stored_bits()
}

impl StagedArray {
    /// The memory of all stages, for so many words that are needed after the main loop, if there is room.
    pub(super) fn for_words(&self, stages: u32, words: u32) -> Option<SharedId> {
        (words <= stages * self.words).then_some(self.block)
    }

    /// Starts the copy of a box into a stage, so many words from its start.
    fn copy(
        &self,
        b: &mut Builder,
        (at, stage, offset): (Vec<Operand>, Operand, u32),
        barrier: BarrierRef,
    ) {
        let to = self.of_stage(b, stage).plus(offset);
        self.copy_to(b, (at, to), (barrier, None));
    }

    /// Starts the copy of a box, of this block or of these blocks of the cluster.
    fn copy_to(
        &self,
        b: &mut Builder,
        (at, to): (Vec<Operand>, Address),
        (barrier, multicast): (BarrierRef, Option<Operand>),
    ) {
        let Some(map) = self.map else { return };
        b.push(Op::TensorLoad { to, map, at, barrier, multicast });
    }

    /// The first word of a stage.
    pub(super) fn of_stage(&self, b: &mut Builder, stage: Operand) -> Address {
        let first = b.mul(stage, self.words);
        Address::new(self.block, first)
    }
}
