//! Matrix operations: fragments by the lane maps of [`MATRIX_OPS`], exact products, one rounding.
//!
//! A warp's part of an operation is a product of small f64 matrices. The lane maps come from the
//! layouts of the operation's row in the table, parsed once per row. A warp-group operation is
//! split by the rows of its warps; it is computed at its wait, from the operands' contents at that
//! time.

use std::sync::{LazyLock, OnceLock};

use quantloom_dsl::format::{E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, FloatFormat, Variant};
use quantloom_dsl::layout::Point as Element2;
use quantloom_dsl::parse_fragment;

use super::clock::ALL_LANES;
use super::fault::FaultKind;
use super::half;
use super::lanes::Row;
use super::program::RegSlot;
use super::state::UnitState;
use super::warp::{READ_IN_FLIGHT, StepResult, UNFENCED, WRITTEN_IN_FLIGHT, Warp, fail};
use crate::ir::{
    Accumulator, Element, Half, MATRIX_OPS, MatrixOp, MatrixOperand, MatrixScale, MatrixScope, Reg,
    SharedId, SharedTile, Space,
};
use crate::target::{ScaleCode, ScaleLanes};

/// Where an element of a fragment is: register, lane, position in the register.
#[derive(Clone, Copy, Debug)]
struct ElementPosition {
    register: u8,
    lane: u8,
    position: u8,
}

/// The lane maps of an instruction's operands for one warp: A and D with m slowest, B with k
/// slowest.
#[derive(Debug)]
struct LaneMaps {
    /// Rows of A and D that a warp holds.
    rows: usize,
    a: Vec<ElementPosition>,
    b: Vec<ElementPosition>,
    d: Vec<ElementPosition>,
    /// Which lanes supply the scales of A and of B, if the instruction scales.
    scales: Option<[ScalePositions; 2]>,
}

/// Which lanes supply the scales of an operand.
#[derive(Debug)]
struct ScalePositions {
    /// Columns that share a scale.
    columns: usize,
    code: ScaleCode,
    /// The lane of each scale and its byte, counted from the first: row of A (column of B) slowest, then block of
    /// columns.
    positions: Vec<(u8, u8)>,
}

static LANE_MAPS: LazyLock<Vec<OnceLock<Option<LaneMaps>>>> =
    LazyLock::new(|| MATRIX_OPS.iter().map(|_| OnceLock::new()).collect());

/// The value of each code of a small float.
type CodeValues = LazyLock<Vec<f64>>;

fn values(format: FloatFormat) -> Vec<f64> {
    (0..1u32 << format.bits()).map(|code| format.decode(code)).collect()
}

static E4M3_VALUES: CodeValues = LazyLock::new(|| values(E4M3));
static E4M3FNUZ_VALUES: CodeValues = LazyLock::new(|| values(E4M3FNUZ));
static E5M2_VALUES: CodeValues = LazyLock::new(|| values(FloatFormat::new(5, 2, Variant::Ieee)));
static E2M3_VALUES: CodeValues = LazyLock::new(|| values(E2M3));
static E3M2_VALUES: CodeValues = LazyLock::new(|| values(E3M2));
static E2M1_VALUES: CodeValues = LazyLock::new(|| values(E2M1));

/// Lane maps of a row of the table; `None` if its layouts are not fragments of its shape.
fn lane_maps(op: &'static MatrixOp) -> Option<&'static LaneMaps> {
    let at = MATRIX_OPS.iter().position(|row| std::ptr::eq(row, op) || row.name == op.name)?;
    LANE_MAPS[at].get_or_init(|| parse_lane_maps(op)).as_ref()
}

fn parse_lane_maps(op: &MatrixOp) -> Option<LaneMaps> {
    let [m, n, k] = op.shape.map(|extent| extent as usize);
    let rows = if op.scope == MatrixScope::WarpGroup { m / 4 } else { m };
    let read = |layout: &str, fast: usize, slow: usize, by_rows: bool| {
        let fragment = parse_fragment(layout).ok()?;
        let element = |at: usize| {
            let (row, column) =
                if by_rows { (at / fast, at % fast) } else { (at % fast, at / fast) };
            let digits = fragment.place(Element2 { n: row as u32, k: column as u32 });
            let [position, register, lane] = digits[..] else { return None };
            Some(ElementPosition {
                register: register as u8,
                lane: lane as u8,
                position: position as u8,
            })
        };
        (0..fast * slow).map(element).collect::<Option<Vec<ElementPosition>>>()
    };
    Some(LaneMaps {
        rows,
        a: read(op.a_layout, k, rows, true)?,
        b: if op.b_layout.is_empty() { Vec::new() } else { read(op.b_layout, n, k, false)? },
        d: read(op.d_layout, n, rows, true)?,
        scales: match op.scaling {
            Some(scaling) => {
                let columns = scaling.columns as usize;
                let of = |of: ScaleLanes, rows: usize| {
                    let lane_maps = read(of.layout, k / columns, rows, true)?;
                    let position =
                        |at: &ElementPosition| (of.lane(at.lane.into()) as u8, at.position);
                    let positions = lane_maps.iter().map(position).collect();
                    Some(ScalePositions { columns, code: scaling.code, positions })
                };
                Some([of(scaling.a, m)?, of(scaling.b, n)?])
            }
            None => None,
        },
    })
}

/// The value of an element's bits.
fn value(element: Element, bits: u32) -> f64 {
    match element {
        Element::F16 => f64::from(half::widen(Half::F16, bits as u16)),
        Element::Bf16 => f64::from(half::widen(Half::Bf16, bits as u16)),
        Element::E4m3 => E4M3_VALUES[(bits & 0xff) as usize],
        Element::E4m3Fnuz => E4M3FNUZ_VALUES[(bits & 0xff) as usize],
        Element::E5m2 => E5M2_VALUES[(bits & 0xff) as usize],
        Element::E2m3 => E2M3_VALUES[(bits & 0x3f) as usize],
        Element::E3m2 => E3M2_VALUES[(bits & 0x3f) as usize],
        Element::E2m1 => E2M1_VALUES[(bits & 0xf) as usize],
        Element::PaddedE2m3 => E2M3_VALUES[(bits & 0x3f) as usize],
        Element::PaddedE3m2 => E3M2_VALUES[(bits & 0x3f) as usize],
        Element::PaddedE2m1 => E2M1_VALUES[(bits >> 2 & 0xf) as usize],
        Element::S8 => f64::from(bits as u8 as i8),
        Element::S4 => f64::from((bits << 28) as i32 >> 28),
        Element::F32 => f64::from(f32::from_bits(bits)),
        Element::S32 => f64::from(bits as i32),
    }
}

/// A warp-group operation in flight.
#[derive(Debug)]
pub(super) struct InFlightMatrixOp {
    pub(super) point: u32,
    op: &'static MatrixOp,
    d: Box<[RegSlot]>,
    a: InFlightOperand,
    b: Vec<(u32, u32)>,
    /// Whether D is added to.
    adds: bool,
    /// Its group: the number of commits before it.
    group: u32,
}

/// An operand in flight: registers, or segments of shared memory (start, bytes) row by row.
#[derive(Debug)]
enum InFlightOperand {
    Slots(Box<[RegSlot]>),
    Segments(Vec<(u32, u32)>),
}

impl InFlightMatrixOp {
    /// Whether the operation writes or reads a slot.
    pub(super) fn uses(&self, slot: RegSlot) -> bool {
        self.d.contains(&slot)
            || matches!(&self.a, InFlightOperand::Slots(slots) if slots.contains(&slot))
    }
}

impl<const L: usize> Warp<L> {
    /// A matrix operation: computed here in warp scope, started here in warp-group scope.
    pub(super) fn matrix(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (op, d): (&'static MatrixOp, &[Reg]),
        (a, b): (&MatrixOperand, &MatrixOperand),
        (c, scales): (&Accumulator, Option<[MatrixScale; 2]>),
    ) -> StepResult {
        self.converged()?;
        let Some(lane_maps) = lane_maps(op) else {
            return fail(FaultKind::Unsupported("a matrix instruction without readable layouts"));
        };
        if op.scope == MatrixScope::WarpGroup {
            return self.start_matrix_op(state, point, op, (d, a, b, *c != Accumulator::Zero));
        }
        let (MatrixOperand::Registers(a), MatrixOperand::Registers(b)) = (a, b) else {
            return fail(FaultKind::Unsupported("a warp's matrix operand in shared memory"));
        };
        let mut a = self.operand(state, (op, op.a), a, &lane_maps.a)?;
        let mut b = self.operand(state, (op, op.b), b, &lane_maps.b)?;
        if let (Some([of_a, of_b]), Some([in_a, in_b])) = (scales, &lane_maps.scales) {
            let [_, n, k] = op.shape.map(|extent| extent as usize);
            let (of_a, of_b) = (self.scales(state, of_a, in_a)?, self.scales(state, of_b, in_b)?);
            let columns = in_a.columns;
            let blocks = k / columns;
            for (at, a) in a.iter_mut().enumerate() {
                *a *= of_a[at / k * blocks + at % k / columns];
            }
            for (at, b) in b.iter_mut().enumerate() {
                *b *= of_b[at % n * blocks + at / n / columns];
            }
        }
        let c = match c {
            Accumulator::Registers(c) => Some(self.rows(state, c)?),
            Accumulator::Zero => None,
        };
        let d_rows =
            multiply(op, lane_maps, (&a, &b), c.as_deref(), state.context.options.truncate_fp8);
        for (&reg, row) in d.iter().zip(d_rows) {
            self.write(state, reg, row)?;
        }
        Ok(())
    }

    fn rows(&mut self, state: &UnitState<'_, '_>, regs: &[Reg]) -> StepResult<Vec<Row<L>>> {
        regs.iter().map(|&reg| self.read(state, reg, Self::FULL)).collect()
    }

    /// The scales of an operand, in the order of the layout.
    fn scales(
        &mut self,
        state: &UnitState<'_, '_>,
        scale: MatrixScale,
        layout: &ScalePositions,
    ) -> StepResult<Vec<f64>> {
        let row = self.read(state, scale.from, Self::FULL)?;
        let code =
            |&(lane, byte): &(u8, u8)| row[usize::from(lane)] >> (8 * (scale.byte + byte)) & 0xff;
        let codes: Vec<u32> = layout.positions.iter().map(code).collect();
        // What the instruction takes a set top bit for is not specified.
        if layout.code == ScaleCode::UnsignedE4m3 && codes.iter().any(|code| code & 0x80 > 0) {
            return fail(FaultKind::Unsupported("a scale of unsigned e4m3 with its top bit set"));
        }
        let number = layout.code.number();
        Ok(codes.into_iter().map(|code| number.decode(code)).collect())
    }

    fn operand(
        &mut self,
        state: &UnitState<'_, '_>,
        (op, element): (&MatrixOp, Element),
        regs: &[Reg],
        positions: &[ElementPosition],
    ) -> StepResult<Vec<f64>> {
        let rows = self.rows(state, regs)?;
        // What the instruction computes from copies that differ is not specified.
        let holders = L / op.copies as usize;
        for (&reg, row) in regs.iter().zip(&rows) {
            let differs = |lane: &usize| row[*lane] != row[lane % holders];
            if let Some(lane) = (holders..L).find(differs) {
                let (register, lane) = (state.name(reg), lane as u32);
                return fail(FaultKind::DifferentCopies { register, lane });
            }
        }
        Ok(gather(element, &rows, positions))
    }

    fn start_matrix_op(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        op: &'static MatrixOp,
        (d, a, b, adds): (&[Reg], &MatrixOperand, &MatrixOperand, bool),
    ) -> StepResult {
        let [_, n, k] = op.shape;
        let slots = |regs: &[Reg]| regs.iter().map(|&reg| state.slot(reg)).collect();
        let d_slots: Box<[RegSlot]> = slots(d);
        for (&reg, &slot) in d.iter().zip(&d_slots) {
            let marks = self.marks[slot as usize];
            if marks & WRITTEN_IN_FLIGHT == 0 {
                self.check_fenced(state, reg)?;
                if adds {
                    self.read(state, reg, Self::FULL)?;
                }
            } else if !self.matrix_ops.iter().any(|old| old.d == d_slots && old.op.d == op.d) {
                self.read(state, reg, Self::FULL)?;
            }
        }
        let a = match a {
            MatrixOperand::Registers(regs) => {
                let slots: Box<[RegSlot]> = slots(regs);
                for (&reg, &slot) in regs.iter().zip(&slots) {
                    self.check_fenced(state, reg)?;
                    self.read(state, reg, Self::FULL)?;
                    self.marks[slot as usize] |= READ_IN_FLIGHT;
                }
                InFlightOperand::Slots(slots)
            }
            MatrixOperand::Shared(tile) => {
                let first = 16 * (self.number % 4);
                let bytes = k * op.a.bits() / 8;
                InFlightOperand::Segments(self.start_tile_read(
                    state,
                    point,
                    tile,
                    (first, first + 16),
                    bytes,
                    ALL_LANES,
                )?)
            }
        };
        let MatrixOperand::Shared(tile) = b else {
            return fail(FaultKind::Unsupported("a warp group's B from registers"));
        };
        let bytes = k * op.b.bits() / 8;
        let b = self.start_tile_read(state, point, tile, (0, n), bytes, ALL_LANES)?;
        for &slot in &d_slots {
            self.set_poison(slot, Self::FULL);
            self.marks[slot as usize] |= WRITTEN_IN_FLIGHT;
        }
        let (d, group) = (d_slots, self.matrix_group);
        self.matrix_ops.push(InFlightMatrixOp { point, op, d, a, b, adds, group });
        self.record_group_op(point);
        Ok(())
    }

    /// Fails if the register was written since the last matrix fence.
    fn check_fenced(&self, state: &UnitState<'_, '_>, reg: Reg) -> StepResult {
        match self.marks[state.slot(reg) as usize] & UNFENCED {
            0 => Ok(()),
            _ => fail(FaultKind::MissingMatrixFence(state.name(reg))),
        }
    }

    /// Records a warp-group operation; the warps of a group must execute the same ones.
    fn record_group_op(&mut self, point: u32) {
        self.group_op_hash = self
            .group_op_hash
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(u64::from(point) + 1);
    }

    /// Starts the operation's read of rows of a tile in shared memory, by a lane or by all; returns their
    /// 16-byte segments.
    pub(super) fn start_tile_read(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        tile: &SharedTile,
        (first, last): (u32, u32),
        bytes: u32,
        lane: u8,
    ) -> StepResult<Vec<(u32, u32)>> {
        let SharedId(owner) = tile.block;
        let array = Space::Shared(tile.block);
        let row = self.read(state, tile.index, self.active)?;
        let index = row[self.active.trailing_zeros() as usize];
        let (_, word) = state.array(array);
        let (block, len) = state.blocks[self.block].shared.blocks[owner as usize];
        let start = u64::from(block) + (u64::from(index) + u64::from(tile.offset)) * word;
        let pitch = match tile.swizzle {
            crate::ir::Swizzle::None => 16,
            crate::ir::Swizzle::B32 => 32,
            crate::ir::Swizzle::B64 => 64,
            crate::ir::Swizzle::B128 => 128,
        };
        let mut segments = Vec::new();
        for row in first..last {
            for byte in (0..bytes).step_by(16) {
                let along = match pitch {
                    16 => byte / 16 * tile.leading,
                    _ => byte,
                };
                let plain = start + u64::from(row / 8 * tile.stride + row % 8 * pitch + along);
                let at = u64::from(tile.swizzle.apply(plain as u32));
                if at < u64::from(block) || at + 16 > u64::from(block) + u64::from(len) {
                    let location = state.location(array, at);
                    let words = u64::from(len) / word;
                    return fail(FaultKind::OutOfBounds { location, words });
                }
                if !at.is_multiple_of(16) {
                    let location = state.location(array, at);
                    return fail(FaultKind::Misaligned { location, byte: at, align: 16 });
                }
                let segment = (at as u32, 16);
                let lane = usize::from(lane);
                self.start_async_read(state, point, (array, owner), lane, segment)?;
                segments.push(segment);
            }
        }
        Ok(segments)
    }

    pub(super) fn matrix_fence(&mut self, point: u32) {
        for mark in &mut self.marks {
            *mark &= !UNFENCED;
        }
        self.record_group_op(point);
    }

    pub(super) fn matrix_commit(&mut self, point: u32) {
        self.matrix_group += 1;
        self.record_group_op(point);
    }

    /// Computes the operations that the wait covers, in their order.
    pub(super) fn matrix_wait(&mut self, state: &mut UnitState<'_, '_>, point: u32, pending: u32) {
        self.record_group_op(point);
        let limit = self.matrix_group.saturating_sub(pending);
        let all = std::mem::take(&mut self.matrix_ops);
        let (landing, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|op| op.group < limit);
        for op in landing {
            self.finish_matrix_op(state, &op);
        }
        self.matrix_ops = rest;
        let mut still = vec![0u8; self.marks.len()];
        let mut poisoned = Vec::new();
        for op in &self.matrix_ops {
            for &slot in &op.d {
                still[slot as usize] |= WRITTEN_IN_FLIGHT;
            }
            if let InFlightOperand::Slots(slots) = &op.a {
                for &slot in slots {
                    still[slot as usize] |= READ_IN_FLIGHT;
                }
            }
        }
        for (slot, (mark, still)) in self.marks.iter_mut().zip(&still).enumerate() {
            *mark = (*mark & !(WRITTEN_IN_FLIGHT | READ_IN_FLIGHT)) | still;
            if still & WRITTEN_IN_FLIGHT != 0 {
                poisoned.push(slot as RegSlot);
            }
        }
        for slot in poisoned {
            self.set_poison(slot, Self::FULL);
        }
    }

    fn finish_matrix_op(&mut self, state: &mut UnitState<'_, '_>, running: &InFlightMatrixOp) {
        let op = running.op;
        let Some(lane_maps) = lane_maps(op) else { return };
        let bytes = |state: &mut UnitState<'_, '_>, segments: &[(u32, u32)]| {
            let mut all = Vec::new();
            for &(start, len) in segments {
                let shared = &mut state.blocks[self.block].shared;
                all.extend_from_slice(&shared.bytes[start as usize..(start + len) as usize]);
                shared.end_read(&self.observer(running.point), ALL_LANES, (start, len));
            }
            all
        };
        let a = match &running.a {
            InFlightOperand::Slots(slots) => {
                let rows: Vec<Row<L>> = slots.iter().map(|&slot| *self.row(slot)).collect();
                gather(op.a, &rows, &lane_maps.a)
            }
            InFlightOperand::Segments(segments) => elements(op.a, &bytes(state, segments)),
        };
        let [_, n, k] = op.shape.map(|extent| extent as usize);
        let by_column = elements(op.b, &bytes(state, &running.b));
        let b: Vec<f64> = (0..k * n).map(|at| by_column[at % n * k + at / n]).collect();
        let c: Option<Vec<Row<L>>> =
            running.adds.then(|| running.d.iter().map(|&slot| *self.row(slot)).collect());
        let rows =
            multiply(op, lane_maps, (&a, &b), c.as_deref(), state.context.options.truncate_fp8);
        for (&slot, row) in running.d.iter().zip(rows) {
            self.arrive(slot, row);
        }
    }
}

/// The values of elements that are contiguous in memory.
pub(super) fn elements(element: Element, bytes: &[u8]) -> Vec<f64> {
    match element.bits() {
        4 => {
            let both = |byte: &u8| [byte & 0xf, byte >> 4];
            bytes.iter().flat_map(both).map(|code| value(element, code.into())).collect()
        }
        8 => bytes.iter().map(|&byte| value(element, u32::from(byte))).collect(),
        _ => bytes
            .chunks_exact(2)
            .map(|pair| value(element, u32::from(u16::from_le_bytes([pair[0], pair[1]]))))
            .collect(),
    }
}

fn gather<const L: usize>(
    element: Element,
    rows: &[Row<L>],
    positions: &[ElementPosition],
) -> Vec<f64> {
    let bits = element.bits();
    let at = |element_at: &ElementPosition| {
        // An element may start in a later register, and end in the next one.
        let first = bits * u32::from(element_at.position);
        let word = |after: u32| {
            let register = u32::from(element_at.register) + first / 32 + after;
            rows.get(register as usize).map_or(0, |row| row[usize::from(element_at.lane)])
        };
        let after = if first % 32 + bits > 32 { word(1) } else { 0 };
        let both = u64::from(word(0)) | u64::from(after) << 32;
        value(element, (both >> (first % 32)) as u32)
    };
    positions.iter().map(at).collect()
}

/// d = a b + c for one warp: exact products, summed in f64 and rounded once; integers modulo 2^32.
fn multiply<const L: usize>(
    op: &MatrixOp,
    lane_maps: &LaneMaps,
    (a, b): (&[f64], &[f64]),
    c: Option<&[Row<L>]>,
    truncate_fp8: bool,
) -> Vec<Row<L>> {
    let [_, n, k] = op.shape.map(|extent| extent as usize);
    let mut d = vec![[0u32; L]; lane_maps.d.len() / L];
    let truncates = truncate_fp8
        && matches!(op.a, Element::E4m3 | Element::E4m3Fnuz | Element::E5m2)
        && op.d == Element::F32
        && op.scaling.is_none();
    let mut sums = vec![0f64; n];
    let mut products = vec![0f64; k];
    for row in 0..lane_maps.rows {
        let a = &a[row * k..(row + 1) * k];
        let positions = &lane_maps.d[row * n..(row + 1) * n];
        if !truncates {
            sums.fill(0.0);
            for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
        for (column, position) in positions.iter().enumerate() {
            let (register, lane) = (usize::from(position.register), usize::from(position.lane));
            let addend = c.map(|c| c[register][lane]);
            d[register][lane] = if truncates {
                for (at, product) in products.iter_mut().enumerate() {
                    *product = a[at] * b[at * n + column];
                }
                summed(&products, addend, op.d, true)
            } else {
                rounded(sums[column], addend, op.d)
            };
        }
    }
    d
}

/// The bits of a sum of products and an addend, of the type of D; truncated as FP8 may be.
pub(super) fn summed(products: &[f64], addend: Option<u32>, d: Element, truncate: bool) -> u32 {
    match truncate {
        true => truncated(products, addend.map_or(0.0, |c| f64::from(f32::from_bits(c)))).to_bits(),
        false => rounded(products.iter().sum(), addend, d),
    }
}

/// The bits of a sum and an addend, rounded once; integers modulo 2^32.
fn rounded(sum: f64, addend: Option<u32>, d: Element) -> u32 {
    match d {
        // At most 2^14 k: exact in f64.
        Element::S32 => addend.unwrap_or(0).wrapping_add(sum as i64 as u32),
        _ => {
            let c = addend.map_or(0.0, f32::from_bits);
            ((sum + f64::from(c)) as f32).to_bits()
        }
    }
}

/// A sum as Hopper and Ada may compute it for FP8: every term truncated to 13 bits below the
/// largest term's exponent, the sum truncated to 13 bits below its own exponent (DeepSeek-V3
/// technical report, 3.3.2: "about 14 bits").
fn truncated(products: &[f64], c: f64) -> f32 {
    const FRACTION: u32 = 13;
    // With its bias: that of 0 is the smallest one, and that of infinities and NaN is `NOT_FINITE`. No other term is
    // subnormal in f64.
    const NOT_FINITE: u32 = 0x7ff;
    let exponent = |x: f64| (x.to_bits() >> 52) as u32 & NOT_FINITE;
    let cut = |x: f64, top: u32| {
        let low_bits = f64::MANTISSA_DIGITS - 1 - FRACTION + (top - exponent(x));
        let kept = if low_bits < f64::MANTISSA_DIGITS { u64::MAX << low_bits } else { 0 };
        f64::from_bits(x.to_bits() & kept)
    };
    let mut top = exponent(c);
    for &product in products {
        top = top.max(exponent(product));
    }
    if top == NOT_FINITE {
        return (products.iter().sum::<f64>() + c) as f32;
    }
    let mut sum = cut(c, top);
    for &product in products {
        sum += cut(product, top);
    }
    if sum == 0.0 { 0.0 } else { cut(sum, exponent(sum)) as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str) -> &'static MatrixOp {
        MATRIX_OPS.iter().find(|row| row.name == name).expect("a row of the table")
    }

    /// d[0][0] of a product whose row 0 of A is given, B all ones, and C a constant.
    fn first(name: &str, a_row: &[f64], c: f32, truncate: bool) -> f32 {
        let op = row(name);
        let [m, n, k] = op.shape.map(|extent| extent as usize);
        let mut a = vec![0.0; m * k];
        a[..a_row.len()].copy_from_slice(a_row);
        let b = vec![1.0; k * n];
        let c = vec![[c.to_bits(); 32]; m * n / 32];
        let lane_maps = lane_maps(op).expect("layouts");
        let d: Vec<Row<32>> = multiply(op, lane_maps, (&a, &b), Some(&c), truncate);
        let position = lane_maps.d[0];
        f32::from_bits(d[usize::from(position.register)][usize::from(position.lane)])
    }

    /// Sums are exact until the one rounding at the end.
    #[test]
    fn a_product_rounds_once() {
        let big = 2f64.powi(30);
        assert_eq!(first("mma.m16n8k16.bf16", &[big, 1.0, -big], 0.5, false), 1.5);
        // 2^24 + 1 is a tie of f32, which C decides.
        let tie = [2f64.powi(24), 1.0];
        assert_eq!(first("mma.m16n8k16.f16", &tie, 0.0, false), 16_777_216.0);
        assert_eq!(first("mma.m16n8k16.f16", &tie, 1e-6, false), 16_777_218.0);
    }

    /// Truncated FP8 sums lose terms 14 bits below the largest term, towards 0.
    #[test]
    fn truncated_fp8_sums_lose_small_terms() {
        let name = "mma.m16n8k32.e4m3";
        let terms = [256.0, 2f64.powi(-6), 2f64.powi(-6), -(2f64.powi(-6))];
        assert_eq!(first(name, &terms, 0.0, false), 256.0 + 2f32.powi(-6));
        assert_eq!(first(name, &terms, 0.0, true), 256.0);
        // 13 bits below is kept.
        assert_eq!(first(name, &[256.0, 2f64.powi(-5)], 0.0, true), 256.0 + 2f32.powi(-5));
        // Lost terms are lost whole, however many there are.
        for lost in [2f64.powi(-6), 2f64.powi(-9)] {
            let mut many = [lost; 32];
            many[0] = 256.0;
            assert_eq!(first(name, &many, 0.0, true), 256.0);
        }
        // C is truncated like a term.
        assert_eq!(first(name, &[1.0], 65536.0, true), 65536.0);
        assert_eq!(first(name, &[1.0], -8192.0, true), -8191.0);
    }

    /// Every row's layouts place each element of A, B and D once.
    #[test]
    fn every_row_has_lane_maps() {
        for op in MATRIX_OPS {
            let lane_maps = lane_maps(op).unwrap_or_else(|| panic!("{}", op.name));
            for list in [&lane_maps.a, &lane_maps.b, &lane_maps.d] {
                let mut places: Vec<_> = list
                    .iter()
                    .map(|position| (position.register, position.lane, position.position))
                    .collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), list.len(), "{}", op.name);
            }
        }
    }
}
