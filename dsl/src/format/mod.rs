//! Number formats: the value of each code of a stored weight, scale or zero point.
//!
//! In: a type name of the scheme language (`u4`, `i8`, `e4m3`, `bf16`, `e8m0`). Out: a [`Number`]
//! with its width, the value of each code, and rounding to it. Start at [`Number`]; [`FloatFormat`]
//! implements float arithmetic; [`FORMATS`] is the table of named floats.

mod float;

use std::fmt;

pub use float::{FloatFormat, Overflow, Variant};
pub(crate) use float::{exp2, floor_log2};

/// IEEE binary32.
pub const F32: FloatFormat = FloatFormat::new(8, 23, Variant::Ieee);
/// IEEE binary16.
pub const F16: FloatFormat = FloatFormat::new(5, 10, Variant::Ieee);
/// bfloat16: the upper half of binary32.
pub const BF16: FloatFormat = FloatFormat::new(8, 7, Variant::Ieee);
/// OCP FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub const E2M1: FloatFormat = FloatFormat::new(2, 1, Variant::Finite);
/// OCP FP6 with the finer step; largest value 7.5.
pub const E2M3: FloatFormat = FloatFormat::new(2, 3, Variant::Finite);
/// OCP FP6 with the wider range; largest value 28.
pub const E3M2: FloatFormat = FloatFormat::new(3, 2, Variant::Finite);
/// OCP FP8 without infinity (`float8_e4m3fn`); largest value 448.
pub const E4M3: FloatFormat = FloatFormat::new(4, 3, Variant::Fn);
/// AMD CDNA3's form of e4m3; largest value 240.
pub const E4M3FNUZ: FloatFormat = FloatFormat::new(4, 3, Variant::Fnuz);

/// A named float and where its definition is published.
#[derive(Clone, Copy, Debug)]
pub struct NamedFormat {
    /// The short name in the scheme language, without a variant suffix.
    pub name: &'static str,
    /// The format.
    pub format: FloatFormat,
    /// Where the format is defined.
    pub source: &'static str,
}

/// The floats that a bare name means. Any other `eXmY` of up to 8 bits is IEEE if it has 8 bits,
/// and finite if it has fewer; a suffix (`ieee`, `fn`, `fnuz`, `finite`) overrides that.
pub const FORMATS: &[NamedFormat] = &[
    NamedFormat { name: "f32", format: F32, source: "IEEE 754-2019, binary32" },
    NamedFormat { name: "f16", format: F16, source: "IEEE 754-2019, binary16" },
    NamedFormat { name: "bf16", format: BF16, source: "the upper 16 bits of binary32" },
    NamedFormat { name: "e2m1", format: E2M1, source: "OCP MX v1.0, section 5.3.3" },
    NamedFormat { name: "e2m3", format: E2M3, source: "OCP MX v1.0, section 5.3.2" },
    NamedFormat { name: "e3m2", format: E3M2, source: "OCP MX v1.0, section 5.3.2" },
    NamedFormat { name: "e4m3", format: E4M3, source: "OCP OFP8 v1.0, section 5" },
];

pub(crate) fn default_variant(exponent_bits: u8, mantissa_bits: u8) -> Variant {
    let named = FORMATS.iter().map(|row| row.format).find(|format| {
        format.exponent_bits == exponent_bits && format.mantissa_bits == mantissa_bits
    });
    match named {
        Some(format) => format.variant,
        None if 1 + exponent_bits + mantissa_bits == 8 => Variant::Ieee,
        None => Variant::Finite,
    }
}

/// The type of a stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// Unsigned integer of the given width in bits.
    Uint(u8),
    /// Two's-complement integer of the given width in bits.
    Int(u8),
    /// A signed binary float.
    Float(FloatFormat),
    /// OCP E8M0: `2^(code - 127)`; 0xFF is NaN; there is no zero and no sign.
    E8m0,
}

/// The number type `f32`.
pub const NUMBER_F32: Number = Number::Float(F32);
/// The number type `f16`.
pub const NUMBER_F16: Number = Number::Float(F16);
/// The number type `bf16`.
pub const NUMBER_BF16: Number = Number::Float(BF16);

impl Number {
    /// Width of a code in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Uint(bits) | Self::Int(bits) => bits as u32,
            Self::Float(format) => format.bits(),
            Self::E8m0 => 8,
        }
    }

    /// Whether the type has values that are not integers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float(_) | Self::E8m0)
    }

    /// Mask of a code's bits.
    pub const fn mask(self) -> u32 {
        if self.bits() >= 32 { u32::MAX } else { (1 << self.bits()) - 1 }
    }

    /// The value of a code; bits above the width are ignored.
    pub fn decode(self, code: u32) -> f64 {
        let code = code & self.mask();
        match self {
            Self::Uint(_) => f64::from(code),
            Self::Int(bits) => {
                let unused = 32 - u32::from(bits);
                f64::from(((code << unused) as i32) >> unused)
            }
            Self::Float(format) => format.decode(code),
            Self::E8m0 if code == 0xff => f64::NAN,
            Self::E8m0 => exp2(code as i32 - 127),
        }
    }

    /// The code nearest to `x`, ties to even; integers always saturate, and a NaN becomes 0.
    ///
    /// E8M0 rounds to the nearest power of two (1.5 goes up, as in `ml_dtypes`); it gives NaN
    /// for what is negative or NaN, and for 0 unless that saturates.
    pub fn encode(self, x: f64, overflow: Overflow) -> u32 {
        match self {
            Self::Uint(_) | Self::Int(_) => {
                let x = x.round_ties_even().clamp(self.min(), self.max());
                // A saturating cast: NaN becomes 0, in range by the clamp above.
                (x as i64) as u32 & self.mask()
            }
            Self::Float(format) => format.encode(x, overflow),
            Self::E8m0 => encode_e8m0(x, overflow),
        }
    }

    /// `x` rounded to the nearest value of the type; see [`Number::encode`].
    pub fn round(self, x: f64) -> f64 {
        self.decode(self.encode(x, Overflow::Special))
    }

    /// A value to divide by where any does: 1, or the smallest positive one where 1 is rounded to 0.
    pub fn one(self) -> f64 {
        let one = self.round(1.0);
        if one == 0.0 { self.decode(1) } else { one }
    }

    /// The largest finite value.
    pub fn max(self) -> f64 {
        match self {
            Self::Uint(bits) => exp2(i32::from(bits)) - 1.0,
            Self::Int(bits) => exp2(i32::from(bits) - 1) - 1.0,
            Self::Float(format) => format.max(),
            Self::E8m0 => exp2(127),
        }
    }

    /// The smallest finite value: the most negative one, or the smallest positive of E8M0.
    pub fn min(self) -> f64 {
        match self {
            Self::Uint(_) => 0.0,
            Self::Int(bits) => -exp2(i32::from(bits) - 1),
            Self::Float(format) => -format.max(),
            Self::E8m0 => exp2(-127),
        }
    }

    /// Reads a type name of the scheme language: `u1`..`u32`, `i1`..`i32`, `f32`, `f16`,
    /// `bf16`, `e8m0`, `eXmY` of up to 8 bits with an optional variant suffix.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "e8m0" {
            return Some(Self::E8m0);
        }
        if let Some(row) = FORMATS.iter().find(|row| row.name == name) {
            return Some(Self::Float(row.format));
        }
        if let Some(bits) = name.strip_prefix('u') {
            return small_number(bits, 1..=32).map(Self::Uint);
        }
        if let Some(bits) = name.strip_prefix('i') {
            return small_number(bits, 1..=32).map(Self::Int);
        }
        float_from_name(name).map(Self::Float)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uint(bits) => write!(f, "u{bits}"),
            Self::Int(bits) => write!(f, "i{bits}"),
            Self::Float(format) => format.fmt(f),
            Self::E8m0 => f.write_str("e8m0"),
        }
    }
}

fn encode_e8m0(x: f64, overflow: Overflow) -> u32 {
    const NAN: u32 = 0xff;
    if x.is_nan() || x.is_sign_negative() {
        return NAN;
    }
    if x == 0.0 {
        return if overflow == Overflow::Saturate { 0 } else { NAN };
    }
    if x.is_infinite() {
        return if overflow == Overflow::Saturate { NAN - 1 } else { NAN };
    }
    let floor = floor_log2(x);
    let up = x / exp2(floor) >= 1.5;
    let code = floor + i32::from(up) + 127;
    match overflow {
        Overflow::Special if code > 254 => NAN,
        _ => code.clamp(0, 254) as u32,
    }
}

/// Decimal without sign or leading zero, within a range.
fn small_number(text: &str, range: std::ops::RangeInclusive<u8>) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits || text.starts_with('0') && text.len() > 1 {
        return None;
    }
    text.parse().ok().filter(|n| range.contains(n))
}

fn float_from_name(name: &str) -> Option<FloatFormat> {
    let rest = name.strip_prefix('e')?;
    let (exponent, rest) = rest.split_once('m')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (mantissa, suffix) = rest.split_at(digits);
    let exponent_bits = small_number(exponent, 1..=7)?;
    let mantissa_bits = small_number(mantissa, 0..=6)?;
    if exponent_bits + mantissa_bits > 7 {
        return None;
    }
    let variant = match suffix {
        "" => default_variant(exponent_bits, mantissa_bits),
        "ieee" => Variant::Ieee,
        "fn" => Variant::Fn,
        "fnuz" => Variant::Fnuz,
        "finite" => Variant::Finite,
        _ => return None,
    };
    // IEEE needs a mantissa bit, else its largest exponent could not tell NaN from infinity;
    // one exponent bit would leave it without a normal number.
    let ieee_without_room = variant == Variant::Ieee && (mantissa_bits == 0 || exponent_bits < 2);
    (!ieee_without_room).then_some(FloatFormat::new(exponent_bits, mantissa_bits, variant))
}
