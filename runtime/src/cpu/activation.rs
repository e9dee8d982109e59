//! Activations into the workspace: widened to `f32` or quantised, then packed in tiles.
//!
//! In: rows of x ([`InputRows`]). Out: [`Tokens`]. Threads share the tiles; each thread has a buffer for
//! one row.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use quantloom_dsl::reference::{StaticInput, quantise_activation};
use quantloom_dsl::{Quantiser, Scheme, SignedBytes};

use super::blocking::{Blocking, Instruction};
use super::groups::{HALF_CHUNK, IntegerInput};
use super::isa::{Isa, Vectorised, enter};
use super::native::{NativeWeight, Path};
use super::quantiser::{RowQuantiser, ValueRange};
use super::queue;
use super::rows::InputRows;
use super::split_bf16;
use super::tokens::{
    Columns, Tokens, place_codes, place_values, segment_sums_f32, segment_sums_i32,
};
use super::vector::Vector;
use crate::buffer::{BumpAllocator, BumpReader, bytes_of};
use crate::element::{Values, bf16};
use crate::op::ProductError;

/// How x is read and converted.
#[derive(Clone, Copy)]
pub(super) struct ActivationInput<'a> {
    pub(super) isa: Isa,
    pub(super) scheme: &'a Scheme,
    pub(super) quantiser: Option<&'a Quantiser>,
    pub(super) given: &'a StaticInput,
    /// The range of all values that share a dynamic scale over rows; that of the product's tokens if
    /// it is not given.
    pub(super) range: Option<ValueRange>,
    pub(super) columns: Columns<'a>,
    /// The integer of a weight is its unsigned stored code minus this.
    pub(super) offset: i32,
    /// The integers of x, if the product is one of integers.
    pub(super) integers: IntegerInput,
}

/// Bytes that a thread needs for a row: in the caller's order, and in native order; its scales and zero points.
pub(super) fn row_bytes(weight: &NativeWeight) -> usize {
    let scales = bytes_of::<f32>(weight.columns().div_ceil(HALF_CHUNK));
    2 * (bytes_of::<f32>(weight.columns()) + bytes_of::<i8>(weight.columns()) + scales)
}

/// Bytes of [`PackedTokens`], including the buffers of rows; [`usize::MAX`] if there are more.
pub(super) fn bytes(blocking: &Blocking, weight: &NativeWeight, threads: usize) -> usize {
    let (tokens, segments) = (blocking.padded, blocking.padded.saturating_mul(blocking.segments));
    let elements = tokens.saturating_mul(weight.columns());
    let packed: &[usize] = match (bf16_parts(blocking), blocking.path) {
        (Some(parts), _) => {
            &[bytes_of::<u16>(elements.saturating_mul(parts)), bytes_of::<f32>(segments)]
        }
        (_, Path::Dot) => &[
            // Whole steps of four codes; saturated sizes stay saturated.
            bytes_of::<u32>(elements / 4),
            bytes_of::<i32>(segments),
            bytes_of::<f32>(segments),
            bytes_of::<f32>(tokens.saturating_mul(blocking.x_scales())),
            bytes_of::<f32>(tokens.saturating_mul(blocking.zero_points)),
        ],
        (_, Path::Fma) => &[bytes_of::<f32>(elements), bytes_of::<f32>(segments)],
    };
    packed.iter().fold(threads * row_bytes(weight), |sum, bytes| sum.saturating_add(*bytes))
}

/// Parts of an element of x where bf16 numbers are multiplied.
fn bf16_parts(blocking: &Blocking) -> Option<usize> {
    match blocking.instruction? {
        Instruction::SplitBf16 { x, .. } => Some(x),
        Instruction::Bf16Dot(_) => Some(1),
        Instruction::Bytes => None,
    }
}

/// The memory of packed tokens in a workspace.
pub(super) enum PackedTokens<'a> {
    Codes {
        x: &'a mut [u32],
        starts: &'a mut [i32],
        sums: &'a mut [f32],
        scales: &'a mut [f32],
        zeros: &'a mut [f32],
    },
    Values {
        x: &'a mut [f32],
        sums: &'a mut [f32],
    },
    SplitBf16 {
        x: &'a mut [u16],
        sums: &'a mut [f32],
        /// Parts of an element.
        parts: usize,
    },
}

impl<'a> PackedTokens<'a> {
    pub(super) fn new(
        cut: &mut BumpAllocator<'a>,
        blocking: &Blocking,
        weight: &NativeWeight,
    ) -> Self {
        let (tokens, segments) = (blocking.padded, blocking.padded * blocking.segments);
        let columns = weight.columns();
        match (bf16_parts(blocking), blocking.path) {
            (Some(parts), _) => Self::SplitBf16 {
                x: cut.take(tokens * columns * parts),
                sums: cut.take(segments),
                parts,
            },
            (_, Path::Dot) => Self::Codes {
                x: cut.take(tokens * columns / 4),
                starts: cut.take(segments),
                sums: cut.take(segments),
                scales: cut.take(tokens * blocking.x_scales()),
                zeros: cut.take(tokens * blocking.zero_points),
            },
            (_, Path::Fma) => {
                Self::Values { x: cut.take(tokens * columns), sums: cut.take(segments) }
            }
        }
    }

    /// The packed tokens at the begin of memory that [`Self::new`] has cut and [`Self::pack`] has filled.
    pub(super) fn packed(
        lines: &'a [[u8; 64]],
        blocking: &Blocking,
        weight: &NativeWeight,
    ) -> Tokens<'a> {
        let mut cut = BumpReader::new(lines);
        let (tokens, segments) = (blocking.padded, blocking.padded * blocking.segments);
        let columns = weight.columns();
        match (bf16_parts(blocking), blocking.path) {
            (Some(parts), _) => Tokens::SplitBf16 {
                x: cut.take(tokens * columns * parts),
                sums: cut.take(segments),
            },
            (_, Path::Dot) => Tokens::Codes {
                x: cut.take(tokens * columns / 4),
                starts: cut.take(segments),
                sums: cut.take(segments),
                scales: cut.take(tokens * blocking.x_scales()),
                zeros: cut.take(tokens * blocking.zero_points),
            },
            (_, Path::Fma) => {
                Tokens::Values { x: cut.take(tokens * columns), sums: cut.take(segments) }
            }
        }
    }

    pub(super) fn tokens(&self) -> Tokens<'_> {
        match self {
            Self::Codes { x, starts, sums, scales, zeros } => {
                Tokens::Codes { x, starts, sums, scales, zeros }
            }
            Self::Values { x, sums } => Tokens::Values { x, sums },
            Self::SplitBf16 { x, sums, .. } => Tokens::SplitBf16 { x, sums },
        }
    }

    /// Packs x; `rows` is the memory of the threads' row buffers. Returns whether x is finite if it
    /// is split into bf16 parts, else true.
    pub(super) fn pack(
        &mut self,
        input: &ActivationInput<'_>,
        blocking: &Blocking,
        x: InputRows<'_>,
        rows: &mut [[u8; 64]],
        threads: usize,
    ) -> Result<bool, ProductError> {
        let k = input.columns.given;
        let refused = AtomicUsize::new(usize::MAX);
        let non_finite = AtomicBool::new(false);
        let source = RowSource::new(input, x, blocking.tokens, &refused)?;
        let native = input.columns.native;
        // Whole tiles, the same number for each thread; the last tile may be smaller than the
        // others.
        let tile_count = blocking.tiles().count();
        let tiles_each = tile_count.div_ceil(threads.max(1)).max(1);
        let (share, shares) = (tiles_each * blocking.tile, tile_count.div_ceil(tiles_each));
        let each = rows.len() / threads.max(1);
        let segments = blocking.segments;
        match self {
            Self::Codes { x, starts, sums, scales, zeros } => {
                let job = |share_at: usize, out: CodesOut<'_>, rows: &mut [[u8; 64]]| {
                    let first = share_at * share;
                    enter(
                        input.isa,
                        PackCodes { source: &source, input, blocking, first, out, rows },
                    );
                };
                if tile_count <= 1 || threads <= 1 {
                    job(0, CodesOut { x, starts, sums, scales, zeros }, rows);
                } else {
                    let items = x
                        .chunks_mut(share * native / 4)
                        .zip(starts.chunks_mut(share * segments))
                        .zip(sums.chunks_mut(share * segments))
                        .zip(scales.chunks_mut(share * blocking.x_scales()))
                        .zip(parts(zeros, share * blocking.zero_points))
                        .zip(rows.chunks_mut(each.max(1)))
                        .enumerate();
                    let work = |(at, (((((x, starts), sums), scales), zeros), rows))| {
                        job(at, CodesOut { x, starts, sums, scales, zeros }, rows);
                    };
                    queue::each(shares, items, work);
                }
            }
            Self::Values { x, sums } => {
                let job =
                    |share_at: usize, x: &mut [f32], sums: &mut [f32], rows: &mut [[u8; 64]]| {
                        let first = share_at * share;
                        enter(
                            input.isa,
                            PackValues { source: &source, input, blocking, first, x, sums, rows },
                        );
                    };
                if tile_count <= 1 || threads <= 1 {
                    job(0, x, sums, rows);
                } else {
                    let items = x
                        .chunks_mut(share * native)
                        .zip(sums.chunks_mut(share * segments))
                        .zip(rows.chunks_mut(each.max(1)))
                        .enumerate();
                    queue::each(shares, items, |(at, ((x, sums), rows))| job(at, x, sums, rows));
                }
            }
            Self::SplitBf16 { x, sums, parts } => {
                let (parts, non_finite) = (*parts, &non_finite);
                let job =
                    |share_at: usize, x: &mut [u16], sums: &mut [f32], rows: &mut [[u8; 64]]| {
                        let (first, columns) = (share_at * share, input.columns);
                        let out = SplitOut { x, sums, parts, non_finite };
                        let source = &source;
                        let pack = PackSplit { source, columns, blocking, first, out, rows };
                        enter(input.isa, pack);
                    };
                if tile_count <= 1 || threads <= 1 {
                    job(0, x, sums, rows);
                } else {
                    let items = x
                        .chunks_mut(share * native * parts)
                        .zip(sums.chunks_mut(share * segments))
                        .zip(rows.chunks_mut(each.max(1)))
                        .enumerate();
                    let work = |(at, ((x, sums), rows))| job(at, x, sums, rows);
                    queue::each(shares, items, work);
                }
            }
        }
        match refused.into_inner() {
            usize::MAX => Ok(!non_finite.into_inner()),
            at => {
                let mut value = [0.0];
                x.widen(at / k, at % k, &mut value);
                let [value] = value.map(f64::from);
                Err(ProductError::NotFinite { token: x.row(at / k), k: at % k, value })
            }
        }
    }
}

/// The rows of x, and how they are converted.
struct RowSource<'a> {
    x: InputRows<'a>,
    k: usize,
    conversion: RowConversion<'a>,
    /// Position, by token, of the first element that is not finite.
    refused: &'a AtomicUsize,
}

enum RowConversion<'a> {
    /// Not quantised.
    Given,
    /// Row by row; with the range of all values of x if a scale depends on all of x.
    Quantised(RowQuantiser<'a>, ValueRange),
    /// By the reference: codes, zero points and scales of each element.
    Reference(quantloom_dsl::reference::QuantisedActivation),
}

impl<'a> RowSource<'a> {
    fn new(
        input: &ActivationInput<'a>,
        x: InputRows<'a>,
        tokens: usize,
        refused: &'a AtomicUsize,
    ) -> Result<Self, ProductError> {
        let k = input.columns.given;
        let conversion = match input.quantiser {
            None => RowConversion::Given,
            Some(quantiser) => {
                let own = x.x.format();
                match RowQuantiser::new(input.scheme, quantiser, input.given, own) {
                    Some(fast) => {
                        // A missing static scale is missing for every row.
                        let none = ValueRange::default();
                        fast.parameters(&[], (0, &fast.factor(&[], none)?), none)?;
                        let all = match input.range {
                            _ if !fast.spans_rows() => ValueRange::default(),
                            Some(range) => range,
                            None => x.range(tokens),
                        };
                        RowConversion::Quantised(fast, all)
                    }
                    None => {
                        let exact = exact_rows(x, tokens)?;
                        // x is multiplied by its prescale already.
                        let scheme = Scheme { prescale: None, ..input.scheme.clone() };
                        let given = input.given;
                        RowConversion::Reference(quantise_activation(
                            &scheme, quantiser, &exact, k, own, given,
                        )?)
                    }
                }
            }
        };
        Ok(Self { x, k, conversion, refused })
    }

    /// Widens a row; false if the row has values that cannot be quantised.
    #[inline(always)]
    fn widen(&self, token: usize, row: &mut [f32]) -> bool {
        self.x.widen(token, 0, row);
        if matches!(self.conversion, RowConversion::Given) {
            return true;
        }
        // The exponent bits of infinities and NaNs are all ones.
        let largest =
            row.iter().fold(0, |most: u32, value| most.max(value.to_bits() & 0x7f80_0000));
        if largest < 0x7f80_0000 {
            return true;
        }
        let at = row.iter().position(|value| !value.is_finite()).unwrap_or(0);
        self.refused.fetch_min(token * self.k + at, Ordering::Relaxed);
        false
    }

    /// A row in bf16 and in native order that is multiplied as it is given.
    fn as_given(&self, token: usize, columns: Columns<'_>) -> Option<&'a [bf16]> {
        let as_given = matches!(self.conversion, RowConversion::Given)
            && self.x.factors.is_empty()
            && columns.order.is_none();
        match self.x.x {
            Values::Bf16(x) if as_given => Some(&x[self.x.row(token) * self.k..][..self.k]),
            _ => None,
        }
    }

    /// The codes, scales and zero points of a row.
    #[inline(always)]
    fn codes(&self, token: usize, row: &mut [f32], out: &mut CodesOfRow<'_>) {
        if !self.widen(token, row) {
            return out.clear();
        }
        let CodesOfRow { codes, scales, zeros } = out;
        // Those of columns beyond the last one.
        scales.values.fill(0.0);
        zeros.values.fill(0.0);
        match &self.conversion {
            RowConversion::Quantised(fast, all) => {
                let group = fast.columns(self.k);
                let Ok(factor) = fast.factor(row, *all) else { return codes.fill(0.0) };
                for first in (0..self.k).step_by(group) {
                    let range = first..(first + group).min(self.k);
                    let Ok(parameters) = fast.parameters(row, (first, &factor), *all) else {
                        codes[range].fill(0.0);
                        continue;
                    };
                    fast.codes(&row[range.clone()], parameters, &mut codes[range.clone()]);
                    scales.fill(range.clone(), parameters.scale);
                    zeros.fill(range, parameters.zero);
                }
            }
            RowConversion::Reference(all) => {
                let own = token * self.k..(token + 1) * self.k;
                for (code, exact) in codes.iter_mut().zip(&all.codes[own.clone()]) {
                    *code = *exact as f32;
                }
                scales.set(&all.scales[own.clone()]);
                zeros.set(&all.zeros[own]);
            }
            RowConversion::Given => scales.values.fill(1.0),
        }
    }

    /// The values of a row that the product multiplies, in place; `codes` is scratch memory of the
    /// same length.
    #[inline(always)]
    fn values(&self, token: usize, row: &mut [f32], codes: &mut [f32]) {
        if !self.widen(token, row) {
            return;
        }
        match &self.conversion {
            RowConversion::Given => {}
            RowConversion::Quantised(fast, all) => {
                let columns = fast.columns(self.k);
                let Ok(factor) = fast.factor(row, *all) else { return };
                for first in (0..self.k).step_by(columns) {
                    let range = first..(first + columns).min(self.k);
                    let Ok(parameters) = fast.parameters(row, (first, &factor), *all) else {
                        return;
                    };
                    fast.codes(&row[range.clone()], parameters, &mut codes[range.clone()]);
                    for code in &mut codes[range] {
                        *code = (*code - parameters.zero) * parameters.scale;
                    }
                }
                row.copy_from_slice(&codes[..row.len()]);
            }
            RowConversion::Reference(all) => {
                for (at, value) in row.iter_mut().enumerate() {
                    let at = token * self.k + at;
                    *value = ((all.codes[at] - all.zeros[at]) * all.scales[at]) as f32;
                }
            }
        }
    }
}

/// The codes of a row, and the numbers that its groups of columns share.
struct CodesOfRow<'a> {
    codes: &'a mut [f32],
    /// One of a row, or one of each segment.
    scales: Shared<'a>,
    /// One of each group of x, or none.
    zeros: Shared<'a>,
}

impl CodesOfRow<'_> {
    /// A row of zeros.
    fn clear(&mut self) {
        self.codes.fill(0.0);
        self.scales.values.fill(0.0);
        self.zeros.values.fill(0.0);
    }
}

/// Numbers, each of which some columns share.
struct Shared<'a> {
    values: &'a mut [f32],
    /// Columns that share one.
    columns: usize,
}

impl Shared<'_> {
    /// Sets those of a range of columns that is a whole group.
    fn fill(&mut self, range: Range<usize>, value: f32) {
        if !self.values.is_empty() {
            self.values[range.start / self.columns..range.end.div_ceil(self.columns)].fill(value);
        }
    }

    /// Sets all, from one of each column.
    fn set(&mut self, exact: &[f64]) {
        for (value, exact) in self.values.iter_mut().zip(exact.iter().step_by(self.columns)) {
            *value = *exact as f32;
        }
    }
}

/// Parts of `each` elements, one after another, the last one with what is left; empty ones for ever after, or from the
/// first on if `each` is 0.
fn parts<T>(mut rest: &mut [T], each: usize) -> impl Iterator<Item = &mut [T]> {
    let part = move || rest.split_off_mut(..each.min(rest.len())).unwrap_or_default();
    std::iter::repeat_with(part)
}

/// All tokens as the reference reads them, [M, K]. Allocates: only quantisers that
/// [`RowQuantiser`] does not support come here.
fn exact_rows(x: InputRows<'_>, tokens: usize) -> Result<Vec<f64>, ProductError> {
    let mut row = vec![0.0; x.k];
    let mut exact = Vec::with_capacity(tokens * x.k);
    for token in 0..tokens {
        x.widen(token, 0, &mut row);
        exact.extend(row.iter().map(|value| f64::from(*value)));
    }
    match exact.iter().position(|value| !value.is_finite()) {
        None => Ok(exact),
        Some(at) => {
            let (token, k) = (x.row(at / x.k), at % x.k);
            Err(ProductError::NotFinite { token, k, value: exact[at] })
        }
    }
}

/// An integer of -128..128 as a byte. After adding 1.5 * 2^23 it is in the low bits; the cast from
/// `f32`, which must handle NaN, would not be vectorised.
#[inline(always)]
fn low_byte(code: f32) -> i8 {
    (code + 12_582_912.0).to_bits() as i8
}

struct CodesOut<'a> {
    x: &'a mut [u32],
    starts: &'a mut [i32],
    sums: &'a mut [f32],
    scales: &'a mut [f32],
    zeros: &'a mut [f32],
}

/// Quantises and packs some tiles; has no vector operations, but is compiled for the instruction
/// set.
struct PackCodes<'a, 'b> {
    source: &'a RowSource<'b>,
    input: &'a ActivationInput<'b>,
    blocking: &'a Blocking,
    /// First token of `out`.
    first: usize,
    out: CodesOut<'a>,
    rows: &'a mut [[u8; 64]],
}

impl Vectorised for PackCodes<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { source, input, blocking, first, out, rows } = self;
        let (k, native) = (input.columns.given, input.columns.native);
        let mut cut = BumpAllocator::new(rows);
        let (row, codes): (&mut [f32], &mut [f32]) = (cut.take(k), cut.take(k));
        let (bytes, ordered): (&mut [i8], &mut [i8]) = (cut.take(k), cut.take(native));
        let (segments, grouped) = (blocking.segments, blocking.grouped_x);
        let IntegerInput { group, bytes: SignedBytes { exponent, centre }, .. } = input.integers;
        // The columns of a segment are adjacent in x, too.
        let columns = if grouped { blocking.segment } else { k.max(1) };
        let scales = Shared { values: cut.take(blocking.x_scales()), columns };
        let zero_points = blocking.zero_points;
        let zeros = Shared { values: cut.take(zero_points), columns: group.unwrap_or(k.max(1)) };
        let mut of_row = CodesOfRow { codes, scales, zeros };
        // Codes times a power of two, and scales by it: it is 1 where there are zero points, which only integers have.
        let (unit, centre) = ((exponent as f32).exp2(), f32::from(centre));
        let tokens = out.x.len() / (native / 4);
        let mine =
            blocking.tiles().filter(|tile| tile.first >= first && tile.first < first + tokens);
        for tile in mine {
            let begin = tile.first - first;
            let x = &mut out.x[begin * native / 4..][..tile.size * native / 4];
            for m in 0..tile.size {
                let token = tile.first + m;
                if token < blocking.tokens {
                    source.codes(token, row, &mut of_row);
                } else {
                    of_row.clear();
                }
                for (byte, code) in bytes.iter_mut().zip(of_row.codes.iter()) {
                    *byte = low_byte(*code * unit - centre);
                }
                input.columns.gather(bytes, 0, ordered);
                of_row.scales.values.iter_mut().for_each(|scale| *scale /= unit);
                for (group, zero) in of_row.zeros.values.iter().enumerate() {
                    // Groups that share a scale with others have those of segments, and begin with one.
                    let segment = group * of_row.zeros.columns / blocking.segment;
                    let scale = if grouped { of_row.scales.values[segment] } else { 1.0 };
                    let at = begin * zero_points + group * tile.size + m;
                    out.zeros[at] = (centre - *zero) * scale;
                }
                place_codes(ordered, m, tile.size, blocking.together, x);
                let of_segment = |segment: usize| begin * segments + segment * tile.size + m;
                for (segment, sum) in segment_sums_i32(ordered, blocking.segment).enumerate() {
                    let at = of_segment(segment);
                    out.starts[at] = -input.offset * sum;
                    out.sums[at] = sum as f32;
                }
                if !grouped {
                    out.scales[begin + m] = of_row.scales.values[0];
                    continue;
                }
                for (segment, scale) in of_row.scales.values.iter().enumerate() {
                    let at = of_segment(segment);
                    out.scales[at] = *scale;
                    out.sums[at] *= *scale;
                }
            }
        }
    }
}

/// Packs some tiles, widened or quantised.
struct PackValues<'a, 'b> {
    source: &'a RowSource<'b>,
    input: &'a ActivationInput<'b>,
    blocking: &'a Blocking,
    first: usize,
    x: &'a mut [f32],
    sums: &'a mut [f32],
    rows: &'a mut [[u8; 64]],
}

impl Vectorised for PackValues<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { source, input, blocking, first, x, sums, rows } = self;
        let (k, native) = (input.columns.given, input.columns.native);
        let mut cut = BumpAllocator::new(rows);
        let (row, ordered): (&mut [f32], &mut [f32]) = (cut.take(k), cut.take(native));
        let segments = blocking.segments;
        let tokens = x.len() / native;
        let mine =
            blocking.tiles().filter(|tile| tile.first >= first && tile.first < first + tokens);
        for tile in mine {
            let begin = tile.first - first;
            let x = &mut x[begin * native..][..tile.size * native];
            for m in 0..tile.size {
                let token = tile.first + m;
                if token < blocking.tokens {
                    source.values(token, row, &mut ordered[..k]);
                    input.columns.gather(row, 0.0, ordered);
                } else {
                    ordered.fill(0.0);
                }
                place_values(ordered, m, tile.size, x);
                for (segment, sum) in segment_sums_f32(ordered, blocking.segment).enumerate() {
                    sums[begin * segments + segment * tile.size + m] = sum;
                }
            }
        }
    }
}

struct SplitOut<'a> {
    x: &'a mut [u16],
    sums: &'a mut [f32],
    /// Parts of an element.
    parts: usize,
    /// Whether some value is not finite.
    non_finite: &'a AtomicBool,
}

/// Packs some tiles, widened or quantised, split into bf16 parts.
struct PackSplit<'a, 'b> {
    source: &'a RowSource<'b>,
    columns: Columns<'b>,
    blocking: &'a Blocking,
    first: usize,
    out: SplitOut<'a>,
    rows: &'a mut [[u8; 64]],
}

impl Vectorised for PackSplit<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { source, columns, blocking, first, out, rows } = self;
        let SplitOut { x, sums, parts, non_finite } = out;
        let corrected = blocking.instruction.is_some_and(Instruction::corrected);
        let segments = blocking.segments;
        let mut cut = BumpAllocator::new(rows);
        let row: &mut [f32] = cut.take(columns.given);
        let ordered: &mut [f32] = cut.take(columns.native);
        let each = columns.native * parts;
        let tokens = x.len() / each;
        let mine =
            blocking.tiles().filter(|tile| tile.first >= first && tile.first < first + tokens);
        for tile in mine {
            let begin = tile.first - first;
            let x = &mut x[begin * each..][..tile.size * each];
            for m in 0..tile.size {
                let token = tile.first + m;
                let known = token < blocking.tokens;
                if known
                    && !corrected
                    && parts == 1
                    && let Some(given) = source.as_given(token, columns)
                {
                    // An infinity times the second part of a weight may be NaN: what is split here
                    // multiplies such weights, too.
                    if !split_bf16::finite(given) {
                        non_finite.store(true, Ordering::Relaxed);
                    }
                    split_bf16::place_bf16(given, m, tile.size, blocking.together, x);
                    continue;
                }
                if known {
                    source.values(token, row, &mut ordered[..columns.given]);
                    // The exponent bits of infinities and NaNs are all ones.
                    let largest =
                        row.iter().fold(0, |most: u32, v| most.max(v.to_bits() & 0x7f80_0000));
                    if largest == 0x7f80_0000 {
                        non_finite.store(true, Ordering::Relaxed);
                    }
                    columns.gather(row, 0.0, ordered);
                } else {
                    ordered.fill(0.0);
                }
                if corrected {
                    for (segment, sum) in segment_sums_f32(ordered, blocking.segment).enumerate() {
                        sums[begin * segments + segment * tile.size + m] = sum;
                    }
                }
                split_bf16::place(ordered, m, tile.size, blocking.together, parts, x);
            }
        }
    }
}
