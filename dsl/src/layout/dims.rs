//! The dimensions of a stored tensor.

use super::chain::Resolved;
use super::{Axis, Digit, Field, Layout, OrderDigit};

impl Layout {
    /// Sizes of the stored tensor's dimensions, slowest first: one per digit; `w` joins the
    /// adjacent digit of the axis of its run.
    ///
    /// The unit is words, elements of 8, 16 or 32 bits, or bytes. A step that is not whole bytes
    /// has no dimensions: the tensor is then a vector of bytes, the last one padded.
    pub(super) fn dims(&self, resolved: &[Option<Resolved>], bits: u64) -> Vec<u64> {
        let size = |id: usize| resolved[id].map_or(1, |digit| digit.size);
        let mut dims: Vec<u64> = match self {
            Self::For { digits, body } => {
                let mut dims: Vec<u64> = (0..digits.len()).map(size).collect();
                let total: u64 = dims.iter().product();
                let step = bits.checked_div(total).unwrap_or(0);
                let elements = matches!(**body, Self::Field(Field::Bits { range: None, .. }));
                match step {
                    8 | 16 | 32 if elements => dims,
                    _ if step.is_multiple_of(8) => {
                        dims.insert(0, step / 8);
                        dims
                    }
                    _ => vec![bits.div_ceil(8)],
                }
            }
            Self::Word { word, inner, order, .. } => {
                let mut id = inner.len();
                let mut dims: Vec<(Option<Axis>, u64)> = Vec::new();
                let mut placed = 1;
                for place in order {
                    if let OrderDigit::Digit(digit) = place {
                        dims.push((Some(digit.axis), size(id)));
                        placed *= size(id);
                        id += 1;
                    } else {
                        dims.push((None, 0));
                    }
                }
                let words = bits / u64::from(word.bits);
                join_word_dim(dims, words / placed.max(1), inner)
            }
            _ => vec![bits.div_ceil(8)],
        };
        dims.reverse();
        dims
    }
}

fn join_word_dim(dims: Vec<(Option<Axis>, u64)>, words: u64, inner: &[Digit]) -> Vec<u64> {
    let axis = inner.first().map(|digit| digit.axis);
    let Some(at) = dims.iter().position(|(axis, _)| axis.is_none()) else {
        return dims.into_iter().map(|(_, size)| size).collect();
    };
    let mut sizes: Vec<u64> = dims.iter().map(|(_, size)| *size).collect();
    let same = |other: Option<&(Option<Axis>, u64)>| other.is_some_and(|(a, _)| *a == axis);
    if same(dims.get(at + 1)) {
        sizes[at + 1] *= words;
        sizes.remove(at);
    } else if at > 0 && same(dims.get(at - 1)) {
        sizes[at - 1] *= words;
        sizes.remove(at);
    } else {
        sizes[at] = words;
    }
    sizes
}
