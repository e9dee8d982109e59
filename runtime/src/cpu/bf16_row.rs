//! Codes as bf16 numbers: products of few tokens, which decode panels on the fly, and decoded steps for
//! the tile of `super::bf16_dot`.
//!
//! In: the bit planes and group parameters of some panels ([`super::native`]), packed tokens
//! ([`super::tokens`]), the numbers of codes. Out: sums of 16 rows per panel and token, or steps. Code
//! types of at most [`MOST_BITS`] come here: their numbers are a table in two registers.

use super::bf16_dot::{PANELS, STEP, Step, word};
use super::decoder::CodeDecoder;
use super::isa::{Bf16Vectorised, Isa, enter_bf16};
use super::kernels::Panel;
use super::prefetch::{chunks_ahead, prefetch_codes};
use super::tile::{each, sum_of_chains};
use super::vector::Bf16Vector;

/// The widest codes that index a table of bf16 numbers.
pub const MOST_BITS: usize = 6;

/// The bf16 numbers of all codes of a type; the rest is not read.
pub type Bf16Table = [u16; 1 << MOST_BITS];

struct Steps<'a, F> {
    decoder: &'a F,
    planes: &'a [[u8; 64]],
    table: &'a Bf16Table,
    out: &'a mut [Step],
}

/// Decodes a segment of a panel to every second step of `out`.
pub(super) fn steps<F: CodeDecoder>(
    decoder: &F,
    isa: Isa,
    (planes, table): (&[[u8; 64]], &Bf16Table),
    out: &mut [Step],
) {
    enter_bf16(isa, Steps { decoder, planes, table, out });
}

impl<F: CodeDecoder> Bf16Vectorised for Steps<'_, F> {
    #[inline(always)]
    fn run<V: Bf16Vector>(self) {
        let table = V::table(self.table);
        let chunks = self.planes.chunks_exact(F::BITS);
        for (planes, lines) in chunks.zip(self.out.iter_mut().step_by(PANELS)) {
            let codes: [V; 8] = self.decoder.codes(planes);
            each!(q in [0 1 2 3 4 5 6 7] {
                let [first, second] = codes[q].pairs(table);
                first.store(&mut lines[2 * q]);
                second.store(&mut lines[2 * q + 1]);
            });
        }
    }
}

/// Some panels times few tokens, bf16 numbers.
#[derive(Clone, Copy, Debug)]
pub struct Bf16Row<'a> {
    /// The panels.
    pub panels: &'a [Panel<'a>],
    /// Columns of a segment, a multiple of 32 that divides a group (or is one of several equal parts of the
    /// only group; the last segment may be shorter).
    pub segment: usize,
    /// Tokens: 1, 2, 4 or 8.
    pub tokens: usize,
    /// `[pair of columns][token][column]`: bf16.
    pub x: &'a [u16],
    /// `[segment][token]`: sums of x, which corrections of groups multiply; empty if groups have none.
    pub sums: &'a [f32],
    /// The bf16 numbers of codes.
    pub table: &'a Bf16Table,
}

struct Row<'a, F> {
    decoder: &'a F,
    row: Bf16Row<'a>,
    sums: &'a mut [[f32; 16]],
}

pub(super) fn bf16_row<F: CodeDecoder>(
    decoder: &F,
    isa: Isa,
    row: Bf16Row<'_>,
    sums: &mut [[f32; 16]],
) {
    enter_bf16(isa, Row { decoder, row, sums });
}

impl<F: CodeDecoder> Bf16Vectorised for Row<'_, F> {
    #[inline(always)]
    fn run<V: Bf16Vector>(self) {
        match self.row.tokens {
            1 => self.tokens::<V, 1, 4>(),
            2 => self.tokens::<V, 2, 4>(),
            4 => self.tokens::<V, 4, 2>(),
            8 => self.tokens::<V, 8, 1>(),
            tokens => debug_assert!(false, "{tokens} tokens are not fused"),
        }
    }
}

impl<F: CodeDecoder> Row<'_, F> {
    /// M tokens, C independent chains of products a token.
    #[inline(always)]
    fn tokens<V: Bf16Vector, const M: usize, const C: usize>(self) {
        let Self { decoder, row, sums } = self;
        let (pairs, _) = row.x.as_chunks::<2>();
        let (pairs, _) = pairs.as_chunks::<M>();
        let (x, _) = pairs.as_chunks::<{ STEP / 2 }>();
        let (x_sums, _) = row.sums.as_chunks::<M>();
        let table = V::table(row.table);
        let steps = row.segment / STEP;
        let (sums, _) = sums.as_chunks_mut::<M>();
        for (panel, sums) in row.panels.iter().zip(sums) {
            let Panel { planes, groups, .. } = panel;
            let mut totals = [V::splat(0); M];
            for (at, x) in x.chunks(steps).enumerate() {
                let mut parts = [[V::splat(0); C]; M];
                let group = at * row.segment / groups.columns;
                let ahead = chunks_ahead(F::BITS) * STEP / groups.columns;
                panel.prefetch_scales::<V>(group + ahead);
                let chunks = planes[at * steps * F::BITS..].chunks_exact(F::BITS);
                for (chunk, x) in chunks.zip(x) {
                    prefetch_codes::<V>(F::BITS, panel, chunk);
                    let codes: [V; 8] = decoder.codes(chunk);
                    each!(q in [0 1 2 3 4 5 6 7] {
                        let numbers = codes[q].pairs(table);
                        each!(half in [0 1] {
                            each!(m in M {
                                let part = &mut parts[m][(2 * q + half) % C];
                                let token = V::splat(word(x[2 * q + half][m]));
                                *part = part.dot_bf16(numbers[half], token);
                            });
                        });
                    });
                }
                let scale: V = groups.scales.row(group);
                each!(m in M {
                    let part = sum_of_chains!(parts[m], C, add_f32);
                    totals[m] = part.fma_f32(scale, totals[m]);
                });
                if let Some((add, x_sums)) = groups.add.zip(x_sums.get(at)) {
                    let add = V::load_f32(&add[group]);
                    each!(m in M {
                        totals[m] = add.fma_f32(V::splat(x_sums[m].to_bits()), totals[m]);
                    });
                }
            }
            each!(m in M {
                totals[m].store_f32(&mut sums[m]);
            });
        }
    }
}
