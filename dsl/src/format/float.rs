//! Binary floating-point formats of at most 32 bits, described by four numbers.
//!
//! In: a code (the bits of a stored float). Out: its value as `f64`, which holds
//! every value of every such format exactly; and back, rounding to nearest even.

use std::fmt;

/// What the top codes of a float format mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// IEEE 754: the largest exponent holds infinities and NaNs.
    Ieee,
    /// No infinity; the code whose magnitude bits are all ones is NaN (OCP `e4m3`).
    Fn,
    /// No infinity and no -0; the code of -0 is the only NaN; bias one larger.
    Fnuz,
    /// Every code is a finite number (OCP `e2m1`, `e2m3`, `e3m2`).
    Finite,
}

impl Variant {
    /// The suffix that names the variant in the scheme language.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Ieee => "ieee",
            Self::Fn => "fn",
            Self::Fnuz => "fnuz",
            Self::Finite => "finite",
        }
    }
}

/// What encoding does with a magnitude beyond the largest finite value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Infinity where the format has one, else NaN where it has one, else the largest value.
    Special,
    /// The largest finite value; quantisers clamp before they round.
    Saturate,
}

/// A signed binary float: 1 sign bit, `exponent_bits`, `mantissa_bits`.
///
/// Value of a normal code: `(-1)^s * 2^(e - bias) * (1 + m / 2^mantissa_bits)`; with
/// `e = 0` it is subnormal: `(-1)^s * 2^(1 - bias) * m / 2^mantissa_bits`.
/// Source: OCP Microscaling Formats (MX) v1.0, section 5.3, and IEEE 754-2019, section 3.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FloatFormat {
    /// Width of the exponent field in bits, 1..=8.
    pub exponent_bits: u8,
    /// Width of the mantissa field in bits.
    pub mantissa_bits: u8,
    /// Meaning of the top codes.
    pub variant: Variant,
}

impl FloatFormat {
    /// A format from its field widths and variant.
    pub const fn new(exponent_bits: u8, mantissa_bits: u8, variant: Variant) -> Self {
        Self { exponent_bits, mantissa_bits, variant }
    }

    /// Width of a code in bits, the sign included.
    pub const fn bits(self) -> u32 {
        1 + self.exponent_bits as u32 + self.mantissa_bits as u32
    }

    /// Exponent bias: `2^(exponent_bits - 1) - 1`, one more for [`Variant::Fnuz`].
    pub const fn bias(self) -> i32 {
        let ieee = (1i32 << (self.exponent_bits - 1)) - 1;
        match self.variant {
            Variant::Fnuz => ieee + 1,
            _ => ieee,
        }
    }

    const fn magnitude_mask(self) -> u32 {
        (1u32 << (self.bits() - 1)) - 1
    }

    const fn sign_bit(self) -> u32 {
        1u32 << (self.bits() - 1)
    }

    /// The code of the largest finite magnitude.
    pub const fn max_code(self) -> u32 {
        match self.variant {
            Variant::Ieee => self.infinity_code() - 1,
            Variant::Fn => self.magnitude_mask() - 1,
            Variant::Fnuz | Variant::Finite => self.magnitude_mask(),
        }
    }

    const fn infinity_code(self) -> u32 {
        ((1u32 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// A code that means NaN, if the format has one.
    pub const fn nan_code(self) -> Option<u32> {
        match self.variant {
            Variant::Ieee if self.mantissa_bits > 0 => {
                Some(self.infinity_code() | 1 << (self.mantissa_bits - 1))
            }
            Variant::Ieee | Variant::Finite => None,
            Variant::Fn => Some(self.magnitude_mask()),
            Variant::Fnuz => Some(self.sign_bit()),
        }
    }

    /// The largest finite value.
    pub fn max(self) -> f64 {
        self.decode(self.max_code())
    }

    /// Distance from 1 to the next larger value: `2^-mantissa_bits`, more where 1 is subnormal, as it
    /// is with one bit of exponent.
    pub fn epsilon(self) -> f64 {
        exp2((1 - self.bias()).max(0) - i32::from(self.mantissa_bits))
    }

    /// The value of a code; bits above the format's width are ignored.
    pub fn decode(self, code: u32) -> f64 {
        let magnitude = code & self.magnitude_mask();
        let negative = code & self.sign_bit() != 0;
        match self.variant {
            Variant::Ieee if magnitude == self.infinity_code() => {
                return if negative { f64::NEG_INFINITY } else { f64::INFINITY };
            }
            Variant::Ieee if magnitude > self.infinity_code() => return f64::NAN,
            Variant::Fn if magnitude == self.magnitude_mask() => return f64::NAN,
            Variant::Fnuz if negative && magnitude == 0 => return f64::NAN,
            _ => {}
        }
        let fraction = magnitude & ((1 << self.mantissa_bits) - 1);
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let scale = exp2(exponent.max(1) - self.bias() - i32::from(self.mantissa_bits));
        let implicit = if exponent == 0 { 0 } else { 1u32 << self.mantissa_bits };
        let value = f64::from(implicit + fraction) * scale;
        if negative { -value } else { value }
    }

    /// The code nearest to `x`, ties to the even code.
    ///
    /// A NaN becomes the format's NaN; a [`Variant::Finite`] format has none and gives the
    /// code of -0, as `ml_dtypes` does.
    pub fn encode(self, x: f64, overflow: Overflow) -> u32 {
        if x.is_nan() {
            return self.nan_code().unwrap_or(self.sign_bit());
        }
        let sign = if x.is_sign_negative() { self.sign_bit() } else { 0 };
        let code = self.round_magnitude(x.abs());
        if code > self.max_code() {
            return sign | self.overflow_code(overflow, sign);
        }
        if code == 0 && self.variant == Variant::Fnuz { 0 } else { sign | code }
    }

    /// `x` rounded to the nearest value of the format.
    pub fn round(self, x: f64) -> f64 {
        self.decode(self.encode(x, Overflow::Special))
    }

    fn overflow_code(self, overflow: Overflow, sign: u32) -> u32 {
        match (overflow, self.variant) {
            (Overflow::Saturate, _) | (_, Variant::Finite) => self.max_code(),
            (_, Variant::Ieee) => self.infinity_code(),
            (_, Variant::Fn) => self.magnitude_mask(),
            (_, Variant::Fnuz) => self.sign_bit() & !sign,
        }
    }

    /// Rounds a magnitude to nearest even; may return a code above `max_code`.
    fn round_magnitude(self, x: f64) -> u32 {
        if x == 0.0 {
            return 0;
        }
        if x.is_infinite() {
            return u32::MAX >> 1;
        }
        let smallest_exponent = 1 - self.bias();
        let exponent = floor_log2(x).max(smallest_exponent);
        let mantissa_bits = i32::from(self.mantissa_bits);
        // In units of the last place; scaling by a power of two is exact here.
        let units = scale_by_exp2(x, mantissa_bits - exponent).round_ties_even();
        let units = units as u64;
        let above_smallest = (exponent - smallest_exponent) as u64;
        // A subnormal's units are its code; a normal's carry the implicit bit, which adds
        // one to the exponent field, so both cases are the same sum.
        let code = (above_smallest << self.mantissa_bits) + units;
        u32::try_from(code).unwrap_or(u32::MAX >> 1)
    }
}

impl fmt::Display for FloatFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            super::F32 => f.write_str("f32"),
            super::F16 => f.write_str("f16"),
            super::BF16 => f.write_str("bf16"),
            Self { exponent_bits, mantissa_bits, variant } => {
                write!(f, "e{exponent_bits}m{mantissa_bits}")?;
                if variant != super::default_variant(exponent_bits, mantissa_bits) {
                    f.write_str(variant.suffix())?;
                }
                Ok(())
            }
        }
    }
}

/// `2^exponent`, exact for -1074..=1023.
pub(crate) fn exp2(exponent: i32) -> f64 {
    scale_by_exp2(1.0, exponent)
}

/// `x * 2^exponent` in steps that neither overflow nor underflow on the way.
fn scale_by_exp2(mut x: f64, mut exponent: i32) -> f64 {
    while exponent > 1000 {
        x *= f64::from_bits(2023 << 52);
        exponent -= 1000;
    }
    while exponent < -1000 {
        x *= f64::from_bits(23 << 52);
        exponent += 1000;
    }
    x * f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// `floor(log2(x))` of a finite `x > 0`, subnormal `f64` included.
pub(crate) fn floor_log2(x: f64) -> i32 {
    let field = (x.to_bits() >> 52) as i32 & 0x7ff;
    if field != 0 { field - 1023 } else { -1011 - x.to_bits().leading_zeros() as i32 }
}
