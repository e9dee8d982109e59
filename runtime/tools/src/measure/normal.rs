//! Normal numbers, quantised: the weights and the tokens that benchmarks multiply, as those of other software do.
//!
//! In: a scheme, a shape. Out: plain codes ([`layer`]) and x ([`tokens`]). What a GPU multiplies decides how much power it draws, and
//! from some tokens on power decides its clocks: equal work is work on equal numbers (docs/performance/README.md).

use quantloom_dsl::Scheme;
use quantloom_dsl::format::{BF16, FloatFormat};
use quantloom_dsl::layout::{Component, GroupSize, Shape};
use quantloom_dsl::reference::{PlainCodes, ReferenceError, quantise};

use crate::conformance::draw::{self, RandomStream, Regime};

/// The standard deviation of weights.
const DEVIATION: f64 = 0.05;
/// Rows that are drawn, at least: more than a warp group multiplies at once. Those after them repeat them.
const ROWS: u64 = 256;
/// Keys of streams.
const WEIGHTS: u64 = 0x2000;
const TOKENS: u64 = 0x3000;

/// A layer of normal weights in bf16, as the scheme quantises them, and of normal biases with a deviation of 1. Static numbers of x are
/// drawn as [`draw::layer`] does, and so are orders of columns, whose groups are not those that the weights were quantised in.
///
/// # Errors
/// As [`quantise`].
pub fn layer(scheme: &Scheme, shape: Shape, seed: u64) -> Result<PlainCodes, ReferenceError> {
    let drawn = Shape { n: drawn_rows(scheme, shape), ..shape };
    // The regime of usual numbers.
    let mut plain = draw::layer(scheme, drawn, seed * Regime::ALL.len() as u64);
    let mut stream = RandomStream::new(seed, WEIGHTS);
    let mut normal = |count: u64, deviation: f64| -> Vec<f64> {
        (0..count).map(|_| BF16.round(deviation * stream.normal())).collect()
    };
    let weights = normal(drawn.experts * drawn.n * drawn.k, DEVIATION);
    let bias = normal(drawn.experts * drawn.n, 1.0);
    let of_weights = |component: &Component| {
        matches!(
            component,
            Component::Code
                | Component::Scale(_)
                | Component::Zero
                | Component::Shift(_)
                | Component::Bias
        )
    };
    let quantised = quantise(scheme, drawn, &weights, BF16, Some(&bias))?.components;
    plain.components.extend(quantised.into_iter().filter(|(component, _)| of_weights(component)));
    for (component, codes) in &mut plain.components {
        let Some(granularity) = scheme.granularity(*component) else { continue };
        let (rows, columns) = granularity.elements(drawn);
        let (all, _) = granularity.elements(shape);
        *codes = repeated(codes, (rows * columns) as usize, (all * columns) as usize);
    }
    Ok(PlainCodes { shape, ..plain })
}

/// Rows that are drawn: whole groups of every component, or all.
fn drawn_rows(scheme: &Scheme, shape: Shape) -> u64 {
    let components = scheme.components();
    let groups =
        components.iter().filter_map(|component| match scheme.granularity(*component)?.rows {
            GroupSize::Each(rows) => Some(u64::from(rows)),
            GroupSize::All => None,
        });
    let whole = groups.fold(1, |all: u64, rows| (all / divisor(all, rows)).saturating_mul(rows));
    ROWS.div_ceil(whole).saturating_mul(whole).min(shape.n)
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// The elements of each expert, of which there are `drawn`, again and again until there are `all`.
fn repeated(codes: &[u32], drawn: usize, all: usize) -> Vec<u32> {
    let experts = codes.chunks(drawn.max(1));
    experts.flat_map(|own| own.iter().copied().cycle().take(all)).collect()
}

/// `count` tokens of `k` normal values of the type with a deviation of 1, [count, k].
pub fn tokens(own: FloatFormat, count: usize, k: usize, seed: u64) -> Vec<f64> {
    let mut stream = RandomStream::new(seed, TOKENS);
    (0..count * k).map(|_| own.round(stream.normal())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quantloom_dsl::parse;
    use quantloom_dsl::reference::dequantise;

    /// Weights of N x K, dequantised.
    fn weights(text: &str, (n, k): (u64, u64)) -> Vec<f64> {
        let scheme = parse(text).unwrap();
        let plain = layer(&scheme, Shape::matrix(n, k), 3).unwrap();
        dequantise(&scheme, &plain).unwrap()
    }

    /// Of some 70,000 numbers the mean is within four of its deviations, 4 x 0.05 / sqrt(70,000) = 0.0008, and rounding has no sign. Their
    /// deviation is within 4 / sqrt(140,000) = 1.1% of the weights', to whose square that of rounding is added: with codes of 4 bits and the
    /// largest of 64 numbers, some 2.4 deviations, at 7.5 steps, a step is 0.32 deviations, and a step over sqrt(12) 0.09: 0.4% more.
    #[test]
    fn weights_are_normal_and_quantised_by_their_scheme() {
        for text in [
            "s { weight: u4 - 8, scale: bf16 per 1x64, pack: [k, n], activation: bf16 }",
            "s { weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: bf16 }",
            "s { weight: u4, scale: f16 per 1x64, shift: f16 per 1x64, pack: [k, n], activation: f16 }",
        ] {
            let values = weights(text, (300, 256));
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let deviation = (values.iter().map(|value| value * value).sum::<f64>() / count).sqrt();
            assert!(mean.abs() < 0.0008, "{text}: {mean}");
            assert!((deviation / DEVIATION - 1.0).abs() < 0.015, "{text}: {deviation}");
        }
    }

    /// Biases, shards of other seeds, and indices of groups, which may name any.
    #[test]
    fn everything_that_a_scheme_stores_is_there() {
        for text in [
            "s { weight: u4 - 8, scale: bf16 per 1x64, bias: bf16, pack: [k, n], activation: bf16 }",
            "s { weight: u4 - 8, scale: f16 per 1x64, index: i32, pack: [k, n], activation: f16 }",
        ] {
            let scheme = parse(text).unwrap();
            let [one, other] =
                [0, 1].map(|seed| layer(&scheme, Shape::matrix(300, 256), seed).unwrap());
            for component in scheme.components() {
                let count = scheme.granularity(component).unwrap().elements(one.shape);
                assert_eq!(one.of(component).len() as u64, count.0 * count.1, "{component:?}");
                assert_ne!(one.of(component), other.of(component), "{component:?}");
            }
        }
    }

    /// The rows that are drawn are whole groups, after which they come again.
    #[test]
    fn rows_repeat_after_whole_groups() {
        let k = 128;
        for (rows, drawn) in [(1, 256), (96, 288), (128, 256)] {
            let text = format!(
                "s {{ weight: e4m3, scale: f32 per {rows}x128, pack: [k, n], activation: bf16 }}"
            );
            let scheme = parse(&text).unwrap();
            assert_eq!(drawn_rows(&scheme, Shape::matrix(700, k)), drawn);
            let values = weights(&text, (700, k));
            let (first, later) = values.split_at((drawn * k) as usize);
            assert!(later.iter().zip(first.iter().cycle()).all(|(one, other)| one == other));
            // A row is none of those before.
            assert_ne!(first[..k as usize], first[k as usize..2 * k as usize]);
        }
        let scheme = parse("s { weight: u4, pack: [k, n], activation: bf16 }").unwrap();
        assert_eq!(drawn_rows(&scheme, Shape::matrix(40, k)), 40);
        let two = "weight: u4 - 8, scale: f16 per 64x32, scale: f32 per 96x64";
        let scheme = parse(&format!("s {{ {two}, pack: [k, n], activation: bf16 }}")).unwrap();
        assert_eq!(drawn_rows(&scheme, Shape::matrix(700, k)), 384);
    }

    #[test]
    fn tokens_are_normal_and_of_their_type() {
        let x = tokens(BF16, 20, 500, 1);
        let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        assert!((square - 1.0).abs() < 0.05, "{square}");
        assert!(x.iter().all(|x| BF16.round(*x) == *x));
    }
}
