//! Layout digits with named outputs: which register and lane holds an element of a matrix
//! instruction's operand. `[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8]` reads: position in the register,
//! register, lane; the first digit of an output is the fastest.

use std::fmt;

use super::{Axis, Digit, DigitRange};

/// A point of an operand: its row (n, or m) and its column k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Point {
    /// Row.
    pub n: u32,
    /// Column.
    pub k: u32,
}

/// A bijection from the points of a small matrix to a tuple of outputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    outputs: Vec<Vec<Digit>>,
    rows: u32,
    cols: u32,
}

/// Why a list of digits is not a fragment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentError {
    /// A digit without a fixed size, of e or g, or a swizzle.
    #[error("`{0}`: a fragment's digits are plain digits of n and k with a size")]
    NotFixed(String),
    /// The digits of an axis leave a gap or overlap.
    #[error("the digits of {axis} do not form a chain: expected stride {expected}, found {found}")]
    Chain {
        /// The axis.
        axis: Axis,
        /// Stride that the chain needs next.
        expected: u32,
        /// Stride that was found.
        found: u32,
    },
}

impl Fragment {
    /// Checks that the digits of each axis form a chain from stride 1.
    ///
    /// # Errors
    /// [`FragmentError`] names the digit or the axis.
    pub fn new(outputs: Vec<Vec<Digit>>) -> Result<Self, FragmentError> {
        let rows = chain_extent(&outputs, Axis::N)?;
        let cols = chain_extent(&outputs, Axis::K)?;
        Ok(Self { outputs, rows, cols })
    }

    /// Rows by columns of the operand.
    pub fn extents(&self) -> (u32, u32) {
        (self.rows, self.cols)
    }

    /// Number of values of each output.
    pub fn sizes(&self) -> Vec<u32> {
        let size = |digits: &Vec<Digit>| digits.iter().map(|d| fixed(d).1).product();
        self.outputs.iter().map(size).collect()
    }

    /// The outputs of a point: one number each.
    pub fn place(&self, point: Point) -> Vec<u32> {
        let place = |digits: &Vec<Digit>| {
            let mut scale = 1;
            let mut sum = 0;
            for digit in digits {
                let (stride, size) = fixed(digit);
                let index = if digit.axis == Axis::N { point.n } else { point.k };
                let value = index / stride % size;
                sum += scale * if digit.down { size - 1 - value } else { value };
                scale *= size;
            }
            sum
        };
        self.outputs.iter().map(place).collect()
    }

    /// The point with these outputs, the inverse of [`Fragment::place`].
    pub fn point(&self, place: &[u32]) -> Point {
        let mut point = Point::default();
        for (digits, &value) in self.outputs.iter().zip(place) {
            let mut rest = value;
            for digit in digits {
                let (stride, size) = fixed(digit);
                let value = rest % size;
                rest /= size;
                let value = if digit.down { size - 1 - value } else { value };
                *(if digit.axis == Axis::N { &mut point.n } else { &mut point.k }) +=
                    value * stride;
            }
        }
        point
    }
}

/// Stride and size; `Fragment::new` has rejected digits without a size.
fn fixed(digit: &Digit) -> (u32, u32) {
    match digit.part {
        DigitRange::Sized { stride, size } => (stride, size),
        _ => (1, 1),
    }
}

fn chain_extent(outputs: &[Vec<Digit>], axis: Axis) -> Result<u32, FragmentError> {
    let mut chain = Vec::new();
    for digit in outputs.iter().flatten() {
        let plain = matches!(digit.axis, Axis::N | Axis::K) && digit.swizzle.is_none();
        match digit.part {
            DigitRange::Sized { stride, size } if plain && stride > 0 && size > 0 => {
                if digit.axis == axis {
                    chain.push((stride, size));
                }
            }
            _ => return Err(FragmentError::NotFixed(digit.to_string())),
        }
    }
    chain.sort_unstable();
    chain.into_iter().try_fold(1u32, |expected, (found, size)| {
        if found == expected {
            expected.checked_mul(size).ok_or(FragmentError::Chain { axis, expected, found })
        } else {
            Err(FragmentError::Chain { axis, expected, found })
        }
    })
}

impl fmt::Display for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (position, digits) in self.outputs.iter().enumerate() {
            if position > 0 {
                f.write_str(" ; ")?;
            }
            for (at, digit) in digits.iter().enumerate() {
                if at > 0 {
                    f.write_str(", ")?;
                }
                write!(f, "{digit}")?;
            }
        }
        f.write_str("]")
    }
}
