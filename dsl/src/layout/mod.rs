//! The layout algebra: the address of each bit of each component of a scheme.
//!
//! In: a [`Layout`], a symbolic tree of five constructors over digits of the axes n, k, g, e. Out:
//! a [`BoundLayout`] layout for one [`Shape`], with both directions of the map: [`BoundLayout::address`]
//! (component, index, bit -> bit address) and [`BoundLayout::content`] (bit address -> component, index,
//! bit). Bit address a is bit `a % 8` (0 = least significant) of byte `a / 8`.
//!
//! Reading order: this file (the tree), `bind`, `chain` and `steps` (digits get numbers), `bound`
//! (addresses in both directions), `runs` (the same map as affine runs), `transform` and `nest`
//! (moving a component from one layout to another), `fragment` (the notation for matrix
//! instructions).

mod bind;
mod bits;
mod bound;
mod chain;
mod dims;
mod display;
mod fragment;
mod nest;
mod runs;
mod steps;
mod transform;

pub use bind::{BindError, Granularity, GroupSize};
pub use bits::{read_bits, write_bits};
pub use bound::{BitContent, BoundDigit, BoundLayout, Element, Index};
pub use fragment::{Fragment, FragmentError, Point};
pub use runs::{AffineDigit, AffineRun};
pub(crate) use steps::Stepped;
pub use transform::{Method, Recode, Transform, TransformError};

/// The extents of a stored matrix: `experts` matrices of `n` output rows by `k` input columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Number of stacked experts E; 1 for a plain layer.
    pub experts: u64,
    /// Output features N.
    pub n: u64,
    /// Input features K.
    pub k: u64,
}

impl Shape {
    /// A plain [N, K] weight.
    pub const fn matrix(n: u64, k: u64) -> Self {
        Self { experts: 1, n, k }
    }

    /// E * N * K, or `None` beyond `u64`.
    pub fn elements(self) -> Option<u64> {
        self.experts.checked_mul(self.n)?.checked_mul(self.k)
    }
}

/// One stored component of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    /// The weight's code, one per (n, k).
    Code,
    /// A level of the weight's scale, counted from 0.
    Scale(u8),
    /// The zero point.
    Zero,
    /// A level of the per-group shift of min-style formats, counted from 0.
    Shift(u8),
    /// The group index of each k (act-order).
    Index,
    /// The bias, one per n.
    Bias,
    /// A stored (static) scale level of the activation.
    InputScale(u8),
    /// A stored (static) zero point of the activation.
    InputZero,
    /// The prescale: a factor of x, one per k.
    Prescale,
}

/// The axis of a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// The expert.
    E,
    /// The output row; counts groups of rows if the component has one element per several rows.
    N,
    /// The input column.
    K,
    /// The group along k: `g` is `k` in units of the component's group.
    G,
}

/// The range of indices that a digit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DigitRange {
    /// `floor(i / stride) mod size`, written `k/stride:size` (`k:size` for stride 1).
    Sized {
        /// Distance between neighbouring values, in units of the axis.
        stride: u32,
        /// Number of values.
        size: u32,
    },
    /// The rest of the axis that the other digits of the chain do not cover, written as the bare
    /// axis.
    Open,
    /// The top digit of `size` equal parts, written `k/top:size`.
    Top {
        /// Number of parts.
        size: u32,
    },
    /// The whole axis as one digit, written `k:*`.
    Whole,
}

/// A digit of an axis, possibly counting down, possibly XORed with another digit of the same
/// power-of-two size (a shared-memory swizzle).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digit {
    /// The axis.
    pub axis: Axis,
    /// The range within the axis.
    pub part: DigitRange,
    /// `~k:2`: value `size - 1 - v` instead of `v`.
    pub down: bool,
    /// `k:8 ^ n:8`: value `v XOR` the other digit's value.
    pub swizzle: Option<Box<Digit>>,
}

impl Digit {
    /// A plain digit.
    pub const fn new(axis: Axis, part: DigitRange) -> Self {
        Self { axis, part, down: false, swizzle: None }
    }
}

/// A digit in the order of words: a digit of an axis, or `w`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OrderDigit {
    /// A digit of an axis.
    Digit(Digit),
    /// `w`: the index of the word within the run.
    Word,
}

/// The contents of a pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// All bits 0.
    Zero,
    /// All bits 1.
    One,
    /// Copies of the top bit of the field before it.
    Sign,
}

/// A leaf of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Bits `range.0 .. range.1` of a component at the current index; all of them if `None`.
    Bits {
        /// The component.
        component: Component,
        /// A slice of its bits, half open.
        range: Option<(u8, u8)>,
        /// In a word, the step of the run that the field belongs to: the number that the inner
        /// digits count, the first one fastest. These fields follow one another and are not
        /// repeated; either all fields of a word have a step, or none.
        step: Option<u16>,
    },
    /// Unused bits.
    Pad {
        /// Number of bits.
        bits: u8,
        /// Their contents.
        fill: Fill,
    },
}

impl Field {
    /// All bits of a component.
    pub const fn all(component: Component) -> Self {
        Self::Bits { component, range: None, step: None }
    }
}

/// The words that a run of fields is split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WordType {
    /// Width in bits: 8, 16, 32 or 64.
    pub bits: u8,
    /// Whether checkpoints store the words in a signed integer type; the bits are the same.
    pub signed: bool,
    /// Most-significant-first: the run is a bit string with each code's top bit first, and fills
    /// each word from its top bit down.
    pub msf: bool,
}

/// A layout tree. Least significant bits have the lowest bit addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// A leaf.
    Field(Field),
    /// One layout after the other: a record.
    Sequence(Vec<Layout>),
    /// The body, repeated for each value of the digits, the first digit fastest.
    For {
        /// The digits, fastest first.
        digits: Vec<Digit>,
        /// What is repeated.
        body: Box<Layout>,
    },
    /// A run of fields, split into words. The fields are repeated over `inner` (first digit
    /// fastest), unless each field belongs to one step of `inner`. The words are stored in the
    /// order of `order` (first digit fastest).
    Word {
        /// The word.
        word: WordType,
        /// The fields of one step of the run, or of the whole run if they have steps; lowest bits
        /// first.
        fields: Vec<Field>,
        /// The digits of the run.
        inner: Vec<Digit>,
        /// The order of the words.
        order: Vec<OrderDigit>,
    },
}

impl Layout {
    /// `[d0, d1, ...]`: the component's elements, the first digit fastest.
    pub fn elements(component: Component, digits: Vec<Digit>) -> Self {
        Self::For { digits, body: Box::new(Self::Field(Field::all(component))) }
    }

    /// Every field of the tree, in memory order.
    pub fn fields(&self) -> Vec<Field> {
        match self {
            Self::Field(field) => vec![*field],
            Self::Sequence(parts) => parts.iter().flat_map(Self::fields).collect(),
            Self::For { body, .. } => body.fields(),
            Self::Word { fields, .. } => fields.clone(),
        }
    }

    /// Whether any field is of the component.
    pub fn holds(&self, wanted: Component) -> bool {
        self.fields()
            .iter()
            .any(|field| matches!(field, Field::Bits { component, .. } if *component == wanted))
    }
}
