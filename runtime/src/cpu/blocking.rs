//! The loops around the kernels: panels over threads, blocks of K, tiles of tokens, epilogue.
//!
//! In: a native weight, packed tokens, the result's place. Out: y. Up to a few tokens a panel
//! is decoded on the fly and read once. Beyond, a thread takes a group of panels, decodes a
//! block of their columns into its own cache, and runs all tiles of tokens over it before it
//! takes the next block; sums wait in `f32`. Panels are handed out by a counter, so that a thread
//! that is held up does not hold up the others.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::decode::{CHUNK, DotRow, FmaRow, Groups, MOST_STREAMS, Panel, Piece, Scales, streams};
use super::family::Decode;
use super::isa::{Isa, Kernel, enter};
use super::native::{Native, PANEL, Path, Rows};
use super::parts;
use super::tile::{DotBlock, DotTokens, Sums};
use super::tokens::{Tile, padded, tiles};
use super::vector::Vector;
use crate::buffer::{Cut, bytes_of};
use crate::element::{Bf16, F16, ValuesMut, f32_to_bf16, f32_to_f16};

/// Columns between two visits to the group parameters, at most: integer sums.
const DOT_PIECE: usize = 512;
/// The same of `f32` sums: as long as a chain of additions gets.
const FMA_PIECE: usize = 128;
/// Columns of a block of decoded codes: with two panels 16 KiB, which share a first-level cache
/// with a tile of tokens, its sums and the scales.
const DOT_BLOCK: usize = 512;
/// Columns of a block of decoded weights: with two panels 16 KiB.
const FMA_BLOCK: usize = 128;
/// Columns of a block of weights in bf16 parts: two parts of two panels are 16 KiB, which share a
/// first-level cache with a panel in `f32` and the columns of 32 tokens.
const PARTS_BLOCK: usize = 128;

/// How a product is cut up; a function of the weight, the set and the number of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    /// Path.
    pub path: Path,
    /// Tokens M.
    pub tokens: usize,
    /// M with the zeros that fill up tiles.
    pub padded: usize,
    /// Whether panels are decoded on the fly.
    pub fused: bool,
    /// What matrix registers multiply, if they do: every tile is a whole one.
    pub matrix: Option<Matrix>,
    /// Tokens of the largest tile.
    pub tile: usize,
    /// Panels of a tile, or read side by side.
    pub panels: usize,
    /// Columns of a token that lie together (integers).
    pub together: usize,
    /// Columns of a piece.
    pub piece: usize,
    /// Pieces of a panel.
    pub pieces: usize,
    /// Columns of a decoded block, whole pieces.
    pub block: usize,
}

impl Blocking {
    /// Cuts up a product of `tokens` tokens, each of whose elements is `x_parts` bf16 numbers
    /// ([`parts::of_input`]) or is not to be cut.
    pub fn new(
        weight: &Native,
        path: Path,
        isa: Isa,
        tokens: usize,
        x_parts: Option<usize>,
    ) -> Self {
        let tiling = isa.tiling();
        let fused = tokens <= tiling.fused_tokens;
        let (most, tile, panels, block) = match path {
            Path::Dot => (DOT_PIECE, tiling.dot_tokens, tiling.dot_panels, DOT_BLOCK),
            Path::Fma => (FMA_PIECE, tiling.fma_tokens, tiling.fma_panels, FMA_BLOCK),
        };
        let piece = piece(weight, most);
        let fused_panels = match path {
            Path::Dot => streams(tokens),
            Path::Fma => 1,
        };
        let tile = if fused { fused_tile(tokens) } else { tile };
        let matrix =
            if fused { None } else { Matrix::of(weight, path, isa, piece, tokens, x_parts) };
        let tile = matrix.map_or(tile, Matrix::tokens);
        let (piece, panels, block) = match matrix {
            Some(Matrix::Parts { .. }) => (CHUNK, Matrix::PANELS, PARTS_BLOCK),
            _ => (piece, panels, block),
        };
        Self {
            path,
            tokens,
            padded: match (fused, matrix) {
                (true, _) => tile.min(tokens * tile),
                (false, Some(_)) => tokens.next_multiple_of(tile),
                (false, None) => padded(tokens, tile),
            },
            fused,
            matrix,
            tile,
            panels: if fused { fused_panels } else { panels },
            together: match matrix {
                _ if fused => 4,
                Some(matrix) => matrix.columns(),
                None => tiling.dot_columns,
            },
            piece,
            pieces: weight.columns().div_ceil(piece),
            block: (block / piece).max(1) * piece,
        }
    }

    /// The tiles of tokens.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + use<> {
        let fused = self.fused && self.tokens > 0;
        let one = fused.then_some(Tile { first: 0, size: self.tile });
        let tokens = match (self.fused, self.matrix) {
            (true, _) => 0,
            (false, Some(_)) => self.padded,
            (false, None) => self.tokens,
        };
        one.into_iter().chain(tiles(tokens, self.tile))
    }

    /// Bytes that a thread works in.
    pub fn scratch(&self) -> usize {
        if self.fused {
            return bytes_of::<[f32; 16]>(self.tile * self.panels);
        }
        let sums = bytes_of::<[f32; 16]>(self.padded * self.panels);
        let decoded = match (self.matrix, self.path) {
            (Some(Matrix::Parts { weight, .. }), _) => {
                bytes_of::<[f32; 16]>(self.block)
                    + bytes_of::<[u8; 64]>(parts::lines(self.block, weight, self.panels))
            }
            (_, Path::Dot) => {
                bytes_of::<[u8; 64]>(self.block / 4 * self.panels)
                    + bytes_of::<[f32; 16]>(self.block / self.piece * self.panels)
            }
            (_, Path::Fma) => bytes_of::<[f32; 16]>(self.block * self.panels),
        };
        sums + decoded
    }
}

/// What matrix registers multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Codes as bytes, by codes of x; scaled piece by piece.
    Bytes,
    /// Weights and x in so many bf16 parts.
    Parts {
        /// Parts of a weight.
        weight: usize,
        /// Parts of an element of x.
        x: usize,
    },
}

#[cfg(target_arch = "x86_64")]
impl Matrix {
    /// Panels of a tile of parts.
    const PANELS: usize = amx::bf16::PANELS;

    /// That of a weight on a set, if there is one.
    fn of(
        weight: &Native,
        path: Path,
        isa: Isa,
        piece: usize,
        tokens: usize,
        x: Option<usize>,
    ) -> Option<Self> {
        if isa != Isa::Avx512Amx {
            return None;
        }
        match path {
            Path::Dot => amx::bytes::takes(weight, piece).then_some(Self::Bytes),
            Path::Fma => {
                let (weight, x) = weight.parts().zip(x)?;
                amx::bf16::pays(tokens, weight, x).then_some(Self::Parts { weight, x })
            }
        }
    }

    /// Tokens of a tile.
    fn tokens(self) -> usize {
        amx::SIDE
    }

    /// Columns of a step.
    fn columns(self) -> usize {
        match self {
            Self::Bytes => amx::bytes::STEP,
            Self::Parts { .. } => amx::bf16::STEP,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Matrix {
    /// Panels of a tile of parts.
    const PANELS: usize = 1;

    /// None: the other sets have no such registers.
    fn of(_: &Native, _: Path, _: Isa, _: usize, _: usize, _: Option<usize>) -> Option<Self> {
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
}

/// Tokens of the one tile of a product that decodes on the fly.
fn fused_tile(tokens: usize) -> usize {
    tokens.next_power_of_two()
}

/// Columns of a piece: the largest part of a group, in whole chunks, of at most `most` columns.
fn piece(weight: &Native, most: usize) -> usize {
    let group = weight.group();
    if !weight.grouped() {
        return group.min(most);
    }
    if group <= most {
        return group;
    }
    let chunks = group / CHUNK;
    let parts = (1..=chunks).find(|parts| chunks.is_multiple_of(*parts) && group / parts <= most);
    group / parts.unwrap_or(chunks)
}

/// The tokens, packed.
#[derive(Clone, Copy, Debug)]
pub enum Tokens<'a> {
    /// For [`Path::Dot`].
    Codes {
        /// `[tile][step][token]` words of four codes.
        x: &'a [u32],
        /// `[tile][piece][token]`.
        starts: &'a [i32],
        /// `[tile][piece][token]`, where the weight adds something per group; else empty.
        sums: &'a [f32],
        /// `[token]`: scale of x.
        scales: &'a [f32],
        /// `[token]`: zero point of x; empty where there is none.
        zeros: &'a [f32],
    },
    /// For [`Path::Fma`].
    Values {
        /// `[tile][column][token]`.
        x: &'a [f32],
        /// `[tile][piece][token]`, where the weight adds something per group; else empty.
        sums: &'a [f32],
    },
    /// For [`Matrix::Parts`].
    Parts {
        /// `[tile][step][part][token][column]`: bf16.
        x: &'a [u16],
    },
}

/// A product, ready to run.
pub(super) struct Product<'a> {
    pub(super) weight: &'a Native,
    pub(super) expert: usize,
    pub(super) family: &'a dyn Decode,
    pub(super) isa: Isa,
    pub(super) blocking: Blocking,
    pub(super) tokens: Tokens<'a>,
}

/// y [M, N], written by several threads, each its own columns.
enum Target {
    F32(*mut f32),
    F16(*mut F16),
    Bf16(*mut Bf16),
}

struct Output {
    target: Target,
    /// Row length N; rows.
    n: usize,
    tokens: usize,
}

// SAFETY: the pointer is that of an exclusive borrow which outlives the threads (`Product::run`
// holds it), and `store` is called for each (token, column) by the one thread that has the panel.
unsafe impl Sync for Output {}

impl Output {
    /// Writes a panel's columns of a token; what is outside y is ignored.
    #[inline(always)]
    fn store(&self, token: usize, panel: usize, values: &[f32; PANEL]) {
        let first = panel * PANEL;
        if token >= self.tokens || first >= self.n {
            return;
        }
        let columns = PANEL.min(self.n - first);
        let at = token * self.n + first;
        // SAFETY: `at + columns` is at most tokens * n, the length that `run` has checked; the
        // elements are initialised, and no other thread touches them: see `Sync` above.
        unsafe {
            match self.target {
                Target::F32(y) => place(y.add(at), columns, values, |value| value),
                Target::F16(y) => place(y.add(at), columns, values, |value| F16(f32_to_f16(value))),
                Target::Bf16(y) => {
                    place(y.add(at), columns, values, |value| Bf16(f32_to_bf16(value)));
                }
            }
        }
    }
}

/// Converts values to the first `columns` places at `y`.
///
/// # Safety
/// There are as many initialised elements at `y`, and nobody else has them.
#[inline(always)]
unsafe fn place<T: Copy>(
    y: *mut T,
    columns: usize,
    values: &[f32; PANEL],
    convert: impl Fn(f32) -> T,
) {
    // SAFETY: the caller's promise.
    let y = unsafe { std::slice::from_raw_parts_mut(y, columns) };
    // A whole panel is a constant length, and so a few vectors.
    match <&mut [T; PANEL]>::try_from(&mut *y) {
        Ok(y) => y.iter_mut().zip(values).for_each(|(y, value)| *y = convert(*value)),
        Err(_) => y.iter_mut().zip(values).for_each(|(y, value)| *y = convert(*value)),
    }
}

impl Product<'_> {
    /// Computes y [M, n]; `scratch` is divided among as many tasks as it has room for.
    pub(super) fn run(&self, n: usize, y: &mut ValuesMut<'_>, scratch: &mut [[u8; 64]]) {
        let tokens = self.blocking.tokens;
        if y.len() != tokens * n || tokens == 0 {
            return;
        }
        let target = match y {
            ValuesMut::F32(y) => Target::F32(y.as_mut_ptr()),
            ValuesMut::F16(y) => Target::F16(y.as_mut_ptr()),
            ValuesMut::Bf16(y) => Target::Bf16(y.as_mut_ptr()),
        };
        let output = Output { target, n, tokens };
        let next = AtomicUsize::new(0);
        let panels = self.weight.panels();
        // A workspace that was larger before is not more tasks now.
        let each = (self.blocking.scratch() / 64).max(1);
        let all = scratch.len().min(each * rayon::current_num_threads());
        scratch[..all].par_chunks_exact_mut(each).for_each(|scratch| {
            if self.blocking.fused {
                let batch = self.batch();
                while let Some(first) = claim(&next, batch, panels) {
                    let end = (first + batch).min(panels);
                    for first in (first..end).step_by(self.blocking.panels) {
                        self.fused(
                            first..(first + self.blocking.panels).min(end),
                            &output,
                            scratch,
                        );
                    }
                }
            } else {
                let batch = self.blocking.panels;
                while let Some(first) = claim(&next, batch, panels) {
                    match batch {
                        1 => self.blocked::<1>(first, &output, scratch),
                        _ => self.blocked::<2>(first, &output, scratch),
                    }
                }
            }
        });
    }

    /// Panels that a thread takes at once: some 256 KiB of codes, a stream worth prefetching.
    fn batch(&self) -> usize {
        let bytes = self.weight.columns() * PANEL * self.family.bits() / 8;
        ((256 << 10) / bytes.max(1)).clamp(1, 16).next_multiple_of(self.blocking.panels)
    }

    fn fused(&self, range: Range<usize>, output: &Output, scratch: &mut [[u8; 64]]) {
        let Blocking { tile: tokens, panels: streams, piece, .. } = self.blocking;
        // A panel that is missing at the end is computed as the last one again.
        let panel =
            |at: usize| self.weight.panel(self.expert, (range.start + at).min(range.end - 1));
        let panels: [Panel<'_>; MOST_STREAMS] = std::array::from_fn(panel);
        let sums: &mut [[f32; 16]] = Cut::new(scratch).take(streams * tokens);
        match self.tokens {
            Tokens::Codes { x, starts, .. } => {
                let row = DotRow { panels: &panels[..streams], piece, tokens, x, starts };
                self.family.dot_row(self.isa, row, sums);
            }
            Tokens::Values { x, sums: x_sums } => {
                let row = FmaRow { panel: panels[0], piece, tokens, x, sums: x_sums };
                self.family.fma_row(self.isa, row, sums);
            }
            Tokens::Parts { .. } => debug_assert!(false, "parts are multiplied in blocks"),
        }
        enter(self.isa, Epilogue { product: self, range, sums, apart: (1, tokens), output });
    }

    fn blocked<const P: usize>(&self, first: usize, output: &Output, scratch: &mut [[u8; 64]]) {
        let Blocking { padded, block, .. } = self.blocking;
        let mut cut = Cut::new(scratch);
        let sums: &mut [[f32; 16]] = cut.take(padded * P);
        sums.fill([0.0; 16]);
        let columns = self.weight.columns();
        let here = P.min(self.weight.panels() - first);
        match self.tokens {
            Tokens::Codes { x, starts, .. } => {
                let codes: &mut [[u8; 64]] = cut.take(block / 4 * P);
                let scales: &mut [[f32; 16]] = cut.take(block / self.blocking.piece * P);
                for start in (0..columns).step_by(block) {
                    let end = (start + block).min(columns);
                    let scales = self.decode_codes::<P>(first, here, start..end, codes, scales);
                    let codes = &mut codes[..(end - start) / 4 * P];
                    let ahead = self.ahead(first, here, end);
                    self.dot_tiles::<P>(start, codes, scales, x, starts, sums, ahead);
                }
            }
            Tokens::Values { x, .. } => {
                let weights: &mut [[f32; 16]] = cut.take(block * P);
                for start in (0..columns).step_by(block) {
                    let end = (start + block).min(columns);
                    for p in 0..here {
                        let piece = Piece {
                            planes: self.lines(first + p, start..end),
                            first: start,
                            groups: self.weight.groups_of(self.expert, first + p),
                        };
                        self.family.decode_values(self.isa, piece, &mut weights[p..], P);
                    }
                    let weights = weights.as_chunks().0.get(..end - start).unwrap_or(&[]);
                    let blocking = &self.blocking;
                    enter(self.isa, FmaTiles::<P> { blocking, columns, start, weights, x, sums });
                }
            }
            Tokens::Parts { x } => self.parts::<P>(first, here, x, sums, cut),
        }
        let range = first..first + here;
        enter(self.isa, Epilogue { product: self, range, sums, apart: (P, 1), output });
    }

    /// What the block that begins at column `start` decodes, and the last one of nothing.
    fn ahead(&self, first: usize, here: usize, start: usize) -> Ahead<'_> {
        let end = (start + self.blocking.block).min(self.weight.columns());
        let panels = std::array::from_fn(|p| {
            let there = p < here && start < end;
            if there { self.lines(first + p, start..end) } else { &[] }
        });
        let tiles = self.blocking.padded.div_ceil(self.blocking.tile).max(1);
        Ahead { panels, share: panels[0].len().div_ceil(tiles) }
    }

    /// The products of some panels in bf16 parts: all tiles of tokens, block by block.
    #[cfg(target_arch = "x86_64")]
    fn parts<const P: usize>(
        &self,
        first: usize,
        here: usize,
        x: &[u16],
        sums: &mut [[f32; 16]],
        mut cut: Cut<'_>,
    ) {
        let Blocking { block, matrix: Some(Matrix::Parts { weight, x: x_parts }), .. } =
            self.blocking
        else {
            return;
        };
        let columns = self.weight.columns();
        let values: &mut [[f32; 16]] = cut.take(block);
        let halves: &mut [[u8; 64]] = cut.take(parts::lines(block, weight, P));
        for start in (0..columns).step_by(block) {
            let end = (start + block).min(columns);
            let values = &mut values[..end - start];
            let halves = &mut halves[..parts::lines(end - start, weight, P)];
            for p in 0..here {
                let piece = Piece {
                    planes: self.lines(first + p, start..end),
                    first: start,
                    groups: self.weight.groups_of(self.expert, first + p),
                };
                self.family.decode_values(self.isa, piece, values, 1);
                amx::bf16::cut(values, weight, p, halves);
            }
            let (blocking, parts, weights) = (&self.blocking, (weight, x_parts), &*halves);
            let ahead = self.ahead(first, here, end);
            amx::bf16::Tiles { blocking, columns, start, parts, weights, x, sums, ahead }.run();
        }
    }

    /// Never called: [`Matrix::of`] is none.
    #[cfg(not(target_arch = "x86_64"))]
    fn parts<const P: usize>(
        &self,
        _: usize,
        _: usize,
        _: &[u16],
        _: &mut [[f32; 16]],
        _: Cut<'_>,
    ) {
    }

    /// All tiles of tokens on a decoded block that begins at column `start`.
    #[expect(clippy::too_many_arguments, reason = "one call, all of them needed")]
    fn dot_tiles<const P: usize>(
        &self,
        start: usize,
        codes: &mut [[u8; 64]],
        scales: &[[[f32; 16]; P]],
        x: &[u32],
        starts: &[i32],
        sums: &mut [[f32; 16]],
        ahead: Ahead<'_>,
    ) {
        let (blocking, columns) = (&self.blocking, self.weight.columns());
        #[cfg(target_arch = "x86_64")]
        if blocking.matrix == Some(Matrix::Bytes) {
            let (scales, offset) = (scales.as_flattened(), self.weight.offset());
            amx::bytes::Tiles { blocking, columns, start, codes, scales, offset, x, sums, ahead }
                .run();
            return;
        }
        let (codes, narrow) = (codes.as_chunks().0, self.family.bits() < 8);
        let tiles = DotTiles::<P> {
            blocking,
            columns,
            start,
            codes,
            scales,
            narrow,
            x,
            starts,
            sums,
            ahead,
        };
        enter(self.isa, tiles);
    }

    /// The lines of some columns of a panel.
    fn lines(&self, panel: usize, columns: std::ops::Range<usize>) -> &[[u8; 64]] {
        let bits = self.family.bits();
        let planes = self.weight.panel(self.expert, panel).planes;
        &planes[columns.start / CHUNK * bits..columns.end / CHUNK * bits]
    }

    /// Decodes a block to codes, and widens its scales: `[piece][panel]`.
    fn decode_codes<'s, const P: usize>(
        &self,
        first: usize,
        here: usize,
        columns: std::ops::Range<usize>,
        codes: &mut [[u8; 64]],
        scales: &'s mut [[f32; 16]],
    ) -> &'s [[[f32; 16]; P]] {
        let piece = self.blocking.piece;
        for p in 0..here {
            let lines = self.lines(first + p, columns.clone());
            self.family.decode_codes(self.isa, lines, &mut codes[p..], P);
            let groups = self.weight.panel(self.expert, first + p).groups;
            for (at, column) in columns.clone().step_by(piece).enumerate() {
                let group = column / groups.columns;
                scales[at * P + p] = match groups.scales {
                    Scales::Bf16(rows) => rows[group].map(crate::element::bf16_to_f32),
                    Scales::F16(rows) => rows[group].map(crate::element::f16_to_f32),
                    Scales::F32(rows) => rows[group],
                };
            }
        }
        let pieces = columns.len().div_ceil(piece);
        scales.as_chunks().0.get(..pieces).unwrap_or(&[])
    }

    /// `sum + add[g] * sum of x over g`, for one token.
    #[inline(always)]
    fn add_groups<V: Vector>(
        &self,
        add: &[[f32; 16]],
        x_sums: &[f32],
        tile: Tile,
        m: usize,
        mut sum: V,
    ) -> V {
        let Blocking { piece, pieces, .. } = self.blocking;
        for at in 0..pieces {
            let x_sum = x_sums[tile.first * pieces + at * tile.size + m];
            let add = V::load_f32(&add[at * piece / self.weight.group()]);
            sum = add.fma_f32(V::splat(x_sum.to_bits()), sum);
        }
        sum
    }
}

/// What ends some panels: their sums to y. All panels of a token follow each other, since their
/// places in y do, and those of the next token lie a row of y away.
struct Epilogue<'a, 'b> {
    product: &'a Product<'b>,
    /// The panels: one or more, at most [`MOST_STREAMS`].
    range: Range<usize>,
    sums: &'a [[f32; 16]],
    /// How far apart in `sums` tokens are, and panels.
    apart: (usize, usize),
    output: &'a Output,
}

impl Kernel for Epilogue<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { product, range, sums, apart, output } = self;
        let of = |p: usize| (range.start + p).min(range.end - 1);
        let rows: [Rows<'_>; MOST_STREAMS] =
            std::array::from_fn(|p| product.weight.rows_of(product.expert, of(p)));
        let groups: [Groups<'_>; MOST_STREAMS] =
            std::array::from_fn(|p| product.weight.groups_of(product.expert, of(p)));
        for tile in product.blocking.tiles() {
            for m in 0..tile.size.min(product.blocking.tokens.saturating_sub(tile.first)) {
                let token = tile.first + m;
                for ((p, panel), (rows, groups)) in
                    range.clone().enumerate().zip(rows.iter().zip(&groups))
                {
                    let mut sum = V::load_f32(&sums[token * apart.0 + p * apart.1]);
                    let mut factor = V::load_f32(rows.factor);
                    if let Tokens::Codes { sums: x_sums, scales, zeros, .. } = product.tokens {
                        if let Some(add) = groups.add {
                            sum = product.add_groups(add, x_sums, tile, m, sum);
                        }
                        if let Some(zero) = zeros.get(token) {
                            sum = V::load_f32(rows.sums).fma_f32(V::splat((-zero).to_bits()), sum);
                        }
                        factor = factor.mul_f32(V::splat(scales[token].to_bits()));
                    }
                    let mut value = sum.mul_f32(factor);
                    if let Some(bias) = rows.bias {
                        value = value.add_f32(V::load_f32(bias));
                    }
                    let mut values = [0.0; PANEL];
                    value.store_f32(&mut values);
                    output.store(token, panel, &values);
                }
            }
        }
    }
}

/// The lines that the next block decodes, asked for between the tiles of this one: a block is too
/// short for the processor to see a stream.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    /// Of each panel.
    panels: [&'a [[u8; 64]]; 2],
    /// Lines a tile.
    share: usize,
}

impl<'a> Ahead<'a> {
    /// The lines to ask for before tile `at`.
    #[inline(always)]
    pub(super) fn lines(self, at: usize) -> impl Iterator<Item = &'a [u8; 64]> {
        let share =
            move |lines: &'a [[u8; 64]]| lines.iter().skip(at * self.share).take(self.share);
        self.panels.into_iter().flat_map(share)
    }
}

/// The next `batch` panels.
fn claim(next: &AtomicUsize, batch: usize, panels: usize) -> Option<usize> {
    let first = next.fetch_add(batch, Ordering::Relaxed);
    (first < panels).then_some(first)
}

/// All tiles of tokens on a block of codes.
struct DotTiles<'a, const P: usize> {
    blocking: &'a Blocking,
    columns: usize,
    start: usize,
    codes: &'a [[[u8; 64]; P]],
    scales: &'a [[[f32; 16]; P]],
    narrow: bool,
    x: &'a [u32],
    starts: &'a [i32],
    sums: &'a mut [[f32; 16]],
    ahead: Ahead<'a>,
}

impl<const P: usize> Kernel for DotTiles<'_, P> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        for (at, tile) in self.blocking.tiles().enumerate() {
            for line in self.ahead.lines(at) {
                V::prefetch(line, 0);
            }
            match (tile.size, self.narrow) {
                (12, true) => self.tile::<V, 12, true>(tile),
                (12, false) => self.tile::<V, 12, false>(tile),
                (8, true) => self.tile::<V, 8, true>(tile),
                (8, false) => self.tile::<V, 8, false>(tile),
                (6, true) => self.tile::<V, 6, true>(tile),
                (6, false) => self.tile::<V, 6, false>(tile),
                (4, true) => self.tile::<V, 4, true>(tile),
                (4, false) => self.tile::<V, 4, false>(tile),
                (2, true) => self.tile::<V, 2, true>(tile),
                (2, false) => self.tile::<V, 2, false>(tile),
                (_, true) => self.tile::<V, 1, true>(tile),
                (_, false) => self.tile::<V, 1, false>(tile),
            }
        }
    }
}

impl<const P: usize> DotTiles<'_, P> {
    #[inline(always)]
    fn tile<V: Vector, const M: usize, const NARROW: bool>(&mut self, tile: Tile) {
        if const { M > V::TILING.dot_tokens || P > V::TILING.dot_panels } {
            return;
        }
        let piece = self.blocking.piece;
        let first = tile.first * self.columns / 4;
        let (x, _) = self.x[first..].as_chunks::<M>();
        let from = self.start / 4;
        let starts = tile.first * self.blocking.pieces;
        let (starts, _) = self.starts[starts..].as_chunks::<M>();
        let (sums, _) = self.sums[tile.first * P..].as_chunks_mut::<P>();
        let (sums, _) = sums.as_chunks_mut::<M>();
        let Some(sums) = sums.first_mut() else { return };
        let sums: &mut Sums<M, P> = sums;
        let block = DotBlock { codes: self.codes, piece: piece / 4, scales: self.scales };
        let tokens = DotTokens {
            x: &x[from..from + self.codes.len()],
            starts: &starts[self.start / piece..][..self.scales.len()],
        };
        V::dot_tile::<M, P, NARROW>(block, tokens, sums);
    }
}

/// All tiles of tokens on a block of weights.
struct FmaTiles<'a, const P: usize> {
    blocking: &'a Blocking,
    columns: usize,
    start: usize,
    weights: &'a [[[f32; 16]; P]],
    x: &'a [f32],
    sums: &'a mut [[f32; 16]],
}

impl<const P: usize> Kernel for FmaTiles<'_, P> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        for tile in self.blocking.tiles() {
            match tile.size {
                12 => self.tile::<V, 12>(tile),
                8 => self.tile::<V, 8>(tile),
                4 => self.tile::<V, 4>(tile),
                2 => self.tile::<V, 2>(tile),
                _ => self.tile::<V, 1>(tile),
            }
        }
    }
}

impl<const P: usize> FmaTiles<'_, P> {
    #[inline(always)]
    fn tile<V: Vector, const M: usize>(&mut self, tile: Tile) {
        if const { M > V::TILING.fma_tokens || P > V::TILING.fma_panels } {
            return;
        }
        let (x, _) = self.x[tile.first * self.columns..].as_chunks::<M>();
        let (sums, _) = self.sums[tile.first * P..].as_chunks_mut::<P>();
        let (sums, _) = sums.as_chunks_mut::<M>();
        let Some(sums) = sums.first_mut() else { return };
        V::fma_tile::<M, P>(self.weights, &x[self.start..self.start + self.weights.len()], sums);
    }
}
