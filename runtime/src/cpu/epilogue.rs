//! The epilogue of some panels: correction, scales per row and per token, bias, conversion to the
//! type of y.
//!
//! In: the sums of panels over all of K. Out: their columns of y, each written by the one thread
//! that owns the panel.

use std::marker::PhantomData;
use std::ops::Range;

use super::blocking::FUSED_PANELS;
use super::isa::Vectorised;
use super::kernels::Groups;
use super::native::{PANEL, Rows};
use super::product::CpuProduct;
use super::tile::each;
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

    /// A panel's columns of y; `None` if y has none of them.
    #[inline(always)]
    fn columns(&self, panel: usize) -> Option<PanelColumns<'_>> {
        let first = panel.wrapping_sub(self.panel).saturating_mul(PANEL);
        let count = PANEL.min(self.n.checked_sub(first)?);
        let first = self.row * self.n + first;
        let Self { target, n, tokens, .. } = *self;
        Some(PanelColumns { target, first, n, count, tokens, borrow: PhantomData })
    }

    /// Writes a panel's columns of a token; columns outside of y are skipped.
    #[inline(always)]
    pub(super) fn store(&self, token: usize, panel: usize, values: &[f32; PANEL]) {
        if let Some(columns) = self.columns(panel) {
            columns.store(token, values);
        }
    }
}

/// A panel's columns of y, written by one thread.
#[derive(Clone, Copy)]
struct PanelColumns<'y> {
    target: OutputPointer,
    /// The element of token 0 in the first column.
    first: usize,
    /// Row length N, columns, and tokens.
    n: usize,
    count: usize,
    tokens: usize,
    borrow: PhantomData<&'y mut ()>,
}

impl PanelColumns<'_> {
    /// Writes those of a token; a token that y does not have is skipped.
    #[inline(always)]
    fn store(&self, token: usize, values: &[f32; PANEL]) {
        if token >= self.tokens {
            return;
        }
        let (at, count) = (self.first + token * self.n, self.count);
        // SAFETY: `first` is that of a row of an [`OutputWriter`] which has `tokens` rows of `n` elements from that one on, inside of the memory that `new`
        // has checked, and `count` columns are left in each; the elements are initialised, and no other thread accesses them: see `Sync` above.
        unsafe {
            match self.target {
                OutputPointer::F32(y) => place(y.add(at), count, values, |value| value),
                OutputPointer::F16(y) => {
                    place(y.add(at), count, values, |value| f16::from_bits(f32_to_f16(value)));
                }
                OutputPointer::Bf16(y) => {
                    place(y.add(at), count, values, |value| bf16::from_bits(f32_to_bf16(value)));
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

/// The epilogue of some panels. The loop over panels is inside of the loop over tokens, a few at a time, since the
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
        let (weight, expert) = (self.product.weight, self.product.expert);
        // The last panel also stands for those that the range does not have.
        let panel = |p: usize| (self.range.start + p).min(self.range.end - 1);
        let panels: Panels<'_> = std::array::from_fn(|p| PanelParameters {
            rows: weight.rows_of(expert, panel(p)),
            groups: weight.groups_of(expert, panel(p)),
            columns: self.output.columns(panel(p)),
        });
        for tile in self.product.blocking.tiles() {
            match tile.size % 4 {
                0 => self.tile::<V, 4>(tile, &panels),
                2 => self.tile::<V, 2>(tile, &panels),
                _ => self.tile::<V, 1>(tile, &panels),
            }
        }
    }
}

/// What an epilogue needs of its panels, looked up once for all tiles of tokens.
type Panels<'a> = [PanelParameters<'a>; FUSED_PANELS];

/// What an epilogue needs of a panel.
struct PanelParameters<'a> {
    rows: Rows<'a>,
    groups: Groups<'a>,
    /// Where its columns of y are, if y has any.
    columns: Option<PanelColumns<'a>>,
}

impl Epilogue<'_, '_> {
    /// The tokens of a tile, T side by side: a row of w is read once for them, and their chains of additions do not wait
    /// for one another.
    #[inline(always)]
    fn tile<V: Vector, const T: usize>(&self, tile: Tile, panels: &Panels<'_>) {
        let Self { product, range, sums, apart, .. } = self;
        let (weight, blocking) = (product.weight, &product.blocking);
        for first in (0..tile.size.min(blocking.tokens.saturating_sub(tile.first))).step_by(T) {
            let token = tile.first + first;
            let mut of_x = [V::splat(1.0f32.to_bits()); T];
            if let Tokens::Codes { scales, .. } = product.tokens
                && !blocking.grouped_x
            {
                let scales = &scales[token..][..T];
                each!(m in T {
                    of_x[m] = V::splat(scales[m].to_bits());
                });
            }
            for (p, panel) in panels.iter().take(range.len()).enumerate() {
                let PanelParameters { rows, groups, columns } = panel;
                let Some(columns) = columns else { continue };
                let mut of_tokens = [V::splat(0); T];
                each!(m in T {
                    of_tokens[m] = V::load_f32(&sums[(token + m) * apart.0 + p * apart.1]);
                });
                if let Tokens::Codes { sums: x_sums, zeros, .. } = product.tokens {
                    let tokens = (first, tile.size);
                    if let Some(add) = groups.add {
                        let (count, columns) =
                            (blocking.segments, (blocking.segment, weight.group()));
                        let numbers = &x_sums[tile.first * count..];
                        let terms = Terms { rows: add, columns, count, numbers, tokens };
                        of_tokens = terms.add::<V, T>(of_tokens);
                    }
                    let count = rows.sums.len();
                    let numbers = &zeros[tile.first * count..];
                    let terms = Terms { rows: rows.sums, columns: (1, 1), count, numbers, tokens };
                    of_tokens = terms.add::<V, T>(of_tokens);
                }
                let factor = V::load_f32(rows.factor);
                each!(m in T {
                    let mut value = of_tokens[m].mul_f32(factor.mul_f32(of_x[m]));
                    if let Some(bias) = rows.bias {
                        value = value.add_f32(V::load_f32(bias));
                    }
                    let mut values = [0.0; PANEL];
                    value.store_f32(&mut values);
                    columns.store(token + m, &values);
                });
            }
        }
    }
}

/// Terms of sums: for each of `count` numbers of a token, its product with a row.
struct Terms<'a> {
    /// 16 rows of w each.
    rows: &'a [[f32; 16]],
    /// Columns of a number, and those of a row.
    columns: (usize, usize),
    count: usize,
    /// `[number][token]`, of a tile.
    numbers: &'a [f32],
    /// The first token, and those of the tile.
    tokens: (usize, usize),
}

impl Terms<'_> {
    /// Adds the terms to the sums of T tokens.
    #[inline(always)]
    fn add<V: Vector, const T: usize>(&self, mut sums: [V; T]) -> [V; T] {
        let (first, size) = self.tokens;
        for at in 0..self.count {
            let numbers = &self.numbers[at * size + first..][..T];
            let row = V::load_f32(self.row(at));
            each!(m in T {
                sums[m] = row.fma_f32(V::splat(numbers[m].to_bits()), sums[m]);
            });
        }
        sums
    }

    /// The row of a number.
    #[inline(always)]
    fn row(&self, at: usize) -> &[f32; 16] {
        let (of_number, of_row) = self.columns;
        &self.rows[if of_number == of_row { at } else { at * of_number / of_row }]
    }
}
