//! Packers written from the formats' own descriptions: loops over codes and bits, no layout.

use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::PlainCodes;

/// Stored tensors by name.
pub(crate) type Tensors = Vec<(&'static str, Vec<u8>)>;

/// A layer's codes as the packers below read them; 0 beyond the edges.
pub(crate) struct PlainLayer {
    e: usize,
    n: usize,
    k: usize,
    bits: usize,
    code: Vec<u32>,
    scale: Vec<u32>,
    zero: Vec<u32>,
}

impl PlainLayer {
    pub(crate) fn new(plain: &PlainCodes, bits: u32) -> Self {
        let of = |component| plain.of(component).to_vec();
        let Shape { experts, n, k } = plain.shape;
        Self {
            e: experts as usize,
            n: n as usize,
            k: k as usize,
            bits: bits as usize,
            code: of(Component::Code),
            scale: of(Component::Scale(0)),
            zero: of(Component::Zero),
        }
    }

    fn code(&self, e: usize, n: usize, k: usize) -> u32 {
        if n < self.n && k < self.k { self.code[(e * self.n + n) * self.k + k] } else { 0 }
    }

    fn groups(&self) -> usize {
        self.scale.len() / (self.e * self.n)
    }

    fn scale(&self, e: usize, n: usize, g: usize) -> u32 {
        if n < self.n { self.scale[(e * self.n + n) * self.groups() + g] } else { 0 }
    }

    fn zero(&self, e: usize, n: usize, g: usize) -> u32 {
        if n < self.n { self.zero[(e * self.n + n) * self.groups() + g] } else { 0 }
    }

    /// `scales[E, N, G]`.
    fn scales_ng(&self, bytes: usize) -> Vec<u8> {
        self.scale.iter().flat_map(|scale| scale.to_le_bytes()[..bytes].to_vec()).collect()
    }

    /// `scales[E, G, N]`.
    fn scales_gn(&self, bytes: usize) -> Vec<u8> {
        let (groups, n) = (self.groups(), self.n);
        grid(self.e, groups, n)
            .flat_map(|(e, g, n)| self.scale(e, n, g).to_le_bytes()[..bytes].to_vec())
            .collect()
    }
}

fn grid(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}

fn words(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.flat_map(u32::to_le_bytes).collect()
}

/// A word of whole codes, the first one lowest.
fn word(bits: usize, codes: impl Iterator<Item = u32>) -> u32 {
    codes.enumerate().fold(0, |word, (i, code)| word | code << (bits * i))
}

pub(crate) fn gptq(l: &PlainLayer) -> Tensors {
    let per = 32 / l.bits;
    let weight = grid(l.e, l.k.div_ceil(per), l.n)
        .map(|(e, row, n)| word(l.bits, (0..per).map(|i| l.code(e, n, row * per + i))));
    let zeros = grid(l.e, l.groups(), l.n.div_ceil(per))
        .map(|(e, g, col)| word(l.bits, (0..per).map(|i| l.zero(e, col * per + i, g))));
    vec![("qweight", words(weight)), ("qzeros", words(zeros)), ("scales", l.scales_gn(2))]
}

/// 32 codes are three words, one above the other.
pub(crate) fn gptq_3(l: &PlainLayer) -> Tensors {
    let rows = l.k.div_ceil(32) * 3;
    let mut weight = vec![0u32; l.e * rows * l.n];
    for (e, n, k) in grid(l.e, l.n, l.k) {
        for j in 0..3 {
            let bit = k % 32 * 3 + j;
            let row = k / 32 * 3 + bit / 32;
            weight[(e * rows + row) * l.n + n] |= (l.code(e, n, k) >> j & 1) << (bit % 32);
        }
    }
    vec![("qweight", words(weight.into_iter())), ("scales", l.scales_gn(2))]
}

pub(crate) fn awq(l: &PlainLayer) -> Tensors {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let cols = l.n.div_ceil(8);
    let weight = grid(l.e, l.k, cols)
        .map(|(e, k, col)| word(4, ORDER.iter().map(|i| l.code(e, col * 8 + i, k))));
    let zeros = grid(l.e, l.groups(), cols)
        .map(|(e, g, col)| word(4, ORDER.iter().map(|i| l.zero(e, col * 8 + i, g))));
    vec![("qweight", words(weight)), ("qzeros", words(zeros)), ("scales", l.scales_gn(2))]
}

/// Code i of a row at bit i * b of a little-endian stream, the row padded to a word.
pub(crate) fn dense(l: &PlainLayer) -> Tensors {
    let row = (l.k * l.bits).div_ceil(32) * 4;
    let mut weight = vec![0; l.e * l.n * row];
    for (e, n, k) in grid(l.e, l.n, l.k) {
        let bytes = &mut weight[(e * l.n + n) * row..][..row];
        stream(bytes, k * l.bits, l.bits, l.code(e, n, k));
    }
    let zeros = grid(l.e, l.n.div_ceil(8), l.groups())
        .map(|(e, row, g)| word(4, (0..8).map(|i| l.zero(e, row * 8 + i, g))));
    vec![
        ("weight_packed", weight),
        ("weight_zero_point", words(zeros)),
        ("weight_scale", l.scales_ng(2)),
    ]
}

fn stream(bytes: &mut [u8], first: usize, bits: usize, code: u32) {
    for j in 0..bits {
        bytes[(first + j) / 8] |= ((code >> j & 1) as u8) << ((first + j) % 8);
    }
}

pub(crate) fn aligned(l: &PlainLayer) -> Tensors {
    let per = 32 / l.bits;
    let weight = grid(l.e, l.n, l.k.div_ceil(per))
        .map(|(e, n, col)| word(l.bits, (0..per).map(|i| l.code(e, n, col * per + i))));
    vec![("weight_packed", words(weight)), ("weight_scale", l.scales_ng(2))]
}

pub(crate) fn int4_in_int8(l: &PlainLayer) -> Tensors {
    let weight = l.code.iter().map(|&code| if code < 8 { code as u8 } else { code as u8 | 0xf0 });
    vec![("weight", weight.collect()), ("weight_scale", l.scales_ng(4))]
}

fn row_of_nibbles(l: &PlainLayer, e: usize, n: usize) -> Vec<u8> {
    let pair = |byte| (l.code(e, n, 2 * byte) | l.code(e, n, 2 * byte + 1) << 4) as u8;
    (0..l.k.div_ceil(2)).map(pair).collect()
}

fn row_of_scales(l: &PlainLayer, e: usize, n: usize) -> Vec<u8> {
    (0..l.groups()).map(|g| l.scale(e, n, g) as u8).collect()
}

pub(crate) fn mxfp4(l: &PlainLayer) -> Tensors {
    let weight = grid(1, l.e, l.n).flat_map(|(_, e, n)| row_of_nibbles(l, e, n)).collect();
    vec![("weight", weight), ("weight_scale", l.scales_ng(1))]
}

pub(crate) fn fp6(l: &PlainLayer) -> Tensors {
    let four = |(e, n, q): (usize, usize, usize)| {
        let v = |i| l.code(e, n, 4 * q + i);
        (v(0) | v(1) << 6 | v(2) << 12 | v(3) << 18).to_le_bytes()[..3].to_vec()
    };
    let weight = grid(l.e, l.n, l.k.div_ceil(4)).flat_map(four).collect();
    vec![("weight", weight), ("weight_scale", l.scales_ng(1))]
}

/// All rows of gate, then all rows of up; `row(shard, row in shard, rows of a shard)`.
pub(crate) fn halves(l: &PlainLayer, row: fn(usize, usize, usize) -> usize) -> Tensors {
    let half = l.n.div_ceil(2);
    let rows = || grid(l.e, 2, half).map(|(e, shard, i)| (e, row(shard, i, half)));
    vec![
        ("weight", rows().flat_map(|(e, n)| row_of_nibbles(l, e, n)).collect()),
        ("weight_scale", rows().flat_map(|(e, n)| row_of_scales(l, e, n)).collect()),
    ]
}

pub(crate) fn interleaved(l: &PlainLayer) -> Tensors {
    let half = l.n.div_ceil(2);
    let rows = || grid(l.e, half, 2).map(|(e, i, shard)| (e, shard * half + i));
    vec![
        ("weight", rows().flat_map(|(e, n)| row_of_nibbles(l, e, n)).collect()),
        ("weight_scale", rows().flat_map(|(e, n)| row_of_scales(l, e, n)).collect()),
    ]
}

/// 25 bytes per 32 codes, first value in the top bits of each byte.
pub(crate) fn quark_fp6(l: &PlainLayer) -> Tensors {
    let mut bytes = Vec::new();
    for (e, n, g) in grid(l.e, l.n, l.k.div_ceil(32)) {
        bytes.push(l.scale(e, n, g) as u8);
        for four in 0..8 {
            let v = |i: usize| l.code(e, n, g * 32 + four * 4 + i);
            let (top, bottom) = (|i| v(i) >> 4, |i| v(i) & 15);
            bytes.push((top(0) << 6 | top(1) << 4 | top(2) << 2 | top(3)) as u8);
            bytes.push((bottom(0) << 4 | bottom(1)) as u8);
            bytes.push((bottom(2) << 4 | bottom(3)) as u8);
        }
    }
    vec![("weight", bytes)]
}

/// A scale, then 16 bytes: low nibbles are k 0..16, high nibbles k 16..32.
pub(crate) fn gguf(l: &PlainLayer) -> Tensors {
    let mut bytes = Vec::new();
    for (e, n, g) in grid(l.e, l.n, l.k.div_ceil(32)) {
        bytes.extend((l.scale(e, n, g) as u16).to_le_bytes());
        let byte = |i| l.code(e, n, g * 32 + i) | l.code(e, n, g * 32 + 16 + i) << 4;
        bytes.extend((0..16).map(|i| byte(i) as u8));
    }
    vec![("weight", bytes)]
}

pub(crate) fn planes(l: &PlainLayer) -> Tensors {
    let low = |(e, n, i)| (l.code(e, n, 2 * i) & 15 | (l.code(e, n, 2 * i + 1) & 15) << 4) as u8;
    let high = |(e, n, i)| {
        (0..4).fold(0, |byte, j| byte | (l.code(e, n, 4 * i + j) >> 4) << (2 * j)) as u8
    };
    vec![
        ("low", grid(l.e, l.n, l.k.div_ceil(2)).map(low).collect()),
        ("high", grid(l.e, l.n, l.k.div_ceil(4)).map(high).collect()),
        ("weight_scale", l.scales_ng(2)),
    ]
}

/// Six codes from the top bit down, two bits unused at the bottom.
pub(crate) fn msf_aligned(l: &PlainLayer) -> Tensors {
    let word = |(e, n, col)| (0..6).fold(0, |word, i| word << 5 | l.code(e, n, col * 6 + i)) << 2;
    let weight = grid(l.e, l.n, l.k.div_ceil(6)).map(word);
    vec![("weight", words(weight)), ("weight_scale", l.scales_ng(2))]
}

/// 32 codes as one bit string, top bit first, in five words.
pub(crate) fn msf_dense(l: &PlainLayer) -> Tensors {
    let mut weight = Vec::new();
    for (e, n, block) in grid(l.e, l.n, l.k.div_ceil(32)) {
        let mut string = Vec::new();
        for i in 0..32 {
            let code = l.code(e, n, block * 32 + i);
            string.extend((0..5).rev().map(|j| code >> j & 1));
        }
        weight.extend(string.chunks(32).map(|bits| bits.iter().fold(0, |w, bit| w << 1 | bit)));
    }
    vec![("weight", words(weight.into_iter())), ("weight_scale", l.scales_ng(2))]
}
