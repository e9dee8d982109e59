//! The native layout of weights: one layout for every instruction set.
//!
//! In: an [`Unpacked`] layer. Out: a [`NativeWeight`] weight. A *panel* is 16 rows n, a *chunk* 16 rows
//! by 32 columns k; N is padded to 16 and K to 32 with codes 0. A code of b bits is split into bit
//! planes of 8, 4, 2, 1 bits ([`planes`]); in the layout language a plane of width p is `u8
//! [k/4:(8/p) | k:4, n:16, k, n]`: byte order k%4, then n%16; the fields of a byte are columns 4
//! apart. The planes of a chunk are contiguous, so are the chunks along k, and the panels along n:
//! one stream.
//!
//! Group parameters are stored in separate arrays, 16 rows at a time: `w[n, k] = factor[n] *
//! (scale[g][n] * integer + add[g][n])`. Scale levels that are constant along k make the factor,
//! the others the scale; zero point and shift make `NativeWeight::add`. If groups are not 4, 8, 16 or a
//! multiple of 32 adjacent columns (act-order, odd group sizes), columns are permuted and groups
//! padded; x is permuted in the same way.

use quantloom_dsl::{Code, TableIntegers, WeightCode, ZeroPointCorrection};
use rayon::prelude::*;

use super::bf16_row::{Bf16Table, MOST_BITS};
use super::decoder::{StoredCode, planes, stored_code};
pub use super::groups::IntegerInput;
use super::groups::{ExpertColumns, arrange};
use super::kernels::{CHUNK, Groups, Panel, PanelScales};
use super::prefetch::Jump;
use super::split_bf16::{self, PartCounter};
use super::tokens::Columns;
use crate::buffer::{AlignedBuffer, SharedLines};
use crate::column_order::NO_COLUMN;
use crate::element::f32_to_bf16;
use crate::float_mode::standard;
use crate::unpacked::Unpacked;

/// Rows of a panel.
pub const PANEL: usize = 16;

/// The arithmetic of a weight's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Integer dot products with int8 activations, exact sums over a segment.
    Dot,
    /// `f32` multiply-adds.
    Fma,
}

/// The products of bf16 numbers of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Products {
    /// None, or matrix instructions that multiply weights in parts (`super::amx`).
    Weights,
    /// Matrix instructions that multiply codes, too (`super::neon`).
    Codes,
    /// Dot products of single numbers (`super::bf16_dot`).
    Dot,
}

/// What products of bf16 numbers multiply with x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Operand {
    /// The weight without its factor: its scale is in it.
    Weight,
    /// The value of its code; scales multiply the sums of segments.
    Code(Bf16Code),
}

/// The value of a code as one bf16 number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bf16Code {
    /// This is subtracted from the value that a decoder gives.
    pub offset: i32,
    /// Whether groups have a correction, which multiplies the sum of x.
    pub corrected: bool,
}

#[derive(Clone, Debug)]
enum ScaleStore {
    Bf16(Vec<[u16; PANEL]>),
    F16(Vec<[u16; PANEL]>),
    F32(Vec<[f32; PANEL]>),
}

/// A weight in native panels.
#[derive(Clone, Debug)]
pub struct NativeWeight {
    /// Bits of a stored code.
    bits: usize,
    /// Experts, panels of each, chunks of each panel.
    experts: usize,
    panels: usize,
    chunks: usize,
    /// Columns of x.
    given: usize,
    /// [expert][panel][chunk][bits] lines.
    codes: SharedLines,
    /// Columns of a group, and groups of a panel.
    group: usize,
    groups: usize,
    /// [expert][panel][group].
    scales: ScaleStore,
    add: Option<Vec<[f32; PANEL]>>,
    /// [expert][panel].
    factor: Vec<[f32; PANEL]>,
    bias: Option<Vec<[f32; PANEL]>>,
    /// [expert][panel][group of x]: sum of w / factor over the group, if x has zero points.
    group_sums: Vec<[f32; PANEL]>,
    /// [expert]: column of each native column.
    order: Option<Vec<Vec<u32>>>,
    /// The integer of a code is the unsigned stored code minus this.
    offset: i32,
    /// bf16 parts of a weight without its factor: see [`split_bf16`].
    parts: Option<usize>,
    /// Codes as bf16 numbers, where the device multiplies these, if they are such numbers and segments can have whole chunks.
    bf16_code: Option<Bf16Code>,
    /// The one bf16 number of dot products (`super::bf16_dot`), where the device has them and weights or codes are such
    /// numbers.
    bf16_operand: Option<Bf16Operand>,
    /// The bf16 numbers of its codes, if they are so narrow.
    bf16_table: Option<Box<Bf16Table>>,
    /// The integers of x, in integer products.
    input: IntegerInput,
    /// The unsigned integers of codes that are none themselves, in integer products.
    table: Option<TableIntegers>,
}

impl NativeWeight {
    /// Packs a layer for a path, with codes `bits` wide. Integer products multiply the integers `input`, those in `f32`
    /// become products of bf16 numbers where the device has these.
    pub fn new(
        weight: &Unpacked,
        path: Path,
        bits: usize,
        input: IntegerInput,
        bf16: Bf16Products,
    ) -> Self {
        let scheme = weight.scheme();
        let shape = weight.shape();
        let (group, mut arranged) = arrange(weight);
        // Stacked experts have the same number of columns.
        let most = arranged.iter().map(|columns| columns.source.len()).max().unwrap_or(0);
        let ordered = arranged.iter().any(|columns| columns.order.is_some());
        let columns = if ordered { most * group } else { shape.k as usize };
        let native = columns.next_multiple_of(CHUNK);
        let groups = native.div_ceil(group);
        for columns in &mut arranged {
            columns.source.resize(groups, None);
            if let Some(order) = &mut columns.order {
                order.resize(native, NO_COLUMN);
            }
        }
        let stored = stored_code(&scheme.weight.code);
        let table = match path {
            Path::Dot => TableIntegers::of(&scheme.weight.code),
            Path::Fma => None,
        };
        let of_table = table.map_or(0, |table| i32::from(table.offset));
        let mut packed = Self {
            bits,
            experts: shape.experts as usize,
            panels: (shape.n as usize).div_ceil(PANEL),
            chunks: native / CHUNK,
            given: shape.k as usize,
            codes: SharedLines::default(),
            group,
            groups,
            scales: ScaleStore::F32(Vec::new()),
            add: None,
            factor: Vec::new(),
            bias: None,
            group_sums: Vec::new(),
            order: None,
            offset: stored.offset + scheme.weight.offset + of_table,
            parts: None,
            bf16_code: None,
            bf16_operand: None,
            bf16_table: None,
            input,
            table,
        };
        packed.groups(weight, (path, bf16), &arranged);
        packed.rows(weight);
        let orders: Option<Vec<Vec<u32>>> =
            arranged.into_iter().map(|columns| columns.order).collect();
        packed.order = orders;
        packed.codes(weight, stored);
        packed.group_sums(weight, stored);
        packed
    }

    /// Panels of an expert.
    pub fn panels(&self) -> usize {
        self.panels
    }

    /// Native columns, padding included.
    pub fn columns(&self) -> usize {
        self.chunks * CHUNK
    }

    /// Columns of a group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The integers of x, in integer products.
    pub fn input(&self) -> IntegerInput {
        self.input
    }

    /// Zero points of a row of x: one for each group of x, or none.
    pub fn zero_points(&self) -> usize {
        match self.input.zero_points {
            true => self.columns().div_ceil(self.input.group.unwrap_or(self.columns()).max(1)),
            false => 0,
        }
    }

    /// Whether there is more than one group along k.
    pub fn grouped(&self) -> bool {
        self.groups > 1
    }

    /// The integer of a code is the unsigned stored code, or that of [`Self::table`], minus this.
    pub fn offset(&self) -> i32 {
        self.offset
    }

    /// The unsigned integers of codes that are none themselves, in integer products.
    pub fn table(&self) -> Option<&[u8; 16]> {
        self.table.as_ref().map(|table| &table.table)
    }

    /// The largest unsigned integer of a code.
    pub fn most(&self) -> i32 {
        self.table.map_or((1 << self.bits) - 1, |table| i32::from(table.largest()))
    }

    /// The largest magnitude of a code's integer.
    pub fn largest(&self) -> u64 {
        let offset = i64::from(self.offset);
        let (low, high) = (-offset, i64::from(self.most()) - offset);
        low.unsigned_abs().max(high.unsigned_abs())
    }

    /// bf16 parts of a weight without its factor; `None` if the weight is not split.
    pub fn parts(&self) -> Option<usize> {
        self.parts
    }

    /// Codes as bf16 numbers, where the device multiplies these, if they are such numbers and segments can have whole chunks.
    pub fn bf16_code(&self) -> Option<Bf16Code> {
        self.bf16_code
    }

    /// The operand of dot products of bf16 numbers, if the weight has one.
    pub fn bf16_operand(&self) -> Option<Bf16Operand> {
        self.bf16_operand
    }

    /// The bf16 numbers of codes, where those are the operand and a table holds them.
    pub(super) fn bf16_table(&self) -> Option<&Bf16Table> {
        self.bf16_table.as_deref()
    }

    /// Bits of a stored code.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Bytes of codes and group parameters that a product reads.
    pub fn bytes(&self) -> usize {
        let scales = match &self.scales {
            ScaleStore::Bf16(rows) | ScaleStore::F16(rows) => size_of_val(rows.as_slice()),
            ScaleStore::F32(rows) => size_of_val(rows.as_slice()),
        };
        let add = self.add.as_ref().map_or(0, |rows| size_of_val(rows.as_slice()));
        self.codes.len() + scales + add + size_of_val(self.group_sums.as_slice())
    }

    /// Whether products with both have the same blocking, whatever the number of tokens.
    pub(super) fn blocks_alike(&self, other: &Self) -> bool {
        let sizes =
            |of: &Self| (of.bits, of.chunks, of.group, of.groups, of.offset, of.parts, of.input);
        let operands = |of: &Self| (of.bf16_code, of.bf16_operand);
        sizes(self) == sizes(other) && operands(self) == operands(other)
    }

    /// Whether both read the same packed tokens.
    pub(super) fn reads_alike(&self, other: &Self) -> bool {
        self.blocks_alike(other) && self.given == other.given && self.order == other.order
    }

    /// The columns of x for an expert.
    pub fn order(&self, expert: usize) -> Columns<'_> {
        let order = self.order.as_ref().and_then(|orders| orders.get(expert));
        Columns { given: self.given, native: self.columns(), order: order.map(Vec::as_slice) }
    }

    /// The lines of all codes.
    pub(super) fn code_lines(&self) -> &[[u8; 64]] {
        self.codes.lines()
    }

    /// Replaces the memory of the codes by other memory with the same lines.
    pub(super) fn set_codes(&mut self, codes: SharedLines) {
        self.codes = codes;
    }

    /// A panel.
    pub fn panel(&self, expert: usize, panel: usize) -> Panel<'_> {
        let lines = self.chunks * self.bits;
        let first = (expert * self.panels + panel) * lines;
        let planes = &self.codes.lines()[first..first + lines];
        Panel { planes, groups: self.groups_of(expert, panel), jump: Jump::default() }
    }

    /// The groups of a panel.
    pub fn groups_of(&self, expert: usize, panel: usize) -> Groups<'_> {
        let first = (expert * self.panels + panel) * self.groups;
        let range = first..first + self.groups;
        Groups {
            columns: self.group,
            scales: match &self.scales {
                ScaleStore::Bf16(rows) => PanelScales::Bf16(&rows[range.clone()]),
                ScaleStore::F16(rows) => PanelScales::F16(&rows[range.clone()]),
                ScaleStore::F32(rows) => PanelScales::F32(&rows[range.clone()]),
            },
            add: self.add.as_ref().map(|rows| &rows[range]),
        }
    }

    /// Factor, bias and sums of a panel's rows.
    pub fn rows_of(&self, expert: usize, panel: usize) -> Rows<'_> {
        let at = expert * self.panels + panel;
        let bias = self.bias.as_ref().map(|bias| &bias[at]);
        let groups = self.zero_points();
        Rows { factor: &self.factor[at], bias, sums: &self.group_sums[at * groups..][..groups] }
    }

    /// Combines the group parameters.
    fn groups(
        &mut self,
        weight: &Unpacked,
        (path, bf16): (Path, Bf16Products),
        arranged: &[ExpertColumns],
    ) {
        let shape = weight.shape();
        let rows = self.panels * self.groups;
        let mut scales = vec![[0.0f32; PANEL]; self.experts * rows];
        let mut adds = scales.clone();
        let add = match path {
            // Included in the initial value of integer sums.
            Path::Dot => 0,
            Path::Fma => self.offset,
        };
        let correction = ZeroPointCorrection { zero: true, add };
        let groups = self.groups;
        let scheme = weight.scheme();
        let counter = PartCounter::new(&scheme.weight.code, scheme.weight.offset);
        let rows_of_16 = scales.par_iter_mut().zip(&mut adds).enumerate();
        // Parts, and whether the offset is the only correction.
        let part = |(at, (scales, adds)): (usize, (&mut [f32; PANEL], &mut [f32; PANEL]))| {
            let (expert, panel, group) = (at / rows, at % rows / groups, at % groups);
            let (mut most, mut constant) = (1, true);
            let Some(k) = arranged[expert].source[group] else { return (most, constant) };
            for (row, (scale, add)) in scales.iter_mut().zip(adds).enumerate() {
                let n = (panel * PANEL + row) as u64;
                if n < shape.n {
                    let part = weight.folded(expert as u64, n, k);
                    *scale = part.scale as f32;
                    *add = correction.value(part.scale, part.zero, part.shift) as f32;
                    most = most.max(counter.parts(&part).unwrap_or(usize::MAX));
                    constant &= part.zero == 0.0 && part.shift == 0.0;
                }
            }
            (most, constant)
        };
        let parts = rows_of_16.map(|item| standard(|| part(item)));
        // Not `try_reduce`, which would skip the rest of the scales.
        let both = |a: (usize, bool), b: (usize, bool)| (a.0.max(b.0), a.1 && b.1);
        let (most, constant) = parts.reduce(|| (1, true), both);
        self.parts = (most <= split_bf16::MOST).then_some(most);
        if adds.iter().flatten().any(|add| *add != 0.0) {
            self.add = Some(adds);
        }
        if path == Path::Fma && bf16 != Bf16Products::Weights {
            self.bf16_code = self.code_in_bf16(&scheme.weight, constant);
        }
        if path == Path::Fma && bf16 == Bf16Products::Dot {
            self.set_bf16_operand(&scheme.weight.code);
        }
        self.scales = narrowest(scales);
    }

    /// Codes as bf16 numbers, if they are such numbers. The offset is the only correction of groups if `constant`.
    fn code_in_bf16(&self, weight: &WeightCode, constant: bool) -> Option<Bf16Code> {
        // Scales multiply the sums of whole chunks.
        if self.groups > 1 && !self.group.is_multiple_of(CHUNK) {
            return None;
        }
        let code = &weight.code;
        if constant && PartCounter::new(code, weight.offset).one_part() {
            return Some(Bf16Code { offset: self.offset, corrected: false });
        }
        // Stored integers are below 2^8.
        let exact = !code.is_float() || PartCounter::new(code, 0).one_part();
        exact.then_some(Bf16Code { offset: 0, corrected: self.add.is_some() })
    }

    /// Chooses the operand of dot products of bf16 numbers.
    fn set_bf16_operand(&mut self, code: &Code) {
        let of_weight = (self.parts == Some(1)).then_some(Bf16Operand::Weight);
        let of_code = self.bf16_code.map(Bf16Operand::Code);
        // A table is decoded faster than weights with their scales.
        let narrow = self.bits <= MOST_BITS;
        self.bf16_operand = if narrow { of_code.or(of_weight) } else { of_weight.or(of_code) };
        let Some(Bf16Operand::Code(Bf16Code { offset, .. })) = self.bf16_operand.filter(|_| narrow)
        else {
            return;
        };
        let StoredCode { flip, offset: stored } = stored_code(code);
        let mut table = Box::new([0; 1 << MOST_BITS]);
        for (at, number) in (0u32..1 << code.bits()).zip(table.iter_mut()) {
            let value = code.decode(at ^ u32::from(flip)) + f64::from(stored - offset);
            *number = f32_to_bf16(value as f32);
        }
        self.bf16_table = Some(table);
    }

    /// Computes the row parameters.
    fn rows(&mut self, weight: &Unpacked) {
        let shape = weight.shape();
        let (n, panels) = (shape.n as usize, self.panels);
        let padded = |value: &dyn Fn(usize, usize) -> f32| -> Vec<[f32; PANEL]> {
            let panel = |at: usize| {
                let (expert, first) = (at / panels, at % panels * PANEL);
                let row = |r| if first + r < n { value(expert, first + r) } else { 0.0 };
                std::array::from_fn(row)
            };
            (0..self.experts * panels).map(panel).collect()
        };
        // Sums of a table's integers are a power of two too large.
        let unit = self.table.map_or(1.0, |table| (-f64::from(table.exponent)).exp2());
        let factor =
            padded(&|e, row| (weight.folded(e as u64, row as u64, 0).channel_scale * unit) as f32);
        let bias = weight.bias().map(|bias| padded(&|e, row| bias[e * n + row] as f32));
        (self.factor, self.bias) = (factor, bias);
    }

    /// Splits codes into bit planes.
    fn codes(&mut self, weight: &Unpacked, stored: StoredCode) {
        let shape = weight.shape();
        let (n, k) = (shape.n as usize, shape.k as usize);
        let lines = self.chunks * self.bits;
        let mut codes = AlignedBuffer::zeroed(self.experts * self.panels * lines * 64);
        let packed = &*self;
        codes.lines_mut().par_chunks_mut(lines.max(1)).enumerate().for_each(|(at, out)| {
            let (expert, panel) = (at / packed.panels, at % packed.panels);
            let columns = packed.order(expert);
            let mut chunks = vec![[0u8; PANEL * CHUNK]; packed.chunks];
            let mut row = vec![0u8; columns.native];
            for r in 0..PANEL.min(n - panel * PANEL) {
                let first = ((expert * n) + panel * PANEL + r) * k;
                let source = &weight.codes()[first..first + k];
                // The padding is the code whose stored form is 0.
                columns.gather(source, stored.flip, &mut row);
                for (chunk, row) in chunks.iter_mut().zip(row.as_chunks::<CHUNK>().0) {
                    for (column, code) in row.iter().enumerate() {
                        let (q, j) = (column / 4, column % 4);
                        chunk[q * 64 + r * 4 + j] = code ^ stored.flip;
                    }
                }
            }
            for (chunk, out) in chunks.iter().zip(out.chunks_exact_mut(packed.bits)) {
                pack_planes(chunk, out);
            }
        });
        self.codes = SharedLines::all(codes);
    }

    /// Sums up the weights of each group of x, if x has zero points.
    fn group_sums(&mut self, weight: &Unpacked, stored: StoredCode) {
        let groups = self.zero_points();
        if groups == 0 {
            return;
        }
        let (n, k) = (weight.shape().n as usize, weight.shape().k as usize);
        let packed = &*self;
        let mut sums = vec![[0.0f32; PANEL]; self.experts * self.panels * groups];
        sums.par_chunks_mut(groups).enumerate().for_each(|(at, sums)| {
            let (expert, panel) = (at / packed.panels, at % packed.panels);
            let columns = packed.order(expert);
            let mut row = vec![None; columns.native];
            for r in 0..PANEL.min(n - panel * PANEL) {
                let first = ((expert * n) + panel * PANEL + r) * k;
                let source = weight.codes()[first..first + k].iter();
                let source: Vec<Option<u8>> = source.map(|code| Some(code ^ stored.flip)).collect();
                columns.gather(&source, None, &mut row);
                let of_row = standard(|| packed.row_sums(expert, panel, r, &row));
                for (sums, sum) in sums.iter_mut().zip(of_row) {
                    sums[r] = sum;
                }
            }
        });
        self.group_sums = sums;
    }

    /// The sums of w / factor over each group of x of a row of stored codes, `None` where there is no column.
    fn row_sums(&self, expert: usize, panel: usize, r: usize, row: &[Option<u8>]) -> Vec<f32> {
        let groups = self.groups_of(expert, panel);
        let of_x = self.input.group.unwrap_or(row.len());
        let mut sums = vec![0.0; self.zero_points()];
        let mut first = 0;
        while first < row.len() {
            let (group, of_sum) = (first / self.group, first / of_x);
            // Where a group of w or of x ends.
            let end = ((group + 1) * self.group).min((of_sum + 1) * of_x).min(row.len());
            let (mut total, mut count) = (0i64, 0i64);
            for stored in row[first..end].iter().flatten() {
                let unsigned = self.table().map_or(*stored, |table| table[usize::from(*stored)]);
                total += i64::from(unsigned) - i64::from(self.offset);
                count += 1;
            }
            let scale = match groups.scales {
                PanelScales::Bf16(rows) => crate::element::bf16_to_f32(rows[group][r]),
                PanelScales::F16(rows) => crate::element::f16_to_f32(rows[group][r]),
                PanelScales::F32(rows) => rows[group][r],
            };
            let add = groups.add.map_or(0.0, |add| add[group][r]);
            sums[of_sum] += f64::from(scale) * total as f64 + f64::from(add) * count as f64;
            first = end;
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }
}

/// The row parameters of a panel: 16 each.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Product of the scale levels that are constant along k.
    pub factor: &'a [f32; PANEL],
    /// Bias.
    pub bias: Option<&'a [f32; PANEL]>,
    /// Sums of w / factor over each group of x; none if x has no zero points.
    pub sums: &'a [[f32; PANEL]],
}

/// Splits a chunk of one code per byte, `[q][row][column % 4]`, into bit planes.
fn pack_planes(chunk: &[u8; PANEL * CHUNK], out: &mut [[u8; 64]]) {
    let (vectors, _) = chunk.as_chunks::<64>();
    let (mut line, mut low) = (0, 0);
    for width in planes(out.len()) {
        let fields = 8 / width;
        let mask = (0xffu16 >> (8 - width)) as u8;
        for vectors in vectors.chunks_exact(fields) {
            for (field, codes) in vectors.iter().enumerate() {
                for (out, code) in out[line].iter_mut().zip(codes) {
                    *out |= (code >> low & mask) << (width * field);
                }
            }
            line += 1;
        }
        low += width;
    }
}

/// bf16 if it represents every scale, else f16 if that does.
fn narrowest(scales: Vec<[f32; PANEL]>) -> ScaleStore {
    use crate::element::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
    let holds = |narrow: fn(f32) -> u16, wide: fn(u16) -> f32| {
        scales.par_iter().flatten().all(|scale| wide(narrow(*scale)).to_bits() == scale.to_bits())
    };
    let narrowed = |narrow: fn(f32) -> u16| scales.par_iter().map(|row| row.map(narrow)).collect();
    if holds(f32_to_bf16, bf16_to_f32) {
        ScaleStore::Bf16(narrowed(f32_to_bf16))
    } else if holds(f32_to_f16, f16_to_f32) {
        ScaleStore::F16(narrowed(f32_to_f16))
    } else {
        ScaleStore::F32(scales)
    }
}
