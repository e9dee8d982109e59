//! The vectors of a destination: the bits that a thread writes at once, and the elements in them.
//!
//! The vectors of a plane have the same structure. An array of one kind of words is one plane; if bit planes,
//! or the words of a lane's units, are interleaved, each of them is a plane: planes follow one another
//! within a period, and periods fill the array.

use std::collections::BTreeMap;

use quantloom_dsl::layout::{AffineRun, Axis};

/// Bits of a register.
pub(super) const REGISTER: u64 = 32;

/// Bits of a vector, the widest first: up to a store of 16 bytes, and sizes that codes of 3, 5, 6 or 7
/// bits fill without gaps.
const VECTORS: [u64; 12] = [128, 224, 160, 96, 64, 32, 56, 48, 40, 24, 16, 8];

/// A digit of a run without a fixed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digit {
    pub(super) axis: usize,
    pub(super) stride: u64,
    pub(super) size: u64,
    /// The address stride, in bits.
    pub(super) place: u64,
}

/// The index of an axis among experts, rows, columns.
pub(super) const fn axis(axis: Axis) -> usize {
    match axis {
        Axis::E => 0,
        Axis::N => 1,
        Axis::K | Axis::G => 2,
    }
}

/// The elements of one run in each vector of a plane.
pub(super) struct Contents<'r> {
    pub(super) run: &'r AffineRun,
    /// The digits of the vectors' number, with their strides in vectors.
    pub(super) outer: Vec<(Digit, u64)>,
    /// The elements of a vector: their index, and the first bit of the run's part of them.
    pub(super) elements: Vec<([u64; 3], u64)>,
}

/// Vectors with the same structure.
pub(super) struct Plane<'r> {
    /// The first bit of the first vector.
    pub(super) base: u64,
    pub(super) vectors: u64,
    /// Adjacent vectors, and the distance in bits to the next such vectors.
    pub(super) beside: u64,
    pub(super) period: u64,
    pub(super) contents: Vec<Contents<'r>>,
}

impl Plane<'_> {
    /// Consecutive vectors along one axis.
    pub(super) fn line(&self) -> u64 {
        let Some(outer) = self.contents.first().map(|contents| &contents.outer) else { return 1 };
        let Some((first, _)) = outer.first() else { return 1 };
        outer
            .iter()
            .take_while(|(digit, _)| digit.axis == first.axis)
            .map(|(digit, _)| digit.size)
            .product()
    }
}

/// The planes of an array of `bits` bits, and the bits of a vector; `None` if no vector size gives
/// vectors of the same structure.
pub(super) fn planes(runs: &[AffineRun], bits: u64) -> Option<(u64, Vec<Plane<'_>>)> {
    VECTORS.into_iter().find_map(|vector| {
        let fits = bits.is_multiple_of(vector);
        Some((vector, fits.then(|| divided(runs, bits, vector))??))
    })
}

fn divided(runs: &[AffineRun], bits: u64, vector: u64) -> Option<Vec<Plane<'_>>> {
    let mut planes: BTreeMap<u64, Plane<'_>> = BTreeMap::new();
    for run in runs {
        let (outer, inner) = digits(run, vector)?;
        let base = u64::try_from(run.base).ok()?;
        let written = u64::from(run.high - run.low + run.sign_extension);
        let reach: u64 = inner.iter().map(|digit| digit.place * (digit.size - 1)).sum();
        let first = base % vector;
        (first + reach + written <= vector).then_some(())?;
        // Adjacent up to a place, and from another one on.
        let (mut next, mut vectors, mut beside) = (vector, 1, None);
        let mut numbered = Vec::new();
        for digit in outer {
            if digit.place != next && beside.is_none() {
                beside = Some((vectors, digit.place));
                next = digit.place;
            }
            (digit.place == next).then_some(())?;
            numbered.push((digit, vectors));
            next *= digit.size;
            vectors *= digit.size;
        }
        let (beside, period) = beside.unwrap_or((vectors, bits));
        (period / vector >= beside && (next == bits || period == bits)).then_some(())?;
        let base = base - first;
        let empty = || Plane { base, vectors, beside, period, contents: Vec::new() };
        let plane = planes.entry(base).or_insert_with(empty);
        let alike = (plane.vectors, plane.beside, plane.period) == (vectors, beside, period);
        alike.then_some(())?;
        let elements = elements(&inner, first);
        plane.contents.push(Contents { run, outer: numbered, elements });
    }
    let period = planes.values().next()?.period;
    let mut end = 0;
    for plane in planes.values() {
        (plane.base == end && plane.period == period).then_some(())?;
        end += plane.beside * vector;
    }
    (end == period).then(|| planes.into_values().collect())
}

/// A run's digits that number its vectors, slowest last, and the digits within a vector.
fn digits(run: &AffineRun, vector: u64) -> Option<(Vec<Digit>, Vec<Digit>)> {
    let (mut outer, mut inner) = (Vec::new(), Vec::new());
    for digit in run.digits.iter().filter(|digit| digit.fixed.is_none()) {
        let place = u64::try_from(digit.place).ok().filter(|place| *place > 0)?;
        let (axis, stride, size) = (axis(digit.axis), digit.stride, digit.size);
        if place >= vector {
            outer.push(Digit { axis, stride, size, place });
        } else if place * size <= vector {
            inner.push(Digit { axis, stride, size, place });
        } else {
            let below = vector.is_multiple_of(place).then_some(vector / place)?;
            inner.push(Digit { axis, stride, size: below, place });
            let (stride, size) = (stride * below, size.div_ceil(below));
            outer.push(Digit { axis, stride, size, place: vector });
        }
    }
    outer.sort_by_key(|digit| digit.place);
    Some((outer, inner))
}

/// The index and the first bit of each element of a vector.
fn elements(inner: &[Digit], first: u64) -> Vec<([u64; 3], u64)> {
    inner.iter().fold(vec![([0; 3], first)], |elements, digit| {
        let at = |(index, place): &([u64; 3], u64), value: u64| {
            let mut index = *index;
            index[digit.axis] += value * digit.stride;
            (index, place + value * digit.place)
        };
        elements
            .iter()
            .flat_map(|element| (0..digit.size).map(move |value| at(element, value)))
            .collect()
    })
}
