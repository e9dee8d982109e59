//! Integer products of few tokens, which decode panels on the fly.
//!
//! In: the bit planes and group parameters of some panels ([`super::native`]), packed tokens
//! ([`super::tokens`]). Out: sums of 16 rows per panel and token. Decoded codes stay in registers, so
//! that the time is that of reading the panels.

use super::decoder::CodeDecoder;
use super::groups::HALF_CHUNK;
use super::isa::{Isa, Vectorised, enter};
use super::kernels::{CHUNK, Panel, look_up};
use super::prefetch::{chunks_ahead, prefetch_codes};
use super::tile::{DotTokens, each, sum_of_chains};
use super::vector::Vector;

/// Some panels times few tokens, integers.
#[derive(Clone, Copy, Debug)]
pub struct DotRow<'a> {
    /// The panels; `add` of their groups is not used.
    pub panels: &'a [Panel<'a>],
    /// Columns of a segment, 16 or a multiple of 32 that divides a group (or is one of several equal
    /// parts of the only group; the last segment may be shorter).
    pub segment: usize,
    /// Tokens: 1, 2, 4 or 8, at most `TILING.fused_tokens`.
    pub tokens: usize,
    /// `[step of 4 columns][token]`, four signed bytes each.
    pub x: &'a [u32],
    /// `[segment][token]`: the initial value of a sum.
    pub starts: &'a [i32],
    /// `[segment][token]`: scales of x, if it has one for each segment.
    pub scales: Option<&'a [f32]>,
    /// The integers of codes, if they are none themselves.
    pub table: Option<&'a [u8; 16]>,
}

struct Dot<'a, F> {
    decoder: &'a F,
    row: DotRow<'a>,
    sums: &'a mut [[f32; 16]],
}

pub(super) fn dot_row<F: CodeDecoder>(
    decoder: &F,
    isa: Isa,
    row: DotRow<'_>,
    sums: &mut [[f32; 16]],
) {
    enter(isa, Dot { decoder, row, sums });
}

impl<F: CodeDecoder> Vectorised for Dot<'_, F> {
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

impl<F: CodeDecoder> Dot<'_, F> {
    /// M tokens, C independent chains of products a token.
    #[inline(always)]
    fn tokens<V: Vector, const M: usize, const C: usize>(self) {
        match self.row.table {
            Some(table) if const { F::TABLE } => {
                let codes = TableCodes { decoder: self.decoder, table };
                self.panels::<V, _, M, C>(codes);
            }
            None if const { F::INTEGERS } => {
                let codes = Codes { decoder: self.decoder };
                self.panels::<V, _, M, C>(codes);
            }
            _ => debug_assert!(false, "{} has no such integers", F::NAME),
        }
    }

    /// The panels, one after the other.
    #[inline(always)]
    fn panels<V: Vector, I: Integers, const M: usize, const C: usize>(self, integers: I) {
        let Self { row, sums, .. } = self;
        let (x, _) = row.x.as_chunks::<M>();
        let (starts, _) = row.starts.as_chunks::<M>();
        let scales = row.scales.map(|scales| scales.as_chunks::<M>().0);
        let tokens = DotTokens { x, starts, scales };
        let (sums, _) = sums.as_chunks_mut::<M>();
        for (panel, sums) in row.panels.iter().zip(sums) {
            let totals = if row.segment == HALF_CHUNK {
                half_chunks::<V, I, M>(integers, panel, tokens)
            } else {
                chunks::<V, I, M, C>(integers, panel, tokens, row.segment)
            };
            each!(m in M {
                totals[m].store_f32(&mut sums[m]);
            });
        }
    }
}

/// The integers that a panel's codes are in a product.
trait Integers: Copy {
    /// Width of a stored code in bits.
    const BITS: usize;

    /// Those of a chunk.
    fn of<V: Vector>(self, chunk: &[[u8; 64]]) -> [V; 8];

    /// `part + integers . x`
    fn dot<V: Vector>(part: V, integers: V, x: V) -> V;
}

/// Codes as they are.
struct Codes<'a, F> {
    decoder: &'a F,
}

impl<F> Clone for Codes<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Codes<'_, F> {}

impl<F: CodeDecoder> Integers for Codes<'_, F> {
    const BITS: usize = F::BITS;

    #[inline(always)]
    fn of<V: Vector>(self, chunk: &[[u8; 64]]) -> [V; 8] {
        self.decoder.codes(chunk)
    }

    #[inline(always)]
    fn dot<V: Vector>(part: V, integers: V, x: V) -> V {
        if F::BITS < 8 { part.dot_narrow(integers, x) } else { part.dot(integers, x) }
    }
}

/// Bytes of a table, which codes index.
struct TableCodes<'a, F> {
    decoder: &'a F,
    table: &'a [u8; 16],
}

impl<F> Clone for TableCodes<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for TableCodes<'_, F> {}

impl<F: CodeDecoder> Integers for TableCodes<'_, F> {
    const BITS: usize = F::BITS;

    #[inline(always)]
    fn of<V: Vector>(self, chunk: &[[u8; 64]]) -> [V; 8] {
        let mut codes = self.decoder.codes(chunk);
        look_up(&mut codes, self.table);
        codes
    }

    #[inline(always)]
    fn dot<V: Vector>(part: V, integers: V, x: V) -> V {
        part.dot(integers, x)
    }
}

/// Segments of whole chunks; C independent chains of products a token, enough to hide their latency.
#[inline(always)]
fn chunks<V: Vector, I: Integers, const M: usize, const C: usize>(
    integers: I,
    panel: &Panel<'_>,
    tokens: DotTokens<'_, M>,
    segment: usize,
) -> [V; M] {
    let Panel { planes, groups, .. } = panel;
    let mut totals = [V::splat(0); M];
    let lines = I::BITS * (segment / CHUNK);
    for (at, (x, starts)) in tokens.x.chunks(segment / 4).zip(tokens.starts).enumerate() {
        let mut parts = [[V::splat(0); C]; M];
        each!(m in M {
            parts[m][0] = V::splat(starts[m] as u32);
        });
        let group = at * segment / groups.columns;
        let ahead = chunks_ahead(I::BITS) * CHUNK / groups.columns;
        panel.prefetch_scales::<V>(group + ahead);
        let chunks = planes[at * lines..].chunks_exact(I::BITS);
        for (chunk, x) in chunks.zip(x.as_chunks::<8>().0) {
            prefetch_codes::<V>(I::BITS, panel, chunk);
            let codes: [V; 8] = integers.of(chunk);
            each!(q in [0 1 2 3 4 5 6 7] {
                each!(m in M {
                    let part = &mut parts[m][q % C];
                    *part = I::dot(*part, codes[q], V::splat(x[q][m]));
                });
            });
        }
        let mut whole = [V::splat(0); M];
        each!(m in M {
            whole[m] = sum_of_chains!(parts[m], C, add);
        });
        add_scaled(whole, groups.scales.row(group), tokens, at, &mut totals);
    }
    totals
}

/// Segments of [`HALF_CHUNK`] columns.
#[inline(always)]
fn half_chunks<V: Vector, I: Integers, const M: usize>(
    integers: I,
    panel: &Panel<'_>,
    tokens: DotTokens<'_, M>,
) -> [V; M] {
    let Panel { planes, groups, .. } = panel;
    let mut totals = [V::splat(0); M];
    let (x, _) = tokens.x.as_chunks::<8>();
    let (starts, _) = tokens.starts.as_chunks::<2>();
    for (at, (x, starts)) in x.iter().zip(starts).enumerate() {
        let group = at * CHUNK / groups.columns;
        let ahead = chunks_ahead(I::BITS) * CHUNK / groups.columns;
        panel.prefetch_scales::<V>(group + ahead);
        let chunk = &planes[at * I::BITS..][..I::BITS];
        prefetch_codes::<V>(I::BITS, panel, chunk);
        let codes: [V; 8] = integers.of(chunk);
        each!(half in [0 1] {
            let mut parts = [V::splat(0); M];
            each!(m in M {
                parts[m] = V::splat(starts[half][m] as u32);
            });
            each!(q in [0 1 2 3] {
                each!(m in M {
                    let q = 4 * half + q;
                    parts[m] = I::dot(parts[m], codes[q], V::splat(x[q][m]));
                });
            });
            let segment = 2 * at + half;
            let scale = groups.scales.row(segment * HALF_CHUNK / groups.columns);
            add_scaled(parts, scale, tokens, segment, &mut totals);
        });
    }
    totals
}

/// Adds the integer sums of a segment, times its scales.
#[inline(always)]
fn add_scaled<V: Vector, const M: usize>(
    parts: [V; M],
    scale: V,
    tokens: DotTokens<'_, M>,
    segment: usize,
    totals: &mut [V; M],
) {
    match tokens.scales {
        None => {
            each!(m in M {
                totals[m] = parts[m].to_f32().fma_f32(scale, totals[m]);
            });
        }
        Some(scales) => {
            each!(m in M {
                let of_x = V::splat(scales[segment][m].to_bits());
                totals[m] = parts[m].to_f32().mul_f32(of_x).fma_f32(scale, totals[m]);
            });
        }
    }
}
