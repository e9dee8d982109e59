//! 16-bit floats bit by bit: widening, rounding, and arithmetic that rounds once.
//!
//! f16 and bf16 sums and products are formed in f64. A product of two is exact there; a sum may
//! not be, so that it is rounded to odd: a result that is not exact gets an odd last bit, which a
//! second rounding to nearest, to half the bits or fewer, cannot mistake for a tie (Boldo and
//! Melquiond, "When double rounding is odd", 2005).

use crate::ir::{Half, Side};

/// The value of a code.
pub(super) fn widen(half: Half, code: u16) -> f32 {
    let bits = u32::from(code);
    match half {
        Half::Bf16 => f32::from_bits(bits << 16),
        Half::F16 => {
            let sign = (bits & 0x8000) << 16;
            let magnitude = bits & 0x7fff;
            if magnitude >= 0x7c00 {
                return f32::from_bits(sign | 0x7f80_0000 | (magnitude & 0x3ff) << 13);
            }
            // The exponent moves from bias 15 to 127 by an exact product, subnormals included.
            let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
            f32::from_bits(scaled.to_bits() | sign)
        }
    }
}

/// The nearest code, ties to even; overflow gives infinity.
pub(super) fn narrow(half: Half, x: f64) -> u16 {
    let (bias, mantissa) = match half {
        Half::F16 => (15, 10),
        Half::Bf16 => (127, 7),
    };
    let infinity = ((2 * bias + 1) as u16) << mantissa;
    let bits = x.to_bits();
    let sign = ((bits >> 48) & 0x8000) as u16;
    if x.is_nan() {
        return infinity | 1 << (mantissa - 1);
    }
    if x.is_infinite() {
        return sign | infinity;
    }
    let exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let smallest = 1 - bias;
    let shift = 52 - mantissa + (smallest - exponent).max(0);
    if shift > 53 {
        return sign;
    }
    let significand = bits & ((1 << 52) - 1) | 1 << 52;
    let (kept, rest) = (significand >> shift, significand & ((1 << shift) - 1));
    let tie = 1u64 << (shift - 1);
    let up = rest > tie || (rest == tie && kept & 1 == 1);
    // A normal's kept bits carry the implicit bit, which adds one to the exponent field.
    let code = ((exponent - smallest).max(0) as u64) << mantissa;
    sign | (code + kept + u64::from(up)).min(u64::from(infinity)) as u16
}

/// `a * b + c` of values of the type, rounded once.
fn fused(half: Half, a: f32, b: f32, c: f32) -> u16 {
    let product = f64::from(a) * f64::from(b);
    narrow(half, sum_to_odd(product, f64::from(c)))
}

/// a + b rounded to odd.
fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    // Knuth's two-sum: `rest` is exactly what the rounding lost.
    let b_part = sum - a;
    let rest = (a - (sum - b_part)) + (b - b_part);
    let bits = sum.to_bits();
    if rest == 0.0 || bits & 1 == 1 {
        return sum;
    }
    f64::from_bits(if (rest > 0.0) == (sum > 0.0) { bits + 1 } else { bits - 1 })
}

fn halves(word: u32) -> [u16; 2] {
    [word as u16, (word >> 16) as u16]
}

fn join([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Applies a function to both halves of three words.
fn packed(words: [u32; 3], f: impl Fn([u16; 3]) -> u16) -> u32 {
    let [a, b, c] = words.map(halves);
    join([f([a[0], b[0], c[0]]), f([a[1], b[1], c[1]])])
}

/// Each half: a + b.
pub(super) fn add(half: Half, a: u32, b: u32) -> u32 {
    packed([a, b, 0], |[a, b, _]| fused(half, widen(half, a), 1.0, widen(half, b)))
}

/// Each half: a - b.
pub(super) fn sub(half: Half, a: u32, b: u32) -> u32 {
    packed([a, b, 0], |[a, b, _]| fused(half, widen(half, a), 1.0, -widen(half, b)))
}

/// Each half: a b.
pub(super) fn mul(half: Half, a: u32, b: u32) -> u32 {
    packed([a, b, 0], |[a, b, _]| {
        narrow(half, f64::from(widen(half, a)) * f64::from(widen(half, b)))
    })
}

/// Each half: `f` of both operands' values, as f32.
pub(super) fn each(half: Half, a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    packed([a, b, 0], |[a, b, _]| narrow(half, f64::from(f(widen(half, a), widen(half, b)))))
}

/// Each half: a b + c.
pub(super) fn fma(half: Half, a: u32, b: u32, c: u32) -> u32 {
    packed([a, b, c], |[a, b, c]| fused(half, widen(half, a), widen(half, b), widen(half, c)))
}

/// Two f32 rounded into a word.
pub(super) fn pack(half: Half, low: f32, high: f32) -> u32 {
    join([narrow(half, f64::from(low)), narrow(half, f64::from(high))])
}

/// The half of a word as f32.
pub(super) fn side(half: Half, side: Side, word: u32) -> f32 {
    let [low, high] = halves(word);
    widen(half, if side == Side::Low { low } else { high })
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::format::{BF16, F16, Overflow};

    use super::*;

    const BOTH: [(Half, quantloom_dsl::format::FloatFormat); 2] =
        [(Half::F16, F16), (Half::Bf16, BF16)];

    fn same(half: Half, got: u16, want: u32, what: &dyn std::fmt::Debug) {
        let nan = |code: u16| widen(half, code).is_nan();
        assert!(
            u32::from(got) == want || (nan(got) && nan(want as u16)),
            "{what:?}: {got:#x} {want:#x}"
        );
    }

    /// Every code, its shuffle_lanes and the points between them round as the format's definition
    /// says.
    #[test]
    fn rounds_as_the_format() {
        for (half, format) in BOTH {
            for code in 0..=u16::MAX {
                let x = f64::from(widen(half, code));
                same(half, narrow(half, x), format.encode(x, Overflow::Special), &code);
                assert!(x.is_nan() || x.to_bits() == format.decode(u32::from(code)).to_bits());
                let next = f64::from(widen(half, code.wrapping_add(1)));
                let middle = (x + next) / 2.0;
                for y in [middle, middle.next_up(), middle.next_down()] {
                    same(half, narrow(half, y), format.encode(y, Overflow::Special), &y);
                }
            }
        }
    }

    /// Sums whose exact value f64 cannot hold: the rounding of the f64 sum must not decide a tie.
    #[test]
    fn a_fused_sum_rounds_once() {
        let bf16 = |x: f32| u32::from(narrow(Half::Bf16, f64::from(x)));
        // 1 + 2^-8 is a tie of bf16 (8 bits); 2^-120 above or below it decides.
        for (tiny, want) in [(2f32.powi(-120), 1.0 + 2f32.powi(-7)), (-(2f32.powi(-120)), 1.0)] {
            let tie = fused(Half::Bf16, 1.0 + 2f32.powi(-7), 0.5, tiny);
            assert_eq!(f32::from_bits(u32::from(tie) << 16), 0.5 + 2f32.powi(-8), "exact");
            let got = fused(Half::Bf16, 257.0, 2f32.powi(-8), tiny);
            assert_eq!(u32::from(got), bf16(want));
        }
        // x - x = +0, and -0 + -0 = -0.
        assert_eq!(sub(Half::F16, 0x3c00, 0x3c00), 0);
        assert_eq!(add(Half::F16, 0x8000_8000, 0x8000_8000), 0x8000_8000);
    }
}
