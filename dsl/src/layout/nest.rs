//! The fast form of a transform: loop nests over the digits that two affine layouts have in common.
//!
//! In: the affine runs of both sides. Out: one [`Nest`] for every two runs with common bits. The
//! innermost digits of a nest gather one destination word; the outermost is split among threads.

use super::bits::{each_part, read_bits, write_bits};
use super::runs::{AffineDigit, AffineRun};
use super::transform::Recode;
use super::{Axis, Shape};

/// Two runs: the same bits on both sides, over common digits.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    /// Bits moved.
    width: u32,
    sign_extension: u32,
    /// Whether the slice is the whole code, so that it can be recoded.
    whole_code: bool,
    source: i64,
    destination: i64,
    /// Slowest destination stride first.
    loops: Vec<Loop>,
    /// The index of the constant digits.
    start: [u64; 3],
    /// Offsets of the innermost digits: source bits, destination bits, index.
    gathered: Vec<Step>,
    /// Bits that the innermost digits span in the destination.
    span: u32,
    extents: [u64; 3],
    ragged: bool,
}

#[derive(Clone, Copy, Debug)]
struct Loop {
    axis: usize,
    stride: u64,
    size: u64,
    source: i64,
    destination: i64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    source: i64,
    destination: i64,
    index: [u64; 3],
}

/// Pairs every two runs with common bits; `None` if the chains of some have no common refinement.
pub(super) fn nests(
    from: &[AffineRun],
    to: &[AffineRun],
    shape: Shape,
    recode: &Recode,
) -> Option<Vec<Nest>> {
    let mut nests = Vec::new();
    for b in to {
        for a in from {
            let (low, high) = (a.low.max(b.low), a.high.min(b.high));
            if low >= high {
                continue;
            }
            let whole_code = low == 0 && high == a.granularity.bits;
            if *recode != Recode::Keep && !whole_code {
                return None;
            }
            if let Pairing::Common(nest) = pair(a, b, low, high, shape)? {
                nests.push(*nest);
            }
        }
    }
    Some(nests)
}

enum Pairing {
    Common(Box<Nest>),
    /// No index is in both.
    Disjoint,
}

fn pair(a: &AffineRun, b: &AffineRun, low: u32, high: u32, shape: Shape) -> Option<Pairing> {
    let extents = [shape.experts, shape.n, shape.k];
    let mut loops = Vec::new();
    let mut start = [0; 3];
    let mut source = a.base + i64::from(low - a.low);
    let mut destination = b.base + i64::from(low - b.low);
    let mut ragged = false;
    for (axis, name) in [Axis::E, Axis::N, Axis::K].into_iter().enumerate() {
        let of = |run: &AffineRun| -> Vec<AffineDigit> {
            run.digits.iter().copied().filter(|digit| digit.axis == name).collect()
        };
        let (of_a, of_b) = (of(a), of(b));
        let mut cuts: Vec<u64> = of_a.iter().chain(&of_b).map(|digit| digit.stride).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for (at, &stride) in cuts.iter().enumerate() {
            let (size, modulus) = match cuts.get(at + 1) {
                Some(next) if next % stride == 0 => (next / stride, next / stride),
                Some(_) => return None,
                // An unrolled digit may have values beyond the end of the axis, which are kept.
                None => (extents[axis].div_ceil(stride), u64::MAX),
            };
            let (from_a, from_b) = (part(&of_a, stride, modulus), part(&of_b, stride, modulus));
            let fixed = match (from_a.1, from_b.1) {
                (Some(x), Some(y)) if x != y => return Some(Pairing::Disjoint),
                (x, y) => x.or(y),
            };
            match fixed {
                Some(value) => {
                    start[axis] += value * stride;
                    source += from_a.0 * value as i64;
                    destination += from_b.0 * value as i64;
                }
                None if size > 1 => {
                    loops.push(Loop { axis, stride, size, source: from_a.0, destination: from_b.0 })
                }
                None => {}
            }
        }
        let covered = cuts.last().map_or(1, |last| last * extents[axis].div_ceil(*last));
        ragged |= covered != extents[axis];
        // Unrolled digits may have values beyond the end of the axis.
        if start[axis] >= extents[axis] {
            return Some(Pairing::Disjoint);
        }
    }
    loops.sort_by_key(|digit| std::cmp::Reverse(digit.destination.abs()));
    let mut nest = Nest {
        width: high - low,
        sign_extension: if high == b.high { b.sign_extension } else { 0 },
        whole_code: low == 0 && high == a.granularity.bits,
        source,
        destination,
        loops,
        start,
        gathered: vec![Step::default()],
        span: 0,
        extents,
        ragged,
    };
    nest.gather_word();
    Some(Pairing::Common(Box::new(nest)))
}

/// Address stride and constant of the sub-digit `stride, size` of a chain.
fn part(chain: &[AffineDigit], stride: u64, size: u64) -> (i64, Option<u64>) {
    let holder = chain.iter().filter(|digit| digit.stride <= stride).max_by_key(|d| d.stride);
    holder.map_or((0, None), |digit| {
        let ratio = stride / digit.stride;
        let place = digit.place * ratio as i64;
        (place, digit.fixed.map(|value| value / ratio % size))
    })
}

impl Nest {
    /// Unrolls the innermost loops into one list of steps as long as one destination word holds
    /// them.
    fn gather_word(&mut self) {
        let field = self.width + self.sign_extension;
        let mut low = 0i64;
        let mut high = i64::from(field);
        while let Some(last) = self.loops.last().copied() {
            let reach = last.destination * (last.size as i64 - 1);
            let (new_low, new_high) = (low.min(low + reach), high.max(high + reach));
            // One loop remains, for the threads.
            if new_high - new_low > 56 || self.loops.len() == 1 {
                break;
            }
            (low, high) = (new_low, new_high);
            self.loops.pop();
            self.gathered = (0..last.size)
                .flat_map(|value| self.gathered.iter().map(move |step| step.at(&last, value)))
                .collect();
        }
        for step in &mut self.gathered {
            step.destination -= low;
        }
        self.destination += low;
        self.span = (high - low) as u32;
    }

    pub(super) fn run(&self, source: &[u8], destination: &mut [u8], recode: &Recode) {
        let Some((outermost, rest)) = self.loops.split_first() else {
            let first =
                Step { source: self.source, destination: self.destination, index: self.start };
            self.word(source, destination, first, recode);
            return;
        };
        let inner_reach: i64 = rest
            .iter()
            .map(|digit| digit.destination.max(0) * (digit.size as i64 - 1))
            .sum::<i64>()
            + self.destination
            + i64::from(self.span);
        let part = outermost.destination;
        let separable = part > 0
            && part % 8 == 0
            && inner_reach <= part
            && rest.iter().all(|digit| digit.destination >= 0);
        let first = |value: u64| {
            Step { source: self.source, destination: self.destination, index: self.start }
                .at_source(outermost, value)
        };
        if separable {
            each_part(destination, (part / 8) as usize, |value, bytes| {
                if (value as u64) < outermost.size {
                    self.nest(source, bytes, rest, first(value as u64), recode);
                }
            });
        } else {
            for value in 0..outermost.size {
                let mut step = first(value);
                step.destination += outermost.destination * value as i64;
                self.nest(source, destination, rest, step, recode);
            }
        }
    }

    fn nest(&self, source: &[u8], bytes: &mut [u8], loops: &[Loop], step: Step, recode: &Recode) {
        match loops.split_first() {
            None => self.word(source, bytes, step, recode),
            Some((outer, rest)) => {
                for value in 0..outer.size {
                    self.nest(source, bytes, rest, step.at(outer, value), recode);
                }
            }
        }
    }

    /// Gathers one destination word.
    fn word(&self, source: &[u8], bytes: &mut [u8], at: Step, recode: &Recode) {
        let mut word = 0u64;
        for step in &self.gathered {
            if self.ragged {
                let inside =
                    (0..3).all(|axis| at.index[axis] + step.index[axis] < self.extents[axis]);
                if !inside {
                    continue;
                }
            }
            let mut code = read_bits(source, (at.source + step.source) as u64, self.width) as u32;
            if self.whole_code {
                code = recode.apply(code);
            }
            word |= self.extended(code) << step.destination;
        }
        // Steps beyond the end of an axis, which write nothing, may have addresses below the first
        // one.
        if word != 0 {
            let below = (-at.destination).max(0);
            let span = self.span - below as u32;
            write_bits(bytes, (at.destination + below) as u64, span, word >> below);
        }
    }

    fn extended(&self, code: u32) -> u64 {
        if self.sign_extension == 0 || code >> (self.width - 1) & 1 == 0 {
            return u64::from(code);
        }
        let ones = (1u64 << self.sign_extension) - 1;
        u64::from(code) | ones << self.width
    }
}

impl Step {
    fn at(&self, digit: &Loop, value: u64) -> Self {
        let mut step = self.at_source(digit, value);
        step.destination += digit.destination * value as i64;
        step
    }

    fn at_source(&self, digit: &Loop, value: u64) -> Self {
        let mut step = *self;
        step.source += digit.source * value as i64;
        step.index[digit.axis] += digit.stride * value;
        step
    }
}
