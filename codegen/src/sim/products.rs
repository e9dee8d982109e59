//! Matrix operations: fragments from the table's rows, exact products, one rounding.
//!
//! A warp's share of an operation is a plain product of small f64 matrices: which register and lane
//! holds which element comes from the row's layouts, read once per row. A warp-group operation is
//! cut into its warps' rows; it is computed when it is awaited, from what its operands hold then.

use std::sync::{LazyLock, OnceLock};

use quantloom_dsl::format::{E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, FloatFormat, Number, Variant};
use quantloom_dsl::layout::Point as Element2;
use quantloom_dsl::parse_fragment;

use super::clock::ALL_LANES;
use super::fault::FaultKind;
use super::half;
use super::lanes::Row;
use super::program::{Array, ScaleAt, Slot, Source, TileAt};
use super::warp::{CHANGED, Exec, MULTIPLIED, PRODUCED, Warp, fail};
use super::world::World;
use crate::ir::{Element, Half, MATRIX_OPS, MatrixOp, MatrixScope};

/// Where an element lies: register, lane, position in the register.
#[derive(Clone, Copy, Debug)]
struct Spot {
    register: u8,
    lane: u8,
    position: u8,
}

/// The spots of a row's operands for one warp: A and D by m first, B by k first.
#[derive(Debug)]
struct Spots {
    /// Rows of A and D that a warp holds.
    rows: usize,
    a: Vec<Spot>,
    b: Vec<Spot>,
    d: Vec<Spot>,
    /// Of an instruction that scales, by row of A or column of B first, blocks of columns: the lanes.
    scales: Option<Scales>,
}

/// Which lanes supply scales.
#[derive(Debug)]
struct Scales {
    /// Columns that share one.
    columns: usize,
    lanes: Vec<u8>,
}

static SPOTS: LazyLock<Vec<OnceLock<Option<Spots>>>> =
    LazyLock::new(|| MATRIX_OPS.iter().map(|_| OnceLock::new()).collect());

/// The values of a small float's codes.
type Values = LazyLock<Vec<f64>>;

fn values(format: FloatFormat) -> Vec<f64> {
    (0..1u32 << format.bits()).map(|code| format.decode(code)).collect()
}

static E4M3_VALUES: Values = LazyLock::new(|| values(E4M3));
static E4M3FNUZ_VALUES: Values = LazyLock::new(|| values(E4M3FNUZ));
static E5M2_VALUES: Values = LazyLock::new(|| values(FloatFormat::new(5, 2, Variant::Ieee)));
static E2M3_VALUES: Values = LazyLock::new(|| values(E2M3));
static E3M2_VALUES: Values = LazyLock::new(|| values(E3M2));
static E2M1_VALUES: Values = LazyLock::new(|| values(E2M1));

/// The spots of a row of the table; `None` if its layouts are not fragments of its shape.
fn spots(op: &'static MatrixOp) -> Option<&'static Spots> {
    let at = MATRIX_OPS.iter().position(|row| std::ptr::eq(row, op) || row.name == op.name)?;
    SPOTS[at].get_or_init(|| read_spots(op)).as_ref()
}

fn read_spots(op: &MatrixOp) -> Option<Spots> {
    let [m, n, k] = op.shape.map(|extent| extent as usize);
    let rows = if op.scope == MatrixScope::WarpGroup { m / 4 } else { m };
    let read = |layout: &str, fast: usize, slow: usize, by_rows: bool| {
        let fragment = parse_fragment(layout).ok()?;
        let element = |at: usize| {
            let (row, column) =
                if by_rows { (at / fast, at % fast) } else { (at % fast, at / fast) };
            let place = fragment.place(Element2 { n: row as u32, k: column as u32 });
            let [position, register, lane] = place[..] else { return None };
            Some(Spot { register: register as u8, lane: lane as u8, position: position as u8 })
        };
        (0..fast * slow).map(element).collect::<Option<Vec<Spot>>>()
    };
    Some(Spots {
        rows,
        a: read(op.a_layout, k, rows, true)?,
        b: if op.b_layout.is_empty() { Vec::new() } else { read(op.b_layout, n, k, false)? },
        d: read(op.d_layout, n, rows, true)?,
        scales: match op.scaling {
            Some(scaling) => {
                let columns = scaling.columns as usize;
                let spots = read(scaling.layout, k / columns, m.max(n), true)?;
                Some(Scales { columns, lanes: spots.iter().map(|spot| spot.lane).collect() })
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
        Element::S8 => f64::from(bits as u8 as i8),
        Element::F32 => f64::from(f32::from_bits(bits)),
        Element::S32 => f64::from(bits as i32),
    }
}

/// A warp-group operation in flight.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) point: u32,
    op: &'static MatrixOp,
    d: Box<[Slot]>,
    a: Held,
    b: Vec<(u32, u32)>,
    adds: bool,
    /// Commits before it.
    group: u32,
}

/// An operand in flight: registers, or pieces of shared memory: start and bytes, row by row.
#[derive(Debug)]
enum Held {
    Slots(Box<[Slot]>),
    Pieces(Vec<(u32, u32)>),
}

impl Product {
    /// Whether it writes or reads a slot.
    pub(super) fn uses(&self, slot: Slot) -> bool {
        self.d.contains(&slot) || matches!(&self.a, Held::Slots(slots) if slots.contains(&slot))
    }
}

impl<const L: usize> Warp<L> {
    /// A matrix operation: done at once in warp scope, started in warp-group scope.
    pub(super) fn matrix(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (op, d): (&'static MatrixOp, &[Slot]),
        (a, b): (&Source, &Source),
        (c, scales): (Option<&[Slot]>, Option<[ScaleAt; 2]>),
    ) -> Exec {
        self.converged()?;
        let Some(spots) = spots(op) else {
            return fail(FaultKind::Unsupported("a matrix instruction without readable layouts"));
        };
        if op.scope == MatrixScope::WarpGroup {
            return self.start_product(world, point, op, (d, a, b, c.is_some()));
        }
        let (Source::Slots(a), Source::Slots(b)) = (a, b) else {
            return fail(FaultKind::Unsupported("a warp's matrix operand in shared memory"));
        };
        let mut a = self.operand(world, op.a, a, &spots.a)?;
        let mut b = self.operand(world, op.b, b, &spots.b)?;
        if let (Some([of_a, of_b]), Some(layout)) = (scales, &spots.scales) {
            let [_, n, k] = op.shape.map(|extent| extent as usize);
            let (of_a, of_b) =
                (self.scales(world, of_a, layout)?, self.scales(world, of_b, layout)?);
            let blocks = k / layout.columns;
            for (at, a) in a.iter_mut().enumerate() {
                *a *= of_a[at / k * blocks + at % k / layout.columns];
            }
            for (at, b) in b.iter_mut().enumerate() {
                *b *= of_b[at % n * blocks + at / n / layout.columns];
            }
        }
        let c = match c {
            Some(c) => Some(self.rows(world, c)?),
            None => None,
        };
        let d_rows = multiply(op, spots, (&a, &b), c.as_deref(), world.set.options.truncate_fp8);
        for (&slot, row) in d.iter().zip(d_rows) {
            self.write(world, slot, row)?;
        }
        Ok(())
    }

    fn rows(&mut self, world: &World<'_, '_>, slots: &[Slot]) -> Exec<Vec<Row<L>>> {
        slots.iter().map(|&slot| self.read(world, slot, Self::FULL)).collect()
    }

    /// The scales of an operand, in the order of the layout.
    fn scales(
        &mut self,
        world: &World<'_, '_>,
        (slot, byte): ScaleAt,
        layout: &Scales,
    ) -> Exec<Vec<f64>> {
        let row = self.read(world, slot, Self::FULL)?;
        let scale = |&lane: &u8| Number::E8m0.decode(row[usize::from(lane)] >> (8 * byte) & 0xff);
        Ok(layout.lanes.iter().map(scale).collect())
    }

    fn operand(
        &mut self,
        world: &World<'_, '_>,
        element: Element,
        slots: &[Slot],
        spots: &[Spot],
    ) -> Exec<Vec<f64>> {
        let rows = self.rows(world, slots)?;
        Ok(gather(element, &rows, spots))
    }

    fn start_product(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        op: &'static MatrixOp,
        (d, a, b, adds): (&[Slot], &Source, &Source, bool),
    ) -> Exec {
        let [_, n, k] = op.shape;
        for &slot in d {
            let marks = self.marks[slot as usize];
            if marks & PRODUCED == 0 {
                self.fresh(world, slot)?;
                if adds {
                    self.read(world, slot, Self::FULL)?;
                }
            } else if !self.products.iter().any(|old| *old.d == *d && old.op.d == op.d) {
                self.read(world, slot, Self::FULL)?;
            }
        }
        let a = match a {
            Source::Slots(slots) => {
                for &slot in slots {
                    self.fresh(world, slot)?;
                    self.read(world, slot, Self::FULL)?;
                    self.marks[slot as usize] |= MULTIPLIED;
                }
                Held::Slots(slots.clone())
            }
            Source::Tile(tile) => {
                let first = 16 * (self.number % 4);
                let bytes = k * op.a.bits() / 8;
                Held::Pieces(self.hold(world, point, tile, (first, first + 16), bytes)?)
            }
        };
        let Source::Tile(tile) = b else {
            return fail(FaultKind::Unsupported("a warp group's B from registers"));
        };
        let b = self.hold(world, point, tile, (0, n), k * op.b.bits() / 8)?;
        for &slot in d {
            self.spoil(slot, Self::FULL);
            self.marks[slot as usize] |= PRODUCED;
        }
        let (d, group) = (d.into(), self.product_group);
        self.products.push(Product { point, op, d, a, b, adds, group });
        self.trail(point);
        Ok(())
    }

    /// Fails if the slot was written since the last matrix fence.
    fn fresh(&self, world: &World<'_, '_>, slot: Slot) -> Exec {
        match self.marks[slot as usize] & CHANGED {
            0 => Ok(()),
            _ => fail(FaultKind::MissingMatrixFence(world.slot_name(slot))),
        }
    }

    /// Notes a warp-group operation; the warps of a group must make the same ones.
    fn trail(&mut self, point: u32) {
        self.group_trail =
            self.group_trail.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(point) + 1);
    }

    /// The 16-byte pieces of rows of a tile in shared memory, which the operation reads from now on.
    fn hold(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        tile: &TileAt,
        (first, last): (u32, u32),
        bytes: u32,
    ) -> Exec<Vec<(u32, u32)>> {
        let index = self.read(world, tile.at.index, Self::FULL)?;
        let Array::Shared(owner) = tile.at.array else {
            return fail(FaultKind::Unsupported("a matrix operand in global memory"));
        };
        let (block, len) = world.blocks[self.block].shared.blocks[owner as usize];
        let start = u64::from(block)
            + (u64::from(index[0]) + u64::from(tile.at.offset)) * u64::from(tile.at.word);
        let pitch = match tile.swizzle {
            crate::ir::Swizzle::None => 16,
            crate::ir::Swizzle::B32 => 32,
            crate::ir::Swizzle::B64 => 64,
            crate::ir::Swizzle::B128 => 128,
        };
        let mut pieces = Vec::new();
        for row in first..last {
            for byte in (0..bytes).step_by(16) {
                let along = match pitch {
                    16 => byte / 16 * tile.leading,
                    _ => byte,
                };
                let plain = start + u64::from(row / 8 * tile.stride + row % 8 * pitch + along);
                let at = u64::from(tile.swizzle.apply(plain as u32));
                if at < u64::from(block) || at + 16 > u64::from(block) + u64::from(len) {
                    let place = world.place(tile.at.array, at);
                    let words = u64::from(len / tile.at.word);
                    return fail(FaultKind::OutOfBounds { place, words });
                }
                if !at.is_multiple_of(16) {
                    let place = world.place(tile.at.array, at);
                    return fail(FaultKind::Misaligned { place, byte: at, align: 16 });
                }
                let piece = (at as u32, 16);
                let lane = usize::from(ALL_LANES);
                self.start_async_read(world, point, (tile.at.array, owner), lane, piece)?;
                pieces.push(piece);
            }
        }
        Ok(pieces)
    }

    pub(super) fn matrix_fence(&mut self, point: u32) {
        for mark in &mut self.marks {
            *mark &= !CHANGED;
        }
        self.trail(point);
    }

    pub(super) fn matrix_commit(&mut self, point: u32) {
        self.product_group += 1;
        self.trail(point);
    }

    /// Computes the products that the wait covers, in their order.
    pub(super) fn matrix_wait(&mut self, world: &mut World<'_, '_>, point: u32, pending: u32) {
        self.trail(point);
        let limit = self.product_group.saturating_sub(pending);
        let all = std::mem::take(&mut self.products);
        let (landing, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|product| product.group < limit);
        for product in landing {
            self.land_product(world, &product);
        }
        self.products = rest;
        let mut still = vec![0u8; self.marks.len()];
        let mut poisoned = Vec::new();
        for product in &self.products {
            for &slot in &product.d {
                still[slot as usize] |= PRODUCED;
            }
            if let Held::Slots(slots) = &product.a {
                for &slot in slots {
                    still[slot as usize] |= MULTIPLIED;
                }
            }
        }
        for (slot, (mark, still)) in self.marks.iter_mut().zip(&still).enumerate() {
            *mark = (*mark & !(PRODUCED | MULTIPLIED)) | still;
            if still & PRODUCED != 0 {
                poisoned.push(slot as Slot);
            }
        }
        for slot in poisoned {
            self.spoil(slot, Self::FULL);
        }
    }

    fn land_product(&mut self, world: &mut World<'_, '_>, product: &Product) {
        let op = product.op;
        let Some(spots) = spots(op) else { return };
        let bytes = |world: &mut World<'_, '_>, pieces: &[(u32, u32)]| {
            let mut all = Vec::new();
            for &(start, len) in pieces {
                let shared = &mut world.blocks[self.block].shared;
                all.extend_from_slice(&shared.bytes[start as usize..(start + len) as usize]);
                shared.end_read(&self.observer(product.point), ALL_LANES, (start, len));
            }
            all
        };
        let a = match &product.a {
            Held::Slots(slots) => {
                let rows: Vec<Row<L>> = slots.iter().map(|&slot| *self.row(slot)).collect();
                gather(op.a, &rows, &spots.a)
            }
            Held::Pieces(pieces) => elements(op.a, &bytes(world, pieces)),
        };
        let [_, n, k] = op.shape.map(|extent| extent as usize);
        let by_column = elements(op.b, &bytes(world, &product.b));
        let b: Vec<f64> = (0..k * n).map(|at| by_column[at % n * k + at / n]).collect();
        let c: Option<Vec<Row<L>>> =
            product.adds.then(|| product.d.iter().map(|&slot| *self.row(slot)).collect());
        let rows = multiply(op, spots, (&a, &b), c.as_deref(), world.set.options.truncate_fp8);
        for (&slot, row) in product.d.iter().zip(rows) {
            self.arrive(slot, row);
        }
    }
}

/// Elements that follow one another in memory.
fn elements(element: Element, bytes: &[u8]) -> Vec<f64> {
    match element.bits() {
        8 => bytes.iter().map(|&byte| value(element, u32::from(byte))).collect(),
        _ => bytes
            .chunks_exact(2)
            .map(|pair| value(element, u32::from(u16::from_le_bytes([pair[0], pair[1]]))))
            .collect(),
    }
}

fn gather<const L: usize>(element: Element, rows: &[Row<L>], spots: &[Spot]) -> Vec<f64> {
    let bits = element.bits();
    let at = |spot: &Spot| {
        // An element may begin in a later register, and end in the one after.
        let first = bits * u32::from(spot.position);
        let word = |after: u32| {
            let register = u32::from(spot.register) + first / 32 + after;
            rows.get(register as usize).map_or(0, |row| row[usize::from(spot.lane)])
        };
        let after = if first % 32 + bits > 32 { word(1) } else { 0 };
        let both = u64::from(word(0)) | u64::from(after) << 32;
        value(element, (both >> (first % 32)) as u32)
    };
    spots.iter().map(at).collect()
}

/// d = a b + c for one warp: exact products, summed in f64 and rounded once; integers modulo 2^32.
fn multiply<const L: usize>(
    op: &MatrixOp,
    spots: &Spots,
    (a, b): (&[f64], &[f64]),
    c: Option<&[Row<L>]>,
    truncate_fp8: bool,
) -> Vec<Row<L>> {
    let [_, n, k] = op.shape.map(|extent| extent as usize);
    let mut d = vec![[0u32; L]; spots.d.len() / L];
    let fp8 = matches!(op.a, Element::E4m3 | Element::E4m3Fnuz)
        && op.d == Element::F32
        && op.scaling.is_none();
    let mut sums = vec![0f64; n];
    for row in 0..spots.rows {
        let a = &a[row * k..(row + 1) * k];
        let spots = &spots.d[row * n..(row + 1) * n];
        sums.fill(0.0);
        for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
        for (column, (spot, &sum)) in spots.iter().zip(&sums).enumerate() {
            let (register, lane) = (usize::from(spot.register), usize::from(spot.lane));
            let addend = c.map(|c| c[register][lane]);
            d[register][lane] = match op.d {
                // At most 2^14 k: exact in f64.
                Element::S32 => addend.unwrap_or(0).wrapping_add(sum as i64 as u32),
                _ => {
                    let c = addend.map_or(0.0, f32::from_bits);
                    let rounded = if fp8 && truncate_fp8 {
                        let products = a.iter().zip(b.chunks_exact(n)).map(|(a, b)| a * b[column]);
                        truncated(products, f64::from(c))
                    } else {
                        (sum + f64::from(c)) as f32
                    };
                    rounded.to_bits()
                }
            };
        }
    }
    d
}

/// A sum as Hopper and Ada may form it for FP8: every term cut to 13 bits below the largest one's
/// exponent, the sum cut to 13 bits below its own (DeepSeek-V3 technical report, 3.3.2: "about 14
/// bits").
fn truncated(products: impl Iterator<Item = f64> + Clone, c: f64) -> f32 {
    const FRACTION: i32 = 13;
    let exponent = |x: f64| ((x.to_bits() >> 52 & 0x7ff) as i32) - 1023;
    let terms = products.chain([c]);
    if !terms.clone().all(f64::is_finite) {
        return terms.sum::<f64>() as f32;
    }
    let cut = |x: f64, top: i32| {
        let unit = 2f64.powi(top - FRACTION);
        (x / unit).trunc() * unit
    };
    let Some(top) = terms.clone().filter(|&x| x != 0.0).map(exponent).max() else { return 0.0 };
    let sum: f64 = terms.map(|term| cut(term, top)).sum();
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
        let spots = spots(op).expect("layouts");
        let d: Vec<Row<32>> = multiply(op, spots, (&a, &b), Some(&c), truncate);
        let spot = spots.d[0];
        f32::from_bits(d[usize::from(spot.register)][usize::from(spot.lane)])
    }

    /// Sums are exact until the one rounding at the end.
    #[test]
    fn a_product_rounds_once() {
        let big = 2f64.powi(30);
        assert_eq!(first("mma.m16n8k16.bf16", &[big, 1.0, -big], 0.5, false), 1.5);
        // 2^24 + 1 is a tie of f32, which the addend decides.
        let tie = [2f64.powi(24), 1.0];
        assert_eq!(first("mma.m16n8k16.f16", &tie, 0.0, false), 16_777_216.0);
        assert_eq!(first("mma.m16n8k16.f16", &tie, 1e-6, false), 16_777_218.0);
    }

    /// FP8 sums that are cut: what lies 14 bits below the largest term is lost, towards 0.
    #[test]
    fn truncated_fp8_sums_lose_small_terms() {
        let name = "mma.m16n8k32.e4m3";
        let terms = [256.0, 2f64.powi(-6), 2f64.powi(-6), -(2f64.powi(-6))];
        assert_eq!(first(name, &terms, 0.0, false), 256.0 + 2f32.powi(-6));
        assert_eq!(first(name, &terms, 0.0, true), 256.0);
        // 13 bits below is kept.
        assert_eq!(first(name, &[256.0, 2f64.powi(-5)], 0.0, true), 256.0 + 2f32.powi(-5));
        // The addend is cut like a term.
        assert_eq!(first(name, &[1.0], 65536.0, true), 65536.0);
        assert_eq!(first(name, &[1.0], -8192.0, true), -8191.0);
    }

    /// Every row's layouts place each element of A, B and D once.
    #[test]
    fn every_row_has_spots() {
        for op in MATRIX_OPS {
            let spots = spots(op).unwrap_or_else(|| panic!("{}", op.name));
            for list in [&spots.a, &spots.b, &spots.d] {
                let mut places: Vec<_> =
                    list.iter().map(|spot| (spot.register, spot.lane, spot.position)).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), list.len(), "{}", op.name);
            }
        }
    }
}
