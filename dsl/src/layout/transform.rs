//! Moving one component from one bound layout to another: read, recode, write.
//!
//! In: two layouts bound to the same shape. Out: a [`Transform`] that fills a zeroed (or
//! [`BoundLayout::blank`]) destination. If the digit chains of both sides have a common refinement, the
//! transform is a loop nest over the common digits, whose innermost digits gather one destination
//! word; if not, it is two such nests through plain codes; if a side is swizzled, it gathers bit by
//! bit. All three give the result of the address functions.

use super::bits::{each_part, read_bits, write_bits};
use super::bound::{BitContent, BoundLayout, Element};
use super::nest::{Nest, nests};
use super::runs::AffineRun;
use super::{Axis, Component, Digit, DigitRange, Field, Fill, Layout, OrderDigit, Shape, WordType};
use crate::layout::Granularity;

/// A bijection of code values, applied during the move.
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
    pub(super) fn apply(&self, code: u32) -> u32 {
        match self {
            Self::Keep => code,
            Self::Xor(mask) => code ^ mask,
            Self::Table(table) => table[code as usize],
        }
    }

    /// The inverse bijection; `None` if a table is not a bijection.
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
#[non_exhaustive]
pub enum TransformError {
    /// The two sides are bound to different shapes.
    #[error("the layouts are bound to different shapes: {0:?} and {1:?}")]
    Shapes(Shape, Shape),
    /// A component is missing on one side, has another width or group, or must be recoded although
    /// the sides store different bits of it.
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
    source: BoundLayout,
    destination: BoundLayout,
    recode: Recode,
    steps: Steps,
}

#[derive(Clone, Debug)]
enum Steps {
    Nest(Vec<Nest>),
    Staged(Box<(Transform, Transform)>),
    Gather,
}

impl Transform {
    /// Plans the move of `component` from `source` to `destination`: of all bits that both store,
    /// so that several moves assemble a code from its slices.
    ///
    /// # Errors
    /// [`TransformError::Shapes`], [`TransformError::Component`].
    pub fn new(
        component: Component,
        source: &BoundLayout,
        destination: &BoundLayout,
        recode: Recode,
    ) -> Result<Self, TransformError> {
        if source.shape() != destination.shape() {
            return Err(TransformError::Shapes(source.shape(), destination.shape()));
        }
        let granularity = common(component, source, destination, &recode)?;
        let steps = match (source.runs(component), destination.runs(component)) {
            (Some(from), Some(to)) => match nests(&from, &to, source.shape(), &recode) {
                Some(nests) => Steps::Nest(nests),
                None => staged(component, [source, destination], [&from, &to], granularity)
                    .unwrap_or(Steps::Gather),
            },
            _ => Steps::Gather,
        };
        let (source, destination) = (source.clone(), destination.clone());
        Ok(Self { component, source, destination, recode, steps })
    }

    /// The algorithm of the transform.
    pub fn method(&self) -> Method {
        match self.steps {
            Steps::Nest(_) => Method::Nest,
            Steps::Staged(_) => Method::Staged,
            Steps::Gather => Method::Gather,
        }
    }

    /// Moves the component. Its bits in the destination must be zero before.
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
                let value = match self.destination.content(address) {
                    BitContent::Bit(at) if at.component == self.component => {
                        u64::from(element(at.index) >> at.bit & 1)
                    }
                    BitContent::Sign(component, index) if component == self.component => {
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
        self.source.held(self.component).map_or(0, |held| held.granularity.bits)
    }
}

/// The width and group of a component, if both sides store bits of it. A component that is recoded
/// must have the same bits on both sides, and whole codes if a table recodes it.
fn common(
    component: Component,
    source: &BoundLayout,
    destination: &BoundLayout,
    recode: &Recode,
) -> Result<Granularity, TransformError> {
    let (held, other) = (source.held(component), destination.held(component));
    let (Some(held), Some(other)) = (held, other) else {
        return Err(TransformError::Component(component));
    };
    let alike = held == other && !held.partial;
    let fits = match recode {
        Recode::Keep => held.bits & other.bits != 0,
        Recode::Xor(_) => alike,
        Recode::Table(_) => alike && held.bits.count_ones() == held.granularity.bits,
    };
    if held.granularity == other.granularity && fits {
        Ok(held.granularity)
    } else {
        Err(TransformError::Component(component))
    }
}

fn check_size(side: &'static str, bound: &BoundLayout, found: usize) -> Result<(), TransformError> {
    let (expected, found) = (bound.bytes(), found as u64);
    if expected == found { Ok(()) } else { Err(TransformError::Size { side, expected, found }) }
}

impl Layout {
    /// One slot of 8, 16 or 32 bits per element, k fastest, then n, then e: plain codes.
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
                .map(|axis| OrderDigit::Digit(Digit::new(axis, DigitRange::Open)))
                .to_vec(),
        }
    }
}

/// Through plain codes; `None` if the digits of a side alone do not nest.
fn staged(
    component: Component,
    [source, destination]: [&BoundLayout; 2],
    [from, to]: [&[AffineRun]; 2],
    granularity: Granularity,
) -> Option<Steps> {
    let plain = Layout::plain(component, granularity.bits);
    let plain = plain.bind(source.shape(), &|_| Some(granularity)).ok()?;
    let codes = plain.runs(component)?;
    let direct =
        |source: &BoundLayout, destination: &BoundLayout, from: &[AffineRun], to: &[AffineRun]| {
            let steps = Steps::Nest(nests(from, to, source.shape(), &Recode::Keep)?);
            let (source, destination) = (source.clone(), destination.clone());
            Some(Transform { component, source, destination, recode: Recode::Keep, steps })
        };
    let first = direct(source, &plain, from, &codes)?;
    let second = direct(&plain, destination, &codes, to)?;
    Some(Steps::Staged(Box::new((first, second))))
}

/// Recodes codes that are stored in slots of 8, 16 or 32 bits.
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

impl BoundLayout {
    /// A destination with every pad filled and every component zero.
    pub fn blank(&self, layout: &Layout) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes() as usize];
        let ones = |field: &Field| matches!(field, Field::Pad { fill: Fill::One, .. });
        if layout.fields().iter().any(ones) {
            for address in 0..self.bits() {
                if self.content(address) == BitContent::Hole(Fill::One) {
                    write_bits(&mut bytes, address, 1, 1);
                }
            }
        }
        bytes
    }
}
