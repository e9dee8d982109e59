//! What is compiled once per family and instruction set: decoding a piece of a panel for the
//! tiles, and products of a panel with few tokens that decode on the fly.
//!
//! In: the planes and group parameters of a panel ([`super::native`]), packed tokens
//! ([`super::tokens`]). Out: codes, weights, or sums of 16 rows per token. A *piece* is the run
//! of columns between two visits to the group parameters: a group or a part of one.

use super::family::Family;
use super::isa::{Isa, Kernel, enter};
use super::tile::each;
use super::vector::Vector;

/// Columns of a chunk.
pub const CHUNK: usize = 32;

/// The scales of a panel: a row of 16 a group, in the narrowest type that holds them all.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// bf16: also e8m0, e4m3 and other short scales.
    Bf16(&'a [[u16; 16]]),
    /// f16.
    F16(&'a [[u16; 16]]),
    /// `f32`.
    F32(&'a [[f32; 16]]),
}

impl Scales<'_> {
    /// Asks for the scales of a group; past the end for those of the panel that follows in the stream.
    #[inline(always)]
    fn prefetch<V: Vector, const P: usize>(self, group: usize) {
        V::prefetch(match self {
            Self::Bf16(rows) | Self::F16(rows) => {
                in_stream::<_, P>(rows, rows.as_ptr().wrapping_add(group)).cast()
            }
            Self::F32(rows) => in_stream::<_, P>(rows, rows.as_ptr().wrapping_add(group)).cast(),
        });
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

/// What is per group of a panel's columns.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// Columns of a group: 4, 8, 16 or a multiple of 32.
    pub columns: usize,
    /// Scales.
    pub scales: Scales<'a>,
    /// Added to value times scale; see [`super::native`].
    pub add: Option<&'a [[f32; 16]]>,
}

/// A piece of a panel to be decoded to weights.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Its chunks.
    pub planes: &'a [[u8; 64]],
    /// Its first column, a multiple of 32: where it stands among the groups.
    pub first: usize,
    /// The panel's groups.
    pub groups: Groups<'a>,
}

impl Piece<'_> {
    /// Scale and addend of a group's codes.
    #[inline(always)]
    #[expect(clippy::manual_map, reason = "no closure stands around vector operations")]
    fn parameters<V: Vector>(&self, group: usize) -> (V, Option<V>) {
        let scale: V = self.groups.scales.row(group);
        let add = match self.groups.add {
            Some(add) => Some(V::load_f32(&add[group])),
            None => None,
        };
        (scale, add)
    }
}

/// A panel: a stream of memory.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// All its chunks.
    pub planes: &'a [[u8; 64]],
    /// Its groups.
    pub groups: Groups<'a>,
}

/// Some panels times few tokens, integers.
#[derive(Clone, Copy, Debug)]
pub struct DotRow<'a> {
    /// As many as [`streams`] says; `add` of their groups is not looked at.
    pub panels: &'a [Panel<'a>],
    /// Columns of a piece, a multiple of 32 that divides a group (or is one of several equal
    /// parts of the only group; the last piece may be shorter).
    pub piece: usize,
    /// Tokens: 1, 2, 4 or 8, at most `TILING.fused_tokens`.
    pub tokens: usize,
    /// `[step of 4 columns][token]`, four signed bytes each.
    pub x: &'a [u32],
    /// `[piece][token]`: what a sum starts from.
    pub starts: &'a [i32],
}

/// A panel times few tokens, `f32`.
#[derive(Clone, Copy, Debug)]
pub struct FmaRow<'a> {
    /// The panel.
    pub panel: Panel<'a>,
    /// Columns of a piece: 4, 8, 16 or a multiple of 32 that divides a group (or as in
    /// [`DotRow::piece`]).
    pub piece: usize,
    /// Tokens: 1, 2, 4 or 8, at most `TILING.fused_tokens`.
    pub tokens: usize,
    /// `[column][token]`.
    pub x: &'a [f32],
    /// `[piece][token]`: the sum of x over a piece.
    pub sums: &'a [f32],
}

/// Panels that a product of few tokens by integers reads side by side. A core reads several
/// streams faster than one: where one waits for its prefetcher at the end of a page, the others go
/// on. Four were as good as eight (docs/performance/cpu.md). More tokens need the registers, and the
/// time, for themselves.
pub const fn streams(tokens: usize) -> usize {
    match tokens {
        ..=2 => MOST_STREAMS,
        3..=4 => 2,
        _ => 1,
    }
}

/// The most of [`streams`].
pub const MOST_STREAMS: usize = 4;

struct Codes<'a, F> {
    family: &'a F,
    planes: &'a [[u8; 64]],
    out: &'a mut [[u8; 64]],
    stride: usize,
}

pub(super) fn codes<F: Family>(
    family: &F,
    isa: Isa,
    planes: &[[u8; 64]],
    out: &mut [[u8; 64]],
    stride: usize,
) {
    enter(isa, Codes { family, planes, out, stride });
}

impl<F: Family> Kernel for Codes<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let chunks = self.planes.chunks_exact(F::BITS);
        let outs = self.out.chunks_mut(8 * self.stride);
        for (planes, out) in chunks.zip(outs) {
            let codes: [V; 8] = V::arrange(self.family.codes(planes));
            for (codes, out) in codes.into_iter().zip(out.iter_mut().step_by(self.stride)) {
                codes.store(out);
            }
        }
    }
}

struct Weights<'a, F> {
    family: &'a F,
    piece: Piece<'a>,
    out: &'a mut [[f32; 16]],
    stride: usize,
}

pub(super) fn values<F: Family>(
    family: &F,
    isa: Isa,
    piece: Piece<'_>,
    out: &mut [[f32; 16]],
    stride: usize,
) {
    enter(isa, Weights { family, piece, out, stride });
}

impl<F: Family> Kernel for Weights<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { family, piece, out, stride } = self;
        let Piece { planes, first, groups, .. } = piece;
        let chunks = planes.chunks_exact(F::BITS);
        let outs = out.chunks_mut(CHUNK * stride);
        let (mut group, mut column) = (first / groups.columns, first);
        let mut next = (group + 1) * groups.columns;
        let (mut scale, mut add): (V, _) = piece.parameters(group);
        for (planes, out) in chunks.zip(outs) {
            let codes: [V; 8] = family.codes(planes);
            for (q, codes) in codes.into_iter().enumerate() {
                if column == next {
                    group += 1;
                    next += groups.columns;
                    (scale, add) = piece.parameters(group);
                }
                column += 4;
                let values = family.values(codes);
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

struct Dot<'a, F> {
    family: &'a F,
    row: DotRow<'a>,
    sums: &'a mut [[f32; 16]],
}

pub(super) fn dot_row<F: Family>(family: &F, isa: Isa, row: DotRow<'_>, sums: &mut [[f32; 16]]) {
    enter(isa, Dot { family, row, sums });
}

impl<F: Family> Kernel for Dot<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.row.tokens {
            1 => self.tokens::<V, 1, 4, { streams(1) }>(),
            2 if const { V::TILING.fused_tokens >= 2 } => self.tokens::<V, 2, 4, { streams(2) }>(),
            4 if const { V::TILING.fused_tokens >= 4 } => self.tokens::<V, 4, 2, { streams(4) }>(),
            8 if const { V::TILING.fused_tokens >= 8 } => self.tokens::<V, 8, 1, { streams(8) }>(),
            tokens => debug_assert!(false, "{tokens} tokens are not fused"),
        }
    }
}

impl<F: Family> Dot<'_, F> {
    /// M tokens by P panels, C chains of products each: enough to hide their latency.
    #[inline(always)]
    fn tokens<V: Vector, const M: usize, const C: usize, const P: usize>(self) {
        let Self { family, row, sums } = self;
        let (x, _) = row.x.as_chunks::<M>();
        let (starts, _) = row.starts.as_chunks::<M>();
        let Some(panels) = row.panels.first_chunk::<P>() else {
            debug_assert!(false, "{} panels for {P} streams", row.panels.len());
            return;
        };
        let mut totals = [[V::splat(0); M]; P];
        let lines = F::BITS * (row.piece / CHUNK);
        let chunks_ahead = AHEAD / (64 * F::BITS);
        for (piece, (x, starts)) in x.chunks(row.piece / 4).zip(starts).enumerate() {
            each!(p in P {
                let Panel { planes, groups } = &panels[p];
                let mut parts = [[V::splat(0); C]; M];
                each!(m in M {
                    parts[m][0] = V::splat(starts[m] as u32);
                });
                let group = piece * row.piece / groups.columns;
                groups.scales.prefetch::<V, P>(group + chunks_ahead * CHUNK / groups.columns);
                let chunks = planes[piece * lines..].chunks_exact(F::BITS);
                for (chunk, x) in chunks.zip(x.as_chunks::<8>().0) {
                    let ahead = chunk.as_ptr().wrapping_add(chunks_ahead * F::BITS);
                    let ahead = in_stream::<_, P>(planes, ahead);
                    for line in 0..F::BITS {
                        V::prefetch(ahead.wrapping_add(line).cast());
                    }
                    let codes: [V; 8] = family.codes(chunk);
                    each!(q in [0 1 2 3 4 5 6 7] {
                        each!(m in M {
                            let token = V::splat(x[q][m]);
                            let part = &mut parts[m][q % C];
                            *part = if F::BITS < 8 {
                                part.dot_narrow(codes[q], token)
                            } else {
                                part.dot(codes[q], token)
                            };
                        });
                    });
                }
                let scale: V = groups.scales.row(group);
                each!(m in M {
                    let mut part = parts[m][0];
                    if const { C > 1 } {
                        part = part.add(parts[m][1]);
                    }
                    if const { C > 2 } {
                        part = part.add(parts[m][2].add(parts[m][3]));
                    }
                    totals[p][m] = part.to_f32().fma_f32(scale, totals[p][m]);
                });
            });
        }
        let (sums, _) = sums.as_chunks_mut::<M>();
        for (totals, sums) in totals.into_iter().zip(sums) {
            each!(m in M {
                totals[m].store_f32(&mut sums[m]);
            });
        }
    }
}

/// How far ahead of the chunk in hand codes are asked for, in bytes: about the time of a memory
/// access at the speed of a core's stream. Scales are asked for as many whole groups ahead, and no
/// further: docs/performance/cpu.md.
const AHEAD: usize = 2048;

/// The address `at` as a stream has it that reads a panel's codes or scales, `panel`: past the end that of
/// the panel P on, since those between are other streams'. What follows a batch of panels is another
/// thread's, so that these are asked for in vain.
#[inline(always)]
fn in_stream<T, const P: usize>(panel: &[T], at: *const T) -> *const T {
    if at < panel.as_ptr_range().end { at } else { at.wrapping_add((P - 1) * panel.len()) }
}

struct Fma<'a, F> {
    family: &'a F,
    row: FmaRow<'a>,
    sums: &'a mut [[f32; 16]],
}

pub(super) fn fma_row<F: Family>(family: &F, isa: Isa, row: FmaRow<'_>, sums: &mut [[f32; 16]]) {
    enter(isa, Fma { family, row, sums });
}

impl<F: Family> Kernel for Fma<'_, F> {
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

impl<F: Family> Fma<'_, F> {
    /// M tokens, C chains of additions a token.
    #[inline(always)]
    fn tokens<V: Vector, const M: usize, const C: usize>(self) {
        let Self { family, row, sums } = self;
        let Groups { columns, scales, add } = row.panel.groups;
        let (x, _) = row.x.as_chunks::<M>();
        let (x_sums, _) = row.sums.as_chunks::<M>();
        let mut totals = [V::splat(0); M];
        let mut parts = [[V::splat(0); C]; M];
        let (mut piece, mut left) = (0, row.piece);
        let last = x.len();
        for (chunk, (planes, x)) in
            row.panel.planes.chunks_exact(F::BITS).zip(x.as_chunks::<CHUNK>().0).enumerate()
        {
            for line in planes {
                V::prefetch(line.as_ptr().wrapping_add(AHEAD));
            }
            let codes: [V; 8] = family.codes(planes);
            // A loop, not written out: what ends a piece would stand eight times in every kernel.
            for (q, codes) in codes.into_iter().enumerate() {
                let values = family.values(codes);
                each!(j in [0 1 2 3] {
                    each!(m in M {
                        let token = V::splat(x[4 * q + j][m].to_bits());
                        parts[m][j % C] = values[j].fma_f32(token, parts[m][j % C]);
                    });
                });
                left -= 4;
                if left == 0 || chunk * CHUNK + 4 * q + 4 == last {
                    let group = piece * row.piece / columns;
                    let scale: V = scales.row(group);
                    each!(m in M {
                        let mut part = parts[m][0];
                        if const { C > 1 } {
                            part = part.add_f32(parts[m][1]);
                        }
                        if const { C > 2 } {
                            part = part.add_f32(parts[m][2].add_f32(parts[m][3]));
                        }
                        totals[m] = part.fma_f32(scale, totals[m]);
                        if let Some(add) = add {
                            let sum = V::splat(x_sums[piece][m].to_bits());
                            totals[m] = V::load_f32(&add[group]).fma_f32(sum, totals[m]);
                        }
                        parts[m] = [V::splat(0); C];
                    });
                    piece += 1;
                    left = row.piece;
                }
            }
        }
        each!(m in M {
            totals[m].store_f32(&mut sums[m]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::in_stream;

    #[test]
    fn streams_go_on_in_panels_of_their_own() {
        // Panels of 10 lines, four streams: the first goes from line 9 to 40, the second from 19 to 50.
        let lines: Vec<u16> = (0..60).collect();
        let places = |stream: usize| {
            let panel = &lines[10 * stream..][..10];
            [8, 9, 10, 11].map(|at| {
                let address = in_stream::<_, 4>(panel, panel.as_ptr().wrapping_add(at));
                (address.addr() - lines.as_ptr().addr()) / size_of::<u16>()
            })
        };
        assert_eq!(places(0), [8, 9, 40, 41]);
        assert_eq!(places(1), [18, 19, 50, 51]);
        let past = lines.as_ptr().wrapping_add(70);
        assert_eq!(in_stream::<_, 1>(&lines, past), past);
    }
}
