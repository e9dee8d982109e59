//! The loops around the kernels: panels over threads, blocks of K, tiles of tokens.
//!
//! In: a native weight, packed tokens, a blocking, the memory of y. Out: y. For few tokens a panel
//! is decoded on the fly, once for each of at most two tiles. For more tokens a thread takes a group of panels, decodes a
//! block of their columns into its own cache, and multiplies all tiles of tokens with the block
//! before it takes the next block; sums are kept in `f32`, and `super::epilogue` converts them to
//! y. A counter distributes panels, so that a slow thread does not delay the others.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx::{self, bf16};
use super::bf16_dot::{self, Bf16Block};
use super::bf16_row::Bf16Row;
use super::blocking::{Blocking, FUSED_PANELS, Instruction};
use super::decoder::DynDecoder;
use super::dot_row::DotRow;
use super::epilogue::{Epilogue, OutputWriter};
use super::isa::{Isa, Vectorised, enter};
use super::kernels::{CHUNK, FmaRow, Groups, Panel, PanelScales, Segment};
use super::native::{Bf16Code, Bf16Operand, NativeWeight, PANEL};
#[cfg(target_arch = "aarch64")]
use super::neon::bf16;
use super::prefetch::Jump;
use super::queue;
use super::split_bf16;
use super::tile::{DotBlock, DotTokens, TileSums};
use super::tokens::{Tile, Tokens};
use super::vector::Vector;
use crate::buffer::BumpAllocator;
use crate::element::ValuesMut;

/// A product that is ready to run.
pub(super) struct CpuProduct<'a> {
    pub(super) weight: &'a NativeWeight,
    pub(super) expert: usize,
    pub(super) decoder: &'a dyn DynDecoder,
    pub(super) isa: Isa,
    pub(super) blocking: Blocking,
    pub(super) tokens: Tokens<'a>,
}

/// Panels of a weight, from one on.
#[derive(Clone, Copy)]
pub(super) struct NextPanels<'a> {
    pub(super) weight: &'a NativeWeight,
    pub(super) expert: usize,
    pub(super) panel: usize,
}

impl<'a> NextPanels<'a> {
    /// The first one.
    fn panel(self) -> Panel<'a> {
        self.weight.panel(self.expert, self.panel)
    }
}

impl<'a> CpuProduct<'a> {
    /// Computes y [M, n]; `scratch` is divided among as many tasks as it has room for.
    pub(super) fn run(&self, n: usize, y: &mut ValuesMut<'_>, scratch: &mut [[u8; 64]]) {
        let Some(output) = OutputWriter::new(y, n, self.blocking.tokens) else { return };
        if self.blocking.tokens == 0 {
            return;
        }
        let panels = self.weight.panels();
        let batch = self.batch(panels);
        let units = panels.div_ceil(batch);
        let work = |unit: usize, scratch: &mut [[u8; 64]]| {
            let first = unit * batch;
            let next = queue::likely_next(unit, units);
            let next = next.map(|unit| self.next_panels(unit * batch));
            self.panels(first..(first + batch).min(panels), next, &output, scratch);
        };
        queue::share(units, scratch, self.blocking.scratch() / 64, work);
    }

    /// The panels from one on.
    fn next_panels(&self, panel: usize) -> NextPanels<'a> {
        NextPanels { weight: self.weight, expert: self.expert, panel }
    }

    /// Computes the columns of y of some panels. Of `next`, which this thread is likely to read then, the first
    /// lines are prefetched where panels are decoded on the fly.
    pub(super) fn panels(
        &self,
        range: Range<usize>,
        next: Option<NextPanels<'_>>,
        output: &OutputWriter<'_>,
        scratch: &mut [[u8; 64]],
    ) {
        let each = self.blocking.panels;
        for first in range.clone().step_by(each) {
            match (self.blocking.fused, each) {
                (true, _) => {
                    let here = first..(first + each).min(range.end);
                    let next = match here.end < range.end {
                        true => Some(self.next_panels(here.end)),
                        false => next,
                    };
                    self.fused(here, next, output, scratch);
                }
                (false, 1) => self.blocked::<1>(first, output, scratch),
                (false, _) => self.blocked::<2>(first, output, scratch),
            }
        }
    }

    /// Panels that a thread takes at once, of `all` that threads share. Of those that are decoded on the fly: enough for
    /// four turns of each thread, 16 KiB of codes at least, which take as long as joining a region, and 256 KiB or 16
    /// panels at most. Else those of a tile.
    pub(super) fn batch(&self, all: usize) -> usize {
        if !self.blocking.fused {
            return self.blocking.panels;
        }
        let bytes = (self.weight.columns() * PANEL * self.decoder.bits() / 8).max(1);
        let turns = all.div_ceil(4 * rayon::current_num_threads());
        let most = ((256 << 10) / bytes).clamp(1, 16);
        let least = (16usize << 10).div_ceil(bytes).min(most);
        turns.clamp(least, most)
    }

    fn fused(
        &self,
        range: Range<usize>,
        next: Option<NextPanels<'_>>,
        output: &OutputWriter<'_>,
        scratch: &mut [[u8; 64]],
    ) {
        let Blocking { segment, segments, padded, .. } = self.blocking;
        let columns = self.weight.columns();
        let panel =
            |at: usize| self.weight.panel(self.expert, (range.start + at).min(range.end - 1));
        let mut panels: [Panel<'_>; FUSED_PANELS] = std::array::from_fn(panel);
        let panels = &mut panels[..range.len()];
        if let Some(last) = panels.last_mut() {
            last.jump = Jump::new(last, next.map(NextPanels::panel).as_ref());
        }
        let panels = &*panels;
        let sums: &mut [[f32; 16]] = BumpAllocator::new(scratch).take(panels.len() * padded);
        // Where there are several tiles there is one panel, so that the sums of all tokens of a panel are adjacent.
        debug_assert!(panels.len() == 1 || padded <= self.blocking.tile, "{:?}", self.blocking);
        for Tile { first, size: tokens } in self.blocking.tiles() {
            let sums = &mut sums[first * panels.len()..][..tokens * panels.len()];
            let of_segments = first * segments..(first + tokens) * segments;
            match self.tokens {
                Tokens::Codes { x, starts, scales, .. } => {
                    let scales = self.blocking.grouped_x.then(|| &scales[of_segments.clone()]);
                    let (x, table) = (&x[first * columns / 4..], self.weight.table());
                    let starts = &starts[of_segments];
                    let row = DotRow { panels, segment, tokens, x, starts, scales, table };
                    self.decoder.dot_row(self.isa, row, sums);
                }
                Tokens::Values { x, sums: x_sums } => {
                    let row = FmaRow { panels, segment, tokens, x, sums: x_sums };
                    self.decoder.fma_row(self.isa, row, sums);
                }
                Tokens::SplitBf16 { x, sums: x_sums } => {
                    let operand = match self.blocking.instruction {
                        Some(Instruction::Bf16Dot(operand)) => Some(operand),
                        _ => None,
                    };
                    let Some((Bf16Operand::Code(Bf16Code { corrected, .. }), table)) =
                        operand.zip(self.weight.bf16_table())
                    else {
                        debug_assert!(false, "bf16 parts are multiplied in blocks");
                        return;
                    };
                    let x_sums = if corrected { x_sums } else { &[] };
                    let row = Bf16Row { panels, segment, tokens, x, sums: x_sums, table };
                    self.decoder.bf16_row(self.isa, row, sums);
                }
            }
        }
        enter(self.isa, Epilogue { product: self, range, sums, apart: (1, padded), output });
    }

    fn blocked<const P: usize>(
        &self,
        first: usize,
        output: &OutputWriter<'_>,
        scratch: &mut [[u8; 64]],
    ) {
        let Blocking { padded, block, .. } = self.blocking;
        let mut cut = BumpAllocator::new(scratch);
        let sums: &mut [[f32; 16]] = cut.take(padded * P);
        sums.fill([0.0; 16]);
        let columns = self.weight.columns();
        let here = P.min(self.weight.panels() - first);
        match self.tokens {
            Tokens::Codes { x, starts, scales: x_scales, .. } => {
                let of_x = SegmentTokens {
                    x,
                    starts,
                    scales: self.blocking.grouped_x.then_some(x_scales),
                };
                let codes: &mut [[u8; 64]] = cut.take(block / 4 * P);
                let scales: &mut [[f32; 16]] = cut.take(block / self.blocking.segment * P);
                for start in (0..columns).step_by(block) {
                    let end = (start + block).min(columns);
                    let scales = self.decode_codes::<P>(first, here, start..end, codes, scales);
                    let codes = &mut codes[..(end - start) / 4 * P];
                    let prefetcher = self.prefetcher(first, here, end);
                    self.dot_tiles::<P>(start, codes, scales, of_x, sums, prefetcher);
                }
            }
            Tokens::Values { x, .. } => {
                let weights: &mut [[f32; 16]] = cut.take(block * P);
                for start in (0..columns).step_by(block) {
                    let end = (start + block).min(columns);
                    for p in 0..here {
                        let segment = Segment {
                            planes: self.lines(first + p, start..end),
                            first: start,
                            groups: self.weight.groups_of(self.expert, first + p),
                        };
                        self.decoder.decode_values(self.isa, segment, &mut weights[p..], P);
                    }
                    let weights = weights.as_chunks().0.get(..end - start).unwrap_or(&[]);
                    let blocking = &self.blocking;
                    enter(self.isa, FmaTiles::<P> { blocking, columns, start, weights, x, sums });
                }
            }
            Tokens::SplitBf16 { x, sums: x_sums } => match self.blocking.instruction {
                Some(Instruction::Bf16Dot(operand)) => {
                    self.bf16_dot(operand, (first, here), (x, x_sums), sums, cut);
                }
                _ => self.parts::<P>((first, here), (x, x_sums), sums, cut),
            },
        }
        let range = first..first + here;
        enter(self.isa, Epilogue { product: self, range, sums, apart: (P, 1), output });
    }

    /// The lines of the block that begins at column `start`; none after the last block.
    fn prefetcher(&self, first: usize, here: usize, start: usize) -> Prefetcher<'_> {
        let end = (start + self.blocking.block).min(self.weight.columns());
        let panels = std::array::from_fn(|p| {
            let there = p < here && start < end;
            if there { self.lines(first + p, start..end) } else { &[] }
        });
        let tiles = self.blocking.padded.div_ceil(self.blocking.tile).max(1);
        Prefetcher { panels, share: panels[0].len().div_ceil(tiles) }
    }

    /// The products of two panels, from `first` on, of which `here` exist, by dot products of bf16 numbers:
    /// all tiles of tokens, block by block.
    fn bf16_dot(
        &self,
        operand: Bf16Operand,
        (first, here): (usize, usize),
        (x, x_sums): (&[u16], &[f32]),
        sums: &mut [[f32; 16]],
        mut cut: BumpAllocator<'_>,
    ) {
        let Blocking { block, segment, .. } = self.blocking;
        let (native, panels) = (self.weight.columns(), bf16_dot::PANELS);
        let lines: &mut [[u8; 64]] = cut.take(split_bf16::lines(block, 1, panels));
        let (steps, _): (&mut [bf16_dot::Step], _) = lines.as_chunks_mut();
        let [scales, adds] = [0, 1].map(|_| cut.take::<[f32; 16]>(block / segment * panels));
        let values: &mut [[f32; 16]] = cut.take(block);
        for start in (0..native).step_by(block) {
            let columns = start..(start + block).min(native);
            let values = &mut values[..columns.len()];
            let steps = &mut steps[..columns.len() / CHUNK * panels];
            for p in 0..here {
                self.decode_bf16(operand, first + p, columns.clone(), values, &mut steps[p..]);
            }
            let here_scaled = (first..first + here, columns.clone());
            let scaled = self.segment_scales::<{ bf16_dot::PANELS }>(
                operand,
                here_scaled,
                [scales, adds],
                x_sums,
            );
            let prefetcher = self.prefetcher(first, here, columns.end);
            let (blocking, weights) = (&self.blocking, steps.as_chunks().0);
            let block =
                Bf16Block { blocking, native, columns, weights, scaled, x, sums, prefetcher };
            block.run(self.isa);
        }
    }

    /// Decodes some columns of a panel to bf16 numbers, every second step; `values` is memory for them
    /// in `f32`.
    fn decode_bf16(
        &self,
        operand: Bf16Operand,
        panel: usize,
        columns: Range<usize>,
        values: &mut [[f32; 16]],
        steps: &mut [bf16_dot::Step],
    ) {
        if let (Bf16Operand::Code(_), Some(table)) = (operand, self.weight.bf16_table()) {
            let planes = self.lines(panel, columns);
            return self.decoder.decode_bf16(self.isa, planes, table, steps);
        }
        self.decode_operand(operand, panel, columns, values);
        bf16_dot::cut(self.isa, values, steps);
    }

    /// Decodes some columns of a panel to the `f32` numbers that products of bf16 numbers multiply.
    fn decode_operand(
        &self,
        operand: Bf16Operand,
        panel: usize,
        columns: Range<usize>,
        values: &mut [[f32; 16]],
    ) {
        let planes = self.lines(panel, columns.clone());
        let segment = match operand {
            Bf16Operand::Weight => {
                let groups = self.weight.groups_of(self.expert, panel);
                Segment { planes, first: columns.start, groups }
            }
            // One group of all columns: the value of a code, minus the offset.
            Bf16Operand::Code(Bf16Code { offset, .. }) => {
                let add: &[[f32; 16]] = &[[-offset as f32; 16]];
                let groups = Groups {
                    columns: columns.len(),
                    scales: PanelScales::F32(&[[1.0; 16]]),
                    add: (offset != 0).then_some(add),
                };
                let segment = Segment { planes, first: 0, groups };
                return self.decoder.decode_values(self.isa, segment, values, 1);
            }
        };
        self.decoder.decode_values(self.isa, segment, values, 1);
    }

    /// The scales and corrections of the segments of a block of panels, where scales multiply sums, in two memories.
    fn segment_scales<'s, const P: usize>(
        &self,
        operand: Bf16Operand,
        (panels, columns): (Range<usize>, Range<usize>),
        [scales, adds]: [&'s mut [[f32; 16]]; 2],
        x_sums: &'s [f32],
    ) -> Option<SegmentScales<'s>> {
        let Bf16Operand::Code(Bf16Code { corrected, .. }) = operand else { return None };
        let Blocking { segment, segments, .. } = self.blocking;
        let add = match corrected {
            true => {
                let (of, panels) = (GroupParameter::Correction, panels.clone());
                self.of_segments::<P>(of, panels, columns.clone(), adds).as_flattened()
            }
            false => &[],
        };
        let scales = self.of_segments::<P>(GroupParameter::Scale, panels, columns, scales);
        let scales = scales.as_flattened();
        Some(SegmentScales { columns: segment, of_row: segments, scales, add, x_sums })
    }

    /// The products of some panels, from `first` on, of which `here` exist, in bf16 parts: all tiles of tokens, block by
    /// block.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn parts<const P: usize>(
        &self,
        (first, here): (usize, usize),
        (x, x_sums): (&[u16], &[f32]),
        sums: &mut [[f32; 16]],
        mut cut: BumpAllocator<'_>,
    ) {
        let Blocking { block, segment, instruction, .. } = self.blocking;
        let Some(Instruction::SplitBf16 { operand, weight, x: x_parts, .. }) = instruction else {
            return;
        };
        let native = self.weight.columns();
        let values: &mut [[f32; 16]] = cut.take(block);
        let halves: &mut [[u8; 64]] = cut.take(split_bf16::lines(block, weight, P));
        let [scales, adds] = [0, 1].map(|_| cut.take::<[f32; 16]>(block / segment * P));
        for start in (0..native).step_by(block) {
            let columns = start..(start + block).min(native);
            let values = &mut values[..columns.len()];
            let halves = &mut halves[..split_bf16::lines(columns.len(), weight, P)];
            for p in 0..here {
                self.decode_operand(operand, first + p, columns.clone(), values);
                bf16::cut(values, weight, p, halves);
            }
            let here_scaled = (first..first + here, columns.clone());
            let scaled = self.segment_scales::<P>(operand, here_scaled, [scales, adds], x_sums);
            let prefetcher = self.prefetcher(first, here, columns.end);
            let (parts, weights) = ((weight, x_parts), &*halves);
            bf16::run(
                SplitBlock { native, columns, parts, panels: P, weights, scaled, x, sums },
                prefetcher,
            );
        }
    }

    /// Never called: [`Blocking::instruction`] is `None`.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn parts<const P: usize>(
        &self,
        _: (usize, usize),
        _: (&[u16], &[f32]),
        _: &mut [[f32; 16]],
        _: BumpAllocator<'_>,
    ) {
    }

    /// All tiles of tokens times a decoded block that begins at column `start`.
    fn dot_tiles<const P: usize>(
        &self,
        start: usize,
        codes: &mut [[u8; 64]],
        scales: &[[[f32; 16]; P]],
        of_x: SegmentTokens<'_>,
        sums: &mut [[f32; 16]],
        prefetcher: Prefetcher<'_>,
    ) {
        let (blocking, columns) = (&self.blocking, self.weight.columns());
        #[cfg(target_arch = "x86_64")]
        if blocking.instruction == Some(Instruction::Bytes) {
            let (scales, offset) = (scales.as_flattened(), self.weight.offset());
            amx::bytes::Tiles {
                blocking,
                columns,
                start,
                codes,
                scales,
                offset,
                x: of_x.x,
                x_scales: of_x.scales,
                sums,
                prefetcher,
            }
            .run();
            return;
        }
        let (codes, narrow) = (codes.as_chunks().0, self.weight.most() < 128);
        let tiles = DotTiles::<P> {
            blocking,
            columns,
            start,
            codes,
            scales,
            narrow,
            of_x,
            sums,
            prefetcher,
        };
        enter(self.isa, tiles);
    }

    /// The lines of some columns of a panel.
    fn lines(&self, panel: usize, columns: Range<usize>) -> &[[u8; 64]] {
        let bits = self.decoder.bits();
        let planes = self.weight.panel(self.expert, panel).planes;
        &planes[columns.start / CHUNK * bits..columns.end / CHUNK * bits]
    }

    /// Decodes a block to codes, and widens its scales: `[segment][panel]`.
    fn decode_codes<'s, const P: usize>(
        &self,
        first: usize,
        here: usize,
        columns: Range<usize>,
        codes: &mut [[u8; 64]],
        scales: &'s mut [[f32; 16]],
    ) -> &'s [[[f32; 16]; P]] {
        for p in 0..here {
            let lines = self.lines(first + p, columns.clone());
            let table = self.weight.table();
            self.decoder.decode_codes(self.isa, lines, table, &mut codes[p..], P);
        }
        self.of_segments(GroupParameter::Scale, first..first + here, columns, scales)
    }

    /// The scales of the segments of a block, or their corrections, in `f32`: `[segment][panel]`.
    fn of_segments<'s, const P: usize>(
        &self,
        parameter: GroupParameter,
        panels: Range<usize>,
        columns: Range<usize>,
        out: &'s mut [[f32; 16]],
    ) -> &'s [[[f32; 16]; P]] {
        let segment = self.blocking.segment;
        for (p, panel) in panels.enumerate() {
            let groups = self.weight.groups_of(self.expert, panel);
            let (columns, out) = (columns.clone().step_by(segment), &mut out[p..]);
            enter(self.isa, OfSegments::<P, _> { parameter, groups, columns, out });
        }
        let segments = columns.len().div_ceil(segment);
        out.as_chunks().0.get(..segments).unwrap_or(&[])
    }
}

/// A parameter of groups.
#[derive(Clone, Copy)]
enum GroupParameter {
    Scale,
    Correction,
}

/// A parameter of a panel's segments, which begin at `columns`; every P-th of `out`.
struct OfSegments<'a, const P: usize, C> {
    parameter: GroupParameter,
    groups: Groups<'a>,
    columns: C,
    out: &'a mut [[f32; 16]],
}

impl<const P: usize, C: Iterator<Item = usize>> Vectorised for OfSegments<'_, P, C> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { parameter, groups, columns, out } = self;
        for (out, column) in out.iter_mut().step_by(P).zip(columns) {
            let group = column / groups.columns;
            let values: V = match (parameter, groups.add) {
                (GroupParameter::Scale, _) => groups.scales.row(group),
                (GroupParameter::Correction, Some(add)) => V::load_f32(&add[group]),
                (GroupParameter::Correction, None) => V::splat(0),
            };
            values.store_f32(out);
        }
    }
}

/// Prefetches the lines of the next block between the tiles of this one: a block is too short for
/// the CPU's stream prefetcher.
#[derive(Clone, Copy)]
pub(super) struct Prefetcher<'a> {
    /// The lines of each panel.
    panels: [&'a [[u8; 64]]; 2],
    /// Lines per tile.
    share: usize,
}

impl<'a> Prefetcher<'a> {
    /// The lines to prefetch before tile `at`.
    #[inline(always)]
    pub(super) fn lines(self, at: usize) -> impl Iterator<Item = &'a [u8; 64]> {
        let share =
            move |lines: &'a [[u8; 64]]| lines.iter().skip(at * self.share).take(self.share);
        self.panels.into_iter().flat_map(share)
    }
}

/// The factors of the sums of a block's segments.
#[derive(Clone, Copy)]
pub(super) struct SegmentScales<'a> {
    /// Columns of a segment.
    pub(super) columns: usize,
    /// Segments of a row.
    pub(super) of_row: usize,
    /// `[segment][panel]`.
    pub(super) scales: &'a [[f32; 16]],
    /// `[segment][panel]`: multiplies the sum of x; empty if groups have no correction.
    pub(super) add: &'a [[f32; 16]],
    /// `[tile][segment][token]` of all of K: sums of x.
    pub(super) x_sums: &'a [f32],
}

/// A block of weights in bf16 parts, for all tiles of tokens.
pub(super) struct SplitBlock<'a> {
    /// Native columns of the weight, and those of the block.
    pub(super) native: usize,
    pub(super) columns: Range<usize>,
    /// Parts of a weight and of an x.
    pub(super) parts: (usize, usize),
    /// Panels of a tile.
    pub(super) panels: usize,
    /// `[step][part][panel]`, in the order of the instruction set's `cut`.
    pub(super) weights: &'a [[u8; 64]],
    /// Where scales multiply the sums of segments, which is so of codes.
    #[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "no codes are chosen there"))]
    pub(super) scaled: Option<SegmentScales<'a>>,
    /// `[tile][step][part][token][column]`.
    pub(super) x: &'a [u16],
    /// `[tile][token][panel]`.
    pub(super) sums: &'a mut [[f32; 16]],
}

impl<'a> SplitBlock<'a> {
    /// For each tile of `size` tokens: x of the block's columns, and the sums.
    pub(super) fn tiles(
        self,
        size: usize,
    ) -> impl Iterator<Item = (&'a [u16], &'a mut [[f32; 16]])> {
        let column = size * self.parts.1;
        let here = self.columns.start * column..self.columns.end * column;
        let x = self.x.chunks_exact(self.native * column).map(move |tile| &tile[here.clone()]);
        x.zip(self.sums.chunks_exact_mut(size * self.panels))
    }
}

/// The packed tokens of integer products.
#[derive(Clone, Copy)]
struct SegmentTokens<'a> {
    x: &'a [u32],
    starts: &'a [i32],
    /// Of each segment, if x has those.
    scales: Option<&'a [f32]>,
}

/// All tiles of tokens times a block of codes.
struct DotTiles<'a, const P: usize> {
    blocking: &'a Blocking,
    columns: usize,
    start: usize,
    codes: &'a [[[u8; 64]; P]],
    scales: &'a [[[f32; 16]; P]],
    narrow: bool,
    of_x: SegmentTokens<'a>,
    sums: &'a mut [[f32; 16]],
    prefetcher: Prefetcher<'a>,
}

impl<const P: usize> Vectorised for DotTiles<'_, P> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        for (at, tile) in self.blocking.tiles().enumerate() {
            for line in self.prefetcher.lines(at) {
                V::prefetch(line.as_ptr());
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
        let segment = self.blocking.segment;
        let first = tile.first * self.columns / 4;
        let SegmentTokens { x, starts, scales } = self.of_x;
        let (x, _) = x[first..].as_chunks::<M>();
        let from = self.start / 4;
        let first = tile.first * self.blocking.segments;
        let here = self.start / segment..self.start / segment + self.scales.len();
        let (starts, _) = starts[first..].as_chunks::<M>();
        let scales = scales.map(|scales| &scales[first..].as_chunks::<M>().0[here.clone()]);
        let (sums, _) = self.sums[tile.first * P..].as_chunks_mut::<P>();
        let (sums, _) = sums.as_chunks_mut::<M>();
        let Some(sums) = sums.first_mut() else { return };
        let sums: &mut TileSums<M, P> = sums;
        let block = DotBlock { codes: self.codes, segment: segment / 4, scales: self.scales };
        let tokens =
            DotTokens { x: &x[from..from + self.codes.len()], starts: &starts[here], scales };
        V::dot_tile::<M, P, NARROW>(block, tokens, sums);
    }
}

/// All tiles of tokens times a block of weights.
struct FmaTiles<'a, const P: usize> {
    blocking: &'a Blocking,
    columns: usize,
    start: usize,
    weights: &'a [[[f32; 16]; P]],
    x: &'a [f32],
    sums: &'a mut [[f32; 16]],
}

impl<const P: usize> Vectorised for FmaTiles<'_, P> {
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
