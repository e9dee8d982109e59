//! The epilogue of some panels: correction, scales per row and per token, bias, conversion to the
//! type of y.
//!
//! In: the sums of panels over all of K. Out: their columns of y, each written by the one thread
//! that owns the panel.

use std::marker::PhantomData;
use std::ops::Range;

use super::blocking::{Blocking, FUSED_PANELS};
use super::isa::Vectorised;
use super::kernels::Groups;
use super::native::{PANEL, Rows};
use super::product::CpuProduct;
use super::tokens::{Tile, Tokens};
use super::vector::Vector;
use crate::element::{ValuesMut, bf16, f16, f32_to_bf16, f32_to_f16};

/// y [M, N], written by several threads, each its own columns.
#[derive(Clone, Copy)]
enum OutputPointer {
    F32(*mut f32),
    F16(*mut f16),
    Bf16(*mut bf16),
}

/// The memory of y, borrowed while it is written.
pub(super) struct OutputWriter<'y> {
    target: OutputPointer,
    /// Row length N; rows.
    n: usize,
    tokens: usize,
    /// The row of token 0, and the panel of column 0.
    row: usize,
    panel: usize,
    borrow: PhantomData<&'y mut ()>,
}

// SAFETY: the pointer is that of an exclusive borrow, which this value holds, and `store` is called
// for each (token, column) only by the thread that owns the panel.
unsafe impl Sync for OutputWriter<'_> {}

impl<'y> OutputWriter<'y> {
    /// y [tokens, n]; `None` if the length differs.
    pub(super) fn new(y: &'y mut ValuesMut<'_>, n: usize, tokens: usize) -> Option<Self> {
        if y.len() != tokens * n {
            return None;
        }
        let target = match y {
            ValuesMut::F32(y) => OutputPointer::F32(y.as_mut_ptr()),
            ValuesMut::F16(y) => OutputPointer::F16(y.as_mut_ptr()),
            ValuesMut::Bf16(y) => OutputPointer::Bf16(y.as_mut_ptr()),
        };
        Some(Self { target, n, tokens, row: 0, panel: 0, borrow: PhantomData })
    }

    /// A memory [tokens, n] for the columns of the panels from `panel` on.
    pub(super) fn of_panels(
        memory: &'y mut [f32],
        panel: usize,
        n: usize,
        tokens: usize,
    ) -> Option<Self> {
        if memory.len() != tokens * n {
            return None;
        }
        let target = OutputPointer::F32(memory.as_mut_ptr());
        Some(Self { target, n, tokens, row: 0, panel, borrow: PhantomData })
    }

    /// Rows `first..first + tokens` of y.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn rows(&self, first: usize, tokens: usize) -> OutputWriter<'_> {
        assert!(first + tokens <= self.tokens, "rows of y");
        OutputWriter { tokens, row: self.row + first, borrow: PhantomData, ..*self }
    }

    /// Writes a panel's columns of a token; columns outside of y are skipped.
    #[inline(always)]
    pub(super) fn store(&self, token: usize, panel: usize, values: &[f32; PANEL]) {
        let first = panel.wrapping_sub(self.panel).saturating_mul(PANEL);
        if token >= self.tokens || first >= self.n {
            return;
        }
        let columns = PANEL.min(self.n - first);
        let at = (self.row + token) * self.n + first;
        // SAFETY: `at + columns` is at most the number of rows times n, the length that `new` has
        // checked (`rows` keeps its rows inside); the elements are initialised, and no other thread
        // accesses them: see `Sync` above.
        unsafe {
            match self.target {
                OutputPointer::F32(y) => place(y.add(at), columns, values, |value| value),
                OutputPointer::F16(y) => {
                    place(y.add(at), columns, values, |value| f16::from_bits(f32_to_f16(value)));
                }
                OutputPointer::Bf16(y) => {
                    place(y.add(at), columns, values, |value| bf16::from_bits(f32_to_bf16(value)));
                }
            }
        }
    }
}

/// Converts values to the first `columns` elements at `y`.
///
/// # Safety
/// `y` points to `columns` initialised elements, which nothing else accesses.
#[inline(always)]
unsafe fn place<T: Copy>(
    y: *mut T,
    columns: usize,
    values: &[f32; PANEL],
    convert: impl Fn(f32) -> T,
) {
    // SAFETY: the caller's contract.
    let y = unsafe { std::slice::from_raw_parts_mut(y, columns) };
    // A whole panel has a constant length, which compiles to a few vectors.
    match <&mut [T; PANEL]>::try_from(&mut *y) {
        Ok(y) => y.iter_mut().zip(values).for_each(|(y, value)| *y = convert(*value)),
        Err(_) => y.iter_mut().zip(values).for_each(|(y, value)| *y = convert(*value)),
    }
}
/// The epilogue of some panels. The loop over panels is inside of the loop over tokens, since the
/// panels of a token are adjacent in y, and the next token is a row of y away.
pub(super) struct Epilogue<'a, 'b> {
    pub(super) product: &'a CpuProduct<'b>,
    /// The panels: one or more, at most [`FUSED_PANELS`].
    pub(super) range: Range<usize>,
    pub(super) sums: &'a [[f32; 16]],
    /// Strides in `sums`: of tokens, and of panels.
    pub(super) apart: (usize, usize),
    pub(super) output: &'a OutputWriter<'a>,
}

impl Vectorised for Epilogue<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { product, range, sums, apart, output } = self;
        let of = |p: usize| (range.start + p).min(range.end - 1);
        let rows: [Rows<'_>; FUSED_PANELS] =
            std::array::from_fn(|p| product.weight.rows_of(product.expert, of(p)));
        let groups: [Groups<'_>; FUSED_PANELS] =
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
                        sum = subtract_zero_points(rows.sums, zeros, tile, m, sum);
                        if !product.blocking.grouped_x {
                            factor = factor.mul_f32(V::splat(scales[token].to_bits()));
                        }
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

/// `sum - zero[g] * sum of w over g`, for one token and the groups of x.
#[inline(always)]
fn subtract_zero_points<V: Vector>(
    sums: &[[f32; 16]],
    zeros: &[f32],
    tile: Tile,
    m: usize,
    mut sum: V,
) -> V {
    for (at, of_group) in sums.iter().enumerate() {
        let zero = zeros[tile.first * sums.len() + at * tile.size + m];
        sum = V::load_f32(of_group).fma_f32(V::splat((-zero).to_bits()), sum);
    }
    sum
}

impl CpuProduct<'_> {
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
        let Blocking { segment, segments, .. } = self.blocking;
        for at in 0..segments {
            let x_sum = x_sums[tile.first * segments + at * tile.size + m];
            let add = V::load_f32(&add[at * segment / self.weight.group()]);
            sum = add.fma_f32(V::splat(x_sum.to_bits()), sum);
        }
        sum
    }
}
