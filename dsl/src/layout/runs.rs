//! A bound layout as affine runs: for every field, a bit address that is a constant plus a sum
//! of digit value times bit stride.
//!
//! If a code may cross a word boundary, the pattern repeats every `lcm(step, word)` bits: the steps
//! of one period are unrolled, one run each (two if the boundary splits the code), with their
//! digits fixed at constants. A field that belongs to one step fixes all digits that count the
//! steps of its word.

use super::bind::Granularity;
use super::bound::{BoundDigit, BoundLayout, Node, NodePlace};
use super::{Axis, Component, Fill, Shape};

/// One loop of a run, or a digit that is fixed at a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffineDigit {
    /// e, n or k.
    pub axis: Axis,
    /// Stride, in indices of the axis.
    pub stride: u64,
    /// Number of values.
    pub size: u64,
    /// Address stride in bits.
    pub place: i64,
    /// The constant, if the digit is fixed.
    pub fixed: Option<u64>,
}

/// Bits `low..high` of a component, stored contiguously (least significant first) at `base +
/// sum(value * place)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffineRun {
    /// The component.
    pub component: Component,
    /// Width and group of the component.
    pub granularity: Granularity,
    /// First bit of the component.
    pub low: u32,
    /// One past the last bit.
    pub high: u32,
    /// How many bits above the field repeat its top bit.
    pub sign_extension: u32,
    /// Address of the first bit at index 0.
    pub base: i64,
    /// The digits.
    pub digits: Vec<AffineDigit>,
}

/// The most runs; layouts with more of them are not affine for our purposes.
const MOST_RUNS: u64 = 4096;

impl BoundLayout {
    /// The runs of one component, or `None` if the layout is not affine (swizzles) or needs more
    /// than `MOST_RUNS`.
    pub fn runs(&self, component: Component) -> Option<Vec<AffineRun>> {
        let mut runs = Vec::new();
        self.root.runs(component, self.shape(), 0, &[], &mut runs)?;
        for run in &mut runs {
            run.digits.retain(|digit| digit.size > 1);
        }
        (runs.len() as u64 <= MOST_RUNS).then_some(runs)
    }
}

/// A digit with an address stride of `place` bits; moves the base if the digit counts down.
fn step(digit: &BoundDigit, place: i64, base: &mut i64) -> Option<AffineDigit> {
    if digit.swizzle.is_some() {
        return None;
    }
    let BoundDigit { axis, stride, size, .. } = *digit;
    let place = if digit.down {
        *base += place * (size as i64 - 1);
        -place
    } else {
        place
    };
    Some(AffineDigit { axis, stride, size, place, fixed: None })
}

/// A digit fixed at the count `value`.
fn held(digit: &BoundDigit, value: u64) -> Option<AffineDigit> {
    if digit.swizzle.is_some() {
        return None;
    }
    let BoundDigit { axis, stride, size, down, .. } = *digit;
    let fixed = if down { size - 1 - value } else { value };
    Some(AffineDigit { axis, stride, size, place: 0, fixed: Some(fixed) })
}

impl Node {
    fn runs(
        &self,
        wanted: Component,
        shape: Shape,
        base: i64,
        outer: &[AffineDigit],
        runs: &mut Vec<AffineRun>,
    ) -> Option<()> {
        match self {
            Self::Pad { .. } => Some(()),
            Self::Bits { component, granularity, low, high } => {
                if *component == wanted {
                    runs.push(AffineRun {
                        component: wanted,
                        granularity: *granularity,
                        low: *low,
                        high: *high,
                        sign_extension: 0,
                        base,
                        digits: outer.to_vec(),
                    });
                }
                Some(())
            }
            Self::Step { digits, body } => {
                let mut at = outer.to_vec();
                for (digit, value) in digits {
                    at.push(held(digit, *value)?);
                }
                body.runs(wanted, shape, base, &at, runs)
            }
            Self::Sequence(parts) => {
                for (offset, node) in parts {
                    node.runs(wanted, shape, base + *offset as i64, outer, runs)?;
                }
                Some(())
            }
            Self::For { digit, stride, body } => {
                let mut base = base;
                let mut digits = outer.to_vec();
                digits.push(step(digit, *stride as i64, &mut base)?);
                body.runs(wanted, shape, base, &digits, runs)
            }
            Self::Word { width, msf, run, words, fields, inner, places } => {
                let mut base = base;
                let mut digits = outer.to_vec();
                let mut word_stride = *width as i64;
                for (stride, place) in places {
                    match place {
                        NodePlace::Word => word_stride = *stride as i64,
                        NodePlace::Digit(digit) => {
                            digits.push(step(digit, *stride as i64, &mut base)?);
                        }
                    }
                }
                let cut = Cut {
                    shape,
                    width: *width as i64,
                    msf: *msf,
                    word_stride,
                    contiguous: *words == 1 || !*msf && word_stride == *width as i64,
                };
                cut.fields(wanted, fields, *run, inner, base, &digits, runs)
            }
        }
    }
}

/// How a run of fields is split into words.
struct Cut {
    shape: Shape,
    width: i64,
    msf: bool,
    word_stride: i64,
    /// Positions in the run are positions in memory: one word, or contiguous words.
    contiguous: bool,
}

impl Cut {
    #[expect(clippy::too_many_arguments, reason = "the parts of one Word node")]
    fn fields(
        &self,
        wanted: Component,
        fields: &[(u64, u64, Node)],
        run: u64,
        inner: &[(u64, BoundDigit)],
        base: i64,
        outer: &[AffineDigit],
        runs: &mut Vec<AffineRun>,
    ) -> Option<()> {
        let single = run <= self.width as u64;
        // The steps are loops, or unrolled if a code may cross a word boundary.
        let (looped, written) = if self.contiguous && (single || !self.msf) {
            (inner.iter().map(|(place, digit)| (*place as i64, *digit)).collect(), Vec::new())
        } else {
            self.split(fields, inner)?
        };
        for (position, (offset, bits, node)) in fields.iter().enumerate() {
            let (of_step, field) = match node {
                Node::Step { digits, body } => (&digits[..], &**body),
                field => (&[][..], field),
            };
            let Node::Bits { component, granularity, low, high } = field else { continue };
            if *component != wanted {
                continue;
            }
            let mut outer = outer.to_vec();
            for (digit, value) in of_step {
                outer.push(held(digit, *value)?);
            }
            let sign_extension = match fields.get(position + 1) {
                Some((_, pad, Node::Pad { fill: Fill::Sign })) => *pad as u32,
                _ => 0,
            };
            for constants in combinations(&written) {
                let mut start = *offset as i64;
                let mut digits = outer.clone();
                for ((place, digit), value) in written.iter().zip(&constants) {
                    start += place * *value as i64;
                    digits.push(held(digit, *value)?);
                }
                // Only the slice with the code's top bit has its sign.
                let signed =
                    *high == granularity.bits && self.in_one_word(start, *bits, sign_extension);
                if sign_extension > 0 && !signed {
                    return None;
                }
                let mut shift = 0;
                for (place, digit) in &looped {
                    digits.push(step(
                        digit,
                        if self.msf && single { -place } else { *place },
                        &mut shift,
                    )?);
                }
                for slice in self.slices(start, *bits as i64, single) {
                    let top = slice.high == *bits as i64;
                    let sign_extension = if top { sign_extension } else { 0 };
                    runs.push(AffineRun {
                        component: wanted,
                        granularity: *granularity,
                        low: low + slice.low as u32,
                        high: low + slice.high as u32,
                        sign_extension,
                        base: base + shift + slice.address,
                        digits: digits.clone(),
                    });
                }
                debug_assert!(u64::from(high - low) == *bits);
            }
        }
        Some(())
    }

    /// Whether the bits of a code and the copies of its sign are contiguous, and few enough for one
    /// [`super::write_bits`].
    fn in_one_word(&self, start: i64, bits: u64, sign_extension: u32) -> bool {
        let top = start + bits as i64 - 1;
        let last = top + i64::from(sign_extension);
        let contiguous = self.contiguous || top / self.width == last / self.width;
        contiguous && bits + u64::from(sign_extension) <= 56
    }

    /// Splits the steps into unrolled and looped digits at the period of the word pattern.
    #[expect(clippy::type_complexity, reason = "two lists of the same pairs")]
    fn split(
        &self,
        fields: &[(u64, u64, Node)],
        inner: &[(u64, BoundDigit)],
    ) -> Option<(Vec<(i64, BoundDigit)>, Vec<(i64, BoundDigit)>)> {
        let step: u64 = fields.iter().map(|(_, bits, _)| bits).sum();
        let width = self.width as u64;
        let period = width / gcd(step.max(1), width);
        let mut looped = Vec::new();
        let mut written = Vec::new();
        let mut runs = 1u64;
        for (place, digit) in inner {
            let steps_below = place / step.max(1);
            if steps_below >= period && steps_below.is_multiple_of(period) {
                looped.push((self.words_of(*place)?, *digit));
                continue;
            }
            let steps_left = period.div_ceil(steps_below.max(1));
            // An upper part that is too large must end at the end of the axis, not at the next
            // digit.
            let extent = match digit.axis {
                Axis::E => self.shape.experts,
                Axis::N => self.shape.n,
                Axis::K | Axis::G => self.shape.k,
            };
            let whole = digit.size.is_multiple_of(steps_left)
                || digit.stride.saturating_mul(digit.size) >= extent;
            let splits = steps_left < digit.size
                && whole
                && period.is_multiple_of(steps_below.max(1))
                && !digit.down
                && digit.swizzle.is_none();
            if splits {
                let below = BoundDigit { size: steps_left, ..*digit };
                let above = BoundDigit {
                    stride: digit.stride * steps_left,
                    size: digit.size.div_ceil(steps_left),
                    ..*digit
                };
                written.push((*place as i64, below));
                looped.push((self.words_of(place * steps_left)?, above));
                runs = runs.checked_mul(steps_left)?;
            } else {
                if digit.swizzle.is_some() {
                    return None;
                }
                written.push((*place as i64, *digit));
                runs = runs.checked_mul(digit.size)?;
            }
        }
        (runs <= MOST_RUNS).then_some((looped, written))
    }

    /// Address stride of a position stride that is whole words.
    fn words_of(&self, positions: u64) -> Option<i64> {
        let positions = positions as i64;
        (positions % self.width == 0).then_some(positions / self.width * self.word_stride)
    }

    /// The segments of a field at position `start` of the run, split at word boundaries.
    fn slices(&self, start: i64, bits: i64, single: bool) -> Vec<Slice> {
        if self.contiguous && (single || !self.msf) {
            // Most-significant-first in one word: the field's top bit is at position `start`.
            let address = if self.msf { self.width - start - bits } else { start };
            return vec![Slice { low: 0, high: bits, address }];
        }
        let mut slices = Vec::new();
        let mut at = start;
        while at < start + bits {
            let end = (start + bits).min((at / self.width + 1) * self.width);
            let word = at / self.width * self.word_stride;
            slices.push(if self.msf {
                Slice {
                    low: start + bits - end,
                    high: start + bits - at,
                    address: word + self.width - (end - at / self.width * self.width),
                }
            } else {
                Slice { low: at - start, high: end - start, address: word + at % self.width }
            });
            at = end;
        }
        slices
    }
}

struct Slice {
    low: i64,
    high: i64,
    address: i64,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Every tuple of values of the digits; one empty tuple if there are none.
fn combinations(digits: &[(i64, BoundDigit)]) -> Vec<Vec<u64>> {
    digits.iter().fold(vec![Vec::new()], |tuples, (_, digit)| {
        let extend = |tuple: &Vec<u64>| -> Vec<Vec<u64>> {
            (0..digit.size).map(|value| [&tuple[..], &[value]].concat()).collect()
        };
        tuples.iter().flat_map(extend).collect()
    })
}
