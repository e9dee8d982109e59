//! The pieces of a destination: which bits a thread writes at once, and which elements lie there.
//!
//! Pieces of one section are alike. An array of one kind of words is one section; where planes lie
//! side by side, or the words of a run apart, each of them is one: they follow each other inside of
//! a period, and periods fill the array.

use std::collections::BTreeMap;

use quantloom_dsl::layout::{AffineRun, Axis};

/// Bits of a register.
pub(super) const REGISTER: u64 = 32;

/// Bits of a piece, the widest first: up to a store of 16 bytes, and what codes of 3, 5, 6 or 7 bits
/// fill without gaps.
const PIECES: [u64; 12] = [128, 224, 160, 96, 64, 32, 56, 48, 40, 24, 16, 8];

/// A digit of a run that is not held at a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digit {
    pub(super) axis: usize,
    pub(super) stride: u64,
    pub(super) size: u64,
    /// Bits in the array a value.
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

/// What lies in each piece of a section of one run.
pub(super) struct Contents<'r> {
    pub(super) run: &'r AffineRun,
    /// The digits that number the pieces, with the pieces a value.
    pub(super) outer: Vec<(Digit, u64)>,
    /// The elements of a piece: their index, the bit where the run's bits of them begin.
    pub(super) elements: Vec<([u64; 3], u64)>,
}

/// Pieces that are alike.
pub(super) struct Section<'r> {
    /// The first bit of the first one.
    pub(super) base: u64,
    pub(super) pieces: u64,
    /// Pieces side by side, and the bits from those to the next ones.
    pub(super) beside: u64,
    pub(super) period: u64,
    pub(super) contents: Vec<Contents<'r>>,
}

impl Section<'_> {
    /// Pieces that follow each other along one axis.
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

/// The sections of an array of so many bits, and the bits of a piece; `None` if no piece is such
/// that all are alike.
pub(super) fn sections(runs: &[AffineRun], bits: u64) -> Option<(u64, Vec<Section<'_>>)> {
    PIECES.into_iter().find_map(|piece| {
        let fits = bits.is_multiple_of(piece);
        Some((piece, fits.then(|| divided(runs, bits, piece))??))
    })
}

fn divided(runs: &[AffineRun], bits: u64, piece: u64) -> Option<Vec<Section<'_>>> {
    let mut sections: BTreeMap<u64, Section<'_>> = BTreeMap::new();
    for run in runs {
        let (outer, inner) = digits(run, piece)?;
        let base = u64::try_from(run.base).ok()?;
        let written = u64::from(run.high - run.low + run.sign_extension);
        let reach: u64 = inner.iter().map(|digit| digit.place * (digit.size - 1)).sum();
        let first = base % piece;
        (first + reach + written <= piece).then_some(())?;
        // Side by side up to a place, and from another one on.
        let (mut next, mut pieces, mut beside) = (piece, 1, None);
        let mut numbered = Vec::new();
        for digit in outer {
            if digit.place != next && beside.is_none() {
                beside = Some((pieces, digit.place));
                next = digit.place;
            }
            (digit.place == next).then_some(())?;
            numbered.push((digit, pieces));
            next *= digit.size;
            pieces *= digit.size;
        }
        let (beside, period) = beside.unwrap_or((pieces, bits));
        (period / piece >= beside && (next == bits || period == bits)).then_some(())?;
        let base = base - first;
        let empty = || Section { base, pieces, beside, period, contents: Vec::new() };
        let section = sections.entry(base).or_insert_with(empty);
        let alike = (section.pieces, section.beside, section.period) == (pieces, beside, period);
        alike.then_some(())?;
        let elements = elements(&inner, first);
        section.contents.push(Contents { run, outer: numbered, elements });
    }
    let period = sections.values().next()?.period;
    let mut end = 0;
    for section in sections.values() {
        (section.base == end && section.period == period).then_some(())?;
        end += section.beside * piece;
    }
    (end == period).then(|| sections.into_values().collect())
}

/// A run's digits that number its pieces, slowest last, and those inside of a piece.
fn digits(run: &AffineRun, piece: u64) -> Option<(Vec<Digit>, Vec<Digit>)> {
    let (mut outer, mut inner) = (Vec::new(), Vec::new());
    for digit in run.digits.iter().filter(|digit| digit.fixed.is_none()) {
        let place = u64::try_from(digit.place).ok().filter(|place| *place > 0)?;
        let (axis, stride, size) = (axis(digit.axis), digit.stride, digit.size);
        if place >= piece {
            outer.push(Digit { axis, stride, size, place });
        } else if place * size <= piece {
            inner.push(Digit { axis, stride, size, place });
        } else {
            let below = piece.is_multiple_of(place).then_some(piece / place)?;
            inner.push(Digit { axis, stride, size: below, place });
            let (stride, size) = (stride * below, size.div_ceil(below));
            outer.push(Digit { axis, stride, size, place: piece });
        }
    }
    outer.sort_by_key(|digit| digit.place);
    Some((outer, inner))
}

/// Index and place of each element of a piece.
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
