//! Codes that are no integers, but stand for small ones times a power of two.
//!
//! In: a code type of weights. Out: the integers, as unsigned bytes in a table. An integer product looks each code
//! up, and multiplies its sums with the power of two afterwards: both are exact. For the codes of a quantiser of x: how
//! their values become signed bytes.

use crate::format::Number;
use crate::scheme::Code;

/// The most codes of a table: those of 4 bits, for which instructions have tables.
const TABLE_CODES: usize = 16;

/// The largest power of two: a code is a multiple of 2^-3 at least. (The derived bound of products counts
/// what a product of scales that is subnormal may lose, up to so much more.)
const MOST_EXPONENT: i32 = 3;

/// The values of the codes of a type: `(table[code] - offset) / 2^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableIntegers {
    /// The unsigned byte of each code; 0 for those beyond the type.
    pub table: [u8; TABLE_CODES],
    /// The byte less this is a signed byte.
    pub offset: u8,
    /// The power of two, 0 to 3.
    pub exponent: i32,
}

impl TableIntegers {
    /// Those of a code type of at most 16 codes, floats or a codebook; `None` if one is not a number, or if
    /// no power of two makes signed bytes of all. -0 counts as 0.
    pub fn of(code: &Code) -> Option<Self> {
        if !code.is_float() || code.bits() > 4 {
            return None;
        }
        let values: Vec<f64> = (0..1u32 << code.bits()).map(|stored| code.decode(stored)).collect();
        let byte = |value: f64| value.fract() == 0.0 && (-128.0..=127.0).contains(&value);
        let exponent = (0..=MOST_EXPONENT)
            .find(|exponent| values.iter().all(|value| byte(value * 2f64.powi(*exponent))))?;
        let unit = 2f64.powi(exponent);
        let least = values.iter().fold(0.0, |least: f64, value| least.min(*value));
        // A whole number of values, so that it is what an element has more than its value.
        let offset = (-least).ceil() * unit;
        let fits = |value: &f64| value * unit + offset <= 255.0;
        if offset > 128.0 || !values.iter().all(fits) {
            return None;
        }
        let mut table = [0; TABLE_CODES];
        for (byte, value) in table.iter_mut().zip(&values) {
            *byte = (value * unit + offset) as u8;
        }
        Some(Self { table, offset: offset as u8, exponent })
    }

    /// The largest byte.
    pub fn largest(&self) -> u8 {
        self.table.into_iter().max().unwrap_or(0)
    }
}

/// How the numbers of a format become signed bytes: `number * 2^exponent - centre`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignedBytes {
    /// The power of two, 0 to 3.
    pub exponent: i32,
    /// Half of the range of integers of 8 bits without a sign, else 0.
    pub centre: u8,
}

impl SignedBytes {
    /// Those of a format; `None` if its finite numbers have a larger range.
    pub fn of(number: Number) -> Option<Self> {
        let format = match number {
            Number::Int(1..=8) | Number::Uint(1..=7) => return Some(Self::default()),
            Number::Uint(8) => return Some(Self { exponent: 0, centre: 1 << 7 }),
            Number::Float(format) => format,
            Number::Int(_) | Number::Uint(_) | Number::E8m0 => return None,
        };
        // Every number is a multiple of the smallest one.
        let whole = |exponent: &i32| (format.decode(1) * 2f64.powi(*exponent)).fract() == 0.0;
        let exponent = (0..=MOST_EXPONENT).find(whole)?;
        let fits = format.max() * 2f64.powi(exponent) <= f64::from(i8::MAX);
        fits.then_some(Self { exponent, centre: 0 })
    }

    /// The largest magnitude of a byte of a format.
    pub fn largest(self, number: Number) -> f64 {
        let byte = |number: f64| number * 2f64.powi(self.exponent) - f64::from(self.centre);
        byte(number.min()).abs().max(byte(number.max()).abs())
    }
}
