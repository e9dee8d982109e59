//! Packed activations as kernels read them: tiles of a few tokens, columns slowest, one stream.
//!
//! In: rows of x (`f32`, or signed 8-bit codes). Out: `[tile][column][token]` for `f32` and
//! `[tile][step of 4 columns][token]` words of four codes for integers, the sums over each segment,
//! and the initial values of integer sums. Unpacked rows of x would be as many streams as tokens, a
//! power of two apart, which conflict in the same sets of L1.

/// A tile of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Its first token, which is also the number of (padded) tokens of all tiles before it.
    pub first: usize,
    /// Tokens of the tile: 1, 2, 4, 6, 8, 12 or 16; tokens beyond M are zeros.
    pub size: usize,
}

/// The tiles of `tokens` tokens: as many of the largest size as are full, then the smallest size
/// for the rest.
pub fn tiles(tokens: usize, largest: usize) -> impl Iterator<Item = Tile> {
    let whole = tokens / largest;
    let (rest, size) = last(tokens, largest);
    let last = (rest > 0).then_some(Tile { first: whole * largest, size });
    (0..whole).map(move |tile| Tile { first: tile * largest, size: largest }).chain(last)
}

/// Tokens beyond full tiles, and the size of their tile.
fn last(tokens: usize, largest: usize) -> (usize, usize) {
    let rest = tokens % largest;
    let size = [1, 2, 4, 8, 12].into_iter().find(|size| *size >= rest).unwrap_or(largest);
    (rest, size.min(largest))
}

/// Tokens of all tiles, padding included; [`usize::MAX`] if there are more.
pub fn padded(tokens: usize, largest: usize) -> usize {
    match last(tokens, largest) {
        (0, _) => tokens,
        (rest, size) => (tokens - rest).saturating_add(size),
    }
}

/// The packed tokens.
#[derive(Clone, Copy, Debug)]
pub enum Tokens<'a> {
    /// For [`Path::Dot`](super::native::Path).
    Codes {
        /// `[tile][step][token]` words of four codes.
        x: &'a [u32],
        /// `[tile][segment][token]`.
        starts: &'a [i32],
        /// `[tile][segment][token]`: the sum of the codes of x, times their scale if that is one of the
        /// segment.
        sums: &'a [f32],
        /// `[token]`: scale of x; `[tile][segment][token]` if each segment has one.
        scales: &'a [f32],
        /// `[tile][group of x][token]`: the negative zero point of x, times its scale if groups have scales of their own;
        /// empty if there is none.
        zeros: &'a [f32],
    },
    /// For [`Path::Fma`](super::native::Path).
    Values {
        /// `[tile][column][token]`.
        x: &'a [f32],
        /// `[tile][segment][token]`, if the weight has a correction per group; else empty.
        sums: &'a [f32],
    },
    /// For [`Instruction::SplitBf16`](super::blocking::Instruction), and, in one part,
    /// [`Instruction::Bf16Dot`](super::blocking::Instruction).
    SplitBf16 {
        /// `[tile][step][part][token][column]`: bf16.
        x: &'a [u16],
        /// `[tile][segment][token]`: sums of x, if groups have a correction that multiplies them; else
        /// unspecified.
        sums: &'a [f32],
    },
}
/// The columns of a product in native order.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// Columns of x.
    pub given: usize,
    /// Native columns, a multiple of 32.
    pub native: usize,
    /// The column of x that each native column multiplies ([`NO_COLUMN`](crate::gpu::NO_COLUMN): none); `None` if they are
    /// the same, with padding after the columns of x.
    pub order: Option<&'a [u32]>,
}

impl Columns<'_> {
    /// Permutes a row into native order; `fill` for native columns without a column.
    pub fn gather<T: Copy>(self, row: &[T], fill: T, out: &mut [T]) {
        match self.order {
            None => {
                let (given, rest) = out.split_at_mut(row.len().min(out.len()));
                given.copy_from_slice(&row[..given.len()]);
                rest.fill(fill);
            }
            Some(order) => {
                for (out, column) in out.iter_mut().zip(order) {
                    *out = row.get(*column as usize).copied().unwrap_or(fill);
                }
            }
        }
    }
}

/// Stores one token's codes, in native order, in the words of a tile: `columns` codes of each token side by
/// side, which are 4, 8 or 64.
#[inline(always)]
pub fn place_codes(row: &[i8], token: usize, size: usize, columns: usize, out: &mut [u32]) {
    // Lengths that the compiler knows: a copy of one word is not a call.
    match columns / 4 {
        1 => place_words::<1>(row, token, size, out),
        2 => place_words::<2>(row, token, size, out),
        16 => place_words::<16>(row, token, size, out),
        words => unreachable!("no tile has steps of {words} words"),
    }
}

#[inline(always)]
fn place_words<const W: usize>(row: &[i8], token: usize, size: usize, out: &mut [u32]) {
    let word = |[a, b, c, d]: [i8; 4]| u32::from_le_bytes([a as u8, b as u8, c as u8, d as u8]);
    let (steps, rest) = row.as_chunks::<4>().0.as_chunks::<W>();
    debug_assert!(rest.is_empty(), "native columns are whole steps");
    let places = out.as_chunks_mut::<W>().0.iter_mut().skip(token).step_by(size);
    for (place, step) in places.zip(steps) {
        // Not `map`, which would be a call for each step.
        for (place, codes) in place.iter_mut().zip(step) {
            *place = word(*codes);
        }
    }
}

/// Stores one token's values, in native order, in a tile.
pub fn place_values(row: &[f32], token: usize, size: usize, out: &mut [f32]) {
    for (out, value) in out[token..].iter_mut().step_by(size).zip(row) {
        *out = *value;
    }
}

/// Sums of a row over segments: exact for codes, correctly rounded from `f64` for values.
pub fn segment_sums_i32(row: &[i8], segment: usize) -> impl Iterator<Item = i32> {
    row.chunks(segment).map(|codes| codes.iter().map(|code| i32::from(*code)).sum())
}

/// See [`segment_sums_i32`].
pub fn segment_sums_f32(row: &[f32], segment: usize) -> impl Iterator<Item = f32> {
    row.chunks(segment)
        .map(|values| values.iter().map(|value| f64::from(*value)).sum::<f64>() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_token_once() {
        for largest in [1, 2, 4, 6, 8, 12] {
            for tokens in 0..60 {
                let mut next = 0;
                for tile in tiles(tokens, largest) {
                    assert_eq!(tile.first, next);
                    assert!(tile.size <= largest && [1, 2, 4, 6, 8, 12].contains(&tile.size));
                    next += tile.size;
                }
                assert!(next >= tokens && next < tokens + largest.max(4), "{tokens} {largest}");
                assert_eq!(padded(tokens, largest), next);
            }
        }
    }
}
