//! The blocking of a product: the columns of a segment and of a block, the tokens of a tile, and
//! the instructions that multiply them.
//!
//! In: a native weight, an instruction set, a number of tokens. Out: a [`Blocking`]. For few tokens
//! a panel is decoded on the fly, once for each of at most two tiles; for more tokens it is decoded in blocks.
//! `super::product` runs the blocking.

#[cfg(target_arch = "x86_64")]
use super::amx::bf16;
#[cfg(target_arch = "x86_64")]
use super::amx::bytes::{STEP as BYTES_STEP, takes as takes_bytes};
use super::bf16_dot;
use super::groups::{common_columns, segment};
use super::isa::Isa;
use super::kernels::CHUNK;
use super::native::{Bf16Code, Bf16Operand, NativeWeight, Path};
#[cfg(target_arch = "aarch64")]
use super::neon::bf16;
use super::split_bf16;
use super::tokens::{Tile, padded, tiles};
use crate::accumulation::Sums;
use crate::buffer::bytes_of;

/// Columns between two reads of the group parameters, at most, for integer sums. Fewer if sums
/// could overflow 32 bits: see [`exact_columns`].
const DOT_SEGMENT: usize = 512;
/// The same for `f32` sums: the longest chain of additions.
const FMA_SEGMENT: usize = 128;
/// Columns of a block of decoded codes: with two panels 16 KiB, which fit L1 together with a tile
/// of tokens, its sums and the scales.
const DOT_BLOCK: usize = 512;
/// Columns of a block of decoded weights: with two panels 16 KiB.
const FMA_BLOCK: usize = 128;

/// Panels that a kernel call decodes on the fly for one tile of tokens, one after the other: a call costs as much as a
/// small part of a panel.
pub(super) const FUSED_PANELS: usize = 8;

/// Tokens of zeros, at most, in the last of several tiles for which a panel is decoded on the fly.
const MOST_FUSED_PADDING: usize = 3;

/// NEON's byte matrix instruction is used in tiles, not in whole blocks.
#[cfg(target_arch = "aarch64")]
const BYTES_STEP: usize = CHUNK;
#[cfg(target_arch = "aarch64")]
fn takes_bytes(_: &NativeWeight, _segment: usize) -> bool {
    false
}

/// The blocking of a product; a function of the weight, the instruction set and the number of
/// tokens.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    /// The arithmetic.
    pub path: Path,
    /// Tokens M.
    pub tokens: usize,
    /// M, padded to whole tiles.
    pub padded: usize,
    /// Whether panels are decoded on the fly.
    pub fused: bool,
    /// The instructions that multiply, if they are not those of [`super::tile`] and of products of few
    /// tokens.
    pub instruction: Option<Instruction>,
    /// Tokens of the largest tile.
    pub tile: usize,
    /// Panels of a tile; of those that are decoded on the fly, the most of a kernel call.
    pub panels: usize,
    /// Contiguous columns of a token, of integers and of bf16 numbers.
    pub together: usize,
    /// Columns of a segment.
    pub segment: usize,
    /// Segments of a panel.
    pub segments: usize,
    /// Whether x has a scale for each segment, instead of one a token.
    pub grouped_x: bool,
    /// Zero points of x of a token: one for each group of x, or none.
    pub zero_points: usize,
    /// Columns of a decoded block, a multiple of the segment.
    pub block: usize,
}

impl Blocking {
    /// The blocking of a product of `tokens` tokens. Each element of x can be split into `x_parts`
    /// bf16 numbers ([`split_bf16::of_input`]), or not at all.
    pub fn new(
        weight: &NativeWeight,
        path: Path,
        isa: Isa,
        tokens: usize,
        x_parts: Option<usize>,
    ) -> Self {
        let tiling = isa.tiling();
        let one_tile = tokens <= tiling.fused_tokens;
        let (most, tile, panels, block) = match path {
            Path::Dot => (
                DOT_SEGMENT.min(exact_columns(weight.largest())),
                tiling.dot_tokens,
                tiling.dot_panels,
                DOT_BLOCK,
            ),
            Path::Fma => (FMA_SEGMENT, tiling.fma_tokens, tiling.fma_panels, FMA_BLOCK),
        };
        let of_weight = weight.grouped().then(|| weight.group());
        let segment = match common_columns(of_weight, weight.input().group) {
            Some(columns) => segment(columns, most, path),
            None => weight.group().min(most),
        };
        let instruction = Instruction::of(weight, (path, isa), segment, tokens, x_parts)
            .filter(|instruction| !one_tile || instruction.decodes_on_the_fly(weight));
        // Not `next_multiple_of`, which the largest numbers overflow.
        let padding = tokens.wrapping_neg() % tiling.fused_tokens;
        let few_tiles = tokens.div_ceil(tiling.fused_tokens) <= tiling.fused_tiles;
        let fused = one_tile
            || path == Path::Dot
                && instruction.is_none()
                && few_tiles
                && padding <= MOST_FUSED_PADDING;
        let tile = match instruction {
            _ if fused => fused_tile(tokens.min(tiling.fused_tokens)),
            Some(instruction) => instruction.tokens(),
            None => tile,
        };
        let (segment, panels, block) = match instruction {
            Some(Instruction::SplitBf16 { segment, weight, x, .. }) => {
                (segment, Instruction::PANELS, Instruction::block(weight, x))
            }
            Some(Instruction::Bf16Dot(operand)) => {
                let scaled = matches!(operand, Bf16Operand::Code(_));
                (if scaled { segment } else { CHUNK }, bf16_dot::PANELS, bf16_dot::BLOCK)
            }
            _ => (segment, panels, block),
        };
        Self {
            path,
            tokens,
            padded: match instruction {
                _ if fused => tokens.next_multiple_of(tile),
                Some(instruction) if instruction.whole_tiles() => {
                    tokens.checked_next_multiple_of(tile).unwrap_or(usize::MAX)
                }
                _ => padded(tokens, tile),
            },
            fused,
            instruction,
            tile,
            panels: match fused {
                false => panels,
                true if one_tile => FUSED_PANELS,
                true => 1,
            },
            together: match instruction {
                Some(Instruction::Bf16Dot(_)) if fused => 2,
                _ if fused => 4,
                Some(instruction) => instruction.columns(),
                None => tiling.dot_columns,
            },
            segment,
            segments: weight.columns().div_ceil(segment),
            grouped_x: weight.input().group.is_some(),
            zero_points: weight.zero_points(),
            block: (block / segment).max(1) * segment,
        }
    }

    /// Scales of x of a token.
    pub fn x_scales(&self) -> usize {
        if self.grouped_x { self.segments } else { 1 }
    }

    /// The tiles of tokens.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + use<> {
        let tokens = match self.instruction {
            _ if self.fused => self.padded,
            Some(instruction) if instruction.whole_tiles() => self.padded,
            _ => self.tokens,
        };
        tiles(tokens, self.tile)
    }

    /// Bytes of scratch memory of a thread; [`usize::MAX`] if there are more.
    pub fn scratch(&self) -> usize {
        if self.fused {
            return bytes_of::<[f32; 16]>(self.padded.max(self.tile) * self.panels);
        }
        let sums = bytes_of::<[f32; 16]>(self.padded.saturating_mul(self.panels));
        let scales = bytes_of::<[f32; 16]>(self.block / self.segment * self.panels);
        let decoded = match (self.instruction, self.path) {
            (Some(Instruction::Bf16Dot(_)), _) => {
                bytes_of::<[f32; 16]>(self.block)
                    + bytes_of::<[u8; 64]>(split_bf16::lines(self.block, 1, self.panels))
                    + 2 * scales
            }
            (Some(Instruction::SplitBf16 { weight, .. }), _) => {
                bytes_of::<[f32; 16]>(self.block)
                    + bytes_of::<[u8; 64]>(split_bf16::lines(self.block, weight, self.panels))
                    + 2 * scales
            }
            (_, Path::Dot) => bytes_of::<[u8; 64]>(self.block / 4 * self.panels) + scales,
            (_, Path::Fma) => bytes_of::<[f32; 16]>(self.block * self.panels),
        };
        sums.saturating_add(decoded)
    }
}

/// Instructions that are not those of an instruction set's tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Matrix instructions: codes as bytes times codes of x; scaled segment by segment.
    Bytes,
    /// Matrix instructions: weights or codes, and x, split into bf16 parts.
    SplitBf16 {
        /// What multiplies x.
        operand: Bf16Operand,
        /// Columns of a segment: of codes those that one scale multiplies, else a chunk.
        segment: usize,
        /// Parts of the operand.
        weight: usize,
        /// Parts of an element of x.
        x: usize,
    },
    /// Dot products of pairs of bf16 numbers (`super::bf16_dot`).
    Bf16Dot(Bf16Operand),
}

impl Instruction {
    /// Whether these instructions multiply few tokens as well, by panels that are decoded on the fly.
    fn decodes_on_the_fly(self, weight: &NativeWeight) -> bool {
        matches!(self, Self::Bf16Dot(_)) && weight.bf16_table().is_some()
    }

    /// Whether sums of x over segments are multiplied with corrections of groups of codes.
    pub(super) fn corrected(self) -> bool {
        match self {
            Self::SplitBf16 { operand, .. } | Self::Bf16Dot(operand) => {
                matches!(operand, Bf16Operand::Code(Bf16Code { corrected: true, .. }))
            }
            Self::Bytes => false,
        }
    }

    /// Whether all tiles have the same number of tokens, so that the last one is padded.
    fn whole_tiles(self) -> bool {
        !matches!(self, Self::Bf16Dot(_))
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Instruction {
    /// Panels of a tile of bf16 parts.
    const PANELS: usize = bf16::PANELS;

    /// The instructions for a product of `tokens` tokens on an instruction set, if there are any.
    fn of(
        weight: &NativeWeight,
        (path, isa): (Path, Isa),
        columns: usize,
        tokens: usize,
        x: Option<usize>,
    ) -> Option<Self> {
        if isa == Isa::Avx512Bf16 {
            let operand = weight.bf16_operand().filter(|_| x == Some(1));
            return operand.map(Self::Bf16Dot);
        }
        if isa != bf16::ISA {
            return None;
        }
        match path {
            Path::Dot => takes_bytes(weight, columns).then_some(Self::Bytes),
            Path::Fma => {
                let x = x?;
                let of_codes = segment(columns, bf16::block(1, x), path);
                let operands = [
                    weight.parts().map(|parts| (Bf16Operand::Weight, parts, CHUNK)),
                    weight.bf16_code().map(|code| (Bf16Operand::Code(code), 1, of_codes)),
                ];
                let of =
                    |(operand, weight, segment)| Self::SplitBf16 { operand, segment, weight, x };
                bf16::choose(operands.into_iter().flatten().map(of), tokens)
            }
        }
    }

    /// Tokens of a tile.
    fn tokens(self) -> usize {
        match self {
            Self::Bytes | Self::SplitBf16 { .. } => bf16::TOKENS,
            Self::Bf16Dot(_) => bf16_dot::TOKENS,
        }
    }

    /// Columns of a step.
    fn columns(self) -> usize {
        match self {
            Self::Bytes => BYTES_STEP,
            Self::SplitBf16 { .. } => bf16::STEP,
            Self::Bf16Dot(_) => bf16_dot::STEP,
        }
    }

    /// Columns of a block of bf16 parts.
    fn block(weight: usize, x: usize) -> usize {
        bf16::block(weight, x)
    }

    /// How the instructions add.
    pub(super) fn sums(self) -> Sums {
        match self {
            Self::Bytes => Sums::Integer,
            Self::SplitBf16 { .. } => bf16::SUMS,
            Self::Bf16Dot(_) => Sums::SplitBf16,
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Instruction {
    /// Panels of a tile of bf16 parts.
    const PANELS: usize = 1;

    /// None: other architectures have no such instructions.
    fn of(_: &NativeWeight, _: (Path, Isa), _: usize, _: usize, _: Option<usize>) -> Option<Self> {
        None
    }

    /// Tokens of a tile.
    fn tokens(self) -> usize {
        1
    }

    /// Columns of a step.
    fn columns(self) -> usize {
        CHUNK
    }

    /// Columns of a block of bf16 parts.
    fn block(_: usize, _: usize) -> usize {
        CHUNK
    }

    /// How the instructions add.
    pub(super) fn sums(self) -> Sums {
        Sums::Float
    }
}

/// Tokens of a tile of a product that decodes on the fly.
fn fused_tile(tokens: usize) -> usize {
    tokens.next_power_of_two()
}

/// Columns, in whole chunks, over which sums of integers of a magnitude up to `largest` times bytes
/// of x fit 32 bits: a term is at most `128 largest`, and so is each column's share of the initial
/// value, the offset times the sum of x. Sums of stored codes alone may overflow 32 bits in
/// between: all instruction sets add modulo 2^32.
fn exact_columns(largest: u64) -> usize {
    let columns = i32::MAX as u64 / (128 * largest.max(1));
    // An offset is at most 2^16 and a code at most 8 bits wide: the result is at least a chunk.
    (columns as usize / CHUNK).max(1) * CHUNK
}
