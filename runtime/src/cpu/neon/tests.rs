//! NEON's inner loops against scalar loops, exactly.
//!
//! All numbers are integers and powers of two small enough that `f32` sums are exact in any
//! order, so that every comparison is of equal bits.

use std::arch::is_aarch64_feature_detected;
use std::io::Write as _;

use super::{Base, Dot, I8mm, Neon, bf16};
use crate::cpu::blocking::Instruction;
use crate::cpu::native::{Bf16Code, Bf16Operand};
use crate::cpu::split_bf16;
use crate::cpu::tile::{DotBlock, DotTokens, TileSums};
use crate::cpu::vector::{Portable, Vector};

/// Whether the CPU has a feature; a line on the standard error tells that a test needs one that the
/// CPU lacks. `.ci/arm` looks for such lines on a CPU that has all features.
fn present(feature: &str, found: bool) -> bool {
    if !found {
        // Not `eprintln!`: the output of a test that passes is not shown.
        let _ = writeln!(std::io::stderr(), "skipped: the CPU lacks {feature}");
    }
    found
}

/// A linear congruential generator: the upper bits of its state.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// A whole number of so many bits, of either sign.
    fn whole(&mut self, bits: u32) -> f32 {
        let size = (self.next() % (1 << bits)) as f32;
        if self.next().is_multiple_of(2) { size } else { -size }
    }
}

/// The values of codes and x.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Any values.
    Random,
    /// The largest code times the smallest x, for which a sum of 16 bits would overflow.
    Least,
    /// The largest code times the largest x.
    Largest,
    /// The code 0 (which is -128 as a signed byte) times the smallest x.
    Zero,
}

const PANELS: usize = 1;

/// Steps of a segment, and of the block: a whole segment and a shorter one, half a chunk.
const SHAPES: [(usize, usize); 4] = [(8, 16), (16, 24), (32, 32), (4, 16)];

fn dot_tile<V: Vector, const M: usize, const NARROW: bool>(
    fill: Fill,
    (segment, steps): (usize, usize),
    grouped: bool,
) {
    let case = format!(
        "M {M}, narrow {NARROW}, {fill:?}, {steps} steps in segments of {segment}, x in groups {grouped}"
    );
    let mut random = Random(1);
    let most = if NARROW { 127 } else { 255 };
    let mut code = || match fill {
        Fill::Random => (random.next() % (most + 1)) as u8,
        Fill::Least | Fill::Largest => most as u8,
        Fill::Zero => 0,
    };
    let codes: Vec<[u8; 64]> = (0..steps).map(|_| std::array::from_fn(|_| code())).collect();
    let mut random = Random(2);
    let mut value = || match fill {
        Fill::Random => random.next() as i8,
        Fill::Least | Fill::Zero => i8::MIN,
        Fill::Largest => i8::MAX,
    };
    // [token][step][column]
    let x: Vec<Vec<[i8; 4]>> =
        (0..M).map(|_| (0..steps).map(|_| std::array::from_fn(|_| value())).collect()).collect();
    let segments = steps.div_ceil(segment);
    let mut random = Random(3);
    let starts: Vec<[i32; M]> =
        (0..segments).map(|_| std::array::from_fn(|_| random.next() as i32 % 4096)).collect();
    let scales: Vec<[[f32; 16]; PANELS]> = (0..segments)
        .map(|_| [std::array::from_fn(|_| [0.5, 1.0, -1.0][random.next() as usize % 3])])
        .collect();

    let x_scales: Vec<[f32; M]> = (0..segments)
        .map(|_| std::array::from_fn(|_| [2.0, 1.0, 0.0, -1.0][random.next() as usize % 4]))
        .collect();

    let mut expected = [[0.0f64; 16]; M];
    for (m, sums) in expected.iter_mut().enumerate() {
        for (row, sum) in sums.iter_mut().enumerate() {
            for at in 0..segments {
                let of_x = if grouped { f64::from(x_scales[at][m]) } else { 1.0 };
                let mut part = i64::from(starts[at][m]);
                for step in at * segment..((at + 1) * segment).min(steps) {
                    for column in 0..4 {
                        let code = i64::from(codes[step][4 * row + column]);
                        part += code * i64::from(x[m][step][column]);
                    }
                }
                *sum += f64::from(scales[at][0][row]) * of_x * part as f64;
            }
        }
    }

    let mut arranged = codes.clone();
    for chunk in arranged.as_chunks_mut::<8>().0 {
        let vectors = V::arrange(std::array::from_fn(|q| V::load(&chunk[q])));
        for (bytes, vector) in chunk.iter_mut().zip(vectors) {
            vector.store(bytes);
        }
    }
    let word = |m: usize, step: usize| u32::from_le_bytes(x[m][step].map(|byte| byte as u8));
    let words = V::TILING.dot_columns / 4;
    let flat: Vec<u32> = (0..steps / words)
        .flat_map(|run| (0..M).flat_map(move |m| (0..words).map(move |w| (m, run * words + w))))
        .map(|(m, step)| word(m, step))
        .collect();
    let codes = arranged.as_chunks::<PANELS>().0;
    let mut sums: TileSums<M, PANELS> = [[[0.0; 16]]; M];
    V::dot_tile::<M, PANELS, NARROW>(
        DotBlock { codes, segment, scales: &scales },
        DotTokens {
            x: flat.as_chunks::<M>().0,
            starts: &starts,
            scales: grouped.then_some(&x_scales[..]),
        },
        &mut sums,
    );
    for m in 0..M {
        for row in 0..16 {
            let (found, expected) = (sums[m][0][row], expected[m][row]);
            assert_eq!(f64::from(found), expected, "token {m}, row {row}: {case}");
        }
    }
}

fn dot_tiles<V: Vector>() {
    for shape in SHAPES {
        for fill in [Fill::Random, Fill::Least, Fill::Largest, Fill::Zero] {
            for grouped in [false, true] {
                dot_tile::<V, 1, true>(fill, shape, grouped);
                dot_tile::<V, 2, true>(fill, shape, grouped);
                dot_tile::<V, 4, true>(fill, shape, grouped);
                dot_tile::<V, 1, false>(fill, shape, grouped);
                dot_tile::<V, 2, false>(fill, shape, grouped);
                dot_tile::<V, 4, false>(fill, shape, grouped);
            }
        }
    }
}

fn fma_tile<V: Vector, const M: usize>() {
    let mut random = Random(4);
    let mut small = || (random.next() % 255) as f32 - 127.0;
    let weights: Vec<[[f32; 16]; PANELS]> =
        (0..37).map(|_| [std::array::from_fn(|_| small())]).collect();
    let x: Vec<[f32; M]> = (0..37).map(|_| std::array::from_fn(|_| small())).collect();
    let start: TileSums<M, PANELS> = std::array::from_fn(|_| [std::array::from_fn(|_| small())]);
    let mut sums = start;
    V::fma_tile(&weights, &x, &mut sums);
    for m in 0..M {
        for row in 0..16 {
            let products = weights.iter().zip(&x).map(|(weights, x)| weights[0][row] * x[m]);
            let expected = start[m][0][row] + products.sum::<f32>();
            assert_eq!(sums[m][0][row], expected, "token {m} of {M}, row {row}");
        }
    }
}

/// Rows of a panel by columns, and tokens, of whole numbers of so many bits.
fn operands(
    random: &mut Random,
    columns: usize,
    (of_rows, of_x): (u32, u32),
) -> (Vec<[f32; 16]>, [Vec<f32>; bf16::TOKENS]) {
    let rows = (0..columns).map(|_| std::array::from_fn(|_| random.whole(of_rows))).collect();
    let x = std::array::from_fn(|_| (0..columns).map(|_| random.whole(of_x)).collect());
    (rows, x)
}

/// The same in parts, as products read them.
fn in_parts(
    rows: &[[f32; 16]],
    x: &[Vec<f32>; bf16::TOKENS],
    (of_rows, of_x): (usize, usize),
) -> (Vec<[u8; 64]>, Vec<u16>) {
    let mut lines = vec![[0; 64]; split_bf16::lines(rows.len(), of_rows, bf16::PANELS)];
    bf16::cut(rows, of_rows, 0, &mut lines);
    let mut packed = vec![0; bf16::TOKENS * rows.len() * of_x];
    for (token, x) in x.iter().enumerate() {
        split_bf16::place(&mut x.clone(), token, bf16::TOKENS, bf16::STEP, of_x, &mut packed);
    }
    (lines, packed)
}

/// Weights and x of the given numbers of bits, split into W and X parts: sums stay below 2^24.
fn parts_tile<const W: usize, const X: usize>(of_weight: u32, of_x: u32) {
    const COLUMNS: usize = 32;
    let mut random = Random(5);
    let (weights, x) = operands(&mut random, COLUMNS, (of_weight, of_x));
    let start: [[f32; 16]; bf16::TOKENS] =
        std::array::from_fn(|_| std::array::from_fn(|_| random.whole(8)));
    let (lines, packed) = in_parts(&weights, &x, (W, X));
    let mut sums = start;
    // SAFETY: the test runs only if the CPU has bf16 products.
    unsafe { bf16::tile::<W, X>(&lines, &packed, &mut sums) }
    for (token, x) in x.iter().enumerate() {
        for row in 0..16 {
            let products = weights.iter().zip(x).map(|(weights, x)| weights[row] * x);
            let expected = start[token][row] + products.sum::<f32>();
            assert_eq!(sums[token][row], expected, "{W} by {X}, token {token}, row {row}");
        }
    }
}

#[test]
fn bf16_parts_agree_with_scalar_loops() {
    if present("bf16", is_aarch64_feature_detected!("bf16")) {
        parts_tile::<1, 1>(8, 8);
        parts_tile::<2, 1>(12, 6);
        parts_tile::<3, 1>(17, 1);
        parts_tile::<1, 2>(6, 12);
        parts_tile::<1, 3>(1, 17);
    }
}

/// Codes and x of the given numbers of bits, x split into X parts, in segments that scales of powers of two multiply, the last
/// segment shorter: sums stay below 2^24 of their unit.
fn scaled_tile<const X: usize, const CORRECTED: bool>((of_code, of_x): (u32, u32), columns: usize) {
    const COLUMNS: usize = 96;
    let mut random = Random(7);
    let (codes, x) = operands(&mut random, COLUMNS, (of_code, of_x));
    let start: [[f32; 16]; bf16::TOKENS] =
        std::array::from_fn(|_| std::array::from_fn(|_| random.whole(8)));
    let segments = COLUMNS.div_ceil(columns);
    let powers: [Vec<[f32; 16]>; 2] = std::array::from_fn(|_| {
        let mut power = || [0.5, 1.0, -1.0, 0.0][random.whole(2).abs() as usize];
        (0..segments).map(|_| std::array::from_fn(|_| power())).collect()
    });
    let [scales, add] = powers;
    // Not the sums of x, so that each factor is seen.
    let x_sums: Vec<[f32; bf16::TOKENS]> =
        (0..segments).map(|_| std::array::from_fn(|_| random.whole(4))).collect();
    let (lines, packed) = in_parts(&codes, &x, (1, X));
    let mut sums = start;
    let of = bf16::TileScales { columns, scales: &scales, add: &add, x_sums: &x_sums };
    // SAFETY: the test runs only if the CPU has bf16 products.
    unsafe { bf16::scaled_tile::<X, CORRECTED>(&lines, &packed, of, &mut sums) }
    for (token, x) in x.iter().enumerate() {
        for row in 0..16 {
            let mut expected = f64::from(start[token][row]);
            for (segment, (codes, x)) in codes.chunks(columns).zip(x.chunks(columns)).enumerate() {
                let products = codes.iter().zip(x).map(|(codes, x)| f64::from(codes[row] * x));
                expected += f64::from(scales[segment][row]) * products.sum::<f64>();
                if CORRECTED {
                    expected += f64::from(add[segment][row] * x_sums[segment][token]);
                }
            }
            let case = format!("{X} parts, segments of {columns}, token {token}, row {row}");
            assert_eq!(f64::from(sums[token][row]), expected, "{case}");
        }
    }
}

#[test]
fn codes_in_segments_agree_with_scalar_loops() {
    if present("bf16", is_aarch64_feature_detected!("bf16")) {
        for columns in [32, 64, 96, 128] {
            scaled_tile::<1, false>((8, 8), columns);
            scaled_tile::<1, true>((8, 8), columns);
            scaled_tile::<2, false>((6, 12), columns);
            scaled_tile::<2, true>((6, 12), columns);
            scaled_tile::<3, false>((1, 17), columns);
            scaled_tile::<3, true>((1, 17), columns);
        }
    }
}

/// Which operand takes fewer instructions, by hand from the counts in docs/performance/cpu.md; more parts than these loops take, or
/// few tokens, are multiplied in `f32`.
#[test]
fn the_operand_with_the_fewest_instructions_is_chosen() {
    let way =
        |operand, weight, segment| move |x| Instruction::SplitBf16 { operand, segment, weight, x };
    let of_weight = |parts: usize| way(Bf16Operand::Weight, parts, 32);
    let of_codes =
        |corrected, segment| way(Bf16Operand::Code(Bf16Code { offset: 0, corrected }), 1, segment);
    let chosen = |weight: usize, segment, corrected, x, tokens| {
        let ways = [of_weight(weight)(x), of_codes(corrected, segment)(x)];
        bf16::choose(ways.into_iter(), tokens)
    };
    // Weights in one part need no scales.
    assert_eq!(chosen(1, 32, false, 1, 8), Some(of_weight(1)(1)));
    // 103 and 152 a token beside 170, and 640 for a weight beside 1536.
    assert_eq!(chosen(2, 128, false, 1, 4096), Some(of_codes(false, 128)(1)));
    assert_eq!(chosen(2, 32, true, 1, 4096), Some(of_codes(true, 32)(1)));
    // x in f16 and f32: weights in two parts are multiplied in f32.
    assert_eq!(chosen(2, 128, false, 2, 5), Some(of_codes(false, 128)(2)), "692 + 640 < 1344");
    assert_eq!(chosen(2, 64, false, 3, 7), None, "1015 + 640 > 1344");
    assert_eq!(chosen(2, 64, false, 3, 8), Some(of_codes(false, 64)(3)), "2030 + 640 < 2688");
    assert_eq!(bf16::choose([of_weight(2)(2)].into_iter(), 4096), None);
    // More tokens never bring f32 back, and no number of tokens is too large.
    for (segment, corrected, x) in [(128, false, 1), (32, true, 2), (64, false, 3), (32, true, 3)] {
        let first = (1..100).find(|&tokens| chosen(2, segment, corrected, x, tokens).is_some());
        let later = (first.unwrap()..200).chain([usize::MAX - 1, usize::MAX]);
        assert!(later.into_iter().all(|tokens| chosen(2, segment, corrected, x, tokens).is_some()));
    }
}

/// Multiples of 2^-30: exact sums of what [`the_bf16_product_rounds_to_odd`] multiplies.
const UNIT: f64 = 1.0 / (1 << 30) as f64;

/// 24 significant bits, the last of them set if the result is inexact.
fn to_odd(exact: i128) -> i128 {
    let cut = (128 - exact.unsigned_abs().leading_zeros()).saturating_sub(24);
    let kept = exact.abs() >> cut;
    let odd = if kept << cut == exact.abs() { kept } else { kept | 1 };
    exact.signum() * (odd << cut)
}

/// The rounding that the bound of these products assumes (`super::bf16`), in integers.
#[test]
fn the_bf16_product_rounds_to_odd() {
    if !present("bf16", is_aarch64_feature_detected!("bf16")) {
        return;
    }
    let mut random = Random(6);
    // Eight significant bits, exponents of 0 to 15 below and above 1: products are whole units.
    let mut number = || {
        let bits = random.next();
        f32::from_bits((bits >> 16 & 0x807f | (127 - 8 + bits % 16) << 7) << 16)
    };
    let whole = |value: f32| (f64::from(value) / UNIT) as i128;
    let product = |a: f32, b: f32| (f64::from(a) * f64::from(b) / UNIT) as i128;
    let mut inexact = 0;
    for _ in 0..2000 {
        let rows: [f32; 8] = std::array::from_fn(|_| number());
        let x: [f32; 8] = std::array::from_fn(|_| number());
        let sums: [f32; 4] = std::array::from_fn(|_| number() * number());
        let found = bfmmla(sums, rows, x);
        for (at, found) in found.into_iter().enumerate() {
            let (row, token) = (at / 2, at % 2);
            let mut sum = whole(sums[at]);
            for pair in [0, 2] {
                let of = |column: usize| product(rows[4 * row + column], x[4 * token + column]);
                let exact = sum + to_odd(of(pair) + of(pair + 1));
                sum = to_odd(exact);
                inexact += usize::from(sum != exact);
            }
            assert_eq!(f64::from(found), sum as f64 * UNIT, "{rows:?} by {x:?} from {}", sums[at]);
        }
    }
    assert!(inexact > 1000, "some results are rounded: {inexact}");
}

#[test]
fn the_bf16_product_takes_subnormal_numbers_for_0() {
    if !present("bf16", is_aarch64_feature_detected!("bf16")) {
        return;
    }
    let (tiny, least) = (f32::from_bits(0x0040_0000), f32::MIN_POSITIVE);
    // An operand, a product, a sum of two; and the smallest normal number, which is kept.
    let first = |a: f32, b: f32| [a, b, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let of = |sum: f32, rows, x| bfmmla([sum, 0.0, 0.0, 0.0], rows, x)[0];
    assert_eq!(of(0.0, first(tiny, 0.0), first(1024.0, 0.0)), 0.0);
    assert_eq!(of(0.0, first(least, 0.0), first(0.5, 0.0)), 0.0);
    assert_eq!(of(0.0, first(1.5 * least, -least), first(1.0, 1.0)), 0.0);
    assert_eq!(of(-1.5 * least, first(least, 0.0), first(1.0, 0.0)), 0.0);
    assert_eq!(of(0.0, first(least, 0.0), first(1.0, 0.0)), least);
    assert_eq!(of(tiny, first(least, 0.0), first(1.0, 0.0)), least);
}

/// The instruction on bf16 numbers.
fn bfmmla(sums: [f32; 4], rows: [f32; 8], x: [f32; 8]) -> [f32; 4] {
    use core::arch::aarch64::{vld1q_f32, vld1q_u16, vst1q_f32};
    let bits = |values: [f32; 8]| values.map(|value| (value.to_bits() >> 16) as u16);
    let (rows, x) = (bits(rows), bits(x));
    let mut out = sums;
    // SAFETY: the slices have as many numbers as a register.
    unsafe {
        let (rows, x) = (vld1q_u16(rows.as_ptr()), vld1q_u16(x.as_ptr()));
        let sums = super::instruction::bfmmla(vld1q_f32(sums.as_ptr()), rows, x);
        vst1q_f32(out.as_mut_ptr(), sums);
    }
    out
}

/// The result of an operation, in a vector's lanes.
fn words<V: Vector>(vector: V) -> [u32; 16] {
    let mut bytes = [0; 64];
    vector.store(&mut bytes);
    let lanes = bytes.as_chunks::<4>().0;
    std::array::from_fn(|lane| u32::from_le_bytes(lanes[lane]))
}

/// Every operation of [`Vector`], with its name, on the vectors that `random` returns.
fn operations<V: Vector>(random: &mut Random) -> Vec<(&'static str, [u32; 16])> {
    let mut bytes = || std::array::from_fn(|_| random.next() as u8);
    let (a, b, c) = (V::load(&bytes()), V::load(&bytes()), V::load(&bytes()));
    let nibbles: [u8; 64] = bytes().map(|byte| byte & 15);
    let narrow: [u8; 64] = bytes().map(|byte| byte & 127);
    let table: [u8; 16] = std::array::from_fn(|at| (17 * at as u8) ^ 0x5a);
    let halves: [u16; 16] = std::array::from_fn(|at| 0x3c00 + 0x0123 * at as u16);
    // Thirds and sevenths, so that no two bytes of a value are equal.
    let floats: [f32; 16] = std::array::from_fn(|at| (at as f32 + 0.5) / 3.0);
    let wide: [f32; 256] = std::array::from_fn(|at| (at as f32 + 0.5) / 7.0);
    let small = |vector: V| vector.and(V::splat(0xff)).to_f32();
    vec![
        ("splat", words(V::splat(0x0403_0201))),
        ("and", words(a.and(b))),
        ("or", words(a.or(b))),
        ("xor", words(a.xor(b))),
        ("shl", words(a.shl::<5>())),
        ("shr", words(a.shr::<5>())),
        ("sar", words(a.sar::<5>())),
        ("shl 0", words(a.shl::<0>())),
        ("shr 31", words(a.shr::<31>())),
        ("add", words(a.add(b))),
        ("equal", words(a.and(V::splat(3)).equal(b.and(V::splat(3))))),
        ("lookup", words(V::load(&nibbles).lookup(&table))),
        ("to_f32", words(a.to_f32())),
        ("table_f32", words(a.table_f32(&floats))),
        ("gather_f32", words(a.and(V::splat(0xff)).gather_f32(&wide))),
        ("load_f32", words(V::load_f32(&floats))),
        ("load_bf16", words(V::load_bf16(&halves))),
        ("load_f16", words(V::load_f16(&halves))),
        ("add_f32", words(small(a).add_f32(small(b)))),
        ("mul_f32", words(small(a).mul_f32(small(b)))),
        ("fma_f32", words(small(a).fma_f32(small(b), small(c)))),
        ("dot", words(a.dot(b, c))),
        ("dot_narrow", words(a.dot_narrow(V::load(&narrow), c))),
        ("dot, extreme", words(a.dot(V::splat(0), V::splat(0x8080_8080)))),
        ("dot, largest", words(a.dot(V::splat(u32::MAX), V::splat(0x8080_8080)))),
        ("dot_narrow, extreme", words(a.dot_narrow(V::splat(0x7f7f_7f7f), V::splat(0x8080_8080)))),
    ]
}

/// All code that is special to an instruction set.
fn check<P: super::vector::Products>() {
    for seed in 0..50 {
        let ours = operations::<Neon<P>>(&mut Random(seed));
        let portable = operations::<Portable>(&mut Random(seed));
        for ((name, ours), (_, portable)) in ours.into_iter().zip(portable) {
            assert_eq!(ours, portable, "{name}, seed {seed}");
        }
    }
    dot_tiles::<Neon<P>>();
    fma_tile::<Neon<P>, 1>();
    fma_tile::<Neon<P>, 2>();
    fma_tile::<Neon<P>, 4>();
}

#[test]
fn base_neon_agrees_with_scalar_loops() {
    check::<Base>();
}

#[test]
fn dotprod_agrees_with_scalar_loops() {
    if present("dotprod", is_aarch64_feature_detected!("dotprod")) {
        check::<Dot>();
    }
}

#[test]
fn i8mm_agrees_with_scalar_loops() {
    if present("i8mm", is_aarch64_feature_detected!("i8mm")) {
        check::<I8mm>();
    }
}

#[test]
fn the_portable_tile_meets_the_same_scalar_loops() {
    dot_tiles::<Portable>();
    fma_tile::<Portable, 4>();
}
