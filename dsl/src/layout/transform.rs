//! Moving one component from one bound layout to another: read, recode, write.
//!
//! In: two layouts bound to the same shape. Out: a [`Transform`] that fills a zeroed (or
//! [`Bound::blank`]) destination. Where the digit chains of both sides refine to common
//! digits, it is a loop nest over them, whose innermost digits gather one destination word;
//! where they do not, it goes through plain codes; a swizzled side is gathered bit by bit.
//! All three give what the algebra's address function says.

use super::bound::{Bound, Element, Slot};
use super::runs::{Run, RunDigit};
use super::{Axis, Component, Digit, Field, Fill, Layout, Part, Place, Shape, WordType};
use crate::layout::Grains;

/// A bijection of code values, applied on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recode {
    /// The value itself.
    Keep,
    /// XOR with a mask (a two's-complement code to its offset form and back).
    Xor(u32),
    /// A table over all codes.
    Table(Vec<u32>),
}

impl Recode {
    fn apply(&self, code: u32) -> u32 {
        match self {
            Self::Keep => code,
            Self::Xor(mask) => code ^ mask,
            Self::Table(table) => table[code as usize],
        }
    }

    /// The inverse bijection; `None` if a table is not one.
    pub fn inverse(&self) -> Option<Self> {
        let Self::Table(table) = self else { return Some(self.clone()) };
        let mut inverse = vec![None; table.len()];
        for (code, &image) in table.iter().enumerate() {
            let slot = inverse.get_mut(image as usize)?;
            if slot.replace(code as u32).is_some() {
                return None;
            }
        }
        inverse.into_iter().collect::<Option<Vec<u32>>>().map(Self::Table)
    }
}

/// How a transform runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A loop nest over the common digits.
    Nest,
    /// Two loop nests, through one 8-, 16- or 32-bit slot per element.
    Staged,
    /// Bit by bit through the address functions.
    Gather,
}

/// Why a transform could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// The two sides are bound to different shapes.
    #[error("the layouts are bound to different shapes: {0:?} and {1:?}")]
    Shapes(Shape, Shape),
    /// A component is missing on one side, or has another width or grain.
    #[error("`{0}` is not stored alike on both sides")]
    Component(Component),
    /// A buffer has the wrong size.
    #[error("the {side} buffer has {found} bytes, its layout takes {expected}")]
    Size {
        /// `source` or `destination`.
        side: &'static str,
        /// Bytes of the layout.
        expected: u64,
        /// Bytes of the buffer.
        found: u64,
    },
}

/// A planned move of one component.
#[derive(Clone, Debug)]
pub struct Transform {
    component: Component,
    source: Bound,
    destination: Bound,
    recode: Recode,
    steps: Steps,
}

#[derive(Clone, Debug)]
enum Steps {
    Nest(Vec<Nest>),
    Staged(Box<(Transform, Transform)>),
    Gather,
}

/// One pair of runs: the same bits on both sides, over common digits.
#[derive(Clone, Debug)]
struct Nest {
    /// Bits moved.
    width: u32,
    sign_extension: u32,
    /// The slice is the whole code, so that it can be recoded.
    whole_code: bool,
    source: i64,
    destination: i64,
    /// Slowest destination stride first.
    loops: Vec<Loop>,
    /// Index that the constants stand for.
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

impl Transform {
    /// Plans the move of `component` from `source` to `destination`.
    ///
    /// # Errors
    /// [`TransformError::Shapes`], [`TransformError::Component`].
    pub fn new(
        component: Component,
        source: &Bound,
        destination: &Bound,
        recode: Recode,
    ) -> Result<Self, TransformError> {
        if source.shape() != destination.shape() {
            return Err(TransformError::Shapes(source.shape(), destination.shape()));
        }
        let (grains, _) = source
            .held(component)
            .filter(|held| destination.held(component).as_ref() == Some(held))
            .ok_or(TransformError::Component(component))?;
        let steps = match (source.runs(component), destination.runs(component)) {
            (Some(from), Some(to)) => match nests(&from, &to, source.shape(), &recode) {
                Some(nests) => Steps::Nest(nests),
                None => staged(component, [source, destination], [&from, &to], grains)
                    .unwrap_or(Steps::Gather),
            },
            _ => Steps::Gather,
        };
        let (source, destination) = (source.clone(), destination.clone());
        Ok(Self { component, source, destination, recode, steps })
    }

    /// How it runs.
    pub fn method(&self) -> Method {
        match self.steps {
            Steps::Nest(_) => Method::Nest,
            Steps::Staged(_) => Method::Staged,
            Steps::Gather => Method::Gather,
        }
    }

    /// Moves the component. The destination's bits for it must be zero before.
    ///
    /// # Errors
    /// [`TransformError::Size`] if a buffer is not exactly its layout's size.
    pub fn run(&self, source: &[u8], destination: &mut [u8]) -> Result<(), TransformError> {
        check_size("source", &self.source, source.len())?;
        check_size("destination", &self.destination, destination.len())?;
        match &self.steps {
            Steps::Nest(nests) => {
                for nest in nests {
                    nest.run(source, destination, &self.recode);
                }
                Ok(())
            }
            Steps::Staged(both) => {
                let mut plain = vec![0; both.0.destination.bytes() as usize];
                both.0.run(source, &mut plain)?;
                recode_plain(&mut plain, self.width(), &self.recode);
                both.1.run(&plain, destination)
            }
            Steps::Gather => {
                self.gather(source, destination);
                Ok(())
            }
        }
    }

    fn gather(&self, source: &[u8], destination: &mut [u8]) {
        let width = self.width();
        let element = |index| {
            let code = (0..width).fold(0, |code, bit| {
                let element = Element { component: self.component, index, bit };
                let address = self.source.address(element);
                code | address.map_or(0, |at| read_bits(source, at, 1) as u32) << bit
            });
            self.recode.apply(code)
        };
        each_part(destination, 64, |part, bytes| {
            for bit in 0..bytes.len() as u64 * 8 {
                let address = part as u64 * 64 * 8 + bit;
                if address >= self.destination.bits() {
                    break;
                }
                let value = match self.destination.slot(address) {
                    Slot::Bit(at) if at.component == self.component => {
                        u64::from(element(at.index) >> at.bit & 1)
                    }
                    Slot::Sign(component, index) if component == self.component => {
                        u64::from(element(index) >> (width - 1) & 1)
                    }
                    _ => 0,
                };
                write_bits(bytes, bit, 1, value);
            }
        });
    }

    /// Bits of a whole code.
    fn width(&self) -> u32 {
        self.source.held(self.component).map_or(0, |(grains, _)| grains.bits)
    }
}

fn check_size(side: &'static str, bound: &Bound, found: usize) -> Result<(), TransformError> {
    let (expected, found) = (bound.bytes(), found as u64);
    if expected == found { Ok(()) } else { Err(TransformError::Size { side, expected, found }) }
}

impl Layout {
    /// One slot of 8, 16 or 32 bits an element, k fastest, then n, then e: plain codes.
    pub fn plain(component: Component, bits: u32) -> Self {
        let word = bits.next_power_of_two().max(8);
        let field = Field::all(component);
        let fields = match word - bits {
            0 => vec![field],
            pad => vec![field, Field::Pad { bits: pad as u8, fill: Fill::Zero }],
        };
        Self::Word {
            word: WordType { bits: word as u8, signed: false, msf: false },
            fields,
            inner: Vec::new(),
            order: [Axis::G, Axis::N, Axis::E]
                .map(|axis| Place::Digit(Digit::new(axis, Part::Open)))
                .to_vec(),
        }
    }
}

/// Through plain codes; `None` if a side's own digits do not nest.
fn staged(
    component: Component,
    [source, destination]: [&Bound; 2],
    [from, to]: [&[Run]; 2],
    grains: Grains,
) -> Option<Steps> {
    let plain = Layout::plain(component, grains.bits);
    let plain = plain.bind(source.shape(), &|_| Some(grains)).ok()?;
    let codes = plain.runs(component)?;
    let direct = |source: &Bound, destination: &Bound, from: &[Run], to: &[Run]| {
        let steps = Steps::Nest(nests(from, to, source.shape(), &Recode::Keep)?);
        let (source, destination) = (source.clone(), destination.clone());
        Some(Transform { component, source, destination, recode: Recode::Keep, steps })
    };
    let first = direct(source, &plain, from, &codes)?;
    let second = direct(&plain, destination, &codes, to)?;
    Some(Steps::Staged(Box::new((first, second))))
}

/// Recodes codes that lie in slots of 8, 16 or 32 bits.
fn recode_plain(plain: &mut [u8], width: u32, recode: &Recode) {
    if *recode == Recode::Keep {
        return;
    }
    let slot = (width.next_power_of_two().max(8) / 8) as usize;
    for bytes in plain.chunks_exact_mut(slot) {
        let code = read_bits(bytes, 0, width) as u32;
        bytes.copy_from_slice(&recode.apply(code).to_le_bytes()[..slot]);
    }
}

/// Pairs every two runs that hold common bits; `None` if some chains do not refine.
fn nests(from: &[Run], to: &[Run], shape: Shape, recode: &Recode) -> Option<Vec<Nest>> {
    let mut nests = Vec::new();
    for b in to {
        for a in from {
            let (low, high) = (a.low.max(b.low), a.high.min(b.high));
            if low >= high {
                continue;
            }
            let whole_code = low == 0 && high == a.grains.bits;
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

fn pair(a: &Run, b: &Run, low: u32, high: u32, shape: Shape) -> Option<Pairing> {
    let extents = [shape.experts, shape.n, shape.k];
    let mut loops = Vec::new();
    let mut start = [0; 3];
    let mut source = a.base + i64::from(low - a.low);
    let mut destination = b.base + i64::from(low - b.low);
    let mut ragged = false;
    for (axis, name) in [Axis::E, Axis::N, Axis::K].into_iter().enumerate() {
        let of = |run: &Run| -> Vec<RunDigit> {
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
                // A step that is written out may lie beyond the edge: it keeps its value.
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
        // Steps that are written out may lie beyond a ragged edge.
        if start[axis] >= extents[axis] {
            return Some(Pairing::Disjoint);
        }
    }
    loops.sort_by_key(|digit| std::cmp::Reverse(digit.destination.abs()));
    let mut nest = Nest {
        width: high - low,
        sign_extension: if high == b.high { b.sign_extension } else { 0 },
        whole_code: low == 0 && high == a.grains.bits,
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

/// Address step and constant of the sub-digit `stride, size` of a chain.
fn part(chain: &[RunDigit], stride: u64, size: u64) -> (i64, Option<u64>) {
    let holder = chain.iter().filter(|digit| digit.stride <= stride).max_by_key(|d| d.stride);
    holder.map_or((0, None), |digit| {
        let ratio = stride / digit.stride;
        let place = digit.place * ratio as i64;
        (place, digit.fixed.map(|value| value / ratio % size))
    })
}

impl Nest {
    /// Moves the innermost loops into one list of steps while a destination word holds them.
    fn gather_word(&mut self) {
        let field = self.width + self.sign_extension;
        let mut low = 0i64;
        let mut high = i64::from(field);
        while let Some(last) = self.loops.last().copied() {
            let reach = last.destination * (last.size as i64 - 1);
            let (new_low, new_high) = (low.min(low + reach), high.max(high + reach));
            // One loop stays, for the threads.
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

    fn run(&self, source: &[u8], destination: &mut [u8], recode: &Recode) {
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
        // Steps beyond a ragged edge, which write nothing, may lie below the first address.
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

impl Bound {
    /// A destination with every pad filled and every component zero.
    pub fn blank(&self, layout: &Layout) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes() as usize];
        let ones = |field: &Field| matches!(field, Field::Pad { fill: Fill::One, .. });
        if layout.fields().iter().any(ones) {
            for address in 0..self.bits() {
                if self.slot(address) == Slot::Hole(Fill::One) {
                    write_bits(&mut bytes, address, 1, 1);
                }
            }
        }
        bytes
    }
}

/// Calls `work` on every `size` bytes of a buffer, in parallel where the crate has threads.
fn each_part(bytes: &mut [u8], size: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    #[cfg(feature = "parallel")]
    {
        use rayon::prelude::*;
        bytes.par_chunks_mut(size).enumerate().for_each(|(part, bytes)| work(part, bytes));
    }
    #[cfg(not(feature = "parallel"))]
    bytes.chunks_mut(size).enumerate().for_each(|(part, bytes)| work(part, bytes));
}

/// Reads up to 56 bits at a bit address.
///
/// # Panics
/// If the bits are not inside the buffer.
#[inline]
pub fn read_bits(bytes: &[u8], address: u64, bits: u32) -> u64 {
    let (byte, shift) = ((address / 8) as usize, (address % 8) as u32);
    let word = match bytes.get(byte..byte + 8) {
        Some(eight) => u64::from_le_bytes(eight.try_into().unwrap_or_default()),
        None => {
            let mut eight = [0; 8];
            let rest = &bytes[byte..];
            eight[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(eight)
        }
    };
    word >> shift & ((1u64 << bits) - 1)
}

/// ORs up to 56 bits into a buffer at a bit address.
///
/// # Panics
/// If a set bit is not inside the buffer.
#[inline]
pub fn write_bits(bytes: &mut [u8], address: u64, bits: u32, value: u64) {
    debug_assert!(bits <= 56 && value >> bits == 0);
    let (byte, shift) = ((address / 8) as usize, (address % 8) as u32);
    let mut rest = value << shift;
    let mut at = byte;
    while rest != 0 {
        bytes[at] |= rest as u8;
        rest >>= 8;
        at += 1;
    }
}
