//! The code that is compiled once per code type and instruction set: decoding a segment of a panel
//! for the tiles, and `f32` products of a panel with few tokens that decode on the fly (those of
//! integers are in [`super::dot_row`]).
//!
//! In: the bit planes and group parameters of a panel ([`super::native`]), packed tokens
//! ([`super::tokens`]). Out: codes, weights, or sums of 16 rows per token. A *segment* is the
//! columns between two reads of the group parameters: a group or a part of a group.

use std::ops::Range;

use super::decoder::CodeDecoder;
use super::isa::{Isa, Vectorised, enter};
use super::prefetch::{Jump, prefetch_codes};
use super::tile::{each, sum_of_chains};
use super::vector::Vector;

/// Columns of a chunk.
pub const CHUNK: usize = 32;

/// The scales of a panel: 16 per group, one per row, in the narrowest type that represents them
/// all.
#[derive(Clone, Copy, Debug)]
pub enum PanelScales<'a> {
    /// bf16: also for e8m0, e4m3 and other short scales.
    Bf16(&'a [[u16; 16]]),
    /// f16.
    F16(&'a [[u16; 16]]),
    /// `f32`.
    F32(&'a [[f32; 16]]),
}

impl PanelScales<'_> {
    /// The addresses of all scales.
    pub(super) fn addresses(self) -> Range<usize> {
        let all = match self {
            Self::Bf16(rows) | Self::F16(rows) => rows.as_flattened().as_ptr_range(),
            Self::F32(rows) => {
                let all = rows.as_flattened().as_ptr_range();
                return all.start.addr()..all.end.addr();
            }
        };
        all.start.addr()..all.end.addr()
    }

    /// The scales of a group.
    #[inline(always)]
    pub fn row<V: Vector>(self, group: usize) -> V {
        match self {
            Self::Bf16(rows) => V::load_bf16(&rows[group]),
            Self::F16(rows) => V::load_f16(&rows[group]),
            Self::F32(rows) => V::load_f32(&rows[group]),
        }
    }
}

/// The group parameters of a panel's columns.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// Columns of a group: 4, 8, 16 or a multiple of 32.
    pub columns: usize,
    /// Scales.
    pub scales: PanelScales<'a>,
    /// The correction, added to value times scale; see [`super::native`].
    pub add: Option<&'a [[f32; 16]]>,
}

/// A segment of a panel that is decoded to weights.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Its chunks.
    pub planes: &'a [[u8; 64]],
    /// Its first column, a multiple of 32, which gives its group.
    pub first: usize,
    /// The panel's groups.
    pub groups: Groups<'a>,
}

impl Segment<'_> {
    /// Scale and correction of a group's codes.
    #[inline(always)]
    #[expect(clippy::manual_map, reason = "no closure around vector operations")]
    fn parameters<V: Vector>(&self, group: usize) -> (V, Option<V>) {
        let scale: V = self.groups.scales.row(group);
        let add = match self.groups.add {
            Some(add) => Some(V::load_f32(&add[group])),
            None => None,
        };
        (scale, add)
    }
}

/// A panel.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// All its chunks.
    pub planes: &'a [[u8; 64]],
    /// Its groups.
    pub groups: Groups<'a>,
    /// Where its thread reads on.
    pub(super) jump: Jump,
}

/// Some panels times few tokens, `f32`.
#[derive(Clone, Copy, Debug)]
pub struct FmaRow<'a> {
    /// The panels.
    pub panels: &'a [Panel<'a>],
    /// Columns of a segment: 4, 8, 16 or a multiple of 32 that divides a group (or as in
    /// [`DotRow::segment`](super::dot_row::DotRow::segment)).
    pub segment: usize,
    /// Tokens: 1, 2, 4 or 8, at most `TILING.fused_tokens`.
    pub tokens: usize,
    /// `[column][token]`.
    pub x: &'a [f32],
    /// `[segment][token]`: the sum of x over a segment.
    pub sums: &'a [f32],
}

struct Codes<'a, F> {
    decoder: &'a F,
    planes: &'a [[u8; 64]],
    table: Option<&'a [u8; 16]>,
    out: &'a mut [[u8; 64]],
    stride: usize,
}

pub(super) fn codes<F: CodeDecoder>(
    decoder: &F,
    isa: Isa,
    (planes, table): (&[[u8; 64]], Option<&[u8; 16]>),
    out: &mut [[u8; 64]],
    stride: usize,
) {
    enter(isa, Codes { decoder, planes, table, out, stride });
}

impl<F: CodeDecoder> Vectorised for Codes<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let chunks = self.planes.chunks_exact(F::BITS);
        let outs = self.out.chunks_mut(8 * self.stride);
        for (planes, out) in chunks.zip(outs) {
            let mut codes: [V; 8] = self.decoder.codes(planes);
            if let Some(table) = self.table {
                look_up(&mut codes, table);
            }
            let codes = V::arrange(codes);
            for (codes, out) in codes.into_iter().zip(out.iter_mut().step_by(self.stride)) {
                codes.store(out);
            }
        }
    }
}

/// Replaces codes, which are below 16, by the bytes of a table.
#[inline(always)]
pub(super) fn look_up<V: Vector>(codes: &mut [V; 8], table: &[u8; 16]) {
    each!(q in [0 1 2 3 4 5 6 7] {
        codes[q] = codes[q].lookup(table);
    });
}

struct Weights<'a, F> {
    decoder: &'a F,
    segment: Segment<'a>,
    out: &'a mut [[f32; 16]],
    stride: usize,
}

pub(super) fn values<F: CodeDecoder>(
    decoder: &F,
    isa: Isa,
    segment: Segment<'_>,
    out: &mut [[f32; 16]],
    stride: usize,
) {
    enter(isa, Weights { decoder, segment, out, stride });
}

impl<F: CodeDecoder> Vectorised for Weights<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { decoder, segment, out, stride } = self;
        let Segment { planes, first, groups, .. } = segment;
        let chunks = planes.chunks_exact(F::BITS);
        let outs = out.chunks_mut(CHUNK * stride);
        let (mut group, mut column) = (first / groups.columns, first);
        let mut next = (group + 1) * groups.columns;
        let (mut scale, mut add): (V, _) = segment.parameters(group);
        for (planes, out) in chunks.zip(outs) {
            let codes: [V; 8] = decoder.codes(planes);
            for (q, codes) in codes.into_iter().enumerate() {
                if column == next {
                    group += 1;
                    next += groups.columns;
                    (scale, add) = segment.parameters(group);
                }
                column += 4;
                let values = decoder.values(codes);
                for (j, value) in values.into_iter().enumerate() {
                    let weight = match add {
                        Some(add) => value.fma_f32(scale, add),
                        None => value.mul_f32(scale),
                    };
                    if let Some(out) = out.get_mut((4 * q + j) * stride) {
                        weight.store_f32(out);
                    }
                }
            }
        }
    }
}

struct Fma<'a, F> {
    decoder: &'a F,
    row: FmaRow<'a>,
    sums: &'a mut [[f32; 16]],
}

pub(super) fn fma_row<F: CodeDecoder>(
    decoder: &F,
    isa: Isa,
    row: FmaRow<'_>,
    sums: &mut [[f32; 16]],
) {
    enter(isa, Fma { decoder, row, sums });
}

impl<F: CodeDecoder> Vectorised for Fma<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.row.tokens {
            1 => self.tokens::<V, 1, 4>(),
            2 if const { V::TILING.fused_tokens >= 2 } => self.tokens::<V, 2, 4>(),
            4 if const { V::TILING.fused_tokens >= 4 } => self.tokens::<V, 4, 2>(),
            8 if const { V::TILING.fused_tokens >= 8 } => self.tokens::<V, 8, 1>(),
            tokens => debug_assert!(false, "{tokens} tokens are not fused"),
        }
    }
}

impl<F: CodeDecoder> Fma<'_, F> {
    /// M tokens, C independent chains of additions per token.
    #[inline(always)]
    fn tokens<V: Vector, const M: usize, const C: usize>(self) {
        let Self { decoder, row, sums } = self;
        let (sums, _) = sums.as_chunks_mut::<M>();
        for (panel, sums) in row.panels.iter().zip(sums) {
            let totals = fma_panel::<V, F, M, C>(decoder, row, panel);
            each!(m in M {
                totals[m].store_f32(&mut sums[m]);
            });
        }
    }
}

/// A panel times M tokens, C independent chains of additions a token.
#[inline(always)]
fn fma_panel<V: Vector, F: CodeDecoder, const M: usize, const C: usize>(
    decoder: &F,
    row: FmaRow<'_>,
    panel: &Panel<'_>,
) -> [V; M] {
    let Groups { columns, scales, add } = panel.groups;
    let (x, _) = row.x.as_chunks::<M>();
    let (x_sums, _) = row.sums.as_chunks::<M>();
    let mut totals = [V::splat(0); M];
    let mut parts = [[V::splat(0); C]; M];
    let (mut segment, mut left) = (0, row.segment);
    let last = x.len();
    for (chunk, (planes, x)) in
        panel.planes.chunks_exact(F::BITS).zip(x.as_chunks::<CHUNK>().0).enumerate()
    {
        prefetch_codes::<V>(F::BITS, panel, planes);
        let codes: [V; 8] = decoder.codes(planes);
        // A loop, not unrolled: the end of a segment would otherwise be eight times in every
        // kernel.
        for (q, codes) in codes.into_iter().enumerate() {
            let values = decoder.values(codes);
            each!(j in [0 1 2 3] {
                each!(m in M {
                    let token = V::splat(x[4 * q + j][m].to_bits());
                    parts[m][j % C] = values[j].fma_f32(token, parts[m][j % C]);
                });
            });
            left -= 4;
            if left == 0 || chunk * CHUNK + 4 * q + 4 == last {
                let group = segment * row.segment / columns;
                let scale: V = scales.row(group);
                each!(m in M {
                    let part = sum_of_chains!(parts[m], C, add_f32);
                    totals[m] = part.fma_f32(scale, totals[m]);
                    if let Some(add) = add {
                        let sum = V::splat(x_sums[segment][m].to_bits());
                        totals[m] = V::load_f32(&add[group]).fma_f32(sum, totals[m]);
                    }
                    parts[m] = [V::splat(0); C];
                });
                segment += 1;
                left = row.segment;
            }
        }
    }
    totals
}
